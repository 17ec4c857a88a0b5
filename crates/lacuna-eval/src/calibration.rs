//! Calibration errors: how far confidences are from the precision of the detections that have them.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use lacuna_data::Dataset;
use serde::Serialize;

use crate::{DetectionMatch, ImageDetection, match_detections};

/// The confidence of a judged detection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JudgedConfidence {
    /// The class number.
    pub class: usize,
    /// In `[0, 1]`.
    pub confidence: f64,
    /// The IoU with its object; `None` when the detection is wrong.
    pub iou: Option<f64>,
}

impl JudgedConfidence {
    /// Combine a confidence with the result of matching; `None` for an ignored detection. The confidence may differ
    /// from the score that the detection was matched by.
    pub fn new(class: usize, confidence: f64, matched: DetectionMatch) -> Option<Self> {
        let iou = match matched {
            DetectionMatch::Matched(iou) => Some(iou),
            DetectionMatch::Wrong => None,
            DetectionMatch::Ignored => return None,
        };
        Some(Self { class, confidence, iou })
    }
}

/// Judge all detections that are not ignored ([`match_detections`]); their scores are the confidences.
///
/// # Panics
/// When an image is not of the data set.
pub fn judge_confidences(
    dataset: &Dataset,
    detections: &[ImageDetection],
    iou_min: f64,
) -> Vec<JudgedConfidence> {
    let matches = match_detections(dataset, detections, iou_min);
    detections
        .iter()
        .zip(matches)
        .filter_map(|(detection, matched)| JudgedConfidence::new(detection.class, detection.score, matched))
        .collect()
}

/// The calibration error of confidences, by several measures.
///
/// The *gap* of a bin is `|precision − mean confidence|` of its detections. Objects that were not detected do not
/// count.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CalibrationError {
    /// The number of detections.
    pub n: usize,
    /// Detection expected calibration error (Küppers et al., 2020), by confidence alone: `Σ n_bin/n · gap`.
    pub d_ece: f64,
    /// Average calibration error (Neumann et al., 2018): the unweighted mean gap of the bins with detections.
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
    /// The bins that `d_ece`, `ace` and `mce` are computed from, from 0 to 1.
    pub bins: Vec<ConfidenceBin>,
}

/// The detections with a confidence from `low` up to, but without, `high`; the last bin includes 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ConfidenceBin {
    /// The lower edge.
    pub low: f64,
    /// The upper edge.
    pub high: f64,
    /// The number of detections.
    pub count: usize,
    /// How many of them are right.
    pub right: usize,
    /// The mean confidence; `None` when the bin is empty.
    pub confidence: Option<f64>,
    /// The mean IoU of the right detections; `None` when there is none.
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
        // Without a right detection the precision is 0, and the IoU does not matter.
        Some((self.confidence? - self.precision()? * self.iou.unwrap_or(0.0)).abs())
    }
}

/// The usual number of bins of a calibration error.
pub const DEFAULT_BINS: NonZeroUsize = NonZeroUsize::new(10).expect("10 is not 0");

/// The number of bins of the localization-aware error.
pub const LA_ECE_BINS: NonZeroUsize = NonZeroUsize::new(25).expect("25 is not 0");

/// Confidences are kept this far from 0 and 1 before a logarithm.
const MARGIN: f64 = 1e-7;

impl CalibrationError {
    /// Measure the calibration error of these detections; `None` when there are none.
    pub fn measure(judged: &[JudgedConfidence], bins: NonZeroUsize) -> Option<Self> {
        if judged.is_empty() {
            return None;
        }
        let n = judged.len() as f64;
        let mean = |term: &dyn Fn(&JudgedConfidence, f64) -> f64| {
            let value = |one: &JudgedConfidence| term(one, f64::from(u8::from(one.iou.is_some())));
            judged.iter().map(value).sum::<f64>() / n
        };
        let bins = binned(judged.iter().copied(), bins);
        let gaps: Vec<f64> = bins.iter().filter_map(ConfidenceBin::gap).collect();

        let mut by_class: BTreeMap<usize, Vec<JudgedConfidence>> = BTreeMap::new();
        for one in judged {
            by_class.entry(one.class).or_default().push(*one);
        }
        let la_eces = by_class.values().map(|of_class| {
            weighted(&binned(of_class.iter().copied(), LA_ECE_BINS), ConfidenceBin::localization_gap)
                / of_class.len() as f64
        });
        Some(Self {
            n: judged.len(),
            d_ece: weighted(&bins, ConfidenceBin::gap) / n,
            ace: gaps.iter().sum::<f64>() / gaps.len() as f64,
            mce: gaps.iter().copied().fold(0.0, f64::max),
            la_ece: la_eces.sum::<f64>() / by_class.len() as f64,
            brier: mean(&|one, right| (one.confidence - right).powi(2)),
            nll: mean(&|one, right| {
                let p = one.confidence.clamp(MARGIN, 1.0 - MARGIN);
                -(right * p.ln() + (1.0 - right) * (1.0 - p).ln())
            }),
            bins,
        })
    }

    /// Measure the error of each of the classes `0..n_classes`.
    pub fn per_class(judged: &[JudgedConfidence], n_classes: usize, bins: NonZeroUsize) -> Vec<Option<Self>> {
        let mut by_class = vec![Vec::new(); n_classes];
        for one in judged {
            by_class[one.class].push(*one);
        }
        by_class.iter().map(|of_class| Self::measure(of_class, bins)).collect()
    }
}

fn weighted(bins: &[ConfidenceBin], gap: impl Fn(&ConfidenceBin) -> Option<f64>) -> f64 {
    bins.iter().map(|bin| bin.count as f64 * gap(bin).unwrap_or(0.0)).sum()
}

/// Put detections into bins of equal width. The edges are exactly those of NumPy's `linspace`: 0.3 is not in the
/// fourth of ten bins, which starts at 0.30000000000000004.
fn binned(judged: impl IntoIterator<Item = JudgedConfidence>, n_bins: NonZeroUsize) -> Vec<ConfidenceBin> {
    let width = 1.0 / n_bins.get() as f64;
    let edge = |n: usize| if n == n_bins.get() { 1.0 } else { n as f64 * width };
    let upper_edges: Vec<f64> = (1..n_bins.get()).map(edge).collect();
    let mut sums = vec![Sums::default(); n_bins.get()];
    for one in judged {
        sums[upper_edges.partition_point(|edge| *edge <= one.confidence)].add(one);
    }
    let bin = |(n, sums): (usize, Sums)| sums.into_bin(edge(n), edge(n + 1));
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
    fn add(&mut self, judged: JudgedConfidence) {
        self.count += 1;
        self.right += usize::from(judged.iou.is_some());
        self.confidence += judged.confidence;
        self.iou += judged.iou.unwrap_or(0.0);
    }

    fn into_bin(self, low: f64, high: f64) -> ConfidenceBin {
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

    fn judged(class: usize, confidence: f64, iou: Option<f64>) -> JudgedConfidence {
        JudgedConfidence { class, confidence, iou }
    }

    fn error_of(detections: &[JudgedConfidence]) -> CalibrationError {
        CalibrationError::measure(detections, DEFAULT_BINS).expect("there are detections")
    }

    #[track_caller]
    fn assert_close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
    }

    #[test]
    fn no_detection_has_no_error() {
        assert_eq!(CalibrationError::measure(&[], DEFAULT_BINS), None);
        let one = [judged(1, 0.5, None)];
        let per_class = CalibrationError::per_class(&one, 3, DEFAULT_BINS);
        assert_eq!(per_class, [None, CalibrationError::measure(&one, DEFAULT_BINS), None]);
    }

    #[test]
    fn the_gaps_of_the_bins_make_the_errors() {
        // In the last bin 3 of 4 are right at 0.95; in the third none of 1 at 0.25.
        let mut detections = vec![judged(0, 0.95, Some(0.8)); 3];
        detections.extend([judged(0, 0.95, None), judged(0, 0.25, None)]);
        let error = error_of(&detections);
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
        let mut detections = vec![judged(0, 0.5, Some(0.5)); 9];
        detections.push(judged(7, 0.5, None));
        let error = error_of(&detections);
        assert_close(error.la_ece, (0.0 + 0.5) / 2.0);
        assert_close(error.d_ece, 0.4);
    }

    #[test]
    fn a_bin_has_its_lower_edge_and_the_last_has_1() {
        let counts = |confidence| {
            let bins = error_of(&[judged(0, confidence, None)]).bins;
            bins.iter().position(|bin| bin.count == 1).expect("it is in a bin")
        };
        assert_eq!([0.0, 0.1, 0.2, 0.5, 0.999, 1.0].map(counts), [0, 1, 2, 5, 9, 9]);
        // 3 · 0.1 is a little more than 0.3.
        assert_eq!(counts(0.3), 2);
    }

    #[test]
    fn a_wrong_detection_of_confidence_1_has_a_finite_nll() {
        assert_close(error_of(&[judged(0, 1.0, None)]).nll, -(1.0 - (1.0 - MARGIN)).ln());
        assert!(error_of(&[judged(0, 1.0, Some(1.0)), judged(0, 0.0, None)]).nll < 2e-7);
    }

    fn any_judged() -> impl Strategy<Value = Vec<JudgedConfidence>> {
        let one = (0usize..4, 0.0f64..=1.0, prop::option::of(0.1f64..=1.0));
        prop::collection::vec(one.prop_map(|(class, confidence, iou)| judged(class, confidence, iou)), 1..200)
    }

    proptest! {
        #[test]
        fn every_detection_is_in_one_bin_between_its_edges(
            detections in any_judged(), n_bins in 1usize..40
        ) {
            let n_bins = NonZeroUsize::new(n_bins).unwrap();
            let error = CalibrationError::measure(&detections, n_bins).unwrap();
            prop_assert_eq!(error.bins.len(), n_bins.get());
            prop_assert_eq!(error.bins.iter().map(|bin| bin.count).sum::<usize>(), detections.len());
            let right = detections.iter().filter(|one| one.iou.is_some()).count();
            prop_assert_eq!(error.bins.iter().map(|bin| bin.right).sum::<usize>(), right);
            prop_assert!(error.bins.windows(2).all(|pair| pair[0].high == pair[1].low));
            for bin in error.bins.iter().filter(|bin| bin.count > 0) {
                let mean = bin.confidence.unwrap();
                prop_assert!(bin.low - 1e-12 <= mean && mean <= bin.high + 1e-12);
            }
        }

        /// Cancellation within bins makes errors smaller, never greater, and no error is above the largest.
        #[test]
        fn errors_are_ordered(detections in any_judged()) {
            let [one, ten] = [1, 10].map(|n| CalibrationError::measure(&detections, NonZeroUsize::new(n).unwrap()).unwrap());
            prop_assert!(one.d_ece <= ten.d_ece + 1e-12);
            for error in [&one, &ten] {
                prop_assert!(0.0 <= error.d_ece && error.d_ece <= error.mce + 1e-12 && error.mce <= 1.0);
                prop_assert!(error.ace <= error.mce + 1e-12);
            }
            // The gap of a bin is a mean of differences, each at most the root of its square.
            prop_assert!(ten.d_ece.powi(2) <= ten.brier + 1e-12);
        }

        #[test]
        fn the_order_of_detections_does_not_matter(detections in any_judged()) {
            let mut reversed = detections.clone();
            reversed.reverse();
            let (a, b) = (error_of(&detections), error_of(&reversed));
            for (a, b) in [(a.d_ece, b.d_ece), (a.la_ece, b.la_ece), (a.brier, b.brier), (a.nll, b.nll)] {
                prop_assert!((a - b).abs() < 1e-12);
            }
        }

        /// Where boxes are exact, localization adds nothing; with the same bins the errors of one class agree.
        #[test]
        fn with_perfect_boxes_la_ece_is_d_ece(detections in any_judged()) {
            let exact: Vec<JudgedConfidence> =
                detections.iter().map(|o| judged(0, o.confidence, o.iou.map(|_| 1.0))).collect();
            let error = CalibrationError::measure(&exact, LA_ECE_BINS).unwrap();
            prop_assert!((error.la_ece - error.d_ece).abs() < 1e-12);
        }
    }
}
