//! Agreement with torchvision's detectors: heads, detections, losses, and parts by themselves. torchvision's results,
//! and the script that made them, are in `fixtures/torchvision`.

#![allow(clippy::unwrap_used)] // the allowance for tests does not reach their helpers

#[macro_use]
#[path = "../../tests/torchvision/each.rs"]
mod each;
mod parts;
#[path = "../../tests/torchvision/scene.rs"]
mod scene;

use burn::Tensor;
use burn::tensor::Device;
use serde_json::Value;

use self::scene::{assert_sample, boxes, fixture, floats, loss};
use crate::anchors::Anchors;
use crate::faster_rcnn::Proposal;
use crate::layers::Mode;
use crate::one_stage::OneStage;
use crate::{Detector, DetectorConfig, Term, ops};

/// Rows of all images in torchvision's order: image, level, y, x, anchor.
fn by_image(rows: Tensor<2>, anchors: &Anchors, images: usize) -> Vec<f32> {
    let width = rows.dims()[1];
    let values = ops::values(rows);
    let order = (0..images).flat_map(|image| anchors.rows(image));
    order.flat_map(|row| values[row * width..][..width].to_vec()).collect()
}

fn head_outputs(detector: &Detector, expected: &Value) {
    let images = scene::images(&Device::flex());
    let check = |name: &str, actual: &[f32]| assert_sample(name, actual, &expected["head"][name], 1e-4);
    match detector {
        Detector::RetinaNet(detector) => {
            let output = detector.forward(&images, Mode::Inference);
            check("cls_logits", &by_image(output.logits, &output.samples, 2));
            check("bbox_regression", &by_image(output.boxes, &output.samples, 2));
        }
        Detector::Fcos(detector) => {
            let output = detector.forward(&images, Mode::Inference);
            check("cls_logits", &by_image(output.logits, &output.samples, 2));
            check("bbox_regression", &by_image(output.boxes, &output.samples, 2));
            check("bbox_ctrness", &by_image(output.centerness.unwrap(), &output.samples, 2));
        }
        Detector::FasterRcnn(detector) => {
            let features = detector.features(&images, Mode::Inference);
            let output = detector.rpn(&images, &features);
            check("objectness", &by_image(output.objectness.clone(), &output.anchors, 2));
            check("pred_bbox_deltas", &by_image(output.deltas.clone(), &output.anchors, 2));
            // The proposals are torchvision's, so that the box head is judged by itself.
            let proposals: Vec<Proposal> = (0..2)
                .flat_map(|image| {
                    boxes(&expected["proposals"][image]).into_iter().map(move |bbox| Proposal { image, bbox })
                })
                .collect();
            let output = detector.classify(&features, &proposals);
            for (name, rows) in [("class_logits", output.logits), ("box_regression", output.deltas)] {
                let width = rows.dims()[1];
                let values = ops::values(rows);
                let mut ordered = vec![0.0; values.len()];
                for (row, &index) in output.order.iter().enumerate() {
                    ordered[index * width..][..width].copy_from_slice(&values[row * width..][..width]);
                }
                check(name, &ordered);
            }
        }
    }
}

fn detections(detector: &Detector, expected: &Value) {
    let images = scene::images(&Device::flex());
    // Faster R-CNN's labels count background.
    let first = usize::from(matches!(detector, Detector::FasterRcnn(_)));
    for (image, detections) in detector.detect(&images).iter().enumerate() {
        let expected = &expected["detections"][image];
        let (boxes, scores) = (boxes(&expected["boxes"]), floats(&expected["scores"]));
        let labels: Vec<usize> = serde_json::from_value(expected["labels"].clone()).unwrap();
        assert!(!boxes.is_empty(), "a fixture without detections shows nothing");
        assert_eq!(detections.len(), boxes.len(), "detections of image {image}");
        for (index, detection) in detections.iter().enumerate() {
            assert_eq!(detection.class + first, labels[index], "class of detection {index} of image {image}");
            assert!((detection.score.0 - scores[index]).abs() <= 1e-4, "score {index}");
            let (ours, theirs) = (detection.bbox, boxes[index]);
            for (a, b) in
                [(ours.x1, theirs.x1), (ours.y1, theirs.y1), (ours.x2, theirs.x2), (ours.y2, theirs.y2)]
            {
                assert!(
                    (a - b).abs() <= 0.01,
                    "detection {index} of image {image}: {ours:?}, not {theirs:?}"
                );
            }
        }
    }
}

fn torchvision_name(term: Term, config: &DetectorConfig) -> &'static str {
    match (term, config) {
        (Term::Classification, DetectorConfig::FasterRcnn(_)) => "loss_classifier",
        (Term::Regression, DetectorConfig::FasterRcnn(_)) => "loss_box_reg",
        (Term::Classification, _) => "classification",
        (Term::Regression, _) => "bbox_regression",
        (Term::Centerness, _) => "bbox_ctrness",
        (Term::Objectness, _) => "loss_objectness",
        (Term::ProposalRegression, _) => "loss_rpn_box_reg",
        (Term::Consistency, _) => unreachable!("torchvision has nothing of two views"),
    }
}

fn losses(detector: &Detector, config: &DetectorConfig, expected: &Value) {
    for (case, terms) in expected["losses"].as_object().unwrap() {
        let losses = loss(detector, case);
        assert_eq!(losses.0.len(), terms.as_object().unwrap().len(), "terms of {case}");
        for (term, value) in &losses.0 {
            let (actual, expected) = (ops::values(value.clone())[0], &terms[torchvision_name(*term, config)]);
            let expected = expected.as_f64().unwrap() as f32;
            let difference = (actual - expected).abs() / expected.abs().max(1e-3);
            assert!(difference <= 1e-4, "{case}, {term:?}: {actual}, not {expected}");
        }
        // A tracked pass is freed by its backward pass alone.
        losses.total().backward();
    }
}

fn agrees(detector: &str, backbone: &str) {
    let expected = fixture(&format!("{detector}_{backbone}.json"));
    let config = scene::config(detector, backbone, 5);
    let plain = scene::filled(&config, &Device::flex());
    head_outputs(&plain, &expected);
    detections(&plain, &expected);
    let tracked = scene::filled(&config, &Device::flex().autodiff());
    losses(&tracked, &config, &expected);
}

for_each_detector!(agrees);
