//! Co-mining (Wang et al., "Co-mining: Self-Supervised Learning for Sparsely Annotated Object Detection", AAAI 2021): one
//! detector is trained on two views of one geometry, and its detections in each are pseudo labels of the other.
//!
//! Differs from the reference: pseudo labels come from a pass of their own (there: from the pass that is trained); FCOS's
//! threshold is of its whole score (there: of the class's); suppression is the detector's own; the color jitter has red
//! and blue in their places.

use burn::module::Module;
use lacuna_boxes::{Detection, Score};
use lacuna_data::augment::{RecolorRange, ResizeRange};
use lacuna_data::batch::Recipe;
use lacuna_models::{DetectorConfig, DetectorKind};
use serde::{Deserialize, Serialize};

use super::inputs::{
    annotation_targets, away_from_annotations, plain_images, pseudo_label_targets, tracked_images, union,
};
use super::{Threshold, TrainingMethod};
use crate::config::rules::{Violation, is_share, require, require_above_floor};
use crate::learner::Learner;
use crate::phases::Phase;
use crate::step::{EpochProgress, NotFinite, Step, StepContext};

/// Settings of the method `co-mining`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoMining {
    /// The first iteration with pseudo labels.
    pub start_iteration: u64,
    /// Of raw scores.
    pub threshold: f32,
    /// No pseudo label overlaps an annotation of its class by more than this.
    pub iou_max: f32,
}

impl Default for CoMining {
    fn default() -> Self {
        Self { start_iteration: 0, threshold: 0.6, iou_max: 0.4 }
    }
}

impl TrainingMethod for CoMining {
    fn title(&self) -> String {
        "Co-mining".to_owned()
    }

    fn published(detector: DetectorKind) -> Self {
        match detector {
            DetectorKind::Fcos => Self { threshold: 0.5, ..Self::default() },
            DetectorKind::RetinaNet | DetectorKind::FasterRcnn => Self::default(),
        }
    }

    fn check(&self, detector: &DetectorConfig) -> Result<(), Violation> {
        require_above_floor(self.threshold, "method.threshold", detector)?;
        require(is_share(self.iou_max), "method.iou_max", "from 0 to 1")
    }

    fn views(&self, range: ResizeRange) -> Vec<Recipe> {
        vec![Recipe::Weak(range), Recipe::Follower(RecolorRange::CO_MINING)]
    }

    fn first_pseudo_labels(&self) -> Option<u64> {
        Some(self.start_iteration)
    }

    fn threshold(&self, learner: &Learner, _: EpochProgress) -> Option<Threshold> {
        (learner.iteration >= self.start_iteration).then_some(Threshold::Score(Score(self.threshold)))
    }

    fn step(&self, learner: &mut Learner, context: &mut StepContext) -> Result<Step, NotFinite> {
        let [original, jittered] = context.take_views();
        let threshold = self.threshold(learner, context.epoch);
        let annotations = &context.batch.objects;

        // The student detects in both views; what no annotation explains is a pseudo label.
        let views = [original.clone(), jittered.clone()];
        let detections = context.stopwatch.time(Phase::Teacher, || {
            let student = learner.student.valid();
            views.map(|view| match &threshold {
                Some(_) => student.detect_above(self.threshold, &plain_images(view)),
                None => vec![Vec::new(); annotations.len()],
            })
        });
        let [by_original, by_jittered] = detections.each_ref().map(|of_view| -> Vec<Vec<Detection>> {
            let pseudo_labels = |(detections, annotations): (&Vec<Detection>, &Vec<_>)| {
                let away = away_from_annotations(detections, annotations, self.iou_max);
                Threshold::select(threshold.as_ref(), &away)
            };
            of_view.iter().zip(annotations).map(pseudo_labels).collect()
        });

        // Each view learns the annotations and the pseudo labels of the other.
        let (options, mut rngs) = (context.loss_options(), context.rngs());
        let losses = context.stopwatch.time(Phase::Forward, || {
            let mut loss = |view, pseudo_labels: &[Vec<Detection>]| {
                let targets =
                    union(annotation_targets(annotations), pseudo_label_targets(pseudo_labels, true));
                learner.student.loss(&tracked_images(view), &targets, &options, &mut rngs)
            };
            loss(original, &by_jittered).plus(loss(jittered, &by_original))
        });
        let losses = learner.descend(losses, context)?;
        let [_, detections] = detections;
        let (images, pseudo_labels) = (detections.len(), by_jittered);
        Ok(Step { losses, images, detections, pseudo_labels, threshold, ..Step::default() })
    }
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::iou;
    use lacuna_data::Object;
    use lacuna_data::batch::Batch;

    use super::*;
    use crate::methods::testing::{
        LOW_THRESHOLD, assert_near, batch, learner, student_loss, take_step, threshold, weighted_sum,
    };

    #[test]
    fn pseudo_labels_start_late_and_above_the_authors_threshold_for_fcos() {
        let method = "name = \"co-mining\"\nstart_iteration = 6";
        assert_eq!(threshold(method, 5, 0), None);
        assert_eq!(threshold(method, 6, 0), Some(Threshold::Score(Score(0.5))));
    }

    #[test]
    fn each_view_learns_what_was_found_in_the_other() {
        let method = format!("name = \"co-mining\"\nthreshold = {LOW_THRESHOLD}");
        let step = take_step(&method);
        let same = learner(&method);
        let Batch { views, objects, .. } = batch();
        let [of_first, of_second] = [0, 1].map(|n| -> Vec<Vec<Detection>> {
            let student = same.0.student.valid();
            let found = student.detect_above(LOW_THRESHOLD, &plain_images(views[n].clone()));
            let is_new = |found: &&Detection, given: &[Object]| iou(found.bbox, given[0].bbox) <= 0.4;
            let images = found.iter().zip(&objects);
            images
                .map(|(all, given)| all.iter().filter(|one| is_new(one, given)).copied().collect())
                .collect()
        });
        assert!(of_first != of_second && of_first.iter().chain(&of_second).all(|labels| !labels.is_empty()));
        let view_loss = |n: usize, labels: &[Vec<Detection>]| {
            let targets = union(annotation_targets(&objects), pseudo_label_targets(labels, true));
            (student_loss(&same, &views[n], &targets, None), 1.0)
        };
        let expected = weighted_sum(&[view_loss(0, &of_second), view_loss(1, &of_first)]);
        assert_near(&step.losses, &expected);
        assert_eq!(step.pseudo_labels, of_second);
    }
}
