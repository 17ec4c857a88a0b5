//! What training changes, and what it tells of each iteration.

use burn::module::Module;
use lacuna_boxes::{Detection, Score};
use lacuna_calib::{
    CalibrationQueue, Calibrator, CalibratorKind, Confidence, NoFit, Outcome, Proximity, Sample,
};
use lacuna_models::{Detector, Losses, Term, ops};

use crate::config::{Calibrated, Method, RunConfig};
use crate::phases::{Phase, Stopwatch};
use crate::{Optimizer, update_teacher};
use lacuna_gaps::JudgedImage;

/// All that training changes.
pub struct Learner {
    /// On a tracked device.
    pub student: Detector,
    pub teacher: Option<Teacher>,
    pub optimizer: Optimizer,
    /// How many iterations are done.
    pub iteration: u64,
}

/// The average of the students so far, and what is known about its scores.
pub struct Teacher {
    /// On a plain device.
    pub detector: Detector,
    pub calibration: Option<Calibration>,
}

pub struct Calibration {
    /// `None` until the first successful fit.
    pub calibrator: Option<Calibrator>,
    pub queue: CalibrationQueue,
}

/// Which candidates become pseudo labels.
#[derive(Clone, Debug, PartialEq)]
pub enum Threshold {
    Score(Score),
    Confidence(Confidence, Calibrator),
}

impl Threshold {
    pub(crate) fn is_below(&self, candidate: &Detection) -> bool {
        match self {
            Self::Score(min) => candidate.score > *min,
            Self::Confidence(min, calibrator) => {
                calibrator.confidence(candidate.class, candidate.score, Proximity::Away) > *min
            }
        }
    }

    /// The raw score that it corresponds to, for all classes together.
    pub fn as_score(&self) -> Option<Score> {
        match self {
            Self::Score(min) => Some(*min),
            Self::Confidence(min, calibrator) => calibrator.pooled().score_of(*min, Proximity::Away),
        }
    }
}

/// What an iteration did.
#[derive(Debug, Default)]
pub struct Step {
    pub losses: Vec<(Term, f32)>,
    pub images: usize,
    /// The detections that pseudo labels are made from, of each image.
    pub found: Vec<Vec<Detection>>,
    /// Of each image, by a method that compares detections with annotations.
    pub splits: Vec<JudgedImage>,
    /// Away from all annotations of their class.
    pub pseudo_labels: Vec<Vec<Detection>>,
    /// What the candidates had to be above; `None` when none was let through.
    pub threshold: Option<Threshold>,
    /// The calibrator that there was, be it used or not.
    pub calibrator: Option<Calibrator>,
    /// What came of fitting the calibrator, if it was time.
    pub refit: Option<Refit>,
}

/// What came of a fit of the calibrator, and how many detections it was fitted to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refit {
    pub fit: Result<(), NoFit>,
    pub detections: usize,
}

/// An iteration from which there is no way on.
#[derive(Debug)]
pub struct NotFinite {
    /// The loss or its gradient.
    pub what: &'static str,
    pub losses: Vec<(Term, f32)>,
}

impl Learner {
    /// A student that has not learned anything yet, and a teacher that is its image.
    pub fn new(student: Detector, config: &RunConfig) -> Self {
        let teacher = config.method.has_teacher().then(|| Teacher {
            detector: student.valid(),
            calibration: match &config.method {
                Method::Calibrated(method) => {
                    Some(Calibration { calibrator: None, queue: CalibrationQueue::new(method.window_images) })
                }
                _ => None,
            },
        });
        Self { student, teacher, optimizer: Optimizer::new(config.train.gradient_norm_max), iteration: 0 }
    }

    /// The calibrator as it is now, if there is one.
    pub(crate) fn calibrator(&self) -> Option<&Calibrator> {
        self.teacher.as_ref()?.calibration.as_ref()?.calibrator.as_ref()
    }

    /// The student steps down its loss, and the teacher follows with the method's momentum. The terms of the loss; when
    /// it or its gradient is not finite, no weight has changed.
    pub(crate) fn descend(
        self,
        config: &RunConfig,
        losses: Losses,
        watch: &mut Stopwatch,
    ) -> (Self, Result<Vec<(Term, f32)>, NotFinite>) {
        let terms: Vec<(Term, f32)> =
            losses.0.iter().map(|(term, loss)| (*term, ops::values(loss.clone())[0])).collect();
        if terms.iter().any(|(_, loss)| !loss.is_finite()) {
            return (self, Err(NotFinite { what: "loss", losses: terms }));
        }
        let gradients = watch.time(Phase::Backward, || losses.total().backward());
        drop(losses);

        let Self { student, teacher, mut optimizer, iteration } = self;
        let sgd = config.train.sgd(iteration);
        let (student, stepped) = watch.time(Phase::Sgd, || optimizer.step(student, gradients, sgd));
        if !stepped {
            let unchanged = Self { student, teacher, optimizer, iteration };
            return (unchanged, Err(NotFinite { what: "gradient", losses: terms }));
        }
        let momentum = config.method.momentum(iteration);
        let teacher = watch.time(Phase::Ema, || {
            teacher.map(|Teacher { detector, calibration }| Teacher {
                detector: update_teacher(detector, &student, momentum),
                calibration,
            })
        });
        (Self { student, teacher, optimizer, iteration: iteration + 1 }, Ok(terms))
    }
}

impl Calibration {
    /// The detections of one more image: all of them for a calibrator that looks at all, else the judged.
    pub(crate) fn remember(&mut self, method: &Calibrated, split: &JudgedImage) {
        let of_use = |sample: &&Sample| {
            method.calibrator.kind == CalibratorKind::Completeness || sample.outcome != Outcome::Candidate
        };
        self.queue.push(split.samples.iter().filter(of_use).copied().collect());
    }

    /// Fits the calibrator to the queue if it is time. The old one stays when nothing can be fitted, or only
    /// one with confidences that fall as the score grows.
    pub(crate) fn refit(&mut self, method: &Calibrated, iteration: u64) -> Option<Refit> {
        let Calibrated { refit_every, calibrator, .. } = method;
        if !iteration.is_multiple_of(*refit_every) {
            return None;
        }
        let observed: Vec<Sample> = self.queue.samples().collect();
        let fit = Calibrator::fit(calibrator.kind, calibrator.per_class, &observed);
        let fit = fit.map(|fit| self.calibrator = Some(fit));
        Some(Refit { fit, detections: observed.len() })
    }
}
