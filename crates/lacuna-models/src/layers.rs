//! Convolutions and normalizations as Burn modules. Their fields have PyTorch's names, so that the path
//! of a parameter is its name in a checkpoint.

use burn::Tensor;
use burn::module::{Module, Param, ParamId, RunningState};
use burn::tensor::Device;
use lacuna_random::Rng;
use serde::{Deserialize, Serialize};

use crate::ops::{self, BatchStatistics, Grid, TensorEpilogue, Window};

/// Where a new module's numbers come from.
pub(crate) struct Init<'a> {
    pub(crate) device: &'a Device,
    /// `None` draws nothing and takes no memory: a module has shapes only, until a checkpoint fills it.
    pub(crate) rng: Option<&'a mut Rng>,
}

/// How a weight is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Draw {
    Normal {
        std: f64,
    },
    /// In `[-bound, bound)`.
    Uniform {
        bound: f64,
    },
}

impl Draw {
    /// He's for the backbone: `std = √(2 / (k²·outputs))`, as torchvision's ResNet.
    fn he(window: Window, outputs: usize) -> Self {
        Self::Normal { std: (2.0 / (window.kernel * window.kernel * outputs) as f64).sqrt() }
    }

    /// Glorot's, over the inputs alone: `bound = √(3 / (k²·inputs))`, as torchvision's FPN.
    pub(crate) fn glorot(window: Window, inputs: usize) -> Self {
        Self::Uniform { bound: (3.0 / (window.kernel * window.kernel * inputs) as f64).sqrt() }
    }

    /// PyTorch's default of a linear layer: `bound = 1 / √inputs`.
    pub(crate) fn linear(inputs: usize) -> Self {
        Self::Uniform { bound: 1.0 / (inputs as f64).sqrt() }
    }
}

impl Init<'_> {
    pub(crate) fn weight<const D: usize>(&mut self, shape: [usize; D], draw: Draw) -> Param<Tensor<D>> {
        let Some(rng) = &mut self.rng else { return self.constant(shape, 0.0) };
        let len: usize = shape.iter().product();
        let mut values = Vec::with_capacity(len + 1);
        while values.len() < len {
            let (first, second) = match draw {
                Draw::Normal { std } => {
                    let (first, second) = rng.normals();
                    (std * first, std * second)
                }
                Draw::Uniform { bound } => (rng.range(-bound, bound), rng.range(-bound, bound)),
            };
            values.extend([first as f32, second as f32]);
        }
        values.truncate(len);
        Param::from_data(burn::tensor::TensorData::new(values, shape), self.device)
    }

    pub(crate) fn constant<const D: usize>(&self, shape: [usize; D], value: f32) -> Param<Tensor<D>> {
        if self.rng.is_none() {
            let full = move |device: &Device, grad| Tensor::full(shape, value, device).set_require_grad(grad);
            return Param::uninitialized(ParamId::new(), full, self.device.clone(), true, shape.into());
        }
        Param::from_tensor(Tensor::full(shape, value, self.device))
    }
}

/// A convolution, `weight [k, k, C, K]` (PyTorch's is `[K, C, k, k]`).
#[derive(Module, Debug)]
pub(crate) struct Conv {
    weight: Param<Tensor<4>>,
    bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    window: Window,
}

impl Conv {
    /// One without a bias, of the backbone: a norm follows.
    pub(crate) fn backbone(inputs: usize, outputs: usize, window: Window, init: &mut Init) -> Self {
        let shape = [window.kernel, window.kernel, inputs, outputs];
        Self { weight: init.weight(shape, Draw::he(window, outputs)), bias: None, window }
    }

    /// One with a bias of 0.
    pub(crate) fn with_bias(
        inputs: usize,
        outputs: usize,
        window: Window,
        draw: Draw,
        init: &mut Init,
    ) -> Self {
        let shape = [window.kernel, window.kernel, inputs, outputs];
        let weight = init.weight(shape, draw);
        Self { weight, bias: Some(init.constant([outputs], 0.0)), window }
    }

    /// With this bias in place of 0.
    #[must_use]
    pub(crate) fn biased(mut self, bias: f32, init: &Init) -> Self {
        let [.., outputs] = self.weight.lazy_shape().dims::<4>();
        self.bias = Some(init.constant([outputs], bias));
        self
    }

    /// `x [N, H, W, C]` → `[N, H', W', K]`.
    pub(crate) fn forward(&self, x: Tensor<4>, relu: bool) -> Tensor<4> {
        ops::conv2d(x, self.weight.val(), self.window, self.epilogue(relu))
    }

    /// `rows [Σ N·H·W, C]` → `[Σ N·H·W, K]`; the window keeps the size of a grid.
    pub(crate) fn over_pyramid(&self, rows: Tensor<2>, levels: &[Grid], relu: bool) -> Tensor<2> {
        ops::conv2d_pyramid(rows, levels, self.weight.val(), self.window, self.epilogue(relu))
    }

    fn epilogue<const D: usize>(&self, relu: bool) -> TensorEpilogue<D> {
        TensorEpilogue { shift: self.bias.as_ref().map(Param::val), relu, ..TensorEpilogue::default() }
    }
}

/// A fully connected layer, `weight [inputs, outputs]` (PyTorch's is `[outputs, inputs]`).
#[derive(Module, Debug)]
pub(crate) struct Linear {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

impl Linear {
    pub(crate) fn new(inputs: usize, outputs: usize, init: &mut Init) -> Self {
        let draw = Draw::linear(inputs);
        Self { weight: init.weight([inputs, outputs], draw), bias: init.weight([outputs], draw) }
    }

    /// `x [rows, inputs]` → `[rows, outputs]`.
    pub(crate) fn forward(&self, x: Tensor<2>, relu: bool) -> Tensor<2> {
        let [rows, _] = x.dims();
        let [inputs, outputs] = self.weight.dims();
        let weight = self.weight.val().reshape([1, 1, inputs, outputs]);
        let epilogue = TensorEpilogue { shift: Some(self.bias.val()), relu, ..TensorEpilogue::default() };
        ops::conv2d_pyramid(x, &[Grid::new(rows, 1, 1)], weight, Window::new(1, 1, 0), epilogue)
    }
}

/// What the backbone's norms are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormKind {
    /// Batch norm with its statistics and its affine map fixed, fused into the convolution.
    #[default]
    Frozen,
    /// Batch norm: statistics of the batch in training, running ones otherwise.
    Batch,
    /// Group norm of 32 groups, for training from scratch.
    Group,
}

/// Whether a pass is for learning. Only batch norm asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Training,
    Inference,
}

/// What is added to a variance, in PyTorch by default.
pub(crate) const EPSILON: f64 = 1e-5;
/// The share of a batch in the running statistics.
const MOMENTUM: f64 = 0.1;
pub(crate) const GROUPS: usize = 32;

#[derive(Module, Debug)]
pub(crate) enum Norm {
    Frozen(FrozenNorm),
    Batch(BatchNorm),
    Group(GroupNorm),
}

impl Norm {
    pub(crate) fn new(kind: NormKind, epsilon: f64, channels: usize, init: &Init) -> Self {
        match kind {
            NormKind::Frozen => Self::Frozen(FrozenNorm::new(epsilon, channels, init)),
            NormKind::Batch => Self::Batch(BatchNorm::new(epsilon, channels, init)),
            NormKind::Group => Self::Group(GroupNorm::new(epsilon, channels, init)),
        }
    }

    /// `relu(norm(conv(x)) + residual)`, without what is absent.
    pub(crate) fn after(
        &self,
        conv: &Conv,
        x: Tensor<4>,
        residual: Option<Tensor<4>>,
        relu: bool,
        mode: Mode,
    ) -> Tensor<4> {
        let fused = |(scale, shift): (Tensor<1>, Tensor<1>), residual| {
            let epilogue = TensorEpilogue { scale: Some(scale), shift: Some(shift), residual, relu };
            ops::conv2d(x.clone(), conv.weight.val(), conv.window, epilogue)
        };
        match self {
            Self::Frozen(norm) => fused(norm.affine(), residual),
            Self::Batch(norm) => match mode {
                Mode::Inference => fused(norm.affine(), residual),
                Mode::Training => norm.forward(conv.forward(x, false), residual, relu),
            },
            Self::Group(norm) => {
                let x = conv.forward(x, false);
                let [batch, height, width, _] = x.dims();
                let levels = [Grid::new(batch, height, width)];
                match residual {
                    None => norm.forward(x, &levels, relu),
                    Some(residual) => {
                        let y = norm.forward(x, &levels, false) + residual;
                        if relu { burn::tensor::activation::relu(y) } else { y }
                    }
                }
            }
        }
    }
}

/// `y = weight·(x − mean) / √(variance + ε) + bias` as `scale·x + shift`.
fn affine(
    weight: &Param<Tensor<1>>,
    bias: &Param<Tensor<1>>,
    mean: Tensor<1>,
    variance: Tensor<1>,
    epsilon: f64,
) -> (Tensor<1>, Tensor<1>) {
    let scale = weight.val() / (variance + epsilon).sqrt();
    let shift = bias.val() - mean * scale.clone();
    (scale, shift)
}

#[derive(Module, Debug)]
pub(crate) struct FrozenNorm {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
    running_mean: Param<Tensor<1>>,
    running_var: Param<Tensor<1>>,
    #[module(skip)]
    epsilon: f64,
}

impl FrozenNorm {
    fn new(epsilon: f64, channels: usize, init: &Init) -> Self {
        let constant = |value| init.constant([channels], value).set_require_grad(false);
        Self {
            weight: constant(1.0),
            bias: constant(0.0),
            running_mean: constant(0.0),
            running_var: constant(1.0),
            epsilon,
        }
    }

    fn affine(&self) -> (Tensor<1>, Tensor<1>) {
        affine(&self.weight, &self.bias, self.running_mean.val(), self.running_var.val(), self.epsilon)
    }
}

#[derive(Module, Debug)]
pub(crate) struct BatchNorm {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
    running_mean: RunningState<Tensor<1>>,
    running_var: RunningState<Tensor<1>>,
    #[module(skip)]
    epsilon: f64,
}

impl BatchNorm {
    fn new(epsilon: f64, channels: usize, init: &Init) -> Self {
        Self {
            weight: init.constant([channels], 1.0),
            bias: init.constant([channels], 0.0),
            running_mean: RunningState::new(Tensor::zeros([channels], init.device)),
            running_var: RunningState::new(Tensor::ones([channels], init.device)),
            epsilon,
        }
    }

    fn affine(&self) -> (Tensor<1>, Tensor<1>) {
        let (mean, variance) = (self.running_mean.value_sync(), self.running_var.value_sync());
        affine(&self.weight, &self.bias, mean, variance, self.epsilon)
    }

    fn forward(&self, x: Tensor<4>, residual: Option<Tensor<4>>, relu: bool) -> Tensor<4> {
        let [batch, height, width, _] = x.dims();
        let samples = (batch * height * width) as f64;
        let (y, BatchStatistics { mean, variance }) =
            ops::batch_norm(x, self.weight.val(), self.bias.val(), self.epsilon as f32, residual, relu);
        // PyTorch's: the running variance is the unbiased one.
        let unbiased = variance * (samples / (samples - 1.0).max(1.0));
        for (running, of_batch) in [(&self.running_mean, mean), (&self.running_var, unbiased)] {
            let old = running.value_sync();
            let of_batch = if old.is_autodiff() { Tensor::from_inner(of_batch) } else { of_batch };
            running.update(old * (1.0 - MOMENTUM) + of_batch * MOMENTUM);
            // Visitors and mappers see only what is settled.
            running.value_sync();
        }
        y
    }
}

#[derive(Module, Debug)]
pub(crate) struct GroupNorm {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
    #[module(skip)]
    epsilon: f64,
}

impl GroupNorm {
    pub(crate) fn new(epsilon: f64, channels: usize, init: &Init) -> Self {
        Self { weight: init.constant([channels], 1.0), bias: init.constant([channels], 0.0), epsilon }
    }

    /// Each image of each level by itself.
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>, levels: &[Grid], relu: bool) -> Tensor<D> {
        let (weight, bias) = (self.weight.val(), self.bias.val());
        ops::group_norm(x, levels, GROUPS, weight, bias, self.epsilon as f32, relu)
    }
}
