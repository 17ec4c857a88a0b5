//! How well scores and confidences told the truth through training, from what the runs noted of themselves.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;
use lacuna_report::{Figure, Scale, Series, histograms, line_chart};
use serde::Deserialize;

use super::page::{Run, cell, mean};
use super::table::Table;

/// A line of `metrics.jsonl`, as far as it is about calibration.
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
    /// Count, right and mean confidence of each bin.
    #[serde(default)]
    reliability_raw: Vec<(f64, f64, f64)>,
    #[serde(default)]
    reliability_calibrated: Vec<(f64, f64, f64)>,
}

/// Training is told in so many parts.
const PARTS: usize = 4;

/// The section of a page and its figures: of each row with a teacher, a table of calibration errors, and what became
/// of pseudo labels.
pub fn section(table: &Table, cells: &[Vec<Vec<Run>>]) -> anyhow::Result<(String, Vec<(String, Figure)>)> {
    let (mut text, mut figures) = (String::new(), Vec::new());
    let columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    for (of_row, cells) in table.rows.iter().zip(cells) {
        let runs = cells.iter().map(|runs| runs.iter().map(|run| read(&run.folder)).collect());
        let runs: Vec<Vec<Vec<Line>>> = runs.collect::<anyhow::Result<_>>()?;
        let _ = writeln!(
            text,
            "Expected calibration error of detections near an annotation (right is an IoU above τ⁺; ten bins), in per \
             cent, by scores → by confidences. {}:\n\n| part of training | {} |\n|---|{}",
            of_row.name,
            columns.join(" | "),
            "---|".repeat(columns.len())
        );
        for part in 0..PARTS {
            let cells = runs.iter().map(|runs| {
                let of = |bins: fn(&Line) -> &[(f64, f64, f64)]| {
                    let errors: Vec<f64> =
                        runs.iter().filter_map(|run| ece(parted(run, part), bins)).collect();
                    cell(&errors, table.seeds.len())
                };
                format!("{} → {}", of(|line| &line.reliability_raw), of(|line| &line.reliability_calibrated))
            });
            let name = format!("{} to {} %", 100 * part / PARTS, 100 * (part + 1) / PARTS);
            let _ = writeln!(text, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
        }
        for (name, figure) in [
            (
                "pseudo labels an image, last part",
                (|line: &Line| line.pseudo_labels_per_image) as fn(&Line) -> _,
            ),
            ("right at an IoU of 0.5, %", |line| line.pseudo_precision),
            ("hidden boxes found, %", |line| line.pseudo_recall),
        ] {
            let scale = if name.ends_with('%') { 1.0 } else { 0.01 };
            let cells = runs.iter().map(|runs| {
                let of_run = |run: &Vec<Line>| {
                    mean(
                        &parted(run, PARTS - 1)
                            .filter_map(figure)
                            .map(|value| scale * value)
                            .collect::<Vec<_>>(),
                    )
                };
                cell(&runs.iter().filter_map(of_run).collect::<Vec<_>>(), table.seeds.len())
            });
            let _ = writeln!(text, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
        }
        text.push('\n');
        let row = of_row.name.to_lowercase().replace(' ', "-");
        figures.push((format!("ece-{row}"), errors_figure(&of_row.name, &columns, &runs)));
        figures.push((format!("scores-{row}"), scores_figure(&of_row.name, &columns, &runs)));
    }
    Ok((text, figures))
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
fn parted(run: &[Line], part: usize) -> impl Iterator<Item = &Line> {
    let end = run.last().map_or(0, |line| line.iteration);
    let at = move |part: usize| end * part as u64 / PARTS as u64;
    run.iter().filter(move |line| line.iteration > at(part) && line.iteration <= at(part + 1))
}

/// The error of many lines together; `None` where nothing was judged.
fn ece<'a>(lines: impl Iterator<Item = &'a Line>, bins: impl Fn(&Line) -> &[(f64, f64, f64)]) -> Option<f64> {
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

/// Errors over the iterations, the means of all seeds.
fn errors_figure(row: &str, columns: &[&str], runs: &[Vec<Vec<Line>>]) -> Figure {
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

/// What scores the teacher gives in the last part of training, all seeds together.
fn scores_figure(row: &str, columns: &[&str], runs: &[Vec<Vec<Line>>]) -> Figure {
    let panels: Vec<(&str, Vec<f64>)> = columns
        .iter()
        .zip(runs)
        .map(|(column, runs)| {
            let mut sums: Vec<f64> = Vec::new();
            for line in runs.iter().flat_map(|run| parted(run, PARTS - 1)) {
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
    fn errors_of_many_lines_are_those_of_all_their_detections() {
        let run =
            [line(50, &[(4.0, 1.0, 0.5), (0.0, 0.0, 0.0)]), line(100, &[(4.0, 3.0, 0.5), (2.0, 2.0, 0.75)])];
        let together = ece(run.iter(), |line| &line.reliability_raw).expect("ten detections");
        assert!((together - 0.5 / 10.0).abs() < 1e-12, "{together}");
        assert_eq!(ece(run.iter(), |line| &line.reliability_calibrated), None);
    }

    #[test]
    fn every_line_is_in_one_part() {
        let run: Vec<Line> = (1..=10).map(|at| line(50 * at, &[])).collect();
        let parts: Vec<usize> = (0..PARTS).map(|part| parted(&run, part).count()).collect();
        assert_eq!(parts, [2, 3, 2, 3]);
    }
}
