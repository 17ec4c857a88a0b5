//! Co-mining (Wang et al., "Co-mining: Self-Supervised Learning for Sparsely Annotated Object Detection", AAAI 2021): one
//! network looks at two views of one geometry, and what it finds in each is a pseudo label of the other.

use burn::module::Module;
use lacuna_boxes::{Detection, Score};

use super::{
    Lesson, Taught, annotated, new_to, options, plain, pseudo_labeled, rngs, select, tracked, union,
};
use crate::config::CoMining;
use crate::learner::{Learner, Step, Threshold};
use crate::phases::Phase;

impl CoMining {
    pub(crate) fn step(&self, learner: Learner, lesson: Lesson) -> Taught {
        let Lesson { config, mut batch, ids, watch, .. } = lesson;
        let [original, jittered] = [batch.views.remove(0), batch.views.remove(0)];
        let threshold = self.threshold_at(learner.iteration);

        // Both branches look, without learning anything.
        let views = [original.clone(), jittered.clone()];
        let found = watch.time(Phase::Teacher, || {
            let student = learner.student.valid();
            views.map(|view| match &threshold {
                Some(_) => student.detect_above(self.threshold, &plain(view)),
                None => vec![Vec::new(); ids.len()],
            })
        });
        let [by_original, by_jittered] = found.each_ref().map(|found| -> Vec<Vec<Detection>> {
            let images = found.iter().zip(&batch.objects);
            images
                .map(|(found, given)| select(&new_to(found, given, self.iou_max), threshold.as_ref()))
                .collect()
        });

        // Each learns from what the other found.
        let mut rngs = rngs(config, batch.at, ids);
        let losses = watch.time(Phase::Forward, || {
            let mut loss = |view, pseudo_labels: &[Vec<Detection>]| {
                let targets = union(annotated(&batch.objects), pseudo_labeled(pseudo_labels, true));
                learner.student.loss(&tracked(view), &targets, &options(config), &mut rngs)
            };
            loss(original, &by_jittered).plus(loss(jittered, &by_original))
        });
        let (learner, terms) = learner.descend(config, losses, watch);
        let [_, found] = found;
        let step = |losses| Step {
            losses,
            images: ids.len(),
            found,
            pseudo_labels: by_jittered,
            threshold,
            ..Step::default()
        };
        (learner, terms.map(step))
    }

    pub(crate) fn threshold_at(&self, iteration: u64) -> Option<Threshold> {
        (iteration >= self.start_iteration).then_some(Threshold::Score(Score(self.threshold)))
    }
}
