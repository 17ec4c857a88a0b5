//! The gradients of torchvision's detectors (`fixtures/torchvision`), by the portable kernels.
//!
//! Some of the millions of values under a ReLU are so near to zero that rounding decides their sign, and one in a coarse
//! layer moves gradients by a thousandth. Portable kernels round alike on every machine, and so what is compared here does
//! not depend on it; that other instruction sets compute the same is for the tests of the kernels.

#![allow(clippy::unwrap_used)] // the allowance for tests does not reach their helpers

#[macro_use]
#[path = "torchvision/each.rs"]
mod each;
#[allow(dead_code)] // what else `torchvision` has of the scene
#[path = "torchvision/scene.rs"]
mod scene;

use burn::tensor::Device;
use lacuna_kernels::Isa;
use lacuna_models::weights::named_gradients;

use self::scene::{assert_sample, fixture, loss};

fn agrees(detector: &str, backbone: &str) {
    Isa::available().last().expect("the portable one").hold_to();
    let expected = fixture(&format!("{detector}_{backbone}.json"));
    let config = scene::config(detector, backbone, 5);
    let detector = scene::filled(&config, &Device::flex().autodiff());
    for (case, expected) in expected["gradients"].as_object().unwrap() {
        let actual = named_gradients(&detector, &loss(&detector, case).total().backward());
        for (name, expected) in expected.as_object().unwrap() {
            assert_sample(&format!("{case}, {name}"), &actual[name], expected, 1e-3);
            let norm = actual[name].iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            let theirs = expected["l2"].as_f64().unwrap();
            assert!((norm - theirs).abs() <= 1e-3 * theirs, "{case}, norm of {name}: {norm}, not {theirs}");
        }
    }
}

for_each_detector!(agrees);
