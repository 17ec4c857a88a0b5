//! What the method asks of a detector: [`Detector::detect`] and [`Detector::loss`], the same for all.

use burn::Tensor;
use burn::module::Module;
use lacuna_boxes::{Affine, Box2, Detection, best_iou};
use lacuna_random::Rng;
use serde::{Deserialize, Serialize};

use crate::faster_rcnn::{FasterRcnn, FasterRcnnConfig};
use crate::fcos::{Fcos, FcosConfig};
use crate::layers::{Init, Mode};
use crate::losses::{LossSum, focal, iou_gradient, sigmoid};
use crate::ops::{self, FocalLoss};
use crate::resnet::ResNetConfig;
use crate::retinanet::{RetinaNet, RetinaNetConfig};

/// A batch of views.
#[derive(Clone, Debug)]
pub struct Images {
    /// `[N, H, W, 3]`, normalized, zero to the right of and below each view.
    pub pixels: Tensor<4>,
    /// The same views in other colors, for a detector of two views.
    pub recolored: Option<Tensor<4>>,
    /// Width and height of each view in `pixels`.
    pub sizes: Vec<(u32, u32)>,
    /// The map from each image to its view. Boxes outside a detector are those of the image.
    pub to_view: Vec<Affine>,
}

impl Images {
    pub(crate) fn check(&self) {
        let [batch, ..] = self.pixels.dims();
        let (sizes, maps) = (self.sizes.len(), self.to_view.len());
        assert!(sizes == batch && maps == batch, "{batch} images with {sizes} sizes and {maps} maps");
    }

    /// Height and width with the padding.
    pub(crate) fn padded(&self) -> (usize, usize) {
        let [_, height, width, _] = self.pixels.dims();
        (height, width)
    }

    /// The part of a box inside view `image`.
    pub(crate) fn clip(&self, image: usize, bbox: Box2) -> Box2 {
        let (width, height) = self.sizes[image];
        bbox.clip(width as f32, height as f32)
    }

    /// The targets of each image as they are in its view.
    pub(crate) fn targets_in_views(&self, targets: &[Vec<Target>], n_classes: usize) -> Vec<Objects> {
        assert_eq!(targets.len(), self.sizes.len(), "targets for {} views", self.sizes.len());
        for (image, targets) in targets.iter().enumerate() {
            for Target { class, .. } in targets {
                assert!(*class < n_classes, "a target of image {image} is of class {class}, of {n_classes}");
            }
        }
        let in_view = |(image, targets): (usize, &Vec<Target>)| {
            let mut objects = Objects::default();
            for &Target { bbox, class, placed } in targets {
                let bbox = self.to_view[image].apply(bbox);
                if !bbox.is_degenerate() && bbox.area().is_finite() {
                    objects.boxes.push(bbox);
                    objects.classes.push(class);
                    objects.placed.push(placed);
                }
            }
            objects
        };
        targets.iter().enumerate().map(in_view).collect()
    }
}

/// An object that the student is to find: a box of the image, and its class from 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    pub bbox: Box2,
    pub class: usize,
    /// Whether its place is to be learned as well, or its class alone. A sample that matches it learns no other object's
    /// place instead.
    pub placed: bool,
}

/// The targets of a view, in its coordinates.
#[derive(Default)]
pub(crate) struct Objects {
    pub boxes: Vec<Box2>,
    pub classes: Vec<usize>,
    pub placed: Vec<bool>,
}

/// What the sums of a loss are divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Normalization {
    /// The positives of the batch (mmdetection's, and the paper's).
    #[default]
    Batch,
    /// Those of each image, and the images' losses averaged (torchvision's RetinaNet).
    Image,
}

impl Normalization {
    /// The factors of sums over the positives of each image, given by the objects they match: over all of them, and over
    /// those that teach places. An image counts as one with at least `least`.
    pub(crate) fn factors_of<I: Iterator<Item = usize>>(
        self,
        matched: impl Fn(usize) -> I,
        objects: &[Objects],
        least: usize,
    ) -> [Vec<f32>; 2] {
        let all = |image: usize| matched(image).count();
        let placed = |image: usize| matched(image).filter(|&object| objects[image].placed[object]).count();
        let factors = |count: &dyn Fn(usize) -> usize| {
            self.factors(&(0..objects.len()).map(|image| count(image).max(least)).collect::<Vec<_>>())
        };
        [factors(&all), factors(&placed)]
    }

    /// The factor of each image's sums, if its count is `counts[image]`.
    pub(crate) fn factors(self, counts: &[usize]) -> Vec<f32> {
        let inverse = |count: usize| 1.0 / count.max(1) as f32;
        match self {
            Self::Batch => vec![inverse(counts.iter().sum()); counts.len()],
            Self::Image => counts.iter().map(|&count| inverse(count) / counts.len() as f32).collect(),
        }
    }
}

/// Which box of a negative sample is compared with the targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IouOf {
    /// The box that the detector predicts from it, as a constant.
    #[default]
    Prediction,
    /// The anchor (of FCOS: that which RetinaNet has at the location), or the proposal itself.
    Sample,
    /// The box that the detector predicts, with the gradient of the weight flowing into it: predictions
    /// learn to be where their loss counts less.
    Gradient,
}

/// A weight for the classification loss of each negative sample, by its best IoU with the targets.
#[derive(Clone, Copy)]
pub struct NegativeWeight<'a> {
    pub weight: &'a (dyn Fn(f32) -> f32 + Sync),
    /// The derivative of `weight`; used with [`IouOf::Gradient`] only.
    pub slope: &'a (dyn Fn(f32) -> f32 + Sync),
    pub iou_of: IouOf,
    /// Faster R-CNN: whether the anchors of its proposal network are weighted.
    pub rpn: bool,
    /// Faster R-CNN: whether its sampled proposals are weighted.
    pub proposals: bool,
}

impl NegativeWeight<'_> {
    /// The weight of a sample and the box predicted from it; and its gradient by the corners of that box,
    /// where it flows.
    pub(crate) fn of(
        &self,
        sample: Box2,
        prediction: impl FnOnce() -> Box2,
        objects: &Objects,
    ) -> (f32, Option<[f32; 4]>) {
        let compared = match self.iou_of {
            IouOf::Sample => sample,
            IouOf::Prediction | IouOf::Gradient => prediction(),
        };
        let best = best_iou(compared, objects.boxes.iter().copied());
        let iou = best.map_or(0.0, |(_, iou)| iou);
        let flows = |object: usize| self.iou_of == IouOf::Gradient && objects.placed[object];
        let gradient = best.filter(|&(object, _)| flows(object)).map(|(object, _)| {
            let slope = (self.slope)(iou);
            iou_gradient(compared, objects.boxes[object]).map(|by_corner| slope * by_corner)
        });
        ((self.weight)(iou), gradient)
    }
}

/// Background recalibration (Zhang et al., 2020), for one-stage detectors: a negative sample far from all targets may be
/// an object that nobody annotated. It counts little, and where the detector says that it is an object, it is pulled
/// there instead of away: with `p` the probability of a class, its focal loss `(1 − α)·p^γ·(−ln(1 − p))` becomes
/// `(1 − α)·(1 − p)^γ·(−ln p)` where `1 − p` is below `turn`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recalibration {
    /// A negative sample with a smaller IoU with every target is one of them.
    pub iou_max: f32,
    pub weight: f32,
    pub turn: f32,
}

impl Recalibration {
    pub(crate) fn confuses(&self, sample: Box2, objects: &Objects) -> bool {
        best_iou(sample, objects.boxes.iter().copied()).map_or(0.0, |(_, iou)| iou) < self.iou_max
    }

    /// What the loss of the classes that are turned is more than it would be: `logits [rows, n_classes]`, of which
    /// `confused` are the rows and `weights` the weights.
    pub(crate) fn turned(
        &self,
        logits: Tensor<2>,
        confused: &[usize],
        weights: &[f32],
        FocalLoss { alpha, gamma }: FocalLoss,
    ) -> Tensor<1> {
        let [_, n_classes] = logits.dims();
        let values = ops::values(logits.clone());
        let mut sum = LossSum::new(values.len());
        for &row in confused {
            let first = row * n_classes;
            for (class, &logit) in values[first..][..n_classes].iter().enumerate() {
                if 1.0 - sigmoid(logit) < self.turn {
                    let ((there, [to]), (away, [from])) = (focal(logit, gamma), focal(-logit, gamma));
                    sum.add(first + class, (1.0 - alpha) * weights[row], (there - away, [to + from]));
                }
            }
        }
        sum.into_tensor(logits)
    }
}

#[derive(Clone, Copy, Default)]
pub struct LossOptions<'a> {
    pub normalization: Normalization,
    /// RetinaNet and FCOS: classification is divided by the positives of these targets, not of those that are learned.
    pub counted: Option<&'a [Vec<Target>]>,
    pub negative_weight: Option<NegativeWeight<'a>>,
    /// RetinaNet and FCOS.
    pub recalibration: Option<Recalibration>,
    /// Faster R-CNN: γ of the focal loss by which proposals are classified; cross entropy without.
    pub proposal_gamma: Option<f32>,
}

impl LossOptions<'_> {
    /// The focal loss of one-stage detectors ([`ops::focal_loss`]), of which the `confused` rows are recalibrated.
    pub(crate) fn classification(
        &self,
        logits: Tensor<2>,
        labels: Vec<i32>,
        weights: Vec<f32>,
        confused: &[usize],
        focal: FocalLoss,
    ) -> Tensor<1> {
        let turned = self.recalibration.map(|of| of.turned(logits.clone(), confused, &weights, focal));
        let loss = ops::focal_loss(logits, labels, weights, focal);
        turned.into_iter().fold(loss, |sum, turned| sum + turned)
    }

    /// A place for the gradient that reaches `len` numbers through the weights of negatives, if any does.
    pub(crate) fn through_weights(&self, len: usize) -> Option<LossSum> {
        let flows = self.negative_weight.is_some_and(|negative| negative.iou_of == IouOf::Gradient);
        flows.then(|| LossSum::new(len))
    }
}

/// A term of a detector's loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    Classification,
    Regression,
    Centerness,
    Objectness,
    ProposalRegression,
    /// Of the features of one region in two views.
    Consistency,
}

/// The terms of a loss, each `[1]`.
#[derive(Clone, Debug)]
pub struct Losses(pub Vec<(Term, Tensor<1>)>);

impl Losses {
    /// Term by term.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        for (term, loss) in other.0 {
            match self.0.iter_mut().find(|(of, _)| *of == term) {
                Some((_, sum)) => *sum = sum.clone() + loss,
                None => self.0.push((term, loss)),
            }
        }
        self
    }

    #[must_use]
    pub fn times(self, weight: f32) -> Self {
        Self(self.0.into_iter().map(|(term, loss)| (term, loss.mul_scalar(weight))).collect())
    }

    /// Without the terms that are not among these.
    #[must_use]
    pub fn only(self, terms: &[Term]) -> Self {
        Self(self.0.into_iter().filter(|(term, _)| terms.contains(term)).collect())
    }

    pub fn total(&self) -> Tensor<1> {
        let terms = self.0.iter().map(|(_, term)| term.clone());
        terms.reduce(|sum, term| sum + term).expect("every detector has a loss")
    }
}

/// Everything that makes a detector's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum DetectorConfig {
    RetinaNet(RetinaNetConfig),
    Fcos(FcosConfig),
    FasterRcnn(FasterRcnnConfig),
}

/// A value that no detector can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` must be {rule}")]
pub struct ConfigError {
    pub field: &'static str,
    pub rule: &'static str,
}

/// The most channels that a part of a detector may have.
pub(crate) const WIDTH_MAX: usize = 8192;

/// The most convolutions that a branch of a one-stage head may have.
pub(crate) const HEAD_DEPTH_MAX: usize = 64;

/// What a value of a configuration must be.
pub(crate) fn require(holds: bool, field: &'static str, rule: &'static str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError { field, rule }) }
}

impl DetectorConfig {
    /// Can there be such a detector? Checked before [`Self::init`], which would panic.
    pub fn check(&self) -> Result<(), ConfigError> {
        // Far above all that was ever trained; sizes beyond are slips, and would not fit any memory.
        require((1..=100_000).contains(&self.n_classes()), "n_classes", "from 1 to 100,000")?;
        self.backbone().check()?;
        match self {
            Self::RetinaNet(config) => config.check(),
            Self::Fcos(config) => config.check(),
            Self::FasterRcnn(config) => config.check(),
        }
    }

    /// A detector with weights drawn from `rng`.
    pub fn init(&self, device: &burn::tensor::Device, rng: &mut Rng) -> Detector {
        self.with(&mut Init { device, rng: Some(rng) })
    }

    /// A detector whose weights are still to be read.
    pub(crate) fn empty(&self, device: &burn::tensor::Device) -> Detector {
        self.with(&mut Init { device, rng: None })
    }

    fn with(&self, init: &mut Init) -> Detector {
        self.check().unwrap_or_else(|error| panic!("{error}"));
        match self {
            Self::RetinaNet(config) => Detector::RetinaNet(config.init(init)),
            Self::Fcos(config) => Detector::Fcos(config.init(init)),
            Self::FasterRcnn(config) => Detector::FasterRcnn(config.init(init)),
        }
    }

    pub fn n_classes(&self) -> usize {
        match self {
            Self::RetinaNet(config) => config.n_classes,
            Self::Fcos(config) => config.n_classes,
            Self::FasterRcnn(config) => config.n_classes,
        }
    }

    /// The number that torchvision gives the first class: Faster R-CNN's 0 is background.
    pub fn first_label(&self) -> u64 {
        u64::from(matches!(self, Self::FasterRcnn(_)))
    }

    pub fn backbone(&self) -> &ResNetConfig {
        match self {
            Self::RetinaNet(config) => &config.backbone,
            Self::Fcos(config) => &config.backbone,
            Self::FasterRcnn(config) => &config.backbone,
        }
    }
}

// There is one of it, or two; a box would only be in the way.
#[allow(clippy::large_enum_variant)]
#[derive(Module, Debug)]
pub enum Detector {
    RetinaNet(RetinaNet),
    Fcos(Fcos),
    FasterRcnn(FasterRcnn),
}

impl Detector {
    /// The detections of each image, best first, in its coordinates. Run it on the plain device
    /// (`detector.valid()`): on a tracked one the pass stays in the graph.
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
            Self::RetinaNet(detector) => detector.detect(images, score_min),
            Self::Fcos(detector) => detector.detect(images, score_min),
            Self::FasterRcnn(detector) => detector.detect(images, score_min),
        }
    }

    /// Whether it is shown each view in other colors, too.
    pub fn two_views(&self) -> bool {
        matches!(self, Self::FasterRcnn(detector) if detector.two_views())
    }

    /// The loss of each image's targets, which are in its coordinates. `rngs`, one for each image, are for
    /// detectors that look at a sample of their boxes only.
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

    /// The losses of several sets of targets, of one pass over the images. What is drawn at random is drawn for one set
    /// after another.
    pub fn losses<const N: usize>(
        &self,
        images: &Images,
        sets: [(&[Vec<Target>], LossOptions); N],
        rngs: &mut [Rng],
    ) -> [Losses; N] {
        images.check();
        assert_eq!(rngs.len(), images.sizes.len(), "a generator for each image");
        match self {
            Self::RetinaNet(detector) => {
                let output = detector.forward(images, Mode::Training);
                sets.map(|(targets, options)| detector.loss(&output, images, targets, &options))
            }
            Self::Fcos(detector) => {
                let output = detector.forward(images, Mode::Training);
                sets.map(|(targets, options)| detector.loss(&output, images, targets, &options))
            }
            Self::FasterRcnn(detector) => detector.losses(images, sets, rngs),
        }
    }
}
