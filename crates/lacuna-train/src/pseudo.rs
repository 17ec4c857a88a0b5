//! Which detections of the teacher say something about its scores, and which may be missing boxes.

use lacuna_boxes::{Affine, Box2, Detection, best_iou, iof, iou};
use lacuna_calib::{Judged, Observed, Outcome};
use lacuna_data::Object;

use crate::config::Overlap;

/// The teacher's detections in an image, split by their overlap with its annotations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Split {
    /// What became of each, but for those that tell nothing.
    pub observed: Vec<Observed>,
    /// Those away from all annotations: each may be a box that is missing.
    pub candidates: Vec<Detection>,
}

impl Split {
    /// Those near an annotation: right or wrong.
    pub fn judged(&self) -> impl Iterator<Item = (usize, Judged)> {
        self.observed.iter().filter_map(|observed| Some((observed.class, observed.judged()?)))
    }
}

/// What becomes of each detection, the best first; `None` of one that tells nothing.
///
/// With `iou` the best IoU of a detection with an annotation of its class, it is judged if `iou > τ⁻`
/// (right if `iou > τ⁺`), and a candidate if `iou < τ⁻`.
///
/// A candidate is dropped, as in the authors' code, when it overlaps an annotation of *any* class more than
/// `cross_class_iou`, or when more than `containment` of it is covered by an annotation of its class, or of
/// such an annotation by it. So is one with a side of `min_side` pixels or less where `to_view` shows it.
///
/// With `candidate_iou`, so is one that overlaps a candidate of a higher score more than that, which neither the
/// paper nor its code does: suppression within classes leaves one object in two.
///
/// Differs from the reference: there the copy of this rule that fits the calibrator has a τ⁻ of 0.5.
pub fn outcomes(
    detections: &[Detection],
    annotations: &[Object],
    overlap: &Overlap,
    to_view: Affine,
) -> Vec<Option<Outcome>> {
    // Best first, as detectors give them.
    debug_assert!(detections.is_sorted_by(|a, b| a.score >= b.score));
    let mut candidates: Vec<Box2> = Vec::new();
    let mut outcome = |&Detection { bounds, class, .. }: &Detection| {
        let of_class = || annotations.iter().filter(|object| object.class == class).map(|object| object.bbox);
        let best = best_iou(bounds, of_class()).map_or(0.0, |(_, iou)| iou);
        if best > overlap.iou_low {
            return Some(if best > overlap.iou_high { Outcome::Right } else { Outcome::Wrong });
        }
        let doubled = overlap
            .cross_class_iou
            .is_some_and(|limit| annotations.iter().any(|object| iou(bounds, object.bbox) > limit));
        let contained = overlap.containment.is_some_and(|limit| {
            of_class().any(|other| iof(bounds, other) > limit || iof(other, bounds) > limit)
        });
        let small = overlap.min_side.is_some_and(|side| {
            let shown = to_view.apply(bounds);
            shown.width() <= side || shown.height() <= side
        });
        let worse = overlap
            .candidate_iou
            .is_some_and(|limit| candidates.iter().any(|better| iou(bounds, *better) > limit));
        if best == overlap.iou_low || doubled || contained || small || worse {
            return None;
        }
        candidates.push(bounds);
        Some(Outcome::Candidate)
    };
    detections.iter().map(&mut outcome).collect()
}

/// The teacher's detections in an image, by their [`outcomes`].
pub fn split_by_overlap(
    detections: &[Detection],
    annotations: &[Object],
    overlap: &Overlap,
    to_view: Affine,
) -> Split {
    let mut split = Split::default();
    for (&detection, outcome) in detections.iter().zip(outcomes(detections, annotations, overlap, to_view)) {
        let Detection { class, score, .. } = detection;
        if let Some(outcome) = outcome {
            split.observed.push(Observed { class, score, outcome });
        }
        if outcome == Some(Outcome::Candidate) {
            split.candidates.push(detection);
        }
    }
    split
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::Score;

    use super::*;

    fn detection(bounds: Box2, class: usize) -> Detection {
        Detection { bounds, class, score: Score(0.8) }
    }

    /// A box that overlaps (0, 0, 100, 100) with this IoU, from inside.
    fn overlapping(iou: f32) -> Box2 {
        Box2::new(0.0, 0.0, 100.0, 100.0 * iou)
    }

    const WHOLE: Box2 = Box2::new(0.0, 0.0, 100.0, 100.0);

    /// As in the paper: nothing is dropped.
    const PAPER: Overlap = Overlap {
        iou_low: 0.6,
        iou_high: 0.75,
        cross_class_iou: None,
        candidate_iou: None,
        containment: None,
        min_side: None,
    };

    #[test]
    fn near_an_annotation_of_its_class_a_detection_is_judged() {
        let annotations = [Object { class: 1, bbox: WHOLE }];
        let found = [0.9, 0.7, 0.5].map(|iou| detection(overlapping(iou), 1));
        let split = split_by_overlap(&found, &annotations, &PAPER, Affine::IDENTITY);
        let outcomes: Vec<bool> = split.judged().map(|(_, judged)| judged.right).collect();
        assert_eq!(outcomes, [true, false]);
        assert_eq!(split.candidates, [found[2]]);
    }

    #[test]
    fn annotations_of_other_classes_judge_nothing() {
        let annotations = [Object { class: 0, bbox: WHOLE }];
        let found = [detection(overlapping(0.9), 1), detection(overlapping(0.7), 1)];
        assert_eq!(split_by_overlap(&found, &annotations, &PAPER, Affine::IDENTITY).candidates, found);
        let code = Overlap { cross_class_iou: Some(0.75), ..PAPER };
        assert_eq!(split_by_overlap(&found, &annotations, &code, Affine::IDENTITY).candidates, [found[1]]);
    }

    #[test]
    fn a_part_of_an_annotated_object_is_no_candidate() {
        let annotations = [Object { class: 1, bbox: WHOLE }];
        let (part, around) = (Box2::new(10.0, 10.0, 40.0, 40.0), Box2::new(-100.0, 0.0, 100.0, 100.0));
        let found = [part, around].map(|bounds| detection(bounds, 1));
        assert_eq!(split_by_overlap(&found, &annotations, &PAPER, Affine::IDENTITY).candidates, found);
        let code = Overlap { containment: Some(0.9), ..PAPER };
        assert_eq!(split_by_overlap(&found, &annotations, &code, Affine::IDENTITY), Split::default());
        let others = found.map(|found| Detection { class: 0, ..found });
        assert_eq!(split_by_overlap(&others, &annotations, &code, Affine::IDENTITY).candidates, others);
    }

    #[test]
    fn an_object_is_a_candidate_of_one_class() {
        let better = detection(WHOLE, 0);
        let worse = Detection { score: Score(0.6), ..detection(overlapping(0.7), 1) };
        assert_eq!(split_by_overlap(&[better, worse], &[], &PAPER, Affine::IDENTITY).candidates.len(), 2);
        let once = Overlap { candidate_iou: Some(0.5), ..PAPER };
        assert_eq!(split_by_overlap(&[better, worse], &[], &once, Affine::IDENTITY).candidates, [better]);
    }

    #[test]
    fn a_box_that_is_small_in_the_students_view_is_no_candidate() {
        let found = [detection(Box2::new(0.0, 0.0, 30.0, 15.0), 0)];
        let overlap = Overlap { min_side: Some(10.0), ..PAPER };
        let half = Affine::resize((100, 100), (50, 50));
        assert_eq!(split_by_overlap(&found, &[], &overlap, Affine::IDENTITY).candidates, found);
        assert_eq!(split_by_overlap(&found, &[], &overlap, half), Split::default());
    }

    #[test]
    fn without_annotations_all_are_candidates() {
        let found = [detection(WHOLE, 0)];
        let split = split_by_overlap(&found, &[], &Overlap::default(), Affine::IDENTITY);
        assert_eq!((split.judged().count(), split.observed.len()), (0, 1));
        assert_eq!(split.candidates, found);
    }
}
