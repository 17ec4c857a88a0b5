//! FCOS (Tian et al., 2019): every location of a pyramid predicts a box around itself.

use burn::module::Module;
use lacuna_boxes::Box2;
use serde::{Deserialize, Serialize};

use crate::anchors::Anchors;
use crate::backbone::Backbone;
use crate::coder::distances;
use crate::detector::{DetectorConfigError, WIDTH_MAX, require};
use crate::fpn::{ExtraLevels, Pyramid};
use crate::images::Images;
use crate::layers::{GROUPS, Init, Mode};
use crate::loss_options::LossNormalization;
use crate::losses::{Loss, giou};
use crate::matcher::AnchorMatch;
use crate::one_stage::{HEAD_DEPTH_MAX, OneStage, OneStageHead, OneStageHeadConfig, OneStageOutput};
use crate::postprocess::PostProcess;
use crate::resnet::ResNetConfig;

/// The shape and the thresholds of an FCOS.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FcosConfig {
    /// The number of classes, without background.
    pub n_classes: usize,
    /// The backbone.
    pub backbone: ResNetConfig,
    /// The channels of the pyramid and of the heads, a multiple of 32.
    pub width: usize,
    /// The convolutions of each head before the last one, each with a group norm.
    pub head_depth: usize,
    /// Where the levels above P5 come from.
    pub extra_levels: ExtraLevels,
    /// How far from an object's center, in strides, a location may be to predict it.
    pub center_radius: f32,
    /// The best of each level that go on to non-maximum suppression.
    pub candidates_per_level: usize,
    /// From scores to detections.
    pub post_process: PostProcess,
}

impl FcosConfig {
    /// The paper's values; post-processing is torchvision's.
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

    pub(crate) fn check(&self) -> Result<(), DetectorConfigError> {
        let divisible = (1..=WIDTH_MAX).contains(&self.width) && self.width.is_multiple_of(GROUPS);
        require(divisible, "width", "a multiple of 32, the groups of its norms, up to 8192")?;
        require(self.head_depth <= HEAD_DEPTH_MAX, "head_depth", "at most 64")?;
        require(self.center_radius > 0.0 && self.center_radius.is_finite(), "center_radius", "positive")?;
        require(self.candidates_per_level > 0, "candidates_per_level", "1 at least")?;
        self.post_process.check()
    }

    pub(crate) fn init(&self, init: &mut Init) -> Fcos {
        let backbone = Backbone::p3_to_p7(&self.backbone, self.width, self.extra_levels, init);
        let head = OneStageHeadConfig {
            width: self.width,
            depth: self.head_depth,
            samples_per_location: 1,
            n_classes: self.n_classes,
            group_norm: true,
            centerness: true,
            positive_boxes: true,
        };
        Fcos { backbone, head: head.init(init), config: self.clone() }
    }
}

/// An FCOS. Its samples are locations, given as squares of the stride's size.
#[derive(Module, Debug)]
pub struct Fcos {
    backbone: Backbone,
    head: OneStageHead,
    #[module(skip)]
    config: FcosConfig,
}

impl OneStage for Fcos {
    fn n_classes(&self) -> usize {
        self.config.n_classes
    }

    fn forward(&self, images: &Images, mode: Mode) -> OneStageOutput {
        let maps = self.backbone.forward(images.pixels.clone(), mode);
        let Pyramid { rows, levels } = Pyramid::from_maps(&maps);
        let locations = Anchors::locations(&levels, images.padded());
        self.head.forward(rows, &levels, locations)
    }

    fn post_process(&self) -> (PostProcess, usize) {
        (self.config.post_process, self.config.candidates_per_level)
    }

    fn matches(&self, samples: &Anchors, objects: &[Box2]) -> Vec<AnchorMatch> {
        let matched = objects_at(samples, objects, self.config.center_radius);
        matched
            .into_iter()
            .map(|object| object.map_or(AnchorMatch::Background, AnchorMatch::Object))
            .collect()
    }

    fn positives_min(&self, _: LossNormalization) -> usize {
        0
    }

    /// The square anchor that RetinaNet has at the location, four strides wide.
    fn reference_box(&self, sample: Box2) -> Box2 {
        let ((x, y), half) = (sample.center(), 2.0 * sample.width());
        Box2::new(x - half, y - half, x + half, y + half)
    }

    fn decode(&self, sample: Box2, prediction: [f32; 4]) -> Box2 {
        distances::decode(sample, prediction)
    }

    fn decode_gradient(&self, sample: Box2, _: [f32; 4], by_corners: [f32; 4]) -> [f32; 4] {
        distances::gradient(sample, by_corners)
    }

    fn box_loss(&self, sample: Box2, prediction: [f32; 4], target: Box2) -> Loss<4> {
        let (loss, by_corners) = giou(distances::decode(sample, prediction), target);
        (loss, distances::gradient(sample, by_corners))
    }

    fn centerness(&self, sample: Box2, target: Box2) -> Option<f32> {
        Some(centerness_from(distances::encode(sample, target)))
    }
}

/// `√(min(l, r)/max(l, r) · min(t, b)/max(t, b))`: 1 in the middle of an object, 0 at its border.
pub(crate) fn centerness_from([left, top, right, bottom]: [f32; 4]) -> f32 {
    (left.min(right) / left.max(right) * (top.min(bottom) / top.max(bottom))).sqrt()
}

/// The object that each location of an image is to find: it is inside the object, near its center, and
/// the farthest side is 4 to 8 strides away (nearer at the finest level, farther at the coarsest); of
/// several objects the smallest.
///
/// Differs from the reference: there an object of 10⁸ square pixels or more is never found.
pub(crate) fn objects_at(locations: &Anchors, objects: &[Box2], center_radius: f32) -> Vec<Option<usize>> {
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
