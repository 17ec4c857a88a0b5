//! What each fuzz target does with its bytes. The tests of `lacuna-data` and `lacuna-train` include the
//! modules and replay `corpus-min/` through them, so this crate is needed for fuzzing only.

pub mod data;
pub mod train;
