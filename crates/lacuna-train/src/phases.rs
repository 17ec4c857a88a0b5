//! How the time of a run is spent.

use std::time::{Duration, Instant};

/// A part of an iteration, or of what is around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for a batch that is not ready yet.
    Load,
    /// Detections that become pseudo labels.
    Teacher,
    /// The student's forward pass and its loss.
    Forward,
    /// The student's backward pass.
    Backward,
    /// The optimizer's step.
    Sgd,
    /// The teacher's step.
    Ema,
    /// The queue and the calibrator.
    Calibrate,
    /// Metrics and their lines.
    Log,
    /// Writing checkpoints.
    Checkpoint,
    /// Detecting in the test images, and average precision.
    Evaluate,
}

impl Phase {
    /// All of them, in the order of an iteration.
    pub const ALL: [Self; 10] = [
        Self::Load,
        Self::Teacher,
        Self::Forward,
        Self::Backward,
        Self::Sgd,
        Self::Ema,
        Self::Calibrate,
        Self::Log,
        Self::Checkpoint,
        Self::Evaluate,
    ];

    /// What a profile calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "waiting for batches",
            Self::Teacher => "teacher",
            Self::Forward => "student forward",
            Self::Backward => "student backward",
            Self::Sgd => "SGD",
            Self::Ema => "EMA",
            Self::Calibrate => "calibration",
            Self::Log => "metrics",
            Self::Checkpoint => "checkpoints",
            Self::Evaluate => "evaluation",
        }
    }
}

/// The time that each phase took so far.
#[derive(Clone, Debug, Default)]
pub struct Stopwatch([Duration; Phase::ALL.len()]);

impl Stopwatch {
    pub(crate) fn time<T>(&mut self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.add(phase, start.elapsed());
        result
    }

    pub(crate) fn add(&mut self, phase: Phase, time: Duration) {
        self.0[phase as usize] += time;
    }

    /// The time that this phase took so far.
    pub fn elapsed(&self, phase: Phase) -> Duration {
        self.0[phase as usize]
    }
}
