//! The overlap rule: which detections annotations can judge, and which may be missing boxes.

use lacuna_boxes::{Affine, Box2, Detection, best_iou, iof, iou};
use lacuna_calib::{JudgedScore, Outcome, Sample};
use lacuna_data::{Object, off};
use serde::{Deserialize, Serialize};

/// Which detections are judged, and which are candidates for a missing box. The defaults follow the paper, then its
/// released code.
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
    /// No candidate covers more than this share of an annotation of its class, or is covered to that share by one.
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
    /// Every detection of which the annotations say something.
    pub samples: Vec<Sample>,
    /// The detections away from all annotations: each may be a missing box.
    pub candidates: Vec<Detection>,
}

impl JudgedImage {
    /// The detections near an annotation, with their classes: right or wrong.
    pub fn judged(&self) -> impl Iterator<Item = (usize, JudgedScore)> {
        self.samples.iter().filter_map(|sample| Some((sample.class, sample.judged()?)))
    }
}

/// The outcome of each detection, best first; `None` where the annotations say nothing of it.
///
/// Let `iou` be the best IoU of a detection with an annotation of its class. It is judged if `iou > τ⁻` (right if
/// `iou > τ⁺`), and a candidate if `iou < τ⁻`.
///
/// A candidate is dropped when
/// - it overlaps an annotation of *any* class more than `cross_class_iou`,
/// - more than `containment` of it lies in an annotation of its class, or of such an annotation in it,
/// - a side has `min_side` pixels or less in the view that `to_view` leads to,
/// - it overlaps a better candidate more than `candidate_iou`. Neither the paper nor its code has this rule;
///   suppression within classes leaves one object as two.
///
/// Differs from the reference: there a second copy of this rule, which fits the calibrator, has a τ⁻ of 0.5.
pub(crate) fn outcomes(
    detections: &[Detection],
    annotations: &[Object],
    rule: &OverlapRule,
    to_view: Affine,
) -> Vec<Option<Outcome>> {
    debug_assert!(detections.is_sorted_by(|a, b| a.score >= b.score), "detections are best first");
    let mut candidates: Vec<Box2> = Vec::new();
    let mut outcome_of = |&Detection { bbox, class, .. }: &Detection| {
        let of_class = || annotations.iter().filter(|object| object.class == class).map(|object| object.bbox);
        let best = best_iou(bbox, of_class()).map_or(0.0, |(_, iou)| iou);
        if best > rule.iou_low {
            return Some(if best > rule.iou_high { Outcome::Right } else { Outcome::Wrong });
        }
        let on_annotation = rule
            .cross_class_iou
            .is_some_and(|limit| annotations.iter().any(|object| iou(bbox, object.bbox) > limit));
        let contained = rule.containment.is_some_and(|limit| {
            of_class().any(|other| iof(bbox, other) > limit || iof(other, bbox) > limit)
        });
        let small = rule.min_side.is_some_and(|side| {
            let in_view = to_view.apply(bbox);
            in_view.width() <= side || in_view.height() <= side
        });
        let duplicate = rule
            .candidate_iou
            .is_some_and(|limit| candidates.iter().any(|better| iou(bbox, *better) > limit));
        if best == rule.iou_low || on_annotation || contained || small || duplicate {
            return None;
        }
        candidates.push(bbox);
        Some(Outcome::Candidate)
    };
    detections.iter().map(&mut outcome_of).collect()
}

/// Judges a teacher's detections in one image of a batch, best first. `to_view` leads to the student's view.
pub fn judge_image(
    detections: &[Detection],
    annotations: &[Object],
    rule: &OverlapRule,
    to_view: Affine,
) -> JudgedImage {
    let mut judged = JudgedImage::default();
    for (&detection, outcome) in detections.iter().zip(outcomes(detections, annotations, rule, to_view)) {
        let Detection { class, score, .. } = detection;
        if let Some(outcome) = outcome {
            judged.samples.push(Sample { class, score, outcome });
        }
        if outcome == Some(Outcome::Candidate) {
            judged.candidates.push(detection);
        }
    }
    judged
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
        let judged = judge_image(&found, &annotations, &PAPER, Affine::IDENTITY);
        let rights: Vec<bool> = judged.judged().map(|(_, score)| score.right).collect();
        assert_eq!(rights, [true, false]);
        assert_eq!(judged.candidates, [found[2]]);
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
        let rule = OverlapRule { min_side: Some(10.0), ..PAPER };
        let half = Affine::resize((100, 100), (50, 50));
        assert_eq!(judge_image(&found, &[], &rule, Affine::IDENTITY).candidates, found);
        assert_eq!(judge_image(&found, &[], &rule, half), JudgedImage::default());
    }

    #[test]
    fn without_annotations_all_are_candidates() {
        let found = [detection(WHOLE, 0)];
        let judged = judge_image(&found, &[], &OverlapRule::default(), Affine::IDENTITY);
        assert_eq!((judged.judged().count(), judged.samples.len()), (0, 1));
        assert_eq!(judged.candidates, found);
    }
}
