//! The files for Label Studio are, byte for byte, those that `fixtures/label-studio/check.py` checked by
//! Label Studio's own rules.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use lacuna_data::yolo::LeftOut;
use lacuna_data::{coco, label_studio};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/label-studio").join(name)
}

/// What is found goes into a file first, so that it can be checked and take the other's place.
fn assert_is_fixture(found: &str, name: &str) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, found).unwrap();
    let expected = fs::read_to_string(fixture(name)).unwrap_or_default();
    assert!(found == expected, "{name} differs from {}:\n{found}", path.display());
}

#[test]
fn tasks_and_configuration_are_what_label_studio_accepted() {
    let dataset = coco::read(&fixture("annotations.json")).unwrap();
    let mut tasks = Vec::new();
    let left_out =
        label_studio::write(&dataset, "/data/local-files/?d=train/", "lacuna", &mut tasks).unwrap();
    assert_eq!(left_out, LeftOut { crowds: 1, outside: 1 });
    assert_is_fixture(&label_studio::labeling_config(dataset.categories()), "config.xml");
    assert_is_fixture(&String::from_utf8(tasks).unwrap(), "tasks.json");
}
