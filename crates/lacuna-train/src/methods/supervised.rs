//! Supervised: training on the annotations as if they were complete. The baseline.

use lacuna_data::augment::ResizeRange;
use lacuna_data::batch::Recipe;
use lacuna_models::{DetectorConfig, Images, Losses, Target};
use lacuna_random::Rng;
use serde::{Deserialize, Serialize};

use super::inputs::{annotation_targets, student_view, tracked_images};
use super::{FocalIou, TrainingMethod};
use crate::config::rules::Violation;
use crate::learner::Learner;
use crate::phases::Phase;
use crate::step::{NotFinite, Step, StepContext};

/// Settings of the method `supervised`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Supervised {
    /// Whether the student sees strong views, or weak ones.
    pub strong_view: bool,
    /// The weight of negatives.
    pub focal_iou: FocalIou,
}

impl Default for Supervised {
    fn default() -> Self {
        Self { strong_view: true, focal_iou: FocalIou::default() }
    }
}

impl TrainingMethod for Supervised {
    fn title(&self) -> String {
        "supervised".to_owned()
    }

    fn check(&self, _: &DetectorConfig) -> Result<(), Violation> {
        self.focal_iou.check()
    }

    fn views(&self, range: ResizeRange) -> Vec<Recipe> {
        vec![student_view(self.strong_view, range)]
    }

    fn focal_iou(&self) -> Option<FocalIou> {
        Some(self.focal_iou)
    }

    fn step(&self, learner: &mut Learner, context: &mut StepContext) -> Result<Step, NotFinite> {
        let options = context.loss_options();
        step_on_annotations(learner, context, |learner, images, targets, rngs| {
            self.focal_iou.student_loss(learner, images, targets, &options, rngs)
        })
    }
}

/// One iteration on one view and the annotations alone, with the loss of the method.
pub(super) fn step_on_annotations(
    learner: &mut Learner,
    context: &mut StepContext,
    loss: impl FnOnce(&Learner, &Images, &[Vec<Target>], &mut [Rng]) -> Losses,
) -> Result<Step, NotFinite> {
    let [view] = context.take_views();
    let images = tracked_images(view);
    let (targets, mut rngs) = (annotation_targets(&context.batch.objects), context.rngs());
    let losses = context.stopwatch.time(Phase::Forward, || loss(learner, &images, &targets, &mut rngs));
    let losses = learner.descend(losses, context)?;
    Ok(Step { losses, images: targets.len(), ..Step::default() })
}

#[cfg(test)]
mod tests {
    use crate::methods::testing::threshold;

    #[test]
    fn there_are_no_pseudo_labels() {
        assert_eq!(threshold("name = \"supervised\"", 5, 0), None);
    }
}
