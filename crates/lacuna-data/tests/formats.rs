//! The three formats: what is refused and how it is said, what survives, and that nothing panics.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use lacuna_data::convert::{ImageFiles, write_folder};
use lacuna_data::decode::OnBadImage;
use lacuna_data::layout::{Format, Layout, ReadOptions, Split};
use lacuna_data::output::IfExists;
use lacuna_data::problems::{Problem, problems};
use lacuna_data::{Dataset, RecoveredMark, Xywh, coco, label_studio, voc, yolo};
use proptest::prelude::*;
use tempfile::TempDir;

/// A small COCO file with everything odd that real ones have.
const SMALL: &str = r#"{
  "info": {"description": "small \"quoted\" {braces} [brackets]", "year": 2017, "x": [1, {"y": null}]},
  "licenses": [],
  "images": [
    {"id": 7, "file_name": "a.png", "width": 40, "height": 30, "flickr_url": "http://x/\"}{"},
    {"id": 3, "file_name": "b.png", "width": 20, "height": 50, "extra": {"nested": [1, 2, {"a": "}"}]}},
    {"id": 9, "file_name": "c.png", "width": 33, "height": 33}
  ],
  "custom": {"kept": true},
  "annotations": [
    {"id": 100, "image_id": 3, "category_id": 90, "bbox": [1, 2.5, 10, 20], "area": 200.0, "iscrowd": 0,
     "segmentation": [[1, 2, 3, 4, 5, 6]], "note": "}, {"},
    {"id": 5, "image_id": 7, "category_id": 1, "bbox": [0.1, 0.2, 0.30000000000000004, 5e0], "iscrowd": 0},
    {"id": 6, "image_id": 7, "category_id": 1, "bbox": [3, 3, 30, 20], "iscrowd": 1,
     "segmentation": {"counts": [3, 4], "size": [30, 40]}},
    {"id": 8, "image_id": 7, "category_id": 90, "bbox": [30, 20, 20, 20]},
    {"id": 12, "image_id": 7, "category_id": 90, "bbox": [5, 5, 0, 4], "recovered": true}
  ],
  "categories": [
    {"id": 1, "name": "person", "supercategory": "being"},
    {"id": 90, "name": "tooth brush"},
    {"id": 13, "name": "stop <sign> & \"co\""}
  ]
}"#;

fn parse(text: &str) -> lacuna_data::Result<Dataset> {
    coco::parse(text.as_bytes().to_vec(), Path::new("gt.json"))
}

fn written(dataset: &Dataset) -> String {
    let mut out = Vec::new();
    coco::write(dataset, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn everything_in_a_coco_file_survives_a_round_trip() {
    let dataset = parse(SMALL).unwrap();
    let text = written(&dataset);
    assert_eq!(json(&text), json(SMALL));
    // Numbers keep their spelling: records are copied, not formatted anew.
    assert!(text.contains("[0.1, 0.2, 0.30000000000000004, 5e0]"));
    assert_eq!(written(&parse(&text).unwrap()), text);
}

#[test]
fn ids_are_mapped_to_indices() {
    let dataset = parse(SMALL).unwrap();
    let of = |image| dataset.annotations_of(image).map(|a| (a.id, a.category)).collect::<Vec<_>>();
    assert_eq!(of(0), [(5, 0), (6, 0), (8, 1), (12, 1)]);
    assert_eq!(of(1), [(100, 1)]);
    assert_eq!(of(2), []);
    // Neither the crowd nor the empty box is trained on; the box over the border is clipped.
    let objects = dataset.objects_of(0);
    assert_eq!(objects.iter().map(|o| o.class).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((objects[1].bbox.x2, objects[1].bbox.y2), (40.0, 30.0));
    assert_eq!(dataset.crowds_of(0).len(), 1);
}

#[test]
fn a_byte_order_mark_and_whole_numbers_written_as_floats_are_fine() {
    let floats =
        SMALL.replace(r#""id": 7"#, r#""id": 7.0"#).replace(r#""image_id": 7"#, r#""image_id": 7.0"#);
    assert_eq!(parse(&format!("\u{feff}{floats}")).unwrap().images()[0].id, 7);
}

#[test]
fn what_real_data_sets_have_is_accepted_and_named() {
    let found = problems(&parse(SMALL).unwrap());
    assert!(found.contains(&Problem::ZeroSizeBox { annotation: 12, image: 7 }));
    assert!(found.contains(&Problem::BoxPartlyOutside { annotation: 8, image: 7 }));
    assert!(found.contains(&Problem::ImageWithoutBoxes { image: 9, file_name: "c.png".into() }));
    assert!(found.iter().any(|p| matches!(p, Problem::CategoryWithoutBoxes { category: 13, .. })));
    assert_eq!(found.len(), 4, "{found:?}");

    let outside = SMALL.replace("[30, 20, 20, 20]", "[50, 20, 20, 20]");
    assert!(problems(&parse(&outside).unwrap()).contains(&Problem::BoxOutside { annotation: 8, image: 7 }));
    let repeated = SMALL.replace("[30, 20, 20, 20]", "[5, 5, 0, 4]");
    let repeat = Problem::RepeatedBox { annotation: 12, image: 7, first: 8 };
    assert!(problems(&parse(&repeated).unwrap()).contains(&repeat));
}

#[test]
fn what_no_data_set_can_have_is_refused_with_the_place() {
    let change = |from: &str, to: &str| {
        assert!(SMALL.contains(from), "{from}");
        SMALL.replacen(from, to, 1)
    };
    let until = |text: &str| SMALL[..SMALL.find(text).unwrap()].to_owned();
    let cases = [
        (String::new(), "gt.json:1: the file ends where a JSON object should be"),
        ("not json".into(), "gt.json:1: not JSON: expected ident"),
        ("<xml/>".into(), "gt.json:1: not JSON: a JSON object should be here, not `<`"),
        ("[]".into(), "gt.json is not a COCO annotation file: it is a list, as a file of detections is"),
        ("{}".into(), "gt.json is not a COCO annotation file: it is an empty object"),
        ("3".into(), "gt.json is not a COCO annotation file: it is a single value"),
        (r#"{"images": []}"#.into(), "gt.json is not a COCO annotation file: it has no `annotations` list"),
        (r#"{"images": null}"#.into(), "gt.json is not a COCO annotation file: its `images` is null, not a list"),
        (r#"{"images": [3]}"#.into(), "gt.json:1: images[0] is not an object"),
        (change(r#""categories": ["#, r#""c": ["#), "gt.json is not a COCO annotation file: it has no `categories` list"),
        (change("\"licenses\": []", "\"images\": []"), "gt.json:4: `images` is there twice"),
        (until("person"), "gt.json:20: the file ends in the middle of categories[0]"),
        (until("segmentation"), "gt.json:12: the file ends in the middle of annotations[0]"),
        (until("quoted"), "gt.json:2: the file ends too early"),
        (format!("{SMALL} x"), "gt.json:24: not JSON: the end of the file should be here, not `x`"),
        (change(r#""id": 3,"#, r#""id": 7,"#), "gt.json:6: image id 7 is there twice (first in line 5)"),
        (change(r#""id": 8,"#, r#""id": 5,"#), "gt.json:16: annotation id 5 is there twice (first in line 13)"),
        (change(r#""id": 13,"#, r#""id": 1,"#), "gt.json:22: category id 1 is there twice (first in line 20)"),
        (
            change(r#""id": 8, "image_id": 7, "category_id": 90"#, r#""id": 8, "image_id": 7, "category_id": 91"#),
            "gt.json:16: annotation 8 of image 7 names category 91, absent from `categories`",
        ),
        (
            change(r#""id": 8, "image_id": 7"#, r#""id": 8, "image_id": 77"#),
            "gt.json:16: annotation 8 names image 77, absent from `images`",
        ),
        (
            change("[30, 20, 20, 20]", "[30, 20, -20, 20]"),
            "gt.json:16: annotation 8 of image 7 has a `bbox` of negative size: [30.0, 20.0, -20.0, 20.0]",
        ),
        (
            change("[30, 20, 20, 20]", "[30, 20, 20]"),
            "gt.json:16: annotation 8 of image 7 has `bbox` [30,20,20]; it must be four numbers: x, y, width, height",
        ),
        (
            change("[30, 20, 20, 20]", "[30, 20, null, 20]"),
            "gt.json:16: annotation 8 of image 7 has `bbox` [30,20,null,20]; it must be four numbers: x, y, width, height",
        ),
        (
            change("[30, 20, 20, 20]", "[30, NaN, 20, 20]"),
            "gt.json:16: annotations[3] is not JSON: `NaN` is not a number of JSON",
        ),
        (
            change("[30, 20, 20, 20]", "[30, 20, Infinity, 20]"),
            "gt.json:16: annotations[3] is not JSON: `Infinity` is not a number of JSON",
        ),
        (
            change("[30, 20, 20, 20]", "[30, 20, 1e999, 20]"),
            "gt.json:16: annotations[3] is not JSON: number out of range",
        ),
        (
            change(r#""bbox": [30, 20, 20, 20]"#, r#""box": 1"#),
            "gt.json:16: annotation 8 of image 7 has no `bbox`",
        ),
        (
            change(r#""id": 8,"#, r#""id": "8","#),
            "gt.json:16: annotation \"8\" of image 7 has `id` \"8\"; it must be a whole number, neither negative nor above 2^53",
        ),
        (
            change(r#""id": 8,"#, r#""id": -8,"#),
            "gt.json:16: annotation -8 of image 7 has `id` -8; it must be a whole number, neither negative nor above 2^53",
        ),
        (change(r#""iscrowd": 1"#, r#""iscrowd": 2"#), "gt.json:14: annotation 6 of image 7 has `iscrowd` 2; it is 0 or 1"),
        (change(r#""width": 33"#, r#""width": 0"#), "gt.json:7: image 9 has an impossible `width`"),
        (change(r#""width": 33, "#, ""), "gt.json:7: image 9 has no `width`"),
        (
            change(r#""width": 33"#, r#""width": -33"#),
            "gt.json:7: image 9 has `width` -33; it must be a whole number, neither negative nor above 2^53",
        ),
        (change(r#""file_name": "c.png""#, r#""file_name": """#), "gt.json:7: image 9 has an empty `file_name`"),
        (
            r#"{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}]}"#.into(),
            "gt.json: the data set is empty: it has no images",
        ),
        (
            r#"{"images": [{"id": 1, "file_name": "a", "width": 1, "height": 1}], "annotations": [], "categories": []}"#
                .into(),
            "gt.json: the data set is empty: it has no categories",
        ),
    ];
    let found = cases.map(|(text, wanted)| (parse(&text).unwrap_err().to_string(), wanted));
    let wrong: Vec<_> = found.iter().filter(|(found, wanted)| found != wanted).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let broken = coco::parse(b"{\"a\": \"\xff\"}".to_vec(), Path::new("gt.json"));
    assert_eq!(broken.unwrap_err().to_string(), "gt.json:1: not JSON: the text is not UTF-8");
}

#[test]
fn classes_can_be_chosen_by_name() {
    let dataset = parse(SMALL).unwrap();
    let one = dataset.restrict_to(&["tooth brush".into()]).unwrap();
    assert_eq!(one.categories().len(), 1);
    assert!(one.annotations().iter().all(|a| a.category == 0));
    assert_eq!(one.annotations().iter().map(|a| a.id).collect::<Vec<_>>(), [100, 8, 12]);
    assert_eq!(one.images().len(), 3);
    let error = dataset.restrict_to(&["persn".into()]).unwrap_err();
    assert_eq!(error.hint().unwrap(), "did you mean `person`?");
}

/// The small data set in COCO's layout, with images.
fn coco_folder() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("annotations")).unwrap();
    fs::create_dir_all(root.path().join("train")).unwrap();
    fs::write(root.path().join("annotations/instances_train.json"), SMALL).unwrap();
    for (name, width, height) in [("a.png", 40, 30), ("b.png", 20, 50), ("c.png", 33, 33)] {
        let pixels = vec![9; (width * height * 3) as usize];
        image::save_buffer(
            root.path().join("train").join(name),
            &pixels,
            width,
            height,
            image::ColorType::Rgb8,
        )
        .unwrap();
    }
    root
}

fn read_only_split(path: &Path) -> Split {
    Layout::detect(path).unwrap().read(None, ReadOptions::default()).unwrap()
}

/// What a format can express: by image name, (class name, box, crowd).
fn content(dataset: &Dataset) -> BTreeMap<String, Vec<(String, [f64; 4], bool)>> {
    let of_image = |index: usize| {
        let of = dataset.annotations_of(index).map(|a| {
            let Xywh { x, y, width, height } = a.bbox;
            (dataset.categories()[a.category].name.clone(), [x, y, width, height], a.crowd)
        });
        (dataset.images()[index].file_name.clone(), of.collect())
    };
    (0..dataset.images().len()).map(of_image).collect()
}

fn assert_alike(a: &Dataset, b: &Dataset, crowds: bool) {
    let names = |d: &Dataset| d.categories().iter().map(|c| c.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(a), names(b));
    let (mut a, b) = (content(a), content(b));
    if !crowds {
        // YOLO has no crowds, and its boxes lie in the image.
        a.values_mut().for_each(|boxes| boxes.retain(|b| !b.2));
        let over_the_border = a.values_mut().flatten().filter(|b| b.1 == [30.0, 20.0, 20.0, 20.0]);
        over_the_border.for_each(|b| b.1 = [30.0, 20.0, 10.0, 10.0]);
    }
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (a, b) in a.values().flatten().zip(b.values().flatten()) {
        assert_eq!((&a.0, a.2), (&b.0, b.2));
        assert!(a.1.iter().zip(&b.1).all(|(x, y)| (x - y).abs() < 1e-9), "{a:?} {b:?}");
    }
    assert_eq!(a.values().map(Vec::len).sum::<usize>(), b.values().map(Vec::len).sum::<usize>());
}

#[test]
fn a_data_set_survives_the_way_through_every_format() {
    let root = coco_folder();
    let original = read_only_split(root.path());
    let out = tempfile::tempdir().unwrap();
    let convert = |split: Split, format, name: &str| {
        let path = out.path().join(name);
        write_folder(&[split], format, ImageFiles::Copy, &path, IfExists::Refuse, &|| true).unwrap();
        assert_eq!(Layout::detect(&path).unwrap().format, format);
        assert_eq!(Layout::detect(&path).unwrap().split_names(), ["train"]);
        read_only_split(&path)
    };
    let voc = convert(read_only_split(root.path()), Format::Voc, "voc");
    assert_alike(&original.dataset, &voc.dataset, true);
    let again = convert(voc, Format::Coco, "coco");
    assert_alike(&original.dataset, &again.dataset, true);
    let yolo = convert(again, Format::Yolo, "yolo");
    assert_alike(&original.dataset, &yolo.dataset, false);
    let again = convert(yolo, Format::Coco, "coco2");
    assert_alike(&original.dataset, &again.dataset, false);
    assert!(again.images().unwrap().join("b.png").is_file());
    let linked = out.path().join("linked");
    write_folder(&[original], Format::Coco, ImageFiles::HardLink, &linked, IfExists::Refuse, &|| true)
        .unwrap();
    assert_eq!(
        json(&fs::read_to_string(linked.join("annotations/instances_train.json")).unwrap()),
        json(SMALL)
    );
}

#[test]
fn a_missing_image_leaves_nothing_behind() {
    let root = coco_folder();
    fs::remove_file(root.path().join("train/c.png")).unwrap();
    let out = tempfile::tempdir().unwrap();
    let split = read_only_split(root.path());
    let path = out.path().join("voc");
    let error =
        write_folder(&[split], Format::Voc, ImageFiles::Copy, &path, IfExists::Refuse, &|| true).unwrap_err();
    assert!(error.to_string().contains("c.png"), "{error}");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
}

#[test]
fn names_that_clash_or_lead_out_are_refused() {
    let out = tempfile::tempdir().unwrap();
    let convert = |text: String, format| {
        let root = coco_folder();
        fs::write(root.path().join("annotations/instances_train.json"), text).unwrap();
        let split = read_only_split(root.path());
        let path = out.path().join("x");
        write_folder(&[split], format, ImageFiles::Leave, &path, IfExists::Refuse, &|| true)
            .unwrap_err()
            .to_string()
    };
    let clash = convert(SMALL.replace("b.png", "sub/a.jpg"), Format::Yolo);
    assert_eq!(clash, "images a.png (train) and sub/a.jpg (train) would both be written as `a`");
    let outside = convert(SMALL.replace("b.png", "../b.png"), Format::Coco);
    assert_eq!(outside, "`../b.png` cannot be the name of a file in the new folder: it leads elsewhere");
}

/// Files by path, made below a temporary folder.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if path.extension().is_some_and(|e| e == "png") {
            image::save_buffer(&path, &[0; 60 * 40 * 3], 60, 40, image::ColorType::Rgb8).unwrap();
        } else {
            fs::write(path, text).unwrap();
        }
    }
    root
}

fn boxes(dataset: &Dataset) -> Vec<[f64; 4]> {
    dataset.annotations().iter().map(|a| [a.bbox.x, a.bbox.y, a.bbox.width, a.bbox.height]).collect()
}

#[test]
fn roboflows_layouts_are_known() {
    let coco = folder(&[
        ("train/_annotations.coco.json", SMALL),
        ("train/a.png", ""),
        ("valid/_annotations.coco.json", SMALL),
        ("README.roboflow.txt", "exported"),
    ]);
    let layout = Layout::detect(coco.path()).unwrap();
    assert_eq!((layout.format, layout.split_names()), (Format::Coco, vec!["train".into(), "valid".into()]));
    assert_eq!(
        layout.read(Some("train"), ReadOptions::default()).unwrap().images().unwrap(),
        coco.path().join("train")
    );
    assert!(layout.read(Some("valid"), ReadOptions::default()).unwrap().images().is_err());
    assert!(
        layout
            .read(None, ReadOptions::default())
            .unwrap_err()
            .hint()
            .unwrap()
            .contains("`train` and `valid`")
    );

    let yolo = folder(&[
        (
            "data.yaml",
            "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n\nnc: 2\nnames: ['a', 'b c']\n",
        ),
        ("train/images/x.png", ""),
        ("train/labels/x.txt", "1 0.5 0.5 0.5 0.25\n0 0.25 0.5 0.5 0.5 0.5 0.75\n"),
        ("valid/images/y.png", ""),
    ]);
    let layout = Layout::detect(yolo.path()).unwrap();
    assert_eq!((layout.format, layout.split_names()), (Format::Yolo, vec!["train".into(), "val".into()]));
    let train = layout.read(Some("train"), ReadOptions::default()).unwrap().dataset;
    assert_eq!(train.categories()[1].name, "b c");
    assert_eq!(boxes(&train), [[15.0, 15.0, 30.0, 10.0], [15.0, 20.0, 15.0, 10.0]]);
    assert!(written(&train).contains(r#""segmentation":[[15.0,20.0,30.0,20.0,30.0,30.0]]"#));
    // An image without a label file is one without objects.
    assert_eq!(layout.read(Some("val"), ReadOptions::default()).unwrap().dataset.annotations().len(), 0);

    let xml = "<annotation><filename>x.png</filename><object><name>a</name><bndbox><xmin>1</xmin><ymin>2</ymin>\
               <xmax>11</xmax><ymax>12</ymax></bndbox></object></annotation>";
    let voc = folder(&[("train/x.png", ""), ("train/x.xml", xml)]);
    let layout = Layout::detect(voc.path()).unwrap();
    assert_eq!((layout.format, layout.split_names()), (Format::Voc, vec!["train".into()]));
    let train = layout.read(None, ReadOptions::default()).unwrap().dataset;
    // The size is not in the XML; it is read from the image.
    assert_eq!((train.images()[0].width, train.images()[0].height), (60, 40));
    assert_eq!(boxes(&train), [[0.0, 1.0, 11.0, 11.0]]);
}

#[test]
fn vocs_own_layout_is_known() {
    let xml = |name: &str, class: &str| {
        format!(
            "<annotation><filename>{name}.png</filename><size><width>60</width><height>40</height></size>\
             <object><name>{class}</name><pose>Left</pose><truncated>1</truncated><difficult>1</difficult>\
             <part><name>head</name><bndbox><xmin>5</xmin><ymin>5</ymin><xmax>6</xmax><ymax>6</ymax></bndbox></part>\
             <bndbox><xmin>1</xmin><ymin>1</ymin><xmax>60</xmax><ymax>40</ymax></bndbox></object></annotation>"
        )
    };
    let root = folder(&[
        ("Annotations/x.xml", &xml("x", "dog")),
        ("Annotations/y.xml", &xml("y", "cat")),
        ("JPEGImages/x.png", ""),
        ("JPEGImages/y.png", ""),
        ("ImageSets/Main/train.txt", "x\n"),
        ("ImageSets/Main/val.txt", "y\n"),
        ("ImageSets/Main/trainval.txt", "x\ny\n"),
        ("ImageSets/Main/dog_train.txt", "x  1\n"),
    ]);
    let layout = Layout::detect(root.path()).unwrap();
    assert_eq!(layout.split_names(), ["train", "val"]);
    let train = layout.read(Some("train"), ReadOptions::default()).unwrap().dataset;
    // Class numbers are those of the whole data set.
    assert_eq!(train.categories().iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["cat", "dog"]);
    assert_eq!(boxes(&train), [[0.0, 0.0, 60.0, 40.0]]);
    assert!(written(&train).contains(r#""pose":"Left","truncated":1,"difficult":1"#));
}

#[test]
fn bad_voc_and_yolo_files_are_refused_with_the_line() {
    let voc = |text: &str| voc::parse(text, Path::new("a.xml")).unwrap_err().to_string();
    let object =
        |inner: &str| format!("<annotation>\n<object>\n<name>cat</name>\n{inner}</object></annotation>");
    let bndbox = |xmax: &str| {
        object(&format!("<bndbox><xmin>3</xmin><ymin>2</ymin><xmax>{xmax}</xmax><ymax>9</ymax></bndbox>"))
    };
    assert_eq!(voc("<annotation>\n<object>"), "a.xml:1: not XML: the root node was opened but never closed");
    assert_eq!(voc("<html/>"), "a.xml:1: not a VOC annotation: the outermost element is `html`");
    assert_eq!(voc(&object("")), "a.xml:2: object `cat` has no `bndbox`");
    assert_eq!(voc(&bndbox("nan")), "a.xml:4: `xmax` is `nan`, not a number");
    assert_eq!(voc(&bndbox("inf")), "a.xml:4: `xmax` is `inf`, not a number");
    assert_eq!(voc(&bndbox("1")), "a.xml:4: object `cat` has a box of negative size");

    let yolo = |text: &str| yolo::parse(text, 2, false, Path::new("a.txt")).unwrap_err().to_string();
    assert_eq!(yolo("0 .5 .5 .1 .1\n2 .5 .5 .1 .1"), "a.txt:2: class 2 is not one of the 2 classes, 0 to 1");
    assert_eq!(
        yolo("0 .5 .5 .1"),
        "a.txt:1: 4 numbers; a box is `class cx cy width height`, a polygon has three points or more"
    );
    assert_eq!(yolo("0 .5 nan .1 .1"), "a.txt:1: `nan` is not a finite number");
    assert_eq!(yolo("0 .5 .5 -.1 .1"), "a.txt:1: a box of negative size: -0.1 by 0.1");
    assert_eq!(
        yolo("0 320 200 30 20"),
        "a.txt:1: 320 is not a share of the image's size; coordinates go from 0 to 1"
    );
    assert_eq!(yolo::parse("\u{feff}\n 1.0 .5 .5 .1 .1 \n\n", 2, false, Path::new("")).unwrap()[0].class, 1);

    let yaml = |text: &str| yolo::parse_description(text, Path::new("d.yaml")).unwrap_err().to_string();
    assert!(yaml("names: [a\ntrain: x").starts_with("d.yaml:"));
    assert_eq!(yaml("train: x"), "d.yaml:1: there is no `names`");
    assert_eq!(
        yaml("names: {0: a, 2: b}"),
        "d.yaml:1: `names` must number the classes from 0 without gaps; 1 is missing"
    );
    assert_eq!(yaml("nc: 3\nnames: [a]"), "d.yaml:1: `nc` is 3, but there are 1 `names`");
    assert_eq!(yolo::parse_description("names: [a, 1, no]", Path::new("")).unwrap().names, ["a", "1", "no"]);
}

#[test]
fn boxes_that_nobody_drew_are_known_as_such_in_voc_and_plain_in_yolo() {
    let text = SMALL
        .replace(
            r#""bbox": [30, 20, 20, 20]"#,
            r#""bbox": [30, 20, 10, 10], "recovered": true, "score": 0.1, "confidence": 0.7"#,
        )
        .replace(r#"5e0], "iscrowd": 0"#, r#"5e0], "recovered": false, "score": 0.5"#);
    let dataset = parse(&text).unwrap();
    let mut xml = Vec::new();
    voc::write(&dataset, 0, "a.png", &mut xml).unwrap();
    let xml = String::from_utf8(xml).unwrap();
    let document = roxmltree::Document::parse(&xml).unwrap();
    let elements = |node: roxmltree::Node| -> Vec<String> {
        node.children().filter(roxmltree::Node::is_element).map(|n| n.tag_name().name().to_owned()).collect()
    };
    let objects: Vec<_> = document.descendants().filter(|n| n.has_tag_name("object")).map(elements).collect();
    // VOC's own elements come first, in VOC's order.
    let own = ["name", "pose", "truncated", "difficult", "bndbox"];
    assert_eq!(objects[0], own);
    assert_eq!(objects[2], [&own[..], &["recovered", "score", "confidence"]].concat());
    assert_eq!(objects[3], [&own[..], &["recovered"]].concat());
    assert!(
        xml.contains("    <recovered>1</recovered><score>0.1</score><confidence>0.7</confidence>\n"),
        "{xml}"
    );

    let root = folder(&[("Annotations/a.xml", &xml), ("JPEGImages/a.png", "")]);
    let back = read_only_split(root.path()).dataset;
    let recovered = |d: &Dataset| d.annotations_of(0).map(|a| d.recovered_mark(a)).collect::<Vec<_>>();
    let none = Some(RecoveredMark::new(None, None));
    assert_eq!(recovered(&back), [None, None, Some(RecoveredMark::new(Some(0.1), Some(0.7))), none]);
    assert_eq!(recovered(&back), recovered(&dataset));
    assert!(written(&back).contains(r#""difficult":0,"recovered":true,"score":0.1,"confidence":0.7}"#));

    let mut labels = Vec::new();
    yolo::write(&dataset, 0, None, &mut labels).unwrap();
    let labels = String::from_utf8(labels).unwrap();
    assert_eq!(labels.lines().map(|line| line.split(' ').count()).collect::<Vec<_>>(), [5, 5, 5]);
}

#[test]
fn a_pseudo_box_is_one_whatever_its_numbers_are() {
    let recovered = |more: &str| {
        let dataset = parse(&SMALL.replace(r#""recovered": true"#, more)).unwrap();
        let last = dataset.annotations().last().unwrap();
        dataset.recovered_mark(last)
    };
    assert_eq!(
        recovered(r#""recovered": true, "score": "high", "confidence": 1.5"#),
        Some(RecoveredMark::new(None, None))
    );
    assert_eq!(recovered(r#""recovered": true, "score": 1"#).unwrap().score(), Some(1.0));
    assert_eq!((recovered(r#""score": 0.5"#), recovered(r#""recovered": "yes""#)), (None, None));
}

#[test]
fn what_is_no_data_set_is_said_to_be_none() {
    let empty = folder(&[("readme.md", "hello")]);
    assert!(Layout::detect(empty.path()).unwrap_err().hint().unwrap().contains("known layouts"));
    let missing = PathBuf::from("does/not/exist.json");
    assert!(Layout::detect(&missing).unwrap_err().to_string().contains("does/not/exist.json"));
    let without_names = folder(&[("labels/a.txt", ""), ("images/a.png", "")]);
    assert!(Layout::detect(without_names.path()).unwrap_err().hint().unwrap().contains("classes.txt"));
    let nowhere = folder(&[("data.yaml", "train: nowhere\nnames: [a]")]);
    let error = Layout::detect(nowhere.path()).unwrap_err().to_string();
    assert!(error.ends_with("data.yaml:1: `train: nowhere` names no folder of images"), "{error}");
}

fn layout_of(files: &[(&str, &str)]) -> (TempDir, Layout) {
    let root = folder(files);
    let layout = Layout::detect(root.path()).unwrap();
    (root, layout)
}

#[test]
fn layouts_with_something_odd_in_them_are_read_all_the_same() {
    let xml = |class: &str| {
        format!(
            "<!DOCTYPE annotation><annotation><filename>gone.jpg</filename><object><name>{class}</name><bndbox>\
             <xmin>1</xmin><ymin>1</ymin><xmax>6</xmax><ymax>4</ymax></bndbox></object></annotation>"
        )
    };
    // Names with spaces, a doubled line, a stray file, folders below `Annotations` as CVAT has them.
    let (_root, layout) = layout_of(&[
        ("Annotations/x/my image 1.xml", &xml("dog")),
        ("Annotations/y/my image 1.xml", &xml("cat")),
        ("JPEGImages/x/my image 1.png", ""),
        ("JPEGImages/y/my image 1.png", ""),
        ("ImageSets/Main/train.txt", "x/my image 1\nx/my image 1\n"),
        ("ImageSets/Main/val.txt", "y/my image 1\n"),
        ("ImageSets/Main/dog_train.txt", "x/my image 1 1\ny/my image 1 -1\n"),
        ("ImageSets/Main/.DS_Store", "x y z"),
    ]);
    assert_eq!(layout.split_names(), ["train", "val"]);
    let train = layout.read(Some("train"), ReadOptions::default()).unwrap().dataset;
    assert_eq!(train.images()[0].file_name, "x/my image 1.png");
    assert_eq!(train.categories().len(), 2);

    // Roboflow's splits share the class numbers, though not every class is in every split.
    let (_root, layout) = layout_of(&[
        ("train/a.xml", &xml("cat")),
        ("train/a.png", ""),
        ("test/b.xml", &xml("dog")),
        ("test/b.png", ""),
    ]);
    let test = layout.read(Some("test"), ReadOptions::default()).unwrap().dataset;
    assert_eq!(test.categories()[test.annotations()[0].category].name, "dog");
    assert_eq!(test.categories().len(), 2);

    // COCO's folder with some tool's YAML and YOLO's labels beside the annotations.
    let (root, layout) = layout_of(&[
        ("annotations/instances_train.json", SMALL),
        ("annotations/old/instances_train.json", SMALL),
        ("config.yaml", "lr: 0.1"),
        ("labels/train/a.txt", ""),
        ("images/train/b.png", ""),
    ]);
    assert_eq!((layout.format, layout.split_names()), (Format::Coco, vec!["train".into()]));
    // One image of three is enough to find the folder.
    let found = layout.read(None, ReadOptions::default()).unwrap();
    assert_eq!(found.images().unwrap(), root.path().join("images/train"));

    // A split that names no folder does not keep the others from being read.
    let (_root, layout) =
        layout_of(&[("data.yaml", "train: nowhere\nval: images/val\nnames: [a]"), ("images/val/x.png", "")]);
    assert_eq!(layout.split_names(), ["val"]);
}

#[test]
fn annotations_of_a_part_find_the_images_of_the_whole() {
    let (root, layout) =
        layout_of(&[("annotations/instances_train_sparse.json", SMALL), ("train/a.png", "")]);
    let split = layout.read(None, ReadOptions::default()).unwrap();
    assert_eq!(split.images().unwrap(), root.path().join("train"));
}

#[test]
fn two_splits_of_one_name_are_refused() {
    let root =
        folder(&[("annotations/instances_train.json", SMALL), ("train/_annotations.coco.json", SMALL)]);
    assert!(Layout::detect(root.path()).unwrap_err().to_string().ends_with("has two splits named `train`"));
}

#[cfg(unix)]
#[test]
fn links_in_a_circle_are_followed_once() {
    let (root, layout) = layout_of(&[("data.yaml", "train: images\nnames: [a]"), ("images/x.png", "")]);
    std::os::unix::fs::symlink(".", root.path().join("images/loop")).unwrap();
    assert_eq!(layout.read(None, ReadOptions::default()).unwrap().dataset.images().len(), 1);
}

#[test]
fn key_points_are_not_polygons() {
    let (_root, layout) = layout_of(&[
        ("data.yaml", "train: images\nnames: [a]\nkpt_shape: [2, 2]"),
        ("images/x.png", ""),
        ("labels/x.txt", "0 0.5 0.5 0.2 0.2 0.1 0.1 0.9 0.9\n"),
    ]);
    let dataset = layout.read(None, ReadOptions::default()).unwrap().dataset;
    let found = boxes(&dataset)[0];
    assert!(found.iter().zip([24.0, 16.0, 12.0, 8.0]).all(|(f, w)| (f - w).abs() < 1e-9), "{found:?}");
}

#[test]
fn an_image_that_yolo_needs_and_cannot_read_is_handled_as_asked() {
    let (root, layout) = layout_of(&[("data.yaml", "train: images\nnames: [a]"), ("images/x.png", "")]);
    fs::write(root.path().join("images/broken.jpg"), "no image").unwrap();
    let error = layout.read(None, ReadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("broken.jpg"), "{error}");
    let skip = ReadOptions { on_bad_image: OnBadImage::Skip, ..ReadOptions::default() };
    let split = layout.read(None, skip).unwrap();
    assert_eq!((split.dataset.images().len(), split.skipped.len()), (1, 1));
}

#[test]
fn yolos_keys_are_those_that_its_tools_look_for() {
    let dataset = parse(SMALL).unwrap();
    let keys = |splits: &[&str]| {
        let mut out = Vec::new();
        yolo::write_description(dataset.categories(), splits, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let read = yolo::parse_description(&text, Path::new("data.yaml")).unwrap();
        assert_eq!(read.names, ["person", "tooth brush", "stop <sign> & \"co\""]);
        read.splits.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    assert_eq!(keys(&["train2017", "val2017"]), ["train", "val"]);
    assert_eq!(keys(&["val", "valid", "names", "a: b"]), ["val", "split_valid", "split_names", "a: b"]);
}

/// A synthetic image whose EXIF orientation says to turn it, from the fixture of the decoder.
#[test]
fn boxes_turn_with_the_images_that_yolos_readers_turn() {
    let turned = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/decode/exif_6.jpg");
    let size = lacuna_data::decode::read_size(&turned).unwrap();
    let ((width, height), root) = (size.stored, tempfile::tempdir().unwrap());
    fs::copy(&turned, root.path().join("x.jpg")).unwrap();
    let json = format!(
        r#"{{"images": [{{"id": 1, "file_name": "x.jpg", "width": {width}, "height": {height}}}],
        "annotations": [{{"id": 1, "image_id": 1, "category_id": 1, "bbox": [2, 1, 4, 3]}}],
        "categories": [{{"id": 1, "name": "a"}}]}}"#
    );
    fs::write(root.path().join("train.json"), json).unwrap();
    let split = read_only_split(&root.path().join("train.json"));
    let out = root.path().join("yolo");
    write_folder(&[split], Format::Yolo, ImageFiles::Copy, &out, IfExists::Refuse, &|| true).unwrap();
    let dataset = read_only_split(&out).dataset;
    assert_eq!((dataset.images()[0].width, dataset.images()[0].height), (height, width));
    // Turned by a quarter to the right: what was below is on the left.
    let found = boxes(&dataset)[0];
    let wanted = [f64::from(height) - 4.0, 2.0, 3.0, 4.0];
    assert!(found.iter().zip(wanted).all(|(f, w)| (f - w).abs() < 1e-9), "{found:?} {wanted:?}");
}

#[test]
fn an_output_never_replaces_what_it_is_made_from_nor_what_lacuna_did_not_make() {
    let root = coco_folder();
    let convert = |out: &Path| {
        let split = read_only_split(root.path());
        write_folder(&[split], Format::Voc, ImageFiles::Leave, out, IfExists::Replace, &|| true)
    };
    for holding_input in
        [root.path().to_path_buf(), root.path().join("train"), root.path().join("annotations")]
    {
        let error = convert(&holding_input).unwrap_err().to_string();
        assert!(error.contains("which it is made from"), "{error}");
    }
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("thesis.txt"), "years of work").unwrap();
    let error = convert(other.path()).unwrap_err().to_string();
    assert!(error.ends_with("was not written by lacuna and is not replaced"), "{error}");
    assert!(other.path().join("thesis.txt").exists());
    convert(&other.path().join("voc")).unwrap();
    convert(&other.path().join("voc")).unwrap();
}

#[test]
fn a_splits_name_cannot_lead_out_of_the_output() {
    let root = folder(&[("data.yaml", "\"../../out\": images\nnames: [a]"), ("images/x.png", "")]);
    let split = read_only_split(root.path());
    let out = root.path().join("deep");
    let error = write_folder(&[split], Format::Coco, ImageFiles::Leave, &out, IfExists::Refuse, &|| true)
        .unwrap_err();
    assert!(error.to_string().starts_with("`../../out` cannot be the name"), "{error}");
}

/// A text in which something was cut out, replaced or doubled: most of it still parses.
fn mutated(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let bytes = text.as_bytes();
    let n = bytes.len();
    let patch = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..6),
        prop::sample::select(vec![
            "{", "}", "[", "]", "\"", "\\", ",", "NaN", "1e999", "-1", "null", "<", "&x;", "é", "- ", ": "
        ])
        .prop_map(|s| s.as_bytes().to_vec()),
    ];
    prop::collection::vec((0..n, 0usize..40, patch), 1..4).prop_map(move |edits| {
        let mut out = bytes.to_vec();
        for (at, len, patch) in edits {
            let start = at.min(out.len());
            let end = (start + len).min(out.len());
            out.splice(start..end, patch);
        }
        out
    })
}

const XML: &str = "<annotation><filename>x.png</filename><size><width>60</width><height>40</height></size>\
                   <object><name>cat</name><pose>Left</pose><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>6</xmax>\
                   <ymax>4</ymax></bndbox></object></annotation>";
const YAML: &str =
    "path: ../data # root\ntrain: images/train\nval: [a, b]\nnc: 2\nnames:\n  0: a\n  1: 'b: c'\n";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let path = Path::new("x");
        let text = String::from_utf8_lossy(&bytes);
        let _ = coco::parse(bytes.clone(), path);
        let _ = voc::parse(&text, path);
        let _ = yolo::parse(&text, 3, false, path);
        let _ = yolo::parse_description(&text, path);
    }

    #[test]
    fn no_damage_makes_a_reader_panic(json in mutated(SMALL), xml in mutated(XML), yaml in mutated(YAML),
                                      labels in mutated("0 0.5 0.5 0.25 0.25\n1 0.1 0.1 0.9 0.1 0.9 0.9\n")) {
        let path = Path::new("x");
        if let Ok(dataset) = coco::parse(json, path) {
            // Whatever was accepted can be looked at, written and read again.
            let _ = problems(&dataset);
            let mut out = Vec::new();
            coco::write(&dataset, &mut out).unwrap();
            prop_assert!(coco::parse(out, path).is_ok());
            label_studio::write(&dataset, "", "x", &mut Vec::new()).unwrap();
            for image in 0..dataset.images().len() {
                voc::write(&dataset, image, "x", &mut Vec::new()).unwrap();
                yolo::write(&dataset, image, None, &mut Vec::new()).unwrap();
            }
        }
        let _ = voc::parse(&String::from_utf8_lossy(&xml), path);
        let _ = yolo::parse_description(&String::from_utf8_lossy(&yaml), path);
        let _ = yolo::parse(&String::from_utf8_lossy(&labels), 3, true, path);
    }
}
