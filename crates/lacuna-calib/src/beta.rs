//! Beta calibration.

use lacuna_boxes::Score;
use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, finite};
use crate::logistic::{FeatureRow, check_overlap, inner, maximize_likelihood, sigmoid};
use crate::tally::{Tally, tally_by_score};
use crate::{Confidence, JudgedScore, NoFit};

/// Beta calibration of a score p: `σ(a·ln p − b·ln(1 − p) + c)` with `a, b ≥ 0`, not both 0 (Kull et al.,
/// 2017). With `a = b` it is Platt scaling.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct Beta {
    a: f64,
    b: f64,
    c: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    a: f64,
    b: f64,
    c: f64,
}

impl TryFrom<Fields> for Beta {
    type Error = Invalid;

    fn try_from(Fields { a, b, c }: Fields) -> Result<Self, Invalid> {
        for (field, value) in [("a", a), ("b", b)] {
            if finite(field, value)? < 0.0 {
                return Err(Invalid::Negative { field, value });
            }
        }
        if a + b > 0.0 { Ok(Self { a, b, c: finite("c", c)? }) } else { Err(Invalid::Flat) }
    }
}

/// `ln p` and `−ln(1 − p)`: both grow with the score.
fn features(score: f64) -> [f64; 2] {
    let p = inner(score);
    [p.ln(), -(1.0 - p).ln()]
}

impl Beta {
    /// `a`, `b` and `c`.
    pub fn abc(&self) -> [f64; 3] {
        [self.a, self.b, self.c]
    }

    /// The confidence of a score.
    pub fn confidence(&self, score: Score) -> Confidence {
        let [ln_p, minus_ln_q] = features(score.0.into());
        Confidence(sigmoid(self.a * ln_p + self.b * minus_ln_q + self.c) as f32)
    }

    /// The `a, b ≥ 0` and `c` of maximum likelihood, by Newton's method from the identity
    /// `a = b = 1`, `c = 0`. Where `a` or `b` comes out negative it is set to 0 and the rest fitted again: as the
    /// likelihood is concave, that is the optimum under the constraint.
    ///
    /// # Errors
    /// When there is no such triple, or only one with `a = b = 0`: see [`NoFit`].
    pub fn fit(judged: impl IntoIterator<Item = JudgedScore>) -> Result<Self, NoFit> {
        let tallies = tally_by_score(judged)?;
        check_overlap(&tallies)?;
        let with_both = |tally: &Tally| {
            let [ln_p, minus_ln_q] = features(tally.score);
            FeatureRow::new([ln_p, minus_ln_q, 1.0], tally)
        };
        let rows: Vec<_> = tallies.iter().map(with_both).collect();
        // This may fail although the constrained optimum exists: when one band of scores holds exactly the right
        // detections, or when there are only two scores.
        if let Ok(point) = maximize_likelihood(&rows, [1.0, 1.0, 0.0])
            && let [a, b, c] = point.theta
            && a >= 0.0
            && b >= 0.0
        {
            return Ok(Self { a, b, c });
        }

        let with_one = |k: usize| {
            let of_tally = |tally: &Tally| FeatureRow::new([features(tally.score)[k], 1.0], tally);
            maximize_likelihood(&tallies.iter().map(of_tally).collect::<Vec<_>>(), [1.0, 0.0])
        };
        let without_a = with_one(1)?;
        let without_b = with_one(0)?;
        // The optimum is on one of the two edges; the lower loss decides.
        let edges = [
            (without_a.loss, Self { a: 0.0, b: without_a.theta[0], c: without_a.theta[1] }),
            (without_b.loss, Self { a: without_b.theta[0], b: 0.0, c: without_b.theta[1] }),
        ];
        let growing = edges.into_iter().filter(|(_, fit)| fit.a + fit.b > 0.0);
        growing.min_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, fit)| fit).ok_or(NoFit::Falling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(samples: &[(f32, bool)]) -> Result<Beta, NoFit> {
        Beta::fit(samples.iter().map(|&(score, right)| JudgedScore { score: Score(score), right }))
    }

    fn many(of_scores: &[(f32, usize, usize)]) -> Vec<(f32, bool)> {
        let of_score = |&(score, right, wrong): &(f32, usize, usize)| {
            [vec![(score, true); right], vec![(score, false); wrong]].concat()
        };
        of_scores.iter().flat_map(of_score).collect()
    }

    /// With as many scores as parameters the fit goes through the precision of each.
    #[test]
    fn three_scores_are_met_exactly() {
        let curve = fit(&many(&[(0.2, 10, 90), (0.5, 40, 60), (0.9, 95, 5)])).expect("they overlap");
        for (score, precision) in [(0.2, 0.1), (0.5, 0.4), (0.9, 0.95)] {
            assert!((curve.confidence(Score(score)).0 - precision).abs() < 1e-6, "{curve:?}");
        }
        assert!(curve.a > 0.0 && curve.b > 0.0);
    }

    #[test]
    fn a_factor_that_would_be_negative_is_0() {
        let rises_late = fit(&many(&[(0.1, 50, 50), (0.5, 35, 65), (0.9, 90, 10)])).expect("they overlap");
        assert!(rises_late.a == 0.0 && rises_late.b > 0.0, "{rises_late:?}");
        let rises_early = fit(&many(&[(0.1, 10, 90), (0.5, 65, 35), (0.9, 50, 50)])).expect("they overlap");
        assert!(rises_early.a > 0.0 && rises_early.b == 0.0, "{rises_early:?}");
    }

    /// The likelihood without the constraint has no maximum: a band of scores holds all that are wrong.
    #[test]
    fn a_band_that_separates_does_not_stop_the_fit() {
        let fit =
            fit(&many(&[(0.1, 3, 0), (0.4, 0, 9), (0.5, 0, 9), (0.9, 9, 0)])).expect("no threshold does");
        assert!(fit.a == 0.0 && fit.b > 0.0, "{fit:?}");
    }

    #[test]
    fn two_scores_are_met_though_they_leave_a_choice() {
        let curve = fit(&many(&[(0.3, 20, 80), (0.8, 60, 40)])).expect("they overlap");
        assert!((curve.confidence(Score(0.3)).0 - 0.2).abs() < 1e-6);
        assert!((curve.confidence(Score(0.8)).0 - 0.6).abs() < 1e-6);
    }

    #[test]
    fn what_falls_or_is_apart_is_refused() {
        assert_eq!(fit(&many(&[(0.2, 9, 1), (0.5, 5, 5), (0.9, 1, 9)])), Err(NoFit::Falling));
        assert_eq!(fit(&[(0.2, false), (0.5, false), (0.9, true)]), Err(NoFit::Separable));
        assert_eq!(fit(&[(0.2, false)]), Err(NoFit::OneOutcome));
    }
}
