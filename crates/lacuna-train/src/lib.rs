//! Training of detectors on sparsely annotated data.

mod optim;

pub use optim::{Optimizer, update_teacher};
