use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use lacuna_data::Dataset;
use serde::Serialize;

use crate::{ImageDetection, Match, match_detections};

/// A detection that was said to be right with some confidence, and what it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JudgedConfidence {
    pub class: usize,
    /// In `[0, 1]`.
    pub confidence: f64,
    /// With its object, when it is right.
    pub iou: Option<f64>,
}

impl JudgedConfidence {
    /// `None` for a detection that is to be ignored. The confidence need not be the score by which it was
    /// matched.
    pub fn new(class: usize, confidence: f64, matched: Match) -> Option<Self> {
        let iou = match matched {
            Match::Matched(iou) => Some(iou),
            Match::Wrong => None,
            Match::Ignored => return None,
        };
        Some(Self { class, confidence, iou })
    }
}

/// What became of all detections that are not to be ignored ([`match_detections`]), with their scores for
/// confidences.
///
/// # Panics
/// When an image is not of the data set.
pub fn outcomes(dataset: &Dataset, found: &[ImageDetection], iou_min: f64) -> Vec<JudgedConfidence> {
    let matches = match_detections(dataset, found, iou_min);
    found
        .iter()
        .zip(matches)
        .filter_map(|(f, matched)| JudgedConfidence::new(f.class, f.score, matched))
        .collect()
}

/// How far confidences are from what came true.
///
/// A bin's *gap* is `|precision − mean confidence|` of the detections in it. Every figure is of detections
/// alone: objects that were not found have no part in it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CalibrationError {
    /// Detections.
    pub n: usize,
    /// Detection expected calibration error (Küppers et al., 2020), by confidence alone: `Σ n_bin/n · gap`.
    pub d_ece: f64,
    /// Average calibration error (Neumann et al., 2018): the mean gap of the bins that have detections, each
    /// with the same weight.
    pub ace: f64,
    /// Maximum calibration error (Naeini et al., 2015): the largest gap.
    pub mce: f64,
    /// Localization-aware expected calibration error (Oksuz et al., 2023). For each class, in
    /// [`LA_ECE_BINS`] bins, `Σ n_bin/n_class · |mean confidence − precision · mean IoU of the right|`; the
    /// mean over the classes that have detections.
    ///
    /// Differs from the authors' code: their bins include the upper edge and not the lower, and classes
    /// without an annotation are left out.
    pub la_ece: f64,
    /// Mean of `(confidence − right)²`, `right` being 1 or 0 (Brier, 1950).
    pub brier: f64,
    /// Mean negative log-likelihood, `−ln confidence` of the right and `−ln(1 − confidence)` of the wrong,
    /// where confidences are taken to be at least 1e-7 away from 0 and 1.
    pub nll: f64,
    /// Those that `d_ece`, `ace` and `mce` are of, from 0 to 1.
    pub bins: Vec<ConfidenceBin>,
}

/// The detections with a confidence from `low` up to, but without, `high`; the last bin includes 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ConfidenceBin {
    pub low: f64,
    pub high: f64,
    pub count: usize,
    pub right: usize,
    /// The mean; `None` when the bin is empty.
    pub confidence: Option<f64>,
    /// The mean of those that are right; `None` when there is none.
    pub iou: Option<f64>,
}

impl ConfidenceBin {
    /// The share that is right; `None` when the bin is empty.
    pub fn precision(&self) -> Option<f64> {
        (self.count > 0).then(|| self.right as f64 / self.count as f64)
    }

    fn gap(&self) -> Option<f64> {
        Some((self.precision()? - self.confidence?).abs())
    }

    fn localization_gap(&self) -> Option<f64> {
        // Without a right one, precision is 0, and so is its product with anything.
        Some((self.confidence? - self.precision()? * self.iou.unwrap_or(0.0)).abs())
    }
}

/// As many bins as calibration errors usually have.
pub const DEFAULT_BINS: NonZeroUsize = NonZeroUsize::new(10).expect("10 is not 0");

/// As many bins as the localization-aware error has.
pub const LA_ECE_BINS: NonZeroUsize = NonZeroUsize::new(25).expect("25 is not 0");

/// As near to 0 and 1 as confidences come in logarithms.
const MARGIN: f64 = 1e-7;

impl CalibrationError {
    /// `None` when there is no detection.
    pub fn of(outcomes: &[JudgedConfidence], bins: NonZeroUsize) -> Option<Self> {
        if outcomes.is_empty() {
            return None;
        }
        let n = outcomes.len() as f64;
        let mean = |of: &dyn Fn(&JudgedConfidence, f64) -> f64| {
            let value = |outcome: &JudgedConfidence| of(outcome, f64::from(u8::from(outcome.iou.is_some())));
            outcomes.iter().map(value).sum::<f64>() / n
        };
        let bins = binned(outcomes.iter().copied(), bins);
        let gaps: Vec<f64> = bins.iter().filter_map(ConfidenceBin::gap).collect();

        let mut by_class: BTreeMap<usize, Vec<JudgedConfidence>> = BTreeMap::new();
        for outcome in outcomes {
            by_class.entry(outcome.class).or_default().push(*outcome);
        }
        let la_eces = by_class.values().map(|of_class| {
            weighted(&binned(of_class.iter().copied(), LA_ECE_BINS), ConfidenceBin::localization_gap)
                / of_class.len() as f64
        });
        Some(Self {
            n: outcomes.len(),
            d_ece: weighted(&bins, ConfidenceBin::gap) / n,
            ace: gaps.iter().sum::<f64>() / gaps.len() as f64,
            mce: gaps.iter().copied().fold(0.0, f64::max),
            la_ece: la_eces.sum::<f64>() / by_class.len() as f64,
            brier: mean(&|outcome, right| (outcome.confidence - right).powi(2)),
            nll: mean(&|outcome, right| {
                let p = outcome.confidence.clamp(MARGIN, 1.0 - MARGIN);
                -(right * p.ln() + (1.0 - right) * (1.0 - p).ln())
            }),
            bins,
        })
    }

    /// Of each of the classes `0..n_classes`.
    pub fn per_class(
        outcomes: &[JudgedConfidence],
        n_classes: usize,
        bins: NonZeroUsize,
    ) -> Vec<Option<Self>> {
        let mut by_class = vec![Vec::new(); n_classes];
        for outcome in outcomes {
            by_class[outcome.class].push(*outcome);
        }
        by_class.iter().map(|of_class| Self::of(of_class, bins)).collect()
    }
}

fn weighted(bins: &[ConfidenceBin], gap: impl Fn(&ConfidenceBin) -> Option<f64>) -> f64 {
    bins.iter().map(|bin| bin.count as f64 * gap(bin).unwrap_or(0.0)).sum()
}

/// Bins of equal width. Their edges are those of NumPy's `linspace`, rounding and all: 0.3 is not in the
/// fourth of ten bins, which starts at 0.30000000000000004.
fn binned(outcomes: impl IntoIterator<Item = JudgedConfidence>, n_bins: NonZeroUsize) -> Vec<ConfidenceBin> {
    let width = 1.0 / n_bins.get() as f64;
    let edge = |n: usize| if n == n_bins.get() { 1.0 } else { n as f64 * width };
    let upper_edges: Vec<f64> = (1..n_bins.get()).map(edge).collect();
    let mut sums = vec![Sums::default(); n_bins.get()];
    for outcome in outcomes {
        sums[upper_edges.partition_point(|edge| *edge <= outcome.confidence)].add(outcome);
    }
    let bin = |(n, sums): (usize, Sums)| sums.over(edge(n), edge(n + 1));
    sums.into_iter().enumerate().map(bin).collect()
}

#[derive(Clone, Copy, Default)]
struct Sums {
    count: usize,
    right: usize,
    confidence: f64,
    iou: f64,
}

impl Sums {
    fn add(&mut self, outcome: JudgedConfidence) {
        self.count += 1;
        self.right += usize::from(outcome.iou.is_some());
        self.confidence += outcome.confidence;
        self.iou += outcome.iou.unwrap_or(0.0);
    }

    fn over(self, low: f64, high: f64) -> ConfidenceBin {
        let mean = |sum: f64, n: usize| (n > 0).then(|| sum / n as f64);
        ConfidenceBin {
            low,
            high,
            count: self.count,
            right: self.right,
            confidence: mean(self.confidence, self.count),
            iou: mean(self.iou, self.right),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn outcome(class: usize, confidence: f64, iou: Option<f64>) -> JudgedConfidence {
        JudgedConfidence { class, confidence, iou }
    }

    fn error_of(outcomes: &[JudgedConfidence]) -> CalibrationError {
        CalibrationError::of(outcomes, DEFAULT_BINS).expect("there are detections")
    }

    #[track_caller]
    fn assert_close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
    }

    #[test]
    fn no_detection_has_no_error() {
        assert_eq!(CalibrationError::of(&[], DEFAULT_BINS), None);
        let one = [outcome(1, 0.5, None)];
        let per_class = CalibrationError::per_class(&one, 3, DEFAULT_BINS);
        assert_eq!(per_class, [None, CalibrationError::of(&one, DEFAULT_BINS), None]);
    }

    #[test]
    fn the_gaps_of_the_bins_make_the_errors() {
        // In the last bin 3 of 4 are right at 0.95; in the third none of 1 at 0.25.
        let mut outcomes = vec![outcome(0, 0.95, Some(0.8)); 3];
        outcomes.extend([outcome(0, 0.95, None), outcome(0, 0.25, None)]);
        let error = error_of(&outcomes);
        assert_eq!(error.n, 5);
        assert_close(error.d_ece, (4.0 * 0.2 + 0.25) / 5.0);
        assert_close(error.ace, (0.2 + 0.25) / 2.0);
        assert_close(error.mce, 0.25);
        assert_close(error.la_ece, (4.0 * (0.95 - 0.75 * 0.8) + 0.25) / 5.0);
        assert_close(error.brier, (3.0 * 0.05f64.powi(2) + 0.95f64.powi(2) + 0.25f64.powi(2)) / 5.0);
        assert_close(error.nll, -(3.0 * 0.95f64.ln() + 0.05f64.ln() + 0.75f64.ln()) / 5.0);
        let last = error.bins[9];
        assert_eq!((last.count, last.right, last.high), (4, 3, 1.0));
        assert_eq!(
            (last.precision(), error.bins[0].precision(), error.bins[2].iou),
            (Some(0.75), None, None)
        );
    }

    #[test]
    fn classes_have_the_same_weight_in_la_ece_alone() {
        let mut outcomes = vec![outcome(0, 0.5, Some(0.5)); 9];
        outcomes.push(outcome(7, 0.5, None));
        let error = error_of(&outcomes);
        assert_close(error.la_ece, (0.0 + 0.5) / 2.0);
        assert_close(error.d_ece, 0.4);
    }

    #[test]
    fn a_bin_has_its_lower_edge_and_the_last_has_1() {
        let counts = |confidence| {
            let bins = error_of(&[outcome(0, confidence, None)]).bins;
            bins.iter().position(|bin| bin.count == 1).expect("it is in a bin")
        };
        assert_eq!([0.0, 0.1, 0.2, 0.5, 0.999, 1.0].map(counts), [0, 1, 2, 5, 9, 9]);
        // 3 · 0.1 is a little more than 0.3.
        assert_eq!(counts(0.3), 2);
    }

    #[test]
    fn to_be_sure_and_wrong_is_bad_but_not_without_end() {
        assert_close(error_of(&[outcome(0, 1.0, None)]).nll, -(1.0 - (1.0 - MARGIN)).ln());
        assert!(error_of(&[outcome(0, 1.0, Some(1.0)), outcome(0, 0.0, None)]).nll < 2e-7);
    }

    fn some_outcomes() -> impl Strategy<Value = Vec<JudgedConfidence>> {
        let one = (0usize..4, 0.0f64..=1.0, prop::option::of(0.1f64..=1.0));
        prop::collection::vec(
            one.prop_map(|(class, confidence, iou)| outcome(class, confidence, iou)),
            1..200,
        )
    }

    proptest! {
        #[test]
        fn every_detection_is_in_one_bin_between_its_edges(
            outcomes in some_outcomes(), n_bins in 1usize..40
        ) {
            let n_bins = NonZeroUsize::new(n_bins).unwrap();
            let error = CalibrationError::of(&outcomes, n_bins).unwrap();
            prop_assert_eq!(error.bins.len(), n_bins.get());
            prop_assert_eq!(error.bins.iter().map(|bin| bin.count).sum::<usize>(), outcomes.len());
            let right = outcomes.iter().filter(|outcome| outcome.iou.is_some()).count();
            prop_assert_eq!(error.bins.iter().map(|bin| bin.right).sum::<usize>(), right);
            prop_assert!(error.bins.windows(2).all(|pair| pair[0].high == pair[1].low));
            for bin in error.bins.iter().filter(|bin| bin.count > 0) {
                let mean = bin.confidence.unwrap();
                prop_assert!(bin.low - 1e-12 <= mean && mean <= bin.high + 1e-12);
            }
        }

        /// Cancellation within bins makes errors smaller, never greater, and no error is above the largest.
        #[test]
        fn errors_are_ordered(outcomes in some_outcomes()) {
            let [one, ten] = [1, 10].map(|n| CalibrationError::of(&outcomes, NonZeroUsize::new(n).unwrap()).unwrap());
            prop_assert!(one.d_ece <= ten.d_ece + 1e-12);
            for error in [&one, &ten] {
                prop_assert!(0.0 <= error.d_ece && error.d_ece <= error.mce + 1e-12 && error.mce <= 1.0);
                prop_assert!(error.ace <= error.mce + 1e-12);
            }
            // The gap of a bin is a mean of differences, each at most the root of its square.
            prop_assert!(ten.d_ece.powi(2) <= ten.brier + 1e-12);
        }

        #[test]
        fn the_order_of_detections_does_not_matter(outcomes in some_outcomes()) {
            let mut reversed = outcomes.clone();
            reversed.reverse();
            let (a, b) = (error_of(&outcomes), error_of(&reversed));
            for (a, b) in [(a.d_ece, b.d_ece), (a.la_ece, b.la_ece), (a.brier, b.brier), (a.nll, b.nll)] {
                prop_assert!((a - b).abs() < 1e-12);
            }
        }

        /// Where boxes are exact, localization adds nothing; with the same bins the errors of one class agree.
        #[test]
        fn with_perfect_boxes_la_ece_is_d_ece(outcomes in some_outcomes()) {
            let exact: Vec<JudgedConfidence> =
                outcomes.iter().map(|o| outcome(0, o.confidence, o.iou.map(|_| 1.0))).collect();
            let error = CalibrationError::of(&exact, LA_ECE_BINS).unwrap();
            prop_assert!((error.la_ece - error.d_ece).abs() < 1e-12);
        }
    }
}
