//! The loss of two views of one geometry (SAOD, published as SparseDet: Suri et al., 2023).

use burn::Tensor;
use lacuna_boxes::{Box2, Detection, iou, nms};
use lacuna_random::Rng;

use super::FasterRcnn;
use super::box_head::{Proposal, SampledProposals, in_images};
use super::proposals::{RpnValues, ScoredProposal, boxes};
use crate::fpn::Levels;
use crate::images::{Images, Objects, Target};
use crate::layers::Mode;
use crate::loss_options::{LossOptions, Losses, Term};
use crate::postprocess::PostProcess;

/// Targets and detections of one class are the same object above this IoU.
const DUPLICATE_IOU_MAX: f32 = 0.5;

/// The options of the two-view loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TwoViews {
    /// Detections in the first view with a score above this become targets of the second.
    pub score_min: f32,
    /// Whether proposals that are probably objects without an annotation are treated apart.
    pub mining: Option<Mining>,
}

/// Which proposals are probably objects without an annotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mining {
    /// Their objectness is above this.
    pub objectness_min: f32,
    /// Their IoU with every annotation is at most this.
    pub iou_max: f32,
    /// Of two that overlap more than this, the one with the lower objectness is dropped.
    pub nms_iou_max: f32,
    /// The weight of the distance between their features in both views.
    pub weight: f32,
}

/// The two-view loss, and the detections behind it, of each image and in its coordinates.
#[derive(Clone, Debug)]
pub struct TwoViewLoss {
    /// The terms.
    pub losses: Losses,
    /// The detections in the first view.
    pub detections: Vec<Vec<Detection>>,
    /// Those of them that became targets of the second view.
    pub pseudo_labels: Vec<Vec<Detection>>,
}

impl FasterRcnn {
    /// The features of the second view, for a detector with two.
    pub(super) fn second_view_features(&self, images: &Images, mode: Mode) -> Option<Levels> {
        self.config.two_views.then(|| {
            let pixels = images.second_view.clone().expect("a detector of two views is given both");
            self.backbone.forward(pixels, mode)
        })
    }

    /// The loss of two views.
    ///
    /// 1. Regions are proposed from both views together.
    /// 2. With `mining`, proposals that are probably objects without an annotation are kept out of what the box head
    ///    samples. The mean squared distance between their features in both views is the term [`Term::Consistency`].
    /// 3. The first view learns the annotations, the second also the detections in the first. Their losses are averaged.
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
        let second_features =
            self.second_view_features(images, Mode::Training).expect("a detector of two views");
        let objects = images.targets_in_views(targets, self.config.n_classes);
        let rpn = self.rpn(images, &concatenate(&features, &second_features));
        let values = RpnValues::read(&rpn);
        let proposed = self.propose(images, &rpn.anchors, &values, self.config.training_proposals);
        let mut losses = self.rpn_loss(&rpn, &values, &objects, options, rngs);
        let (proposed, mined): (Vec<Vec<Box2>>, Vec<Vec<Box2>>) = match two_views.mining {
            Some(mining) => {
                let split =
                    |(proposed, objects): (Vec<ScoredProposal>, &Objects)| mining.split(proposed, objects);
                proposed.into_iter().zip(&objects).map(split).unzip()
            }
            None => (boxes(proposed), vec![Vec::new(); objects.len()]),
        };

        let first = self.sample_proposals(&features, &proposed, &objects, rngs);
        let detections = self.detections_without_duplicates(images, &first, two_views.score_min);
        let (pseudo_labels, labeled): (Vec<Vec<Detection>>, Vec<Vec<Target>>) = targets
            .iter()
            .zip(&detections)
            .map(|(targets, detections)| add_pseudo_labels(targets, detections))
            .unzip();
        let labeled = images.targets_in_views(&labeled, self.config.n_classes);
        let second = self.sample_proposals(&second_features, &proposed, &labeled, rngs);
        let views = [self.box_loss(first, &objects, options), self.box_loss(second, &labeled, options)];
        let [first, second] = views.map(|terms| Losses(terms.into()));
        losses.extend(first.plus(second).times(0.5).0);

        let mined: Vec<Proposal> = in_images(&mined).collect();
        if let (Some(mining), false) = (two_views.mining, mined.is_empty()) {
            let [(a, _), (b, _)] = [&features, &second_features].map(|features| self.embed(features, &mined));
            losses.push((Term::Consistency, (a - b).powi_scalar(2).mean().mul_scalar(mining.weight)));
        }
        TwoViewLoss { losses: Losses(losses), detections, pseudo_labels }
    }

    fn detections_without_duplicates(
        &self,
        images: &Images,
        sampled: &SampledProposals,
        score_min: f32,
    ) -> Vec<Vec<Detection>> {
        let found = self.sampled_detections(images, sampled, score_min);
        let post_process = PostProcess { nms_iou_max: DUPLICATE_IOU_MAX.into(), ..self.config.post_process };
        let suppress =
            |(image, found): (usize, &Vec<Detection>)| post_process.suppress(found, (images, image));
        found.iter().enumerate().map(suppress).collect()
    }
}

/// The features that regions are proposed from: those of both views, channel by channel.
pub(super) fn concatenate(first: &Levels, second: &Levels) -> Levels {
    first.iter().zip(second).map(|(a, b)| Tensor::cat(vec![a.clone(), b.clone()], 3)).collect()
}

impl Mining {
    /// The other proposals, and the mined ones without duplicates.
    fn split(&self, proposed: Vec<ScoredProposal>, objects: &Objects) -> (Vec<Box2>, Vec<Box2>) {
        let is_mined = |ScoredProposal { bbox, objectness }: &ScoredProposal| {
            *objectness > self.objectness_min
                && objects.boxes.iter().all(|object| iou(*bbox, *object) <= self.iou_max)
        };
        let (mined, others): (Vec<_>, Vec<_>) = proposed.into_iter().partition(is_mined);
        let (boxes, scores): (Vec<Box2>, Vec<f32>) =
            mined.into_iter().map(|mined| (mined.bbox, mined.objectness)).unzip();
        let kept = nms(&boxes, &scores, &vec![0; boxes.len()], self.nms_iou_max.into());
        let others = others.into_iter().map(|proposal| proposal.bbox).collect();
        (others, kept.into_iter().map(|index| boxes[index]).collect())
    }
}

/// The detections that are none of the targets, and the targets with them.
///
/// Differs from the reference: there an annotation can suppress another of its class.
fn add_pseudo_labels(targets: &[Target], detections: &[Detection]) -> (Vec<Detection>, Vec<Target>) {
    let annotated = || targets.iter().map(|target| (target.bbox, target.class));
    let is_new = |detection: &&Detection| !detection.is_one_of(annotated(), DUPLICATE_IOU_MAX);
    let pseudo_labels: Vec<Detection> = detections.iter().filter(is_new).copied().collect();
    let target = |&Detection { bbox, class, .. }: &Detection| Target { bbox, class, learn_box: true };
    let targets = targets.iter().copied().chain(pseudo_labels.iter().map(target)).collect();
    (pseudo_labels, targets)
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::Score;

    use super::*;

    fn square(x: f32) -> Box2 {
        Box2::new(x, 0.0, x + 10.0, 10.0)
    }

    #[test]
    fn probable_objects_away_from_annotations_are_mined() {
        let mining = Mining { objectness_min: 0.8, iou_max: 0.2, nms_iou_max: 0.3, weight: 1.0 };
        let objects = Objects { boxes: vec![square(0.0)], classes: vec![1], learn_box: vec![true] };
        let proposed = [(0.0, 0.99), (7.0, 0.9), (5.0, 0.9), (40.0, 0.9), (41.0, 0.95), (80.0, 0.8)];
        let proposed = proposed.map(|(x, objectness)| ScoredProposal { bbox: square(x), objectness });
        let (others, mined) = mining.split(proposed.to_vec(), &objects);
        // An IoU of 30/170 is low enough, 50/150 is not; 0.8 is not above 0.8. Of two duplicates the better one is mined,
        // and neither is among the others.
        assert_eq!(others, [square(0.0), square(5.0), square(80.0)]);
        assert_eq!(mined, [square(41.0), square(7.0)]);
        // Without annotations, nothing overlaps one.
        assert_eq!(mining.split(proposed.to_vec(), &Objects::default()).0, [square(80.0)]);
    }

    #[test]
    fn annotations_come_before_pseudo_labels() {
        let target = |x: f32, class: usize| Target { bbox: square(x), class, learn_box: true };
        let detection = |x: f32, class: usize| Detection { bbox: square(x), class, score: Score(0.95) };
        // With an IoU of 80/120 it is a duplicate within its class, with 60/140 it is none.
        let all = [detection(2.0, 1), detection(2.0, 0), detection(4.0, 1)];
        let (pseudo_labels, targets) = add_pseudo_labels(&[target(0.0, 1)], &all);
        assert_eq!(pseudo_labels, all[1..]);
        assert_eq!(targets, [target(0.0, 1), target(2.0, 0), target(4.0, 1)]);
    }
}
