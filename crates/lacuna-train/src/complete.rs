//! The boxes that a data set lacks, as far as a detector can tell.

use lacuna_boxes::{Affine, Box2, Detection, iof, iou};
use lacuna_calib::{Calibrator, Confidence, CrossFit, Kind, NoFit, Observed, Outcome, Place};
use lacuna_data::{Annotation, Builder, Dataset, Object, Pseudo, Xywh};

use crate::config::Overlap;
use crate::metrics::shortest;
use crate::pseudo::outcomes;

/// A detection in a data set with gaps, and what the given annotations say of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Index in [`Dataset::images`].
    pub image: usize,
    pub detection: Detection,
    /// `None` when they say nothing: it is a part of something annotated, in a crowd, a box that was added before,
    /// a double, or has no area.
    pub outcome: Option<Outcome>,
    /// Whether it doubles a better detection.
    pub double: bool,
}

impl Seen {
    /// Where it is, as far as a calibrator makes a difference.
    pub fn place(&self) -> Place {
        match self.outcome {
            Some(Outcome::Candidate) => Place::Away,
            Some(Outcome::Right | Outcome::Wrong) => Place::Near,
            None => Place::Unknown,
        }
    }

    /// What has been found already is not found again: a double has none.
    pub fn confidence(&self, calibrator: &Calibrator) -> Confidence {
        if self.double {
            return Confidence(0.0);
        }
        calibrator.confidence(self.detection.class, self.detection.score, self.place())
    }

    /// Whether it may be a box that is missing.
    pub fn is_candidate(&self) -> bool {
        self.outcome == Some(Outcome::Candidate)
    }

    /// Whether it is one of these objects, as the rule that judges detections has it.
    pub fn is_one_of(&self, objects: &[Object], iou_high: f32) -> bool {
        self.detection.is_one_of(objects.iter().map(|object| (object.bbox, object.class)), iou_high)
    }

    pub fn observed(&self) -> Option<Observed> {
        let Detection { class, score, .. } = self.detection;
        Some(Observed { class, score, outcome: self.outcome? })
    }
}

/// The detections of each image, the best first, by the overlap rule of training. Classes are the data set's;
/// `min_side` is in pixels of the image.
///
/// Differs from training: with `candidate_iou`, *any* detection that overlaps a better one more than that is out, be
/// it near an annotation or not. Detectors that do not suppress doubles would else seem to find what is annotated
/// more often than what is not. What lies in a crowd of its class is no candidate. Annotations that are marked
/// `pseudo` judge nothing, but what they mark is no candidate either: what a detector added is no evidence for it.
pub fn see(dataset: &Dataset, detections: &[Vec<Detection>], overlap: &Overlap) -> Vec<Vec<Seen>> {
    let rule = Overlap { candidate_iou: None, ..*overlap };
    let is_pseudo = |annotation: &Annotation| dataset.pseudo_of(annotation).is_some();
    let pseudo: Vec<bool> = dataset.annotations().iter().map(is_pseudo).collect();
    let (given, added) = (dataset.filter(|at, _| !pseudo[at]), dataset.filter(|at, _| pseudo[at]));
    let of_image = |(image, found): (usize, &Vec<Detection>)| {
        let outcomes = outcomes(found, &given.objects_of(image), &rule, Affine::IDENTITY);
        let added_before = self::outcomes(found, &added.objects_of(image), &rule, Affine::IDENTITY);
        let doubles = doubles(found, overlap.candidate_iou);
        let (crowds, size) = (given.crowds_of(image), &dataset.images()[image]);
        let seen = |(at, &detection): (usize, &Detection)| {
            let Detection { bounds, class, .. } = detection;
            let in_crowd =
                |crowd: &Object| crowd.class == class && iof(bounds, crowd.bbox) >= overlap.iou_low;
            let may_be_missing = added_before[at] == Some(Outcome::Candidate) && !crowds.iter().any(in_crowd);
            let has_area = !bounds.clip(size.width as f32, size.height as f32).is_degenerate();
            let outcome = outcomes[at].filter(|outcome| {
                has_area && !doubles[at] && (*outcome != Outcome::Candidate || may_be_missing)
            });
            Seen { image, detection, outcome, double: doubles[at] }
        };
        found.iter().enumerate().map(seen).collect()
    };
    detections.iter().enumerate().map(of_image).collect()
}

/// Which of the detections, the best first, overlap a better one more than this.
fn doubles(found: &[Detection], limit: Option<f32>) -> Vec<bool> {
    let mut kept: Vec<Box2> = Vec::new();
    let mut is_double = |detection: &Detection| {
        let double =
            limit.is_some_and(|limit| kept.iter().any(|better| iou(*better, detection.bounds) > limit));
        if !double {
            kept.push(detection.bounds);
        }
        double
    };
    found.iter().map(&mut is_double).collect()
}

/// What a calibrator is fitted to: what is known of the detections of each image whose raw score is above
/// `score_min`.
pub fn observations(seen: &[Vec<Seen>], score_min: f32) -> Vec<Vec<Observed>> {
    let of_image = |seen: &Vec<Seen>| {
        let above = seen.iter().filter(|seen| seen.detection.score.0 > score_min);
        above.filter_map(Seen::observed).collect()
    };
    seen.iter().map(of_image).collect()
}

/// Calibrators of one kind fitted to what was seen: `whole` to all of it, for use elsewhere; `folds` to all images
/// but those that they are used on, so that nothing is promised by what it was fitted to.
pub struct Fitted {
    pub whole: Calibrator,
    pub folds: Result<CrossFit, NoFit>,
}

/// Images are put into so many folds.
const FOLDS: usize = 5;

impl Fitted {
    /// # Errors
    /// When all images together determine no calibrator.
    pub fn new(kind: Kind, per_class: bool, observed: &[Vec<Observed>]) -> Result<Self, NoFit> {
        let whole = Calibrator::fit(kind, per_class, &observed.concat())?;
        let folds = CrossFit::new(kind, per_class, observed, FOLDS.min(observed.len()), 0);
        Ok(Self { whole, folds })
    }

    /// The one that was not fitted to this image; where too little is left without its fold, that of all.
    pub fn of_image(&self, image: usize) -> &Calibrator {
        self.folds.as_ref().map_or(&self.whole, |folds| folds.calibrator(image))
    }
}

/// A box that is probably missing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Missing {
    /// Index in [`Dataset::images`].
    pub image: usize,
    pub detection: Detection,
    pub confidence: Confidence,
}

/// The candidates with a raw score above `score_min`, with the confidence that the calibrator of its image gives
/// each.
pub fn candidates<'a>(
    seen: &[Vec<Seen>],
    score_min: f32,
    calibrator: impl Fn(usize) -> &'a Calibrator,
) -> Vec<Missing> {
    let of_use = |seen: &&Seen| seen.is_candidate() && seen.detection.score.0 > score_min;
    let missing = |seen: &Seen| Missing {
        image: seen.image,
        detection: seen.detection,
        confidence: seen.confidence(calibrator(seen.image)),
    };
    seen.iter().flatten().filter(of_use).map(missing).collect()
}

/// The least confidence such that the candidates of at least that are expected to be right so often: their mean
/// confidence is at least `precision`. `None` when even the surest are not.
pub fn threshold_for(precision: f64, candidates: &[Missing]) -> Option<Confidence> {
    let mut sorted: Vec<f32> = candidates.iter().map(|candidate| candidate.confidence.0).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let (mut sum, mut threshold) = (0.0, None);
    for (at, confidence) in sorted.iter().enumerate() {
        sum += f64::from(*confidence);
        let last_of_its_like = sorted.get(at + 1) != Some(confidence);
        if last_of_its_like && sum >= precision * (at + 1) as f64 {
            threshold = Some(Confidence(*confidence));
        }
    }
    threshold
}

/// The share of them that is expected to be right; `None` of nothing.
pub fn expected_precision<'a>(accepted: impl IntoIterator<Item = &'a Missing>) -> Option<f64> {
    let (mut count, mut sum) = (0, 0.0);
    for missing in accepted {
        count += 1;
        sum += f64::from(missing.confidence.0);
    }
    (count > 0).then(|| sum / f64::from(count))
}

/// The data set with the missing boxes added, clipped to their images; each is marked `pseudo` and has its
/// `score` and `confidence`.
pub fn completed(dataset: &Dataset, missing: &[Missing]) -> Dataset {
    let mut builder = Builder::extending(dataset);
    for Missing { image, detection, confidence } in missing {
        let size = &dataset.images()[*image];
        let bounds = detection.bounds.clip(size.width as f32, size.height as f32);
        let bbox = Xywh {
            x: bounds.x1.into(),
            y: bounds.y1.into(),
            width: bounds.width().into(),
            height: bounds.height().into(),
        };
        let pseudo = Pseudo::new(Some(shortest(detection.score.0)), Some(shortest(confidence.0)));
        builder.annotation(*image, detection.class, bbox, false, pseudo);
    }
    builder.finish()
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::Score;

    use super::*;

    fn candidate(confidence: f32) -> Missing {
        let detection = Detection { bounds: Box2::new(0.0, 0.0, 9.0, 9.0), class: 0, score: Score(0.5) };
        Missing { image: 0, detection, confidence: Confidence(confidence) }
    }

    fn dataset(boxes: &[(f64, bool, bool)]) -> Dataset {
        let mut builder = Builder::default();
        let (image, class) = (builder.image("1.jpg", 100, 100), builder.category("cup"));
        for &(x, crowd, pseudo) in boxes {
            let bbox = Xywh { x, y: 0.0, width: 20.0, height: 20.0 };
            match pseudo {
                true => builder.annotation(image, class, bbox, crowd, Pseudo::new(None, None)),
                false => builder.annotation(image, class, bbox, crowd, ()),
            }
        }
        builder.finish()
    }

    fn outcomes_at(dataset: &Dataset, xs: &[f32]) -> Vec<Option<Outcome>> {
        let at =
            |&x: &f32| Detection { bounds: Box2::new(x, 0.0, x + 20.0, 20.0), class: 0, score: Score(0.5) };
        let overlap = Overlap { candidate_iou: Some(0.7), min_side: None, ..Overlap::default() };
        see(dataset, &[xs.iter().map(at).collect()], &overlap)[0].iter().map(|seen| seen.outcome).collect()
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
    fn doubles_tell_nothing_and_have_no_confidence() {
        let dataset = dataset(&[(0.0, false, false)]);
        assert_eq!(outcomes_at(&dataset, &[0.0, 1.0]), [Some(Outcome::Right), None]);
        let double = Seen { image: 0, detection: candidate(0.0).detection, outcome: None, double: true };
        assert_eq!(double.confidence(&lacuna_calib::Platt::IDENTITY.into()), Confidence(0.0));
    }

    #[test]
    fn the_threshold_lets_in_as_many_as_keep_the_precision() {
        let candidates = [0.25, 1.0, 0.75, 0.5].map(candidate);
        assert_eq!(threshold_for(0.75, &candidates), Some(Confidence(0.5)));
        assert_eq!(threshold_for(0.76, &candidates), Some(Confidence(0.75)));
        assert_eq!(threshold_for(0.1, &candidates), Some(Confidence(0.25)));
        assert_eq!(threshold_for(0.9, &[0.8, 0.7].map(candidate)), None);
        assert_eq!(threshold_for(0.5, &[]), None);
    }

    /// All candidates of a confidence are let in, or none of them.
    #[test]
    fn equal_confidences_stay_together() {
        let candidates = [1.0, 0.5, 0.5, 0.5].map(candidate);
        assert_eq!(threshold_for(0.7, &candidates), Some(Confidence(1.0)));
        assert_eq!(threshold_for(0.625, &candidates), Some(Confidence(0.5)));
        assert_eq!(expected_precision(&candidates), Some(0.625));
        assert_eq!(expected_precision(&[]), None);
    }
}
