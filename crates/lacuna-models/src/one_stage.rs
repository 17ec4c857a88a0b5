//! What RetinaNet and FCOS share: a head over every sample of a pyramid, its detections, and its loss.
//!
//! A sample is an anchor of RetinaNet or a location of FCOS. The head says of each sample which class it is and which
//! box to predict from it; the detector's rules ([`OneStage`]) say which object a sample is to find.

use burn::Tensor;
use burn::module::Module;
use lacuna_boxes::{Box2, Detection};
use rayon::prelude::*;

use crate::anchors::Anchors;
use crate::images::{Images, Objects, Target};
use crate::layers::{Conv, Draw, EPSILON, GroupNorm, Init, Mode};
use crate::loss_options::{LossNormalization, LossOptions, Losses, Term};
use crate::losses::{Loss, LossSum, binary_cross_entropy, focal_background, sigmoid, with_gradient};
use crate::matcher::AnchorMatch;
use crate::ops::{self, FocalLoss, Grid, Window};
use crate::postprocess::{PostProcess, logit_floor};

/// The most convolutions that a branch of the head may have.
pub(crate) const HEAD_DEPTH_MAX: usize = 64;

/// `−ln((1 − π)/π)` with π = 0.01: at first a sample is an object with a probability of 1 %.
const PRIOR_LOGIT: f32 = -4.595_12;

const FOCAL: FocalLoss = FocalLoss { alpha: 0.25, gamma: 2.0 };

/// The head: a branch of convolutions for classes, another for boxes.
#[derive(Module, Debug)]
pub(crate) struct OneStageHead {
    classification_head: ClassificationHead,
    regression_head: RegressionHead,
    #[module(skip)]
    config: OneStageHeadConfig,
}

#[derive(Module, Debug)]
struct ClassificationHead {
    conv: Branch,
    cls_logits: Conv,
}

#[derive(Module, Debug)]
struct RegressionHead {
    conv: Branch,
    bbox_reg: Conv,
    /// FCOS only.
    bbox_ctrness: Option<Conv>,
}

/// Convolutions with ReLU; between the two FCOS has a group norm.
type Branch = Vec<(Conv, Option<GroupNorm>)>;

/// What makes a head's shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneStageHeadConfig {
    /// The channels of the pyramid and of the branches.
    pub(crate) width: usize,
    /// The convolutions of a branch.
    pub(crate) depth: usize,
    pub(crate) samples_per_location: usize,
    pub(crate) n_classes: usize,
    /// Whether each convolution of a branch has a group norm.
    pub(crate) group_norm: bool,
    pub(crate) centerness: bool,
    /// Whether a ReLU is behind the numbers of a box.
    pub(crate) positive_boxes: bool,
}

impl OneStageHeadConfig {
    pub(crate) fn init(self, init: &mut Init) -> OneStageHead {
        // The order of these lines is the order of the random draws.
        let conv = self.branch(init);
        let cls_logits =
            self.conv(self.samples_per_location * self.n_classes, init).biased(PRIOR_LOGIT, init);
        let classification_head = ClassificationHead { conv, cls_logits };
        let conv = self.branch(init);
        let bbox_reg = self.conv(self.samples_per_location * 4, init);
        let bbox_ctrness = self.centerness.then(|| self.conv(self.samples_per_location, init));
        let regression_head = RegressionHead { conv, bbox_reg, bbox_ctrness };
        OneStageHead { classification_head, regression_head, config: self }
    }

    fn branch(&self, init: &mut Init) -> Branch {
        let norm = |init: &Init| self.group_norm.then(|| GroupNorm::new(EPSILON, self.width, init));
        (0..self.depth).map(|_| (self.conv(self.width, init), norm(init))).collect()
    }

    fn conv(&self, outputs: usize, init: &mut Init) -> Conv {
        Conv::with_bias(self.width, outputs, Window::new(3, 1, 1), Draw::Normal { std: 0.01 }, init)
    }
}

/// What the head says of every sample of every image, in the order of [`Anchors`].
pub(crate) struct OneStageOutput {
    /// `[rows, n_classes]`
    pub(crate) logits: Tensor<2>,
    /// `[rows, 4]`: the box, as [`OneStage::decode`] reads it.
    pub(crate) boxes: Tensor<2>,
    /// `[rows, 1]`, of FCOS.
    pub(crate) centerness: Option<Tensor<2>>,
    pub(crate) samples: Anchors,
}

impl OneStageHead {
    /// `rows [Σ N·H·W, C]` of all `levels`.
    pub(crate) fn forward(&self, rows: Tensor<2>, levels: &[Grid], samples: Anchors) -> OneStageOutput {
        let Self { classification_head, regression_head, config } = self;
        let x = run_branch(rows.clone(), levels, &classification_head.conv);
        let logits = classification_head.cls_logits.over_pyramid(x, levels, false);
        let x = run_branch(rows, levels, &regression_head.conv);
        let boxes = regression_head.bbox_reg.over_pyramid(x.clone(), levels, config.positive_boxes);
        let centerness =
            regression_head.bbox_ctrness.as_ref().map(|conv| conv.over_pyramid(x, levels, false));
        let n = samples.n_rows();
        OneStageOutput {
            logits: logits.reshape([n, config.n_classes]),
            boxes: boxes.reshape([n, 4]),
            centerness,
            samples,
        }
    }
}

fn run_branch(rows: Tensor<2>, levels: &[Grid], branch: &Branch) -> Tensor<2> {
    branch.iter().fold(rows, |rows, (conv, norm)| match norm {
        None => conv.over_pyramid(rows, levels, true),
        Some(norm) => norm.forward(conv.over_pyramid(rows, levels, false), levels, true),
    })
}

/// The rules of a one-stage detector.
pub(crate) trait OneStage: Sync {
    fn n_classes(&self) -> usize;

    fn forward(&self, images: &Images, mode: Mode) -> OneStageOutput;

    /// The post-processing, and the best of each level that go on to it.
    fn post_process(&self) -> (PostProcess, usize);

    /// What each sample of an image is to find.
    fn matches(&self, samples: &Anchors, objects: &[Box2]) -> Vec<AnchorMatch>;

    /// The positives that an image counts at least when losses are divided by them.
    fn positives_min(&self, normalization: LossNormalization) -> usize;

    /// The box that stands for a sample where its overlap with objects matters.
    fn reference_box(&self, sample: Box2) -> Box2;

    fn decode(&self, sample: Box2, prediction: [f32; 4]) -> Box2;

    /// From a gradient by the corners of the decoded box to one by the prediction.
    fn decode_gradient(&self, sample: Box2, prediction: [f32; 4], by_corners: [f32; 4]) -> [f32; 4];

    /// The loss of a predicted box, with its gradient by the prediction.
    fn box_loss(&self, sample: Box2, prediction: [f32; 4], target: Box2) -> Loss<4>;

    /// What a sample learns as its center-ness, if the detector has it.
    fn centerness(&self, sample: Box2, target: Box2) -> Option<f32>;
}

/// The detections of each image with a score above `score_min`. The score of a class is its probability `p`, and with
/// center-ness `c` it is `√(p·c)`.
pub(crate) fn detect(detector: &impl OneStage, images: &Images, score_min: f32) -> Vec<Vec<Detection>> {
    let OneStageOutput { logits, boxes, centerness, samples } = detector.forward(images, Mode::Inference);
    let (logits, boxes, centerness) = (ops::values(logits), ops::values(boxes), centerness.map(ops::values));
    let boxes = boxes.as_chunks().0;
    let (post_process, per_level) = detector.post_process();
    let post_process = post_process.above(score_min);
    let probability_min = match centerness {
        None => post_process.score_min,
        Some(_) => post_process.score_min * post_process.score_min,
    };
    let score = |row: usize, logit: f32| match &centerness {
        None => sigmoid(logit),
        Some(centerness) => (sigmoid(logit) * sigmoid(centerness[row])).sqrt(),
    };
    let detect_in_image = |image| {
        post_process.dense(
            (images, image),
            &samples,
            (&logits, detector.n_classes()),
            (logit_floor(probability_min), per_level),
            score,
            |row, sample| detector.decode(sample, boxes[row]),
        )
    };
    (0..images.sizes.len()).into_par_iter().map(detect_in_image).collect()
}

/// The losses of several sets of targets in one pass over the images.
pub(crate) fn losses<const N: usize>(
    detector: &impl OneStage,
    images: &Images,
    sets: [(&[Vec<Target>], LossOptions); N],
) -> [Losses; N] {
    let output = detector.forward(images, Mode::Training);
    sets.map(|(targets, options)| loss(detector, &output, images, targets, &options))
}

fn loss(
    detector: &impl OneStage,
    output: &OneStageOutput,
    images: &Images,
    targets: &[Vec<Target>],
    options: &LossOptions,
) -> Losses {
    let OneStageOutput { logits, boxes, centerness, samples } = output;
    let n_classes = detector.n_classes();
    let objects = images.targets_in_views(targets, n_classes);
    let match_all = |objects: &[Objects]| -> Vec<Vec<AnchorMatch>> {
        objects.par_iter().map(|objects| detector.matches(samples, &objects.boxes)).collect()
    };
    let factors_from = |matches: &[Vec<AnchorMatch>], objects: &[Objects]| {
        let matched = |image: usize| matches[image].iter().filter_map(AnchorMatch::object);
        let count_min = detector.positives_min(options.normalization);
        options.normalization.positive_factors(matched, objects, count_min)
    };
    let matches = match_all(&objects);
    let [mut factors, box_factors] = factors_from(&matches, &objects);
    if let Some(counted) = options.counted {
        let counted = images.targets_in_views(counted, n_classes);
        [factors, _] = factors_from(&match_all(&counted), &counted);
    }

    let predicted = ops::values(boxes.clone());
    let predicted = predicted.as_chunks::<4>().0;
    let centers = centerness.clone().map(ops::values);
    let n = samples.n_rows();
    let mut through_weights = options.gradient_through_weights(4 * n);
    let scores = through_weights.as_ref().map(|_| ops::values(logits.clone()));
    // A row that is neither an object nor background keeps the weight 0.
    let (mut labels, mut weights) = (vec![-1; n], vec![0.0; n]);
    let mut regression = LossSum::new(4 * n);
    let mut centering = centers.as_ref().map(|_| LossSum::new(n));
    let mut unlabeled = Vec::new();
    for (image, (matches, objects)) in matches.iter().zip(&objects).enumerate() {
        let factor = factors[image];
        for ((row, &sample), matched) in samples.rows(image).zip(samples.boxes()).zip(matches) {
            match *matched {
                AnchorMatch::Object(object) => {
                    labels[row] = objects.classes[object] as i32;
                    weights[row] = factor;
                    if objects.learn_box[object] {
                        let (target, factor) = (objects.boxes[object], box_factors[image]);
                        regression.add(4 * row, factor, detector.box_loss(sample, predicted[row], target));
                        if let (Some(sum), Some(centers), Some(wanted)) =
                            (&mut centering, &centers, detector.centerness(sample, target))
                        {
                            sum.add(row, factor, binary_cross_entropy(centers[row], wanted));
                        }
                    }
                }
                AnchorMatch::Background => {
                    let reference = detector.reference_box(sample);
                    let (weight, gradient) = options.negative_weight.map_or((1.0, None), |negative| {
                        negative.weigh(reference, || detector.decode(sample, predicted[row]), objects)
                    });
                    weights[row] = factor * weight;
                    if let Some(recalibration) = options.recalibration
                        && recalibration.applies_to(reference, objects)
                    {
                        weights[row] *= recalibration.weight;
                        unlabeled.push(row);
                    }
                    if let (Some(sum), Some(scores), Some(by_corners)) =
                        (&mut through_weights, &scores, gradient)
                    {
                        let loss = focal_background(&scores[row * n_classes..][..n_classes], FOCAL);
                        let gradient = detector.decode_gradient(sample, predicted[row], by_corners);
                        sum.add_gradient(4 * row, factor * loss, gradient);
                    }
                }
                AnchorMatch::Ignored => {}
            }
        }
    }
    let classification = options.classification(logits.clone(), labels, weights, &unlabeled, FOCAL);
    let mut losses = vec![
        (Term::Classification, with_gradient(classification, through_weights, boxes)),
        (Term::Regression, regression.into_tensor(boxes.clone())),
    ];
    if let (Some(sum), Some(centerness)) = (centering, centerness) {
        losses.push((Term::Centerness, sum.into_tensor(centerness.clone())));
    }
    Losses(losses)
}
