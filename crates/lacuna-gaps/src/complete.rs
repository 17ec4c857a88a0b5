//! The boxes that a data set lacks, as far as a detector can tell.

use lacuna_boxes::Detection;
use lacuna_calib::Confidence;
use lacuna_data::number::shortest;
use lacuna_data::{Builder, Dataset, RecoveredMark, Xywh};

use crate::judge::JudgedDetection;

/// A detection that may be a missing box, and how sure that is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Index in [`Dataset::images`].
    pub image: usize,
    /// The detection, with the data set's class.
    pub detection: Detection,
    /// The probability that it is right.
    pub confidence: Confidence,
}

/// The candidates with a raw score above `score_min`, with the confidence that `confidence` gives each.
pub fn candidates(
    judged: &[Vec<JudgedDetection>],
    score_min: f32,
    confidence: impl Fn(&JudgedDetection) -> Confidence,
) -> Vec<Candidate> {
    let is_wanted = |judged: &&JudgedDetection| judged.is_candidate() && judged.is_above(score_min);
    let candidate = |judged: &JudgedDetection| Candidate {
        image: judged.image,
        detection: judged.detection,
        confidence: confidence(judged),
    };
    judged.iter().flatten().filter(is_wanted).map(candidate).collect()
}

/// Which candidates become recovered boxes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Acceptance {
    /// Those with at least this confidence.
    Confidence(Confidence),
    /// As many as are expected to reach this precision together.
    Precision(f64),
    /// As many of each class as are expected to reach this precision.
    PrecisionPerClass(f64),
}

impl Acceptance {
    /// The least confidence of a recovered box of each class; `None` where no candidate is sure enough.
    pub fn thresholds(self, candidates: &[Candidate], n_classes: usize) -> Vec<Option<Confidence>> {
        match self {
            Self::Confidence(min) => vec![Some(min); n_classes],
            Self::Precision(precision) => vec![threshold_for(precision, candidates); n_classes],
            Self::PrecisionPerClass(precision) => {
                let of_class = |class: usize| {
                    let of_class = candidates.iter().filter(|candidate| candidate.detection.class == class);
                    threshold_for(precision, &of_class.copied().collect::<Vec<_>>())
                };
                (0..n_classes).map(of_class).collect()
            }
        }
    }
}

/// What is added to a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The boxes that are added.
    pub recovered: Vec<Candidate>,
    /// The least confidence of a recovered box of each class; `None` where no candidate is sure enough.
    pub thresholds: Vec<Option<Confidence>>,
}

impl Completion {
    /// The candidates that are accepted.
    pub fn new(candidates: Vec<Candidate>, acceptance: Acceptance, n_classes: usize) -> Self {
        let thresholds = acceptance.thresholds(&candidates, n_classes);
        let is_accepted = |candidate: &Candidate| {
            thresholds[candidate.detection.class].is_some_and(|min| candidate.confidence >= min)
        };
        let recovered = candidates.into_iter().filter(is_accepted).collect();
        Self { recovered, thresholds }
    }

    /// The recovered boxes of a class.
    pub fn of_class(&self, class: usize) -> impl Iterator<Item = &Candidate> {
        self.recovered.iter().filter(move |candidate| candidate.detection.class == class)
    }
}

/// The least confidence such that the candidates of at least that are expected to be right so often: their mean
/// confidence is at least `precision`. `None` when even the surest are not.
fn threshold_for(precision: f64, candidates: &[Candidate]) -> Option<Confidence> {
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
pub fn expected_precision<'a>(recovered: impl IntoIterator<Item = &'a Candidate>) -> Option<f64> {
    let (mut count, mut sum) = (0, 0.0);
    for candidate in recovered {
        count += 1;
        sum += f64::from(candidate.confidence.0);
    }
    (count > 0).then(|| sum / f64::from(count))
}

/// The data set with the recovered boxes added, clipped to their images; each is marked `recovered` and has its
/// `score` and `confidence`.
pub fn completed(dataset: &Dataset, recovered: &[Candidate]) -> Dataset {
    let mut builder = Builder::extending(dataset);
    for Candidate { image, detection, confidence } in recovered {
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
