//! What a detector's loss can be asked for ([`LossOptions`]) and what it gives ([`Losses`]).

use burn::Tensor;
use lacuna_boxes::{Box2, best_iou};
use serde::{Deserialize, Serialize};

use crate::images::{Objects, Target};
use crate::losses::{LossSum, focal, iou_gradient, sigmoid};
use crate::ops::{self, FocalLoss};

/// The options of a detector's loss. The default is the plain loss of the detector's paper.
#[derive(Clone, Copy, Default)]
pub struct LossOptions<'a> {
    /// What the sums are divided by.
    pub normalization: LossNormalization,
    /// RetinaNet and FCOS: divide the classification loss by the positives of these targets instead of the learned ones.
    pub counted: Option<&'a [Vec<Target>]>,
    /// A weight for each negative sample.
    pub negative_weight: Option<NegativeWeight<'a>>,
    /// RetinaNet and FCOS: background recalibration.
    pub recalibration: Option<Recalibration>,
    /// Faster R-CNN: γ of the focal loss that classifies proposals; `None` is cross entropy.
    pub proposal_gamma: Option<f32>,
}

impl LossOptions<'_> {
    /// The focal loss of one-stage detectors ([`ops::focal_loss`]), in which the rows `unlabeled` are recalibrated.
    pub(crate) fn classification(
        &self,
        logits: Tensor<2>,
        labels: Vec<i32>,
        weights: Vec<f32>,
        unlabeled: &[usize],
        focal: FocalLoss,
    ) -> Tensor<1> {
        let correction =
            self.recalibration.map(|options| options.correction(logits.clone(), unlabeled, &weights, focal));
        let loss = ops::focal_loss(logits, labels, weights, focal);
        correction.into_iter().fold(loss, |sum, correction| sum + correction)
    }

    /// An empty sum for the gradient that reaches `len` numbers through the weights of negatives, if any does.
    pub(crate) fn gradient_through_weights(&self, len: usize) -> Option<LossSum> {
        let flows = self.negative_weight.is_some_and(|negative| negative.iou_of == IouOf::Gradient);
        flows.then(|| LossSum::new(len))
    }
}

/// What the sums of a loss are divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LossNormalization {
    /// The positives of the batch (mmdetection, and the paper).
    #[default]
    Batch,
    /// The positives of each image; the images' losses are averaged (torchvision's RetinaNet).
    Image,
}

impl LossNormalization {
    /// The factor of each image's sums over its positives: over all of them, and over those whose box is learned.
    ///
    /// `matched(image)` are the objects that the image's positives match. An image counts at least `count_min` positives.
    pub(crate) fn positive_factors<I: Iterator<Item = usize>>(
        self,
        matched: impl Fn(usize) -> I,
        objects: &[Objects],
        count_min: usize,
    ) -> [Vec<f32>; 2] {
        let all = |image: usize| matched(image).count();
        let boxes = |image: usize| matched(image).filter(|&object| objects[image].learn_box[object]).count();
        let factors = |count: &dyn Fn(usize) -> usize| {
            self.factors(&(0..objects.len()).map(|image| count(image).max(count_min)).collect::<Vec<_>>())
        };
        [factors(&all), factors(&boxes)]
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
    /// The predicted box, as a constant.
    #[default]
    Prediction,
    /// The anchor or proposal itself; for FCOS the anchor that RetinaNet has at the location.
    Sample,
    /// The predicted box, with the gradient of the weight flowing into it: predictions learn to be where their loss
    /// counts less.
    Gradient,
}

/// A weight for the classification loss of each negative sample, by its best IoU with the targets.
#[derive(Clone, Copy)]
pub struct NegativeWeight<'a> {
    /// The weight as a function of the best IoU.
    pub weight: &'a (dyn Fn(f32) -> f32 + Sync),
    /// The derivative of `weight`; only [`IouOf::Gradient`] uses it.
    pub slope: &'a (dyn Fn(f32) -> f32 + Sync),
    /// Which box the IoU is of.
    pub iou_of: IouOf,
    /// Faster R-CNN: whether the anchors of the proposal network are weighted.
    pub rpn: bool,
    /// Faster R-CNN: whether the sampled proposals are weighted.
    pub proposals: bool,
}

impl NegativeWeight<'_> {
    /// The weight of a negative sample; and, with [`IouOf::Gradient`], its gradient by the corners of the predicted box.
    pub(crate) fn weigh(
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
        let flows = |object: usize| self.iou_of == IouOf::Gradient && objects.learn_box[object];
        let gradient = best.filter(|&(object, _)| flows(object)).map(|(object, _)| {
            let slope = (self.slope)(iou);
            iou_gradient(compared, objects.boxes[object]).map(|by_corner| slope * by_corner)
        });
        ((self.weight)(iou), gradient)
    }
}

/// Background recalibration (BRL, Zhang et al., 2020), for one-stage detectors.
///
/// A negative sample far from all targets may be an object without an annotation, so it counts little. Where the detector
/// says that it is an object, it is pulled there instead of away: with `p` the probability of a class, the focal loss
/// `(1 − α)·p^γ·(−ln(1 − p))` becomes `(1 − α)·(1 − p)^γ·(−ln p)` where `1 − p < turn`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recalibration {
    /// Negative samples whose IoU with every target is below this are recalibrated.
    pub iou_max: f32,
    /// The weight of their loss.
    pub weight: f32,
    /// The bound on `1 − p` below which the loss pulls the other way.
    pub turn: f32,
}

impl Recalibration {
    /// Whether a negative sample is recalibrated.
    pub(crate) fn applies_to(&self, sample: Box2, objects: &Objects) -> bool {
        best_iou(sample, objects.boxes.iter().copied()).map_or(0.0, |(_, iou)| iou) < self.iou_max
    }

    /// The difference that the formula above makes to the focal loss of `logits [rows, n_classes]`, summed over
    /// `rows` with their `weights`.
    fn correction(
        &self,
        logits: Tensor<2>,
        rows: &[usize],
        weights: &[f32],
        FocalLoss { alpha, gamma }: FocalLoss,
    ) -> Tensor<1> {
        let [_, n_classes] = logits.dims();
        let values = ops::values(logits.clone());
        let mut sum = LossSum::new(values.len());
        for &row in rows {
            let first = row * n_classes;
            for (class, &logit) in values[first..][..n_classes].iter().enumerate() {
                if 1.0 - sigmoid(logit) < self.turn {
                    let ((as_object, [up]), (as_background, [down])) =
                        (focal(logit, gamma), focal(-logit, gamma));
                    let difference = (as_object - as_background, [up + down]);
                    sum.add(first + class, (1.0 - alpha) * weights[row], difference);
                }
            }
        }
        sum.into_tensor(logits)
    }
}

/// A term of a detector's loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// Which class.
    Classification,
    /// Which box.
    Regression,
    /// FCOS: how central a location is.
    Centerness,
    /// Faster R-CNN: whether an anchor is an object.
    Objectness,
    /// Faster R-CNN: the proposal of an anchor.
    ProposalRegression,
    /// SAOD: the distance of a region's features in two views.
    Consistency,
}

/// The terms of a loss, each `[1]`.
#[derive(Clone, Debug)]
pub struct Losses(pub Vec<(Term, Tensor<1>)>);

impl Losses {
    /// The sum of both, term by term.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        for (term, loss) in other.0 {
            match self.0.iter_mut().find(|(own, _)| *own == term) {
                Some((_, sum)) => *sum = sum.clone() + loss,
                None => self.0.push((term, loss)),
            }
        }
        self
    }

    /// Every term times `weight`.
    #[must_use]
    pub fn times(self, weight: f32) -> Self {
        Self(self.0.into_iter().map(|(term, loss)| (term, loss.mul_scalar(weight))).collect())
    }

    /// These terms, without the others.
    #[must_use]
    pub fn only(self, terms: &[Term]) -> Self {
        Self(self.0.into_iter().filter(|(term, _)| terms.contains(term)).collect())
    }

    /// The sum of all terms, `[1]`.
    pub fn total(&self) -> Tensor<1> {
        let terms = self.0.iter().map(|(_, term)| term.clone());
        terms.reduce(|sum, term| sum + term).expect("every detector has a loss")
    }
}
