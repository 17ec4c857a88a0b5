//! Label Studio: a data set as a JSON file of tasks, an image each, that a project with
//! [`labeling_config`] imports unchanged.
//!
//! Given boxes are the task's annotation. Boxes that nobody drew are its prediction, for review: each
//! region's `score` is its confidence, and the prediction's is their mean, which Label Studio orders
//! tasks by. Coordinates are in per cent of the image's size and within it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;

use crate::dataset::{Annotation, Category, Dataset, Image};
use crate::xml;
use crate::yolo::LeftOut;

/// What the configuration calls the image, and the control whose labels its regions have.
const IMAGE: &str = "image";
const LABEL: &str = "label";

#[derive(Serialize)]
struct Task<'a> {
    data: Data,
    annotations: Vec<Drawn<'a>>,
    predictions: Vec<Prediction<'a>>,
}

#[derive(Serialize)]
struct Data {
    image: String,
}

#[derive(Serialize)]
struct Drawn<'a> {
    result: Vec<Region<'a>>,
}

#[derive(Serialize)]
struct Prediction<'a> {
    model_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    result: Vec<Region<'a>>,
}

#[derive(Serialize)]
struct Region<'a> {
    id: String,
    from_name: &'static str,
    to_name: &'static str,
    r#type: &'static str,
    original_width: u32,
    original_height: u32,
    image_rotation: u8,
    value: Rectangle<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
}

#[derive(Serialize)]
struct Rectangle<'a> {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    rotation: u8,
    rectanglelabels: [Cow<'a, str>; 1],
}

/// Write the tasks of a data set, one a line, and say what was left out: Label Studio has no crowd
/// regions, and its boxes lie in the image, to which they are clipped.
///
/// `image_prefix` is what comes before an image's file name in the address that Label Studio finds it
/// at, with its last slash: `/data/local-files/?d=train/`, `https://example.com/images/`,
/// `s3://bucket/images/`. `model_version` names what the boxes that nobody drew are from.
pub fn write(
    dataset: &Dataset,
    image_prefix: &str,
    model_version: &str,
    out: &mut impl Write,
) -> io::Result<LeftOut> {
    let mut left_out = LeftOut::default();
    out.write_all(b"[")?;
    for (index, image) in dataset.images().iter().enumerate() {
        let (mut drawn, mut predicted) = (Vec::new(), Vec::new());
        for annotation in dataset.annotations_of(index) {
            if annotation.crowd {
                left_out.crowds += 1;
                continue;
            }
            let Some(region) = region(dataset, image, annotation) else {
                left_out.outside += 1;
                continue;
            };
            match dataset.recovered_mark(annotation) {
                None => drawn.push(region),
                Some(recovered) => predicted.push(Region { score: recovered.confidence(), ..region }),
            }
        }
        let task = Task {
            data: Data { image: address(image_prefix, &image.file_name) },
            annotations: unless_empty(drawn).map(|result| Drawn { result }).into_iter().collect(),
            predictions: unless_empty(predicted)
                .map(|result| Prediction { model_version, score: mean_score(&result), result })
                .into_iter()
                .collect(),
        };
        out.write_all(if index == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *out, &task)?;
    }
    out.write_all(b"\n]\n")?;
    Ok(left_out)
}

/// `None` when no part of the box lies in the image.
fn region<'a>(dataset: &'a Dataset, image: &Image, annotation: &Annotation) -> Option<Region<'a>> {
    let Image { width, height, .. } = *image;
    let [x1, y1, x2, y2] = annotation.bbox.corners_within(width, height)?;
    // The share first: at most 1, so that at most 100 comes of it.
    let per_cent = |length: f64, of: u32| length / f64::from(of) * 100.0;
    Some(Region {
        id: format!("box-{}", annotation.id),
        from_name: LABEL,
        to_name: IMAGE,
        r#type: "rectanglelabels",
        original_width: width,
        original_height: height,
        image_rotation: 0,
        value: Rectangle {
            x: per_cent(x1, width),
            y: per_cent(y1, height),
            width: per_cent(x2 - x1, width),
            height: per_cent(y2 - y1, height),
            rotation: 0,
            rectanglelabels: [label(&dataset.categories()[annotation.category])],
        },
        score: None,
    })
}

/// An image without boxes has no annotation: one without regions would say that there are none.
fn unless_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn mean_score(regions: &[Region]) -> Option<f64> {
    let scores: Vec<f64> = regions.iter().filter_map(|region| region.score).collect();
    // Rounding could carry the mean of ones above 1.
    (!scores.is_empty()).then(|| (scores.iter().sum::<f64>() / scores.len() as f64).min(1.0))
}

/// Where Label Studio finds an image. A URL's path and query are percent-encoded; the keys of cloud
/// storages are looked up as they are written.
fn address(prefix: &str, file_name: &str) -> String {
    let mut address = prefix.to_owned();
    if ["s3://", "gs://", "azure-blob://"].iter().any(|storage| prefix.starts_with(storage)) {
        address.push_str(file_name);
        return address;
    }
    for byte in file_name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                address.push(byte.into());
            }
            _ => write!(address, "%{byte:02X}").expect("a string takes it"),
        }
    }
    address
}

/// The labeling configuration of a project for these tasks.
pub fn labeling_config(categories: &[Category]) -> String {
    let mut config = format!(
        "<View>\n  <Image name=\"{IMAGE}\" value=\"$image\"/>\n  \
         <RectangleLabels name=\"{LABEL}\" toName=\"{IMAGE}\">\n"
    );
    // Two categories may have one name, two labels may not.
    let mut seen = HashSet::new();
    for label in categories.iter().map(label).filter(|label| seen.insert(label.clone())) {
        writeln!(config, "    <Label value=\"{}\"/>", xml::escape(&label)).expect("a string takes it");
    }
    config.push_str("  </RectangleLabels>\n</View>\n");
    config
}

/// What a class is called in the configuration, which is XML, and in the tasks.
fn label(category: &Category) -> Cow<'_, str> {
    xml::allowed(&category.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{Builder, RecoveredMark, Xywh};

    #[test]
    fn names_are_encoded_where_label_studio_decodes_them() {
        assert_eq!(
            address("/data/local-files/?d=a b/", "ü 1&2#.jpg"),
            "/data/local-files/?d=a b/%C3%BC%201%262%23.jpg"
        );
        assert_eq!(address("s3://bucket/", "sub/ü 1.jpg"), "s3://bucket/sub/ü 1.jpg");
        assert_eq!(address("", "sub/a-1_2~.jpg"), "sub/a-1_2~.jpg");
    }

    #[test]
    fn coordinates_stay_within_the_image() {
        // Sides for which a share times 100 rounds up and down.
        for side in 1..2000 {
            let mut builder = Builder::default();
            builder.category("a");
            builder.image("a.jpg", side, side);
            let length = f64::from(side);
            builder.annotation(0, 0, Xywh { x: -1e9, y: 0.0, width: 2e9, height: length }, false, ());
            builder.annotation(0, 0, Xywh { x: length, y: length, width: 5.0, height: 0.0 }, false, ());
            let dataset = builder.finish();
            let values = |n: usize| {
                let Rectangle { x, y, width, height, .. } =
                    region(&dataset, &dataset.images()[0], &dataset.annotations()[n]).unwrap().value;
                [x, y, width, height]
            };
            assert_eq!(values(0), [0.0, 0.0, 100.0, 100.0]);
            assert_eq!(values(1), [100.0, 100.0, 0.0, 0.0]);
        }
    }

    #[test]
    fn a_predictions_score_is_the_mean_confidence_of_its_regions() {
        let mut builder = Builder::default();
        builder.category("a");
        builder.image("a.jpg", 10, 10);
        let bbox = Xywh { x: 0.0, y: 0.0, width: 5.0, height: 5.0 };
        for (score, confidence) in
            [(Some(0.25), Some(0.5)), (Some(1.0), None), (None, Some(1.0)), (None, None)]
        {
            builder.annotation(0, 0, bbox, false, RecoveredMark::new(score, confidence));
        }
        let mut out = Vec::new();
        write(&builder.finish(), "", "m", &mut out).unwrap();
        let tasks: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(tasks[0]["predictions"][0]["score"], 0.75);
        let scores =
            tasks[0]["predictions"][0]["result"].as_array().unwrap().iter().map(|r| r.get("score").cloned());
        assert_eq!(scores.collect::<Vec<_>>(), [Some(0.5.into()), None, Some(1.0.into()), None]);
    }

    #[test]
    fn a_label_is_there_once_and_may_have_any_name() {
        let mut builder = Builder::default();
        for name in ["a", "stop <sign> & \"co\"", "a", "two\nlines"] {
            builder.category(name);
        }
        builder.image("a.jpg", 10, 10);
        let config = labeling_config(builder.finish().categories());
        let document = roxmltree::Document::parse(&config).unwrap();
        let labels = document.descendants().filter(|node| node.has_tag_name("Label"));
        let names: Vec<_> = labels.map(|label| label.attribute("value").unwrap().to_owned()).collect();
        assert_eq!(names, ["a", "stop <sign> & \"co\"", "two\nlines"]);
    }
}
