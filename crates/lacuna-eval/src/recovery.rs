//! Recovery: how many of the objects that were hidden from a detector it proposes.

use std::iter::{self, Sum};
use std::ops::Add;

use lacuna_boxes::Detection;
use lacuna_data::{Dataset, Object};
use serde::{Deserialize, Serialize};

use crate::image_detection::best_first;
use crate::matching::{Truth, match_in_order};
use crate::{DetectionMatch, ImageDetection, match_detections};

/// How well proposed boxes recover hidden objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// Proposed boxes that match a hidden object.
    pub right: usize,
    /// All proposed boxes.
    pub proposed: usize,
    /// All hidden objects.
    pub hidden: usize,
}

impl Recovery {
    /// The share of the proposals that is right; `None` when nothing was proposed.
    pub fn precision(self) -> Option<f64> {
        ratio(self.right, self.proposed)
    }

    /// The share of the hidden objects that is recovered; `None` when nothing was hidden.
    pub fn recall(self) -> Option<f64> {
        ratio(self.right, self.hidden)
    }

    /// The harmonic mean of both, `2·right / (proposed + hidden)`; `None` when there is neither a proposal nor
    /// anything hidden.
    pub fn f1(self) -> Option<f64> {
        ratio(2 * self.right, self.proposed + self.hidden)
    }
}

fn ratio(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Add for Recovery {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            right: self.right + other.right,
            proposed: self.proposed + other.proposed,
            hidden: self.hidden + other.hidden,
        }
    }
}

impl Sum for Recovery {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Self::add)
    }
}

/// Compare the boxes proposed for one image with the objects hidden in it, by the rule of [`match_detections`].
/// Each object counts for one proposal.
pub fn recovery(proposed: &[Detection], hidden: &[Object], iou_min: f32) -> Recovery {
    let mut proposals: Vec<ImageDetection> =
        proposed.iter().map(|&p| ImageDetection::from_detection(0, p)).collect();
    proposals.sort_by(|a, b| best_first(a.score, b.score));
    let truth: Vec<Truth> = hidden.iter().map(Truth::from).collect();
    let matches = match_in_order(proposals.iter(), &truth, iou_min.into());
    let right = matches.iter().filter(|matched| matches!(matched, DetectionMatch::Matched(_))).count();
    Recovery { right, proposed: proposed.len(), hidden: hidden.len() }
}

/// The recovery by proposals with a confidence of at least a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RecoveryAbove {
    /// The least confidence of an accepted proposal.
    pub threshold: f64,
    /// The recovery by the accepted proposals.
    pub recovered: Recovery,
    /// The precision that the confidences promise: the mean confidence of the accepted proposals. `None` when none
    /// is accepted.
    pub promised_precision: Option<f64>,
}

/// Compare proposals, whose scores are confidences, with the objects hidden in all images, for each threshold.
///
/// Proposals are matched once ([`match_detections`]) for all thresholds. A match depends on proposals with higher
/// confidences only, so those below a threshold do not affect the ones above. A proposal that lies in a crowd
/// does not count.
///
/// # Panics
/// When an image is not of the data set.
pub fn recovery_above(
    hidden: &Dataset,
    proposals: &[ImageDetection],
    iou_min: f64,
    thresholds: &[f64],
) -> Vec<RecoveryAbove> {
    let matches = match_detections(hidden, proposals, iou_min);
    let judged = proposals.iter().zip(matches).filter(|(_, matched)| *matched != DetectionMatch::Ignored);
    let mut by_confidence: Vec<(f64, bool)> =
        judged.map(|(p, matched)| (p.score, matched != DetectionMatch::Wrong)).collect();
    by_confidence.sort_by(|a, b| best_first(a.0, b.0));
    // For each number of accepted proposals: how many are right, and the sum of the confidences.
    let sums = by_confidence.iter().scan((0, 0.0), |(right, confidence), proposal| {
        *right += usize::from(proposal.1);
        *confidence += proposal.0;
        Some((*right, *confidence))
    });
    let sums: Vec<(usize, f64)> = iter::once((0, 0.0)).chain(sums).collect();

    let hidden = hidden.annotations().iter().filter(|annotation| !annotation.crowd).count();
    let above = |&threshold: &f64| {
        let proposed = by_confidence.partition_point(|(confidence, _)| *confidence >= threshold);
        let (right, confidence) = sums[proposed];
        let promised_precision = (proposed > 0).then(|| confidence / proposed as f64);
        RecoveryAbove { threshold, recovered: Recovery { right, proposed, hidden }, promised_precision }
    };
    thresholds.iter().map(above).collect()
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::{Box2, Score};
    use lacuna_data::{Builder, Xywh};
    use proptest::prelude::*;

    use super::*;

    /// A box of 10 pixels' height from `x1` to `x2`.
    fn bar(x1: f32, x2: f32) -> Box2 {
        Box2::new(x1, 0.0, x2, 10.0)
    }

    fn object(class: usize, x1: f32, x2: f32) -> Object {
        Object { class, bbox: bar(x1, x2) }
    }

    fn proposal(class: usize, score: f32, x1: f32, x2: f32) -> Detection {
        Detection { bbox: bar(x1, x2), class, score: Score(score) }
    }

    fn right(proposed: &[Detection], hidden: &[Object]) -> usize {
        recovery(proposed, hidden, 0.5).right
    }

    #[test]
    fn an_object_counts_once() {
        let hidden = [object(0, 0.0, 10.0)];
        let twice = [proposal(0, 0.9, 0.0, 10.0), proposal(0, 0.8, 0.0, 9.0)];
        let counts = recovery(&twice, &hidden, 0.5);
        assert_eq!(counts, Recovery { right: 1, proposed: 2, hidden: 1 });
        assert_eq!((counts.precision(), counts.recall()), (Some(0.5), Some(1.0)));
        assert_eq!(counts.f1(), Some(2.0 / 3.0));
    }

    #[test]
    fn a_proposal_counts_once() {
        let twins = [object(0, 0.0, 10.0), object(0, 0.0, 10.0)];
        assert_eq!(right(&[proposal(0, 0.9, 0.0, 10.0)], &twins), 1);
        assert_eq!(right(&[proposal(0, 0.9, 0.0, 10.0), proposal(0, 0.9, 0.0, 10.0)], &twins), 2);
    }

    #[test]
    fn the_class_must_agree() {
        assert_eq!(right(&[proposal(1, 0.9, 0.0, 10.0)], &[object(0, 0.0, 10.0)]), 0);
    }

    #[test]
    fn the_threshold_itself_is_enough() {
        let hidden = [object(0, 0.0, 10.0)];
        assert_eq!(right(&[proposal(0, 0.9, 0.0, 5.0)], &hidden), 1);
        assert_eq!(right(&[proposal(0, 0.9, 0.0, 4.9)], &hidden), 0);
    }

    #[test]
    fn the_best_score_chooses_first_and_takes_what_it_overlaps_most() {
        // The wide box fits both objects, the second better; the narrow one fits the second alone.
        let hidden = [object(0, 0.0, 10.0), object(0, 4.0, 14.0)];
        let wide = |score| proposal(0, score, 2.5, 12.5);
        let narrow = |score| proposal(0, score, 6.0, 14.0);
        assert_eq!(right(&[narrow(0.8), wide(0.9)], &hidden), 1);
        assert_eq!(right(&[wide(0.8), narrow(0.9)], &hidden), 2);
    }

    #[test]
    fn nothing_of_nothing_is_not_a_share() {
        let nothing = recovery(&[], &[], 0.5);
        assert_eq!((nothing.precision(), nothing.recall(), nothing.f1()), (None, None, None));
        let missed = recovery(&[], &[object(0, 0.0, 1.0)], 0.5);
        assert_eq!((missed.precision(), missed.recall()), (None, Some(0.0)));
    }

    #[test]
    fn counts_add_up() {
        let one = Recovery { right: 1, proposed: 2, hidden: 3 };
        let sum: Recovery = [one, one, Recovery::default()].into_iter().sum();
        assert_eq!(sum, Recovery { right: 2, proposed: 4, hidden: 6 });
    }

    /// One class and two images with these hidden in them: image, and from where over how many pixels.
    fn hide(objects: &[(usize, f64, f64)], crowds: &[(usize, f64, f64)]) -> Dataset {
        let mut builder = Builder::default();
        let class = builder.category("");
        for name in ["a.jpg", "b.jpg"] {
            builder.image(name, 100, 100);
        }
        for (list, crowd) in [(objects, false), (crowds, true)] {
            for &(image, x, width) in list {
                builder.annotation(image, class, Xywh { x, y: 0.0, width, height: 10.0 }, crowd, ());
            }
        }
        builder.finish()
    }

    fn proposed(image: usize, confidence: f64, x: f64, width: f64) -> ImageDetection {
        ImageDetection { image, class: 0, bbox: Xywh { x, y: 0.0, width, height: 10.0 }, score: confidence }
    }

    #[test]
    fn what_reaches_a_threshold_is_accepted_and_promises_its_mean_confidence() {
        let hidden = hide(&[(0, 0.0, 10.0), (1, 0.0, 10.0), (1, 50.0, 10.0)], &[(0, 30.0, 40.0)]);
        let proposals = [
            proposed(0, 0.5, 0.0, 10.0),
            proposed(1, 0.9, 0.0, 9.0),
            // The same object again, and one in the crowd, which counts nowhere.
            proposed(1, 0.75, 0.0, 10.0),
            proposed(0, 1.0, 40.0, 10.0),
        ];
        let [all, some, one, none] = recovery_above(&hidden, &proposals, 0.5, &[0.0, 0.6, 0.9, 0.95])[..]
        else {
            panic!("four")
        };
        assert_eq!(all.recovered, Recovery { right: 2, proposed: 3, hidden: 3 });
        assert_eq!(some.recovered, Recovery { right: 1, proposed: 2, hidden: 3 });
        assert_eq!(one.recovered, Recovery { right: 1, proposed: 1, hidden: 3 });
        assert_eq!(none.recovered, Recovery { right: 0, proposed: 0, hidden: 3 });
        assert_eq!((some.promised_precision, some.recovered.precision()), (Some(0.825), Some(0.5)));
        assert_eq!((none.threshold, none.promised_precision), (0.95, None));
    }

    proptest! {
        /// Matching once and cutting is matching what is above each threshold alone.
        #[test]
        fn one_matching_serves_all_thresholds(
            objects in prop::collection::vec((0usize..2, 0u8..15, 1u8..15), 0..10),
            crowds in prop::collection::vec((0usize..2, 0u8..15, 1u8..15), 0..3),
            proposals in prop::collection::vec((0usize..2, 0u8..=8, 0u8..15, 1u8..15), 0..20),
            thresholds in prop::collection::vec(0.0f64..=1.0, 1..6),
        ) {
            let bars = |list: &[(usize, u8, u8)]| -> Vec<(usize, f64, f64)> {
                list.iter().map(|&(image, x, width)| (image, x.into(), width.into())).collect()
            };
            let hidden = hide(&bars(&objects), &bars(&crowds));
            let proposals: Vec<ImageDetection> = (proposals.iter())
                .map(|&(image, eighths, x, width)| proposed(image, f64::from(eighths) / 8.0, x.into(), width.into()))
                .collect();
            for above in recovery_above(&hidden, &proposals, 0.5, &thresholds) {
                let accepted: Vec<ImageDetection> =
                    proposals.iter().copied().filter(|p| p.score >= above.threshold).collect();
                let alone = match_detections(&hidden, &accepted, 0.5);
                let right = alone.iter().filter(|matched| matches!(matched, DetectionMatch::Matched(_))).count();
                let proposed = alone.iter().filter(|matched| **matched != DetectionMatch::Ignored).count();
                prop_assert_eq!(above.recovered, Recovery { right, proposed, hidden: objects.len() });
            }
        }
    }
}
