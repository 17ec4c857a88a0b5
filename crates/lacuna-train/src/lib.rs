//! Training of detectors on sparsely annotated data, and the models that come of it.

pub mod model;
mod optim;

pub use optim::{Optimizer, update_teacher};
