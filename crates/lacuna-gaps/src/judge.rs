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
    /// The detection, with the data set's class.
    pub detection: Detection,
    /// `None` when the annotations say nothing: it is a part of an annotated object, lies in a crowd, marks a box that
    /// was recovered before, is a duplicate, or has no area.
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

    /// The probability that it is right. That of a duplicate is 0: its object is found already.
    pub fn confidence(&self, calibrator: &Calibrator) -> Confidence {
        if self.duplicate {
            return Confidence(0.0);
        }
        calibrator.confidence(self.detection.class, self.detection.score, self.proximity())
    }

    /// Whether its raw score is above this.
    pub fn is_above(&self, score_min: f32) -> bool {
        self.detection.score.0 > score_min
    }

    /// Whether it may be a missing box.
    pub fn is_candidate(&self) -> bool {
        self.outcome == Some(Outcome::Candidate)
    }

    /// Whether it is one of these objects: of the same class, at an IoU above `iou_min`.
    pub fn is_one_of(&self, objects: &[Object], iou_min: f32) -> bool {
        self.detection.is_one_of(objects.iter().map(|object| (object.bbox, object.class)), iou_min)
    }

    /// What a calibrator is fitted to; `None` when the annotations say nothing of it.
    pub fn sample(&self) -> Option<Sample> {
        let Detection { class, score, .. } = self.detection;
        Some(Sample { class, score, outcome: self.outcome? })
    }
}

/// Judges the detections of each image, best first, by the annotations of a data set. Classes are the data set's;
/// `min_side` is in pixels of the image.
///
/// Differs from training ([`judge_image`](crate::judge_image)):
/// - With `candidate_iou`, *any* detection that overlaps a better one more than that is a duplicate, near an annotation
///   or not. A detector that leaves duplicates would otherwise seem to find annotated objects more often than others.
/// - A detection inside a crowd region of its class is no candidate.
/// - Recovered boxes in the data set judge nothing, because they are a detector's own work. What they mark is no
///   candidate either.
pub fn judge(
    dataset: &Dataset,
    detections: &[Vec<Detection>],
    rule: &OverlapRule,
) -> Vec<Vec<JudgedDetection>> {
    let is_recovered = |annotation: &Annotation| dataset.recovered_mark(annotation).is_some();
    let is_recovered: Vec<bool> = dataset.annotations().iter().map(is_recovered).collect();
    let given = dataset.filter(|at, _| !is_recovered[at]);
    let recovered = dataset.filter(|at, _| is_recovered[at]);
    let judge_image = |(image, detections): (usize, &Vec<Detection>)| {
        let size = &dataset.images()[image];
        let annotations = ImageAnnotations {
            image,
            size: (size.width as f32, size.height as f32),
            given: given.objects_of(image),
            recovered: recovered.objects_of(image),
            crowds: given.crowds_of(image),
        };
        annotations.judge(detections, rule)
    };
    detections.iter().enumerate().map(judge_image).collect()
}

/// What a data set says of one image.
struct ImageAnnotations {
    image: usize,
    size: (f32, f32),
    given: Vec<Object>,
    recovered: Vec<Object>,
    crowds: Vec<Object>,
}

impl ImageAnnotations {
    fn judge(&self, detections: &[Detection], rule: &OverlapRule) -> Vec<JudgedDetection> {
        let duplicates = find_duplicates(detections, rule.candidate_iou);
        let rule = OverlapRule { candidate_iou: None, ..*rule };
        let by_given = outcomes(detections, &self.given, &rule, Affine::IDENTITY);
        let by_recovered = outcomes(detections, &self.recovered, &rule, Affine::IDENTITY);
        let judge_one = |(at, &detection): (usize, &Detection)| {
            let Detection { bbox, class, .. } = detection;
            let in_crowd = |crowd: &Object| crowd.class == class && iof(bbox, crowd.bbox) >= rule.iou_low;
            let may_be_missing =
                by_recovered[at] == Some(Outcome::Candidate) && !self.crowds.iter().any(in_crowd);
            let has_area = !bbox.clip(self.size.0, self.size.1).is_degenerate();
            let outcome = by_given[at].filter(|outcome| {
                has_area && !duplicates[at] && (*outcome != Outcome::Candidate || may_be_missing)
            });
            JudgedDetection { image: self.image, detection, outcome, duplicate: duplicates[at] }
        };
        detections.iter().enumerate().map(judge_one).collect()
    }
}

/// Which of the detections, best first, overlap a better one more than `iou_max`.
fn find_duplicates(detections: &[Detection], iou_max: Option<f32>) -> Vec<bool> {
    let mut kept: Vec<Box2> = Vec::new();
    let mut is_duplicate = |detection: &Detection| {
        let overlaps = |iou_max: f32| kept.iter().any(|better| iou(*better, detection.bbox) > iou_max);
        let duplicate = iou_max.is_some_and(overlaps);
        if !duplicate {
            kept.push(detection.bbox);
        }
        duplicate
    };
    detections.iter().map(&mut is_duplicate).collect()
}

/// What a calibrator is fitted to: the samples of each image with a raw score above `score_min`.
pub fn samples(judged: &[Vec<JudgedDetection>], score_min: f32) -> Vec<Vec<Sample>> {
    let of_image = |judged: &Vec<JudgedDetection>| {
        judged
            .iter()
            .filter(|judged| judged.is_above(score_min))
            .filter_map(JudgedDetection::sample)
            .collect()
    };
    judged.iter().map(of_image).collect()
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
        judge(dataset, &[xs.iter().map(at).collect()], &overlap)[0]
            .iter()
            .map(|judged| judged.outcome)
            .collect()
    }

    #[test]
    fn what_a_detector_added_is_no_evidence_and_is_not_added_again() {
        let sparse = dataset(&[(0.0, false, false), (40.0, false, true)]);
        let expected = [Some(Outcome::Right), None, Some(Outcome::Candidate)];
        assert_eq!(outcomes_at(&sparse, &[0.0, 40.0, 70.0]), expected);
    }

    #[test]
    fn nothing_is_missing_in_a_crowd() {
        let sparse = dataset(&[(0.0, false, false), (40.0, true, false)]);
        assert_eq!(outcomes_at(&sparse, &[45.0, 52.0]), [None, Some(Outcome::Candidate)]);
    }

    #[test]
    fn duplicates_tell_nothing_and_have_no_confidence() {
        let sparse = dataset(&[(0.0, false, false)]);
        assert_eq!(outcomes_at(&sparse, &[0.0, 1.0]), [Some(Outcome::Right), None]);
        let detection = Detection { bbox: Box2::new(0.0, 0.0, 9.0, 9.0), class: 0, score: Score(0.5) };
        let duplicate = JudgedDetection { image: 0, detection, outcome: None, duplicate: true };
        assert_eq!(duplicate.confidence(&lacuna_calib::Platt::IDENTITY.into()), Confidence(0.0));
    }
}
