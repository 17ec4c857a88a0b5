//! Dynamic threshold: the teacher's candidates with a raw score above a threshold that grows from epoch to epoch become
//! pseudo labels.

use lacuna_boxes::Score;
use lacuna_data::augment::ResizeRange;
use lacuna_data::batch::Recipe;
use lacuna_data::off;
use lacuna_gaps::OverlapRule;
use lacuna_models::DetectorConfig;
use serde::{Deserialize, Serialize};

use super::teacher_student::TeacherStudent;
use super::{FocalIou, TeacherConfig, Threshold, TrainingMethod};
use crate::config::rules::{Violation, is_share, require};
use crate::learner::Learner;
use crate::step::{EpochProgress, NotFinite, Step, StepContext};

/// Settings of the method `dynamic`: `τ_s = τ0 + (1 − τ0)·ln(e − e⁻)/ln(e⁺ − e⁻)` from epoch `e⁻ + 1` on, τ0 before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dynamic {
    /// Whether the student sees strong views, or weak ones.
    pub strong_view: bool,
    /// τ0, of raw scores.
    pub threshold_start: f32,
    /// e⁻.
    pub epoch_start: f64,
    /// e⁺; the epochs of the run if not given.
    #[serde(with = "off")]
    pub epoch_end: Option<f64>,
    /// The teacher.
    pub teacher: TeacherConfig,
    /// Which detections are judged, and which are candidates.
    pub overlap: OverlapRule,
    /// The weight of negatives.
    pub focal_iou: FocalIou,
}

impl Default for Dynamic {
    fn default() -> Self {
        Self {
            strong_view: true,
            threshold_start: 0.5,
            epoch_start: 18.0,
            epoch_end: None,
            teacher: TeacherConfig::default(),
            overlap: OverlapRule::default(),
            focal_iou: FocalIou::default(),
        }
    }
}

impl Dynamic {
    fn shared(&self) -> TeacherStudent<'_> {
        let Self { strong_view, ref teacher, ref overlap, ref focal_iou, .. } = *self;
        TeacherStudent { strong_view, teacher, overlap, focal_iou }
    }

    /// `τ0 + (1 − τ0)·ln(e − e⁻)/ln(e⁺ − e⁻)` for `e > e⁻ + 1`, τ0 before, with `e` the epochs done.
    fn score_threshold(&self, EpochProgress { done, total }: EpochProgress) -> f32 {
        let Self { threshold_start, epoch_start, .. } = *self;
        let epoch_end = self.epoch_end.unwrap_or(total);
        if done <= epoch_start + 1.0 || epoch_end <= epoch_start + 1.0 {
            return threshold_start;
        }
        let share = (done - epoch_start).ln() / (epoch_end - epoch_start).ln();
        threshold_start + (1.0 - threshold_start) * share.min(1.0) as f32
    }
}

impl TrainingMethod for Dynamic {
    fn title(&self) -> String {
        "dynamic threshold".to_owned()
    }

    fn teacher_student(&self) -> Option<TeacherStudent<'_>> {
        Some(self.shared())
    }

    fn check(&self, detector: &DetectorConfig) -> Result<(), Violation> {
        self.shared().check(detector)?;
        let Self { threshold_start, epoch_start, epoch_end, .. } = *self;
        let above = is_share(threshold_start) && threshold_start >= self.teacher.score_min;
        require(above, "method.threshold_start", "from `method.teacher.score_min` to 1")?;
        require(epoch_start >= 0.0 && epoch_start.is_finite(), "method.epoch_start", "0 or more")?;
        let end = epoch_end.is_none_or(|end| end > epoch_start + 1.0 && end.is_finite());
        require(end, "method.epoch_end", "more than 1 above `epoch_start`, or \"off\"")
    }

    fn warnings_before_training(&self, _: u64, epochs: f64) -> Vec<String> {
        let Self { threshold_start, epoch_start, epoch_end, .. } = *self;
        let growth_start = epoch_start + 1.0;
        if epoch_end.map_or(epochs, |end| end.min(epochs)) > growth_start {
            return Vec::new();
        }
        vec![format!(
            "the run has {epochs:.1} epochs, and the threshold grows from epoch {growth_start} on: it will stay at \
             {threshold_start}"
        )]
    }

    fn views(&self, range: ResizeRange) -> Vec<Recipe> {
        self.shared().views(range)
    }

    fn threshold(&self, learner: &Learner, epoch: EpochProgress) -> Option<Threshold> {
        let threshold = || Threshold::Score(Score(self.score_threshold(epoch)));
        self.teacher.has_started(learner.iteration).then(threshold)
    }

    fn step(&self, learner: &mut Learner, context: &mut StepContext) -> Result<Step, NotFinite> {
        let threshold = self.threshold(learner, context.epoch);
        self.shared().step(threshold, learner, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::testing::threshold;

    #[test]
    fn the_threshold_grows_from_start_to_one() {
        let method = Dynamic { threshold_start: 0.5, epoch_start: 2.0, ..Dynamic::default() };
        let threshold = |done, total| method.score_threshold(EpochProgress { done, total });
        assert_eq!(threshold(0.0, 12.0), 0.5);
        assert_eq!(threshold(3.0, 12.0), 0.5);
        let expected = 0.5 + 0.5 * 5f32.ln() / 10f32.ln();
        assert!((threshold(7.0, 12.0) - expected).abs() < 1e-6);
        assert!((threshold(12.0, 12.0) - 1.0).abs() < 1e-6);
        assert_eq!(threshold(20.0, 12.0), 1.0);
        // A run that ends before the threshold would grow.
        assert_eq!(threshold(2.9, 2.9), 0.5);
        assert_eq!(method.warnings_before_training(100, 2.9).len(), 1);
        assert!(method.warnings_before_training(100, 12.0).is_empty());
    }

    #[test]
    fn the_threshold_depends_on_the_epoch_of_the_run() {
        let method = "name = \"dynamic\"\nthreshold_start = 0.5\nepoch_start = 2";
        assert_eq!(threshold(method, 0, 1), Some(Threshold::Score(Score(0.5))));
        let Some(Threshold::Score(Score(later))) = threshold(method, 0, 20) else { panic!("it has one") };
        assert!((later - (0.5 + 0.5 * 18f32.ln() / 28f32.ln())).abs() < 1e-5, "{later}");
    }
}
