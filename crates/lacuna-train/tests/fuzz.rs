//! The files that fuzzing kept, through the same functions: small, odd, and each with something of its
//! own. Those named `found-…` once broke a property.

#[path = "../../../fuzz/src/replay.rs"]
mod replay;
#[path = "../../../fuzz/src/train.rs"]
#[allow(unreachable_pub)] // it is a crate of its own for the fuzzer
mod targets;

use replay::replay;

#[test]
fn config() {
    replay("config", targets::config);
}

/// Too long to keep as a file.
#[test]
fn deep_keys_are_refused() {
    let key = "a.".repeat(50_000);
    targets::config(format!("{key}a = 1").as_bytes());
    targets::config(format!("[{key}a]").as_bytes());
    targets::config(format!("\0{key}a=1").as_bytes());
    targets::config("a = [".repeat(50_000).as_bytes());
}

#[test]
fn model() {
    replay("model", targets::model);
}
