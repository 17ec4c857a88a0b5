//! The second stage of Faster R-CNN: the head that classifies proposals and refines their boxes, and its loss.

use burn::Tensor;
use burn::module::Module;
use lacuna_boxes::{Box2, Detection, Score};
use lacuna_random::Rng;

use super::{FasterRcnn, FasterRcnnConfig, SMOOTH_L1_BETA};
use crate::coder::BoxCoder;
use crate::fpn::Levels;
use crate::images::{Images, Objects};
use crate::layers::{Init, Linear};
use crate::loss_options::{LossOptions, Term};
use crate::losses::{LossSum, smooth_l1, softmax, with_gradient};
use crate::matcher::{AnchorMatch, Matcher};
use crate::ops::{self, Region, RoiAlign};

/// A region is pooled to 7 × 7.
pub(crate) const ROI_SIZE: usize = 7;
const CODER: BoxCoder = BoxCoder { weights: (10.0, 5.0) };
const MATCHER: Matcher = Matcher { object_min: 0.5, background_max: 0.5, low_quality: false };

#[derive(Module, Debug)]
pub(super) struct RoiHeads {
    box_head: BoxHead,
    box_predictor: BoxPredictor,
}

#[derive(Module, Debug)]
struct BoxHead {
    fc6: Linear,
    fc7: Linear,
}

/// Output 0 is background; class c is output c + 1.
#[derive(Module, Debug)]
struct BoxPredictor {
    cls_score: Linear,
    bbox_pred: Linear,
}

impl RoiHeads {
    pub(super) fn new(config: &FasterRcnnConfig, init: &mut Init) -> Self {
        let (inputs, width) = (ROI_SIZE * ROI_SIZE * config.width, config.head_width);
        let outputs = config.n_classes + 1;
        Self {
            box_head: BoxHead { fc6: Linear::new(inputs, width, init), fc7: Linear::new(width, width, init) },
            box_predictor: BoxPredictor {
                cls_score: Linear::new(width, outputs, init),
                bbox_pred: Linear::new(width, 4 * outputs, init),
            },
        }
    }
}

/// A proposal, in the coordinates of its view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Proposal {
    pub(crate) image: usize,
    pub(crate) bbox: Box2,
}

/// The proposals of all images, one image after another.
pub(super) fn in_images(boxes: &[Vec<Box2>]) -> impl Iterator<Item = Proposal> {
    let in_image = |(image, boxes): (usize, &Vec<Box2>)| {
        boxes.clone().into_iter().map(move |bbox| Proposal { image, bbox })
    };
    boxes.iter().enumerate().flat_map(in_image)
}

/// What the box head says of proposals, level by level of the pyramid.
pub(crate) struct RoiOutput {
    /// `[proposals, 1 + n_classes]`
    pub(crate) logits: Tensor<2>,
    /// `[proposals, 4·(1 + n_classes)]`
    pub(crate) deltas: Tensor<2>,
    /// The index of each row's proposal.
    pub(crate) order: Vec<usize>,
}

/// Sampled proposals, and what the box head says of them.
pub(super) struct SampledProposals {
    proposals: Vec<Proposal>,
    matched: Vec<AnchorMatch>,
    /// How many are in each image.
    counts: Vec<usize>,
    output: RoiOutput,
}

impl FasterRcnn {
    pub(crate) fn classify(&self, features: &Levels, proposals: &[Proposal]) -> RoiOutput {
        let (x, order) = self.embed(features, proposals);
        let BoxPredictor { cls_score, bbox_pred } = &self.roi_heads.box_predictor;
        RoiOutput { logits: cls_score.forward(x.clone(), false), deltas: bbox_pred.forward(x, false), order }
    }

    /// The box head's features of the proposals, `[proposals, head_width]`, and the index of each row's proposal.
    pub(super) fn embed(&self, features: &Levels, proposals: &[Proposal]) -> (Tensor<2>, Vec<usize>) {
        let pooled_levels = features.len() - 1; // The coarsest is for large anchors only.
        let (mut regions, mut order) = (vec![Vec::new(); pooled_levels], vec![Vec::new(); pooled_levels]);
        for (index, &Proposal { image, bbox }) in proposals.iter().enumerate() {
            let level = pooling_level(bbox, pooled_levels);
            let Box2 { x1, y1, x2, y2 } = bbox;
            regions[level].push(Region { image, x1, y1, x2, y2 });
            order[level].push(index);
        }
        let pooled = features.iter().zip(regions).enumerate().map(|(level, (map, regions))| {
            let align = RoiAlign {
                height: ROI_SIZE,
                width: ROI_SIZE,
                spatial_scale: 0.25 / (1 << level) as f32,
                sampling_ratio: 2,
                aligned: false,
            };
            ops::roi_align(map.clone(), regions, align)
        });
        let pooled = Tensor::cat(pooled.collect(), 0); // [proposals, 7, 7, C]
        let BoxHead { fc6, fc7 } = &self.roi_heads.box_head;
        let inputs = ROI_SIZE * ROI_SIZE * self.config.width;
        let x = fc6.forward(pooled.reshape([proposals.len(), inputs]), true);
        (fc7.forward(x, true), order.concat())
    }

    /// Adds each image's detections with a score above `score_min` to `found`, before suppression.
    pub(super) fn add_detections(
        &self,
        images: &Images,
        proposals: &[Proposal],
        (logits, deltas, order): (&[f32], &[f32], &[usize]),
        score_min: f32,
        found: &mut [Vec<Detection>],
    ) {
        let outputs = self.config.n_classes + 1;
        // In the order of the proposals, so that of equal scores the better proposal's comes first.
        let mut rows: Vec<usize> = (0..order.len()).collect();
        rows.sort_unstable_by_key(|&row| order[row]);
        for row in rows {
            let Proposal { image, bbox } = proposals[order[row]];
            let scores = softmax(&logits[row * outputs..][..outputs]);
            let deltas = deltas[4 * row * outputs..][..4 * outputs].as_chunks().0;
            for class in 0..self.config.n_classes {
                let score = scores[class + 1];
                if score > score_min {
                    let bbox = images.clip(image, CODER.decode(bbox, deltas[class + 1]));
                    if bbox.width() >= 1e-2 && bbox.height() >= 1e-2 {
                        found[image].push(Detection { bbox, class, score: Score(score) });
                    }
                }
            }
        }
    }

    /// Classifies a random sample of the proposals; every object is one of the proposals, too.
    pub(super) fn sample_proposals(
        &self,
        features: &Levels,
        proposed: &[Vec<Box2>],
        objects: &[Objects],
        rngs: &mut [Rng],
    ) -> SampledProposals {
        let (mut proposals, mut matched, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for (image, (proposed, objects)) in proposed.iter().zip(objects).enumerate() {
            let proposed: Vec<Box2> = proposed.iter().chain(&objects.boxes).copied().collect();
            let matches = MATCHER.matches(&proposed, &objects.boxes);
            let samples = self.config.proposal_samples.draw(&matches, &mut rngs[image]);
            counts.push(samples.len());
            proposals.extend(samples.iter().map(|&sample| Proposal { image, bbox: proposed[sample] }));
            matched.extend(samples.iter().map(|&sample| matches[sample]));
        }
        let output = self.classify(features, &proposals);
        SampledProposals { proposals, matched, counts, output }
    }

    /// Each image's detections among the sampled proposals, before suppression.
    pub(super) fn sampled_detections(
        &self,
        images: &Images,
        sampled: &SampledProposals,
        score_min: f32,
    ) -> Vec<Vec<Detection>> {
        let RoiOutput { logits, deltas, order } = &sampled.output;
        let (logits, deltas) = (ops::values(logits.clone()), ops::values(deltas.clone()));
        let mut found = vec![Vec::new(); images.sizes.len()];
        self.add_detections(images, &sampled.proposals, (&logits, &deltas, order), score_min, &mut found);
        found
    }

    /// The losses of sampled proposals: classification, and the deltas of positive ones.
    pub(super) fn box_loss(
        &self,
        sampled: SampledProposals,
        objects: &[Objects],
        options: &LossOptions,
    ) -> [(Term, Tensor<1>); 2] {
        let SampledProposals { proposals, matched, counts, output } = sampled;
        let factors = options.normalization.factors(&counts);
        let negative_weight = options.negative_weight.filter(|negative| negative.proposals);

        let RoiOutput { logits, deltas, order } = output;
        let (scores, predicted) = (ops::values(logits.clone()), ops::values(deltas.clone()));
        let outputs = self.config.n_classes + 1;
        // With a γ of 0 it is cross entropy.
        let gamma = options.proposal_gamma.unwrap_or(0.0);
        let mut through_weights = options.gradient_through_weights(predicted.len());
        let (mut classification, mut regression) =
            (LossSum::new(scores.len()), LossSum::new(predicted.len()));
        for (row, &index) in order.iter().enumerate() {
            let Proposal { image, bbox } = proposals[index];
            let (factor, objects) = (factors[image], &objects[image]);
            let scores = &scores[row * outputs..][..outputs];
            let predicted = predicted[4 * row * outputs..][..4 * outputs].as_chunks().0;
            if let AnchorMatch::Object(object) = matched[index] {
                let class = objects.classes[object] + 1;
                classification.add_softmax_focal(row * outputs, factor, scores, class, gamma);
                if objects.learn_box[object] {
                    let target = CODER.encode(bbox, objects.boxes[object]);
                    let loss = smooth_l1(predicted[class], target, SMOOTH_L1_BETA);
                    regression.add(4 * (row * outputs + class), factor, loss);
                }
            } else {
                // The box predicted from background is that of the likeliest class.
                let likeliest = || (1..outputs).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap_or(0);
                let (weight, gradient) = negative_weight.map_or((1.0, None), |negative| {
                    negative.weigh(bbox, || CODER.decode(bbox, predicted[likeliest()]), objects)
                });
                let loss = classification.add_softmax_focal(row * outputs, factor * weight, scores, 0, gamma);
                if let (Some(sum), Some(gradient)) = (&mut through_weights, gradient) {
                    let class = likeliest();
                    let by_deltas = CODER.gradient(bbox, predicted[class], gradient);
                    sum.add_gradient(4 * (row * outputs + class), factor * loss, by_deltas);
                }
            }
        }
        let classification = classification.into_tensor(logits);
        [
            (Term::Classification, with_gradient(classification, through_weights, &deltas)),
            (Term::Regression, regression.into_tensor(deltas)),
        ]
    }
}

/// The level that a region is pooled from, P2 being 0: a region of 224² from P4, one of half the side from one level
/// below (equation 1 of the pyramid's paper).
pub(crate) fn pooling_level(region: Box2, levels: usize) -> usize {
    let level = (4.0 + (region.area().sqrt() / 224.0).log2() + 1e-6).floor();
    (level.max(2.0) as usize - 2).min(levels - 1)
}
