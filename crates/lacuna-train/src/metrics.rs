//! Metrics of a run: sums over iterations, and the lines of `metrics.jsonl` and `results.csv` made of them.

use lacuna_calib::{Calibrator, Proximity, Reliability};
use lacuna_data::Object;
use lacuna_data::number::shortest;
use lacuna_eval::{AveragePrecision, Recovery, recovery};
use lacuna_gaps::JudgedImage;
use lacuna_models::Term;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::methods::Threshold;
use crate::step::Step;

/// At this IoU a pseudo label has found a hidden annotation of its class.
pub const FOUND_IOU_MIN: f32 = 0.5;

/// Sums over some iterations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MetricsWindow {
    /// Iterations summed over.
    pub iterations: u64,
    /// Images of their batches.
    pub images: u64,
    /// In the order of [`TERMS`]; a detector has some of them.
    #[serde(deserialize_with = "padded")]
    losses: [Option<f64>; TERMS.len()],
    /// Annotations of these images.
    pub annotations: u64,
    /// Detections that pseudo labels are chosen from.
    pub detections: u64,
    /// Those away from all annotations, for a method that judges detections.
    pub candidates: Option<u64>,
    /// Candidates that became pseudo labels.
    pub pseudo_labels: u64,
    /// How many detections have a score of at least i/20 and less than (i + 1)/20.
    scores: [u64; SCORE_BINS],
    raw: Reliability,
    calibrated: Reliability,
    recovered: Recovery,
}

const SCORE_BINS: usize = 20;

/// The terms of losses and their names.
const TERMS: [(Term, &str); 6] = [
    (Term::Classification, "classification"),
    (Term::Regression, "regression"),
    (Term::Centerness, "centerness"),
    (Term::Objectness, "objectness"),
    (Term::ProposalRegression, "proposal_regression"),
    (Term::Consistency, "consistency"),
];

/// Reads the sums of a checkpoint that was written when there were fewer terms: new ones are at the end.
fn padded<'de, D: Deserializer<'de>>(source: D) -> Result<[Option<f64>; TERMS.len()], D::Error> {
    let read = Vec::<Option<f64>>::deserialize(source)?;
    let mut losses = [None; TERMS.len()];
    if read.len() > losses.len() {
        return Err(D::Error::invalid_length(read.len(), &"at most as many as there are terms"));
    }
    losses[..read.len()].copy_from_slice(&read);
    Ok(losses)
}

pub(crate) fn term_name(term: Term) -> &'static str {
    TERMS.iter().find(|(other, _)| *other == term).map_or("", |(_, name)| name)
}

impl MetricsWindow {
    /// Adds a step. `annotations` is how many its batch has; `hidden` are the hidden annotations of each image.
    pub(crate) fn add(&mut self, step: &Step, annotations: usize, hidden: Option<&[Vec<Object>]>) {
        self.iterations += 1;
        self.images += step.images as u64;
        for (sum, (term, _)) in self.losses.iter_mut().zip(TERMS) {
            if let Some((_, loss)) = step.losses.iter().find(|(other, _)| *other == term) {
                *sum = Some(sum.unwrap_or(0.0) + f64::from(*loss));
            }
        }
        self.annotations += annotations as u64;
        for detection in step.detections.iter().flatten() {
            self.detections += 1;
            self.scores[((detection.score.0 * SCORE_BINS as f32) as usize).min(SCORE_BINS - 1)] += 1;
        }
        for image in &step.judged {
            *self.candidates.get_or_insert(0) += image.candidates.len() as u64;
        }
        self.pseudo_labels += step.pseudo_labels.iter().map(|labels| labels.len() as u64).sum::<u64>();
        for (class, judged) in step.judged.iter().flat_map(JudgedImage::judged) {
            self.raw.add(judged.score.0, judged.right);
            if let Some(calibrator) = &step.calibrator {
                let confidence = calibrator.confidence(class, judged.score, Proximity::Near);
                self.calibrated.add(confidence.0, judged.right);
            }
        }
        for (labels, hidden) in step.pseudo_labels.iter().zip(hidden.into_iter().flatten()) {
            self.recovered = self.recovered + recovery(labels, hidden, FOUND_IOU_MIN);
        }
    }

    /// The mean of each term that the detector has.
    pub fn terms(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let mean = |sum: f64| sum / self.iterations.max(1) as f64;
        TERMS.iter().zip(self.losses).filter_map(move |((_, name), sum)| Some((*name, mean(sum?))))
    }

    /// The mean loss of an iteration.
    pub fn loss(&self) -> f64 {
        self.losses.iter().flatten().sum::<f64>() / self.iterations.max(1) as f64
    }

    /// The reliability of judged detections: of their raw scores and, once there was a calibrator, of their confidences.
    pub fn judged(&self) -> (&Reliability, &Reliability) {
        (&self.raw, &self.calibrated)
    }

    /// A count divided by the number of images.
    pub fn per_image(&self, count: u64) -> f64 {
        count as f64 / self.images.max(1) as f64
    }
}

/// The numbers of one line: of some iterations, and of the evaluation at their end if there was one.
#[derive(Clone, Debug)]
pub struct Record {
    /// The last iteration.
    pub iteration: u64,
    /// Epochs done.
    pub epoch: f64,
    /// The learning rate of the last iteration.
    pub lr: f32,
    /// Whether the method has pseudo labels.
    pub has_pseudo_labels: bool,
    /// Sums over the iterations.
    pub window: MetricsWindow,
    /// The calibrator after the last iteration.
    pub calibrator: Option<Calibrator>,
    /// What pseudo labels of the next iteration must be above.
    pub threshold: Option<Threshold>,
    /// Average precision of the student, if it was evaluated.
    pub student: Option<AveragePrecision>,
    /// Average precision of the teacher, if it was evaluated.
    pub teacher: Option<AveragePrecision>,
}

impl Record {
    /// Every number by its name; `None` is `null` or an empty cell.
    fn fields(&self) -> Vec<(String, Option<f64>)> {
        let window = &self.window;
        let mut fields = vec![
            ("iteration".to_owned(), Some(self.iteration as f64)),
            ("epoch".to_owned(), Some(self.epoch)),
            ("lr".to_owned(), Some(shortest(self.lr))),
            ("loss".to_owned(), Some(window.loss())),
        ];
        let mut add = |name: &str, value: Option<f64>| fields.push((name.to_owned(), value));
        for ((_, name), sum) in TERMS.iter().zip(window.losses) {
            add(&format!("loss_{name}"), sum.map(|sum| sum / window.iterations.max(1) as f64));
        }
        add("annotations_per_image", Some(window.per_image(window.annotations)));
        add("detections_per_image", Some(window.per_image(window.detections)));
        add("candidates_per_image", window.candidates.map(|count| window.per_image(count)));
        add("pseudo_labels_per_image", Some(window.per_image(window.pseudo_labels)));
        add("judged", Some(window.raw.count() as f64));
        add("ece_raw", window.raw.ece());
        add("ece_calibrated", window.calibrated.ece());
        for parameter in ["w", "b", "t", "a", "c", "completeness"] {
            let pooled = self.calibrator.as_ref().map(Calibrator::pooled);
            let value = pooled.and_then(|pooled| {
                pooled.parameters().into_iter().find_map(|(name, value)| (name == parameter).then_some(value))
            });
            add(&format!("calibrator_{parameter}"), value);
        }
        let as_score = self.threshold.as_ref().and_then(Threshold::as_score);
        add("threshold_score", as_score.map(|score| shortest(score.0)));
        add("pseudo_precision", window.recovered.precision());
        add("pseudo_recall", window.recovered.recall().filter(|_| self.has_pseudo_labels));
        for (who, ap) in [("student", &self.student), ("teacher", &self.teacher)] {
            add(&format!("{who}_ap"), ap.as_ref().and_then(|ap| ap.ap));
            add(&format!("{who}_ap50"), ap.as_ref().and_then(|ap| ap.ap50));
            add(&format!("{who}_ap75"), ap.as_ref().and_then(|ap| ap.ap75));
        }
        fields
    }

    /// A line of `metrics.jsonl`.
    pub(crate) fn json(&self, event: &str) -> String {
        let numbers = self.fields().into_iter().map(|(name, value)| {
            let value = value.filter(|value| value.is_finite());
            format!(",\"{name}\":{}", value.map_or("null".to_owned(), number))
        });
        let mut line = format!("{{\"event\":\"{event}\"{}", numbers.collect::<String>());
        let MetricsWindow { scores, raw, calibrated, .. } = &self.window;
        if self.has_pseudo_labels {
            let scores: Vec<String> = scores.iter().map(u64::to_string).collect();
            line += &format!(",\"scores\":[{}]", scores.join(","));
            for (name, reliability) in [("raw", raw), ("calibrated", calibrated)] {
                line += &format!(",\"reliability_{name}\":[{}]", bins(reliability));
            }
        }
        line + "}"
    }

    /// The heading of `results.csv`.
    pub(crate) fn csv_heading() -> String {
        let empty = Self {
            iteration: 0,
            epoch: 0.0,
            lr: 0.0,
            has_pseudo_labels: false,
            window: MetricsWindow::default(),
            calibrator: None,
            threshold: None,
            student: None,
            teacher: None,
        };
        empty.fields().into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(",")
    }

    /// A row of `results.csv`.
    pub(crate) fn csv(&self) -> String {
        let cells = self.fields().into_iter().map(|(_, value)| value.map_or(String::new(), number));
        cells.collect::<Vec<_>>().join(",")
    }
}

/// Count, right and mean confidence of each bin.
fn bins(reliability: &Reliability) -> String {
    let bin = |bin: &lacuna_calib::ReliabilityBin| {
        let mean = if bin.count > 0 { bin.confidence / bin.count as f64 } else { 0.0 };
        format!("[{},{},{}]", bin.count, bin.right, number(mean))
    };
    reliability.bins().iter().map(bin).collect::<Vec<_>>().join(",")
}

/// Whole numbers without a fraction, others as short as they are exact.
fn number(value: f64) -> String {
    format!("{value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_fewer_terms_are_read() {
        let mut text = serde_json::to_value(MetricsWindow::default()).expect("JSON");
        text["losses"] = serde_json::json!([1.5, null, null, null, 0.25]);
        let window: MetricsWindow = serde_json::from_value(text.clone()).expect("five terms are enough");
        assert_eq!(window.losses, [Some(1.5), None, None, None, Some(0.25), None]);
        text["losses"] = serde_json::json!([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(serde_json::from_value::<MetricsWindow>(text).is_err());
    }
}
