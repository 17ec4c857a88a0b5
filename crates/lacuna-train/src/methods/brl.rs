//! BRL, background recalibration loss (Zhang et al., "Solving Missing-Annotation Object Detection with Background
//! Recalibration Loss", ICASSP 2020): training on the annotations alone, with a loss that distrusts background far from
//! all of them. For RetinaNet and FCOS; the loss is `Recalibration` in `lacuna-models`.
//!
//! Differs from the reference: it has the strong view of the other methods (there: resize and flip).

use lacuna_data::augment::ResizeRange;
use lacuna_data::batch::Recipe;
use lacuna_models::{DetectorConfig, DetectorKind, LossOptions, Recalibration};
use serde::{Deserialize, Serialize};

use super::TrainingMethod;
use super::inputs::student_view;
use super::supervised::step_on_annotations;
use crate::config::rules::{Violation, is_share, require};
use crate::learner::Learner;
use crate::step::{NotFinite, Step, StepContext};

/// Settings of the method `brl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Brl {
    /// Whether the student sees strong views, or weak ones.
    pub strong_view: bool,
    /// A negative sample with a smaller IoU with every annotation may be an object.
    pub iou_max: f32,
    /// The weight of its loss.
    pub weight: f32,
    /// Where the probability that it is background is below this, it is pulled to be an object instead.
    pub turn: f32,
}

impl Default for Brl {
    fn default() -> Self {
        Self { strong_view: true, iou_max: 0.1, weight: 0.1, turn: 0.5 }
    }
}

impl TrainingMethod for Brl {
    fn title(&self) -> String {
        "BRL".to_owned()
    }

    /// It is about the anchors of one stage.
    fn trains(&self, detector: DetectorKind) -> bool {
        detector != DetectorKind::FasterRcnn
    }

    fn check(&self, _: &DetectorConfig) -> Result<(), Violation> {
        for (key, value) in [("iou_max", self.iou_max), ("weight", self.weight), ("turn", self.turn)] {
            require(is_share(value), format!("method.{key}"), "from 0 to 1")?;
        }
        Ok(())
    }

    fn views(&self, range: ResizeRange) -> Vec<Recipe> {
        vec![student_view(self.strong_view, range)]
    }

    fn step(&self, learner: &mut Learner, context: &mut StepContext) -> Result<Step, NotFinite> {
        let Self { iou_max, weight, turn, .. } = *self;
        let recalibration = Some(Recalibration { iou_max, weight, turn });
        let options = LossOptions { recalibration, ..context.loss_options() };
        step_on_annotations(learner, context, |learner, images, targets, rngs| {
            learner.student.loss(images, targets, &options, rngs)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::methods::testing::threshold;

    #[test]
    fn there_are_no_pseudo_labels() {
        assert_eq!(threshold("name = \"brl\"", 5, 0), None);
    }
}
