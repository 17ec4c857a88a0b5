//! Options that several commands share, each defined once.

pub(crate) mod data;
pub(crate) mod detections;
pub(crate) mod judging;
pub(crate) mod output;
