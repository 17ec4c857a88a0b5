//! Co-mining (Wang et al., "Co-mining: Self-Supervised Learning for Sparsely Annotated Object Detection", AAAI 2021): one
//! network looks at two views of one geometry, and what it finds in each is a pseudo label of the other.

use burn::module::Module;
use lacuna_boxes::{Detection, Score, iou};
use lacuna_data::Object;

use super::{Lesson, Taught, options, plain, rngs, select, targets, tracked};
use crate::config::CoMining;
use crate::learner::{Learner, Step, Threshold};
use crate::phases::Phase;
use crate::pseudo::Split;

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
            images.map(|(found, given)| select(&self.new_to(found, given), threshold.as_ref())).collect()
        });

        // Each learns from what the other found.
        let mut rngs = rngs(config, batch.at, ids);
        let losses = watch.time(Phase::Forward, || {
            let mut loss = |view, pseudo_labels: &[Vec<Detection>]| {
                let targets = targets(&batch.objects, pseudo_labels);
                learner.loss(&tracked(view), &targets, &options(config), &mut rngs)
            };
            loss(original, &by_jittered).plus(loss(jittered, &by_original))
        });
        let (learner, terms) = learner.descend(config, losses, watch);
        let [_, found] = found;
        let splits = vec![Split::default(); ids.len()];
        let step =
            |losses| Step { losses, found, splits, pseudo_labels: by_jittered, threshold, ..Step::default() };
        (learner, terms.map(step))
    }

    /// Detections that no annotation of their class overlaps much.
    fn new_to(&self, found: &[Detection], annotations: &[Object]) -> Vec<Detection> {
        let is_new = |found: &&Detection| {
            let same = annotations.iter().filter(|object| object.class == found.class);
            same.into_iter().all(|object| iou(object.bbox, found.bounds) <= self.iou_max)
        };
        found.iter().filter(is_new).copied().collect()
    }

    pub(crate) fn threshold_at(&self, iteration: u64) -> Option<Threshold> {
        (iteration >= self.start_iteration).then_some(Threshold::Score(Score(self.threshold)))
    }
}
