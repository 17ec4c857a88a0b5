//! ResNet (He et al., 2016) without its classifier.

use burn::Tensor;
use burn::module::Module;
use serde::{Deserialize, Serialize};

use crate::detector::{DetectorConfigError, require};
use crate::layers::{Conv, EPSILON, GROUPS, Init, Mode, Norm, NormKind};
use crate::ops::{self, Window};

/// The number of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Depth {
    /// One block a stage: not in the paper, for CPUs and short training.
    ResNet10,
    /// Two blocks a stage.
    ResNet18,
    /// 3, 4, 6 and 3 blocks.
    ResNet34,
    /// 3, 4, 6 and 3 bottlenecks.
    ResNet50,
    /// 3, 4, 23 and 3 bottlenecks.
    ResNet101,
}

impl Depth {
    /// All depths, the shallowest first.
    pub const ALL: [Self; 5] =
        [Self::ResNet10, Self::ResNet18, Self::ResNet34, Self::ResNet50, Self::ResNet101];

    /// Blocks per stage.
    fn blocks(self) -> [usize; 4] {
        match self {
            Self::ResNet10 => [1, 1, 1, 1],
            Self::ResNet18 => [2, 2, 2, 2],
            Self::ResNet34 | Self::ResNet50 => [3, 4, 6, 3],
            Self::ResNet101 => [3, 4, 23, 3],
        }
    }

    /// Three convolutions a block, the last one four times as wide.
    fn has_bottlenecks(self) -> bool {
        matches!(self, Self::ResNet50 | Self::ResNet101)
    }
}

/// Where a bottleneck that halves the size has its stride.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// On the 3×3 convolution.
    #[default]
    Pytorch,
    /// On the first 1×1 convolution, as in the original.
    Caffe,
}

/// The shape of a ResNet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNetConfig {
    /// The number of layers.
    pub depth: Depth,
    /// The channels of the stem and of the first stage's 3×3 convolutions, of which every stage has twice as
    /// many as the one before. 64 is the paper's; fewer make a network for small images and short training.
    #[serde(default = "default_width")]
    pub width: usize,
    /// Where bottlenecks have their stride.
    #[serde(default)]
    pub style: Style,
    /// The kind of norm.
    #[serde(default)]
    pub norm: NormKind,
    /// What the norms add to a variance.
    #[serde(default = "default_norm_epsilon")]
    pub norm_epsilon: f64,
    /// How many stages are not trained, the stem being the first: 0 none, 1 the stem, 2 also `layer1`
    /// (mmdetection's `frozen_stages = 1`, torchvision's `trainable_layers = 3`).
    #[serde(default = "default_frozen_stages")]
    pub frozen_stages: usize,
}

fn default_width() -> usize {
    64
}

fn default_norm_epsilon() -> f64 {
    EPSILON
}

fn default_frozen_stages() -> usize {
    2
}

impl ResNetConfig {
    /// Frozen norms, and the stem and the first stage not trained, as in torchvision.
    pub fn new(depth: Depth) -> Self {
        Self {
            depth,
            width: default_width(),
            style: Style::Pytorch,
            norm: NormKind::Frozen,
            norm_epsilon: EPSILON,
            frozen_stages: default_frozen_stages(),
        }
    }

    /// The channels of C2, C3, C4 and C5.
    pub(crate) fn channels(&self) -> [usize; 4] {
        let expansion = if self.depth.has_bottlenecks() { 4 } else { 1 };
        [1, 2, 4, 8].map(|times| times * expansion * self.width)
    }

    pub(crate) fn check(&self) -> Result<(), DetectorConfigError> {
        require((1..=1024).contains(&self.width), "backbone.width", "from 1 to 1024")?;
        let grouped = self.norm != NormKind::Group || self.width.is_multiple_of(GROUPS);
        require(grouped, "backbone.width", "a multiple of 32, the groups of its norms")?;
        require(self.frozen_stages <= 5, "backbone.frozen_stages", "from 0 to 5")?;
        let epsilon = self.norm_epsilon;
        require(epsilon >= 0.0 && epsilon.is_finite(), "backbone.norm_epsilon", "0 or more")
    }

    pub(crate) fn init(&self, init: &mut Init) -> ResNet {
        // A stage that is not trained does not change its statistics either.
        let kind = |stage: usize| match self.norm {
            NormKind::Batch if stage < self.frozen_stages => NormKind::Frozen,
            kind => kind,
        };
        let conv1 = Conv::backbone(3, self.width, Window::new(7, 2, 3), init);
        let bn1 = Norm::new(kind(0), self.norm_epsilon, self.width, init);
        let mut inputs = self.width;
        let [layer1, layer2, layer3, layer4] = std::array::from_fn(|stage| {
            let outputs = self.channels()[stage];
            (0..self.depth.blocks()[stage])
                .map(|block| {
                    let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                    let block = Block::new(self, kind(stage + 1), inputs, outputs, stride, init);
                    inputs = outputs;
                    block
                })
                .collect()
        });
        let frozen = self.frozen_stages;
        ResNet {
            conv1: untrained_if(frozen > 0, conv1),
            bn1: untrained_if(frozen > 0, bn1),
            layer1: untrained_if(frozen > 1, layer1),
            layer2: untrained_if(frozen > 2, layer2),
            layer3: untrained_if(frozen > 3, layer3),
            layer4: untrained_if(frozen > 4, layer4),
        }
    }
}

fn untrained_if<M: Module>(frozen: bool, module: M) -> M {
    if frozen { module.no_grad() } else { module }
}

#[derive(Module, Debug)]
pub(crate) struct ResNet {
    conv1: Conv,
    bn1: Norm,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    layer4: Vec<Block>,
}

impl ResNet {
    /// `images [N, H, W, 3]` → C2, C3, C4 and C5, at strides of 4, 8, 16 and 32.
    pub(crate) fn forward(&self, images: Tensor<4>, mode: Mode) -> [Tensor<4>; 4] {
        let x = self.bn1.after(&self.conv1, images, None, true, mode);
        let mut x = ops::max_pool2d(x, Window::new(3, 2, 1));
        [&self.layer1, &self.layer2, &self.layer3, &self.layer4].map(|stage| {
            for block in stage {
                x = block.forward(x.clone(), mode);
            }
            x.clone()
        })
    }
}

/// A residual block: two 3×3 convolutions, or 1×1, 3×3 and 1×1 (a bottleneck), around which the input,
/// projected where its shape changes, is added.
#[derive(Module, Debug)]
pub(crate) struct Block {
    conv1: Conv,
    bn1: Norm,
    conv2: Conv,
    bn2: Norm,
    conv3: Option<Conv>,
    bn3: Option<Norm>,
    downsample: Option<(Conv, Norm)>,
}

impl Block {
    fn new(
        config: &ResNetConfig,
        norm: NormKind,
        inputs: usize,
        outputs: usize,
        stride: usize,
        init: &mut Init,
    ) -> Self {
        let norm = |channels, init: &Init| Norm::new(norm, config.norm_epsilon, channels, init);
        let (one, three) = (|stride| Window::new(1, stride, 0), |stride| Window::new(3, stride, 1));
        let downsample = (stride != 1 || inputs != outputs)
            .then(|| (Conv::backbone(inputs, outputs, one(stride), init), norm(outputs, init)));
        if config.depth.has_bottlenecks() {
            let width = outputs / 4;
            let (first, second) = match config.style {
                Style::Pytorch => (1, stride),
                Style::Caffe => (stride, 1),
            };
            Self {
                conv1: Conv::backbone(inputs, width, one(first), init),
                bn1: norm(width, init),
                conv2: Conv::backbone(width, width, three(second), init),
                bn2: norm(width, init),
                conv3: Some(Conv::backbone(width, outputs, one(1), init)),
                bn3: Some(norm(outputs, init)),
                downsample,
            }
        } else {
            Self {
                conv1: Conv::backbone(inputs, outputs, three(stride), init),
                bn1: norm(outputs, init),
                conv2: Conv::backbone(outputs, outputs, three(1), init),
                bn2: norm(outputs, init),
                conv3: None,
                bn3: None,
                downsample,
            }
        }
    }

    fn forward(&self, x: Tensor<4>, mode: Mode) -> Tensor<4> {
        let shortcut = match &self.downsample {
            Some((conv, norm)) => norm.after(conv, x.clone(), None, false, mode),
            None => x.clone(),
        };
        let y = self.bn1.after(&self.conv1, x, None, true, mode);
        match (&self.conv3, &self.bn3) {
            (Some(conv3), Some(bn3)) => {
                let y = self.bn2.after(&self.conv2, y, None, true, mode);
                bn3.after(conv3, y, Some(shortcut), true, mode)
            }
            _ => self.bn2.after(&self.conv2, y, Some(shortcut), true, mode),
        }
    }
}
