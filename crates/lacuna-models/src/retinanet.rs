//! RetinaNet (Lin et al., 2017): anchors on a pyramid, classified by focal loss.

use burn::Tensor;
use burn::module::Module;
use lacuna_boxes::Detection;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::anchors::{AnchorConfig, Anchors};
use crate::backbone::Backbone;
use crate::coder::BoxCoder;
use crate::detector::{
    ConfigError, HEAD_DEPTH_MAX, Images, LossOptions, Losses, Normalization, Objects, Target, Term,
    WIDTH_MAX, require,
};
use crate::fpn::{ExtraLevels, Pyramid};
use crate::layers::{Conv, Draw, Init, Mode};
use crate::losses::{LossSum, focal_background, sigmoid, smooth_l1, with_gradient};
use crate::matcher::{Match, Matcher};
use crate::ops::{self, FocalLoss, Grid, Window};
use crate::postprocess::{PostProcess, logit_floor};
use crate::resnet::ResNetConfig;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetinaNetConfig {
    pub n_classes: usize,
    pub backbone: ResNetConfig,
    /// The channels of the pyramid and of the heads.
    pub width: usize,
    /// The convolutions of each head before the last one.
    pub head_depth: usize,
    pub extra_levels: ExtraLevels,
    pub anchors: AnchorConfig,
    /// Where the regression loss turns from a parabola to a line; 0 is L1.
    pub smooth_l1_beta: f32,
    /// The best of each level that go on to non-maximum suppression.
    pub candidates_per_level: usize,
    pub post_process: PostProcess,
}

impl RetinaNetConfig {
    /// The paper's; post-processing is torchvision's.
    pub fn new(n_classes: usize, backbone: ResNetConfig) -> Self {
        Self {
            n_classes,
            backbone,
            width: 256,
            head_depth: 4,
            extra_levels: ExtraLevels::C5,
            anchors: AnchorConfig::retinanet(),
            smooth_l1_beta: 0.0,
            candidates_per_level: 1000,
            post_process: PostProcess { score_min: 0.05, nms_iou_max: 0.5, detections_max: 300 },
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require((1..=WIDTH_MAX).contains(&self.width), "width", "from 1 to 8192")?;
        require(self.head_depth <= HEAD_DEPTH_MAX, "head_depth", "at most 64")?;
        require(
            self.smooth_l1_beta >= 0.0 && self.smooth_l1_beta.is_finite(),
            "smooth_l1_beta",
            "0 or more",
        )?;
        require(self.candidates_per_level > 0, "candidates_per_level", "1 at least")?;
        self.anchors.check()?;
        self.post_process.check()
    }

    pub(crate) fn init(&self, init: &mut Init) -> RetinaNet {
        let backbone = Backbone::p3_to_p7(&self.backbone, self.width, self.extra_levels, init);
        let anchors = self.anchors.per_location();
        let (conv, cls_logits) = self.branch(anchors * self.n_classes, init);
        // An anchor is an object with a probability of 1 %.
        let classification_head =
            ClassificationHead { conv, cls_logits: cls_logits.biased(PRIOR_LOGIT, init) };
        let (conv, bbox_reg) = self.branch(anchors * 4, init);
        let head = Head { classification_head, regression_head: RegressionHead { conv, bbox_reg } };
        RetinaNet { backbone, head, config: self.clone() }
    }

    /// The convolutions of a head.
    fn branch(&self, outputs: usize, init: &mut Init) -> (Vec<[Conv; 1]>, Conv) {
        let mut conv = |outputs| {
            Conv::with_bias(self.width, outputs, Window::new(3, 1, 1), Draw::Normal { std: 0.01 }, init)
        };
        ((0..self.head_depth).map(|_| [conv(self.width)]).collect(), conv(outputs))
    }
}

/// `−ln((1 − π)/π)` of a prior π of 0.01.
pub(crate) const PRIOR_LOGIT: f32 = -4.595_12;

pub(crate) const FOCAL: FocalLoss = FocalLoss { alpha: 0.25, gamma: 2.0 };

const CODER: BoxCoder = BoxCoder { weights: (1.0, 1.0) };

const MATCHER: Matcher = Matcher { object_min: 0.5, background_max: 0.4, low_quality: true };

#[derive(Module, Debug)]
pub struct RetinaNet {
    backbone: Backbone,
    head: Head,
    #[module(skip)]
    config: RetinaNetConfig,
}

#[derive(Module, Debug)]
pub struct Head {
    classification_head: ClassificationHead,
    regression_head: RegressionHead,
}

#[derive(Module, Debug)]
pub struct ClassificationHead {
    conv: Vec<[Conv; 1]>,
    cls_logits: Conv,
}

#[derive(Module, Debug)]
pub struct RegressionHead {
    conv: Vec<[Conv; 1]>,
    bbox_reg: Conv,
}

/// What the heads say of every anchor of every image, in the order of [`Anchors`].
pub struct RetinaNetOutput {
    /// `[rows, n_classes]`
    pub logits: Tensor<2>,
    /// `[rows, 4]`
    pub deltas: Tensor<2>,
    pub anchors: Anchors,
}

impl RetinaNet {
    pub fn forward(&self, images: &Images, mode: Mode) -> RetinaNetOutput {
        let Pyramid { rows, levels } = Pyramid::of(&self.backbone.forward(images.pixels.clone(), mode));
        let anchors = self.config.anchors.over(&levels, images.padded());
        let (n, classes) = (anchors.n_rows(), self.config.n_classes);
        let Head { classification_head, regression_head } = &self.head;
        let logits =
            branch(rows.clone(), &levels, &classification_head.conv, &classification_head.cls_logits);
        let deltas = branch(rows, &levels, &regression_head.conv, &regression_head.bbox_reg);
        RetinaNetOutput { logits: logits.reshape([n, classes]), deltas: deltas.reshape([n, 4]), anchors }
    }

    pub fn detect(&self, images: &Images, score_min: f32) -> Vec<Vec<Detection>> {
        let RetinaNetOutput { logits, deltas, anchors } = self.forward(images, Mode::Inference);
        let (logits, deltas) = (ops::values(logits), ops::values(deltas));
        let deltas = deltas.as_chunks().0;
        let post_process = self.config.post_process.above(score_min);
        let of_image = |image| {
            post_process.dense(
                (images, image),
                &anchors,
                (&logits, self.config.n_classes),
                (logit_floor(post_process.score_min), self.config.candidates_per_level),
                |_, logit| sigmoid(logit),
                |row, anchor| CODER.decode(anchor, deltas[row]),
            )
        };
        (0..images.sizes.len()).into_par_iter().map(of_image).collect()
    }

    /// The loss of the targets, by what [`Self::forward`] said of the images.
    pub fn loss(
        &self,
        output: &RetinaNetOutput,
        images: &Images,
        targets: &[Vec<Target>],
        options: &LossOptions,
    ) -> Losses {
        let RetinaNetOutput { logits, deltas, anchors } = output;
        let objects = images.targets_in_views(targets, self.config.n_classes);
        let matches_of = |objects: &[Objects]| -> Vec<Vec<Match>> {
            objects.par_iter().map(|objects| MATCHER.matches(anchors.boxes(), &objects.boxes)).collect()
        };
        // mmdetection counts an image without positives as one with one.
        let least = usize::from(options.normalization == Normalization::Batch);
        let factors_of = |matches: &[Vec<Match>], objects: &[Objects]| {
            let matched = |image: usize| matches[image].iter().filter_map(Match::object);
            options.normalization.factors_of(matched, objects, least)
        };
        let matches = matches_of(&objects);
        let [mut factors, placed_factors] = factors_of(&matches, &objects);
        if let Some(counted) = options.counted {
            let counted = images.targets_in_views(counted, self.config.n_classes);
            [factors, _] = factors_of(&matches_of(&counted), &counted);
        }

        let values = ops::values(deltas.clone());
        let values = values.as_chunks::<4>().0;
        let n_classes = self.config.n_classes;
        let mut through_weights = options.through_weights(4 * anchors.n_rows());
        let scores = through_weights.as_ref().map(|_| ops::values(logits.clone()));
        let (mut labels, mut weights) = (vec![-1; anchors.n_rows()], vec![0.0; anchors.n_rows()]);
        let mut regression = LossSum::new(4 * anchors.n_rows());
        let mut confused = Vec::new();
        for (image, (matches, objects)) in matches.iter().zip(&objects).enumerate() {
            let factor = factors[image];
            for ((row, &anchor), matched) in anchors.rows(image).zip(anchors.boxes()).zip(matches) {
                match *matched {
                    Match::Object(object) => {
                        labels[row] = objects.classes[object] as i32;
                        weights[row] = factor;
                        if objects.placed[object] {
                            let target = CODER.encode(anchor, objects.boxes[object]);
                            let loss = smooth_l1(values[row], target, self.config.smooth_l1_beta);
                            regression.add(4 * row, placed_factors[image], loss);
                        }
                    }
                    Match::Background => {
                        let (weight, gradient) = options.negative_weight.map_or((1.0, None), |negative| {
                            negative.of(anchor, || CODER.decode(anchor, values[row]), objects)
                        });
                        weights[row] = factor * weight;
                        if let Some(recalibration) = options.recalibration
                            && recalibration.confuses(anchor, objects)
                        {
                            weights[row] *= recalibration.weight;
                            confused.push(row);
                        }
                        if let (Some(sum), Some(scores), Some(gradient)) =
                            (&mut through_weights, &scores, gradient)
                        {
                            let loss = focal_background(&scores[row * n_classes..][..n_classes], FOCAL);
                            let by_deltas = CODER.gradient(anchor, values[row], gradient);
                            sum.add_gradient(4 * row, factor * loss, by_deltas);
                        }
                    }
                    Match::Ignored => {}
                }
            }
        }
        let classification = options.classification(logits.clone(), labels, weights, &confused, FOCAL);
        Losses(vec![
            (Term::Classification, with_gradient(classification, through_weights, deltas)),
            (Term::Regression, regression.into_tensor(deltas.clone())),
        ])
    }
}

/// Convolutions with ReLU, then the last one without.
fn branch(rows: Tensor<2>, levels: &[Grid], convs: &[[Conv; 1]], last: &Conv) -> Tensor<2> {
    let rows = convs.iter().fold(rows, |rows, [conv]| conv.over_pyramid(rows, levels, true));
    last.over_pyramid(rows, levels, false)
}
