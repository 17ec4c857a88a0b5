//! The section on completion: the boxes that the models of runs recover in their training images, and whether their
//! confidences hold.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lacuna_calib::{CalibratorKind, Reliability};
use lacuna_data::Dataset;
use lacuna_data::decode::OnBadImage;
use lacuna_data::output::{IfExists, write_file};
use lacuna_eval::{ImageDetection, recovery_above};
use lacuna_gaps::{
    FitOptions, FoldedCalibrator, JudgedDetection, candidate_truths, candidates, judge, read_hidden,
    reliability,
};
use lacuna_report::{Bin, reliability_diagram};
use lacuna_train::config::RunConfig;
use lacuna_train::data::Data;
use lacuna_train::evaluate::detect_all;
use lacuna_train::metrics::FOUND_IOU_MIN;
use lacuna_train::model::Model;
use lacuna_train::run::Finished;
use serde::{Deserialize, Serialize};

use crate::judging::overlap_rule;
use crate::page::{Page, Run, mean, mean_and_deviation};
use crate::table::Table;

/// The lowest confidences of recovered boxes that the table shows.
const THRESHOLDS: [f64; 4] = [0.3, 0.5, 0.7, 0.9];

/// The floor of `lacuna complete`.
const SCORE_MIN: f32 = 0.1;

const KINDS: [(CalibratorKind, &str); 2] =
    [(CalibratorKind::Platt, "Platt"), (CalibratorKind::Completeness, "completeness")];

/// What one kind of calibrator makes of one run.
#[derive(Serialize, Deserialize)]
struct Completion {
    /// For each of [`THRESHOLDS`].
    above: Vec<Above>,
    /// Of all candidates; right is an IoU above τ⁺ with a missing box.
    reliability: Reliability,
}

/// The boxes from one confidence on.
#[derive(Serialize, Deserialize)]
struct Above {
    added: usize,
    /// The precision that their confidences promise.
    promised: Option<f64>,
    /// Precision at the IoU that confidences are about, τ⁺.
    well_placed: Option<f64>,
    precision: Option<f64>,
    recall: Option<f64>,
}

/// A file beside a run: a [`Completion`] for each of [`KINDS`] that could be fitted.
fn measurements(run: &Path) -> PathBuf {
    run.join("completion.json")
}

/// Completes the annotations of a finished run as `lacuna complete` does without options, and keeps the result.
pub(crate) fn measure(run: &Path, config: &RunConfig) -> anyhow::Result<()> {
    if measurements(run).exists() {
        return Ok(());
    }
    let hidden = config.data.hidden.as_ref().context("the table does not know what is missing")?;
    let train = Data::read(&config.data)?.train;
    let kept = train.dataset.as_ref();
    let hidden = read_hidden(hidden, kept, false)?;
    let model = Model::read(&Finished::model(run))?;
    let part = (kept, train.folder.as_path());
    let found = detect_all(&model.detector, &model.config.input, part, OnBadImage::Error, &mut || true)?;
    let judged = judge(kept, &found.detections, &overlap_rule());
    let completions: Vec<Option<Completion>> =
        KINDS.iter().map(|(kind, _)| complete(*kind, &judged, &hidden)).collect();
    let text = serde_json::to_string(&completions)?;
    let path = measurements(run);
    Ok(write_file(&path, IfExists::Replace, |out| std::io::Write::write_all(out, text.as_bytes()))?)
}

/// `None` where the samples determine no calibrator of this kind.
fn complete(kind: CalibratorKind, judged: &[Vec<JudgedDetection>], hidden: &Dataset) -> Option<Completion> {
    let fitted =
        FoldedCalibrator::fit(judged, FitOptions { kind, per_class: false, score_min: SCORE_MIN }).ok()?;
    let confidence = |judged: &JudgedDetection| judged.confidence(fitted.of_image(judged.image));
    let recovered = candidates(judged, SCORE_MIN, confidence);
    let truths = candidate_truths(judged, SCORE_MIN, hidden, overlap_rule().iou_high);
    let reliability = reliability(&truths, |judged| confidence(judged).0);
    let proposal = |candidate: &lacuna_gaps::Candidate| ImageDetection {
        score: candidate.confidence.0.into(),
        ..ImageDetection::from_detection(candidate.image, candidate.detection)
    };
    let proposals: Vec<ImageDetection> = recovered.iter().map(proposal).collect();
    let at = |iou_min: f32| recovery_above(hidden, &proposals, iou_min.into(), &THRESHOLDS);
    let above = at(FOUND_IOU_MIN).into_iter().zip(at(overlap_rule().iou_high));
    let above = above.map(|(found, well_placed)| Above {
        added: found.recovered.proposed,
        promised: found.promised_precision,
        well_placed: well_placed.recovered.precision(),
        precision: found.recovered.precision(),
        recall: found.recovered.recall(),
    });
    Some(Completion { above: above.collect(), reliability })
}

/// A table of the recovered boxes for each column, row and kind of calibrator, and a reliability diagram for each column.
pub(crate) fn section(table: &Table, runs: &[Vec<Vec<Run>>]) -> anyhow::Result<Page> {
    let mut text = "Boxes recovered in the training images (`lacuna complete`), by calibrators that were not fitted to \
                    the image; means over the seeds:\n\n\
                    - *added*: boxes from this confidence on;\n\
                    - *precision*: share of them that is a missing box, at IoU 0.5;\n\
                    - *recall*: share of the missing boxes that is among them, at IoU 0.5;\n\
                    - *promised → found*: the precision by their confidences, and the real one, at IoU 0.75, which \
                    confidences are about.\n\n\
                    | detector | method | calibrator | confidence from | added | precision % | recall % | \
                    promised → found % |\n|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    let mut figures = Vec::new();
    for (at, column) in table.columns.iter().enumerate() {
        let mut diagrams: Vec<(String, Vec<Bin>)> = Vec::new();
        for (row, runs) in table.rows.iter().zip(runs) {
            let runs = read(&runs[at])?;
            for (kind, (_, kind_name)) in KINDS.iter().enumerate() {
                let completions: Vec<&Completion> =
                    runs.iter().filter_map(|run| run.get(kind)?.as_ref()).collect();
                if completions.is_empty() {
                    continue;
                }
                text += &lines(&format!("{} | {} | {kind_name}", column.name, row.name), &completions);
                diagrams.push((format!("{}, {kind_name}", row.name), bins(&completions)));
            }
        }
        let series: Vec<(&str, &[Bin])> =
            diagrams.iter().map(|(name, bins)| (name.as_str(), bins.as_slice())).collect();
        let title = format!("Candidates for missing boxes, {}", column.name);
        let suffix = column.name.to_lowercase().replace([' ', '-'], "");
        figures.push((format!("candidates-{suffix}"), reliability_diagram(&title, &series)));
    }
    text.push('\n');
    Ok(Page { text, figures })
}

/// The measurements of the runs that have some.
fn read(runs: &[Run]) -> anyhow::Result<Vec<Vec<Option<Completion>>>> {
    let mut completions = Vec::new();
    for run in runs {
        let path = measurements(&run.folder);
        if let Ok(bytes) = fs::read(&path) {
            completions.push(serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?);
        }
    }
    Ok(completions)
}

/// One line of the table for each threshold.
fn lines(name: &str, completions: &[&Completion]) -> String {
    let mut text = String::new();
    for (at, threshold) in THRESHOLDS.iter().enumerate() {
        let numbers = |number: fn(&Above) -> Option<f64>| -> Vec<f64> {
            completions.iter().filter_map(|completion| number(&completion.above[at])).collect()
        };
        let added = mean(&numbers(|above| Some(above.added as f64))).unwrap_or(0.0);
        let percent = |number| match numbers(number) {
            // Nothing was added.
            numbers if numbers.is_empty() => "–".to_owned(),
            numbers => mean_and_deviation(&numbers, completions.len()),
        };
        let _ = writeln!(
            text,
            "| {name} | {threshold} | {added:.0} | {} | {} | {} → {} |",
            percent(|above| above.precision),
            percent(|above| above.recall),
            percent(|above| above.promised),
            percent(|above| above.well_placed),
        );
    }
    text
}

/// The candidates of all runs together.
fn bins(runs: &[&Completion]) -> Vec<Bin> {
    let n = runs.first().map_or(0, |run| run.reliability.bins().len());
    let bin = |at: usize| {
        let same_bins = || runs.iter().map(|run| &run.reliability.bins()[at]);
        Bin {
            low: at as f64 / n as f64,
            high: (at + 1) as f64 / n as f64,
            count: same_bins().map(|bin| bin.count).sum(),
            right: same_bins().map(|bin| bin.right).sum(),
            confidence: same_bins().map(|bin| bin.confidence).sum(),
        }
    };
    (0..n).map(bin).collect()
}
