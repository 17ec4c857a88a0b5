//! One module a command: its arguments and what it does.

pub mod convert;
pub mod demo;
pub mod eval;
pub mod import;
pub mod inspect;
pub mod predict;
pub mod sparsify;
pub mod synth;
pub mod train;

use std::path::Path;

/// A usage error in what the arguments say together, reported as clap reports its own.
pub fn usage(message: &str) -> ! {
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{message}\n")).exit()
}

/// A path as JSON can have it: names need not be Unicode.
pub fn shown(path: &Path) -> String {
    path.display().to_string()
}
