//! A ResNet with a pyramid on top.

use burn::Tensor;
use burn::module::Module;

use crate::fpn::{ExtraLevels, Fpn, Levels};
use crate::layers::{Init, Mode};
use crate::resnet::{ResNet, ResNetConfig};

#[derive(Module, Debug)]
pub(crate) struct Backbone {
    body: ResNet,
    fpn: Fpn,
    /// How many of C2 … C5 the pyramid leaves out.
    #[module(skip)]
    skipped: usize,
}

impl Backbone {
    /// P3 … P7, at strides of 8 … 128.
    pub(crate) fn p3_to_p7(config: &ResNetConfig, width: usize, extra: ExtraLevels, init: &mut Init) -> Self {
        let body = config.init(init);
        let fpn = Fpn::new(&config.channels()[1..], width, Some(extra), init);
        Self { body, fpn, skipped: 1 }
    }

    /// P2 … P6, at strides of 4 … 64, P6 being every other pixel of P5.
    pub(crate) fn p2_to_p6(config: &ResNetConfig, width: usize, init: &mut Init) -> Self {
        let body = config.init(init);
        let fpn = Fpn::new(&config.channels(), width, None, init);
        Self { body, fpn, skipped: 0 }
    }

    pub(crate) fn forward(&self, images: Tensor<4>, mode: Mode) -> Levels {
        self.fpn.forward(&self.body.forward(images, mode)[self.skipped..])
    }
}
