//! Calibration: from a detector's score to the probability that the detection is right. Plain numbers
//! in, plain numbers out.

mod ece;
mod platt;
mod queue;

pub use ece::Reliability;
pub use platt::{NoFit, Platt};
pub use queue::CalibrationQueue;

use lacuna_boxes::Score;

/// The calibrated probability that a detection is right, in `[0, 1]`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Confidence(pub f32);

/// A detection of which it is known whether it is right (the paper's `m`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    pub score: Score,
    pub right: bool,
}
