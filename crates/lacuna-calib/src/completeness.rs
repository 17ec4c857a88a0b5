use lacuna_boxes::Score;
use serde::{Deserialize, Serialize};

use crate::annotated::{ceiling, enough};
use crate::ceiling::Ceiling;
use crate::invalid::{Invalid, finite, positive, shares};
use crate::{Confidence, Isotonic, JudgedScore, NoFit, Outcome, Proximity, Sample};

/// A calibrator that knows about the gaps: confidences of detections away from all annotations, from what is
/// annotated near others (learning from positive and unlabeled samples; Elkan and Noto, 2008).
///
/// Of the detections of score s, let R match an annotation, W be near one and badly placed, and C be away from
/// all. If annotations are missing at random and a share c of the objects is annotated, R/c objects are found,
/// and those of them that nobody annotated, (1 − c)/c·R, are among C. So, of a detection of this score that is
///
/// - away from all annotations: `P(right) = (1 − c)/c · R/C = (1 − c)/c · ℓ/(1 − ℓ)` with `ℓ = R/(R + C)`,
/// - near one: `P(right) = R/(R + W)`, which is all that the paper's calibrator looks at,
/// - in an image of which nothing is known: `P(right) = R/(R + W + C)/c`,
///
/// clipped to `[0, 1]`. The three ratios are isotonic in s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct Completeness {
    /// The share of the objects that are annotated, where the curve of [`Ceiling`] levels off.
    c: f64,
    w: f64,
    b: f64,
    away: Isotonic,
    near: Isotonic,
    unknown: Isotonic,
}

/// The fewest detections of a step of the curves, if they are not more than a twentieth of all.
const COARSE: u64 = 100;

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

impl TryFrom<Fields> for Completeness {
    type Error = Invalid;

    fn try_from(Fields { c, w, b, away, near, unknown }: Fields) -> Result<Self, Invalid> {
        shares("c", [positive("c", c)?])?;
        Ok(Self { c, w: positive("w", w)?, b: finite("b", b)?, away, near, unknown })
    }
}

impl Completeness {
    /// # Errors
    /// [`NoFit::TooFew`], or that of [`Isotonic::fit`].
    pub fn fit(observed: &[Sample]) -> Result<Self, NoFit> {
        Self::around(observed, None)
    }

    /// That of a class. Its share of annotated objects is drawn towards that of all by as much as it has few
    /// detections.
    pub(crate) fn of_class(&self, observed: &[Sample]) -> Result<Self, NoFit> {
        let Self { c, w, b, .. } = *self;
        Self::around(observed, Some(&Ceiling { w, b, c, sure: 1.0 }))
    }

    fn around(observed: &[Sample], all: Option<&Ceiling>) -> Result<Self, NoFit> {
        enough(observed.iter())?;
        let Ceiling { w, b, c, .. } = ceiling(observed, all).ok_or(NoFit::NotConverged)?;
        let least = COARSE.min(observed.len() as u64 / 20);
        let isotonic = |left_out: Option<Outcome>| {
            let among = observed.iter().filter(|observed| Some(observed.outcome) != left_out);
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

    pub fn share(&self) -> f64 {
        self.c
    }

    pub fn confidence(&self, score: Score, proximity: Proximity) -> Confidence {
        let curve = |isotonic: &Isotonic| f64::from(isotonic.confidence(score).0);
        let right = match proximity {
            Proximity::Away => {
                let matched = curve(&self.away);
                // Where everything is annotated, or nothing is away, nothing is missing.
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
            let observed: Vec<Sample> = detections
                .iter()
                .map(|&(score, outcome)| Sample { class: 0, score: Score(score), outcome: outcomes[outcome as usize] })
                .collect();
            if let Ok(fit) = Completeness::fit(&observed) {
                for proximity in [Proximity::Near, Proximity::Away, Proximity::Unknown] {
                    let confidences = (0..=100).map(|n| fit.confidence(Score(n as f32 / 100.0), proximity).0);
                    let confidences: Vec<f32> = confidences.collect();
                    prop_assert!(confidences.is_sorted(), "{:?}: {:?}", proximity, confidences);
                    prop_assert!(confidences.iter().all(|c| (0.0..=1.0).contains(c)));
                }
                let json = serde_json::to_string(&fit).expect("it can be written");
                prop_assert_eq!(serde_json::from_str::<Completeness>(&json).expect("it can be read"), fit);
            }
        }
    }
}
