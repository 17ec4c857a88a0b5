//! Unbiased Teacher (Liu et al., "Unbiased Teacher for Semi-Supervised Object Detection", ICLR 2021), for annotations with
//! gaps: each image is a labeled one, with the boxes that it has, and an unlabeled one, which a teacher labels.
//!
//! Differs from the reference: there labeled and unlabeled images are different ones. Here an annotated object that the
//! teacher does not find is an object to one loss and background to the other. RetinaNet and FCOS, which the reference
//! does not have, divide by the positives of annotations and pseudo labels together: divided by those of a few pseudo
//! labels alone, background would count many times what it counts in the loss of the annotations.

use lacuna_boxes::{Detection, Score};
use lacuna_data::augment::{RecolorRange, ResizeRange};
use lacuna_data::batch::Recipe;
use lacuna_models::{DetectorConfig, LossOptions, Term};
use serde::{Deserialize, Serialize};

use super::inputs::{
    annotation_targets, away_from_annotations, plain_images, pseudo_label_targets, tracked_images, union,
};
use super::{Threshold, TrainingMethod};
use crate::config::rules::{Violation, is_not_negative, is_share_below_one, require, require_above_floor};
use crate::learner::Learner;
use crate::metrics::FOUND_IOU_MIN;
use crate::phases::Phase;
use crate::step::{EpochProgress, NotFinite, Step, StepContext};

/// Settings of the method `unbiased-teacher`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnbiasedTeacher {
    /// The first iterations, which use the annotations alone.
    pub burn_in: u64,
    /// After an iteration the teacher is `m·teacher + (1 − m)·student`.
    pub momentum: f32,
    /// Of raw scores.
    pub threshold: f32,
    /// The weight of the pseudo labels' loss.
    pub weight: f32,
    /// Faster R-CNN: γ of the focal loss by which proposals are classified.
    pub gamma: f32,
}

impl Default for UnbiasedTeacher {
    fn default() -> Self {
        Self { burn_in: 2000, momentum: 0.9996, threshold: 0.7, weight: 4.0, gamma: 1.5 }
    }
}

impl TrainingMethod for UnbiasedTeacher {
    fn title(&self) -> String {
        "Unbiased Teacher".to_owned()
    }

    fn check(&self, detector: &DetectorConfig) -> Result<(), Violation> {
        require_above_floor(self.threshold, "method.threshold", detector)?;
        require(is_share_below_one(self.momentum), "method.momentum", "from 0 to below 1")?;
        require(is_not_negative(self.weight), "method.weight", "0 or more")?;
        require(is_not_negative(self.gamma), "method.gamma", "0 or more")
    }

    fn views(&self, range: ResizeRange) -> Vec<Recipe> {
        vec![Recipe::Weak(range), Recipe::Follower(RecolorRange::UNBIASED_TEACHER)]
    }

    /// During the burn-in the teacher is the student.
    fn ema_momentum(&self, iteration: u64) -> Option<f32> {
        Some(if iteration < self.burn_in { 0.0 } else { self.momentum })
    }

    fn first_pseudo_labels(&self) -> Option<u64> {
        Some(self.burn_in)
    }

    fn threshold(&self, learner: &Learner, _: EpochProgress) -> Option<Threshold> {
        (learner.iteration >= self.burn_in).then_some(Threshold::Score(Score(self.threshold)))
    }

    fn step(&self, learner: &mut Learner, context: &mut StepContext) -> Result<Step, NotFinite> {
        let [weak, strong] = context.take_views();
        let threshold = self.threshold(learner, context.epoch);
        let annotations = &context.batch.objects;

        // After the burn-in the teacher labels the weak view, whatever is annotated there.
        let detections = context.stopwatch.time(Phase::Teacher, || match &threshold {
            Some(_) => learner.teacher().detect_above(self.threshold, &plain_images(weak.clone())),
            None => vec![Vec::new(); annotations.len()],
        });
        let labels: Vec<Vec<Detection>> =
            detections.iter().map(|found| Threshold::select(threshold.as_ref(), found)).collect();

        // (weak + strong)/2 on the annotations, plus `weight` times the classification of the strong view's labels.
        let options = LossOptions { proposal_gamma: Some(self.gamma), ..context.loss_options() };
        let mut rngs = context.rngs();
        let losses = context.stopwatch.time(Phase::Forward, || {
            let given = annotation_targets(annotations);
            let (student, weak, strong) = (&*learner.student, tracked_images(weak), tracked_images(strong));
            let of_weak = student.loss(&weak, &given, &options, &mut rngs);
            if threshold.is_none() {
                return of_weak.plus(student.loss(&strong, &given, &options, &mut rngs)).times(0.5);
            }
            let labels = pseudo_label_targets(&labels, true);
            let counted = union(given.clone(), labels.clone());
            let sets = [(&*given, options), (&*labels, LossOptions { counted: Some(&counted), ..options })];
            let [of_strong, of_labels] = student.losses(&strong, sets, &mut rngs);
            let unsupervised = of_labels.only(&[Term::Classification, Term::Objectness]);
            of_weak.plus(of_strong).times(0.5).plus(unsupervised.times(self.weight))
        });

        // A label of an annotated object is no pseudo label of a missing one.
        let images = labels.iter().zip(annotations);
        let pseudo_labels: Vec<Vec<Detection>> =
            images.map(|(labels, given)| away_from_annotations(labels, given, FOUND_IOU_MIN)).collect();
        let losses = learner.descend(losses, context)?;
        let images = detections.len();
        Ok(Step { losses, images, detections, pseudo_labels, threshold, ..Step::default() })
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use lacuna_data::batch::Batch;

    use super::*;
    use crate::methods::testing::{
        LOW_THRESHOLD, assert_near, batch, learner, student_loss, take_step, threshold, weighted_sum,
    };

    #[test]
    fn the_teacher_is_the_student_until_the_burn_in_ends() {
        let method = "name = \"unbiased-teacher\"\nburn_in = 6";
        let expected = Some(Threshold::Score(Score(0.7)));
        assert_eq!((threshold(method, 5, 0), threshold(method, 6, 0)), (None, expected));
        let (learner, config) = learner(method);
        assert!(learner.teacher.is_some());
        let momentum = |iteration| config.method.as_dyn().ema_momentum(iteration);
        assert_eq!([0, 5, 6, 9000].map(momentum), [0.0, 0.0, 0.9996, 0.9996].map(Some));
        assert_eq!(config.method.as_dyn().first_pseudo_labels(), Some(6));
    }

    #[test]
    fn pseudo_labels_teach_classes_four_times() {
        let method = format!("name = \"unbiased-teacher\"\nburn_in = 0\nthreshold = {LOW_THRESHOLD}");
        let step = take_step(&method);
        let same = learner(&method);
        let Batch { views, objects, .. } = batch();
        // At first the teacher is the student.
        let student = same.0.student.valid();
        let labels = student.detect_above(LOW_THRESHOLD, &plain_images(views[0].clone()));
        let (given, labels) = (annotation_targets(&objects), pseudo_label_targets(&labels, true));
        let counted = union(given.clone(), labels.clone());
        let of_labels = student_loss(&same, &views[1], &labels, Some(&counted)).only(&[Term::Classification]);
        let supervised = [0, 1].map(|n| (student_loss(&same, &views[n], &given, None), 0.5));
        let [first, second] = supervised.clone();
        assert_near(&step.losses, &weighted_sum(&[first, second, (of_labels, 4.0)]));
        // During the burn-in there are none.
        let burning_in = method.replace("burn_in = 0", "burn_in = 1");
        assert_near(&take_step(&burning_in).losses, &weighted_sum(&supervised));
    }
}
