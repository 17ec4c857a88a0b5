//! Object detectors on Burn.
//!
//! Activations are channels-last everywhere, `[N, H, W, C]`, and convolution weights
//! `[kernel, kernel, C, K]`: every model is written once, in terms of [`ops`], and reads the same on
//! every backend.

pub mod anchors;
mod backbone;
pub mod coder;
pub mod detector;
pub mod faster_rcnn;
pub mod fcos;
pub mod fpn;
pub mod layers;
pub mod losses;
pub mod matcher;
pub mod ops;
pub mod postprocess;
pub mod resnet;
pub mod retinanet;
pub mod weights;

pub use detector::{
    ConfigError, Detector, DetectorConfig, Images, IouOf, LossOptions, Losses, NegativeWeight, Normalization,
    Recalibration, Target, Term,
};
pub use weights::DetectorKind;
