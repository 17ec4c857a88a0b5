//! The section on calibration: errors of scores and confidences during training, from the `metrics.jsonl` of runs.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;
use lacuna_report::{Figure, Scale, Series, histograms, line_chart};
use serde::Deserialize;

use crate::page::{Page, Run, mean, mean_and_deviation};
use crate::table::Table;

/// The fields of a line of `metrics.jsonl` that are about calibration.
#[derive(Deserialize)]
struct Line {
    event: String,
    iteration: u64,
    ece_raw: Option<f64>,
    ece_calibrated: Option<f64>,
    pseudo_precision: Option<f64>,
    pseudo_recall: Option<f64>,
    pseudo_labels_per_image: Option<f64>,
    #[serde(default)]
    scores: Vec<f64>,
    /// Count, right ones and mean confidence of each bin.
    #[serde(default)]
    reliability_raw: Vec<(f64, f64, f64)>,
    #[serde(default)]
    reliability_calibrated: Vec<(f64, f64, f64)>,
}

/// Number of parts that training is divided into.
const PARTS: usize = 4;

/// A number of a line, in the last part of training: its name in the table, the number, and its scale.
type PseudoLabelRow = (&'static str, fn(&Line) -> Option<f64>, f64);

/// Cells are in percent; a count is scaled so that it is not.
const PSEUDO_LABEL_ROWS: [PseudoLabelRow; 3] = [
    ("pseudo labels per image, last part", |line| line.pseudo_labels_per_image, 0.01),
    ("their precision at IoU 0.5, %", |line| line.pseudo_precision, 1.0),
    ("recall of hidden boxes, %", |line| line.pseudo_recall, 1.0),
];

/// For each row: a table of calibration errors and pseudo labels, and two figures.
pub(crate) fn section(table: &Table, runs: &[Vec<Vec<Run>>]) -> anyhow::Result<Page> {
    let (mut text, mut figures) = (String::new(), Vec::new());
    let columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    for (row, columns_of_runs) in table.rows.iter().zip(runs) {
        let lines = columns_of_runs.iter().map(|runs| runs.iter().map(|run| read(&run.folder)).collect());
        let lines: Vec<Vec<Vec<Line>>> = lines.collect::<anyhow::Result<_>>()?;
        let _ = writeln!(
            text,
            "{}: expected calibration error of detections near an annotation, of scores → of confidences, in percent. \
             Ten bins; a detection is right at an IoU above τ⁺.\n",
            row.name
        );
        text += &markdown(table.seeds.len(), &columns, &lines);
        let suffix = row.name.to_lowercase().replace(' ', "-");
        figures.push((format!("ece-{suffix}"), error_figure(&row.name, &columns, &lines)));
        figures.push((format!("scores-{suffix}"), score_figure(&row.name, &columns, &lines)));
    }
    Ok(Page { text, figures })
}

/// Calibration errors in each part of training, then the pseudo labels of the last part.
fn markdown(seeds: usize, columns: &[&str], lines: &[Vec<Vec<Line>>]) -> String {
    let mut text =
        format!("| part of training | {} |\n|---|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for part in 0..PARTS {
        let cells = lines.iter().map(|runs| {
            let error = |bins: fn(&Line) -> &[(f64, f64, f64)]| {
                let errors: Vec<f64> =
                    runs.iter().filter_map(|run| calibration_error(lines_in_part(run, part), bins)).collect();
                mean_and_deviation(&errors, seeds)
            };
            let [raw, calibrated] =
                [error(|line| &line.reliability_raw), error(|line| &line.reliability_calibrated)];
            format!("{raw} → {calibrated}")
        });
        let name = format!("{} to {} %", 100 * part / PARTS, 100 * (part + 1) / PARTS);
        let _ = writeln!(text, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    for (name, number, scale) in PSEUDO_LABEL_ROWS {
        let cells = lines.iter().map(|runs| {
            let mean_of_run = |run: &Vec<Line>| {
                let numbers = lines_in_part(run, PARTS - 1).filter_map(number);
                mean(&numbers.map(|value| scale * value).collect::<Vec<_>>())
            };
            mean_and_deviation(&runs.iter().filter_map(mean_of_run).collect::<Vec<_>>(), seeds)
        });
        let _ = writeln!(text, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    text + "\n"
}

fn read(folder: &Path) -> anyhow::Result<Vec<Line>> {
    let path = folder.join("metrics.jsonl");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines =
        text.lines().map(|line| serde_json::from_str(line).with_context(|| path.display().to_string()));
    let lines: Vec<Line> = lines.collect::<anyhow::Result<_>>()?;
    Ok(lines.into_iter().filter(|line| line.event == "train").collect())
}

/// The lines of one part of a run.
fn lines_in_part(run: &[Line], part: usize) -> impl Iterator<Item = &Line> {
    let end = run.last().map_or(0, |line| line.iteration);
    let at = move |part: usize| end * part as u64 / PARTS as u64;
    run.iter().filter(move |line| line.iteration > at(part) && line.iteration <= at(part + 1))
}

/// The expected calibration error of all detections of these lines; `None` where none was judged.
fn calibration_error<'a>(
    lines: impl Iterator<Item = &'a Line>,
    bins: impl Fn(&Line) -> &[(f64, f64, f64)],
) -> Option<f64> {
    let mut sums: Vec<(f64, f64, f64)> = Vec::new();
    for line in lines {
        for (at, &(count, right, mean)) in bins(line).iter().enumerate() {
            sums.resize(sums.len().max(at + 1), (0.0, 0.0, 0.0));
            let sum = &mut sums[at];
            *sum = (sum.0 + count, sum.1 + right, sum.2 + count * mean);
        }
    }
    let count: f64 = sums.iter().map(|(count, ..)| count).sum();
    (count > 0.0).then(|| sums.iter().map(|(_, right, sum)| (right - sum).abs()).sum::<f64>() / count)
}

/// Calibration errors over the iterations, means of all seeds.
fn error_figure(row: &str, columns: &[&str], runs: &[Vec<Vec<Line>>]) -> Figure {
    let mut series = Vec::new();
    for (column, runs) in columns.iter().zip(runs) {
        for (what, error) in [
            ("score", (|line: &Line| line.ece_raw) as fn(&Line) -> Option<f64>),
            ("confidence", |line| line.ece_calibrated),
        ] {
            let mut iterations: Vec<u64> = runs.iter().flatten().map(|line| line.iteration).collect();
            iterations.sort_unstable();
            iterations.dedup();
            let at = |iteration: u64| {
                let lines = runs.iter().flatten().filter(|line| line.iteration == iteration);
                let errors: Vec<f64> = lines.filter_map(error).collect();
                (iteration as f64, mean(&errors).unwrap_or(f64::NAN))
            };
            series.push(Series {
                name: format!("{column}, {what}"),
                points: iterations.into_iter().map(at).collect(),
            });
        }
    }
    line_chart(&format!("Calibration error, {row}"), "expected calibration error", Scale::FromZero, &series)
}

/// Histograms of the teacher's scores in the last part of training, all seeds together.
fn score_figure(row: &str, columns: &[&str], runs: &[Vec<Vec<Line>>]) -> Figure {
    let panels: Vec<(&str, Vec<f64>)> = columns
        .iter()
        .zip(runs)
        .map(|(column, runs)| {
            let mut sums: Vec<f64> = Vec::new();
            for line in runs.iter().flat_map(|run| lines_in_part(run, PARTS - 1)) {
                for (at, count) in line.scores.iter().enumerate() {
                    sums.resize(sums.len().max(at + 1), 0.0);
                    sums[at] += count;
                }
            }
            (*column, sums)
        })
        .collect();
    let panels: Vec<(&str, &[f64])> = panels.iter().map(|(name, sums)| (*name, sums.as_slice())).collect();
    histograms(&format!("Scores of detections, {row}"), &panels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(iteration: u64, bins: &[(f64, f64, f64)]) -> Line {
        let bins: Vec<[f64; 3]> = bins.iter().map(|&(count, right, mean)| [count, right, mean]).collect();
        let line = serde_json::json!({ "event": "train", "iteration": iteration, "reliability_raw": bins });
        serde_json::from_value(line).expect("a line")
    }

    #[test]
    fn the_error_of_many_lines_is_that_of_all_their_detections() {
        let run =
            [line(50, &[(4.0, 1.0, 0.5), (0.0, 0.0, 0.0)]), line(100, &[(4.0, 3.0, 0.5), (2.0, 2.0, 0.75)])];
        let together = calibration_error(run.iter(), |line| &line.reliability_raw).expect("ten detections");
        assert!((together - 0.5 / 10.0).abs() < 1e-12, "{together}");
        assert_eq!(calibration_error(run.iter(), |line| &line.reliability_calibrated), None);
    }

    #[test]
    fn every_line_is_in_one_part() {
        let run: Vec<Line> = (1..=10).map(|at| line(50 * at, &[])).collect();
        let parts: Vec<usize> = (0..PARTS).map(|part| lines_in_part(&run, part).count()).collect();
        assert_eq!(parts, [2, 3, 2, 3]);
    }
}
