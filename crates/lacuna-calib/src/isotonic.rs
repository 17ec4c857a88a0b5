//! Isotonic regression.

use lacuna_boxes::Score;
use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, probabilities};
use crate::tally::{Tally, tally_by_score};
use crate::{Confidence, JudgedScore, NoFit};

/// Isotonic regression (Zadrozny & Elkan, 2002): of all functions that never fall, the one with the least
/// squared error. Given by knots (score, confidence), the lowest score first; straight lines between them,
/// constant outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct Isotonic {
    knots: Vec<(f64, f64)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    knots: Vec<(f64, f64)>,
}

impl TryFrom<Fields> for Isotonic {
    type Error = Invalid;

    fn try_from(Fields { knots }: Fields) -> Result<Self, Invalid> {
        probabilities("knots", knots.iter().map(|knot| knot.0))?;
        probabilities("knots", knots.iter().map(|knot| knot.1))?;
        for (before, pair) in knots.windows(2).enumerate() {
            if pair[1].0 <= pair[0].0 {
                return Err(Invalid::NotAscending { field: "knots", index: before + 1 });
            }
            if pair[1].1 < pair[0].1 {
                return Err(Invalid::Falling { index: before + 1 });
            }
        }
        Ok(Self { knots })
    }
}

/// Neighboring scores that share one confidence, `right/count`.
struct Block {
    first: f64,
    last: f64,
    count: u64,
    right: u64,
}

impl Isotonic {
    /// The same confidence for every score.
    pub(crate) fn constant(confidence: f64) -> Self {
        Self { knots: vec![(0.0, confidence)] }
    }

    /// Scores with their confidences, the lowest score first.
    pub fn knots(&self) -> &[(f64, f64)] {
        &self.knots
    }

    /// The confidence of a score.
    pub fn confidence(&self, score: Score) -> Confidence {
        let score = f64::from(score.0);
        let above = self.knots.partition_point(|knot| knot.0 <= score);
        let confidence = match (above.checked_sub(1).map(|below| self.knots[below]), self.knots.get(above)) {
            (Some((x0, y0)), Some(&(x1, y1))) => (y0 + (y1 - y0) * ((score - x0) / (x1 - x0))).min(y1),
            (Some((_, outside)), None) | (None, Some(&(_, outside))) => outside,
            (None, None) => unreachable!("there is at least one knot"),
        };
        Confidence(confidence as f32)
    }

    /// Fit by pooling adjacent violators (Ayer et al., 1955). Equal scores are one sample with their precision (the
    /// secondary approach of de Leeuw, 1977). Each pool has a knot at each end.
    ///
    /// # Errors
    /// [`NoFit::OneOutcome`], or [`NoFit::NotAScore`].
    pub fn fit(judged: impl IntoIterator<Item = JudgedScore>) -> Result<Self, NoFit> {
        Self::fit_coarse(judged, 1)
    }

    /// Like [`fit`](Self::fit), with at least `least` detections in each pool. Otherwise the precision of the few
    /// highest scores is left to chance, and confidences at the top of the curve are too high.
    ///
    /// # Errors
    /// [`NoFit::OneOutcome`], or [`NoFit::NotAScore`].
    pub(crate) fn fit_coarse(
        judged: impl IntoIterator<Item = JudgedScore>,
        least: u64,
    ) -> Result<Self, NoFit> {
        let mut blocks: Vec<Block> = Vec::new();
        // The highest scores first, so that the incomplete block is among the lowest.
        for Tally { score, count, right } in tally_by_score(judged)?.into_iter().rev() {
            match blocks.last_mut().filter(|block| block.count < least) {
                Some(block) => {
                    (block.first, block.count, block.right) =
                        (score, block.count + count, block.right + right);
                }
                None => blocks.push(Block { first: score, last: score, count, right }),
            }
        }
        let mut pools: Vec<Block> = Vec::new();
        for mut pool in blocks.into_iter().rev() {
            // Cross-multiplication compares the fractions exactly.
            while let Some(before) =
                pools.pop_if(|before| before.right * pool.count >= pool.right * before.count)
            {
                pool.first = before.first;
                pool.count += before.count;
                pool.right += before.right;
            }
            pools.push(pool);
        }
        // A pool without a wrong detection could have had half of one.
        let most = if least > 1 { 1.0 - 0.5 / least as f64 } else { 1.0 };
        let knots_of = |pool: Block| {
            let confidence = (pool.right as f64 / pool.count as f64).min(most);
            let last = (pool.last > pool.first).then_some((pool.last, confidence));
            [(pool.first, confidence)].into_iter().chain(last)
        };
        Ok(Self { knots: pools.into_iter().flat_map(knots_of).collect() })
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
    fn lines_between_the_knots_and_constant_outside() {
        let samples = [(0.25, false), (0.5, true), (0.5, false), (0.75, true)];
        let fit = Isotonic::fit(judged(&samples)).expect("both outcomes");
        assert_eq!(fit.knots(), [(0.25, 0.0), (0.5, 0.5), (0.75, 1.0)]);
        for (score, confidence) in
            [(0.0, 0.0), (0.25, 0.0), (0.375, 0.25), (0.5, 0.5), (0.75, 1.0), (1.0, 1.0)]
        {
            assert_eq!(fit.confidence(Score(score)), Confidence(confidence));
        }
    }

    #[test]
    fn violators_share_their_precision() {
        let samples = [(0.25, true), (0.5, false), (0.625, false), (0.75, true)];
        let fit = Isotonic::fit(judged(&samples)).expect("both outcomes");
        assert_eq!(fit.knots(), [(0.25, 1.0 / 3.0), (0.625, 1.0 / 3.0), (0.75, 1.0)]);
        assert_eq!(Isotonic::fit(judged(&[(0.3, true)])), Err(NoFit::OneOutcome));
    }

    proptest! {
        /// The fit at the i-th score is `max over j ≤ i of min over k ≥ i of the precision of scores j to k`
        /// (Robertson, Wright & Dykstra, 1988).
        #[test]
        fn it_is_the_minimax_of_precisions(
            samples in prop::collection::vec((0u8..=16, any::<bool>()), 2..24)
        ) {
            let samples: Vec<_> = samples.into_iter().map(|(s, right)| (f32::from(s) / 16.0, right)).collect();
            if let Ok(fit) = Isotonic::fit(judged(&samples)) {
                let precision = |low: f32, high: f32| {
                    let among = samples.iter().filter(|(s, _)| (low..=high).contains(s));
                    let (count, right) = among.fold((0, 0), |(n, m), (_, right)| (n + 1, m + i32::from(*right)));
                    f64::from(right) / f64::from(count)
                };
                for &(at, _) in &samples {
                    let scores = samples.iter().map(|(s, _)| *s);
                    let least = |low: f32| {
                        let highs = scores.clone().filter(|high| *high >= at);
                        highs.map(|high| precision(low, high)).fold(f64::INFINITY, f64::min)
                    };
                    let lows = scores.clone().filter(|low| *low <= at);
                    let expected = lows.map(least).fold(0.0, f64::max);
                    prop_assert_eq!(fit.confidence(Score(at)), Confidence(expected as f32));
                }
            }
        }
    }
}
