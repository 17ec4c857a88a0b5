use std::iter::Sum;
use std::ops::Add;

use lacuna_boxes::{Detection, iou};
use lacuna_data::Object;
use serde::{Deserialize, Serialize};

/// How many of the objects that were hidden from a detector it has found again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovered {
    /// Proposed boxes that have a hidden object for themselves.
    pub right: usize,
    pub proposed: usize,
    pub hidden: usize,
}

impl Recovered {
    /// The share of the proposals that is right; `None` when nothing was proposed.
    pub fn precision(self) -> Option<f64> {
        share(self.right, self.proposed)
    }

    /// The share of the hidden objects that was found; `None` when nothing was hidden.
    pub fn recall(self) -> Option<f64> {
        share(self.right, self.hidden)
    }
}

fn share(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Add for Recovered {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            right: self.right + other.right,
            proposed: self.proposed + other.proposed,
            hidden: self.hidden + other.hidden,
        }
    }
}

impl Sum for Recovered {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Self::add)
    }
}

/// Compare the boxes proposed for one image with the objects hidden in it.
///
/// COCO's matching: the best score chooses first, and takes the object of its class that it overlaps most,
/// at an IoU of at least `iou_min`, among those that are left. Every object counts for one proposal only.
pub fn recovered(proposed: &[Detection], hidden: &[Object], iou_min: f32) -> Recovered {
    let mut best_first: Vec<&Detection> = proposed.iter().collect();
    best_first.sort_by(|a, b| b.score.0.total_cmp(&a.score.0));
    let mut left: Vec<&Object> = hidden.iter().collect();
    for proposal in best_first {
        let overlaps = left.iter().enumerate().filter(|(_, object)| object.class == proposal.class);
        let overlaps = overlaps.map(|(index, object)| (index, iou(proposal.bounds, object.bbox)));
        let enough = overlaps.filter(|&(_, iou)| iou >= iou_min);
        if let Some((index, _)) = enough.max_by(|a, b| a.1.total_cmp(&b.1)) {
            left.remove(index);
        }
    }
    Recovered { right: hidden.len() - left.len(), proposed: proposed.len(), hidden: hidden.len() }
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::{Box2, Score};

    use super::*;

    /// A box of 10 pixels' height from `x1` to `x2`.
    fn bar(x1: f32, x2: f32) -> Box2 {
        Box2::new(x1, 0.0, x2, 10.0)
    }

    fn object(class: usize, x1: f32, x2: f32) -> Object {
        Object { class, bbox: bar(x1, x2) }
    }

    fn proposal(class: usize, score: f32, x1: f32, x2: f32) -> Detection {
        Detection { bounds: bar(x1, x2), class, score: Score(score) }
    }

    fn right(proposed: &[Detection], hidden: &[Object]) -> usize {
        recovered(proposed, hidden, 0.5).right
    }

    #[test]
    fn an_object_counts_once() {
        let hidden = [object(0, 0.0, 10.0)];
        let twice = [proposal(0, 0.9, 0.0, 10.0), proposal(0, 0.8, 0.0, 9.0)];
        let counts = recovered(&twice, &hidden, 0.5);
        assert_eq!(counts, Recovered { right: 1, proposed: 2, hidden: 1 });
        assert_eq!((counts.precision(), counts.recall()), (Some(0.5), Some(1.0)));
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
        let nothing = recovered(&[], &[], 0.5);
        assert_eq!((nothing.precision(), nothing.recall()), (None, None));
        let missed = recovered(&[], &[object(0, 0.0, 1.0)], 0.5);
        assert_eq!((missed.precision(), missed.recall()), (None, Some(0.0)));
    }

    #[test]
    fn counts_add_up() {
        let one = Recovered { right: 1, proposed: 2, hidden: 3 };
        let sum: Recovered = [one, one, Recovered::default()].into_iter().sum();
        assert_eq!(sum, Recovered { right: 2, proposed: 4, hidden: 6 });
    }
}
