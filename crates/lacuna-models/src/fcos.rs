//! FCOS (Tian et al., 2019): every location of a pyramid predicts a box around itself.

use burn::Tensor;
use burn::module::Module;
use lacuna_boxes::{Box2, Detection};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::anchors::Anchors;
use crate::backbone::Backbone;
use crate::coder::distances;
use crate::detector::{
    ConfigError, HEAD_DEPTH_MAX, Images, LossOptions, Losses, Objects, Target, Term, WIDTH_MAX, require,
};
use crate::fpn::{ExtraLevels, Pyramid};
use crate::layers::{Conv, Draw, EPSILON, GROUPS, GroupNorm, Init, Mode};
use crate::losses::{LossSum, binary_cross_entropy, focal_background, giou, sigmoid, with_gradient};
use crate::ops::{self, Grid, Window};
use crate::postprocess::{PostProcess, logit_floor};
use crate::resnet::ResNetConfig;
use crate::retinanet::{FOCAL, PRIOR_LOGIT};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FcosConfig {
    pub n_classes: usize,
    pub backbone: ResNetConfig,
    /// The channels of the pyramid and of the heads, a multiple of 32.
    pub width: usize,
    /// The convolutions of each head before the last one, each with a group norm.
    pub head_depth: usize,
    pub extra_levels: ExtraLevels,
    /// How far from an object's center, in strides, a location may be to predict it.
    pub center_radius: f32,
    /// The best of each level that go on to non-maximum suppression.
    pub candidates_per_level: usize,
    pub post_process: PostProcess,
}

impl FcosConfig {
    /// The paper's; post-processing is torchvision's.
    pub fn new(n_classes: usize, backbone: ResNetConfig) -> Self {
        Self {
            n_classes,
            backbone,
            width: 256,
            head_depth: 4,
            extra_levels: ExtraLevels::P5,
            center_radius: 1.5,
            candidates_per_level: 1000,
            post_process: PostProcess { score_min: 0.2, nms_iou_max: 0.6, detections_max: 100 },
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let divisible = (1..=WIDTH_MAX).contains(&self.width) && self.width.is_multiple_of(GROUPS);
        require(divisible, "width", "a multiple of 32, the groups of its norms, up to 8192")?;
        require(self.head_depth <= HEAD_DEPTH_MAX, "head_depth", "at most 64")?;
        require(self.center_radius > 0.0 && self.center_radius.is_finite(), "center_radius", "positive")?;
        require(self.candidates_per_level > 0, "candidates_per_level", "1 at least")?;
        self.post_process.check()
    }

    pub(crate) fn init(&self, init: &mut Init) -> Fcos {
        let backbone = Backbone::p3_to_p7(&self.backbone, self.width, self.extra_levels, init);
        let conv = self.branch(init);
        let cls_logits = self.conv(self.n_classes, init).biased(PRIOR_LOGIT, init);
        let classification_head = ClassificationHead { conv, cls_logits };
        let conv = self.branch(init);
        let (bbox_reg, bbox_ctrness) = (self.conv(4, init), self.conv(1, init));
        let regression_head = RegressionHead { conv, bbox_reg, bbox_ctrness };
        Fcos { backbone, head: Head { classification_head, regression_head }, config: self.clone() }
    }

    fn conv(&self, outputs: usize, init: &mut Init) -> Conv {
        Conv::with_bias(self.width, outputs, Window::new(3, 1, 1), Draw::Normal { std: 0.01 }, init)
    }

    fn branch(&self, init: &mut Init) -> Vec<(Conv, GroupNorm)> {
        (0..self.head_depth)
            .map(|_| (self.conv(self.width, init), GroupNorm::new(EPSILON, self.width, init)))
            .collect()
    }
}

#[derive(Module, Debug)]
pub struct Fcos {
    backbone: Backbone,
    head: Head,
    #[module(skip)]
    config: FcosConfig,
}

#[derive(Module, Debug)]
pub struct Head {
    classification_head: ClassificationHead,
    regression_head: RegressionHead,
}

#[derive(Module, Debug)]
pub struct ClassificationHead {
    conv: Vec<(Conv, GroupNorm)>,
    cls_logits: Conv,
}

#[derive(Module, Debug)]
pub struct RegressionHead {
    conv: Vec<(Conv, GroupNorm)>,
    bbox_reg: Conv,
    bbox_ctrness: Conv,
}

/// What the heads say of every location of every image, in the order of [`Anchors`].
pub struct FcosOutput {
    /// `[rows, n_classes]`
    pub logits: Tensor<2>,
    /// `[rows, 4]`, not negative: see [`distances`].
    pub distances: Tensor<2>,
    /// `[rows, 1]`
    pub centerness: Tensor<2>,
    /// A square of the stride's size at each location.
    pub locations: Anchors,
}

impl Fcos {
    pub fn forward(&self, images: &Images, mode: Mode) -> FcosOutput {
        let Pyramid { rows, levels } = Pyramid::of(&self.backbone.forward(images.pixels.clone(), mode));
        let locations = Anchors::locations(&levels, images.padded());
        let Head { classification_head, regression_head } = &self.head;
        let x = branch(rows.clone(), &levels, &classification_head.conv);
        let logits = classification_head.cls_logits.over_pyramid(x, &levels, false);
        let x = branch(rows, &levels, &regression_head.conv);
        let distances = regression_head.bbox_reg.over_pyramid(x.clone(), &levels, true);
        let centerness = regression_head.bbox_ctrness.over_pyramid(x, &levels, false);
        FcosOutput { logits, distances, centerness, locations }
    }

    /// The score of a class at a location is `√(p(class)·p(center))`.
    pub fn detect(&self, images: &Images, score_min: f32) -> Vec<Vec<Detection>> {
        let FcosOutput { logits, distances, centerness, locations } = self.forward(images, Mode::Inference);
        let [logits, distances, centerness] = [logits, distances, centerness].map(ops::values);
        let distances = distances.as_chunks().0;
        let post_process = self.config.post_process.above(score_min);
        let of_image = |image| {
            post_process.dense(
                (images, image),
                &locations,
                (&logits, self.config.n_classes),
                (
                    logit_floor(post_process.score_min * post_process.score_min),
                    self.config.candidates_per_level,
                ),
                |row, logit| (sigmoid(logit) * sigmoid(centerness[row])).sqrt(),
                |row, square| distances::decode(square, distances[row]),
            )
        };
        (0..images.sizes.len()).into_par_iter().map(of_image).collect()
    }

    /// The loss of the targets, by what [`Self::forward`] said of the images.
    pub fn loss(
        &self,
        output: &FcosOutput,
        images: &Images,
        targets: &[Vec<Target>],
        options: &LossOptions,
    ) -> Losses {
        let FcosOutput { logits, distances, centerness, locations } = output;
        let objects = images.targets_in_views(targets, self.config.n_classes);
        let matches_of = |objects: &[Objects]| -> Vec<Vec<Option<usize>>> {
            let of_image =
                |objects: &Objects| objects_at(locations, &objects.boxes, self.config.center_radius);
            objects.par_iter().map(of_image).collect()
        };
        let factors_of = |matches: &[Vec<Option<usize>>], objects: &[Objects]| {
            let matched = |image: usize| matches[image].iter().flatten().copied();
            options.normalization.factors_of(matched, objects, 0)
        };
        let matches = matches_of(&objects);
        let [mut factors, placed_factors] = factors_of(&matches, &objects);
        if let Some(counted) = options.counted {
            let counted = images.targets_in_views(counted, self.config.n_classes);
            [factors, _] = factors_of(&matches_of(&counted), &counted);
        }

        let [predicted, centers] = [distances.clone(), centerness.clone()].map(ops::values);
        let predicted = predicted.as_chunks::<4>().0;
        let n = locations.n_rows();
        let n_classes = self.config.n_classes;
        let mut through_weights = options.through_weights(4 * n);
        let scores = through_weights.as_ref().map(|_| ops::values(logits.clone()));
        let (mut labels, mut weights) = (vec![-1; n], vec![0.0; n]);
        let (mut regression, mut centering) = (LossSum::new(4 * n), LossSum::new(n));
        let mut confused = Vec::new();
        for (image, (matches, objects)) in matches.iter().zip(&objects).enumerate() {
            let factor = factors[image];
            for ((row, &square), matched) in locations.rows(image).zip(locations.boxes()).zip(matches) {
                let decoded = || distances::decode(square, predicted[row]);
                weights[row] = factor;
                if let Some(object) = *matched {
                    labels[row] = objects.classes[object] as i32;
                    if objects.placed[object] {
                        let (target, factor) = (objects.boxes[object], placed_factors[image]);
                        let (loss, by_corners) = giou(decoded(), target);
                        regression.add(4 * row, factor, (loss, distances::gradient(square, by_corners)));
                        let center = centerness_of(distances::encode(square, target));
                        centering.add(row, factor, binary_cross_entropy(centers[row], center));
                    }
                    continue;
                }
                if let Some(negative) = options.negative_weight {
                    let (weight, gradient) = negative.of(anchor_at(square), decoded, objects);
                    weights[row] *= weight;
                    if let (Some(sum), Some(scores), Some(gradient)) =
                        (&mut through_weights, &scores, gradient)
                    {
                        let loss = focal_background(&scores[row * n_classes..][..n_classes], FOCAL);
                        sum.add_gradient(4 * row, factor * loss, distances::gradient(square, gradient));
                    }
                }
                if let Some(recalibration) = options.recalibration
                    && recalibration.confuses(anchor_at(square), objects)
                {
                    weights[row] *= recalibration.weight;
                    confused.push(row);
                }
            }
        }
        let classification = options.classification(logits.clone(), labels, weights, &confused, FOCAL);
        Losses(vec![
            (Term::Classification, with_gradient(classification, through_weights, distances)),
            (Term::Regression, regression.into_tensor(distances.clone())),
            (Term::Centerness, centering.into_tensor(centerness.clone())),
        ])
    }
}

/// What a location stands for where samples are told apart by their overlap with objects: the square anchor that
/// RetinaNet has there, four strides wide.
fn anchor_at(square: Box2) -> Box2 {
    let ((x, y), half) = (square.center(), 2.0 * square.width());
    Box2::new(x - half, y - half, x + half, y + half)
}

/// Convolutions, each with group norm and ReLU.
fn branch(rows: Tensor<2>, levels: &[Grid], convs: &[(Conv, GroupNorm)]) -> Tensor<2> {
    convs
        .iter()
        .fold(rows, |rows, (conv, norm)| norm.forward(conv.over_pyramid(rows, levels, false), levels, true))
}

/// `√(min(l, r)/max(l, r) · min(t, b)/max(t, b))`: 1 in the middle of an object, 0 at its border.
pub fn centerness_of([left, top, right, bottom]: [f32; 4]) -> f32 {
    (left.min(right) / left.max(right) * (top.min(bottom) / top.max(bottom))).sqrt()
}

/// The object that each location of an image is to find: it is inside the object, near its center, and
/// the farthest side is 4 to 8 strides away (nearer at the finest level, farther at the coarsest); of
/// several objects the smallest.
///
/// Differs from the reference: there an object of 10⁸ square pixels or more is never found.
pub fn objects_at(locations: &Anchors, objects: &[Box2], center_radius: f32) -> Vec<Option<usize>> {
    let last = locations.levels().count() - 1;
    let mut matches = Vec::with_capacity(locations.boxes().len());
    for (level, range) in locations.levels().enumerate() {
        for square in &locations.boxes()[range] {
            let ((x, y), stride) = (square.center(), square.width());
            let low = if level == 0 { 0.0 } else { 4.0 * stride };
            let high = if level == last { f32::INFINITY } else { 8.0 * stride };
            let fits = |object: &Box2| {
                let (center_x, center_y) = object.center();
                let off_center = (x - center_x).abs().max((y - center_y).abs());
                let sides = [x - object.x1, y - object.y1, object.x2 - x, object.y2 - y];
                let (nearest, farthest) =
                    (sides.into_iter().fold(f32::INFINITY, f32::min), sides.into_iter().fold(0.0, f32::max));
                off_center < center_radius * stride && nearest > 0.0 && farthest > low && farthest < high
            };
            // The smallest, by the reference's measure: areas that differ by less than 8 are equal to it,
            // and of equal ones the first is taken.
            let preference = |object: &Box2| 1e8 - object.area();
            let fitting = objects.iter().enumerate().filter(|(_, object)| fits(object));
            let best = fitting.rev().max_by(|a, b| preference(a.1).total_cmp(&preference(b.1)));
            matches.push(best.map(|(index, _)| index));
        }
    }
    matches
}
