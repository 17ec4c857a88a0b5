//! Training of detectors on sparsely annotated data.
//!
//! [`run::train`] trains a detector as a [`config::RunConfig`] says and leaves a [`model::Model`]. The methods are in
//! [`methods`]; the paper's algorithm is `methods/teacher_student.rs`.

mod checkpoint;
pub mod config;
pub mod data;
pub mod evaluate;
mod focal_iou;
mod learner;
pub mod methods;
pub mod metrics;
pub mod model;
mod optim;
pub mod phases;
pub mod run;
mod schedule;
mod step;
mod warnings;

pub use checkpoint::CheckpointError;
pub use optim::{Optimizer, update_teacher};
