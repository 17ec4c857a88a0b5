use lacuna_boxes::Score;
use serde::{Deserialize, Serialize};

use crate::{Confidence, Judged};

/// Platt scaling of a score p: `σ(w·logit(p) + b)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Platt {
    pub w: f64,
    pub b: f64,
}

/// Why judged detections determine no calibrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFit {
    #[error("all judged detections have the same outcome")]
    OneOutcome,
    /// The likelihood grows without end as `w` does.
    #[error("a threshold on the score separates right from wrong without an error")]
    Separable,
    #[error("Newton's method did not converge")]
    NotConverged,
}

/// Scores are taken to be this far from 0 and 1 at least, where their logits are infinite. (Of the numbers
/// of 32 bits below 1, the nearest is 6e-8 away.)
const SCORE_MARGIN: f64 = 1e-7;

fn logit(score: Score) -> f64 {
    let p = f64::from(score.0).clamp(SCORE_MARGIN, 1.0 - SCORE_MARGIN);
    (p / (1.0 - p)).ln()
}

fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

impl Platt {
    /// Every score is its own confidence.
    pub const IDENTITY: Self = Self { w: 1.0, b: 0.0 };

    pub fn confidence(&self, score: Score) -> Confidence {
        Confidence(sigmoid(self.w * logit(score) + self.b) as f32)
    }

    /// The score whose confidence this is; `None` when confidence does not grow with the score.
    pub fn score_of(&self, confidence: Confidence) -> Option<Score> {
        let z = logit(Score(confidence.0));
        (self.w > 0.0).then(|| Score(sigmoid((z - self.b) / self.w) as f32))
    }

    /// The `w` and `b` of the greatest likelihood: Newton's method on the negative log-likelihood, from the
    /// identity, each step halved until it leads down. Nothing regularises it.
    ///
    /// # Errors
    /// When there is no such pair: see [`NoFit`].
    pub fn fit(judged: impl IntoIterator<Item = Judged>) -> Result<Self, NoFit> {
        let samples: Vec<(f64, bool)> =
            judged.into_iter().map(|judged| (logit(judged.score), judged.right)).collect();
        has_finite_optimum(&samples)?;

        let mut fit = Self::IDENTITY;
        let mut loss = fit.negative_log_likelihood(&samples);
        for _ in 0..100 {
            let (gradient, [ww, wb, bb]) = fit.derivatives(&samples);
            let determinant = ww * bb - wb * wb;
            let (dw, db) = (
                (bb * gradient[0] - wb * gradient[1]) / determinant,
                (ww * gradient[1] - wb * gradient[0]) / determinant,
            );
            if !(dw.is_finite() && db.is_finite()) {
                return Err(NoFit::NotConverged);
            }
            if dw.abs() <= 1e-9 * (1.0 + fit.w.abs()) && db.abs() <= 1e-9 * (1.0 + fit.b.abs()) {
                return Ok(fit);
            }
            let downhill = (0..40).map(|halvings| 0.5f64.powi(halvings)).find_map(|step| {
                let next = Self { w: fit.w - step * dw, b: fit.b - step * db };
                let next_loss = next.negative_log_likelihood(&samples);
                (next_loss < loss).then_some((next, next_loss))
            });
            match downhill {
                Some(next) => (fit, loss) = next,
                // Rounding hides any further way down.
                None => return Ok(fit),
            }
        }
        Err(NoFit::NotConverged)
    }

    /// `Σ ln(1 + e^z) − m·z` with `z = w·x + b`.
    fn negative_log_likelihood(&self, samples: &[(f64, bool)]) -> f64 {
        let of_sample = |&(x, right): &(f64, bool)| {
            let z = self.w * x + self.b;
            z.max(0.0) + (-z.abs()).exp().ln_1p() - if right { z } else { 0.0 }
        };
        samples.iter().map(of_sample).sum()
    }

    /// The gradient by w and b, and the second derivatives by ww, wb and bb.
    fn derivatives(&self, samples: &[(f64, bool)]) -> ([f64; 2], [f64; 3]) {
        let (mut gradient, mut hessian) = ([0.0; 2], [0.0; 3]);
        for &(x, right) in samples {
            let p = sigmoid(self.w * x + self.b);
            let (error, curvature) = (p - f64::from(u8::from(right)), p * (1.0 - p));
            gradient[0] += error * x;
            gradient[1] += error;
            hessian[0] += curvature * x * x;
            hessian[1] += curvature * x;
            hessian[2] += curvature;
        }
        (gradient, hessian)
    }
}

/// There is one unless some threshold, ties at it aside, separates the outcomes.
fn has_finite_optimum(samples: &[(f64, bool)]) -> Result<(), NoFit> {
    let range = |outcome: bool| {
        let of_outcome = samples.iter().filter(|(_, right)| *right == outcome).map(|(x, _)| *x);
        of_outcome.fold(None, |range: Option<(f64, f64)>, x| {
            Some(range.map_or((x, x), |(low, high)| (low.min(x), high.max(x))))
        })
    };
    let (Some(right), Some(wrong)) = (range(true), range(false)) else { return Err(NoFit::OneOutcome) };
    if wrong.1 <= right.0 || right.1 <= wrong.0 { Err(NoFit::Separable) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn judged(samples: &[(f32, bool)]) -> Vec<Judged> {
        samples.iter().map(|&(score, right)| Judged { score: Score(score), right }).collect()
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
                prop_assert!((confidence - right).abs() < 1e-3 * samples.len() as f64, "{fit:?}");
            }
        }
    }
}
