//! Calibration: from a detector's score to the probability that the detection is right, and how complete the
//! annotations are. Plain numbers in, plain numbers out.
//!
//! - [`Calibrator::fit`] turns [`Sample`]s, detections that were compared with annotations, into a calibrator, and
//!   [`Calibrator::confidence`] applies it.
//! - [`Reliability`] measures the calibration error.
//! - [`estimate_completeness`] estimates the share of the objects that are annotated.

mod bayesian;
mod beta;
mod calibrator;
mod capped_logistic;
mod completeness;
mod cross_fit;
mod curve;
mod ece;
mod gap_aware;
mod histogram;
mod invalid;
mod isotonic;
mod logistic;
mod platt;
mod queue;
mod tally;
mod temperature;

pub use bayesian::BayesianBinning;
pub use beta::Beta;
pub use calibrator::Calibrator;
pub use completeness::{CompletenessEstimate, CompletenessEstimates, estimate_completeness};
pub use cross_fit::CrossFit;
pub use curve::{CalibratorKind, Curve};
pub use ece::{Reliability, ReliabilityBin};
pub use gap_aware::GapAware;
pub use histogram::HistogramBinning;
pub use isotonic::Isotonic;
pub use platt::Platt;
pub use queue::CalibrationQueue;
pub use temperature::Temperature;

use lacuna_boxes::Score;
use serde::{Deserialize, Serialize};

/// The calibrated probability that a detection is right, in `[0, 1]`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Confidence(pub f32);

/// The score of a judged detection (the paper's `m`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JudgedScore {
    /// The detector's score.
    pub score: Score,
    /// Whether the detection is right.
    pub right: bool,
}

/// How a detection compares with the annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It matches an annotation.
    Right,
    /// It is near an annotation but badly placed.
    Wrong,
    /// It is away from all annotations: wrong, or an object that is not annotated.
    Candidate,
}

/// A detection that was compared with annotations: what calibrators are fitted to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The class number.
    pub class: usize,
    /// The detector's score.
    pub score: Score,
    /// How it compares with the annotations.
    pub outcome: Outcome,
}

impl Sample {
    /// Score and outcome of a judged detection; `None` for a candidate.
    pub fn judged(&self) -> Option<JudgedScore> {
        let right = match self.outcome {
            Outcome::Right => true,
            Outcome::Wrong => false,
            Outcome::Candidate => return None,
        };
        Some(JudgedScore { score: self.score, right })
    }
}

impl From<(usize, JudgedScore)> for Sample {
    fn from((class, JudgedScore { score, right }): (usize, JudgedScore)) -> Self {
        Self { class, score, outcome: if right { Outcome::Right } else { Outcome::Wrong } }
    }
}

/// Whether a detection is near an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proximity {
    /// Near an annotation of its class.
    Near,
    /// Away from all annotations.
    Away,
    /// The image has no annotations to compare with.
    Unknown,
}

/// Why samples determine no calibrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFit {
    /// There are too few detections for an estimate of completeness.
    #[error(
        "{near} detections are near an annotation and {away} away from all; at least 20 of each are needed"
    )]
    TooFew {
        /// Detections near an annotation.
        near: usize,
        /// Detections away from all annotations.
        away: usize,
    },
    /// A score is not a number from 0 to 1.
    #[error("a score is not in [0, 1]")]
    NotAScore,
    /// There are only right detections, or only wrong ones.
    #[error("the judged detections are all right or all wrong; both are needed")]
    OneOutcome,
    /// The likelihood has no maximum: it grows with the slope without end.
    #[error("a score threshold separates right from wrong detections without error, so no slope is the best")]
    Separable,
    /// The best fit has a slope that is not positive.
    #[error("detections with higher scores are not right more often")]
    Falling,
    /// The optimization did not reach a finite optimum.
    #[error("the fit did not converge")]
    NotConverged,
}
