//! The curves from a score to a confidence, one for each kind of calibrator.

use lacuna_boxes::Score;
use serde::{Deserialize, Serialize};

use crate::{
    BayesianBinning, Beta, Confidence, GapAware, HistogramBinning, Isotonic, NoFit, Platt, Proximity, Sample,
    Temperature,
};

/// The kinds of calibrators. All but the last are fitted to judged detections, the last to candidates as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CalibratorKind {
    /// Platt scaling, the paper's choice.
    #[default]
    Platt,
    /// Temperature scaling.
    Temperature,
    /// Isotonic regression.
    Isotonic,
    /// Beta calibration.
    Beta,
    /// Histogram binning.
    Histogram,
    /// Bayesian binning.
    Bayesian,
    /// Takes missing annotations into account: [`GapAware`].
    Completeness,
}

impl CalibratorKind {
    /// The kinds that are fitted to judged detections only.
    pub const JUDGED: [Self; 6] =
        [Self::Platt, Self::Temperature, Self::Isotonic, Self::Beta, Self::Histogram, Self::Bayesian];

    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Platt,
        Self::Temperature,
        Self::Isotonic,
        Self::Beta,
        Self::Histogram,
        Self::Bayesian,
        Self::Completeness,
    ];

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Platt => "platt",
            Self::Temperature => "temperature",
            Self::Isotonic => "isotonic",
            Self::Beta => "beta",
            Self::Histogram => "histogram",
            Self::Bayesian => "bayesian",
            Self::Completeness => "completeness",
        }
    }
}

/// A fitted curve from scores to confidences (the paper's φ).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Curve {
    /// Platt scaling.
    Platt(Platt),
    /// Temperature scaling.
    Temperature(Temperature),
    /// Isotonic regression.
    Isotonic(Isotonic),
    /// Beta calibration.
    Beta(Beta),
    /// Histogram binning.
    Histogram(HistogramBinning),
    /// Bayesian binning.
    Bayesian(BayesianBinning),
    /// Takes missing annotations into account.
    Completeness(GapAware),
}

impl Curve {
    /// Fit a curve of this kind.
    ///
    /// # Errors
    /// When the samples determine none: see [`NoFit`].
    pub fn fit(kind: CalibratorKind, samples: &[Sample]) -> Result<Self, NoFit> {
        let judged = samples.iter().filter_map(Sample::judged);
        Ok(match kind {
            CalibratorKind::Platt => Self::Platt(Platt::fit(judged)?),
            CalibratorKind::Temperature => Self::Temperature(Temperature::fit(judged)?),
            CalibratorKind::Isotonic => Self::Isotonic(Isotonic::fit(judged)?),
            CalibratorKind::Beta => Self::Beta(Beta::fit(judged)?),
            CalibratorKind::Histogram => {
                Self::Histogram(HistogramBinning::fit(judged, HistogramBinning::N_BINS)?)
            }
            CalibratorKind::Bayesian => Self::Bayesian(BayesianBinning::fit(judged)?),
            CalibratorKind::Completeness => Self::Completeness(GapAware::fit(samples)?),
        })
    }

    /// The confidence of a detection. Only [`Curve::Completeness`] depends on `proximity`.
    pub fn confidence(&self, score: Score, proximity: Proximity) -> Confidence {
        match self {
            Self::Platt(platt) => platt.confidence(score),
            Self::Temperature(temperature) => temperature.confidence(score),
            Self::Isotonic(isotonic) => isotonic.confidence(score),
            Self::Beta(beta) => beta.confidence(score),
            Self::Histogram(histogram) => histogram.confidence(score),
            Self::Bayesian(bayesian) => bayesian.confidence(score),
            Self::Completeness(gap_aware) => gap_aware.confidence(score, proximity),
        }
    }

    /// The least score whose confidence is at least this; `None` when no score reaches it. Where confidence may
    /// fall, a higher score may have less.
    pub fn score_of(&self, confidence: Confidence, proximity: Proximity) -> Option<Score> {
        least_score(self.breaks(), |score| self.confidence(score, proximity), confidence)
    }

    /// The parameters by name; empty for curves with many of them.
    pub fn parameters(&self) -> Vec<(&'static str, f64)> {
        match self {
            Self::Platt(Platt { w, b }) => vec![("w", *w), ("b", *b)],
            Self::Temperature(temperature) => vec![("t", temperature.t())],
            Self::Beta(beta) => {
                let [a, b, c] = beta.abc();
                vec![("a", a), ("b", b), ("c", c)]
            }
            Self::Completeness(gap_aware) => vec![("completeness", gap_aware.completeness())],
            Self::Isotonic(_) | Self::Histogram(_) | Self::Bayesian(_) => Vec::new(),
        }
    }

    /// The scores at which the confidence may be less than just below them.
    pub(crate) fn breaks(&self) -> Vec<Score> {
        match self {
            Self::Platt(_)
            | Self::Temperature(_)
            | Self::Isotonic(_)
            | Self::Beta(_)
            | Self::Completeness(_) => Vec::new(),
            Self::Histogram(histogram) => histogram.edges().collect(),
            Self::Bayesian(bayesian) => bayesian.edges().collect(),
        }
    }
}

/// The least score whose confidence is at least this, by bisection between the breaks, where confidence only
/// grows.
pub(crate) fn least_score(
    breaks: impl IntoIterator<Item = Score>,
    confidence: impl Fn(Score) -> Confidence,
    at_least: Confidence,
) -> Option<Score> {
    // The bits of numbers that are not negative are in the order of the numbers: no score is left out.
    let reached = |bits: u32| confidence(Score(f32::from_bits(bits))) >= at_least;
    let mut starts: Vec<u32> = breaks.into_iter().map(|score| score.0.to_bits()).chain([0]).collect();
    starts.sort_unstable();
    starts.dedup();
    let ends = starts[1..].iter().map(|next| next - 1).chain([1f32.to_bits()]);
    let (first, last) = starts.iter().copied().zip(ends).find(|(_, last)| reached(*last))?;
    let (mut low, mut high) = (first, last);
    while low < high {
        let middle = low.midpoint(high);
        if reached(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(Score(f32::from_bits(low)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::JudgedScore;

    fn to_samples(judged: &[JudgedScore]) -> Vec<Sample> {
        judged.iter().map(|judged| Sample::from((0, *judged))).collect()
    }

    const NEVER_FALL: [CalibratorKind; 4] =
        [CalibratorKind::Platt, CalibratorKind::Temperature, CalibratorKind::Isotonic, CalibratorKind::Beta];

    fn judged(samples: &[(f32, bool)]) -> Vec<JudgedScore> {
        samples.iter().map(|&(score, right)| JudgedScore { score: Score(score), right }).collect()
    }

    /// Scores that are often equal, with either outcome.
    fn any_judged() -> impl Strategy<Value = Vec<JudgedScore>> {
        let score = prop_oneof![0.0f32..=1.0, (0u8..=20).prop_map(|s| f32::from(s) / 20.0)];
        prop::collection::vec((score, any::<bool>()), 2..120).prop_map(|samples| judged(&samples))
    }

    fn fits(judged: &[JudgedScore]) -> impl Iterator<Item = Curve> {
        CalibratorKind::JUDGED.into_iter().filter_map(|kind| Curve::fit(kind, &to_samples(judged)).ok())
    }

    fn overlapping() -> Vec<JudgedScore> {
        let samples = (0..200u16).map(|i| (f32::from(i * 37 % 200) / 200.0, i * 91 % 200 < i * 37 % 200));
        judged(&samples.collect::<Vec<_>>())
    }

    #[test]
    fn every_kind_is_written_and_read_by_its_name() {
        for kind in CalibratorKind::JUDGED {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
            let fit = Curve::fit(kind, &to_samples(&overlapping())).unwrap();
            assert_eq!(serde_json::to_value(fit).unwrap()["kind"], kind.name());
        }
        assert_eq!(CalibratorKind::default(), CalibratorKind::Platt);
    }

    #[test]
    fn what_no_fit_could_have_made_is_not_read() {
        for (json, message) in [
            (r#"{"kind": "platt", "w": 0.0, "b": 1.0}"#, "`w` is 0, not a number above 0"),
            (r#"{"kind": "platt", "w": 1.0, "b": 1.0, "c": 1.0}"#, "unknown field `c`"),
            (r#"{"kind": "temperature", "t": -2}"#, "`t` is -2, not a number above 0"),
            (r#"{"kind": "beta", "a": -1, "b": 1, "c": 0}"#, "`a` is -1, not a number of at least 0"),
            (r#"{"kind": "beta", "a": 0, "b": 0, "c": 0}"#, "`a` and `b` are both 0"),
            (r#"{"kind": "isotonic", "knots": []}"#, "`knots` is empty"),
            (
                r#"{"kind": "isotonic", "knots": [[0.5, 0.1], [0.4, 0.2]]}"#,
                "number 1 of `knots` is not above",
            ),
            (r#"{"kind": "isotonic", "knots": [[0.5, 0.3], [0.6, 0.2]]}"#, "confidence of knot 1 is below"),
            (r#"{"kind": "isotonic", "knots": [[0.5, 1.3]]}"#, "number 0 of `knots` is 1.3, not in [0, 1]"),
            (r#"{"kind": "histogram", "bins": []}"#, "`bins` is empty"),
            (r#"{"kind": "histogram", "bins": [0.1, -0.1]}"#, "number 1 of `bins` is -0.1, not in [0, 1]"),
            (r#"{"kind": "bayesian", "binnings": []}"#, "`binnings` is empty"),
            (r#"{"kind": "bayesian", "binnings": [{"weight": 1, "bins": []}]}"#, "`bins` is empty"),
            (r#"{"kind": "bayesian", "binnings": [{"weight": 0.5, "bins": [1]}]}"#, "sum to 0.5, not to 1"),
            (r#"{"kind": "bayesian", "binnings": [{"weight": -1, "bins": [1]}]}"#, "`weight` is -1"),
        ] {
            let error = serde_json::from_str::<Curve>(json).expect_err(json).to_string();
            assert!(error.contains(message), "{json}: {error}");
        }
        for (toml, message) in [
            ("kind = 'platt'\nw = 1.0\nb = nan", "`b` is NaN, not a finite number"),
            ("kind = 'platt'\nw = inf\nb = 0.0", "`w` is inf, not a number above 0"),
            ("kind = 'isotonic'\nknots = [[0.5, nan]]", "number 0 of `knots` is NaN, not in [0, 1]"),
        ] {
            let error = toml::from_str::<Curve>(toml).expect_err(toml).to_string();
            assert!(error.contains(message), "{toml}: {error}");
        }
    }

    /// The lowest bin is surer than the second one: its least score is the answer, though higher scores have less.
    #[test]
    fn the_least_score_counts_where_confidence_falls() {
        let fit: Curve = serde_json::from_str(r#"{"kind": "histogram", "bins": [0.5, 0.2, 0.8]}"#).unwrap();
        assert_eq!(fit.score_of(Confidence(0.4), Proximity::Near), Some(Score(0.0)));
        let third = fit.score_of(Confidence(0.6), Proximity::Near).unwrap();
        assert!((third.0 - 2.0 / 3.0).abs() < 1e-7);
        assert_eq!(fit.score_of(Confidence(0.9), Proximity::Near), None);
        assert_eq!(fit.score_of(Confidence(f32::NAN), Proximity::Near), None);
    }

    proptest! {
        #[test]
        fn confidences_are_probabilities_and_most_kinds_never_fall(
            judged in any_judged(), mut scores in prop::collection::vec(0.0f32..=1.0, 1..50)
        ) {
            scores.extend([0.0, 0.5, 1.0]);
            scores.extend(judged.iter().map(|judged| judged.score.0));
            scores.sort_by(f32::total_cmp);
            for kind in CalibratorKind::JUDGED {
                let Ok(fit) = Curve::fit(kind, &to_samples(&judged)) else { continue };
                let confidences: Vec<f32> = scores.iter().map(|&s| fit.confidence(Score(s), Proximity::Near).0).collect();
                prop_assert!(confidences.iter().all(|c| (0.0..=1.0).contains(c)), "{fit:?}");
                prop_assert!(!NEVER_FALL.contains(&kind) || confidences.is_sorted(), "{fit:?}");
            }
        }

        #[test]
        fn the_order_of_detections_changes_nothing(
            (judged, shuffled) in any_judged().prop_flat_map(|s| (Just(s.clone()), Just(s).prop_shuffle()))
        ) {
            for kind in CalibratorKind::JUDGED {
                prop_assert_eq!(Curve::fit(kind, &to_samples(&judged)), Curve::fit(kind, &to_samples(&shuffled)));
            }
        }

        /// All but Bayesian binning, which grows finer as detections become more.
        #[test]
        fn the_same_detections_twice_say_the_same(judged in any_judged(), score in 0.0f32..=1.0) {
            for kind in CalibratorKind::JUDGED.into_iter().filter(|kind| *kind != CalibratorKind::Bayesian) {
                let (once, twice) =
                    (Curve::fit(kind, &to_samples(&judged)), Curve::fit(kind, &to_samples(&[&judged[..], &judged].concat())));
                prop_assert_eq!(once.is_ok(), twice.is_ok(), "{:?}", (&once, &twice));
                if let (Ok(once), Ok(twice)) = (once, twice) {
                    let [once, twice] = [once, twice].map(|fit| fit.confidence(Score(score), Proximity::Near).0);
                    prop_assert!((once - twice).abs() < 1e-6, "{kind:?}: {once} and {twice}");
                }
            }
        }

        #[test]
        fn the_least_score_has_the_confidence_and_none_below_it_has(
            judged in any_judged(), confidence in 0.0f32..=1.0, scores in prop::collection::vec(0.0f32..=1.0, 50)
        ) {
            for fit in fits(&judged) {
                let reaches = |score: f32| fit.confidence(Score(score), Proximity::Near).0 >= confidence;
                let found = fit.score_of(Confidence(confidence), Proximity::Near);
                if let Some(Score(least)) = found {
                    prop_assert!((0.0..=1.0).contains(&least) && reaches(least), "{fit:?}");
                    prop_assert!(least == 0.0 || !reaches(least.next_down()), "{fit:?}");
                }
                let below = found.map_or(f32::INFINITY, |score| score.0);
                prop_assert!(scores.iter().all(|&score| score >= below || !reaches(score)), "{fit:?}");
            }
        }

        #[test]
        fn what_is_written_is_read_exactly(judged in any_judged()) {
            for fit in fits(&judged) {
                let json = serde_json::to_string(&fit).unwrap();
                prop_assert_eq!(&serde_json::from_str::<Curve>(&json).unwrap(), &fit);
                let toml = toml::to_string(&fit).unwrap();
                prop_assert_eq!(&toml::from_str::<Curve>(&toml).unwrap(), &fit);
            }
        }
    }
}
