//! The operations that models are made of, one function each.
//!
//! On Flex, the default CPU backend, they are the kernels of `lacuna-kernels` with hand-written
//! backward passes (`flex`); on every other backend they are Burn's own operations (`portable`).
//! Tensors are channels-last, `[N, H, W, C]`. A pyramid's levels may also be one tensor
//! `[Σ N·H·W, C]`, described by a [`Grid`] per level, so that a head runs over all of them in one
//! call.
//!
//! A gradient is computed only for what is tracked: a frozen weight costs none, and below the first
//! trainable layer nothing runs backward at all. Shapes that do not fit are a mistake in a model, and
//! panic with both shapes, as Burn's own operations do.

mod flex;
mod portable;
#[cfg(test)]
mod tests;

use burn::Tensor;
use burn::backend::{Dispatch, DispatchDevice};
use burn::tensor::Device;
use lacuna_kernels::{Conv2d, ShapeError};
pub use lacuna_kernels::{FocalLoss, Grid, Region, RoiAlign, Sgd, Window};

use self::flex::Kernels;

/// What follows a convolution: `relu(scale[k] · (x ∗ w) + shift[k] + residual)`.
///
/// `scale` is a constant (of a frozen batch norm) and gets no gradient.
#[derive(Clone, Debug, Default)]
pub struct Epilogue<const D: usize> {
    /// `[K]`
    pub scale: Option<Tensor<1>>,
    /// `[K]`
    pub shift: Option<Tensor<1>>,
    /// As the output.
    pub residual: Option<Tensor<D>>,
    pub relu: bool,
}

/// Whether the tensors of `device` are Flex's, tracked or not.
fn is_flex(device: &Device) -> bool {
    matches!(device.clone().inner().as_dispatch(), DispatchDevice::Flex(_))
}

/// The value, or a panic that names both shapes.
fn fitting<T>(result: Result<T, ShapeError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// The grid of a channels-last tensor and its channels.
fn grid_of([batch, height, width, channels]: [usize; 4]) -> (Grid, usize) {
    (Grid::new(batch, height, width), channels)
}

/// The convolution of grids by a weight `[kernel, kernel, C, K]`; the kernel is the weight's.
fn conv_of(grids: Vec<Grid>, channels: usize, weight: [usize; 4], window: Window) -> Conv2d {
    let [kernel, kernel_x, in_channels, out_channels] = weight;
    if [kernel, kernel_x, in_channels] != [window.kernel, window.kernel, channels] {
        fitting::<()>(Err(ShapeError::Mismatch {
            left: "x",
            left_shape: vec![window.kernel, window.kernel, channels],
            right: "weight",
            right_shape: weight.to_vec(),
        }));
    }
    fitting(Conv2d::new(grids, channels, out_channels, window))
}

/// `x [N, H, W, C]`, `weight [kernel, kernel, C, K]` → `[N, H', W', K]`.
pub fn conv2d(x: Tensor<4>, weight: Tensor<4>, window: Window, epilogue: Epilogue<4>) -> Tensor<4> {
    let (grid, channels) = grid_of(x.dims());
    let conv = conv_of(vec![grid], channels, weight.dims(), window);
    if !is_flex(&x.device()) {
        return portable::conv2d(x, weight, window, epilogue);
    }
    let output = conv.outputs()[0];
    let shape = vec![output.batch, output.height, output.width, weight.dims()[3]];
    conv_on_flex(x, weight, conv, shape, epilogue)
}

/// A convolution over all levels of a pyramid: `x [Σ N·H·W, C]` → `[Σ N·H'·W', K]`.
pub fn conv2d_pyramid(
    x: Tensor<2>,
    levels: &[Grid],
    weight: Tensor<4>,
    window: Window,
    epilogue: Epilogue<2>,
) -> Tensor<2> {
    let [pixels, channels] = x.dims();
    if levels.iter().map(|level| level.pixels()).sum::<usize>() != pixels {
        let of_levels = levels.iter().flat_map(|level| [level.batch, level.height, level.width]);
        fitting::<()>(Err(ShapeError::Mismatch {
            left: "x",
            left_shape: vec![pixels, channels],
            right: "levels",
            right_shape: of_levels.collect(),
        }));
    }
    let conv = conv_of(levels.to_vec(), channels, weight.dims(), window);
    if !is_flex(&x.device()) {
        return portable::conv2d_pyramid(x, levels, weight, window, epilogue);
    }
    let pixels = conv.outputs().iter().map(|level| level.pixels()).sum();
    let shape = vec![pixels, weight.dims()[3]];
    conv_on_flex(x, weight, conv, shape, epilogue)
}

fn conv_on_flex<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<4>,
    conv: Conv2d,
    shape: Vec<usize>,
    epilogue: Epilogue<D>,
) -> Tensor<D> {
    let Epilogue { scale, shift, residual, relu } = epilogue;
    let device = x.device().inner();
    let absent = || Tensor::<1>::empty([0], &device).into_dispatch();
    Tensor::from_dispatch(Dispatch::convolve(
        x.into_dispatch(),
        weight.into_dispatch(),
        scale.map_or_else(absent, Tensor::into_dispatch),
        shift.map_or_else(absent, Tensor::into_dispatch),
        residual.map_or_else(absent, Tensor::into_dispatch),
        conv,
        shape,
        relu,
    ))
}

/// Each channel by its own window: `x [N, H, W, C]`, `weight [kernel, kernel, C]` → `[N, H', W', C]`.
pub fn depthwise_conv2d(x: Tensor<4>, weight: Tensor<3>, window: Window) -> Tensor<4> {
    if is_flex(&x.device()) {
        Tensor::from_dispatch(Dispatch::depthwise(x.into_dispatch(), weight.into_dispatch(), window))
    } else {
        portable::depthwise_conv2d(x, weight, window)
    }
}

/// `x [N, H, W, C]` → `[N, H', W', C]`.
pub fn max_pool2d(x: Tensor<4>, window: Window) -> Tensor<4> {
    if is_flex(&x.device()) {
        Tensor::from_dispatch(Dispatch::max_pool(x.into_dispatch(), window))
    } else {
        portable::max_pool2d(x, window)
    }
}

/// `lateral [N, H, W, C]` plus `top [N, h, w, C]` enlarged to it, each pixel from the nearest one
/// above and to the left, as PyTorch's `interpolate(mode="nearest")`.
pub fn upsample_add(top: Tensor<4>, lateral: Tensor<4>) -> Tensor<4> {
    if is_flex(&lateral.device()) {
        Tensor::from_dispatch(Dispatch::upsample_add(top.into_dispatch(), lateral.into_dispatch()))
    } else {
        portable::upsample_add(top, lateral)
    }
}

/// `x [N, H, W, C]` → `[regions, height, width, C]`.
pub fn roi_align(x: Tensor<4>, regions: Vec<Region>, align: RoiAlign) -> Tensor<4> {
    if is_flex(&x.device()) {
        Tensor::from_dispatch(Dispatch::roi_align(x.into_dispatch(), regions, align))
    } else {
        portable::roi_align(x, &regions, align)
    }
}

/// The sum of sigmoid focal losses, `[1]`: `logits [rows, classes]`; `labels [rows]` is a row's class,
/// or −1 for background; `weights [rows]` multiply the rows' losses, and 0 leaves a row out.
pub fn focal_loss(logits: Tensor<2>, labels: Vec<i32>, weights: Vec<f32>, focal: FocalLoss) -> Tensor<1> {
    if is_flex(&logits.device()) {
        Tensor::from_dispatch(Dispatch::focal_loss(logits.into_dispatch(), labels, weights, focal))
    } else {
        portable::focal_loss(logits, &labels, &weights, focal)
    }
}

/// One step of SGD: the new parameter and velocity, in the memory of the old ones where nothing else
/// holds it. Tensors are plain, not tracked.
pub fn sgd_step<const D: usize>(
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    velocity: Tensor<D>,
    sgd: Sgd,
) -> (Tensor<D>, Tensor<D>) {
    if is_flex(&parameter.device()) {
        flex::sgd_step(parameter, gradient, velocity, sgd)
    } else {
        portable::sgd_step(parameter, gradient, velocity, sgd)
    }
}

/// `momentum · average + (1 − momentum) · value`, in the memory of the old average where nothing else
/// holds it. Tensors are plain, not tracked.
pub fn ema_step<const D: usize>(average: Tensor<D>, value: Tensor<D>, momentum: f32) -> Tensor<D> {
    if is_flex(&average.device()) {
        flex::ema_step(average, value, momentum)
    } else {
        portable::ema_step(average, value, momentum)
    }
}
