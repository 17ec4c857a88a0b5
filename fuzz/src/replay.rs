//! Runs a target on the files of its corpus, for ordinary tests.

use std::fs;
use std::path::Path;

pub(crate) fn replay(target: &str, run: fn(&[u8])) {
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
