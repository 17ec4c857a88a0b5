//! Calibrated Teacher: the teacher's candidates with a calibrated confidence above a threshold become pseudo labels.

use lacuna_calib::{CalibrationQueue, Calibrator, CalibratorKind, Confidence, Outcome, Platt, Sample};
use lacuna_data::augment::ResizeRange;
use lacuna_data::batch::Recipe;
use lacuna_gaps::{JudgedImage, OverlapRule};
use lacuna_models::DetectorConfig;
use serde::{Deserialize, Serialize};

use super::teacher_student::TeacherStudent;
use super::{FocalIou, TeacherConfig, Threshold, TrainingMethod};
use crate::config::rules::{Violation, is_share_below_one, require};
use crate::learner::Learner;
use crate::phases::Phase;
use crate::step::{EpochProgress, NotFinite, Refit, Step, StepContext};

/// Settings of the method `calibrated`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibrated {
    /// Whether the student sees strong views, or weak ones.
    pub strong_view: bool,
    /// τ_s, of confidences.
    pub confidence_min: f32,
    /// T: iterations between fits of the calibrator.
    pub refit_every: u64,
    /// L: images whose detections are in the queue.
    pub window_images: usize,
    /// The pseudo labels before the first fit.
    pub before_first_fit: BeforeFirstFit,
    /// φ_c.
    pub calibrator: CalibratorConfig,
    /// The teacher.
    pub teacher: TeacherConfig,
    /// Which detections are judged, and which are candidates.
    pub overlap: OverlapRule,
    /// The weight of negatives.
    pub focal_iou: FocalIou,
}

/// φ_c, which turns the teacher's scores into confidences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratorConfig {
    /// Which curve is fitted.
    pub kind: CalibratorKind,
    /// Whether a class with enough detections has a curve of its own.
    pub per_class: bool,
}

/// Which pseudo labels there are before the first successful fit of the calibrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BeforeFirstFit {
    /// None.
    Nothing,
    /// As the paper's algorithm starts: every score is its own confidence.
    Identity,
}

impl Default for Calibrated {
    fn default() -> Self {
        Self {
            strong_view: true,
            confidence_min: 0.7,
            refit_every: 500,
            window_images: 8000,
            before_first_fit: BeforeFirstFit::Nothing,
            calibrator: CalibratorConfig { kind: CalibratorKind::Platt, per_class: false },
            teacher: TeacherConfig::default(),
            overlap: OverlapRule::default(),
            focal_iou: FocalIou::default(),
        }
    }
}

/// The method's state: the queue Q and the calibrator that is fitted to it.
pub(crate) struct Calibration {
    /// `None` until the first successful fit.
    pub(crate) calibrator: Option<Calibrator>,
    pub(crate) queue: CalibrationQueue,
}

impl Calibration {
    /// Adds the detections of an image to the queue: the judged ones, or all for a calibrator of all.
    fn push(&mut self, method: &Calibrated, judged: &JudgedImage) {
        let all = method.calibrator.kind == CalibratorKind::Completeness;
        let of_use = |sample: &&Sample| all || sample.outcome != Outcome::Candidate;
        self.queue.push(judged.samples.iter().filter(of_use).copied().collect());
    }

    /// Fits the calibrator to the queue every `refit_every` iterations. The old one stays where nothing can be fitted,
    /// or only a curve that falls as the score grows.
    fn refit(&mut self, method: &Calibrated, iteration: u64) -> Option<Refit> {
        let Calibrated { refit_every, calibrator, .. } = method;
        if !iteration.is_multiple_of(*refit_every) {
            return None;
        }
        let samples: Vec<Sample> = self.queue.samples().collect();
        let fit = Calibrator::fit(calibrator.kind, calibrator.per_class, &samples);
        let fit = fit.map(|fit| self.calibrator = Some(fit));
        Some(Refit { fit, detections: samples.len() })
    }
}

impl Calibrated {
    fn shared(&self) -> TeacherStudent<'_> {
        let Self { strong_view, ref teacher, ref overlap, ref focal_iou, .. } = *self;
        TeacherStudent { strong_view, teacher, overlap, focal_iou }
    }
}

impl TrainingMethod for Calibrated {
    fn title(&self) -> String {
        let calibrator = self.calibrator.kind.name();
        format!("Calibrated Teacher ({calibrator}, confidence {})", self.confidence_min)
    }

    fn teacher_student(&self) -> Option<TeacherStudent<'_>> {
        Some(self.shared())
    }

    fn check(&self, detector: &DetectorConfig) -> Result<(), Violation> {
        self.shared().check(detector)?;
        require(is_share_below_one(self.confidence_min), "method.confidence_min", "from 0 to below 1")?;
        require(self.refit_every > 0, "method.refit_every", "1 at least")?;
        require(self.window_images > 0, "method.window_images", "1 at least")
    }

    fn views(&self, range: ResizeRange) -> Vec<Recipe> {
        self.shared().views(range)
    }

    fn calibration(&self) -> Option<Calibration> {
        Some(Calibration { calibrator: None, queue: CalibrationQueue::new(self.window_images) })
    }

    fn threshold(&self, learner: &Learner, _: EpochProgress) -> Option<Threshold> {
        let calibrator = match (learner.calibrator(), self.before_first_fit) {
            (Some(calibrator), _) => calibrator.clone(),
            (None, BeforeFirstFit::Identity) => Platt::IDENTITY.into(),
            (None, BeforeFirstFit::Nothing) => return None,
        };
        let threshold = || Threshold::Confidence(Confidence(self.confidence_min), calibrator);
        self.teacher.has_started(learner.iteration).then(threshold)
    }

    /// The shared step; then the judged detections join the queue, to which the calibrator is refitted.
    fn step(&self, learner: &mut Learner, context: &mut StepContext) -> Result<Step, NotFinite> {
        let calibrator = learner.calibrator().cloned();
        let threshold = self.threshold(learner, context.epoch);
        let step = self.shared().step(threshold, learner, context)?;

        let iteration = learner.iteration;
        let calibration = learner.calibration.as_mut().expect("the method calibrates");
        let refit = context.stopwatch.time(Phase::Calibrate, || {
            step.judged.iter().for_each(|image| calibration.push(self, image));
            calibration.refit(self, iteration)
        });
        Ok(Step { calibrator, refit, ..step })
    }
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::Score;
    use lacuna_calib::{Curve, NoFit};

    use super::*;
    use crate::methods::testing::threshold;

    #[test]
    fn the_threshold_is_a_confidence() {
        assert_eq!(threshold("name = \"calibrated\"", 5, 0), None);
        let identity = "name = \"calibrated\"\nbefore_first_fit = \"identity\"";
        let expected = Threshold::Confidence(Confidence(0.7), Platt::IDENTITY.into());
        assert_eq!(threshold(identity, 5, 0), Some(expected.clone()));
        let late = format!("{identity}\nteacher.start_iteration = 6");
        assert_eq!((threshold(&late, 5, 0), threshold(&late, 6, 0)), (None, Some(expected)));
    }

    #[test]
    fn the_calibrator_is_fitted_when_it_is_time_and_only_if_it_is_of_use() {
        let method = Calibrated { refit_every: 10, ..Calibrated::default() };
        let mut calibration = method.calibration().expect("the method calibrates");
        let judged = |pairs: &[(f32, bool)]| -> Vec<Sample> {
            let outcome = |right| if right { Outcome::Right } else { Outcome::Wrong };
            let sample = |&(score, right)| Sample { class: 0, score: Score(score), outcome: outcome(right) };
            pairs.iter().map(sample).collect()
        };
        let rising =
            judged(&[(0.4, false), (0.5, false), (0.6, true), (0.55, true), (0.7, false), (0.8, true)]);
        calibration.queue.push(rising);
        assert_eq!(calibration.refit(&method, 9), None);
        assert_eq!(calibration.refit(&method, 10), Some(Refit { fit: Ok(()), detections: 6 }));
        let fit = calibration.calibrator.clone().expect("it is time, and there is something to fit");
        assert!(matches!(fit.pooled(), Curve::Platt(platt) if platt.w > 0.0));
        let falling = [(0.9, false), (0.85, false), (0.8, false), (0.45, true), (0.42, true), (0.41, true)];
        (0..9).for_each(|_| calibration.queue.push(judged(&falling)));
        let again = calibration.refit(&method, 20).expect("it is time");
        assert_eq!(again.fit, Err(NoFit::Falling));
        assert_eq!(calibration.calibrator, Some(fit), "the old one stays");
    }
}
