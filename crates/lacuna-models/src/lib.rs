//! Object detectors on Burn: RetinaNet, FCOS and Faster R-CNN, trained and run on our own CPU kernels.
//!
//! Build a [`DetectorConfig`], call [`DetectorConfig::init`], then [`Detector::detect`] or [`Detector::loss`];
//! `examples/detect.rs` does all of it. [`weights`] reads and writes torchvision's checkpoints.
//!
//! Activations are channels-last everywhere, `[N, H, W, C]`, and convolution weights are `[kernel, kernel, C, K]`. Every
//! model is written once, in terms of [`ops`], for all backends.

pub mod anchors;
mod backbone;
mod coder;
mod detector;
pub mod faster_rcnn;
pub mod fcos;
pub mod fpn;
mod images;
pub mod layers;
mod loss_options;
mod losses;
mod matcher;
mod one_stage;
pub mod ops;
pub mod postprocess;
pub mod resnet;
pub mod retinanet;
#[cfg(test)]
mod torchvision_tests;
pub mod weights;

pub use detector::{Detector, DetectorConfig, DetectorConfigError, DetectorKind};
pub use images::{Images, Target};
pub use loss_options::{IouOf, LossNormalization, LossOptions, Losses, NegativeWeight, Recalibration, Term};

// `tests/torchvision/scene.rs` is shared with an integration test, which knows this crate by its name.
#[cfg(test)]
extern crate self as lacuna_models;
