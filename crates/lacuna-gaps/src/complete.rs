//! The boxes that a data set lacks, as far as a detector can tell.

use lacuna_boxes::Detection;
use lacuna_calib::{Calibrator, Confidence};
use lacuna_data::number::shortest;
use lacuna_data::{Builder, Dataset, RecoveredMark, Xywh};

use crate::judge::JudgedDetection;

/// A box that is probably missing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Index in [`Dataset::images`].
    pub image: usize,
    pub detection: Detection,
    pub confidence: Confidence,
}

/// The candidates with a raw score above `score_min`, with the confidence that the calibrator of its image gives
/// each.
pub fn candidates<'a>(
    seen: &[Vec<JudgedDetection>],
    score_min: f32,
    calibrator: impl Fn(usize) -> &'a Calibrator,
) -> Vec<Candidate> {
    let of_use = |seen: &&JudgedDetection| seen.is_candidate() && seen.detection.score.0 > score_min;
    let missing = |seen: &JudgedDetection| Candidate {
        image: seen.image,
        detection: seen.detection,
        confidence: seen.confidence(calibrator(seen.image)),
    };
    seen.iter().flatten().filter(of_use).map(missing).collect()
}

/// The least confidence such that the candidates of at least that are expected to be right so often: their mean
/// confidence is at least `precision`. `None` when even the surest are not.
pub fn threshold_for(precision: f64, candidates: &[Candidate]) -> Option<Confidence> {
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
pub fn expected_precision<'a>(accepted: impl IntoIterator<Item = &'a Candidate>) -> Option<f64> {
    let (mut count, mut sum) = (0, 0.0);
    for missing in accepted {
        count += 1;
        sum += f64::from(missing.confidence.0);
    }
    (count > 0).then(|| sum / f64::from(count))
}

/// The data set with the missing boxes added, clipped to their images; each is marked `recovered` and has its
/// `score` and `confidence`.
pub fn completed(dataset: &Dataset, missing: &[Candidate]) -> Dataset {
    let mut builder = Builder::extending(dataset);
    for Candidate { image, detection, confidence } in missing {
        let size = &dataset.images()[*image];
        let bbox = detection.bbox.clip(size.width as f32, size.height as f32);
        let bbox = Xywh {
            x: bbox.x1.into(),
            y: bbox.y1.into(),
            width: bbox.width().into(),
            height: bbox.height().into(),
        };
        let recovered = RecoveredMark::new(Some(shortest(detection.score.0)), Some(shortest(confidence.0)));
        builder.annotation(*image, detection.class, bbox, false, recovered);
    }
    builder.finish()
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::{Box2, Score};

    use super::*;

    fn candidate(confidence: f32) -> Candidate {
        let detection = Detection { bbox: Box2::new(0.0, 0.0, 9.0, 9.0), class: 0, score: Score(0.5) };
        Candidate { image: 0, detection, confidence: Confidence(confidence) }
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
