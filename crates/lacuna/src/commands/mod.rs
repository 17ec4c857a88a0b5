//! One file per command: its arguments, and `run`, which parses, calls the libraries and renders.

pub(crate) mod calibrate;
pub(crate) mod complete;
pub(crate) mod convert;
pub(crate) mod demo;
pub(crate) mod eval;
pub(crate) mod import;
pub(crate) mod inspect;
pub(crate) mod predict;
pub(crate) mod report;
pub(crate) mod sparsify;
pub(crate) mod synth;
pub(crate) mod train;
