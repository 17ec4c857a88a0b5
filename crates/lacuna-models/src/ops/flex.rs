//! The operations on Flex: our own kernels, forward and backward.
//!
//! Nothing is copied at the boundary: inputs are read where Flex keeps them, results become tensors
//! by handing over their memory, and a gradient that no one else holds is changed in place. For the
//! backward pass a convolution keeps its input only if its weight is trained, and its weight only if
//! its input is tracked; with a ReLU, its output, which the next layer keeps as its input anyway. A
//! normalization keeps its input, its statistics, and with a ReLU its output.

use burn::Tensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Flex, backend_extension};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_backend::{AutodiffBackend, DType, TensorMetadata};
use burn_flex::{FlexTensor, Layout};
use burn_std::{Bytes, Shape};
use lacuna_kernels::{
    Average, Conv2d, Epilogue, FocalLoss, Isa, MaxPool2d, MeanVariance, Region, RoiAlign, SegmentNorm, Sgd,
    SgdParameter, UpsampleAdd, Window, ema, relu_gradient,
};
use rayon::prelude::*;

use super::{Update, fitting, grid_of};

#[backend_extension(Flex, Autodiff)]
pub(super) trait Kernels: Backend {
    /// `scale`, `shift` and `residual` are absent if they have no elements: an extension's tensors
    /// cannot be optional.
    #[allow(clippy::too_many_arguments)]
    fn convolve(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        conv: Conv2d,
        shape: Vec<usize>,
        relu: bool,
    ) -> FloatTensor<Self>;
    fn max_pool(x: FloatTensor<Self>, window: Window) -> FloatTensor<Self>;
    fn upsample_add(top: FloatTensor<Self>, lateral: FloatTensor<Self>) -> FloatTensor<Self>;
    fn roi_align(x: FloatTensor<Self>, regions: Vec<Region>, align: RoiAlign) -> FloatTensor<Self>;
    fn focal_loss(
        logits: FloatTensor<Self>,
        labels: Vec<i32>,
        weights: Vec<f32>,
        focal: FocalLoss,
    ) -> FloatTensor<Self>;
    /// The result, and mean and variance of each segment and group. `residual` may be absent.
    fn normalize(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        normalize: SegmentNorm,
        relu: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
    fn known_gradient(x: FloatTensor<Self>, value: f32, gradient: Vec<f32>) -> FloatTensor<Self>;
}

/// A dense tensor in row order; a copy only if it is a view of another kind.
fn dense(x: FlexTensor) -> FlexTensor {
    if x.is_contiguous() { x } else { x.to_contiguous() }
}

/// The elements of a [`dense`] tensor, where they lie.
fn floats(x: &FlexTensor) -> &[f32] {
    x.as_slice().unwrap_or_else(|| panic!("a dense tensor of f32, not {:?} {:?}", x.dtype(), x.layout()))
}

/// The elements of a [`dense`] tensor, or `None` if there are none.
fn present(x: &FlexTensor) -> Option<&[f32]> {
    Some(floats(x)).filter(|x| !x.is_empty())
}

/// A tensor that takes over `values`.
fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(shape.into()), DType::F32)
}

/// A tensor whose storage is its elements in row order, and no one else's: itself if it is one, else
/// one copy.
fn owned(x: FlexTensor) -> FlexTensor {
    let x = dense(x);
    if x.is_unique() && x.bytes().len() == size_of_val(floats(&x)) {
        x
    } else {
        tensor(floats(&x).to_vec(), x.shape())
    }
}

fn dims<const D: usize>(x: &FlexTensor) -> [usize; D] {
    x.shape().dims()
}

impl Kernels for Flex {
    fn convolve(
        x: FlexTensor,
        weight: FlexTensor,
        scale: FlexTensor,
        shift: FlexTensor,
        residual: FlexTensor,
        conv: Conv2d,
        shape: Vec<usize>,
        relu: bool,
    ) -> FlexTensor {
        let [x, weight, scale, shift, residual] = [x, weight, scale, shift, residual].map(dense);
        let epilogue =
            Epilogue { scale: present(&scale), shift: present(&shift), residual: present(&residual), relu };
        tensor(fitting(conv.forward(Isa::best(), floats(&x), floats(&weight), &epilogue)), shape)
    }

    fn max_pool(x: FlexTensor, window: Window) -> FlexTensor {
        let (x, pool, shape) = pooling(x, window);
        tensor(fitting(pool.maxima(Isa::best(), floats(&x))), shape)
    }

    fn upsample_add(top: FlexTensor, lateral: FlexTensor) -> FlexTensor {
        let (top, lateral) = (dense(top), dense(lateral));
        let (top_grid, _) = grid_of(dims(&top));
        let (grid, channels) = grid_of(dims(&lateral));
        let upsample = fitting(UpsampleAdd::new(top_grid, grid, channels));
        tensor(fitting(upsample.forward(Isa::best(), floats(&top), floats(&lateral))), lateral.shape())
    }

    fn roi_align(x: FlexTensor, regions: Vec<Region>, align: RoiAlign) -> FlexTensor {
        let x = dense(x);
        let (grid, channels) = grid_of(dims(&x));
        let y = fitting(align.forward(Isa::best(), floats(&x), grid, channels, &regions));
        tensor(y, [regions.len(), align.height, align.width, channels])
    }

    fn focal_loss(logits: FlexTensor, labels: Vec<i32>, weights: Vec<f32>, focal: FocalLoss) -> FlexTensor {
        focal_loss(logits, &labels, &weights, focal).0
    }

    fn normalize(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        residual: FlexTensor,
        normalize: SegmentNorm,
        relu: bool,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let [x, weight, bias, residual] = [x, weight, bias, residual].map(dense);
        let (weight, bias, residual) = (floats(&weight), floats(&bias), present(&residual));
        let normalized = fitting(normalize.forward(Isa::best(), floats(&x), weight, bias, residual, relu));
        let MeanVariance { mean, variance } = normalized.statistics;
        let statistics = [mean.len()];
        (tensor(normalized.y, x.shape()), tensor(mean, statistics), tensor(variance, statistics))
    }

    fn known_gradient(_: FlexTensor, value: f32, _: Vec<f32>) -> FlexTensor {
        tensor(vec![value], [1])
    }
}

/// The image as the kernel reads it, the pooling of it, and the shape that gives.
fn pooling(x: FlexTensor, window: Window) -> (FlexTensor, MaxPool2d, [usize; 4]) {
    let x = dense(x);
    let (grid, channels) = grid_of(dims(&x));
    let pool = fitting(MaxPool2d::new(grid, channels, window));
    let output = pool.output();
    (x, pool, [output.batch, output.height, output.width, channels])
}

/// The loss, and its gradient, which costs little more.
fn focal_loss(
    logits: FlexTensor,
    labels: &[i32],
    weights: &[f32],
    focal: FocalLoss,
) -> (FlexTensor, Vec<f32>) {
    let logits = dense(logits);
    let [_, classes] = dims(&logits);
    let result = fitting(focal.forward(Isa::best(), floats(&logits), classes, labels, Some(weights)));
    (tensor(vec![result.loss], [1]), result.gradient)
}

impl<C: CheckpointStrategy> Kernels for Autodiff<Flex, C> {
    fn convolve(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        conv: Conv2d,
        shape: Vec<usize>,
        relu: bool,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), shift.node(), residual.node()];
        let tracked = (x.is_tracked(), weight.is_tracked());
        let prepared = ConvolveBackward.prepare::<C>(nodes).compute_bound().stateful();
        let run = |x: FlexTensor, weight: FlexTensor, scale: FlexTensor, conv: Conv2d| {
            Flex::convolve(
                x,
                weight,
                scale,
                shift.into_primitive(),
                residual.into_primitive(),
                conv,
                shape,
                relu,
            )
        };
        match prepared {
            OpsKind::Tracked(mut prepared) => {
                let kept_x = tracked.1.then(|| prepared.checkpoint(&x));
                let kept_weight = tracked.0.then(|| prepared.checkpoint(&weight));
                let (x, weight, scale) =
                    (x.into_primitive(), weight.into_primitive(), scale.into_primitive());
                let (x_shape, weight_shape) = (x.shape(), weight.shape());
                let y = run(x, weight, scale.clone(), conv.clone());
                let state = ConvolveState {
                    conv,
                    x: kept_x,
                    weight: kept_weight,
                    x_shape,
                    weight_shape,
                    y: relu.then(|| y.clone()),
                    scale,
                };
                prepared.finish(state, y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(run(
                x.into_primitive(),
                weight.into_primitive(),
                scale.into_primitive(),
                conv,
            )),
        }
    }

    fn max_pool(x: FloatTensor<Self>, window: Window) -> FloatTensor<Self> {
        match MaxPoolBackward.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let x = x.into_primitive();
                let shape = x.shape();
                let (x, pool, output) = pooling(x, window);
                let pooled = fitting(pool.forward(Isa::best(), floats(&x)));
                prepared.finish((pool, pooled.taps, shape), tensor(pooled.y, output))
            }
            OpsKind::UnTracked(prepared) => prepared.finish(Flex::max_pool(x.into_primitive(), window)),
        }
    }

    fn upsample_add(top: FloatTensor<Self>, lateral: FloatTensor<Self>) -> FloatTensor<Self> {
        match UpsampleAddBackward.prepare::<C>([top.node(), lateral.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let (top, lateral) = (top.into_primitive(), lateral.into_primitive());
                let shape = top.shape();
                prepared.finish(shape, Flex::upsample_add(top, lateral))
            }
            OpsKind::UnTracked(prepared) => {
                prepared.finish(Flex::upsample_add(top.into_primitive(), lateral.into_primitive()))
            }
        }
    }

    fn roi_align(x: FloatTensor<Self>, regions: Vec<Region>, align: RoiAlign) -> FloatTensor<Self> {
        match RoiAlignBackward.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let x = x.into_primitive();
                let shape = x.shape();
                let y = Flex::roi_align(x, regions.clone(), align);
                prepared.finish((align, regions, shape), y)
            }
            OpsKind::UnTracked(prepared) => {
                prepared.finish(Flex::roi_align(x.into_primitive(), regions, align))
            }
        }
    }

    fn focal_loss(
        logits: FloatTensor<Self>,
        labels: Vec<i32>,
        weights: Vec<f32>,
        focal: FocalLoss,
    ) -> FloatTensor<Self> {
        match KnownGradientBackward.prepare::<C>([logits.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let logits = logits.into_primitive();
                let shape = logits.shape();
                let (loss, gradient) = focal_loss(logits, &labels, &weights, focal);
                prepared.finish((gradient, shape), loss)
            }
            OpsKind::UnTracked(prepared) => {
                prepared.finish(Flex::focal_loss(logits.into_primitive(), labels, weights, focal))
            }
        }
    }

    fn normalize(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        normalize: SegmentNorm,
        relu: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let nodes = [x.node(), weight.node(), bias.node(), residual.node()];
        let run = |x: FlexTensor, weight: FlexTensor, normalize: SegmentNorm| {
            Flex::normalize(x, weight, bias.into_primitive(), residual.into_primitive(), normalize, relu)
        };
        let (y, mean, variance) = match NormalizeBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut prepared) => {
                let kept = [prepared.checkpoint(&x), prepared.checkpoint(&weight)];
                let (y, mean, variance) = run(x.into_primitive(), weight.into_primitive(), normalize.clone());
                let statistics =
                    MeanVariance { mean: floats(&mean).to_vec(), variance: floats(&variance).to_vec() };
                let [x, weight] = kept;
                let state = NormalizeState { normalize, x, weight, statistics, y: relu.then(|| y.clone()) };
                (prepared.finish(state, y), mean, variance)
            }
            OpsKind::UnTracked(prepared) => {
                let (y, mean, variance) = run(x.into_primitive(), weight.into_primitive(), normalize);
                (prepared.finish(y), mean, variance)
            }
        };
        (y, Self::from_inner(mean), Self::from_inner(variance))
    }

    fn known_gradient(x: FloatTensor<Self>, value: f32, gradient: Vec<f32>) -> FloatTensor<Self> {
        match KnownGradientBackward.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let shape = x.into_primitive().shape();
                prepared.finish((gradient, shape), tensor(vec![value], [1]))
            }
            OpsKind::UnTracked(prepared) => prepared.finish(tensor(vec![value], [1])),
        }
    }
}

#[derive(Debug)]
struct ConvolveBackward;

#[derive(Clone, Debug)]
struct ConvolveState {
    conv: Conv2d,
    x: Option<NodeId>,
    weight: Option<NodeId>,
    x_shape: Shape,
    weight_shape: Shape,
    /// With a ReLU, whose mask it is.
    y: Option<FlexTensor>,
    scale: FlexTensor,
}

impl Backward<Flex, 4> for ConvolveBackward {
    type State = ConvolveState;

    /// With `g = dy` where `y > 0`: `d residual = g`, `d shift = Σ g`, and from `scale · g` those of
    /// `x` and `weight`.
    fn backward(self, ops: Ops<Self::State, 4>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let [x_node, weight_node, shift_node, residual_node] = ops.parents;
        let ConvolveState { conv, x, weight, x_shape, weight_shape, y, scale } = ops.state;
        let scale = dense(scale);
        let dy = grads.consume::<Flex>(&ops.node);
        let shape = dy.shape();
        let channels = shape[shape.num_dims() - 1];

        let g = if y.is_some() || shift_node.is_some() {
            let y = y.map(dense);
            let mut g = owned(dy);
            let with_shift = shift_node.is_some();
            let y = y.as_ref().map(floats);
            let dshift = fitting(relu_gradient(Isa::best(), y, g.storage_mut(), channels, with_shift));
            if let (Some(node), Some(dshift)) = (shift_node, dshift) {
                grads.register::<Flex>(node.id, tensor(dshift, [channels]));
            }
            g
        } else {
            dense(dy)
        };
        let scale = present(&scale);
        if let (Some(node), Some(weight)) = (x_node, weight) {
            let weight = dense(checkpointer.retrieve_node_output(weight));
            let dx = fitting(conv.input_gradient(Isa::best(), floats(&g), floats(&weight), scale));
            grads.register::<Flex>(node.id, tensor(dx, x_shape));
        }
        if let (Some(node), Some(x)) = (weight_node, x) {
            let x = dense(checkpointer.retrieve_node_output(x));
            let dw = fitting(conv.weight_gradient(Isa::best(), floats(&x), floats(&g), scale));
            grads.register::<Flex>(node.id, tensor(dw, weight_shape));
        }
        if let Some(node) = residual_node {
            grads.register::<Flex>(node.id, g);
        }
    }
}

#[derive(Debug)]
struct MaxPoolBackward;

impl Backward<Flex, 1> for MaxPoolBackward {
    type State = (MaxPool2d, Vec<u8>, Shape);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = dense(grads.consume::<Flex>(&ops.node));
        let ([node], (pool, taps, shape)) = (ops.parents, ops.state);
        if let Some(node) = node {
            let dx = fitting(pool.gradient(Isa::best(), floats(&dy), &taps));
            grads.register::<Flex>(node.id, tensor(dx, shape));
        }
    }
}

#[derive(Debug)]
struct UpsampleAddBackward;

impl Backward<Flex, 2> for UpsampleAddBackward {
    /// The shape of the top.
    type State = Shape;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let [top_node, lateral_node] = ops.parents;
        let dy = dense(grads.consume::<Flex>(&ops.node));
        if let Some(node) = top_node {
            let (top, _) = grid_of(ops.state.dims());
            let (grid, channels) = grid_of(dims(&dy));
            let upsample = fitting(UpsampleAdd::new(top, grid, channels));
            let dtop = fitting(upsample.top_gradient(Isa::best(), floats(&dy)));
            grads.register::<Flex>(node.id, tensor(dtop, ops.state));
        }
        if let Some(node) = lateral_node {
            grads.register::<Flex>(node.id, dy);
        }
    }
}

#[derive(Debug)]
struct RoiAlignBackward;

impl Backward<Flex, 1> for RoiAlignBackward {
    type State = (RoiAlign, Vec<Region>, Shape);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = dense(grads.consume::<Flex>(&ops.node));
        let ([node], (align, regions, shape)) = (ops.parents, ops.state);
        if let Some(node) = node {
            let (grid, channels) = grid_of(shape.dims());
            let dx = fitting(align.gradient(Isa::best(), floats(&dy), grid, channels, &regions));
            grads.register::<Flex>(node.id, tensor(dx, shape));
        }
    }
}

#[derive(Debug)]
struct KnownGradientBackward;

impl Backward<Flex, 1> for KnownGradientBackward {
    /// The gradient of a loss, and its shape.
    type State = (Vec<f32>, Shape);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let factor = floats(&dense(grads.consume::<Flex>(&ops.node)))[0];
        let ([node], (mut gradient, shape)) = (ops.parents, ops.state);
        if let Some(node) = node {
            if factor != 1.0 {
                gradient.par_chunks_mut(1 << 14).for_each(|part| part.iter_mut().for_each(|g| *g *= factor));
            }
            grads.register::<Flex>(node.id, tensor(gradient, shape));
        }
    }
}

#[derive(Debug)]
struct NormalizeBackward;

#[derive(Clone, Debug)]
struct NormalizeState {
    normalize: SegmentNorm,
    x: NodeId,
    weight: NodeId,
    statistics: MeanVariance,
    /// With a ReLU, whose mask it is.
    y: Option<FlexTensor>,
}

impl Backward<Flex, 4> for NormalizeBackward {
    type State = NormalizeState;

    fn backward(self, ops: Ops<Self::State, 4>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let [x_node, weight_node, bias_node, residual_node] = ops.parents;
        let NormalizeState { normalize, x, weight, statistics, y } = ops.state;
        let [x, weight] = [x, weight].map(|kept| dense(checkpointer.retrieve_node_output(kept)));
        let y = y.map(dense);
        let mut dy = owned(grads.consume::<Flex>(&ops.node));
        let gradients = fitting(normalize.gradients(
            Isa::best(),
            floats(&x),
            &statistics,
            floats(&weight),
            y.as_ref().map(floats),
            dy.storage_mut(),
            x_node.is_some(),
        ));
        if let (Some(node), Some(dx)) = (x_node, gradients.x) {
            grads.register::<Flex>(node.id, tensor(dx, x.shape()));
        }
        for (node, gradient) in [(weight_node, gradients.weight), (bias_node, gradients.bias)] {
            if let Some(node) = node {
                grads.register::<Flex>(node.id, tensor(gradient, weight.shape()));
            }
        }
        if let Some(node) = residual_node {
            grads.register::<Flex>(node.id, dy);
        }
    }
}

/// The Flex tensor of a plain tensor.
fn plain(x: Tensor<1>) -> FlexTensor {
    x.try_into_primitive::<Flex>().unwrap_or_else(|error| panic!("a plain Flex tensor: {error:?}"))
}

pub(super) fn sum_of_squares(updates: &[Update]) -> f64 {
    let gradients: Vec<_> = updates.iter().map(|update| dense(plain(update.gradient.clone()))).collect();
    lacuna_kernels::sum_of_squares(&gradients.iter().map(floats).collect::<Vec<_>>())
}

pub(super) fn sgd_step(updates: Vec<Update>, sgd: Sgd) -> Vec<(Tensor<1>, Tensor<1>)> {
    let mut all: Vec<_> = updates
        .into_iter()
        .map(|Update { parameter, gradient, velocity }| {
            (owned(plain(parameter)), dense(plain(gradient)), owned(plain(velocity)))
        })
        .collect();
    let mut slots: Vec<_> = all
        .iter_mut()
        .map(|(parameter, gradient, velocity)| SgdParameter {
            parameter: parameter.storage_mut(),
            gradient: floats(gradient),
            velocity: velocity.storage_mut(),
        })
        .collect();
    fitting(sgd.step(Isa::best(), &mut slots));
    all.into_iter()
        .map(|(parameter, _, velocity)| [parameter, velocity].map(Tensor::from_primitive::<Flex>).into())
        .collect()
}

pub(super) fn ema_step(pairs: Vec<(Tensor<1>, Tensor<1>)>, momentum: f32) -> Vec<Tensor<1>> {
    let mut all: Vec<_> =
        pairs.into_iter().map(|(average, value)| (owned(plain(average)), dense(plain(value)))).collect();
    let mut slots: Vec<_> = all
        .iter_mut()
        .map(|(average, value)| Average { average: average.storage_mut(), value: floats(value) })
        .collect();
    fitting(ema(Isa::best(), momentum, &mut slots));
    all.into_iter().map(|(average, _)| Tensor::from_primitive::<Flex>(average)).collect()
}
