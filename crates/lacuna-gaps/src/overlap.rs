//! Which detections of the teacher say something about its scores, and which may be missing boxes.

use lacuna_boxes::{Affine, Box2, Detection, best_iou, iof, iou};
use lacuna_calib::{JudgedScore, Outcome, Sample};
use lacuna_data::{Object, off};
use serde::{Deserialize, Serialize};

/// Which detections of the teacher are judged, and which are candidates for a missing box.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OverlapRule {
    /// τ⁻: above this IoU with an annotation of its class a detection is judged, below it is a candidate.
    pub iou_low: f32,
    /// τ⁺: a judged detection is right above this IoU.
    pub iou_high: f32,
    /// No candidate overlaps an annotation of any class more than this.
    #[serde(with = "off")]
    pub cross_class_iou: Option<f32>,
    /// No candidate overlaps a better one, of any class, more than this: an object is of one class.
    #[serde(with = "off")]
    pub candidate_iou: Option<f32>,
    /// No candidate covers more than this share of an annotation of its class, or is covered so far by one.
    #[serde(with = "off")]
    pub containment: Option<f32>,
    /// No candidate has a side of so many pixels or less in the student's view.
    #[serde(with = "off")]
    pub min_side: Option<f32>,
}

impl Default for OverlapRule {
    fn default() -> Self {
        Self {
            iou_low: 0.6,
            iou_high: 0.75,
            cross_class_iou: Some(0.75),
            candidate_iou: None,
            containment: Some(0.9),
            min_side: Some(10.0),
        }
    }
}

/// The detections in an image, judged by their overlap with its annotations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JudgedImage {
    /// What became of each, but for those that tell nothing.
    pub samples: Vec<Sample>,
    /// Those away from all annotations: each may be a box that is missing.
    pub candidates: Vec<Detection>,
}

impl JudgedImage {
    /// Those near an annotation: right or wrong.
    pub fn judged(&self) -> impl Iterator<Item = (usize, JudgedScore)> {
        self.samples.iter().filter_map(|sample| Some((sample.class, sample.judged()?)))
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
    overlap: &OverlapRule,
    to_view: Affine,
) -> Vec<Option<Outcome>> {
    // Best first, as detectors give them.
    debug_assert!(detections.is_sorted_by(|a, b| a.score >= b.score));
    let mut candidates: Vec<Box2> = Vec::new();
    let mut outcome = |&Detection { bbox, class, .. }: &Detection| {
        let of_class = || annotations.iter().filter(|object| object.class == class).map(|object| object.bbox);
        let best = best_iou(bbox, of_class()).map_or(0.0, |(_, iou)| iou);
        if best > overlap.iou_low {
            return Some(if best > overlap.iou_high { Outcome::Right } else { Outcome::Wrong });
        }
        let doubled = overlap
            .cross_class_iou
            .is_some_and(|limit| annotations.iter().any(|object| iou(bbox, object.bbox) > limit));
        let contained = overlap.containment.is_some_and(|limit| {
            of_class().any(|other| iof(bbox, other) > limit || iof(other, bbox) > limit)
        });
        let small = overlap.min_side.is_some_and(|side| {
            let shown = to_view.apply(bbox);
            shown.width() <= side || shown.height() <= side
        });
        let worse = overlap
            .candidate_iou
            .is_some_and(|limit| candidates.iter().any(|better| iou(bbox, *better) > limit));
        if best == overlap.iou_low || doubled || contained || small || worse {
            return None;
        }
        candidates.push(bbox);
        Some(Outcome::Candidate)
    };
    detections.iter().map(&mut outcome).collect()
}

/// The teacher's detections in an image, by their [`outcomes`].
pub fn judge_image(
    detections: &[Detection],
    annotations: &[Object],
    overlap: &OverlapRule,
    to_view: Affine,
) -> JudgedImage {
    let mut split = JudgedImage::default();
    for (&detection, outcome) in detections.iter().zip(outcomes(detections, annotations, overlap, to_view)) {
        let Detection { class, score, .. } = detection;
        if let Some(outcome) = outcome {
            split.samples.push(Sample { class, score, outcome });
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

    fn detection(bbox: Box2, class: usize) -> Detection {
        Detection { bbox, class, score: Score(0.8) }
    }

    /// A box that overlaps (0, 0, 100, 100) with this IoU, from inside.
    fn overlapping(iou: f32) -> Box2 {
        Box2::new(0.0, 0.0, 100.0, 100.0 * iou)
    }

    const WHOLE: Box2 = Box2::new(0.0, 0.0, 100.0, 100.0);

    /// As in the paper: nothing is dropped.
    const PAPER: OverlapRule = OverlapRule {
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
        let split = judge_image(&found, &annotations, &PAPER, Affine::IDENTITY);
        let outcomes: Vec<bool> = split.judged().map(|(_, judged)| judged.right).collect();
        assert_eq!(outcomes, [true, false]);
        assert_eq!(split.candidates, [found[2]]);
    }

    #[test]
    fn annotations_of_other_classes_judge_nothing() {
        let annotations = [Object { class: 0, bbox: WHOLE }];
        let found = [detection(overlapping(0.9), 1), detection(overlapping(0.7), 1)];
        assert_eq!(judge_image(&found, &annotations, &PAPER, Affine::IDENTITY).candidates, found);
        let code = OverlapRule { cross_class_iou: Some(0.75), ..PAPER };
        assert_eq!(judge_image(&found, &annotations, &code, Affine::IDENTITY).candidates, [found[1]]);
    }

    #[test]
    fn a_part_of_an_annotated_object_is_no_candidate() {
        let annotations = [Object { class: 1, bbox: WHOLE }];
        let (part, around) = (Box2::new(10.0, 10.0, 40.0, 40.0), Box2::new(-100.0, 0.0, 100.0, 100.0));
        let found = [part, around].map(|bbox| detection(bbox, 1));
        assert_eq!(judge_image(&found, &annotations, &PAPER, Affine::IDENTITY).candidates, found);
        let code = OverlapRule { containment: Some(0.9), ..PAPER };
        assert_eq!(judge_image(&found, &annotations, &code, Affine::IDENTITY), JudgedImage::default());
        let others = found.map(|found| Detection { class: 0, ..found });
        assert_eq!(judge_image(&others, &annotations, &code, Affine::IDENTITY).candidates, others);
    }

    #[test]
    fn an_object_is_a_candidate_of_one_class() {
        let better = detection(WHOLE, 0);
        let worse = Detection { score: Score(0.6), ..detection(overlapping(0.7), 1) };
        assert_eq!(judge_image(&[better, worse], &[], &PAPER, Affine::IDENTITY).candidates.len(), 2);
        let once = OverlapRule { candidate_iou: Some(0.5), ..PAPER };
        assert_eq!(judge_image(&[better, worse], &[], &once, Affine::IDENTITY).candidates, [better]);
    }

    #[test]
    fn a_box_that_is_small_in_the_students_view_is_no_candidate() {
        let found = [detection(Box2::new(0.0, 0.0, 30.0, 15.0), 0)];
        let overlap = OverlapRule { min_side: Some(10.0), ..PAPER };
        let half = Affine::resize((100, 100), (50, 50));
        assert_eq!(judge_image(&found, &[], &overlap, Affine::IDENTITY).candidates, found);
        assert_eq!(judge_image(&found, &[], &overlap, half), JudgedImage::default());
    }

    #[test]
    fn without_annotations_all_are_candidates() {
        let found = [detection(WHOLE, 0)];
        let split = judge_image(&found, &[], &OverlapRule::default(), Affine::IDENTITY);
        assert_eq!((split.judged().count(), split.samples.len()), (0, 1));
        assert_eq!(split.candidates, found);
    }
}
