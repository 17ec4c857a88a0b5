//! Faster R-CNN (Ren et al., 2015) on a pyramid (Lin et al., 2017): a network proposes regions, and a
//! head classifies each of them.

use burn::Tensor;
use burn::module::Module;
use lacuna_boxes::{Box2, Detection, Score, iou, nms};
use lacuna_random::Rng;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::anchors::{AnchorConfig, Anchors};
use crate::backbone::Backbone;
use crate::coder::BoxCoder;
use crate::detector::{ConfigError, Images, LossOptions, Losses, Objects, Target, Term, WIDTH_MAX, require};
use crate::fpn::{Levels, Pyramid};
use crate::layers::{Conv, Draw, Init, Linear, Mode};
use crate::losses::{LossSum, binary_cross_entropy, sigmoid, smooth_l1, softmax, with_gradient};
use crate::matcher::{Match, Matcher};
use crate::ops::{self, Region, RoiAlign, Window};
use crate::postprocess::{PostProcess, keep_best};
use crate::resnet::ResNetConfig;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FasterRcnnConfig {
    pub n_classes: usize,
    pub backbone: ResNetConfig,
    /// The channels of the pyramid and of the proposal network.
    pub width: usize,
    /// The channels of the two layers of the box head.
    pub head_width: usize,
    pub anchors: AnchorConfig,
    /// The proposals of an image in training and otherwise: the best of each level before non-maximum
    /// suppression, and the best of the image after it.
    pub training_proposals: Proposals,
    pub proposals: Proposals,
    /// The anchors of an image that the proposal network learns from.
    pub anchor_samples: Samples,
    /// The proposals of an image that the box head learns from.
    pub proposal_samples: Samples,
    pub post_process: PostProcess,
    /// Regions are proposed from two views of one geometry, one of them in other colors (SAOD), and classified in the
    /// first. Said only where it is so.
    #[serde(default, skip_serializing_if = "is_false")]
    pub two_views: bool,
}

// Serde asks for a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !value
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proposals {
    pub per_level: usize,
    pub per_image: usize,
}

/// How many samples an image gives, and the largest share of positives among them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    pub count: usize,
    pub positive_share: f64,
}

impl FasterRcnnConfig {
    /// torchvision's, which are those of the papers.
    pub fn new(n_classes: usize, backbone: ResNetConfig) -> Self {
        Self {
            n_classes,
            backbone,
            width: 256,
            head_width: 1024,
            anchors: AnchorConfig::rpn(),
            training_proposals: Proposals { per_level: 2000, per_image: 2000 },
            proposals: Proposals { per_level: 1000, per_image: 1000 },
            anchor_samples: Samples { count: 256, positive_share: 0.5 },
            proposal_samples: Samples { count: 512, positive_share: 0.25 },
            post_process: PostProcess { score_min: 0.05, nms_iou_max: 0.5, detections_max: 100 },
            two_views: false,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require((1..=WIDTH_MAX).contains(&self.width), "width", "from 1 to 8192")?;
        require((1..=WIDTH_MAX).contains(&self.head_width), "head_width", "from 1 to 8192")?;
        for (field, Proposals { per_level, per_image }) in
            [("proposals", self.proposals), ("training_proposals", self.training_proposals)]
        {
            require(per_level > 0 && per_image > 0, field, "1 at least, per level and per image")?;
        }
        for (field, Samples { count, positive_share }) in
            [("anchor_samples", self.anchor_samples), ("proposal_samples", self.proposal_samples)]
        {
            let share = (0.0..=1.0).contains(&positive_share);
            require(count > 0 && share, field, "of a count of 1 at least, with a share from 0 to 1")?;
        }
        self.anchors.check()?;
        self.post_process.check()
    }

    pub(crate) fn init(&self, init: &mut Init) -> FasterRcnn {
        let backbone = Backbone::p2_to_p6(&self.backbone, self.width, init);
        let rpn_width = if self.two_views { 2 * self.width } else { self.width };
        let mut conv =
            |outputs, window| Conv::with_bias(rpn_width, outputs, window, Draw::Normal { std: 0.01 }, init);
        let (one, three) = (Window::new(1, 1, 0), Window::new(3, 1, 1));
        let anchors = self.anchors.per_location();
        let head = RpnHead {
            conv: vec![[conv(rpn_width, three)]],
            cls_logits: conv(anchors, one),
            bbox_pred: conv(4 * anchors, one),
        };
        let (regions, outputs) = (ROI_SIZE * ROI_SIZE * self.width, self.n_classes + 1);
        let box_head = BoxHead {
            fc6: Linear::new(regions, self.head_width, init),
            fc7: Linear::new(self.head_width, self.head_width, init),
        };
        let box_predictor = BoxPredictor {
            cls_score: Linear::new(self.head_width, outputs, init),
            bbox_pred: Linear::new(self.head_width, 4 * outputs, init),
        };
        let roi_heads = RoiHeads { box_head, box_predictor };
        FasterRcnn { backbone, rpn: Rpn { head }, roi_heads, config: self.clone() }
    }
}

/// A region's map is 7 × 7.
pub(crate) const ROI_SIZE: usize = 7;
const ANCHOR_CODER: BoxCoder = BoxCoder { weights: (1.0, 1.0) };
const PROPOSAL_CODER: BoxCoder = BoxCoder { weights: (10.0, 5.0) };
const ANCHOR_MATCHER: Matcher = Matcher { object_min: 0.7, background_max: 0.3, low_quality: true };
const PROPOSAL_MATCHER: Matcher = Matcher { object_min: 0.5, background_max: 0.5, low_quality: false };
const PROPOSAL_NMS_IOU_MAX: f64 = 0.7;
/// The proposals that are pooled at once where nothing is kept for a backward pass: their maps are
/// 50 kB each.
const AT_ONCE: usize = 1024;
/// Where the regression losses turn from a parabola to a line.
const BETA: f32 = 1.0 / 9.0;

#[derive(Module, Debug)]
pub struct FasterRcnn {
    backbone: Backbone,
    rpn: Rpn,
    roi_heads: RoiHeads,
    #[module(skip)]
    config: FasterRcnnConfig,
}

#[derive(Module, Debug)]
pub struct Rpn {
    head: RpnHead,
}

#[derive(Module, Debug)]
pub struct RpnHead {
    conv: Vec<[Conv; 1]>,
    cls_logits: Conv,
    bbox_pred: Conv,
}

#[derive(Module, Debug)]
pub struct RoiHeads {
    box_head: BoxHead,
    box_predictor: BoxPredictor,
}

#[derive(Module, Debug)]
pub struct BoxHead {
    fc6: Linear,
    fc7: Linear,
}

/// Class 0 is background; class c of an object is c + 1 here.
#[derive(Module, Debug)]
pub struct BoxPredictor {
    cls_score: Linear,
    bbox_pred: Linear,
}

/// What the proposal network says of every anchor of every image, in the order of [`Anchors`].
pub struct RpnOutput {
    /// `[rows, 1]`
    pub objectness: Tensor<2>,
    /// `[rows, 4]`
    pub deltas: Tensor<2>,
    pub anchors: Anchors,
}

/// The numbers of an [`RpnOutput`].
struct RpnValues {
    objectness: Vec<f32>,
    deltas: Vec<f32>,
}

impl RpnValues {
    fn of(output: &RpnOutput) -> Self {
        Self {
            objectness: ops::values(output.objectness.clone()),
            deltas: ops::values(output.deltas.clone()),
        }
    }
}

/// A proposal, in the coordinates of its view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    pub image: usize,
    pub bbox: Box2,
}

/// A box of a view that was proposed, and how surely it is an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposed {
    pub bbox: Box2,
    pub objectness: f32,
}

/// What the box head says of the proposals, which are in an order of its own.
pub struct RoiOutput {
    /// `[proposals, 1 + n_classes]`
    pub logits: Tensor<2>,
    /// `[proposals, 4·(1 + n_classes)]`
    pub deltas: Tensor<2>,
    /// The proposal of each row, as its place in what was asked.
    pub order: Vec<usize>,
}

impl FasterRcnn {
    pub fn two_views(&self) -> bool {
        self.config.two_views
    }

    pub fn features(&self, images: &Images, mode: Mode) -> Levels {
        self.backbone.forward(images.pixels.clone(), mode)
    }

    /// The features that regions are proposed from: with two views, those of both, channel by channel.
    fn proposing(&self, images: &Images, features: &Levels, recolored: Option<&Levels>) -> RpnOutput {
        match recolored {
            Some(recolored) => {
                let both = features.iter().zip(recolored);
                let both: Levels = both.map(|(a, b)| Tensor::cat(vec![a.clone(), b.clone()], 3)).collect();
                self.rpn(images, &both)
            }
            None => self.rpn(images, features),
        }
    }

    /// Those of the view in other colors, for a detector of two.
    fn recolored(&self, images: &Images, mode: Mode) -> Option<Levels> {
        self.config.two_views.then(|| {
            let pixels = images.recolored.clone().expect("a detector of two views is given both");
            self.backbone.forward(pixels, mode)
        })
    }

    pub fn rpn(&self, images: &Images, features: &Levels) -> RpnOutput {
        let Pyramid { rows, levels } = Pyramid::of(features);
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

    /// The proposals of each image, best first, and how surely each is an object: `objectness [rows]`, `deltas [rows, 4]`.
    pub fn propose(
        &self,
        images: &Images,
        anchors: &Anchors,
        objectness: &[f32],
        deltas: &[[f32; 4]],
        limits: Proposals,
    ) -> Vec<Vec<Proposed>> {
        let of_image = |image: usize| {
            let (mut boxes, mut scores, mut levels) = (Vec::new(), Vec::new(), Vec::new());
            for (number, level) in anchors.levels().enumerate() {
                let rows = anchors.rows_of_level(level.clone(), image);
                let first = rows.start;
                let mut best: Vec<usize> = rows.collect();
                keep_best(&mut best, limits.per_level, |&row| objectness[row]);
                for row in best {
                    let anchor = anchors.boxes()[level.start + row - first];
                    let bbox = images.clip(image, ANCHOR_CODER.decode(anchor, deltas[row]));
                    if bbox.width() >= 1e-3 && bbox.height() >= 1e-3 {
                        boxes.push(bbox);
                        scores.push(sigmoid(objectness[row]));
                        levels.push(number);
                    }
                }
            }
            let kept = nms(&boxes, &scores, &levels, PROPOSAL_NMS_IOU_MAX);
            let proposed = |index: usize| Proposed { bbox: boxes[index], objectness: scores[index] };
            kept.into_iter().take(limits.per_image).map(proposed).collect()
        };
        (0..images.sizes.len()).into_par_iter().map(of_image).collect()
    }

    pub fn classify(&self, features: &Levels, proposals: &[Proposal]) -> RoiOutput {
        let (x, order) = self.embed(features, proposals);
        let BoxPredictor { cls_score, bbox_pred } = &self.roi_heads.box_predictor;
        RoiOutput { logits: cls_score.forward(x.clone(), false), deltas: bbox_pred.forward(x, false), order }
    }

    /// What the box head makes of the proposals, `[proposals, head_width]`, and the proposal of each row.
    fn embed(&self, features: &Levels, proposals: &[Proposal]) -> (Tensor<2>, Vec<usize>) {
        let pooled_levels = features.len() - 1; // The coarsest is for large anchors only.
        let (mut regions, mut order) = (vec![Vec::new(); pooled_levels], vec![Vec::new(); pooled_levels]);
        for (index, &Proposal { image, bbox }) in proposals.iter().enumerate() {
            let level = level_of(bbox, pooled_levels);
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

    pub fn detect(&self, images: &Images, score_min: f32) -> Vec<Vec<Detection>> {
        let post_process = self.config.post_process.above(score_min);
        let features = self.features(images, Mode::Inference);
        let recolored = self.recolored(images, Mode::Inference);
        let RpnOutput { objectness, deltas, anchors } = self.proposing(images, &features, recolored.as_ref());
        let (objectness, deltas) = (ops::values(objectness), ops::values(deltas));
        let proposed =
            self.propose(images, &anchors, &objectness, deltas.as_chunks().0, self.config.proposals);
        let proposals: Vec<Proposal> = flat(&boxes_of(proposed)).collect();
        let mut found = vec![Vec::new(); images.sizes.len()];
        for proposals in proposals.chunks(AT_ONCE) {
            self.detect_in(images, &features, proposals, post_process.score_min, &mut found);
        }
        let suppress =
            |(image, found): (usize, &Vec<Detection>)| post_process.suppress(found, (images, image));
        found.par_iter().enumerate().map(suppress).collect()
    }

    /// Adds what is in the proposals with a score above `score_min` to what was `found` in each image, not suppressed yet.
    fn detect_in(
        &self,
        images: &Images,
        features: &Levels,
        proposals: &[Proposal],
        score_min: f32,
        found: &mut [Vec<Detection>],
    ) {
        let RoiOutput { logits, deltas, order } = self.classify(features, proposals);
        self.read(images, proposals, (&ops::values(logits), &ops::values(deltas), &order), score_min, found);
    }

    /// The detections in what the box head said of the proposals.
    fn read(
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
                    let bbox = images.clip(image, PROPOSAL_CODER.decode(bbox, deltas[class + 1]));
                    if bbox.width() >= 1e-2 && bbox.height() >= 1e-2 {
                        found[image].push(Detection { bbox, class, score: Score(score) });
                    }
                }
            }
        }
    }

    /// The losses of several sets of targets, of one pass over the images: they share the proposals, but for the
    /// targets themselves.
    pub fn losses<const N: usize>(
        &self,
        images: &Images,
        sets: [(&[Vec<Target>], LossOptions); N],
        rngs: &mut [Rng],
    ) -> [Losses; N] {
        assert!(!self.config.two_views, "a detector of two views learns from both");
        let features = self.features(images, Mode::Training);
        let rpn = self.proposing(images, &features, None);
        let said = RpnValues::of(&rpn);
        let proposed = boxes_of(self.proposals_to_learn(images, &rpn, &said));
        sets.map(|(targets, options)| {
            let objects = images.targets_in_views(targets, self.config.n_classes);
            let mut losses = self.rpn_loss(&rpn, &said, &objects, &options, rngs);
            let output = self.sample(&features, &proposed, &objects, rngs);
            losses.extend(self.roi_loss(output, &objects, &options));
            Losses(losses)
        })
    }

    /// The loss of two views of one geometry (SAOD, "SparseDet": Suri et al., 2023).
    ///
    /// Regions are proposed from both views together. With `mining`, those that are surely objects, though nothing is
    /// annotated there, are kept out of what the box head samples, and its features of them are drawn together. The first
    /// view learns the annotations, the second also what was found in the first; their losses are averaged.
    pub fn two_view_loss(
        &self,
        images: &Images,
        targets: &[Vec<Target>],
        two_views: &TwoViews,
        options: &LossOptions,
        rngs: &mut [Rng],
    ) -> TwoViewLoss {
        images.check();
        let features = self.features(images, Mode::Training);
        let recolored = self.recolored(images, Mode::Training).expect("a detector of two views");
        let objects = images.targets_in_views(targets, self.config.n_classes);
        let rpn = self.proposing(images, &features, Some(&recolored));
        let said = RpnValues::of(&rpn);
        let proposed = self.proposals_to_learn(images, &rpn, &said);
        let mut losses = self.rpn_loss(&rpn, &said, &objects, options, rngs);
        let (proposed, mined): (Vec<Vec<Box2>>, Vec<Vec<Box2>>) = match two_views.mining {
            Some(mining) => {
                let of_image =
                    |(proposed, objects): (Vec<Proposed>, &Objects)| mining.split(proposed, objects);
                proposed.into_iter().zip(&objects).map(of_image).unzip()
            }
            None => (boxes_of(proposed), vec![Vec::new(); objects.len()]),
        };

        let first = self.sample(&features, &proposed, &objects, rngs);
        let found = self.found_in(images, &first, two_views.score_min);
        let (added, labeled): (Vec<Vec<Detection>>, Vec<Vec<Target>>) =
            targets.iter().zip(&found).map(|(targets, found)| with_found(targets, found)).unzip();
        let labeled = images.targets_in_views(&labeled, self.config.n_classes);
        let second = self.sample(&recolored, &proposed, &labeled, rngs);
        let views = [self.roi_loss(first, &objects, options), self.roi_loss(second, &labeled, options)]
            .map(Vec::from);
        let [first, second] = views.map(Losses);
        losses.extend(first.plus(second).times(0.5).0);

        let mined: Vec<Proposal> = flat(&mined).collect();
        if let (Some(mining), false) = (two_views.mining, mined.is_empty()) {
            let [(a, _), (b, _)] = [&features, &recolored].map(|features| self.embed(features, &mined));
            losses.push((Term::Consistency, (a - b).powi_scalar(2).mean().mul_scalar(mining.weight)));
        }
        TwoViewLoss { losses: Losses(losses), found, added }
    }

    /// The proposals that the box head learns from.
    fn proposals_to_learn(&self, images: &Images, rpn: &RpnOutput, said: &RpnValues) -> Vec<Vec<Proposed>> {
        let limits = self.config.training_proposals;
        self.propose(images, &rpn.anchors, &said.objectness, said.deltas.as_chunks().0, limits)
    }

    /// What sampled anchors cost: their objectness, and the deltas of positive ones.
    fn rpn_loss(
        &self,
        rpn: &RpnOutput,
        said: &RpnValues,
        objects: &[Objects],
        options: &LossOptions,
        rngs: &mut [Rng],
    ) -> Vec<(Term, Tensor<1>)> {
        let (objectness, deltas) = (&said.objectness, said.deltas.as_chunks::<4>().0);
        let anchors = rpn.anchors.boxes();
        let matches: Vec<_> =
            objects.par_iter().map(|objects| ANCHOR_MATCHER.matches(anchors, &objects.boxes)).collect();
        let samples: Vec<_> = matches
            .iter()
            .zip(rngs)
            .map(|(matches, rng)| self.config.anchor_samples.draw(matches, rng))
            .collect();
        let factors = options.normalization.factors(&samples.iter().map(Vec::len).collect::<Vec<_>>());
        let negative_weight = options.negative_weight.filter(|negative| negative.rpn);

        let mut through_weights = options.through_weights(4 * deltas.len());
        let (mut scores, mut regression) = (LossSum::new(objectness.len()), LossSum::new(4 * deltas.len()));
        for (image, objects) in objects.iter().enumerate() {
            let rows: Vec<usize> = rpn.anchors.rows(image).collect();
            let factor = factors[image];
            for &sample in &samples[image] {
                let (row, anchor) = (rows[sample], anchors[sample]);
                if let Match::Object(object) = matches[image][sample] {
                    scores.add(row, factor, binary_cross_entropy(objectness[row], 1.0));
                    if objects.placed[object] {
                        let target = ANCHOR_CODER.encode(anchor, objects.boxes[object]);
                        regression.add(4 * row, factor, smooth_l1(deltas[row], target, BETA));
                    }
                } else {
                    let (weight, gradient) = negative_weight.map_or((1.0, None), |negative| {
                        negative.of(anchor, || ANCHOR_CODER.decode(anchor, deltas[row]), objects)
                    });
                    let loss = binary_cross_entropy(objectness[row], 0.0);
                    scores.add(row, factor * weight, loss);
                    if let (Some(sum), Some(gradient)) = (&mut through_weights, gradient) {
                        let by_deltas = ANCHOR_CODER.gradient(anchor, deltas[row], gradient);
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

    /// What the box head says of a sample of the proposals, among which every object is proposed, too.
    fn sample(
        &self,
        features: &Levels,
        proposed: &[Vec<Box2>],
        objects: &[Objects],
        rngs: &mut [Rng],
    ) -> Sampled {
        let (mut proposals, mut matched, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for (image, (proposed, objects)) in proposed.iter().zip(objects).enumerate() {
            let proposed: Vec<Box2> = proposed.iter().chain(&objects.boxes).copied().collect();
            let matches = PROPOSAL_MATCHER.matches(&proposed, &objects.boxes);
            let samples = self.config.proposal_samples.draw(&matches, &mut rngs[image]);
            counts.push(samples.len());
            proposals.extend(samples.iter().map(|&sample| Proposal { image, bbox: proposed[sample] }));
            matched.extend(samples.iter().map(|&sample| matches[sample]));
        }
        let output = self.classify(features, &proposals);
        Sampled { proposals, matched, counts, output }
    }

    /// The detections of each image with a score above `score_min` in what was sampled, without doubles.
    fn found_in(&self, images: &Images, sampled: &Sampled, score_min: f32) -> Vec<Vec<Detection>> {
        let RoiOutput { logits, deltas, order } = &sampled.output;
        let (logits, deltas) = (ops::values(logits.clone()), ops::values(deltas.clone()));
        let mut found = vec![Vec::new(); images.sizes.len()];
        self.read(images, &sampled.proposals, (&logits, &deltas, order), score_min, &mut found);
        let post_process = PostProcess { nms_iou_max: DOUBLE_IOU_MAX.into(), ..self.config.post_process };
        let suppress =
            |(image, found): (usize, &Vec<Detection>)| post_process.suppress(found, (images, image));
        found.iter().enumerate().map(suppress).collect()
    }

    /// The losses of sampled proposals.
    fn roi_loss(
        &self,
        sampled: Sampled,
        objects: &[Objects],
        options: &LossOptions,
    ) -> [(Term, Tensor<1>); 2] {
        let Sampled { proposals, matched, counts, output } = sampled;
        let factors = options.normalization.factors(&counts);
        let negative_weight = options.negative_weight.filter(|negative| negative.proposals);

        let RoiOutput { logits, deltas, order } = output;
        let (scores, predicted) = (ops::values(logits.clone()), ops::values(deltas.clone()));
        let outputs = self.config.n_classes + 1;
        // With a γ of 0 it is cross entropy.
        let gamma = options.proposal_gamma.unwrap_or(0.0);
        let mut through_weights = options.through_weights(predicted.len());
        let (mut classification, mut regression) =
            (LossSum::new(scores.len()), LossSum::new(predicted.len()));
        for (row, &index) in order.iter().enumerate() {
            let Proposal { image, bbox } = proposals[index];
            let (factor, objects) = (factors[image], &objects[image]);
            let scores = &scores[row * outputs..][..outputs];
            let predicted = predicted[4 * row * outputs..][..4 * outputs].as_chunks().0;
            if let Match::Object(object) = matched[index] {
                let class = objects.classes[object] + 1;
                classification.add_softmax_focal(row * outputs, factor, scores, class, gamma);
                if objects.placed[object] {
                    let target = PROPOSAL_CODER.encode(bbox, objects.boxes[object]);
                    let loss = smooth_l1(predicted[class], target, BETA);
                    regression.add(4 * (row * outputs + class), factor, loss);
                }
            } else {
                // The box predicted from background is that of the likeliest object.
                let likeliest = || (1..outputs).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap_or(0);
                let (weight, gradient) = negative_weight.map_or((1.0, None), |negative| {
                    negative.of(bbox, || PROPOSAL_CODER.decode(bbox, predicted[likeliest()]), objects)
                });
                let loss = classification.add_softmax_focal(row * outputs, factor * weight, scores, 0, gamma);
                if let (Some(sum), Some(gradient)) = (&mut through_weights, gradient) {
                    let class = likeliest();
                    let by_deltas = PROPOSAL_CODER.gradient(bbox, predicted[class], gradient);
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

/// What is particular to the loss of two views.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TwoViews {
    /// What is found in the first view with a score above this is a target of the second.
    pub score_min: f32,
    pub mining: Option<Mining>,
}

/// The loss of two views, and the detections behind it, of each image and in its coordinates.
#[derive(Clone, Debug)]
pub struct TwoViewLoss {
    pub losses: Losses,
    /// In the first view.
    pub found: Vec<Vec<Detection>>,
    /// Those of them that were added to the targets of the second.
    pub added: Vec<Vec<Detection>>,
}

/// Which proposals are objects that nobody annotated, probably.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mining {
    /// They are objects more surely than this.
    pub objectness_min: f32,
    /// Their IoU with every annotation is at most this.
    pub iou_max: f32,
    /// Of those that overlap more than this one is taken, the surest.
    pub nms_iou_max: f32,
    /// What the distance of their features counts.
    pub weight: f32,
}

impl Mining {
    /// The proposals that stay, and those that were mined, without doubles.
    fn split(&self, proposed: Vec<Proposed>, objects: &Objects) -> (Vec<Box2>, Vec<Box2>) {
        let is_mined = |Proposed { bbox, objectness }: &Proposed| {
            *objectness > self.objectness_min
                && objects.boxes.iter().all(|object| iou(*bbox, *object) <= self.iou_max)
        };
        let (mined, left): (Vec<_>, Vec<_>) = proposed.into_iter().partition(is_mined);
        let (boxes, scores): (Vec<Box2>, Vec<f32>) =
            mined.into_iter().map(|mined| (mined.bbox, mined.objectness)).unzip();
        let kept = nms(&boxes, &scores, &vec![0; boxes.len()], self.nms_iou_max.into());
        (left.into_iter().map(|left| left.bbox).collect(), kept.into_iter().map(|at| boxes[at]).collect())
    }
}

/// Targets and detections of one class are the same object above this IoU (SAOD).
const DOUBLE_IOU_MAX: f32 = 0.5;

/// What was found besides the targets, and the targets with it.
///
/// Differs from the reference: there an annotation can suppress another of its class.
fn with_found(targets: &[Target], found: &[Detection]) -> (Vec<Detection>, Vec<Target>) {
    let given = || targets.iter().map(|target| (target.bbox, target.class));
    let is_new = |found: &&Detection| !found.is_one_of(given(), DOUBLE_IOU_MAX);
    let added: Vec<Detection> = found.iter().filter(is_new).copied().collect();
    let target = |&Detection { bbox, class, .. }: &Detection| Target { bbox, class, placed: true };
    let targets = targets.iter().copied().chain(added.iter().map(target)).collect();
    (added, targets)
}

fn boxes_of(proposed: Vec<Vec<Proposed>>) -> Vec<Vec<Box2>> {
    proposed.into_iter().map(|of_image| of_image.into_iter().map(|one| one.bbox).collect()).collect()
}

/// Sampled proposals, and what the box head says of them.
struct Sampled {
    proposals: Vec<Proposal>,
    matched: Vec<Match>,
    /// How many are of each image.
    counts: Vec<usize>,
    output: RoiOutput,
}

fn flat(proposed: &[Vec<Box2>]) -> impl Iterator<Item = Proposal> {
    let of_image = |(image, boxes): (usize, &Vec<Box2>)| {
        boxes.clone().into_iter().map(move |bbox| Proposal { image, bbox })
    };
    proposed.iter().enumerate().flat_map(of_image)
}

impl Samples {
    /// Positives and negatives at random, ascending.
    fn draw(&self, matches: &[Match], rng: &mut Rng) -> Vec<usize> {
        let (mut positive, mut negative) = (Vec::new(), Vec::new());
        for (index, matched) in matches.iter().enumerate() {
            match matched {
                Match::Object(_) => positive.push(index),
                Match::Background => negative.push(index),
                Match::Ignored => {}
            }
        }
        let positives = positive.len().min((self.count as f64 * self.positive_share) as usize);
        let negatives = negative.len().min(self.count - positives);
        let positive = rng.choose(positive.len(), positives).into_iter().map(|index| positive[index]);
        let mut drawn: Vec<usize> = positive.collect();
        drawn.extend(rng.choose(negative.len(), negatives).into_iter().map(|index| negative[index]));
        drawn.sort_unstable();
        drawn
    }
}

/// The level that a region is pooled from, P2 being 0: a region of 224² from P4, of half the side from
/// one level below (equation 1 of the pyramid's paper).
pub fn level_of(region: Box2, levels: usize) -> usize {
    let level = (4.0 + (region.area().sqrt() / 224.0).log2() + 1e-6).floor();
    (level.max(2.0) as usize - 2).min(levels - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn square(x: f32) -> Box2 {
        Box2::new(x, 0.0, x + 10.0, 10.0)
    }

    #[test]
    fn what_is_surely_an_object_away_from_annotations_is_mined() {
        let mining = Mining { objectness_min: 0.8, iou_max: 0.2, nms_iou_max: 0.3, weight: 1.0 };
        let objects = Objects { boxes: vec![square(0.0)], classes: vec![1], placed: vec![true] };
        let proposed = [(0.0, 0.99), (7.0, 0.9), (5.0, 0.9), (40.0, 0.9), (41.0, 0.95), (80.0, 0.8)];
        let proposed = proposed.map(|(x, objectness)| Proposed { bbox: square(x), objectness });
        let (left, mined) = mining.split(proposed.to_vec(), &objects);
        // An IoU of 30/170 is little enough, 50/150 is not; 0.8 is not above 0.8; of two the surer is taken, and both go.
        assert_eq!(left, [square(0.0), square(5.0), square(80.0)]);
        assert_eq!(mined, [square(41.0), square(7.0)]);
        // Nothing annotated is overlapped by nothing.
        let nothing = Objects::default();
        assert_eq!(mining.split(proposed.to_vec(), &nothing).0, [square(80.0)]);
    }

    #[test]
    fn annotations_come_before_what_was_found() {
        let target = |x: f32, class: usize| Target { bbox: square(x), class, placed: true };
        let found = |x: f32, class: usize| Detection { bbox: square(x), class, score: Score(0.95) };
        // An IoU of 80/120 is a double of its class only, one of 60/140 is none.
        let all = [found(2.0, 1), found(2.0, 0), found(4.0, 1)];
        let (added, targets) = with_found(&[target(0.0, 1)], &all);
        assert_eq!(added, all[1..]);
        assert_eq!(targets, [target(0.0, 1), target(2.0, 0), target(4.0, 1)]);
    }
}
