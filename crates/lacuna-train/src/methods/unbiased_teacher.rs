//! Unbiased Teacher (Liu et al., "Unbiased Teacher for Semi-Supervised Object Detection", ICLR 2021), for annotations with
//! gaps: each image is a labeled one, with the boxes that it has, and an unlabeled one, which a teacher labels.
//!
//! Differs from the reference: there labeled and unlabeled images are different ones. So an annotated object that the
//! teacher does not find is an object to the one loss and background to the other. And RetinaNet and FCOS, which are not
//! detectors of the reference, divide by the positives of annotations and pseudo labels together: by those of a few
//! pseudo labels alone, background would count many times what it counts in the loss of the annotations.

use lacuna_boxes::{Detection, Score};
use lacuna_models::{LossOptions, Term};

use super::{
    Lesson, Taught, annotated, new_to, options, plain, pseudo_labeled, rngs, select, tracked, union,
};
use crate::config::UnbiasedTeacher;
use crate::learner::{Learner, Step, Threshold};
use crate::metrics::FOUND_IOU_MIN;
use crate::phases::Phase;

impl UnbiasedTeacher {
    pub(crate) fn step(&self, learner: Learner, lesson: Lesson) -> Taught {
        let Lesson { config, mut batch, ids, watch, .. } = lesson;
        let [weak, strong] = [batch.views.remove(0), batch.views.remove(0)];
        let threshold = self.threshold_at(learner.iteration);

        // After the burn-in a teacher labels the weak view, whatever is annotated there.
        let found = watch.time(Phase::Teacher, || match &threshold {
            Some(_) => {
                let teacher = learner.teacher.as_ref().expect("the method has a teacher");
                teacher.detector.detect_above(self.threshold, &plain(weak.clone()))
            }
            None => vec![Vec::new(); ids.len()],
        });
        let labels: Vec<Vec<Detection>> =
            found.iter().map(|found| select(found, threshold.as_ref())).collect();

        // The annotations teach both views all there is to learn; the pseudo labels teach the strong one classes alone.
        let options = LossOptions { proposal_gamma: Some(self.gamma), ..options(config) };
        let mut rngs = rngs(config, batch.at, ids);
        let losses = watch.time(Phase::Forward, || {
            let given = annotated(&batch.objects);
            let (student, weak, strong) = (&learner.student, tracked(weak), tracked(strong));
            let of_weak = student.loss(&weak, &given, &options, &mut rngs);
            if threshold.is_none() {
                return of_weak.plus(student.loss(&strong, &given, &options, &mut rngs)).times(0.5);
            }
            let labels = pseudo_labeled(&labels, true);
            let counted = union(given.clone(), labels.clone());
            let sets = [(&*given, options), (&*labels, LossOptions { counted: Some(&counted), ..options })];
            let [of_strong, labeled] = student.losses(&strong, sets, &mut rngs);
            let unsupervised = labeled.only(&[Term::Classification, Term::Objectness]);
            of_weak.plus(of_strong).times(0.5).plus(unsupervised.times(self.weight))
        });
        let (learner, terms) = learner.descend(config, losses, watch);
        // Those of annotated objects are no news.
        let images = labels.iter().zip(&batch.objects);
        let pseudo_labels = images.map(|(labels, given)| new_to(labels, given, FOUND_IOU_MIN)).collect();
        let step =
            |losses| Step { losses, images: ids.len(), found, pseudo_labels, threshold, ..Step::default() };
        (learner, terms.map(step))
    }

    pub(crate) fn threshold_at(&self, iteration: u64) -> Option<Threshold> {
        (iteration >= self.burn_in).then_some(Threshold::Score(Score(self.threshold)))
    }

    /// How much of the teacher stays after this iteration: during the burn-in it is the student.
    pub(crate) fn momentum(&self, iteration: u64) -> f32 {
        if iteration < self.burn_in { 0.0 } else { self.momentum }
    }
}
