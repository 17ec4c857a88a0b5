//! SAOD (Suri et al., "SparseDet: Improving Sparsely Annotated Object Detection with Pseudo-positive Mining", ICCV 2023),
//! for Faster R-CNN: two views at once. The second also learns what was found in the first; regions that look like
//! objects nobody annotated are not learned as background. The loss is `two_view_loss` in `lacuna-models`.
//!
//! Differs from the reference: its second view also has a part of one annotated box blackened; in inference its colors are
//! drawn anew for each image, ours are the same for all.

use lacuna_boxes::Score;
use lacuna_data::augment::{RecolorRange, ResizeRange};
use lacuna_data::batch::Recipe;
use lacuna_models::faster_rcnn::{Mining, TwoViewLoss, TwoViews};
use lacuna_models::{Detector, DetectorConfig, DetectorKind, Images};
use serde::{Deserialize, Serialize};

use super::inputs::{annotation_targets, tracked_images};
use super::{Threshold, TrainingMethod};
use crate::config::rules::{Violation, is_not_negative, is_share, require};
use crate::learner::Learner;
use crate::phases::Phase;
use crate::step::{EpochProgress, NotFinite, Step, StepContext};

/// Settings of the method `saod`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saod {
    /// The first iteration in which regions are mined.
    pub mining_start: u64,
    /// Mined regions have a higher objectness than this,
    pub objectness_min: f32,
    /// overlap no annotation by more than this,
    pub iou_max: f32,
    /// and no mined region of higher objectness by more than this.
    pub nms_iou_max: f32,
    /// The weight of the distance between their features in the two views.
    pub weight: f32,
    /// Of raw scores: detections of the first view above it become targets of the second.
    pub threshold: f32,
}

impl Default for Saod {
    fn default() -> Self {
        Self {
            mining_start: 30_000,
            objectness_min: 0.8,
            iou_max: 0.2,
            nms_iou_max: 0.3,
            weight: 1.0,
            threshold: 0.9,
        }
    }
}

impl TrainingMethod for Saod {
    fn title(&self) -> String {
        "SAOD".to_owned()
    }

    /// It is about the proposals of two stages.
    fn trains(&self, detector: DetectorKind) -> bool {
        detector == DetectorKind::FasterRcnn
    }

    fn needs_two_views(&self) -> bool {
        true
    }

    fn check(&self, detector: &DetectorConfig) -> Result<(), Violation> {
        if let DetectorConfig::FasterRcnn(detector) = detector {
            require(detector.two_views, "detector.two_views", "true with SAOD")?;
        }
        for (key, value) in [
            ("objectness_min", self.objectness_min),
            ("iou_max", self.iou_max),
            ("nms_iou_max", self.nms_iou_max),
            ("threshold", self.threshold),
        ] {
            require(is_share(value), format!("method.{key}"), "from 0 to 1")?;
        }
        require(is_not_negative(self.weight), "method.weight", "0 or more")
    }

    fn warnings_before_training(&self, iterations: u64, _: f64) -> Vec<String> {
        let start = self.mining_start;
        if start < iterations {
            return Vec::new();
        }
        vec![format!(
            "no regions will be mined: that begins after {start} iterations, and the run has {iterations}"
        )]
    }

    fn views(&self, range: ResizeRange) -> Vec<Recipe> {
        vec![Recipe::Weak(range), Recipe::Follower(RecolorRange::SAOD)]
    }

    fn first_pseudo_labels(&self) -> Option<u64> {
        Some(0)
    }

    fn threshold(&self, _: &Learner, _: EpochProgress) -> Option<Threshold> {
        Some(Threshold::Score(Score(self.threshold)))
    }

    fn step(&self, learner: &mut Learner, context: &mut StepContext) -> Result<Step, NotFinite> {
        let [first, second] = context.take_views().map(tracked_images);
        let images = Images { second_view: Some(second.pixels), ..first };
        let Self { objectness_min, iou_max, nms_iou_max, weight, threshold, mining_start } = *self;
        let mining = Mining { objectness_min, iou_max, nms_iou_max, weight };
        let mining = (learner.iteration >= mining_start).then_some(mining);
        let two_views = TwoViews { score_min: threshold, mining };

        let targets = annotation_targets(&context.batch.objects);
        let (options, mut rngs) = (context.loss_options(), context.rngs());
        let Detector::FasterRcnn(student) = &*learner.student else {
            unreachable!("SAOD trains Faster R-CNN alone")
        };
        let TwoViewLoss { losses, detections, pseudo_labels } =
            context.stopwatch.time(Phase::Forward, || {
                student.two_view_loss(&images, &targets, &two_views, &options, &mut rngs)
            });

        let threshold = self.threshold(learner, context.epoch);
        let losses = learner.descend(losses, context)?;
        let images = targets.len();
        Ok(Step { losses, images, detections, pseudo_labels, threshold, ..Step::default() })
    }
}
