//! The parts of a detector by themselves.

use crate::anchors::{AnchorConfig, Anchors};
use crate::coder::{BoxCoder, distances};
use crate::faster_rcnn::pooling_level;
use crate::fcos::{centerness_from, objects_at};
use crate::losses::{LossSum, binary_cross_entropy, giou, smooth_l1, softmax_focal};
use crate::matcher::{AnchorMatch, Matcher};
use crate::ops::Grid;
use lacuna_boxes::Box2;
use serde_json::Value;

use super::assert_sample;
use super::scene::{boxes, fixture, floats};

fn parts(name: &str) -> Value {
    fixture("parts.json")[name].take()
}

fn grids(value: &Value) -> (Vec<Grid>, (usize, usize)) {
    let grids: Vec<[usize; 2]> = serde_json::from_value(value["grids"].clone()).unwrap();
    let [height, width] = serde_json::from_value(value["image"].clone()).unwrap();
    (grids.into_iter().map(|[height, width]| Grid::new(1, height, width)).collect(), (height, width))
}

fn rows<const N: usize>(value: &Value) -> Vec<[f32; N]> {
    value.as_array().unwrap().iter().map(|row| floats(row).try_into().unwrap()).collect()
}

#[track_caller]
fn assert_close(actual: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(actual.len(), expected.len());
    for (index, (a, b)) in actual.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{index}: {a}, not {b}");
    }
}

fn corners(bbox: Box2) -> [f32; 4] {
    [bbox.x1, bbox.y1, bbox.x2, bbox.y2]
}

#[test]
fn anchors() {
    let expected = parts("anchors");
    let flat = |anchors: &Anchors| -> Vec<f32> { anchors.boxes().iter().flat_map(|&a| corners(a)).collect() };
    for (name, config) in [("retinanet", AnchorConfig::retinanet()), ("rpn", AnchorConfig::rpn())] {
        let (grids, padded) = grids(&expected[name]);
        assert_sample(name, &flat(&config.over(&grids, padded)), &expected[name]["anchors"], 0.0);
    }
    let (grids, padded) = grids(&expected["fcos"]);
    assert_sample("fcos", &flat(&Anchors::locations(&grids, padded)), &expected["fcos"]["anchors"], 0.0);
}

#[test]
fn matching() {
    let mut compared = 0;
    for case in parts("matcher").as_array().unwrap() {
        let quality: Vec<Vec<f32>> = case["quality"].as_array().unwrap().iter().map(floats).collect();
        // Where an object overlaps nothing, ours differs on purpose: see the next test.
        if quality.iter().any(|object| object.iter().all(|&overlap| overlap == 0.0)) {
            continue;
        }
        let matcher = Matcher {
            object_min: case["high"].as_f64().unwrap() as f32,
            background_max: case["low"].as_f64().unwrap() as f32,
            low_quality: case["low_quality"].as_bool().unwrap(),
        };
        let matches: Vec<i64> = matcher
            .matches_by(quality[0].len(), quality.len(), |sample, object| quality[object][sample])
            .into_iter()
            .map(|matched| match matched {
                AnchorMatch::Object(object) => object as i64,
                AnchorMatch::Background => -1,
                AnchorMatch::Ignored => -2,
            })
            .collect();
        assert_eq!(Value::from(matches), case["matches"], "{matcher:?}");
        compared += 1;
    }
    assert!(compared >= 6, "{compared} cases compared");
}

#[test]
fn an_object_far_from_every_anchor_makes_no_background_positive() {
    let matcher = Matcher { object_min: 0.5, background_max: 0.4, low_quality: true };
    let samples = [Box2::new(0.0, 0.0, 10.0, 10.0), Box2::new(20.0, 0.0, 30.0, 10.0)];
    let objects = [Box2::new(500.0, 500.0, 510.0, 510.0), Box2::new(0.0, 0.0, 2.0, 2.0)];
    assert_eq!(matcher.matches(&samples, &objects), [AnchorMatch::Object(1), AnchorMatch::Background]);
    assert_eq!(matcher.matches(&samples, &[]), [AnchorMatch::Background; 2]);
}

#[test]
fn box_coder() {
    for case in parts("box_coder").as_array().unwrap() {
        let weights = floats(&case["weights"]);
        let coder = BoxCoder { weights: (weights[0], weights[2]) };
        let (objects, references) = (boxes(&case["boxes"]), boxes(&case["proposals"]));
        for (index, &reference) in references.iter().enumerate() {
            let encoded = coder.encode(reference, objects[index]);
            assert_close(&encoded, &floats(&case["encoded"][index]), 2e-6);
            let deltas = floats(&case["deltas"][index]).try_into().unwrap();
            assert_close(&corners(coder.decode(reference, deltas)), &floats(&case["decoded"][index]), 2e-6);
        }
    }
}

#[test]
fn distance_coder() {
    let case = parts("linear_coder");
    let (squares, objects) = (boxes(&case["anchors"]), boxes(&case["boxes"]));
    for (index, &square) in squares.iter().enumerate() {
        let encoded = distances::encode(square, objects[index]);
        assert_close(&encoded, &floats(&case["encoded"][index]), 1e-6);
        let deltas = floats(&case["deltas"][index]).try_into().unwrap();
        assert_close(&corners(distances::decode(square, deltas)), &floats(&case["decoded"][index]), 1e-6);
    }
}

#[test]
fn locations_and_their_objects() {
    let expected = parts("fcos_matching");
    let (grids, padded) = grids(&expected);
    let locations = Anchors::locations(&grids, padded);
    for case in expected["cases"].as_array().unwrap() {
        let objects = boxes(&case["boxes"]);
        let matches = objects_at(&locations, &objects, 1.5);
        let numbers: Vec<i64> =
            matches.iter().map(|found| found.map_or(-1, |object| object as i64)).collect();
        assert_eq!(Value::from(numbers), case["matches"], "{}", case["name"]);
        let found = matches
            .iter()
            .zip(locations.boxes())
            .filter_map(|(found, &square)| Some((objects[(*found)?], square)));
        let centerness: Vec<f32> =
            found.map(|(object, square)| centerness_from(distances::encode(square, object))).collect();
        assert_close(&centerness, &floats(&case["centerness"]), 1e-6);
    }
}

#[test]
fn box_losses() {
    let case = parts("giou");
    let (predictions, targets) = (boxes(&case["boxes"]), boxes(&case["targets"]));
    for (index, gradient) in rows::<4>(&case["gradient"]).iter().enumerate() {
        let (loss, ours) = giou(predictions[index], targets[index]);
        assert_close(&[loss], &[floats(&case["loss"])[index]], 2e-6);
        assert_close(&ours, gradient, 2e-6);
    }

    let case = parts("smooth_l1");
    let (input, target) = (floats(&case["input"]), floats(&case["target"]));
    let beta = case["beta"].as_f64().unwrap() as f32;
    let each = input.iter().zip(&target).map(|(&input, &target)| smooth_l1([input], [target], beta));
    let (losses, gradients): (Vec<f32>, Vec<[f32; 1]>) = each.unzip();
    assert_close(&[losses.iter().sum()], &[case["loss"].as_f64().unwrap() as f32], 2e-6);
    assert_close(gradients.as_flattened(), &floats(&case["gradient"]), 2e-6);
}

#[test]
fn class_losses() {
    let case = parts("bce");
    let (logits, targets) = (floats(&case["logits"]), floats(&case["targets"]));
    let mean = 1.0 / logits.len() as f32;
    let each = logits.iter().zip(&targets).map(|(&logit, &target)| binary_cross_entropy(logit, target));
    let (losses, gradients): (Vec<f32>, Vec<[f32; 1]>) = each.unzip();
    assert_close(&[losses.iter().sum::<f32>() * mean], &[case["loss"].as_f64().unwrap() as f32], 2e-6);
    let gradients: Vec<f32> = gradients.as_flattened().iter().map(|g| g * mean).collect();
    assert_close(&gradients, &floats(&case["gradient"]), 1e-6);

    let case = parts("cross_entropy");
    let logits = rows::<6>(&case["logits"]);
    let labels: Vec<usize> = serde_json::from_value(case["labels"].clone()).unwrap();
    let mean = 1.0 / logits.len() as f32;
    let (mut sum, mut gradients) = (0.0, vec![[0.0; 6]; logits.len()]);
    for (index, row) in logits.iter().enumerate() {
        sum += mean * softmax_focal(row, labels[index], 0.0, mean, &mut gradients[index]);
    }
    assert_close(&[sum], &[case["loss"].as_f64().unwrap() as f32], 2e-6);
    assert_close(gradients.as_flattened(), rows::<6>(&case["gradient"]).as_flattened(), 1e-6);
}

#[test]
fn levels_of_regions() {
    let case = parts("level_mapper");
    let levels: Vec<usize> =
        boxes(&case["boxes"]).into_iter().map(|region| pooling_level(region, 4)).collect();
    assert_eq!(Value::from(levels), case["levels"]);
}

/// The gradients by hand, of all losses, against differences of the losses themselves.
#[test]
fn gradients_are_those_of_the_losses() {
    let step = 1e-3;
    let (prediction, target) = ([1.3, 2.1, 9.7, 8.2], [2.0, 1.0, 8.0, 9.0]);
    let bbox = |[x1, y1, x2, y2]: [f32; 4]| Box2::new(x1, y1, x2, y2);
    let check = |name: &str, loss: &dyn Fn([f32; 4]) -> (f32, [f32; 4])| {
        for i in 0..4 {
            let moved = |by: f32| {
                let mut prediction = prediction;
                prediction[i] += by;
                f64::from(loss(prediction).0)
            };
            let difference = (moved(step) - moved(-step)) / f64::from(2.0 * step);
            let gradient = f64::from(loss(prediction).1[i]);
            assert!((difference - gradient).abs() < 2e-3, "{name} {i}: {gradient}, not {difference}");
        }
    };
    check("giou", &|p| giou(bbox(p), bbox(target)));
    check("l1", &|p| smooth_l1(p, target, 0.0));
    check("smooth l1", &|p| smooth_l1(p, target, 1.5));
}

#[test]
fn a_sum_of_losses_adds_where_it_is_told() {
    use burn::Tensor;
    use burn::tensor::Device;
    let x = Tensor::<2>::zeros([2, 3], &Device::flex().autodiff()).require_grad();
    let mut sum = LossSum::new(6);
    sum.add(1, 2.0, (3.0, [1.0, -1.0]));
    sum.add(2, 0.5, (4.0, [6.0]));
    let loss = sum.into_tensor(x.clone());
    assert_eq!(lacuna_models::ops::values(loss.clone()), [8.0]);
    let gradient = x.grad(&(loss * 3.0).backward()).unwrap();
    assert_eq!(lacuna_models::ops::values(gradient), [0.0, 6.0, 3.0, 0.0, 0.0, 0.0]);
}
