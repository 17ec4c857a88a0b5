//! Calibration: from a detector's score to the probability that the detection is right. Plain numbers
//! in, plain numbers out.

pub mod annotated;
mod bayesian;
mod beta;
mod calibrator;
mod ceiling;
mod completeness;
mod cross_fit;
mod curve;
mod ece;
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
pub use completeness::Completeness;
pub use cross_fit::CrossFit;
pub use curve::{CalibratorKind, Curve};
pub use ece::{Reliability, ReliabilityBin};
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

/// A detection of which it is known whether it is right (the paper's `m`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JudgedScore {
    pub score: Score,
    pub right: bool,
}

/// What the annotations say of a detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It is one that is annotated.
    Right,
    /// It is near one that is annotated, but badly placed.
    Wrong,
    /// It is away from all: wrong, or an object that nobody annotated.
    Candidate,
}

/// A detection in an image with annotations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub class: usize,
    pub score: Score,
    pub outcome: Outcome,
}

impl Sample {
    /// Whether it is right, if that is known.
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

/// Where a detection is, as far as annotations tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proximity {
    /// Near an annotation of its class.
    Near,
    /// Away from all annotations.
    Away,
    /// Nobody has looked, or it cannot be told.
    Unknown,
}

/// Why judged detections determine no calibrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFit {
    #[error(
        "{near} detections are near an annotation and {away} away from all; at least 20 of each are needed"
    )]
    TooFew { near: usize, away: usize },
    #[error("a score is not in [0, 1]")]
    NotAScore,
    #[error("all judged detections have the same outcome")]
    OneOutcome,
    /// The likelihood grows without end as the slope does.
    #[error("a threshold on the score separates right from wrong without an error")]
    Separable,
    #[error("confidence would fall as the score grows")]
    Falling,
    #[error("Newton's method did not converge")]
    NotConverged,
}
