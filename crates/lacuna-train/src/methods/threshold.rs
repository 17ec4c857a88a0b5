//! The threshold that makes pseudo labels of candidates.

use lacuna_boxes::{Detection, Score};
use lacuna_calib::{Calibrator, Confidence, Proximity};

/// What a candidate must be above to become a pseudo label.
#[derive(Clone, Debug, PartialEq)]
pub enum Threshold {
    /// Of raw scores.
    Score(Score),
    /// Of confidences, and the calibrator that makes them.
    Confidence(Confidence, Calibrator),
}

impl Threshold {
    fn is_below(&self, candidate: &Detection) -> bool {
        match self {
            Self::Score(min) => candidate.score > *min,
            Self::Confidence(min, calibrator) => {
                calibrator.confidence(candidate.class, candidate.score, Proximity::Away) > *min
            }
        }
    }

    /// The candidates above the threshold; none where there is no threshold.
    pub(super) fn select(threshold: Option<&Self>, candidates: &[Detection]) -> Vec<Detection> {
        let Some(threshold) = threshold else { return Vec::new() };
        candidates.iter().filter(|candidate| threshold.is_below(candidate)).copied().collect()
    }

    /// The raw score that it corresponds to, for all classes together.
    pub(crate) fn as_score(&self) -> Option<Score> {
        match self {
            Self::Score(min) => Some(*min),
            Self::Confidence(min, calibrator) => calibrator.pooled().score_of(*min, Proximity::Away),
        }
    }
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::Box2;
    use lacuna_calib::Platt;

    use super::*;

    #[test]
    fn candidates_above_the_threshold_become_pseudo_labels() {
        let candidates = [0.5f32, 0.7, 0.8].map(|score| Detection {
            bbox: Box2::new(0.0, 0.0, 9.0, 9.0),
            class: 0,
            score: Score(score),
        });
        assert_eq!(Threshold::select(None, &candidates), []);
        assert_eq!(Threshold::select(Some(&Threshold::Score(Score(0.7))), &candidates), [candidates[2]]);
        // A calibrator with confidences above the scores lets more through.
        let surer = Threshold::Confidence(Confidence(0.7), Platt { w: 1.0, b: 1.0 }.into());
        assert_eq!(Threshold::select(Some(&surer), &candidates), candidates);
        assert_eq!(surer.as_score().map(|score| score.0 < 0.5), Some(true));
    }
}
