//! One file per command: its arguments, and `run`, which parses, calls the libraries and renders.

pub mod calibrate;
pub mod complete;
pub mod convert;
pub mod demo;
pub mod eval;
pub mod import;
pub mod inspect;
pub mod predict;
pub mod report;
pub mod sparsify;
pub mod synth;
pub mod train;
