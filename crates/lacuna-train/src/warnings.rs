//! Signs that a run goes wrong, told once each time they appear.

use lacuna_calib::Platt;
use serde::{Deserialize, Serialize};

use crate::metrics::Window;
use crate::step::Step;

/// Iterations without a pseudo label that are a long time.
const LONG: u64 = 1000;

/// So many times as many pseudo labels as annotations are a flood.
const FLOOD: f64 = 4.0;

/// What was seen and what was said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Watch {
    /// Iterations since there was a pseudo label.
    without_pseudo_labels: u64,
    /// Whether the teacher has ever found something in most images.
    detected: bool,
    told: Told,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Told {
    no_pseudo_labels: bool,
    flood: bool,
    collapse: bool,
    negative_slope: bool,
}

impl Watch {
    /// After each iteration of a teacher's run.
    pub fn after_step(&mut self, iteration: u64, start_iteration: u64, step: &Step) -> Vec<String> {
        let mut warnings = Vec::new();
        let some = step.pseudo_labels.iter().any(|labels| !labels.is_empty()) || iteration <= start_iteration;
        self.without_pseudo_labels = if some { 0 } else { self.without_pseudo_labels + 1 };
        tell(&mut self.told.no_pseudo_labels, self.without_pseudo_labels >= LONG, &mut warnings, || {
            let why = match (step.threshold, step.threshold.and_then(|t| t.as_score())) {
                (None, _) => {
                    "the calibrator has not been fitted yet: too few detections overlap an annotation, or all \
                     of them are right, or none"
                        .to_owned()
                }
                (_, Some(score)) => format!("the threshold is a raw score of {:.3}", score.0),
                (_, None) => "no score is high enough".to_owned(),
            };
            format!("iteration {iteration}: no pseudo label for {LONG} iterations ({why})")
        });
        if let Some(Ok(Platt { w, .. })) = step.refit {
            tell(&mut self.told.negative_slope, w <= 0.0, &mut warnings, || {
                format!(
                    "iteration {iteration}: the calibrator would have a slope of {w:.3}: higher scores are \
                     right less often. The one before stays. Are the annotations those of these images?"
                )
            });
        }
        warnings
    }

    /// At each line of the metrics.
    pub fn after_window(&mut self, iteration: u64, window: &Window) -> Vec<String> {
        let mut warnings = Vec::new();
        let (pseudo, annotated) =
            (window.per_image(window.pseudo_labels), window.per_image(window.annotations));
        let flood = pseudo > FLOOD * annotated.max(1.0);
        tell(&mut self.told.flood, flood, &mut warnings, || {
            format!(
                "iteration {iteration}: {pseudo:.1} pseudo labels per image, with {annotated:.1} annotations: \
                 the threshold may be too low"
            )
        });
        let collapse = self.detected && window.detections == 0;
        tell(&mut self.told.collapse, collapse, &mut warnings, || {
            format!(
                "iteration {iteration}: the teacher finds nothing any more (no score above its floor); the \
                 learning rate may be too high"
            )
        });
        self.detected |= 2 * window.detections > window.images;
        warnings
    }
}

/// Tells of something that has just begun; it is told again only after it has ended.
fn tell(told: &mut bool, holds: bool, warnings: &mut Vec<String>, warning: impl FnOnce() -> String) {
    if holds && !*told {
        warnings.push(warning());
    }
    *told = holds;
}
