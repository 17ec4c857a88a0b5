//! Histogram binning.

use std::num::NonZero;

use lacuna_boxes::Score;
use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, probabilities};
use crate::tally::tally_by_score;
use crate::{Confidence, JudgedScore, NoFit};

/// Histogram binning (Zadrozny & Elkan, 2001): the confidence of a score is the precision of its bin, of n bins
/// of equal width. Bin k holds the scores in `[k/n, (k+1)/n)`, the last one 1 as well. It may fall from one bin
/// to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct HistogramBinning {
    bins: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    bins: Vec<f64>,
}

impl TryFrom<Fields> for HistogramBinning {
    type Error = Invalid;

    fn try_from(Fields { bins }: Fields) -> Result<Self, Invalid> {
        probabilities("bins", bins.iter().copied())?;
        Ok(Self { bins })
    }
}

impl HistogramBinning {
    /// The number of bins in the paper and in netcal.
    pub const N_BINS: NonZero<usize> = NonZero::new(10).expect("not zero");

    /// The confidence of each bin, the lowest scores first.
    pub fn bins(&self) -> &[f64] {
        &self.bins
    }

    /// The confidence of a score.
    pub fn confidence(&self, score: Score) -> Confidence {
        Confidence(self.precision_at(score) as f32)
    }

    pub(crate) fn precision_at(&self, score: Score) -> f64 {
        self.bins[bin_of(score.0.into(), self.bins.len())]
    }

    /// The least score of each bin but the first.
    pub(crate) fn edges(&self) -> impl Iterator<Item = Score> {
        let n = self.bins.len();
        (1..n).map(move |k| {
            let edge = (k as f64 / n as f64) as f32;
            Score(if bin_of(edge.into(), n) < k { edge.next_up() } else { edge })
        })
    }

    /// Fit `n_bins` bins. A bin without judged detections has its center as confidence.
    ///
    /// Differs from the paper, as netcal does: bins are of equal width, not of equal frequency.
    /// Differs from netcal: there a score on the edge of two bins is counted in the upper one and then looked up
    /// in the lower one. Here it belongs to the upper one.
    ///
    /// # Errors
    /// [`NoFit::OneOutcome`], or [`NoFit::NotAScore`].
    pub fn fit(judged: impl IntoIterator<Item = JudgedScore>, n_bins: NonZero<usize>) -> Result<Self, NoFit> {
        let n_bins = n_bins.get();
        let mut counts = vec![(0, 0); n_bins];
        for tally in tally_by_score(judged)? {
            let (count, right) = &mut counts[bin_of(tally.score, n_bins)];
            *count += tally.count;
            *right += tally.right;
        }
        Ok(Self::from_counts(&counts))
    }

    /// From the number of detections in each bin, and the number of right ones.
    pub(crate) fn from_counts(counts: &[(u64, u64)]) -> Self {
        let precision = |(k, &(count, right)): (usize, &(u64, u64))| match count {
            0 => (k as f64 + 0.5) / counts.len() as f64,
            _ => right as f64 / count as f64,
        };
        Self { bins: counts.iter().enumerate().map(precision).collect() }
    }
}

/// A score has 24 binary digits, so that its product with the number of bins is exact.
pub(crate) fn bin_of(score: f64, n_bins: usize) -> usize {
    ((score * n_bins as f64) as usize).min(n_bins - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_belongs_to_the_bin_above_it() {
        let judged = [(0.25, false), (0.5, true), (0.75, true), (1.0, true)]
            .map(|(score, right)| JudgedScore { score: Score(score), right });
        let fit = HistogramBinning::fit(judged, NonZero::new(4).expect("not zero")).expect("both outcomes");
        // The first bin is empty.
        assert_eq!(fit.bins(), [0.125, 0.0, 1.0, 1.0]);
        assert_eq!(fit.confidence(Score(0.25)), Confidence(0.0));
        assert_eq!(fit.confidence(Score(0.25f32.next_down())), Confidence(0.125));
        assert_eq!(fit.confidence(Score(1.0)), Confidence(1.0));
        assert_eq!(HistogramBinning::fit([], HistogramBinning::N_BINS), Err(NoFit::OneOutcome));
    }

    #[test]
    fn each_bin_begins_at_its_edge() {
        for n in 1..=200 {
            let binning = HistogramBinning { bins: vec![0.5; n] };
            for (k, edge) in (1..).zip(binning.edges()) {
                assert_eq!(bin_of(edge.0.into(), n), k);
                assert_eq!(bin_of(edge.0.next_down().into(), n), k - 1);
            }
        }
    }
}
