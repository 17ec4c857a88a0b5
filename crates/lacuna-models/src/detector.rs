//! The detector that the rest of the project uses: [`Detector::detect`] and [`Detector::loss`], the same for all kinds.

use burn::module::Module;
use burn::tensor::Device;
use lacuna_boxes::Detection;
use lacuna_random::Rng;
use serde::{Deserialize, Serialize};

use crate::faster_rcnn::{FasterRcnn, FasterRcnnConfig};
use crate::fcos::{Fcos, FcosConfig};
use crate::images::{Images, Target};
use crate::layers::Init;
use crate::loss_options::{LossOptions, Losses};
use crate::one_stage;
use crate::resnet::ResNetConfig;
use crate::retinanet::{RetinaNet, RetinaNetConfig};

/// A detector of any kind.
// A program has one or two of them, so their size on the stack does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Module, Debug)]
pub enum Detector {
    /// RetinaNet.
    RetinaNet(RetinaNet),
    /// FCOS.
    Fcos(Fcos),
    /// Faster R-CNN.
    FasterRcnn(FasterRcnn),
}

impl Detector {
    /// The detections of each image, best first, in its coordinates. Run it on the plain device
    /// (`detector.valid()`): on a tracked one the pass would stay in the graph.
    pub fn detect(&self, images: &Images) -> Vec<Vec<Detection>> {
        self.detect_above(0.0, images)
    }

    /// Those of [`Self::detect`] with a score above `score_min`, found faster.
    pub fn detect_above(&self, score_min: f32, images: &Images) -> Vec<Vec<Detection>> {
        images.check();
        assert!(
            !images.pixels.is_autodiff(),
            "detect runs on a plain device: a tracked one would keep the graph"
        );
        match self {
            Self::RetinaNet(detector) => one_stage::detect(detector, images, score_min),
            Self::Fcos(detector) => one_stage::detect(detector, images, score_min),
            Self::FasterRcnn(detector) => detector.detect(images, score_min),
        }
    }

    /// Whether it reads [`Images::second_view`].
    pub fn two_views(&self) -> bool {
        matches!(self, Self::FasterRcnn(detector) if detector.two_views())
    }

    /// The loss of each image's targets. `rngs`, one for each image, are for detectors that learn from a sample of
    /// their boxes.
    pub fn loss(
        &self,
        images: &Images,
        targets: &[Vec<Target>],
        options: &LossOptions,
        rngs: &mut [Rng],
    ) -> Losses {
        let [losses] = self.losses(images, [(targets, *options)], rngs);
        losses
    }

    /// The losses of several sets of targets in one pass over the images. Random draws are made for one set after
    /// another.
    pub fn losses<const N: usize>(
        &self,
        images: &Images,
        sets: [(&[Vec<Target>], LossOptions); N],
        rngs: &mut [Rng],
    ) -> [Losses; N] {
        images.check();
        assert_eq!(rngs.len(), images.sizes.len(), "a generator for each image");
        match self {
            Self::RetinaNet(detector) => one_stage::losses(detector, images, sets),
            Self::Fcos(detector) => one_stage::losses(detector, images, sets),
            Self::FasterRcnn(detector) => detector.losses(images, sets, rngs),
        }
    }
}

/// The kinds of detectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectorKind {
    /// RetinaNet.
    RetinaNet,
    /// FCOS.
    Fcos,
    /// Faster R-CNN.
    FasterRcnn,
}

/// Everything that decides a detector's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum DetectorConfig {
    /// RetinaNet.
    RetinaNet(RetinaNetConfig),
    /// FCOS.
    Fcos(FcosConfig),
    /// Faster R-CNN.
    FasterRcnn(FasterRcnnConfig),
}

impl DetectorConfig {
    /// Checks the values; [`Self::init`] panics on what this refuses.
    pub fn check(&self) -> Result<(), DetectorConfigError> {
        // Far more than any detector was trained on: a larger number is a slip.
        require((1..=100_000).contains(&self.n_classes()), "n_classes", "from 1 to 100,000")?;
        self.backbone().check()?;
        match self {
            Self::RetinaNet(config) => config.check(),
            Self::Fcos(config) => config.check(),
            Self::FasterRcnn(config) => config.check(),
        }
    }

    /// A detector with weights drawn from `rng`.
    pub fn init(&self, device: &Device, rng: &mut Rng) -> Detector {
        self.build(&mut Init { device, rng: Some(rng) })
    }

    /// A detector whose weights are still to be read.
    pub(crate) fn empty(&self, device: &Device) -> Detector {
        self.build(&mut Init { device, rng: None })
    }

    fn build(&self, init: &mut Init) -> Detector {
        self.check().unwrap_or_else(|error| panic!("{error}"));
        match self {
            Self::RetinaNet(config) => Detector::RetinaNet(config.init(init)),
            Self::Fcos(config) => Detector::Fcos(config.init(init)),
            Self::FasterRcnn(config) => Detector::FasterRcnn(config.init(init)),
        }
    }

    /// The number of classes, without background.
    pub fn n_classes(&self) -> usize {
        match self {
            Self::RetinaNet(config) => config.n_classes,
            Self::Fcos(config) => config.n_classes,
            Self::FasterRcnn(config) => config.n_classes,
        }
    }

    /// The number that torchvision gives the first class: for Faster R-CNN, 0 is background.
    pub fn first_label(&self) -> u64 {
        u64::from(matches!(self, Self::FasterRcnn(_)))
    }

    /// The backbone's configuration.
    pub fn backbone(&self) -> &ResNetConfig {
        match self {
            Self::RetinaNet(config) => &config.backbone,
            Self::Fcos(config) => &config.backbone,
            Self::FasterRcnn(config) => &config.backbone,
        }
    }
}

/// A value that no detector can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` must be {rule}")]
pub struct DetectorConfigError {
    /// The key, with dots between tables.
    pub field: &'static str,
    /// What its value must be.
    pub rule: &'static str,
}

/// The most channels that a part of a detector may have.
pub(crate) const WIDTH_MAX: usize = 8192;

/// An error that names the field and the rule, unless the rule `holds`.
pub(crate) fn require(
    holds: bool,
    field: &'static str,
    rule: &'static str,
) -> Result<(), DetectorConfigError> {
    if holds { Ok(()) } else { Err(DetectorConfigError { field, rule }) }
}

#[cfg(test)]
mod tests;
