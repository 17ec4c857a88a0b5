//! Warnings during a run: signs that it goes wrong, each given once when it begins.

use lacuna_calib::NoFit;
use serde::{Deserialize, Serialize};

use crate::methods::Threshold;
use crate::metrics::MetricsWindow;
use crate::step::{Refit, Step};

/// Iterations without a pseudo label that are a long time.
const LONG: u64 = 1000;

/// Judged detections that are enough to mean something.
const MANY: usize = 100;

/// A flood is this many times as many pseudo labels as annotations.
const FLOOD: f64 = 4.0;

/// What the warnings are derived from, and which of them hold at the moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunWarnings {
    /// Iterations since there was a pseudo label.
    without_pseudo_labels: u64,
    /// Whether there was ever a detection in every other image.
    detected: bool,
    #[serde(rename = "told")]
    active: ActiveWarnings,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct ActiveWarnings {
    no_pseudo_labels: bool,
    flood: bool,
    collapse: bool,
    negative_slope: bool,
}

impl RunWarnings {
    /// New warnings after an iteration of a run that has pseudo labels from `start_iteration` on.
    pub(crate) fn after_step(&mut self, iteration: u64, start_iteration: u64, step: &Step) -> Vec<String> {
        let mut warnings = Vec::new();
        let some = step.pseudo_labels.iter().any(|labels| !labels.is_empty()) || iteration <= start_iteration;
        self.without_pseudo_labels = if some { 0 } else { self.without_pseudo_labels + 1 };
        warn_at_start(
            &mut self.active.no_pseudo_labels,
            self.without_pseudo_labels >= LONG,
            &mut warnings,
            || {
                let why = match (&step.threshold, step.threshold.as_ref().and_then(Threshold::as_score)) {
                (None, _) => {
                    "the calibrator has not been fitted yet: too few detections overlap an annotation, or all \
                     of them are right, or none"
                        .to_owned()
                }
                (_, Some(score)) => format!("the threshold is a raw score of {:.3}", score.0),
                (_, None) => "no score is high enough".to_owned(),
            };
                format!("iteration {iteration}: no pseudo label for {LONG} iterations ({why})")
            },
        );
        if let Some(Refit { fit, detections }) = step.refit {
            let negative = fit == Err(NoFit::Falling) && detections >= MANY;
            warn_at_start(&mut self.active.negative_slope, negative, &mut warnings, || {
                format!(
                    "iteration {iteration}: of {detections} judged detections those with higher scores are \
                     right less often. The calibrator stays as it was. Are the annotations those of these \
                     images?"
                )
            });
        }
        warnings
    }

    /// New warnings at a line of the metrics.
    pub(crate) fn after_window(&mut self, iteration: u64, window: &MetricsWindow) -> Vec<String> {
        let mut warnings = Vec::new();
        let (pseudo, annotated) =
            (window.per_image(window.pseudo_labels), window.per_image(window.annotations));
        let flood = pseudo > FLOOD * annotated.max(1.0);
        warn_at_start(&mut self.active.flood, flood, &mut warnings, || {
            format!(
                "iteration {iteration}: {pseudo:.1} pseudo labels per image, with {annotated:.1} annotations: \
                 the threshold may be too low"
            )
        });
        let collapse = self.detected && window.detections == 0;
        warn_at_start(&mut self.active.collapse, collapse, &mut warnings, || {
            format!(
                "iteration {iteration}: nothing is found any more that could become a pseudo label (no score is \
                 above the floor); the learning rate may be too high"
            )
        });
        self.detected |= 2 * window.detections > window.images;
        warnings
    }
}

/// Adds a warning when its condition begins to hold, not while it goes on holding.
fn warn_at_start(
    active: &mut bool,
    holds: bool,
    warnings: &mut Vec<String>,
    warning: impl FnOnce() -> String,
) {
    if holds && !*active {
        warnings.push(warning());
    }
    *active = holds;
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::{Box2, Detection, Score};

    use super::*;
    use lacuna_gaps::JudgedImage;

    fn step(pseudo_labels: usize, refit: Option<Refit>) -> Step {
        let label = Detection { bbox: Box2::new(0.0, 0.0, 9.0, 9.0), class: 0, score: Score(0.9) };
        Step {
            losses: Vec::new(),
            detections: Vec::new(),
            images: 1,
            judged: vec![JudgedImage::default()],
            pseudo_labels: vec![vec![label; pseudo_labels]],
            threshold: None,
            calibrator: None,
            refit,
        }
    }

    fn window(detections: u64, pseudo_labels: u64) -> MetricsWindow {
        let mut window = MetricsWindow::default();
        (window.iterations, window.images, window.annotations) = (10, 10, 30);
        (window.detections, window.pseudo_labels) = (detections, pseudo_labels);
        window
    }

    #[test]
    fn a_long_time_without_pseudo_labels_is_warned_of_once() {
        let mut warnings = RunWarnings::default();
        let count = |warnings: &mut RunWarnings, n: u64| -> usize {
            (0..n).map(|iteration| warnings.after_step(iteration + 101, 100, &step(0, None)).len()).sum()
        };
        assert_eq!(count(&mut warnings, LONG - 1), 0);
        assert_eq!(count(&mut warnings, LONG), 1);
        warnings.after_step(5000, 100, &step(1, None));
        assert_eq!(count(&mut warnings, LONG), 1);
        // Before pseudo labels are meant to be, there are none to miss.
        let mut warnings = RunWarnings::default();
        assert!(
            (0..3 * LONG)
                .all(|iteration| warnings.after_step(iteration, 3 * LONG, &step(0, None)).is_empty())
        );
    }

    #[test]
    fn floods_and_collapses_are_warned_of_when_they_begin() {
        let mut warnings = RunWarnings::default();
        assert!(warnings.after_window(10, &window(0, 0)).is_empty(), "it has not begun to find anything");
        assert!(warnings.after_window(20, &window(50, 20)).is_empty());
        assert!(warnings.after_window(30, &window(500, 200))[0].contains("20.0 pseudo labels per image"));
        assert!(warnings.after_window(40, &window(500, 200)).is_empty());
        assert!(warnings.after_window(50, &window(0, 0))[0].contains("nothing is found any more"));
    }

    #[test]
    fn a_negative_slope_is_warned_of_when_it_means_something() {
        let refit = |detections| Some(Refit { fit: Err(NoFit::Falling), detections });
        let mut warnings = RunWarnings::default();
        assert!(warnings.after_step(1, 0, &step(1, refit(5))).is_empty());
        assert!(warnings.after_step(2, 0, &step(1, refit(500)))[0].contains("right less often"));
    }
}
