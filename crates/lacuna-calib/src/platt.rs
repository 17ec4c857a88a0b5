//! Platt scaling, the calibrator of the paper.

use lacuna_boxes::Score;
use serde::{Deserialize, Serialize};

use crate::curve::least_score;
use crate::invalid::{Invalid, finite, positive};
use crate::logistic::{FeatureRow, check_overlap, logit, logit_of, maximize_likelihood, sigmoid};
use crate::tally::tally_by_score;
use crate::{Confidence, JudgedScore, NoFit};

/// Platt scaling of a score p: `σ(w·logit(p) + b)` (Platt, 1999). A fit has `w > 0`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct Platt {
    /// The slope.
    pub w: f64,
    /// The offset.
    pub b: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    w: f64,
    b: f64,
}

impl TryFrom<Fields> for Platt {
    type Error = Invalid;

    fn try_from(Fields { w, b }: Fields) -> Result<Self, Invalid> {
        Ok(Self { w: positive("w", w)?, b: finite("b", b)? })
    }
}

impl Platt {
    /// The curve that leaves scores as they are.
    pub const IDENTITY: Self = Self { w: 1.0, b: 0.0 };

    /// The confidence of a score.
    pub fn confidence(&self, score: Score) -> Confidence {
        Confidence(sigmoid(self.w * logit_of(score) + self.b) as f32)
    }

    /// The least score whose confidence is at least this; `None` when no score reaches it, or when confidence
    /// does not grow with the score.
    pub fn score_of(&self, confidence: Confidence) -> Option<Score> {
        if self.w > 0.0 { least_score([], |score| self.confidence(score), confidence) } else { None }
    }

    /// The `w` and `b` of maximum likelihood, without regularization, by Newton's method from the identity.
    ///
    /// # Errors
    /// When there is no such pair, or `w` is not positive: see [`NoFit`].
    pub fn fit(judged: impl IntoIterator<Item = JudgedScore>) -> Result<Self, NoFit> {
        let tallies = tally_by_score(judged)?;
        check_overlap(&tallies)?;
        let rows: Vec<_> =
            tallies.iter().map(|tally| FeatureRow::new([logit(tally.score), 1.0], tally)).collect();
        let [w, b] = maximize_likelihood(&rows, [Self::IDENTITY.w, Self::IDENTITY.b])?.theta;
        if w > 0.0 { Ok(Self { w, b }) } else { Err(NoFit::Falling) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn judged(samples: &[(f32, bool)]) -> Vec<JudgedScore> {
        samples.iter().map(|&(score, right)| JudgedScore { score: Score(score), right }).collect()
    }

    #[test]
    fn the_identity_leaves_scores_as_they_are() {
        for score in [0.001, 0.3, 0.5, 0.7, 0.999] {
            assert!((Platt::IDENTITY.confidence(Score(score)).0 - score).abs() < 1e-6);
        }
        assert!(Platt::IDENTITY.confidence(Score(0.0)).0 < 1e-6);
        assert!(Platt::IDENTITY.confidence(Score(1.0)).0 > 1.0 - 1e-6);
    }

    #[test]
    fn one_outcome_or_none_determines_nothing() {
        assert_eq!(Platt::fit([]), Err(NoFit::OneOutcome));
        assert_eq!(Platt::fit(judged(&[(0.4, true), (0.9, true)])), Err(NoFit::OneOutcome));
        assert_eq!(Platt::fit(judged(&[(0.4, false), (0.9, false)])), Err(NoFit::OneOutcome));
    }

    #[test]
    fn what_a_threshold_separates_has_no_finite_fit() {
        for samples in [
            [(0.4, false), (0.5, false), (0.6, true)],
            [(0.4, true), (0.5, true), (0.6, false)],
            [(0.4, false), (0.6, true), (0.6, false)],
            [(0.6, true), (0.6, true), (0.6, false)],
        ] {
            assert_eq!(Platt::fit(judged(&samples)), Err(NoFit::Separable), "{samples:?}");
        }
    }

    #[test]
    fn confidence_never_falls_as_the_score_grows() {
        let falling = [(0.4, true), (0.5, true), (0.6, false), (0.7, true), (0.8, false)];
        assert_eq!(Platt::fit(judged(&falling)), Err(NoFit::Falling));
        let level = [(0.4, true), (0.4, false), (0.6, true), (0.6, false)];
        assert_eq!(Platt::fit(judged(&level)), Err(NoFit::Falling));
    }

    #[test]
    fn scores_of_0_and_1_have_their_part_in_a_fit() {
        let samples =
            [(0.0, false), (0.0, true), (0.5, false), (0.5, true), (1.0, true), (1.0, false), (1.0, true)];
        let fit = Platt::fit(judged(&samples)).expect("neither outcome is apart");
        assert!(fit.w.is_finite() && fit.b.is_finite());
    }

    #[test]
    fn a_confidence_leads_back_to_its_score() {
        let fit = Platt { w: 1.7, b: -0.4 };
        for score in [0.1, 0.4, 0.73, 0.98] {
            let back = fit.score_of(fit.confidence(Score(score))).expect("it grows");
            assert!((back.0 - score).abs() < 1e-5);
        }
        assert_eq!(Platt { w: -0.1, b: 0.0 }.score_of(Confidence(0.7)), None);
        assert_eq!(Platt { w: 0.1, b: -9.0 }.score_of(Confidence(0.7)), None);
    }

    proptest! {
        /// At the optimum the mean confidence is the share that is right, whatever the samples.
        #[test]
        fn the_mean_confidence_is_the_precision(
            samples in prop::collection::vec((0.0f32..=1.0, any::<bool>()), 3..200)
        ) {
            let samples = judged(&samples);
            if let Ok(fit) = Platt::fit(samples.clone()) {
                let confidence: f64 = samples.iter().map(|s| f64::from(fit.confidence(s.score).0)).sum();
                let right = samples.iter().filter(|s| s.right).count() as f64;
                // What rounding a confidence to 32 bits may cost each sample.
                prop_assert!((confidence - right).abs() < 1e-7 * samples.len() as f64, "{fit:?}");
            }
        }
    }
}
