//! Where the time of a run goes.

use std::time::{Duration, Instant};

/// A part of an iteration, or of what is around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for a batch that is not made yet.
    Load,
    Teacher,
    Forward,
    Backward,
    Sgd,
    Ema,
    /// The queue and the calibrator.
    Calibrate,
    Log,
    Checkpoint,
    Evaluate,
}

impl Phase {
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
    pub fn time<T>(&mut self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.0[phase as usize] += start.elapsed();
        result
    }

    pub fn of(&self, phase: Phase) -> Duration {
        self.0[phase as usize]
    }
}
