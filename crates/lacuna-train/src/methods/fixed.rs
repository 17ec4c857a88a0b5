//! Fixed threshold: the teacher's candidates with a raw score above a constant become pseudo labels.

use lacuna_boxes::Score;
use lacuna_data::augment::ResizeRange;
use lacuna_data::batch::Recipe;
use lacuna_gaps::OverlapRule;
use lacuna_models::DetectorConfig;
use serde::{Deserialize, Serialize};

use super::teacher_student::TeacherStudent;
use super::{FocalIou, TeacherConfig, Threshold, TrainingMethod};
use crate::config::rules::{Violation, is_share, require};
use crate::learner::Learner;
use crate::step::{EpochProgress, NotFinite, Step, StepContext};

/// Settings of the method `fixed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fixed {
    /// Whether the student sees strong views, or weak ones.
    pub strong_view: bool,
    /// τ_s, of raw scores.
    pub threshold: f32,
    /// The teacher.
    pub teacher: TeacherConfig,
    /// Which detections are judged, and which are candidates.
    pub overlap: OverlapRule,
    /// The weight of negatives.
    pub focal_iou: FocalIou,
}

impl Default for Fixed {
    fn default() -> Self {
        Self {
            strong_view: true,
            threshold: 0.7,
            teacher: TeacherConfig::default(),
            overlap: OverlapRule::default(),
            focal_iou: FocalIou::default(),
        }
    }
}

impl Fixed {
    fn shared(&self) -> TeacherStudent<'_> {
        let Self { strong_view, ref teacher, ref overlap, ref focal_iou, .. } = *self;
        TeacherStudent { strong_view, teacher, overlap, focal_iou }
    }
}

impl TrainingMethod for Fixed {
    fn title(&self) -> String {
        format!("fixed threshold {}", self.threshold)
    }

    fn teacher_student(&self) -> Option<TeacherStudent<'_>> {
        Some(self.shared())
    }

    fn check(&self, detector: &DetectorConfig) -> Result<(), Violation> {
        self.shared().check(detector)?;
        let above = is_share(self.threshold) && self.threshold >= self.teacher.score_min;
        require(above, "method.threshold", "from `method.teacher.score_min` to 1")
    }

    fn views(&self, range: ResizeRange) -> Vec<Recipe> {
        self.shared().views(range)
    }

    fn threshold(&self, learner: &Learner, _: EpochProgress) -> Option<Threshold> {
        self.teacher.has_started(learner.iteration).then_some(Threshold::Score(Score(self.threshold)))
    }

    fn step(&self, learner: &mut Learner, context: &mut StepContext) -> Result<Step, NotFinite> {
        let threshold = self.threshold(learner, context.epoch);
        self.shared().step(threshold, learner, context)
    }
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::Score;

    use super::*;
    use crate::methods::testing::threshold;

    #[test]
    fn the_threshold_is_a_constant_score() {
        let expected = Some(Threshold::Score(Score(0.6)));
        assert_eq!(threshold("name = \"fixed\"\nthreshold = 0.6", 0, 0), expected);
    }
}
