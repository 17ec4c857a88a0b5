//! The same numbers as pycocotools (fixtures/coco-eval/make.py, fixtures/coco-eval-exact/make.py), and what
//! they are where there is little to judge.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use lacuna_boxes::{Box2, Detection, Score};
use lacuna_data::{Builder, Dataset, Xywh, coco};
use lacuna_eval::{
    AveragePrecision, ImageDetection, average_precision, average_precision_at, average_precision_of_lists,
};
use serde_json::Value;

fn json(path: &str) -> Value {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    serde_json::from_slice(&fs::read(fixtures.join(path)).unwrap()).unwrap()
}

fn parse(annotations: &Value) -> Dataset {
    coco::parse(annotations.to_string().into(), Path::new("annotations.json")).unwrap()
}

/// Results in COCO's form.
fn from_results(results: &Value, dataset: &Dataset) -> Vec<ImageDetection> {
    let detection = |result: &Value| {
        let [x, y, width, height] = serde_json::from_value(result["bbox"].clone()).unwrap();
        ImageDetection {
            image: dataset.images().iter().position(|i| result["image_id"] == i.id).unwrap(),
            class: dataset.categories().iter().position(|c| result["category_id"] == c.id).unwrap(),
            bbox: Xywh { x, y, width, height },
            score: result["score"].as_f64().unwrap(),
        }
    };
    results.as_array().unwrap().iter().map(detection).collect()
}

/// As a model has them; the numbers of fixtures/coco-eval are exact in 32 bits.
fn by_image(found: &[ImageDetection], dataset: &Dataset) -> Vec<Vec<Detection>> {
    let mut detections = vec![Vec::new(); dataset.images().len()];
    for &ImageDetection { image, class, bbox, score } in found {
        detections[image].push(Detection { bbox: bbox.to_box(), class, score: Score(score as f32) });
    }
    detections
}

fn stats(found: &AveragePrecision) -> [Option<f64>; 12] {
    let AveragePrecision { ap, ap50, ap75, ap_small, ap_medium, ap_large, .. } = *found;
    let AveragePrecision { ar_1, ar_10, ar_100, ar_small, ar_medium, ar_large, .. } = *found;
    [ap, ap50, ap75, ap_small, ap_medium, ap_large, ar_1, ar_10, ar_100, ar_small, ar_medium, ar_large]
}

fn assert_close(found: &[Option<f64>], expected: &Value) {
    let expected: Vec<Option<f64>> = serde_json::from_value(expected.clone()).unwrap();
    assert_eq!(found.len(), expected.len());
    for (place, pair) in found.iter().zip(&expected).enumerate() {
        let close = match pair {
            (Some(a), Some(b)) => (a - b).abs() <= 1e-12,
            (a, b) => a == b,
        };
        assert!(close, "{pair:?} at {place}");
    }
}

fn assert_says(found: &AveragePrecision, expected: &Value) {
    assert_close(&stats(found), &expected["stats"]);
    assert_close(&found.per_class, &expected["per_class"]);
    assert_close(&found.per_class_50, &expected["per_class_50"]);
}

#[test]
fn says_what_pycocotools_says() {
    let dataset = parse(&json("coco-eval/annotations.json"));
    let found = from_results(&json("coco-eval/detections.json"), &dataset);
    let expected = json("coco-eval/expected.json");
    assert_says(&average_precision(&dataset, &found), &expected);
    assert_says(&average_precision_of_lists(&dataset, &by_image(&found, &dataset)), &expected);
}

#[test]
fn says_what_pycocotools_says_where_a_hair_decides() {
    let cases = json("coco-eval-exact/cases.json");
    let cases = cases["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 8);
    for case in cases {
        eprintln!("{}", case["name"]);
        let dataset = parse(&case["annotations"]);
        let found = from_results(&case["detections"], &dataset);
        assert_says(&average_precision(&dataset, &found), &case["expected"]);
        for expected in case["expected"]["at"].as_array().unwrap() {
            let at = average_precision_at(&dataset, &found, expected["iou"].as_f64().unwrap());
            assert_close(&[at.ap], &Value::Array(vec![expected["ap"].clone()]));
            assert_close(&at.per_class, &expected["per_class"]);
        }
    }
}

/// The order of the list decides between equal scores; nothing else of it does.
#[test]
fn the_order_of_different_scores_does_not_matter() {
    let dataset = parse(&json("coco-eval/annotations.json"));
    let mut found = from_results(&json("coco-eval/detections.json"), &dataset);
    for (n, found) in found.iter_mut().enumerate() {
        found.score += n as f64 * 1e-9;
    }
    let forwards = average_precision(&dataset, &found);
    found.reverse();
    assert_eq!(average_precision(&dataset, &found), forwards);
}

#[test]
fn a_score_that_is_not_a_number_is_the_worst() {
    let dataset = one_object();
    let bbox = Xywh { x: 10.0, y: 10.0, width: 50.0, height: 50.0 };
    let found = |score| ImageDetection { image: 0, class: 0, bbox, score };
    let ap = |scores: [f64; 2]| {
        // The first is right, the second is not.
        let wrong = Xywh { x: 70.0, ..bbox };
        average_precision(&dataset, &[found(scores[0]), ImageDetection { bbox: wrong, ..found(scores[1]) }])
            .ap
            .unwrap()
    };
    assert_eq!(ap([0.0, f64::NAN]), ap([0.9, 0.1]));
    assert_eq!(ap([f64::NAN, 0.0]), ap([0.1, 0.9]));
}

/// One class; one object of 50 by 50 pixels in the first of two images.
fn one_object() -> Dataset {
    let mut builder = Builder::default();
    let class = builder.category("");
    let image = builder.image("a.jpg", 100, 100);
    builder.image("b.jpg", 100, 100);
    builder.annotation(image, class, Xywh { x: 10.0, y: 10.0, width: 50.0, height: 50.0 }, false, ());
    builder.finish()
}

fn detection(bbox: Box2, score: f32) -> Detection {
    Detection { bbox, class: 0, score: Score(score) }
}

#[test]
fn nothing_found_is_0_and_nothing_to_find_is_none() {
    let found = average_precision_of_lists(&one_object(), &[vec![], vec![]]);
    let [none, zero] = [None, Some(0.0)];
    let by_size = [none, zero, none];
    assert_eq!(stats(&found)[..3], [zero; 3]);
    assert_eq!(stats(&found)[3..6], by_size);
    assert_eq!(stats(&found)[6..9], [zero; 3]);
    assert_eq!(stats(&found)[9..], by_size);
    assert_eq!((found.per_class, found.per_class_50), (vec![zero], vec![zero]));

    let empty = one_object().filter(|_, _| false);
    for detections in [vec![], vec![detection(Box2::new(0.0, 0.0, 9.0, 9.0), 0.5)]] {
        let found = average_precision_of_lists(&empty, &[detections, vec![]]);
        assert_eq!(stats(&found), [None; 12]);
        assert_eq!(found.per_class, [None]);
    }
}

#[test]
fn a_perfect_detection_is_1() {
    let exact = Box2::new(10.0, 10.0, 60.0, 60.0);
    let found = average_precision_of_lists(&one_object(), &[vec![detection(exact, 0.5)], vec![]]);
    assert!((found.ap.unwrap() - 1.0).abs() < 1e-12);
    assert_eq!((found.ap_small, found.ar_1), (None, Some(1.0)));
}

/// Whatever is wrong with a box, it overlaps nothing and costs precision.
#[test]
fn degenerate_boxes_are_false_detections() {
    let exact = detection(Box2::new(10.0, 10.0, 60.0, 60.0), 0.5);
    let of =
        |odd: Box2| average_precision_of_lists(&one_object(), &[vec![exact, detection(odd, 0.9)], vec![]]);
    let halved = of(Box2::new(70.0, 70.0, 90.0, 90.0));
    assert!((halved.ap.unwrap() - 0.5).abs() < 1e-12);
    let nan = f32::NAN;
    for odd in
        [Box2::new(60.0, 10.0, 10.0, 60.0), Box2::new(nan, nan, nan, nan), Box2::new(30.0, 30.0, 30.0, 30.0)]
    {
        assert_eq!(of(odd).ap, halved.ap);
    }
}

/// Roboflow's files count from 0, and pycocotools takes annotation 0 for none.
#[test]
fn the_annotation_0_can_be_found() {
    let text = r#"{"images": [{"id": 0, "file_name": "a.jpg", "width": 100, "height": 100}],
        "annotations": [{"id": 0, "image_id": 0, "category_id": 0, "bbox": [10, 10, 50, 50]}],
        "categories": [{"id": 0, "name": "a"}]}"#;
    let dataset = coco::parse(text.into(), Path::new("a.json")).unwrap();
    let found =
        average_precision_of_lists(&dataset, &[vec![detection(Box2::new(10.0, 10.0, 60.0, 60.0), 0.5)]]);
    assert_eq!(found.ar_100, Some(1.0));
}
