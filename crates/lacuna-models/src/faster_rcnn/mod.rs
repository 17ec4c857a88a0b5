//! Faster R-CNN (Ren et al., 2015) on a pyramid (Lin et al., 2017): a network proposes regions, and a head classifies
//! each of them.
//!
//! `proposals.rs` is the first stage, `box_head.rs` the second; both learn from a sample of their boxes (`sampling.rs`).
//! `two_views.rs` is the loss of SAOD.

mod box_head;
mod proposals;
mod sampling;
mod two_views;

use burn::module::Module;
use lacuna_boxes::Detection;
use lacuna_random::Rng;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use self::box_head::RoiHeads;
#[cfg(test)]
pub(crate) use self::box_head::pooling_level;
pub(crate) use self::box_head::{Proposal, ROI_SIZE, RoiOutput};
pub use self::proposals::Proposals;
use self::proposals::Rpn;
pub(crate) use self::proposals::RpnValues;
pub use self::sampling::Samples;
pub use self::two_views::{Mining, TwoViewLoss, TwoViews};
use crate::anchors::AnchorConfig;
use crate::backbone::Backbone;
use crate::detector::{DetectorConfigError, WIDTH_MAX, require};
use crate::fpn::Levels;
use crate::images::{Images, Target};
use crate::layers::{Init, Mode};
use crate::loss_options::{LossOptions, Losses};
use crate::ops;
use crate::postprocess::PostProcess;
use crate::resnet::ResNetConfig;

/// The shape and the thresholds of a Faster R-CNN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FasterRcnnConfig {
    /// The number of classes, without background.
    pub n_classes: usize,
    /// The backbone.
    pub backbone: ResNetConfig,
    /// The channels of the pyramid and of the proposal network.
    pub width: usize,
    /// The channels of the two layers of the box head.
    pub head_width: usize,
    /// The anchors of the proposal network.
    pub anchors: AnchorConfig,
    /// The proposals of an image in training.
    pub training_proposals: Proposals,
    /// The proposals of an image in inference.
    pub proposals: Proposals,
    /// The anchors of an image that the proposal network learns from.
    pub anchor_samples: Samples,
    /// The proposals of an image that the box head learns from.
    pub proposal_samples: Samples,
    /// From scores to detections.
    pub post_process: PostProcess,
    /// SAOD: regions are proposed from two views of one geometry in different colors, and classified in the first.
    /// Serialized only if set.
    #[serde(default, skip_serializing_if = "is_false")]
    pub two_views: bool,
}

// Serde asks for a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !value
}

impl FasterRcnnConfig {
    /// torchvision's values, which are those of the papers.
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

    pub(crate) fn check(&self) -> Result<(), DetectorConfigError> {
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
        let rpn = Rpn::new(rpn_width, self.anchors.per_location(), init);
        let roi_heads = RoiHeads::new(self, init);
        FasterRcnn { backbone, rpn, roi_heads, config: self.clone() }
    }
}

/// The proposals that are pooled at once in inference: their maps are 50 kB each.
const POOLED_AT_ONCE: usize = 1024;

/// Where the regression losses turn from a parabola to a line.
const SMOOTH_L1_BETA: f32 = 1.0 / 9.0;

/// A Faster R-CNN.
#[derive(Module, Debug)]
pub struct FasterRcnn {
    backbone: Backbone,
    rpn: Rpn,
    roi_heads: RoiHeads,
    #[module(skip)]
    config: FasterRcnnConfig,
}

impl FasterRcnn {
    pub(crate) fn two_views(&self) -> bool {
        self.config.two_views
    }

    pub(crate) fn features(&self, images: &Images, mode: Mode) -> Levels {
        self.backbone.forward(images.pixels.clone(), mode)
    }

    /// The detections of each image with a score above `score_min`.
    pub(crate) fn detect(&self, images: &Images, score_min: f32) -> Vec<Vec<Detection>> {
        let post_process = self.config.post_process.above(score_min);
        let features = self.features(images, Mode::Inference);
        let rpn = match self.second_view_features(images, Mode::Inference) {
            Some(second) => self.rpn(images, &two_views::concatenate(&features, &second)),
            None => self.rpn(images, &features),
        };
        let proposed = self.propose(images, &rpn.anchors, &RpnValues::read(&rpn), self.config.proposals);
        let proposals: Vec<Proposal> = box_head::in_images(&proposals::boxes(proposed)).collect();
        let mut found = vec![Vec::new(); images.sizes.len()];
        for proposals in proposals.chunks(POOLED_AT_ONCE) {
            let RoiOutput { logits, deltas, order } = self.classify(&features, proposals);
            let values = (&*ops::values(logits), &*ops::values(deltas), &*order);
            self.add_detections(images, proposals, values, post_process.score_min, &mut found);
        }
        let suppress =
            |(image, found): (usize, &Vec<Detection>)| post_process.suppress(found, (images, image));
        found.par_iter().enumerate().map(suppress).collect()
    }

    /// The losses of several sets of targets in one pass over the images. The sets share the proposals, apart from the
    /// targets themselves.
    pub(crate) fn losses<const N: usize>(
        &self,
        images: &Images,
        sets: [(&[Vec<Target>], LossOptions); N],
        rngs: &mut [Rng],
    ) -> [Losses; N] {
        assert!(!self.config.two_views, "a detector of two views learns from both");
        let features = self.features(images, Mode::Training);
        let rpn = self.rpn(images, &features);
        let values = RpnValues::read(&rpn);
        let proposed =
            proposals::boxes(self.propose(images, &rpn.anchors, &values, self.config.training_proposals));
        sets.map(|(targets, options)| {
            let objects = images.targets_in_views(targets, self.config.n_classes);
            let mut losses = self.rpn_loss(&rpn, &values, &objects, &options, rngs);
            let sampled = self.sample_proposals(&features, &proposed, &objects, rngs);
            losses.extend(self.box_loss(sampled, &objects, &options));
            Losses(losses)
        })
    }
}
