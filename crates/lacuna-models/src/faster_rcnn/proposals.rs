//! The first stage of Faster R-CNN: the region proposal network (RPN), its proposals and its loss.

use burn::Tensor;
use burn::module::Module;
use lacuna_boxes::{Box2, nms};
use lacuna_random::Rng;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{FasterRcnn, SMOOTH_L1_BETA};
use crate::anchors::Anchors;
use crate::coder::BoxCoder;
use crate::fpn::{Levels, Pyramid};
use crate::images::{Images, Objects};
use crate::layers::{Conv, Draw, Init};
use crate::loss_options::{LossOptions, Term};
use crate::losses::{LossSum, binary_cross_entropy, sigmoid, smooth_l1, with_gradient};
use crate::matcher::{AnchorMatch, Matcher};
use crate::ops::{self, Window};
use crate::postprocess::keep_best;

const CODER: BoxCoder = BoxCoder { weights: (1.0, 1.0) };
const MATCHER: Matcher = Matcher { object_min: 0.7, background_max: 0.3, low_quality: true };
const NMS_IOU_MAX: f64 = 0.7;

/// How many proposals an image has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proposals {
    /// The best of each level, before non-maximum suppression.
    pub per_level: usize,
    /// The best of the image, after it.
    pub per_image: usize,
}

#[derive(Module, Debug)]
pub(super) struct Rpn {
    head: RpnHead,
}

#[derive(Module, Debug)]
struct RpnHead {
    conv: Vec<[Conv; 1]>,
    cls_logits: Conv,
    bbox_pred: Conv,
}

impl Rpn {
    /// Over `width` channels, with so many `anchors` at a location.
    pub(super) fn new(width: usize, anchors: usize, init: &mut Init) -> Self {
        let mut conv =
            |outputs, window| Conv::with_bias(width, outputs, window, Draw::Normal { std: 0.01 }, init);
        let (one, three) = (Window::new(1, 1, 0), Window::new(3, 1, 1));
        let head = RpnHead {
            conv: vec![[conv(width, three)]],
            cls_logits: conv(anchors, one),
            bbox_pred: conv(4 * anchors, one),
        };
        Self { head }
    }
}

/// What the RPN says of every anchor of every image, in the order of [`Anchors`].
pub(crate) struct RpnOutput {
    /// `[rows, 1]`
    pub(crate) objectness: Tensor<2>,
    /// `[rows, 4]`
    pub(crate) deltas: Tensor<2>,
    pub(crate) anchors: Anchors,
}

/// The numbers of an [`RpnOutput`].
pub(crate) struct RpnValues {
    objectness: Vec<f32>,
    deltas: Vec<f32>,
}

impl RpnValues {
    pub(crate) fn read(output: &RpnOutput) -> Self {
        Self {
            objectness: ops::values(output.objectness.clone()),
            deltas: ops::values(output.deltas.clone()),
        }
    }
}

/// A proposed box of a view, with its probability of being an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ScoredProposal {
    pub(crate) bbox: Box2,
    pub(crate) objectness: f32,
}

/// The boxes of each image's proposals.
pub(super) fn boxes(proposed: Vec<Vec<ScoredProposal>>) -> Vec<Vec<Box2>> {
    proposed.into_iter().map(|image| image.into_iter().map(|proposal| proposal.bbox).collect()).collect()
}

impl FasterRcnn {
    /// Runs the RPN over the features; with two views, over those of both ([`super::two_views::concatenate`]).
    pub(crate) fn rpn(&self, images: &Images, features: &Levels) -> RpnOutput {
        let Pyramid { rows, levels } = Pyramid::from_maps(features);
        let RpnHead { conv, cls_logits, bbox_pred } = &self.rpn.head;
        let x = conv.iter().fold(rows, |rows, [conv]| conv.over_pyramid(rows, &levels, true));
        let anchors = self.config.anchors.over(&levels, images.padded());
        let n = anchors.n_rows();
        RpnOutput {
            objectness: cls_logits.over_pyramid(x.clone(), &levels, false).reshape([n, 1]),
            deltas: bbox_pred.over_pyramid(x, &levels, false).reshape([n, 4]),
            anchors,
        }
    }

    /// The proposals of each image, best first.
    pub(crate) fn propose(
        &self,
        images: &Images,
        anchors: &Anchors,
        values: &RpnValues,
        limits: Proposals,
    ) -> Vec<Vec<ScoredProposal>> {
        let (objectness, deltas) = (&values.objectness, values.deltas.as_chunks().0);
        let propose_in_image = |image: usize| {
            let (mut boxes, mut scores, mut levels) = (Vec::new(), Vec::new(), Vec::new());
            for (number, level) in anchors.levels().enumerate() {
                let rows = anchors.rows_of_level(level.clone(), image);
                let first = rows.start;
                let mut best: Vec<usize> = rows.collect();
                keep_best(&mut best, limits.per_level, |&row| objectness[row]);
                for row in best {
                    let anchor = anchors.boxes()[level.start + row - first];
                    let bbox = images.clip(image, CODER.decode(anchor, deltas[row]));
                    if bbox.width() >= 1e-3 && bbox.height() >= 1e-3 {
                        boxes.push(bbox);
                        scores.push(sigmoid(objectness[row]));
                        levels.push(number);
                    }
                }
            }
            // Suppression within each level: levels stand for classes.
            let kept = nms(&boxes, &scores, &levels, NMS_IOU_MAX);
            let proposal = |index: usize| ScoredProposal { bbox: boxes[index], objectness: scores[index] };
            kept.into_iter().take(limits.per_image).map(proposal).collect()
        };
        (0..images.sizes.len()).into_par_iter().map(propose_in_image).collect()
    }

    /// The loss of sampled anchors: their objectness, and the deltas of positive ones.
    pub(super) fn rpn_loss(
        &self,
        rpn: &RpnOutput,
        values: &RpnValues,
        objects: &[Objects],
        options: &LossOptions,
        rngs: &mut [Rng],
    ) -> Vec<(Term, Tensor<1>)> {
        let (objectness, deltas) = (&values.objectness, values.deltas.as_chunks::<4>().0);
        let anchors = rpn.anchors.boxes();
        let matches: Vec<_> =
            objects.par_iter().map(|objects| MATCHER.matches(anchors, &objects.boxes)).collect();
        let samples: Vec<_> = matches
            .iter()
            .zip(rngs)
            .map(|(matches, rng)| self.config.anchor_samples.draw(matches, rng))
            .collect();
        let factors = options.normalization.factors(&samples.iter().map(Vec::len).collect::<Vec<_>>());
        let negative_weight = options.negative_weight.filter(|negative| negative.rpn);

        let mut through_weights = options.gradient_through_weights(4 * deltas.len());
        let (mut scores, mut regression) = (LossSum::new(objectness.len()), LossSum::new(4 * deltas.len()));
        for (image, objects) in objects.iter().enumerate() {
            let rows: Vec<usize> = rpn.anchors.rows(image).collect();
            let factor = factors[image];
            for &sample in &samples[image] {
                let (row, anchor) = (rows[sample], anchors[sample]);
                if let AnchorMatch::Object(object) = matches[image][sample] {
                    scores.add(row, factor, binary_cross_entropy(objectness[row], 1.0));
                    if objects.learn_box[object] {
                        let target = CODER.encode(anchor, objects.boxes[object]);
                        regression.add(4 * row, factor, smooth_l1(deltas[row], target, SMOOTH_L1_BETA));
                    }
                } else {
                    let (weight, gradient) = negative_weight.map_or((1.0, None), |negative| {
                        negative.weigh(anchor, || CODER.decode(anchor, deltas[row]), objects)
                    });
                    let loss = binary_cross_entropy(objectness[row], 0.0);
                    scores.add(row, factor * weight, loss);
                    if let (Some(sum), Some(gradient)) = (&mut through_weights, gradient) {
                        let by_deltas = CODER.gradient(anchor, deltas[row], gradient);
                        sum.add_gradient(4 * row, factor * loss.0, by_deltas);
                    }
                }
            }
        }
        let objectness = scores.into_tensor(rpn.objectness.clone());
        vec![
            (Term::Objectness, with_gradient(objectness, through_weights, &rpn.deltas)),
            (Term::ProposalRegression, regression.into_tensor(rpn.deltas.clone())),
        ]
    }
}
