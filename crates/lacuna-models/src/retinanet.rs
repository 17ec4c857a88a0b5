//! RetinaNet (Lin et al., 2017): anchors on a pyramid, classified by focal loss.

use burn::module::Module;
use lacuna_boxes::Box2;
use serde::{Deserialize, Serialize};

use crate::anchors::{AnchorConfig, Anchors};
use crate::backbone::Backbone;
use crate::coder::BoxCoder;
use crate::detector::{DetectorConfigError, WIDTH_MAX, require};
use crate::fpn::{ExtraLevels, Pyramid};
use crate::images::Images;
use crate::layers::{Init, Mode};
use crate::loss_options::LossNormalization;
use crate::losses::{Loss, smooth_l1};
use crate::matcher::{AnchorMatch, Matcher};
use crate::one_stage::{HEAD_DEPTH_MAX, OneStage, OneStageHead, OneStageHeadConfig, OneStageOutput};
use crate::postprocess::PostProcess;
use crate::resnet::ResNetConfig;

/// The shape and the thresholds of a RetinaNet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetinaNetConfig {
    /// The number of classes, without background.
    pub n_classes: usize,
    /// The backbone.
    pub backbone: ResNetConfig,
    /// The channels of the pyramid and of the heads.
    pub width: usize,
    /// The convolutions of each head before the last one.
    pub head_depth: usize,
    /// Where the levels above P5 come from.
    pub extra_levels: ExtraLevels,
    /// The anchors.
    pub anchors: AnchorConfig,
    /// Where the regression loss turns from a parabola to a line; 0 is L1.
    pub smooth_l1_beta: f32,
    /// The best of each level that go on to non-maximum suppression.
    pub candidates_per_level: usize,
    /// From scores to detections.
    pub post_process: PostProcess,
}

impl RetinaNetConfig {
    /// The paper's values; post-processing is torchvision's.
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

    pub(crate) fn check(&self) -> Result<(), DetectorConfigError> {
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
        let head = OneStageHeadConfig {
            width: self.width,
            depth: self.head_depth,
            samples_per_location: self.anchors.per_location(),
            n_classes: self.n_classes,
            group_norm: false,
            centerness: false,
            positive_boxes: false,
        };
        RetinaNet { backbone, head: head.init(init), config: self.clone() }
    }
}

const CODER: BoxCoder = BoxCoder { weights: (1.0, 1.0) };

const MATCHER: Matcher = Matcher { object_min: 0.5, background_max: 0.4, low_quality: true };

/// A RetinaNet.
#[derive(Module, Debug)]
pub struct RetinaNet {
    backbone: Backbone,
    head: OneStageHead,
    #[module(skip)]
    config: RetinaNetConfig,
}

impl OneStage for RetinaNet {
    fn n_classes(&self) -> usize {
        self.config.n_classes
    }

    fn forward(&self, images: &Images, mode: Mode) -> OneStageOutput {
        let maps = self.backbone.forward(images.pixels.clone(), mode);
        let Pyramid { rows, levels } = Pyramid::from_maps(&maps);
        let anchors = self.config.anchors.over(&levels, images.padded());
        self.head.forward(rows, &levels, anchors)
    }

    fn post_process(&self) -> (PostProcess, usize) {
        (self.config.post_process, self.config.candidates_per_level)
    }

    fn matches(&self, samples: &Anchors, objects: &[Box2]) -> Vec<AnchorMatch> {
        MATCHER.matches(samples.boxes(), objects)
    }

    /// mmdetection counts an image without positives as one with one.
    fn positives_min(&self, normalization: LossNormalization) -> usize {
        usize::from(normalization == LossNormalization::Batch)
    }

    fn reference_box(&self, sample: Box2) -> Box2 {
        sample
    }

    fn decode(&self, sample: Box2, prediction: [f32; 4]) -> Box2 {
        CODER.decode(sample, prediction)
    }

    fn decode_gradient(&self, sample: Box2, prediction: [f32; 4], by_corners: [f32; 4]) -> [f32; 4] {
        CODER.gradient(sample, prediction, by_corners)
    }

    fn box_loss(&self, sample: Box2, prediction: [f32; 4], target: Box2) -> Loss<4> {
        smooth_l1(prediction, CODER.encode(sample, target), self.config.smooth_l1_beta)
    }

    fn centerness(&self, _: Box2, _: Box2) -> Option<f32> {
        None
    }
}
