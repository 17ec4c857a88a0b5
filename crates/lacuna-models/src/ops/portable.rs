//! The same operations in terms of Burn's own, for backends other than Flex.
//!
//! Burn's convolutions take `[N, C, H, W]`; the permutations here are views on backends with strides.

use burn::Tensor;
use burn::tensor::activation::{log_sigmoid, relu, sigmoid};
use burn::tensor::module;
use burn::tensor::ops::{ConvOptions, InterpolateMode, InterpolateOptions, MaxPoolOptions};
use burn::tensor::{Bool, Int, TensorData};
use lacuna_kernels::{FocalLoss, Grid, Region, RoiAlign, Sgd, Window};

use super::{BatchStatistics, TensorEpilogue, Update, grid_of};

fn to_nchw(x: Tensor<4>) -> Tensor<4> {
    x.permute([0, 3, 1, 2])
}

fn to_nhwc(x: Tensor<4>) -> Tensor<4> {
    x.permute([0, 2, 3, 1])
}

fn conv_options(window: Window) -> ConvOptions<2> {
    let Window { stride, padding, dilation, .. } = window;
    ConvOptions::new([stride; 2], [padding; 2], [dilation; 2], 1)
}

/// A number for each channel, the last of `D` dimensions.
fn per_channel<const D: usize>(values: Tensor<1>) -> Tensor<D> {
    let mut shape = [1; D];
    shape[D - 1] = values.dims()[0];
    values.reshape(shape)
}

/// `y` with its epilogue; the channels are the last of `D` dimensions.
fn finish<const D: usize>(mut y: Tensor<D>, epilogue: TensorEpilogue<D>) -> Tensor<D> {
    if let Some(scale) = epilogue.scale {
        y = y * per_channel(scale.detach());
    }
    if let Some(shift) = epilogue.shift {
        y = y + per_channel(shift);
    }
    if let Some(residual) = epilogue.residual {
        y = y + residual;
    }
    if epilogue.relu { relu(y) } else { y }
}

pub(super) fn conv2d(
    x: Tensor<4>,
    weight: Tensor<4>,
    window: Window,
    epilogue: TensorEpilogue<4>,
) -> Tensor<4> {
    let weight = weight.permute([3, 2, 0, 1]); // [K, C, kernel, kernel]
    let y = module::conv2d(to_nchw(x), weight, None, conv_options(window));
    finish(to_nhwc(y), epilogue)
}

pub(super) fn conv2d_pyramid(
    x: Tensor<2>,
    levels: &[Grid],
    weight: Tensor<4>,
    window: Window,
    epilogue: TensorEpilogue<2>,
) -> Tensor<2> {
    let channels = x.dims()[1];
    let mut first = 0;
    let outputs = levels.iter().map(|level| {
        let pixels = level.pixels();
        let image = x.clone().narrow(0, first, pixels);
        first += pixels;
        let image = image.reshape([level.batch, level.height, level.width, channels]);
        let y = conv2d(image, weight.clone(), window, TensorEpilogue::default());
        let [batch, height, width, out_channels] = y.dims();
        y.reshape([batch * height * width, out_channels])
    });
    finish(Tensor::cat(outputs.collect(), 0), epilogue)
}

pub(super) fn max_pool2d(x: Tensor<4>, window: Window) -> Tensor<4> {
    let Window { kernel, stride, padding, dilation } = window;
    let options = MaxPoolOptions {
        kernel_size: [kernel; 2],
        stride: [stride; 2],
        padding: [(padding, padding); 2],
        dilation: [dilation; 2],
        ceil_mode: false,
    };
    to_nhwc(module::max_pool2d(to_nchw(x), options))
}

pub(super) fn upsample_add(top: Tensor<4>, lateral: Tensor<4>) -> Tensor<4> {
    let [_, height, width, _] = lateral.dims();
    let options = InterpolateOptions {
        output_size: Some([height, width]),
        ..InterpolateOptions::new(InterpolateMode::Nearest)
    };
    lateral + to_nhwc(module::interpolate(to_nchw(top), options))
}

/// As a weighted sum of gathered pixels, every cell with as many as the fullest one has. What fills up
/// the others is masked, not weighted by 0, which would let a pixel that is not finite through.
pub(super) fn roi_align(x: Tensor<4>, regions: &[Region], align: RoiAlign) -> Tensor<4> {
    let (grid, channels) = grid_of(x.dims());
    let device = x.device();
    let shape = [regions.len(), align.height, align.width, channels];
    if regions.is_empty() || grid.pixels() == 0 {
        return Tensor::zeros(shape, &device);
    }
    // A region that is not finite has no pixels; its cells become NaN.
    let mut not_finite = Vec::new();
    let mut cells: Vec<Vec<(usize, f32)>> = Vec::new();
    for region in regions {
        let first = region.image * grid.height * grid.width;
        let weights = align.weights(region, grid);
        not_finite.push(weights.is_none());
        let weights = weights.unwrap_or_else(|| vec![Vec::new(); align.height * align.width]);
        cells.extend(
            weights
                .into_iter()
                .map(|cell| cell.into_iter().map(|(pixel, weight)| (first + pixel, weight)).collect()),
        );
    }
    let most = cells.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let (mut pixels, mut weights, mut filler) = (Vec::new(), Vec::new(), Vec::new());
    for cell in &cells {
        for at in 0..most {
            let (pixel, weight) = cell.get(at).copied().unwrap_or((0, 0.0));
            pixels.push(pixel as i32);
            weights.push(weight);
            filler.push(at >= cell.len());
        }
    }
    let count = pixels.len();
    let pixels = Tensor::<1, Int>::from_data(TensorData::new(pixels, [count]), &device);
    let weights = Tensor::<2>::from_data(TensorData::new(weights, [count, 1]), &device);
    let filler = Tensor::<2, Bool>::from_data(TensorData::new(filler, [count, 1]), &device);
    let gathered = x.reshape([grid.pixels(), channels]).select(0, pixels) * weights; // [cells · most, C]
    let gathered = gathered.mask_fill(filler.expand([count, channels]), 0.0);
    let y = gathered.reshape([cells.len(), most, channels]).sum_dim(1).reshape(shape);
    let not_finite =
        Tensor::<4, Bool>::from_data(TensorData::new(not_finite, [regions.len(), 1, 1, 1]), &device);
    y.mask_fill(not_finite.expand(shape), f32::NAN)
}

/// `−α_t · (1 − p_t)^γ · ln p_t` with `ln p_t` the log-sigmoid of the margin.
pub(super) fn focal_loss(logits: Tensor<2>, labels: &[i32], weights: &[f32], focal: FocalLoss) -> Tensor<1> {
    let [rows, classes] = logits.dims();
    let device = logits.device();
    // +1 at the labeled class, −1 elsewhere; α_t times the row's weight likewise.
    let mut signs = vec![-1.0f32; rows * classes];
    let mut factors: Vec<f32> = weights
        .iter()
        .flat_map(|weight| std::iter::repeat_n(weight * (1.0 - focal.alpha), classes))
        .collect();
    for (row, &label) in labels.iter().enumerate() {
        if let Ok(class) = usize::try_from(label) {
            signs[row * classes + class] = 1.0;
            factors[row * classes + class] = weights[row] * focal.alpha;
        }
    }
    let constant =
        |values: Vec<f32>| Tensor::<2>::from_data(TensorData::new(values, [rows, classes]), &device);
    // Masked, because 0 times a loss that is not finite is not 0.
    let skipped: Vec<bool> = weights.iter().map(|&weight| weight == 0.0).collect();
    let skipped = Tensor::<2, Bool>::from_data(TensorData::new(skipped, [rows, 1]), &device);
    let margin = (logits * constant(signs)).mask_fill(skipped.expand([rows, classes]), 0.0);
    let miss = sigmoid(margin.clone().neg()); // 1 − p_t
    (constant(factors) * miss.powf_scalar(focal.gamma) * log_sigmoid(margin)).sum().neg()
}

/// `x [segments, rows, groups, channels of a group]` with zero mean and unit variance in each segment and
/// group; and both, `[segments, 1, groups, 1]`.
fn normalized(x: Tensor<4>, epsilon: f32) -> (Tensor<4>, Tensor<4>, Tensor<4>) {
    let mean = x.clone().mean_dim(1).mean_dim(3);
    let x = x - mean.clone();
    let variance = (x.clone() * x.clone()).mean_dim(1).mean_dim(3);
    (x / (variance.clone() + epsilon).sqrt(), mean, variance)
}

pub(super) fn group_norm<const D: usize>(
    x: Tensor<D>,
    levels: &[Grid],
    groups: usize,
    weight: Tensor<1>,
    bias: Tensor<1>,
    epsilon: f32,
    relu: bool,
) -> Tensor<D> {
    let shape = x.dims();
    let channels = shape[D - 1];
    let rows = x.clone().reshape([shape[..D - 1].iter().product(), channels]);
    let mut first = 0;
    let mut images = Vec::new();
    for level in levels.iter().filter(|level| level.pixels() > 0) {
        let pixels = level.pixels();
        let image = rows.clone().narrow(0, first, pixels);
        first += pixels;
        let image = image.reshape([level.batch, level.height * level.width, groups, channels / groups]);
        images.push(normalized(image, epsilon).0.reshape([pixels, channels]));
    }
    let y = if images.is_empty() { x } else { Tensor::cat(images, 0).reshape(shape) };
    let epilogue = TensorEpilogue { shift: Some(bias), relu, ..TensorEpilogue::default() };
    finish(y * per_channel(weight), epilogue)
}

pub(super) fn batch_norm(
    x: Tensor<4>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    epsilon: f32,
    residual: Option<Tensor<4>>,
    relu: bool,
) -> (Tensor<4>, BatchStatistics) {
    let (grid, channels) = grid_of(x.dims());
    let shape = x.dims();
    let (y, mean, variance) = normalized(x.reshape([1, grid.pixels(), channels, 1]), epsilon);
    let [mean, variance] = [mean, variance].map(|of| of.inner().reshape([channels]));
    let epilogue = TensorEpilogue { shift: Some(bias), residual, relu, ..TensorEpilogue::default() };
    (finish(y.reshape(shape) * per_channel(weight), epilogue), BatchStatistics { mean, variance })
}

/// `x·gradient`, moved to the value.
pub(super) fn known_gradient<const D: usize>(x: Tensor<D>, value: f32, gradient: Vec<f32>) -> Tensor<1> {
    let device = x.device();
    let gradient = Tensor::from_data(TensorData::new(gradient, x.dims()), &device);
    let product = (x * gradient).sum();
    product.clone() - product.detach() + value
}

pub(super) fn sgd_step(update: Update, sgd: Sgd) -> (Tensor<1>, Tensor<1>) {
    let Update { parameter, gradient, velocity } = update;
    let decayed = gradient + parameter.clone() * sgd.weight_decay;
    let velocity = velocity * sgd.momentum + decayed;
    (parameter - velocity.clone() * sgd.learning_rate, velocity)
}

pub(super) fn ema_step(average: Tensor<1>, value: Tensor<1>, momentum: f32) -> Tensor<1> {
    average * momentum + value * (1.0 - momentum)
}
