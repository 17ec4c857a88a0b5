use crate::Box2;

/// A detector's own score of a detection, in `[0, 1]`: an order, not a probability. What a calibrator
/// makes of it is of another type.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Score(pub f32);

/// A box that a detector gives: of one class, with its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detection {
    pub bounds: Box2,
    /// From 0, background not counted.
    pub class: usize,
    pub score: Score,
}
