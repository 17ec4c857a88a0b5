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
//! panic with both shapes, as Burn's own operations do: here, before the backend is looked at, so that
//! every backend refuses the same.
//!
//! Evaluate on the plain device. On a tracked one, a forward pass that is dropped without a backward
//! pass stays in Burn's graph until the next backward pass from the same parameters.

mod flex;
mod portable;
#[cfg(test)]
mod tests;

use burn::Tensor;
use burn::backend::{Dispatch, DispatchDevice};
use burn::tensor::Device;
use lacuna_kernels::{Conv2d, MaxPool2d, SegmentNorm, ShapeError, UpsampleAdd};
pub use lacuna_kernels::{FocalLoss, Grid, Region, RoiAlign, Sgd, Window};

use self::flex::Kernels;

/// What follows a convolution: `relu(scale[k] · (x ∗ w) + shift[k] + residual)`.
///
/// `scale` is a constant (of a frozen batch norm): it gets no gradient even if it is tracked.
#[derive(Clone, Debug, Default)]
pub struct TensorEpilogue<const D: usize> {
    /// `[K]`
    pub scale: Option<Tensor<1>>,
    /// `[K]`
    pub shift: Option<Tensor<1>>,
    /// As the output.
    pub residual: Option<Tensor<D>>,
    /// Whether there is a ReLU.
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

/// Panics with both shapes unless `fits`.
fn check(fits: bool, left: (&'static str, &[usize]), right: (&'static str, &[usize])) {
    if !fits {
        let (left_shape, right_shape) = (left.1.to_vec(), right.1.to_vec());
        fitting::<()>(Err(ShapeError::Mismatch { left: left.0, left_shape, right: right.0, right_shape }));
    }
}

/// Panics unless `x [.., C]` has the pixels of all levels.
fn check_levels(x: &[usize], levels: &[Grid]) {
    let of_levels: Vec<_> =
        levels.iter().flat_map(|level| [level.batch, level.height, level.width]).collect();
    let pixels = levels.iter().map(|level| level.pixels()).sum::<usize>();
    check(x[..x.len() - 1].iter().product::<usize>() == pixels, ("x", x), ("levels", &of_levels));
}

/// The convolution of the grids of `x [.., C]` by a weight `[kernel, kernel, C, K]`.
fn conv_of(x: &[usize], grids: Vec<Grid>, weight: [usize; 4], window: Window) -> Conv2d {
    let [height, width, in_channels, out_channels] = weight;
    let channels = x[x.len() - 1];
    let kernel = [window.kernel; 2];
    check([height, width] == kernel, ("weight", &weight), ("a window", &kernel));
    check(in_channels == channels, ("x", x), ("weight", &weight));
    fitting(Conv2d::new(grids, channels, out_channels, window))
}

impl<const D: usize> TensorEpilogue<D> {
    /// Panics unless it fits an output of this shape.
    fn check(&self, output: [usize; D]) {
        for (name, values) in [("scale", &self.scale), ("shift", &self.shift)] {
            if let Some(values) = values {
                check(values.dims() == [output[D - 1]], (name, &values.dims()), ("the output", &output));
            }
        }
        if let Some(residual) = &self.residual {
            check(residual.dims() == output, ("residual", &residual.dims()), ("the output", &output));
        }
    }
}

/// `x [N, H, W, C]`, `weight [kernel, kernel, C, K]` → `[N, H', W', K]`.
pub fn conv2d(x: Tensor<4>, weight: Tensor<4>, window: Window, epilogue: TensorEpilogue<4>) -> Tensor<4> {
    let (grid, _) = grid_of(x.dims());
    let conv = conv_of(&x.dims(), vec![grid], weight.dims(), window);
    let output = conv.outputs()[0];
    let shape = [output.batch, output.height, output.width, weight.dims()[3]];
    epilogue.check(shape);
    if is_flex(&x.device()) {
        conv_on_flex(x, weight, conv, shape, epilogue)
    } else {
        portable::conv2d(x, weight, window, epilogue)
    }
}

/// A convolution over all levels of a pyramid: `x [Σ N·H·W, C]` → `[Σ N·H'·W', K]`.
pub fn conv2d_pyramid(
    x: Tensor<2>,
    levels: &[Grid],
    weight: Tensor<4>,
    window: Window,
    epilogue: TensorEpilogue<2>,
) -> Tensor<2> {
    check_levels(&x.dims(), levels);
    let conv = conv_of(&x.dims(), levels.to_vec(), weight.dims(), window);
    let pixels = conv.outputs().iter().map(|level| level.pixels()).sum();
    let shape = [pixels, weight.dims()[3]];
    epilogue.check(shape);
    if is_flex(&x.device()) {
        conv_on_flex(x, weight, conv, shape, epilogue)
    } else {
        portable::conv2d_pyramid(x, levels, weight, window, epilogue)
    }
}

fn conv_on_flex<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<4>,
    conv: Conv2d,
    shape: [usize; D],
    epilogue: TensorEpilogue<D>,
) -> Tensor<D> {
    let TensorEpilogue { scale, shift, residual, relu } = epilogue;
    let device = x.device().inner();
    let absent = || Tensor::<1>::empty([0], &device).into_dispatch();
    Tensor::from_dispatch(Dispatch::convolve(
        x.into_dispatch(),
        weight.into_dispatch(),
        scale.map_or_else(absent, Tensor::into_dispatch),
        shift.map_or_else(absent, Tensor::into_dispatch),
        residual.map_or_else(absent, Tensor::into_dispatch),
        conv,
        shape.to_vec(),
        relu,
    ))
}

/// `x [N, H, W, C]` → `[N, H', W', C]`.
pub fn max_pool2d(x: Tensor<4>, window: Window) -> Tensor<4> {
    let (grid, channels) = grid_of(x.dims());
    fitting(MaxPool2d::new(grid, channels, window));
    if is_flex(&x.device()) {
        Tensor::from_dispatch(Dispatch::max_pool(x.into_dispatch(), window))
    } else {
        portable::max_pool2d(x, window)
    }
}

/// `lateral [N, H, W, C]` plus `top [N, h, w, C]` enlarged to it, each pixel from the nearest one
/// above and to the left, as PyTorch's `interpolate(mode="nearest")`.
pub fn upsample_add(top: Tensor<4>, lateral: Tensor<4>) -> Tensor<4> {
    let ((coarse, top_channels), (fine, channels)) = (grid_of(top.dims()), grid_of(lateral.dims()));
    check(top_channels == channels, ("top", &top.dims()), ("lateral", &lateral.dims()));
    fitting(UpsampleAdd::new(coarse, fine, channels));
    if is_flex(&lateral.device()) {
        Tensor::from_dispatch(Dispatch::upsample_add(top.into_dispatch(), lateral.into_dispatch()))
    } else {
        portable::upsample_add(top, lateral)
    }
}

/// `x [N, H, W, C]` → `[regions, height, width, C]`.
pub fn roi_align(x: Tensor<4>, regions: Vec<Region>, align: RoiAlign) -> Tensor<4> {
    let [batch, _, _, channels] = x.dims();
    for (what, size) in [("channels", channels), ("height", align.height), ("width", align.width)] {
        assert!(size > 0, "{what} must not be 0");
    }
    for (row, Region { image, .. }) in regions.iter().enumerate() {
        assert!(*image < batch, "region {row} is of image {image}, outside x of shape {:?}", x.dims());
    }
    if is_flex(&x.device()) {
        Tensor::from_dispatch(Dispatch::roi_align(x.into_dispatch(), regions, align))
    } else {
        portable::roi_align(x, &regions, align)
    }
}

/// The sum of sigmoid focal losses, `[1]`: `logits [rows, classes]`; `labels [rows]` is a row's class,
/// or −1 for background; `weights [rows]` multiply the rows' losses, and 0 leaves a row out.
pub fn focal_loss(logits: Tensor<2>, labels: Vec<i32>, weights: Vec<f32>, focal: FocalLoss) -> Tensor<1> {
    let [rows, classes] = logits.dims();
    assert!(classes > 0, "classes must not be 0");
    check(labels.len() == rows, ("labels", &[labels.len()]), ("logits", &logits.dims()));
    check(weights.len() == rows, ("weights", &[weights.len()]), ("logits", &logits.dims()));
    for (row, &label) in labels.iter().enumerate() {
        let fits = label == -1 || usize::try_from(label).is_ok_and(|class| class < classes);
        assert!(fits, "the label of row {row} is {label}, neither −1 nor one of {classes} classes");
    }
    if is_flex(&logits.device()) {
        Tensor::from_dispatch(Dispatch::focal_loss(logits.into_dispatch(), labels, weights, focal))
    } else {
        portable::focal_loss(logits, &labels, &weights, focal)
    }
}

/// `x [.., C]`, all levels of a pyramid or, with one level, one map, normalized to zero mean and unit
/// variance in each image of each level and each group of `C / groups` channels; then by channels
/// `relu(weight · x + bias)`, the ReLU if asked for.
pub fn group_norm<const D: usize>(
    x: Tensor<D>,
    levels: &[Grid],
    groups: usize,
    weight: Tensor<1>,
    bias: Tensor<1>,
    epsilon: f32,
    relu: bool,
) -> Tensor<D> {
    check_levels(&x.dims(), levels);
    let images: Vec<_> =
        levels.iter().flat_map(|level| vec![level.height * level.width; level.batch]).collect();
    let normalize = norm_of(&x, &images, groups, &weight, &bias, epsilon);
    if is_flex(&x.device()) {
        norm_on_flex(x, weight, bias, None, normalize, relu).0
    } else {
        portable::group_norm(x, levels, groups, weight, bias, epsilon, relu)
    }
}

/// Of each channel, over all pixels of a batch. Plain, not tracked, for a running average to take up.
#[derive(Clone, Debug)]
pub struct BatchStatistics {
    /// `[C]`
    pub mean: Tensor<1>,
    /// `[C]`; the mean square deviation, not corrected for its bias.
    pub variance: Tensor<1>,
}

/// `x [N, H, W, C]` normalized to zero mean and unit variance in each channel, as in training; then by
/// channels `relu(weight · x + bias + residual)`, the ReLU if asked for. With it, what it was normalized
/// by.
///
/// In inference a batch norm is a scale and a shift, which belong into the [`TensorEpilogue`] of the
/// convolution before it.
pub fn batch_norm(
    x: Tensor<4>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    epsilon: f32,
    residual: Option<Tensor<4>>,
    relu: bool,
) -> (Tensor<4>, BatchStatistics) {
    let (grid, channels) = grid_of(x.dims());
    let normalize = norm_of(&x, &[grid.pixels()], channels, &weight, &bias, epsilon);
    if let Some(residual) = &residual {
        check(residual.dims() == x.dims(), ("residual", &residual.dims()), ("x", &x.dims()));
    }
    if is_flex(&x.device()) {
        let (y, mean, variance) = norm_on_flex(x, weight, bias, residual, normalize, relu);
        (y, BatchStatistics { mean: mean.inner(), variance: variance.inner() })
    } else {
        portable::batch_norm(x, weight, bias, epsilon, residual, relu)
    }
}

/// The normalization of `x [.., C]` in segments of so many pixels.
fn norm_of<const D: usize>(
    x: &Tensor<D>,
    segments: &[usize],
    groups: usize,
    weight: &Tensor<1>,
    bias: &Tensor<1>,
    epsilon: f32,
) -> SegmentNorm {
    let channels = x.dims()[D - 1];
    for (name, values) in [("weight", weight), ("bias", bias)] {
        check(values.dims() == [channels], (name, &values.dims()), ("x", &x.dims()));
    }
    fitting(SegmentNorm::new(segments, channels, groups, epsilon))
}

/// The result, and mean and variance of each segment and group.
fn norm_on_flex<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    residual: Option<Tensor<D>>,
    normalize: SegmentNorm,
    relu: bool,
) -> (Tensor<D>, Tensor<1>, Tensor<1>) {
    let absent = Tensor::<1>::empty([0], &x.device().inner()).into_dispatch();
    let (y, mean, variance) = Dispatch::normalize(
        x.into_dispatch(),
        weight.into_dispatch(),
        bias.into_dispatch(),
        residual.map_or(absent, Tensor::into_dispatch),
        normalize,
        relu,
    );
    (Tensor::from_dispatch(y), Tensor::from_dispatch(mean), Tensor::from_dispatch(variance))
}

/// A loss `[1]` that was computed from the elements of `x` elsewhere, with its gradient by them.
pub fn known_gradient<const D: usize>(x: Tensor<D>, value: f32, gradient: Vec<f32>) -> Tensor<1> {
    let elements = x.dims().iter().product::<usize>();
    check(gradient.len() == elements, ("gradient", &[gradient.len()]), ("x", &x.dims()));
    if is_flex(&x.device()) {
        Tensor::from_dispatch(Dispatch::known_gradient(x.into_dispatch(), value, gradient))
    } else {
        portable::known_gradient(x, value, gradient)
    }
}

/// The elements of a tensor in row order.
pub fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().try_to_vec().expect("models compute in f32")
}

/// A parameter with its gradient and velocity, which starts at zero. Any shape, flattened: of a tensor
/// in row order that is a view. Tensors are plain, not tracked.
#[derive(Debug)]
pub struct Update {
    /// The parameter.
    pub parameter: Tensor<1>,
    /// Its gradient.
    pub gradient: Tensor<1>,
    /// Its velocity.
    pub velocity: Tensor<1>,
}

/// The length of all gradients together.
pub fn gradient_norm(updates: &[Update]) -> f64 {
    let squares = match updates.first() {
        Some(first) if is_flex(&first.gradient.device()) => flex::sum_of_squares(updates),
        _ => {
            let gradients: Vec<Vec<f32>> =
                updates.iter().map(|update| values(update.gradient.clone())).collect();
            lacuna_kernels::sum_of_squares(&gradients.iter().map(Vec::as_slice).collect::<Vec<_>>())
        }
    };
    squares.sqrt()
}

/// One step of SGD over all parameters at once: the new parameters and velocities, in the memory of
/// the old ones where nothing else holds it (take a `Param`'s tensor by `consume`, as `val` leaves
/// another holder behind), else in one copy.
pub fn sgd_step(updates: Vec<Update>, sgd: Sgd) -> Vec<(Tensor<1>, Tensor<1>)> {
    for Update { parameter, gradient, velocity } in &updates {
        let whole = parameter.dims();
        check(gradient.dims() == whole, ("gradient", &gradient.dims()), ("parameter", &whole));
        check(velocity.dims() == whole, ("velocity", &velocity.dims()), ("parameter", &whole));
    }
    match updates.first() {
        Some(first) if is_flex(&first.parameter.device()) => flex::sgd_step(updates, sgd),
        _ => updates.into_iter().map(|update| portable::sgd_step(update, sgd)).collect(),
    }
}

/// `momentum · average + (1 − momentum) · value` for all pairs `(average, value)`, flattened and plain
/// as those of [`sgd_step`]: the new averages, in the memory of the old ones where nothing else holds
/// it, else in one copy.
pub fn ema_step(pairs: Vec<(Tensor<1>, Tensor<1>)>, momentum: f32) -> Vec<Tensor<1>> {
    for (average, value) in &pairs {
        check(value.dims() == average.dims(), ("value", &value.dims()), ("average", &average.dims()));
    }
    match pairs.first() {
        Some((average, _)) if is_flex(&average.device()) => flex::ema_step(pairs, momentum),
        _ => pairs.into_iter().map(|(average, value)| portable::ema_step(average, value, momentum)).collect(),
    }
}
