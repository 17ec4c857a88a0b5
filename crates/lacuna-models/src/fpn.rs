//! Feature pyramid network (Lin et al., 2017).

use burn::Tensor;
use burn::module::Module;
use burn::tensor::activation::relu;
use serde::{Deserialize, Serialize};

use crate::layers::{Conv, Draw, Init};
use crate::ops::{self, Grid, Window};

/// Where the levels above P5 come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExtraLevels {
    /// P6 is a strided convolution of C5, P7 one of P6 (RetinaNet's paper).
    C5,
    /// P6 is a strided convolution of P5, P7 one of P6 (FCOS's paper; all of torchvision's).
    P5,
}

/// The maps of a pyramid, the finest first, each `[N, H, W, C]`.
pub(crate) type Levels = Vec<Tensor<4>>;

/// All maps of a pyramid as one tensor, so that a head runs over them in one call.
#[derive(Clone, Debug)]
pub(crate) struct Pyramid {
    /// `[Σ N·H·W, C]`: level by level, in each image by image.
    pub(crate) rows: Tensor<2>,
    pub(crate) levels: Vec<Grid>,
}

impl Pyramid {
    pub(crate) fn from_maps(maps: &[Tensor<4>]) -> Self {
        let (rows, levels) = maps
            .iter()
            .map(|map| {
                let [batch, height, width, channels] = map.dims();
                let rows = map.clone().reshape([batch * height * width, channels]);
                (rows, Grid::new(batch, height, width))
            })
            .unzip();
        Self { rows: Tensor::cat(rows, 0), levels }
    }
}

#[derive(Module, Debug)]
pub(crate) struct Fpn {
    // A list of one: in PyTorch each of these is a `Sequential`.
    inner_blocks: Vec<[Conv; 1]>,
    layer_blocks: Vec<[Conv; 1]>,
    extra_blocks: Option<ExtraBlocks>,
    #[module(skip)]
    extra: Option<ExtraLevels>,
}

#[derive(Module, Debug)]
pub(crate) struct ExtraBlocks {
    p6: Conv,
    p7: Conv,
}

impl Fpn {
    /// Over maps of these `channels`, each level `width` channels wide. Without `extra` one more level
    /// is made by taking every other pixel of the coarsest.
    pub(crate) fn new(channels: &[usize], width: usize, extra: Option<ExtraLevels>, init: &mut Init) -> Self {
        let mut conv =
            |inputs, window| Conv::with_bias(inputs, width, window, Draw::glorot(window, inputs), init);
        let inner_blocks = channels.iter().map(|&inputs| [conv(inputs, Window::new(1, 1, 0))]).collect();
        let layer_blocks = channels.iter().map(|_| [conv(width, Window::new(3, 1, 1))]).collect();
        let extra_blocks = extra.map(|from| {
            let inputs = match from {
                ExtraLevels::C5 => channels[channels.len() - 1],
                ExtraLevels::P5 => width,
            };
            let half = Window::new(3, 2, 1);
            ExtraBlocks { p6: conv(inputs, half), p7: conv(width, half) }
        });
        Self { inner_blocks, layer_blocks, extra_blocks, extra }
    }

    /// The backbone's maps, the finest first → the pyramid's.
    pub(crate) fn forward(&self, maps: &[Tensor<4>]) -> Levels {
        let laterals =
            maps.iter().zip(&self.inner_blocks).map(|(map, [conv])| conv.forward(map.clone(), false));
        let mut merged: Levels = laterals.collect();
        for level in (1..merged.len()).rev() {
            merged[level - 1] = ops::upsample_add(merged[level].clone(), merged[level - 1].clone());
        }
        let mut levels: Levels = merged
            .into_iter()
            .zip(&self.layer_blocks)
            .map(|(map, [conv])| conv.forward(map, false))
            .collect();
        let p5 = levels[levels.len() - 1].clone();
        match &self.extra_blocks {
            Some(ExtraBlocks { p6, p7 }) => {
                let from =
                    if self.extra == Some(ExtraLevels::C5) { maps[maps.len() - 1].clone() } else { p5 };
                let p6 = p6.forward(from, false);
                let p7 = p7.forward(relu(p6.clone()), false);
                levels.extend([p6, p7]);
            }
            None => levels.push(ops::max_pool2d(p5, Window::new(1, 2, 0))),
        }
        levels
    }
}
