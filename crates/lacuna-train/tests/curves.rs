//! Fifty steps of training follow torchvision's from the same start (`fixtures/torchvision`).

#![allow(clippy::unwrap_used)] // the allowance for tests does not reach their helpers

#[allow(dead_code)] // what else `torchvision` has of the scene
#[path = "../../lacuna-models/tests/torchvision/scene.rs"]
mod scene;

use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;
use lacuna_models::ops::{self, Sgd};
use lacuna_models::{LossNormalization, LossOptions, Term};
use lacuna_random::{Purpose, Rng};
use lacuna_train::Optimizer;
use scene::{fixture, floats};

/// The largest share by which a term may differ from torchvision's, once it is worth something.
const TOLERANCE: f32 = 0.02;

/// Tests that share the processor's cores and caches step by step take longer than one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn follows(detector: &str, normalization: LossNormalization, terms: &[(Term, &str)]) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let curve = fixture(&format!("curve_{detector}.json"));
    let number = |name: &str| curve[name].as_f64().unwrap() as f32;
    let sgd = Sgd {
        learning_rate: number("learning_rate"),
        momentum: number("momentum"),
        weight_decay: number("weight_decay"),
    };
    let config = scene::config(detector, "resnet18", 5);
    let device = Device::flex().autodiff();
    let mut student = scene::filled(&config, &device);
    let (images, targets) = (scene::images(&device), scene::targets("both"));
    let options = LossOptions { normalization, ..LossOptions::default() };
    let mut optimizer = Optimizer::default();
    let expected: Vec<Vec<f32>> = terms.iter().map(|(_, name)| floats(&curve["losses"][*name])).collect();
    for step in 0..expected[0].len() {
        let mut rngs = [0, 1].map(|image| Rng::new(Purpose::Sampling, 0, step as u64, image));
        let losses = student.loss(&images, &targets, &options, &mut rngs);
        let total: f32 = expected.iter().map(|term| term[step]).sum();
        for ((term, value), ((_, name), expected)) in losses.0.iter().zip(terms.iter().zip(&expected)) {
            assert_eq!(*term, terms.iter().find(|(_, other)| other == name).unwrap().0);
            let (actual, expected) = (ops::values(value.clone())[0], expected[step]);
            let difference = (actual - expected).abs() / expected.max(0.05 * total);
            assert!(difference <= TOLERANCE, "step {step}, {name}: {actual}, not {expected}");
        }
        let gradients = losses.total().backward();
        (student, _) = optimizer.step(student, gradients, sgd);
    }
}

#[test]
fn retinanet() {
    let terms = [(Term::Classification, "classification"), (Term::Regression, "bbox_regression")];
    follows("retinanet", LossNormalization::Image, &terms);
}

#[test]
fn fcos() {
    let terms = [
        (Term::Classification, "classification"),
        (Term::Regression, "bbox_regression"),
        (Term::Centerness, "bbox_ctrness"),
    ];
    follows("fcos", LossNormalization::Batch, &terms);
}

#[test]
fn faster_rcnn() {
    let terms = [
        (Term::Objectness, "loss_objectness"),
        (Term::ProposalRegression, "loss_rpn_box_reg"),
        (Term::Classification, "loss_classifier"),
        (Term::Regression, "loss_box_reg"),
    ];
    follows("fasterrcnn", LossNormalization::Batch, &terms);
}
