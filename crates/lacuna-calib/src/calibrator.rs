//! The calibrator: a curve for all classes, and one of its own for each class with enough detections.

use std::collections::BTreeMap;

use lacuna_boxes::Score;
use serde::{Deserialize, Serialize};

use crate::curve::least_score;
use crate::invalid::Invalid;
use crate::{CalibratorKind, Confidence, Curve, NoFit, Outcome, Platt, Proximity, Sample};

/// With this many judged detections, a class's own curve and the pooled curve have equal weight. With fewer,
/// a fit of two parameters says more about the few detections than about the class.
const SHRINK: f64 = 50.0;

/// A curve for all classes together (pooled), and one for each class that has enough detections of its own.
///
/// The confidence of a score s of a class with n judged detections is `λ·own(s) + (1 − λ)·pooled(s)` with
/// `λ = n/(n + 50)`. A class without a curve of its own has the pooled one. If the curves never fall, neither
/// does the confidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct Calibrator {
    pooled: Curve,
    /// By class, ascending.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    classes: Vec<Own>,
}

/// The curve of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    class: usize,
    /// The number of judged detections.
    judged: usize,
    calibrator: Curve,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    pooled: Curve,
    #[serde(default)]
    classes: Vec<Own>,
}

impl TryFrom<Fields> for Calibrator {
    type Error = Invalid;

    fn try_from(Fields { pooled, classes }: Fields) -> Result<Self, Invalid> {
        match classes.windows(2).position(|pair| pair[1].class <= pair[0].class) {
            Some(before) => Err(Invalid::NotAscending { field: "classes", index: before + 1 }),
            None => Ok(Self { pooled, classes }),
        }
    }
}

impl From<Platt> for Calibrator {
    fn from(platt: Platt) -> Self {
        Curve::Platt(platt).into()
    }
}

/// The same curve for all classes.
impl From<Curve> for Calibrator {
    fn from(pooled: Curve) -> Self {
        Self { pooled, classes: Vec::new() }
    }
}

impl Calibrator {
    /// Fit a curve to all classes together and, with `per_class`, one to each class. A class whose samples
    /// determine no curve has none of its own.
    ///
    /// # Errors
    /// When the samples of all classes together determine none: see [`NoFit`].
    pub fn fit(kind: CalibratorKind, per_class: bool, samples: &[Sample]) -> Result<Self, NoFit> {
        let pooled = Curve::fit(kind, samples)?;
        if !per_class {
            return Ok(pooled.into());
        }
        let mut by_class: BTreeMap<usize, Vec<Sample>> = BTreeMap::new();
        for sample in samples {
            by_class.entry(sample.class).or_default().push(*sample);
        }
        let own = |(class, samples): (usize, Vec<Sample>)| {
            let calibrator = match &pooled {
                Curve::Completeness(all) => Curve::Completeness(all.fit_class(&samples).ok()?),
                _ => Curve::fit(kind, &samples).ok()?,
            };
            let judged = samples.iter().filter(|sample| sample.outcome != Outcome::Candidate).count();
            Some(Own { class, judged, calibrator })
        };
        let classes = by_class.into_iter().filter_map(own).collect();
        Ok(Self { pooled, classes })
    }

    /// Renumber the classes for another list of classes; those that `new_class` maps to `None` are dropped.
    #[must_use]
    pub fn with_classes(self, new_class: impl Fn(usize) -> Option<usize>) -> Self {
        let renumbered =
            self.classes.into_iter().filter_map(|own| Some(Own { class: new_class(own.class)?, ..own }));
        let mut classes: Vec<Own> = renumbered.collect();
        classes.sort_by_key(|own| own.class);
        classes.dedup_by_key(|own| own.class);
        Self { pooled: self.pooled, classes }
    }

    /// The number of classes with a curve of their own.
    pub fn own_classes(&self) -> usize {
        self.classes.len()
    }

    /// The curve of all classes together.
    pub fn pooled(&self) -> &Curve {
        &self.pooled
    }

    /// The confidence of a detection of this class.
    pub fn confidence(&self, class: usize, score: Score, proximity: Proximity) -> Confidence {
        let pooled = self.pooled.confidence(score, proximity);
        let Some(own) = self.own(class) else { return pooled };
        let weight = own.judged as f64 / (own.judged as f64 + SHRINK);
        let [own, pooled] =
            [own.calibrator.confidence(score, proximity), pooled].map(|confidence| f64::from(confidence.0));
        Confidence((weight * own + (1.0 - weight) * pooled) as f32)
    }

    /// The least score of this class whose confidence is at least this; `None` when no score reaches it.
    pub fn score_of(&self, class: usize, confidence: Confidence, proximity: Proximity) -> Option<Score> {
        let own = self.own(class).map(|own| own.calibrator.breaks()).unwrap_or_default();
        let breaks = self.pooled.breaks().into_iter().chain(own);
        least_score(breaks, |score| self.confidence(class, score, proximity), confidence)
    }

    fn own(&self, class: usize) -> Option<&Own> {
        let index = self.classes.binary_search_by_key(&class, |own| own.class).ok()?;
        Some(&self.classes[index])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn several(class: usize, score: f32, right: usize, wrong: usize) -> Vec<Sample> {
        let sample = |outcome| Sample { class, score: Score(score), outcome };
        [vec![sample(Outcome::Right); right], vec![sample(Outcome::Wrong); wrong]].concat()
    }

    /// Class 2 has 50 detections, half of them right where of all 100 a quarter are.
    #[test]
    fn a_class_of_50_is_half_its_own() {
        let samples = [several(0, 0.75, 0, 50), several(2, 0.75, 25, 25)].concat();
        let fit = Calibrator::fit(CalibratorKind::Histogram, true, &samples).expect("both outcomes");
        assert_eq!(fit.confidence(2, Score(0.75), Proximity::Near), Confidence(0.375));
        // All of class 0 are wrong, and of class 7 nothing is known.
        assert_eq!(fit.confidence(0, Score(0.75), Proximity::Near), Confidence(0.25));
        assert_eq!(fit.confidence(7, Score(0.75), Proximity::Near), Confidence(0.25));
        assert_eq!(fit.pooled().confidence(Score(0.75), Proximity::Near), Confidence(0.25));
        // Empty bins have their centers, and 0.45 is the first that is high enough.
        assert_eq!(fit.score_of(2, Confidence(0.37), Proximity::Near), Some(Score(0.4)));
        assert_eq!(Calibrator::fit(CalibratorKind::Histogram, true, &[]), Err(NoFit::OneOutcome));
    }

    #[test]
    fn one_calibrator_serves_all_classes() {
        let calibrator = Curve::Platt(Platt { w: 2.0, b: -1.0 });
        let all = Calibrator::from(calibrator.clone());
        for class in [0, 80] {
            assert_eq!(
                all.confidence(class, Score(0.8), Proximity::Near),
                calibrator.confidence(Score(0.8), Proximity::Near)
            );
            assert_eq!(
                all.score_of(class, Confidence(0.8), Proximity::Near),
                calibrator.score_of(Confidence(0.8), Proximity::Near)
            );
        }
        let json = serde_json::to_string(&all).unwrap();
        assert_eq!(json, r#"{"pooled":{"kind":"platt","w":2.0,"b":-1.0}}"#);
        assert_eq!(serde_json::from_str::<Calibrator>(&json).unwrap(), all);
    }

    #[test]
    fn a_class_that_is_there_twice_is_not_read() {
        let own = r#"{"class": 3, "judged": 9, "calibrator": {"kind": "temperature", "t": 1.0}}"#;
        let json = format!(r#"{{"pooled": {{"kind": "temperature", "t": 2.0}}, "classes": [{own}, {own}]}}"#);
        let error = serde_json::from_str::<Calibrator>(&json).expect_err("class 3").to_string();
        assert!(error.contains("number 1 of `classes` is not above the one before"), "{error}");
    }

    proptest! {
        #[test]
        fn the_confidence_is_between_the_classs_own_and_that_of_all(
            detections in prop::collection::vec((0usize..3, 0.0f32..=1.0, any::<bool>()), 2..200),
            mut scores in prop::collection::vec(0.0f32..=1.0, 20)
        ) {
            scores.sort_by(f32::total_cmp);
            for kind in CalibratorKind::JUDGED {
                let samples: Vec<Sample> = detections
                    .iter()
                    .flat_map(|&(class, score, right)| several(class, score, right.into(), (!right).into()))
                    .collect();
                let Ok(fit) = Calibrator::fit(kind, true, &samples) else { continue };
                for class in 0..3 {
                    let own: Vec<Sample> = samples.iter().filter(|s| s.class == class).copied().collect();
                    let own = Curve::fit(kind, &own).unwrap_or(fit.pooled().clone());
                    for &score in &scores {
                        let confidence = fit.confidence(class, Score(score), Proximity::Near).0;
                        let [a, b] = [&own, fit.pooled()].map(|curve| curve.confidence(Score(score), Proximity::Near).0);
                        // Up to the rounding of the mean.
                        prop_assert!((a.min(b) - 1e-7..=a.max(b) + 1e-7).contains(&confidence));
                    }
                    if !matches!(kind, CalibratorKind::Histogram | CalibratorKind::Bayesian) {
                        prop_assert!(scores.is_sorted_by_key(|&score| fit.confidence(class, Score(score), Proximity::Near).0));
                    }
                    let wanted = fit.confidence(class, Score(scores[10]), Proximity::Near);
                    let least = fit.score_of(class, wanted, Proximity::Near).expect("a score has it");
                    prop_assert!(least.0 <= scores[10] && fit.confidence(class, least, Proximity::Near) >= wanted);
                }
                let json = serde_json::to_string(&fit).unwrap();
                prop_assert_eq!(&serde_json::from_str::<Calibrator>(&json).unwrap(), &fit);
                let toml = toml::to_string(&fit).unwrap();
                prop_assert_eq!(&toml::from_str::<Calibrator>(&toml).unwrap(), &fit);
            }
        }
    }
}
