//! Training of detectors on sparsely annotated data, and the models that come of it.

mod checkpoint;
pub mod config;
pub mod data;
pub mod evaluate;
mod focal_iou;
pub mod learner;
pub mod methods;
pub mod metrics;
pub mod model;
mod optim;
pub mod phases;
pub mod runner;
mod schedule;
mod warnings;

pub use checkpoint::CheckpointError;
pub use optim::{NormStatistics, Optimizer, update_teacher};
