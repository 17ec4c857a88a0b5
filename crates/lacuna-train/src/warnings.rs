//! Signs that a run goes wrong, told once each time they appear.

use lacuna_calib::NoFit;
use serde::{Deserialize, Serialize};

use crate::learner::{Refit, Step, Threshold};
use crate::metrics::MetricsWindow;

/// Iterations without a pseudo label that are a long time.
const LONG: u64 = 1000;

/// So many judged detections mean something.
const MANY: usize = 100;

/// So many times as many pseudo labels as annotations are a flood.
const FLOOD: f64 = 4.0;

/// What was seen and what was said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Watch {
    /// Iterations since there was a pseudo label.
    without_pseudo_labels: u64,
    /// Whether something was ever found in every other image.
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
    /// After each iteration of a run that may have pseudo labels.
    pub fn after_step(&mut self, iteration: u64, start_iteration: u64, step: &Step) -> Vec<String> {
        let mut warnings = Vec::new();
        let some = step.pseudo_labels.iter().any(|labels| !labels.is_empty()) || iteration <= start_iteration;
        self.without_pseudo_labels = if some { 0 } else { self.without_pseudo_labels + 1 };
        tell(&mut self.told.no_pseudo_labels, self.without_pseudo_labels >= LONG, &mut warnings, || {
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
        });
        if let Some(Refit { fit, detections }) = step.refit {
            let negative = fit == Err(NoFit::Falling) && detections >= MANY;
            tell(&mut self.told.negative_slope, negative, &mut warnings, || {
                format!(
                    "iteration {iteration}: of {detections} judged detections those with higher scores are \
                     right less often. The calibrator stays as it was. Are the annotations those of these \
                     images?"
                )
            });
        }
        warnings
    }

    /// At each line of the metrics.
    pub fn after_window(&mut self, iteration: u64, window: &MetricsWindow) -> Vec<String> {
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
                "iteration {iteration}: nothing is found any more that could become a pseudo label (no score is \
                 above the floor); the learning rate may be too high"
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

#[cfg(test)]
mod tests {
    use lacuna_boxes::{Box2, Detection, Score};

    use super::*;
    use lacuna_gaps::JudgedImage;

    fn step(pseudo_labels: usize, refit: Option<Refit>) -> Step {
        let label = Detection { bbox: Box2::new(0.0, 0.0, 9.0, 9.0), class: 0, score: Score(0.9) };
        Step {
            losses: Vec::new(),
            found: Vec::new(),
            images: 1,
            splits: vec![JudgedImage::default()],
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
    fn a_long_time_without_pseudo_labels_is_told_once() {
        let mut watch = Watch::default();
        let told = |watch: &mut Watch, n: u64| -> usize {
            (0..n).map(|iteration| watch.after_step(iteration + 101, 100, &step(0, None)).len()).sum()
        };
        assert_eq!(told(&mut watch, LONG - 1), 0);
        assert_eq!(told(&mut watch, LONG), 1);
        watch.after_step(5000, 100, &step(1, None));
        assert_eq!(told(&mut watch, LONG), 1);
        // Before pseudo labels are meant to be, there are none to miss.
        let mut watch = Watch::default();
        assert!(
            (0..3 * LONG).all(|iteration| watch.after_step(iteration, 3 * LONG, &step(0, None)).is_empty())
        );
    }

    #[test]
    fn floods_and_collapses_are_told_when_they_begin() {
        let mut watch = Watch::default();
        assert!(watch.after_window(10, &window(0, 0)).is_empty(), "it has not begun to find anything");
        assert!(watch.after_window(20, &window(50, 20)).is_empty());
        assert!(watch.after_window(30, &window(500, 200))[0].contains("20.0 pseudo labels per image"));
        assert!(watch.after_window(40, &window(500, 200)).is_empty());
        assert!(watch.after_window(50, &window(0, 0))[0].contains("nothing is found any more"));
    }

    #[test]
    fn a_negative_slope_is_told_when_it_means_something() {
        let refit = |detections| Some(Refit { fit: Err(NoFit::Falling), detections });
        let mut watch = Watch::default();
        assert!(watch.after_step(1, 0, &step(1, refit(5))).is_empty());
        assert!(watch.after_step(2, 0, &step(1, refit(500)))[0].contains("right less often"));
    }
}
