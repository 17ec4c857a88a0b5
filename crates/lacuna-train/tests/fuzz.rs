//! The files that fuzzing kept, through the same functions: small, odd, and each with something of its
//! own. Those named `found-…` once broke a property.

#[path = "../../../fuzz/src/train.rs"]
mod targets;

use std::fs;
use std::path::Path;

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus-min").join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        // Shown when the test fails.
        println!("{}", path.display());
        run(&fs::read(&path).expect("a file"));
    }
}

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
