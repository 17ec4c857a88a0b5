//! Bayesian binning into quantiles (BBQ).

use lacuna_boxes::Score;
use serde::{Deserialize, Serialize};

use crate::histogram::{HistogramBinning, bin_of};
use crate::invalid::{Invalid, positive};
use crate::tally::{Tally, tally_by_score};
use crate::{Confidence, JudgedScore, NoFit};

/// Bayesian binning (BBQ, Naeini et al., 2015): the mean of histogram binnings with different numbers of bins,
/// each with the posterior probability of its number as weight. It may fall as the score grows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct BayesianBinning {
    binnings: Vec<Weighted>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Weighted {
    weight: f64,
    #[serde(flatten)]
    histogram: HistogramBinning,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    binnings: Vec<Weighted>,
}

impl TryFrom<Fields> for BayesianBinning {
    type Error = Invalid;

    fn try_from(Fields { binnings }: Fields) -> Result<Self, Invalid> {
        if binnings.is_empty() {
            return Err(Invalid::Empty { field: "binnings" });
        }
        for binning in &binnings {
            positive("weight", binning.weight)?;
        }
        let sum: f64 = binnings.iter().map(|binning| binning.weight).sum();
        if (sum - 1.0).abs() < 1e-9 { Ok(Self { binnings }) } else { Err(Invalid::Weights(sum)) }
    }
}

/// Numbers of bins from `n^(1/3)/10` to `10·n^(1/3)` are tried (the paper's C).
const RANGE: f64 = 10.0;

/// The elbow: where the posterior falls by less than this part of its variance, the rest is left out.
const ELBOW: f64 = 0.001;

impl BayesianBinning {
    /// The weight and the confidences of the bins of each binning, the greatest weight first.
    pub fn binnings(&self) -> impl Iterator<Item = (f64, &[f64])> {
        self.binnings.iter().map(|binning| (binning.weight, binning.histogram.bins()))
    }

    /// The confidence of a score.
    pub fn confidence(&self, score: Score) -> Confidence {
        let mean: f64 =
            self.binnings.iter().map(|binning| binning.weight * binning.histogram.precision_at(score)).sum();
        Confidence(mean.min(1.0) as f32)
    }

    /// The least score of each bin of each binning.
    pub(crate) fn edges(&self) -> impl Iterator<Item = Score> {
        self.binnings.iter().flat_map(|binning| binning.histogram.edges())
    }

    /// Fit all binnings. The posterior of B bins is `∝ exp(−BIC/2)` with `BIC = −2·ln L + B·ln n`; binnings below the elbow of the
    /// posteriors are left out.
    ///
    /// Differs from the paper, as netcal does: the bins are of equal width rather than of equal frequency, and the
    /// score is BIC rather than the marginal likelihood under beta priors.
    /// Differs from netcal: a score on the edge of two bins is looked up where it is counted (see
    /// [`HistogramBinning`]), and the likelihood is summed with 64 bits rather than 32.
    ///
    /// # Errors
    /// [`NoFit::OneOutcome`], or [`NoFit::NotAScore`].
    pub fn fit(judged: impl IntoIterator<Item = JudgedScore>) -> Result<Self, NoFit> {
        let cumulated = Cumulated::new(&tally_by_score(judged)?);
        let n = cumulated.total() as f64;
        let least = (n.cbrt() / RANGE).floor().max(1.0) as usize;
        let most = (n / 5.0).ceil().min((n.cbrt() * RANGE).ceil()) as usize;
        let mut candidates: Vec<(usize, f64)> = Vec::new();
        for (n_bins, log_likelihood) in (least..=most).zip(cumulated.log_likelihoods(least, most)) {
            candidates.push((n_bins, -2.0 * log_likelihood + n_bins as f64 * n.ln()));
        }

        let best = candidates.iter().map(|(_, bic)| *bic).fold(f64::INFINITY, f64::min);
        for (_, score) in &mut candidates {
            *score = ((best - *score) / 2.0).exp();
        }
        candidates.sort_by(|one, other| other.1.total_cmp(&one.1));
        candidates.truncate(elbow(&candidates));
        candidates.retain(|(_, posterior)| *posterior > 0.0);

        let sum: f64 = candidates.iter().map(|(_, posterior)| posterior).sum();
        let weighted = |(n_bins, posterior)| Weighted {
            weight: posterior / sum,
            histogram: HistogramBinning::from_counts(&cumulated.bins(n_bins).collect::<Vec<_>>()),
        };
        Ok(Self { binnings: candidates.into_iter().map(weighted).collect() })
    }
}

/// How many of the posteriors, the greatest first, are kept: those before the first small drop. Several may
/// share the greatest.
fn elbow(candidates: &[(usize, f64)]) -> usize {
    let n = candidates.len() as f64;
    let mean = candidates.iter().map(|(_, posterior)| posterior).sum::<f64>() / n;
    let variance = candidates.iter().map(|(_, posterior)| (posterior - mean).powi(2)).sum::<f64>() / n;
    let drops = candidates.windows(2).map(|pair| pair[0].1 - pair[1].1);
    let shared = drops.clone().take_while(|drop| *drop == 0.0).count();
    1 + shared + drops.skip(shared).take_while(|drop| drop / variance > ELBOW).count()
}

/// `m·ln q + (n − m)·ln(1 − q)` with `q = m/n`.
fn log_likelihood((count, right): (u64, u64)) -> f64 {
    let of_outcome = |of_it: u64| match of_it {
        0 => 0.0,
        _ => of_it as f64 * (of_it as f64 / count as f64).ln(),
    };
    of_outcome(right) + of_outcome(count - right)
}

/// The number of detections, and of right ones, below each score: a binning is then one search for each of its
/// edges.
struct Cumulated {
    scores: Vec<f64>,
    /// One more than scores: the last is the total.
    below: Vec<(u64, u64)>,
    /// The index of the first score in each of as many cells of equal width as there are scores, or more, and
    /// the number of scores: where a search for an edge begins and ends.
    cells: Vec<usize>,
}

impl Cumulated {
    fn new(tallies: &[Tally]) -> Self {
        let mut below = vec![(0, 0)];
        let (mut count, mut right) = (0, 0);
        for tally in tallies {
            count += tally.count;
            right += tally.right;
            below.push((count, right));
        }
        let n_cells = tallies.len().next_power_of_two();
        let mut cells = Vec::with_capacity(n_cells + 1);
        for (index, tally) in tallies.iter().enumerate() {
            let cell = bin_of(tally.score, n_cells);
            cells.resize(cells.len().max(cell + 1), index);
        }
        cells.resize(n_cells + 1, tallies.len());
        Self { scores: tallies.iter().map(|tally| tally.score).collect(), below, cells }
    }

    fn total(&self) -> u64 {
        self.below[self.scores.len()].0
    }

    /// How many scores are below `k/n_bins`, which is less than 1.
    fn rank(&self, k: usize, n_bins: usize) -> usize {
        let cell = k * (self.cells.len() - 1) / n_bins;
        let (first, end) = (self.cells[cell], self.cells[cell + 1]);
        first + self.scores[first..end].partition_point(|score| score * (n_bins as f64) < k as f64)
    }

    /// The log-likelihoods of the binnings with `least` to `most` bins. All of them pass over the scores side by
    /// side, a stretch at a time, so that what they read stays in the cache.
    fn log_likelihoods(&self, least: usize, most: usize) -> Vec<f64> {
        const STRETCHES: usize = 64;
        let mut binnings: Vec<_> = (least..=most).map(|n_bins| (n_bins, self.bins(n_bins), 0.0)).collect();
        for stretch in 0..STRETCHES {
            for (n_bins, bins, sum) in &mut binnings {
                let due = (stretch + 1) * *n_bins / STRETCHES - stretch * *n_bins / STRETCHES;
                *sum += bins.take(due).map(log_likelihood).sum::<f64>();
            }
        }
        binnings.into_iter().map(|(_, _, sum)| sum).collect()
    }

    /// The number of detections in each bin, and of right ones.
    fn bins(&self, n_bins: usize) -> impl Iterator<Item = (u64, u64)> {
        let mut from = (0, 0);
        (1..=n_bins).map(move |k| {
            let to = self.below[if k < n_bins { self.rank(k, n_bins) } else { self.scores.len() }];
            let bin = (to.0 - from.0, to.1 - from.1);
            from = to;
            bin
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use proptest::prelude::*;

    use super::*;

    fn judged(samples: &[(f32, bool)]) -> Vec<JudgedScore> {
        samples.iter().map(|&(score, right)| JudgedScore { score: Score(score), right }).collect()
    }

    /// Four detections: one bin is all that is tried.
    #[test]
    fn a_few_detections_share_one_bin() {
        let fit = BayesianBinning::fit(judged(&[(0.1, false), (0.6, true), (0.7, true), (0.9, true)]));
        let fit = fit.expect("both outcomes");
        assert_eq!(fit.binnings().collect::<Vec<_>>(), [(1.0, &[0.75][..])]);
        assert_eq!(BayesianBinning::fit([]), Err(NoFit::OneOutcome));
    }

    #[test]
    fn binnings_below_the_elbow_are_left_out() {
        let kept = |posteriors: &[f64]| elbow(&posteriors.iter().map(|p| (1, *p)).collect::<Vec<_>>());
        assert_eq!(kept(&[1.0]), 1);
        assert_eq!(kept(&[1.0, 1.0]), 2);
        assert_eq!(kept(&[1.0, 1.0, 0.5, 0.25, 0.25, 0.0]), 4);
        assert_eq!(kept(&[1.0, 0.5, 1e-5, 1e-6]), 3);
    }

    proptest! {
        #[test]
        fn searching_for_the_edges_is_putting_each_score_in_its_bin(
            samples in prop::collection::vec((0.0f32..=1.0, any::<bool>()), 2..80), n_bins in 1usize..40
        ) {
            let samples = judged(&samples);
            if let Ok(tallies) = tally_by_score(samples.iter().copied()) {
                let n_bins = NonZero::new(n_bins).expect("not zero");
                let counts: Vec<_> = Cumulated::new(&tallies).bins(n_bins.get()).collect();
                prop_assert_eq!(HistogramBinning::from_counts(&counts), HistogramBinning::fit(samples, n_bins)?);
            }
        }
    }
}
