//! CPU kernels for training convolutional detectors: slices in, vectors out.
//!
//! Tensors are channels-last and dense: images `[N, H, W, C]`, weights `[kernel, kernel, C, K]`.
//! Every function takes an [`Isa`], the instruction set to use ([`Isa::best`] in all but tests), runs
//! on rayon's current thread pool, and gives the same bits for any number of threads. Shapes are
//! checked before anything is computed; a mistake is a [`ShapeError`] that names both sides.
//!
//! This is the only crate of the workspace with `unsafe`: vector instructions (`simd`), memory
//! written by parallel jobs (`memory`), and the inner loops that use them.

mod affine;
mod conv;
mod focal;
mod gemm;
mod memory;
mod norm;
mod optim;
mod pool;
mod recycle;
mod roi_align;
mod shape;
mod share;
mod simd;
mod upsample;

pub use affine::relu_gradient;
pub use conv::{Algorithm, Conv2d, Epilogue};
pub use focal::{FocalLoss, FocalResult};
pub use norm::{MeanVariance, NormGradients, Normalized, SegmentNorm};
pub use optim::{Average, Sgd, SgdParameter, ema, sum_of_squares};
pub use pool::{MaxPool2d, Pooled};
pub use recycle::Recycle;
pub use roi_align::{Region, RoiAlign};
pub use shape::{Grid, ShapeError, Window};
pub use simd::{Isa, NoSuchInstructions};
pub use upsample::UpsampleAdd;
