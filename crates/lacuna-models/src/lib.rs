//! Object detectors on Burn.
//!
//! Activations are channels-last everywhere, `[N, H, W, C]`, and convolution weights
//! `[kernel, kernel, C, K]`: every model is written once, in terms of [`ops`], and reads the same on
//! every backend.

pub mod ops;
