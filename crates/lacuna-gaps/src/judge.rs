//! What the annotations of a data set say of each detection in its images.

use lacuna_boxes::{Affine, Box2, Detection, iof, iou};
use lacuna_calib::{Calibrator, Confidence, Outcome, Proximity, Sample};
use lacuna_data::{Annotation, Dataset, Object};

use crate::overlap::{OverlapRule, outcomes};

/// A detection in a data set with gaps, and what the given annotations say of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JudgedDetection {
    /// Index in [`Dataset::images`].
    pub image: usize,
    pub detection: Detection,
    /// `None` when they say nothing: it is a part of something annotated, in a crowd, a box that was added before,
    /// a double, or has no area.
    pub outcome: Option<Outcome>,
    /// Whether it is a duplicate of a better detection.
    pub duplicate: bool,
}

impl JudgedDetection {
    /// Where it is, as far as a calibrator makes a difference.
    pub fn proximity(&self) -> Proximity {
        match self.outcome {
            Some(Outcome::Candidate) => Proximity::Away,
            Some(Outcome::Right | Outcome::Wrong) => Proximity::Near,
            None => Proximity::Unknown,
        }
    }

    /// What has been found already is not found again: a double has none.
    pub fn confidence(&self, calibrator: &Calibrator) -> Confidence {
        if self.duplicate {
            return Confidence(0.0);
        }
        calibrator.confidence(self.detection.class, self.detection.score, self.proximity())
    }

    /// Whether it may be a box that is missing.
    pub fn is_candidate(&self) -> bool {
        self.outcome == Some(Outcome::Candidate)
    }

    /// Whether it is one of these objects, as the rule that judges detections has it.
    pub fn is_one_of(&self, objects: &[Object], iou_high: f32) -> bool {
        self.detection.is_one_of(objects.iter().map(|object| (object.bbox, object.class)), iou_high)
    }

    pub fn sample(&self) -> Option<Sample> {
        let Detection { class, score, .. } = self.detection;
        Some(Sample { class, score, outcome: self.outcome? })
    }
}

/// The detections of each image, the best first, by the overlap rule of training. Classes are the data set's;
/// `min_side` is in pixels of the image.
///
/// Differs from training: with `candidate_iou`, *any* detection that overlaps a better one more than that is out, be
/// it near an annotation or not. Detectors that do not suppress doubles would else seem to find what is annotated
/// more often than what is not. What lies in a crowd of its class is no candidate. Annotations that are marked
/// `recovered` judge nothing, but what they mark is no candidate either: what a detector added is no evidence for it.
pub fn judge(
    dataset: &Dataset,
    detections: &[Vec<Detection>],
    overlap: &OverlapRule,
) -> Vec<Vec<JudgedDetection>> {
    let rule = OverlapRule { candidate_iou: None, ..*overlap };
    let is_recovered = |annotation: &Annotation| dataset.recovered_mark(annotation).is_some();
    let recovered: Vec<bool> = dataset.annotations().iter().map(is_recovered).collect();
    let (given, added) = (dataset.filter(|at, _| !recovered[at]), dataset.filter(|at, _| recovered[at]));
    let of_image = |(image, found): (usize, &Vec<Detection>)| {
        let outcomes = outcomes(found, &given.objects_of(image), &rule, Affine::IDENTITY);
        let added_before = self::outcomes(found, &added.objects_of(image), &rule, Affine::IDENTITY);
        let duplicates = duplicates(found, overlap.candidate_iou);
        let (crowds, size) = (given.crowds_of(image), &dataset.images()[image]);
        let seen = |(at, &detection): (usize, &Detection)| {
            let Detection { bbox, class, .. } = detection;
            let in_crowd = |crowd: &Object| crowd.class == class && iof(bbox, crowd.bbox) >= overlap.iou_low;
            let may_be_missing = added_before[at] == Some(Outcome::Candidate) && !crowds.iter().any(in_crowd);
            let has_area = !bbox.clip(size.width as f32, size.height as f32).is_degenerate();
            let outcome = outcomes[at].filter(|outcome| {
                has_area && !duplicates[at] && (*outcome != Outcome::Candidate || may_be_missing)
            });
            JudgedDetection { image, detection, outcome, duplicate: duplicates[at] }
        };
        found.iter().enumerate().map(seen).collect()
    };
    detections.iter().enumerate().map(of_image).collect()
}

/// Which of the detections, the best first, overlap a better one more than this.
fn duplicates(found: &[Detection], limit: Option<f32>) -> Vec<bool> {
    let mut kept: Vec<Box2> = Vec::new();
    let mut is_double = |detection: &Detection| {
        let double =
            limit.is_some_and(|limit| kept.iter().any(|better| iou(*better, detection.bbox) > limit));
        if !double {
            kept.push(detection.bbox);
        }
        double
    };
    found.iter().map(&mut is_double).collect()
}

/// What a calibrator is fitted to: what is known of the detections of each image whose raw score is above
/// `score_min`.
pub fn samples(seen: &[Vec<JudgedDetection>], score_min: f32) -> Vec<Vec<Sample>> {
    let of_image = |seen: &Vec<JudgedDetection>| {
        let above = seen.iter().filter(|seen| seen.detection.score.0 > score_min);
        above.filter_map(JudgedDetection::sample).collect()
    };
    seen.iter().map(of_image).collect()
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::Score;
    use lacuna_data::{Builder, RecoveredMark, Xywh};

    use super::*;

    fn dataset(boxes: &[(f64, bool, bool)]) -> Dataset {
        let mut builder = Builder::default();
        let (image, class) = (builder.image("1.jpg", 100, 100), builder.category("cup"));
        for &(x, crowd, recovered) in boxes {
            let bbox = Xywh { x, y: 0.0, width: 20.0, height: 20.0 };
            match recovered {
                true => builder.annotation(image, class, bbox, crowd, RecoveredMark::new(None, None)),
                false => builder.annotation(image, class, bbox, crowd, ()),
            }
        }
        builder.finish()
    }

    fn outcomes_at(dataset: &Dataset, xs: &[f32]) -> Vec<Option<Outcome>> {
        let at =
            |&x: &f32| Detection { bbox: Box2::new(x, 0.0, x + 20.0, 20.0), class: 0, score: Score(0.5) };
        let overlap = OverlapRule { candidate_iou: Some(0.7), min_side: None, ..OverlapRule::default() };
        judge(dataset, &[xs.iter().map(at).collect()], &overlap)[0].iter().map(|seen| seen.outcome).collect()
    }

    #[test]
    fn what_a_detector_added_is_no_evidence_and_is_not_added_again() {
        let dataset = dataset(&[(0.0, false, false), (40.0, false, true)]);
        let expected = [Some(Outcome::Right), None, Some(Outcome::Candidate)];
        assert_eq!(outcomes_at(&dataset, &[0.0, 40.0, 70.0]), expected);
    }

    #[test]
    fn nothing_is_missing_in_a_crowd() {
        let dataset = dataset(&[(0.0, false, false), (40.0, true, false)]);
        assert_eq!(outcomes_at(&dataset, &[45.0, 52.0]), [None, Some(Outcome::Candidate)]);
    }

    #[test]
    fn duplicates_tell_nothing_and_have_no_confidence() {
        let dataset = dataset(&[(0.0, false, false)]);
        assert_eq!(outcomes_at(&dataset, &[0.0, 1.0]), [Some(Outcome::Right), None]);
        let detection = Detection { bbox: Box2::new(0.0, 0.0, 9.0, 9.0), class: 0, score: Score(0.5) };
        let duplicate = JudgedDetection { image: 0, detection, outcome: None, duplicate: true };
        assert_eq!(duplicate.confidence(&lacuna_calib::Platt::IDENTITY.into()), Confidence(0.0));
    }
}
