//! Targets for the readers of `lacuna-data`. A target panics when a property does not hold.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use lacuna_data::decode::{self, DecodeError, OnBadImage};
use lacuna_data::problems::problems;
use lacuna_data::results::{Results, Rewrite};
use lacuna_data::{Builder, Dataset, Error, RecoveredMark, Xywh, coco, label_studio, voc, yolo};
use tempfile::TempDir;

/// A COCO annotation file.
pub fn coco(bytes: &[u8]) {
    match coco::parse(bytes.to_vec(), Path::new("a.json")) {
        Ok(dataset) => check(&dataset),
        Err(error) => render(&error),
    }
}

/// A COCO results file on a fixed data set: images 1 and 2, categories 1 and 2.
pub fn results(bytes: &[u8]) {
    let mut builder = Builder::default();
    for name in ["a", "b"] {
        builder.category(name);
        builder.image(name, 40, 30);
    }
    let dataset = builder.finish();
    let parse = |bytes: &[u8]| Results::parse(bytes.to_vec(), Path::new("a.json"), &dataset);
    let results = match parse(bytes) {
        Ok(results) => results,
        Err(error) => return render(&error),
    };
    let detections = results.detections();
    assert_eq!(detections.iter().map(Vec::len).sum::<usize>(), results.entries().len());
    assert!(results.duplicates().iter().all(|(first, second)| first < second));

    let rewrites = [
        Rewrite::default(),
        Rewrite { score: Some(0.1), confidence: None },
        Rewrite { score: Some(0.1), confidence: Some(0.7) },
    ];
    for rewrite in rewrites {
        let mut out = Vec::new();
        results.write(&mut out, |_| rewrite).expect("memory takes it");
        let again = parse(&out).expect("what was written can be read");
        let expected = results.entries().iter().map(|&entry| lacuna_data::results::Entry {
            score: rewrite.score.unwrap_or(entry.score),
            confidence: rewrite.confidence.or(entry.confidence),
            ..entry
        });
        assert!(expected.eq(again.entries().iter().copied()));
    }
}

/// The XML file of a VOC image.
pub fn voc(bytes: &[u8]) {
    let folder = TempDir::new().expect("a temporary folder");
    let annotations = folder.path().join("Annotations");
    fs::create_dir(&annotations).expect("a folder");
    fs::write(annotations.join("a.xml"), bytes).expect("a file");
    let folders =
        voc::Folders { annotations, images: folder.path().into(), siblings: Vec::new(), labels: None };
    match voc::read(&folders, None, OnBadImage::Skip) {
        Ok((dataset, _)) => check(&dataset),
        Err(error) => render(&error),
    }
}

/// A `data.yaml`, a zero byte, and a label file.
pub fn yolo(bytes: &[u8]) {
    let (yaml, labels) = split_at_zero(bytes);
    let described = yolo::parse_description(&String::from_utf8_lossy(yaml), Path::new("data.yaml"));
    let (names, key_points) = match described {
        Ok(description) => {
            assert!(!description.names.is_empty());
            (description.names, description.key_points)
        }
        Err(error) => {
            render(&error);
            (vec!["a".to_owned(), "b".to_owned()], false)
        }
    };

    let folder = TempDir::new().expect("a temporary folder");
    let images = folder.path().join("images");
    fs::create_dir(&images).expect("a folder");
    fs::create_dir(folder.path().join("labels")).expect("a folder");
    fs::write(images.join("a.bmp"), BMP).expect("a file");
    fs::write(folder.path().join("labels/a.txt"), labels).expect("a file");
    let places = yolo::Places { root: images.clone(), images: vec![images] };
    match yolo::read(&names, key_points, &places, OnBadImage::Error) {
        Ok((dataset, _)) => check(&dataset),
        Err(error) => render(&error),
    }
}

/// The address of the images, a file name and class names, with zero bytes between them, to a Label
/// Studio project and its tasks.
pub fn label_studio(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut texts = text.split('\0');
    let (prefix, file_name) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
    let mut builder = Builder::default();
    let image = builder.image(file_name, 40, 30);
    for name in texts.chain(["last"]) {
        let class = builder.category(name);
        let side = class as f64;
        let bbox = Xywh { x: side, y: -side, width: 1.5 * side, height: 10.0 };
        let confidence = (side / 10.0).min(1.0);
        builder.annotation(image, class, bbox, false, ());
        builder.annotation(image, class, bbox, false, RecoveredMark::new(None, Some(confidence)));
    }
    let dataset = builder.finish();
    check_label_studio(&dataset, prefix);
}

/// An image file.
pub fn image(bytes: &[u8]) {
    // Large ones would only be slow.
    const PIXELS_MAX: u64 = 1 << 20;
    // No image has this size: the answer is what the header says.
    let stored = match decode::decode(bytes, Some((u32::MAX, u32::MAX))) {
        Ok(_) => unreachable!("no image is so large"),
        Err(DecodeError::SizeMismatch { found, .. }) => found,
        Err(error) => return drop(error.to_string()),
    };
    if u64::from(stored.0) * u64::from(stored.1) > PIXELS_MAX {
        return;
    }
    match decode::decode(bytes, None) {
        Ok(image) => assert_eq!(image.size(), stored),
        Err(error) => return drop(error.to_string()),
    }
    let turned = (stored.1, stored.0);
    match decode::decode(bytes, Some(turned)) {
        Ok(image) => assert_eq!(image.size(), turned),
        Err(error) => drop(error.to_string()),
    }
}

/// What holds for every data set that was read.
fn check(dataset: &Dataset) {
    problems(dataset).iter().for_each(|problem| drop(problem.to_string()));
    for (index, image) in dataset.images().iter().enumerate() {
        let (width, height) = (image.width as f32, image.height as f32);
        for object in dataset.objects_of(index).into_iter().chain(dataset.crowds_of(index)) {
            let bbox = object.bbox;
            assert!(0.0 <= bbox.x1 && bbox.x1 < bbox.x2 && bbox.x2 <= width, "{bbox:?}");
            assert!(0.0 <= bbox.y1 && bbox.y1 < bbox.y2 && bbox.y2 <= height, "{bbox:?}");
        }
    }

    let mut out = Vec::new();
    coco::write(dataset, &mut out).expect("memory takes it");
    let again = coco::parse(out.clone(), Path::new("a.json")).expect("what was written can be read");
    assert_same(dataset, &again);
    let mut twice = Vec::new();
    coco::write(&again, &mut twice).expect("memory takes it");
    assert!(out == twice, "what was written is written again as it was");

    let mut builder = Builder::extending(dataset);
    builder.annotation(
        0,
        0,
        Xywh { x: 0.0, y: 0.0, width: 1.0, height: 1.0 },
        false,
        RecoveredMark::new(None, None),
    );
    let mut out = Vec::new();
    coco::write(&builder.finish(), &mut out).expect("memory takes it");
    coco::parse(out, Path::new("a.json")).expect("what was written can be read");

    check_voc(dataset);
    check_yolo(dataset);
    check_label_studio(dataset, "");
}

fn assert_same(a: &Dataset, b: &Dataset) {
    let image = |i: &lacuna_data::Image| (i.id, i.file_name.clone(), i.width, i.height);
    assert!(a.images().iter().map(image).eq(b.images().iter().map(image)));
    let category = |c: &lacuna_data::Category| (c.id, c.name.clone());
    assert!(a.categories().iter().map(category).eq(b.categories().iter().map(category)));
    let annotation = |a: &lacuna_data::Annotation| (a.id, a.image, a.category, a.bbox, a.area, a.crowd);
    assert!(a.annotations().iter().map(annotation).eq(b.annotations().iter().map(annotation)));
}

fn check_voc(dataset: &Dataset) {
    for (index, image) in dataset.images().iter().enumerate() {
        let mut out = Vec::new();
        voc::write(dataset, index, &image.file_name, &mut out).expect("memory takes it");
        let text = String::from_utf8(out).expect("UTF-8");
        roxmltree::Document::parse(&text).expect("it is XML");
        let classes = dataset.categories().iter().map(|category| &category.name);
        if !classes.chain([&image.file_name]).all(|name| voc::can_hold(name)) {
            continue;
        }
        let read = voc::parse(&text, Path::new("a.xml")).expect("what was written can be read");
        assert_eq!(read.file_name, image.file_name);
        assert_eq!(read.size, Some((image.width, image.height)));
        let given = dataset.annotations_of(index);
        assert_eq!(read.objects.len(), given.len());
        for (read, given) in read.objects.iter().zip(given) {
            assert_eq!(read.name, dataset.categories()[given.category].name);
            assert_eq!(read.crowd, given.crowd);
        }
    }
}

fn check_yolo(dataset: &Dataset) {
    let n_classes = dataset.categories().len();
    for index in 0..dataset.images().len() {
        let mut out = Vec::new();
        let left_out = yolo::write(dataset, index, None, &mut out).expect("memory takes it");
        let text = String::from_utf8(out).expect("UTF-8");
        let read =
            yolo::parse(&text, n_classes, false, Path::new("a.txt")).expect("what was written can be read");
        assert_eq!(read.len() + left_out.crowds + left_out.outside, dataset.annotations_of(index).len());
    }
    let mut out = Vec::new();
    yolo::write_description(dataset.categories(), &["train"], &mut out).expect("memory takes it");
    let text = String::from_utf8(out).expect("UTF-8");
    let read = yolo::parse_description(&text, Path::new("data.yaml")).expect("what was written can be read");
    assert!(read.names.iter().eq(dataset.categories().iter().map(|category| &category.name)));
}

fn check_label_studio(dataset: &Dataset, prefix: &str) {
    let mut out = Vec::new();
    label_studio::write(dataset, prefix, "a", &mut out).expect("memory takes it");
    let tasks: serde_json::Value = serde_json::from_slice(&out).expect("tasks are JSON");
    let tasks = tasks.as_array().expect("tasks are a list");
    assert_eq!(tasks.len(), dataset.images().len());

    let config = label_studio::labeling_config(dataset.categories());
    let config = roxmltree::Document::parse(&config).expect("the configuration is XML");
    let labels: Vec<&str> = config.descendants().filter_map(|node| node.attribute("value")).skip(1).collect();
    let known: HashSet<&str> = labels.iter().copied().collect();
    assert_eq!(labels.len(), known.len(), "a label is there once");

    for (task, image) in tasks.iter().zip(dataset.images()) {
        let address = task["data"]["image"].as_str().expect("an address");
        let name = address.strip_prefix(prefix).expect("the prefix comes first");
        let is_key = ["s3://", "gs://", "azure-blob://"].iter().any(|storage| prefix.starts_with(storage));
        let name = if is_key { name.as_bytes().to_vec() } else { percent_decoded(name) };
        assert_eq!(name, image.file_name.as_bytes());
        let regions = ["annotations", "predictions"].iter().flat_map(|kind| {
            let lists = task[kind].as_array().expect("a list");
            lists.iter().flat_map(|list| list["result"].as_array().expect("a list of regions"))
        });
        for region in regions {
            let value = &region["value"];
            assert!(known.contains(value["rectanglelabels"][0].as_str().expect("a label")));
            for (low, size) in [("x", "width"), ("y", "height")] {
                let [low, size] = [low, size].map(|side| value[side].as_f64().expect("a number"));
                assert!(low >= 0.0 && size >= 0.0 && low + size <= 100.0 + 1e-9, "{low} and {size}");
            }
        }
    }
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        let mut digit = || char::from(bytes.next().expect("two digits")).to_digit(16).expect("a digit") as u8;
        decoded.push(if byte == b'%' { 16 * digit() + digit() } else { byte });
    }
    decoded
}

fn render(error: &Error) {
    let _ = (error.to_string(), format!("{error:?}"), error.hint());
}

/// What is before the first zero byte, and what is behind it.
fn split_at_zero(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|&byte| byte == 0) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[]),
    }
}

/// An image of 2×1 white pixels.
const BMP: &[u8] =
    b"BM\x3e\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x02\0\0\0\x01\0\0\0\x01\0\x18\0\0\0\0\0\x08\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\0\0";
