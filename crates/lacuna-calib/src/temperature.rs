//! Temperature scaling.

use lacuna_boxes::Score;
use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, positive};
use crate::logistic::{FeatureRow, logit, logit_of, maximize_likelihood, sigmoid};
use crate::tally::{Tally, tally_by_score};
use crate::{Confidence, JudgedScore, NoFit};

/// Temperature scaling of a score p: `σ(logit(p)/T)` with `T > 0` (Guo et al., 2017). A score of 0.5 is its own
/// confidence, whatever the temperature.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct Temperature {
    t: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    t: f64,
}

impl TryFrom<Fields> for Temperature {
    type Error = Invalid;

    fn try_from(Fields { t }: Fields) -> Result<Self, Invalid> {
        Ok(Self { t: positive("t", t)? })
    }
}

impl Temperature {
    /// The temperature T.
    pub fn t(&self) -> f64 {
        self.t
    }

    /// The confidence of a score.
    pub fn confidence(&self, score: Score) -> Confidence {
        Confidence(sigmoid(logit_of(score) / self.t) as f32)
    }

    /// The temperature of maximum likelihood, by Newton's method on `1/T` from 1.
    ///
    /// Differs from netcal: what it calls `temperature` is `1/T`, and it may be negative.
    ///
    /// # Errors
    /// When there is no such temperature, or it is not positive: see [`NoFit`].
    pub fn fit(judged: impl IntoIterator<Item = JudgedScore>) -> Result<Self, NoFit> {
        let tallies = tally_by_score(judged)?;
        let rows: Vec<_> = tallies.iter().map(|tally| FeatureRow::new([logit(tally.score)], tally)).collect();
        // The likelihood is concave in 1/T, so the optimum is positive exactly if the likelihood grows at 0.
        let growth = |t: &Tally| (2.0 * t.right as f64 - t.count as f64) * logit(t.score);
        if tallies.iter().map(growth).sum::<f64>() <= 0.0 {
            return Err(NoFit::Falling);
        }
        if tallies.iter().all(|t| (t.right == 0 || t.score >= 0.5) && (t.right == t.count || t.score <= 0.5))
        {
            return Err(NoFit::Separable);
        }
        let [inverse] = maximize_likelihood(&rows, [1.0])?.theta;
        let t = inverse.recip();
        if t.is_finite() && t > 0.0 { Ok(Self { t }) } else { Err(NoFit::NotConverged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(samples: &[(f32, bool)]) -> Result<Temperature, NoFit> {
        Temperature::fit(samples.iter().map(|&(score, right)| JudgedScore { score: Score(score), right }))
    }

    /// Three of four at a score of 0.9 are right: `1/T = logit(0.75)/logit(0.9) = ln 3/ln 9 = 1/2`.
    #[test]
    fn scores_that_are_too_sure_are_cooled() {
        let curve = fit(&[(0.9, true), (0.9, true), (0.9, false), (0.9, true)]).expect("they overlap");
        // The score of 32 bits is 2e-8 away from 0.9.
        assert!((curve.t() - 2.0).abs() < 1e-6, "{curve:?}");
        assert!((curve.confidence(Score(0.9)).0 - 0.75).abs() < 1e-6);
        assert_eq!(curve.confidence(Score(0.5)), Confidence(0.5));
    }

    #[test]
    fn what_has_no_positive_temperature_is_refused() {
        assert_eq!(fit(&[(0.6, true), (0.5, false), (0.5, true), (0.2, false)]), Err(NoFit::Separable));
        assert_eq!(fit(&[(0.9, true), (0.9, false), (0.8, false)]), Err(NoFit::Falling));
        assert_eq!(fit(&[(0.9, false), (0.1, true)]), Err(NoFit::Falling));
        assert_eq!(fit(&[(0.5, false), (0.5, true)]), Err(NoFit::Falling));
        assert_eq!(fit(&[(0.9, true)]), Err(NoFit::OneOutcome));
    }
}
