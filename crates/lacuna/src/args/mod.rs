//! Options that several commands share, each defined once.

pub mod data;
pub mod detections;
pub mod judging;
pub mod output;
