//! The calibrator kind `completeness`: confidences that take missing annotations into account.

use lacuna_boxes::Score;
use serde::{Deserialize, Serialize};

use crate::capped_logistic::CappedLogistic;
use crate::completeness::{check_sample_counts, fit_capped_logistic};
use crate::invalid::{Invalid, finite, positive, probabilities};
use crate::{Confidence, Isotonic, JudgedScore, NoFit, Outcome, Proximity, Sample};

/// A calibrator that takes missing annotations into account. It learns from positive and unlabeled samples
/// (Elkan and Noto, 2008).
///
/// Of the detections of score s, let R match an annotation, W be near one but badly placed, and C be away from
/// all. If annotations are missing at random and the completeness is c, the detector finds R/c objects, of which
/// (1 − c)/c·R are not annotated and therefore among C. The probability that a detection of score s is right is
///
/// - away from all annotations: `(1 − c)/c · R/C = (1 − c)/c · ℓ/(1 − ℓ)` with `ℓ = R/(R + C)`,
/// - near an annotation: `R/(R + W)`, the only case that the paper's calibrator considers,
/// - in an image without annotations to compare with: `R/(R + W + C)/c`,
///
/// clipped to `[0, 1]`. The three ratios are isotonic in s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct GapAware {
    /// The completeness, where the curve of [`CappedLogistic`] levels off.
    c: f64,
    w: f64,
    b: f64,
    away: Isotonic,
    near: Isotonic,
    unknown: Isotonic,
}

/// The fewest detections in a step of the isotonic curves, unless that is more than a twentieth of all.
const STEP_MIN: u64 = 100;

/// As it is read from a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    c: f64,
    w: f64,
    b: f64,
    away: Isotonic,
    near: Isotonic,
    unknown: Isotonic,
}

impl TryFrom<Fields> for GapAware {
    type Error = Invalid;

    fn try_from(Fields { c, w, b, away, near, unknown }: Fields) -> Result<Self, Invalid> {
        probabilities("c", [positive("c", c)?])?;
        Ok(Self { c, w: positive("w", w)?, b: finite("b", b)?, away, near, unknown })
    }
}

impl GapAware {
    /// Fit to all detections, candidates included.
    ///
    /// # Errors
    /// [`NoFit::TooFew`], or that of [`Isotonic::fit`].
    pub fn fit(samples: &[Sample]) -> Result<Self, NoFit> {
        Self::fit_around(samples, None)
    }

    /// Fit the calibrator of one class; `self` is that of all classes. The fewer detections the class has, the
    /// nearer its completeness is to that of all.
    pub(crate) fn fit_class(&self, samples: &[Sample]) -> Result<Self, NoFit> {
        let Self { c, w, b, .. } = *self;
        Self::fit_around(samples, Some(&CappedLogistic { w, b, c, top_probability: 1.0 }))
    }

    fn fit_around(samples: &[Sample], all: Option<&CappedLogistic>) -> Result<Self, NoFit> {
        check_sample_counts(samples.iter())?;
        let CappedLogistic { w, b, c, .. } = fit_capped_logistic(samples, all).ok_or(NoFit::NotConverged)?;
        let least = STEP_MIN.min(samples.len() as u64 / 20);
        let isotonic = |left_out: Option<Outcome>| {
            let among = samples.iter().filter(|sample| Some(sample.outcome) != left_out);
            Isotonic::fit_coarse(
                among.map(|o| JudgedScore { score: o.score, right: o.outcome == Outcome::Right }),
                least,
            )
        };
        Ok(Self {
            c,
            w,
            b,
            away: isotonic(Some(Outcome::Wrong))?,
            // Those near an annotation may all be right.
            near: isotonic(Some(Outcome::Candidate)).unwrap_or_else(|_| Isotonic::constant(1.0)),
            unknown: isotonic(None)?,
        })
    }

    /// The estimated share of the objects that are annotated.
    pub fn completeness(&self) -> f64 {
        self.c
    }

    /// The confidence of a detection with this score and proximity to annotations.
    pub fn confidence(&self, score: Score, proximity: Proximity) -> Confidence {
        let curve = |isotonic: &Isotonic| f64::from(isotonic.confidence(score).0);
        let right = match proximity {
            Proximity::Away => {
                let matched = curve(&self.away);
                // Nothing is missing if everything is annotated or if no detection is away.
                let missing = (1.0 - self.c) / self.c * matched;
                if missing > 0.0 { missing / (1.0 - matched) } else { 0.0 }
            }
            Proximity::Near => curve(&self.near),
            Proximity::Unknown => curve(&self.unknown) / self.c,
        };
        Confidence(right.clamp(0.0, 1.0) as f32)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is fitted can be written and read, grows with the score, and is a probability.
        #[test]
        fn a_fit_never_falls_and_is_read_as_it_was_written(
            detections in prop::collection::vec((0.0f32..=1.0, 0..3), 40..400)
        ) {
            let outcomes = [Outcome::Right, Outcome::Wrong, Outcome::Candidate];
            let samples: Vec<Sample> = detections
                .iter()
                .map(|&(score, outcome)| Sample { class: 0, score: Score(score), outcome: outcomes[outcome as usize] })
                .collect();
            if let Ok(fit) = GapAware::fit(&samples) {
                for proximity in [Proximity::Near, Proximity::Away, Proximity::Unknown] {
                    let confidences = (0..=100).map(|n| fit.confidence(Score(n as f32 / 100.0), proximity).0);
                    let confidences: Vec<f32> = confidences.collect();
                    prop_assert!(confidences.is_sorted(), "{:?}: {:?}", proximity, confidences);
                    prop_assert!(confidences.iter().all(|c| (0.0..=1.0).contains(c)));
                }
                let json = serde_json::to_string(&fit).expect("it can be written");
                prop_assert_eq!(serde_json::from_str::<GapAware>(&json).expect("it can be read"), fit);
            }
        }
    }
}
