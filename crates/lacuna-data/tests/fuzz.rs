//! The files that fuzzing kept, through the same functions: small, odd, and each with something of its
//! own. Those named `found-…` once broke a property.

#![allow(clippy::unwrap_used)]

#[path = "../../../fuzz/src/replay.rs"]
mod replay;
#[path = "../../../fuzz/src/data.rs"]
#[allow(unreachable_pub)] // it is a crate of its own for the fuzzer
mod targets;

use std::fs;
use std::path::Path;

use replay::replay;

use lacuna_data::convert::{ImageFiles, write_folder};
use lacuna_data::layout::{Format, Layout, ReadOptions};
use lacuna_data::output::IfExists;

#[test]
fn coco() {
    replay("coco", targets::coco);
}

#[test]
fn results() {
    replay("results", targets::results);
}

#[test]
fn voc() {
    replay("voc", targets::voc);
}

#[test]
fn yolo() {
    replay("yolo", targets::yolo);
}

#[test]
fn label_studio() {
    replay("label_studio", targets::label_studio);
}

#[test]
fn image() {
    replay("image", targets::image);
}

#[test]
fn a_box_beyond_any_image_is_refused_with_its_place() {
    let coco = r#"{"images": [{"id": 1, "file_name": "a", "width": 1, "height": 1}],
        "categories": [{"id": 1, "name": "a"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1e38, 0, 3e38, 1]}]}"#;
    let error = lacuna_data::coco::parse(coco.into(), Path::new("a.json")).unwrap_err().to_string();
    assert_eq!(
        error,
        "a.json:3: annotation 1 of image 1 has a `bbox` beyond any image: [1e38, 0.0, 3e38, 1.0]"
    );
    let voc = "<annotation><object><name>a</name>\n<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>1e39</xmax>\
        <ymax>1</ymax></bndbox></object></annotation>";
    let error = lacuna_data::voc::parse(voc, Path::new("a.xml")).unwrap_err().to_string();
    assert_eq!(error, "a.xml:2: object `a` has a box beyond any image");
}

#[test]
fn names_that_voc_cannot_hold_are_not_written() {
    for (name, fits) in
        [("a b", true), ("ü & <b>", true), ("", false), (" a", false), ("a\nb", false), ("a\u{1}", false)]
    {
        assert_eq!(lacuna_data::voc::can_hold(name), fits, "{name:?}");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let json = folder.path().join("a.json");
        let name = serde_json::to_string(name).expect("a string");
        let text = r#"{"images": [{"id": 1, "file_name": "a.jpg", "width": 1, "height": 1}], "annotations": [],
            "categories": [{"id": 1, "name": NAME}]}"#;
        fs::write(&json, text.replace("NAME", &name)).expect("a file");
        let split = Layout::detect(&json).and_then(|layout| layout.read(None, ReadOptions::default()));
        let splits = [split.expect("a data set")];
        let out = folder.path().join("voc");
        let written = write_folder(&splits, Format::Voc, ImageFiles::Leave, &out, IfExists::Refuse, &|| true);
        assert_eq!(written.is_ok(), fits, "{name}");
        assert_eq!(out.exists(), fits, "{name}");
    }
}

/// It has no end.
#[cfg(unix)]
#[test]
fn a_file_that_is_no_image_is_known_by_its_start() {
    let error = lacuna_data::decode::read_size(Path::new("/dev/zero")).unwrap_err();
    assert_eq!(error.problem.to_string(), "is not a JPEG, PNG, WebP or BMP image");
}

/// Too large to keep as files, or to be found by chance.
#[test]
fn deep_and_growing_files_are_refused_or_read() {
    let deep = |open: &str| open.repeat(200_000);
    for open in ["[", "{\"a\":", "{\"images\":[", "[{\"a\":[", "{\"images\":[{\"a\":"] {
        targets::coco(deep(open).as_bytes());
        targets::results(deep(open).as_bytes());
    }
    targets::voc(deep("<a>").as_bytes());
    for open in ["[", "{", "- ", "? "] {
        targets::yolo(deep(open).as_bytes());
        targets::yolo(format!("names: [a]\nx: {}", deep(open)).as_bytes());
    }
    let laughs: String = (1..40).map(|n| format!("k{n}: &a{n} [*a{0}, *a{0}]\n", n - 1)).collect();
    targets::yolo(format!("names: [a]\nk0: &a0 [a]\n{laughs}").as_bytes());
}
