//! What a run's model adds to the annotations it was trained on, and whether what it promised was true.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lacuna_boxes::iou;
use lacuna_calib::{CalibratorKind, Reliability};
use lacuna_data::decode::OnBadImage;
use lacuna_data::output::{IfExists, write_file};
use lacuna_data::{Dataset, coco};
use lacuna_eval::{ImageDetection, RecoveryAbove, recovery_above};
use lacuna_gaps::read_hidden;
use lacuna_gaps::{FoldedCalibrator, candidates, judge, samples};
use lacuna_report::{Bin, Figure, reliability_diagram};
use lacuna_train::config::RunConfig;
use lacuna_train::data::Data;
use lacuna_train::evaluate::detect_all;
use lacuna_train::metrics::FOUND_IOU_MIN;
use lacuna_train::model::Model;
use lacuna_train::run::Finished;
use serde::{Deserialize, Serialize};

use super::page::{Run, cell, mean};
use super::table::Table;

/// Boxes are added from these confidences on.
const THRESHOLDS: [f64; 4] = [0.3, 0.5, 0.7, 0.9];

/// The floor of `lacuna complete`.
const SCORE_MIN: f32 = 0.1;

const KINDS: [(CalibratorKind, &str); 2] =
    [(CalibratorKind::Platt, "Platt"), (CalibratorKind::Completeness, "completeness")];

/// Of one kind of calibrator, what came of one run.
#[derive(Serialize, Deserialize)]
struct Completion {
    above: Vec<Above>,
    /// Of candidates, by an IoU above τ⁺ with a missing box.
    reliability: Reliability,
}

/// Of boxes from one confidence on.
#[derive(Serialize, Deserialize)]
struct Above {
    added: usize,
    /// By their confidences.
    promised: Option<f64>,
    /// At the IoU that confidences are about, τ⁺.
    well_placed: Option<f64>,
    precision: Option<f64>,
    recall: Option<f64>,
}

/// The annotations of `complete` that nothing in `sparse` of their class is a match for.
pub fn missing_from(sparse: &Dataset, complete: &Dataset) -> anyhow::Result<Dataset> {
    let image_of = |file_name: &str| sparse.images().iter().position(|image| image.file_name == file_name);
    let images = complete.images().iter().map(|image| {
        image_of(&image.file_name).with_context(|| format!("{} is in one of the two only", image.file_name))
    });
    let images = images.collect::<anyhow::Result<Vec<usize>>>()?;
    // Each annotation has at most one match, the nearest pairs first.
    let mut matched = vec![false; complete.annotations().len()];
    for (of_complete, &of_sparse) in images.iter().enumerate() {
        let mut pairs = Vec::new();
        for &one in complete.indices_of(of_complete) {
            for &other in sparse.indices_of(of_sparse) {
                let (a, b) = (&complete.annotations()[one as usize], &sparse.annotations()[other as usize]);
                let same = complete.categories()[a.category].name == sparse.categories()[b.category].name;
                let overlap = iou(a.bbox.to_box(), b.bbox.to_box());
                if same && overlap >= FOUND_IOU_MIN {
                    pairs.push((overlap, one, other));
                }
            }
        }
        pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut taken = Vec::new();
        for (_, one, other) in pairs {
            if !matched[one as usize] && !taken.contains(&other) {
                matched[one as usize] = true;
                taken.push(other);
            }
        }
    }
    Ok(complete.filter(|at, _| !matched[at]))
}

/// The file of what people added to an annotation file later.
pub fn missing_file(sparse: &Path, complete: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let (before, after) = (fs::read(sparse)?, fs::read(complete)?);
    let sums = [&before, &after].map(|bytes| crc32fast::hash(bytes));
    let path = folder.join(format!("{:08x}-{:08x}-missing.json", sums[0], sums[1]));
    if !path.exists() {
        let missing = missing_from(&coco::parse(before, sparse)?, &coco::parse(after, complete)?)?;
        write_file(&path, IfExists::Replace, |out| coco::write(&missing, out))?;
    }
    Ok(path)
}

fn file(run: &Path) -> PathBuf {
    run.join("completion.json")
}

/// Complete the annotations of a run that has come to its end, once.
pub fn measure(run: &Path, config: &RunConfig) -> anyhow::Result<()> {
    if file(run).exists() {
        return Ok(());
    }
    let hidden = config.data.hidden.as_ref().context("it is not known what is missing")?;
    let train = Data::read(&config.data)?.train;
    let kept = train.dataset.as_ref();
    let hidden = read_hidden(hidden, kept, false)?;
    let model = Model::read(&Finished::model(run))?;
    let part = (kept, train.folder.as_path());
    let found = detect_all(&model.detector, &model.config.input, part, OnBadImage::Error, &mut || true)?;
    // As `lacuna complete` does without options.
    let overlap = crate::gaps::overlap();
    let seen = judge(kept, &found.detections, &overlap);
    let observed = samples(&seen, SCORE_MIN);
    let of_kind = |(kind, _)| {
        let Ok(fitted) = FoldedCalibrator::new(kind, false, &observed) else { return None };
        let missing = candidates(&seen, SCORE_MIN, |image| fitted.of_image(image));
        let mut reliability = Reliability::default();
        let candidates = seen.iter().flatten();
        let candidates = candidates.filter(|seen| seen.is_candidate() && seen.detection.score.0 > SCORE_MIN);
        for (seen, missing) in candidates.zip(&missing) {
            let right = seen.is_one_of(&hidden.objects_of(seen.image), overlap.iou_high);
            reliability.add(missing.confidence.0, right);
        }
        let proposals: Vec<ImageDetection> = missing
            .iter()
            .map(|missing| ImageDetection {
                score: missing.confidence.0.into(),
                ..ImageDetection::from_detection(missing.image, missing.detection)
            })
            .collect();
        let at = |iou_min: f32| recovery_above(&hidden, &proposals, iou_min.into(), &THRESHOLDS);
        let both = at(FOUND_IOU_MIN).into_iter().zip(at(overlap.iou_high));
        let above = both.map(|(found, well_placed): (RecoveryAbove, RecoveryAbove)| Above {
            added: found.recovered.proposed,
            promised: found.promised_precision,
            well_placed: well_placed.recovered.precision(),
            precision: found.recovered.precision(),
            recall: found.recovered.recall(),
        });
        Some(Completion { above: above.collect(), reliability })
    };
    let completions: Vec<Option<Completion>> = KINDS.into_iter().map(of_kind).collect();
    let text = serde_json::to_string(&completions)?;
    Ok(write_file(&file(run), IfExists::Replace, |out| std::io::Write::write_all(out, text.as_bytes()))?)
}

/// The section of a page and its figures: of each row and kind of calibrator, what was added from some confidences on.
pub fn section(table: &Table, cells: &[Vec<Vec<Run>>]) -> anyhow::Result<(String, Vec<(String, Figure)>)> {
    let mut text = "Boxes added to the annotations that were trained on, by calibrators that were not fitted to the \
                    image (`lacuna complete`): from a confidence on, how many; the share that is one of the missing \
                    boxes at an IoU of 0.5; the share of the missing boxes that was found; and at an IoU of 0.75, which \
                    confidences are about, the precision that was promised → found. Means over the seeds.\n\n"
        .to_owned();
    let mut figures = Vec::new();
    let _ = writeln!(
        text,
        "| detector | method | calibrator | confidence from | added | precision % | recall % | promised → found % |\n\
         |---|---|---|---|---|---|---|---|"
    );
    for (column, of_column) in table.columns.iter().enumerate() {
        let mut diagrams: Vec<(String, Vec<Bin>)> = Vec::new();
        for (row, of_row) in table.rows.iter().enumerate() {
            let runs =
                cells[row][column].iter().map(|run| -> anyhow::Result<Option<Vec<Option<Completion>>>> {
                    let path = file(&run.folder);
                    let Ok(bytes) = fs::read(&path) else { return Ok(None) };
                    Ok(Some(serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?))
                });
            let runs: Vec<Option<Vec<Option<Completion>>>> = runs.collect::<anyhow::Result<_>>()?;
            for (kind, (_, name)) in KINDS.iter().enumerate() {
                let of_kind: Vec<&Completion> =
                    runs.iter().flatten().filter_map(|run| run.get(kind)?.as_ref()).collect();
                if of_kind.is_empty() {
                    continue;
                }
                for (at, threshold) in THRESHOLDS.iter().enumerate() {
                    let of = |figure: fn(&Above) -> Option<f64>| {
                        let figures: Vec<f64> =
                            of_kind.iter().filter_map(|run| figure(&run.above[at])).collect();
                        figures
                    };
                    let added = mean(&of(|above| Some(above.added as f64))).unwrap_or(0.0);
                    let percent = |figure| match of(figure) {
                        // Of nothing that was added.
                        figures if figures.is_empty() => "–".to_owned(),
                        figures => cell(&figures, of_kind.len()),
                    };
                    let _ = writeln!(
                        text,
                        "| {} | {} | {name} | {threshold} | {added:.0} | {} | {} | {} → {} |",
                        of_column.name,
                        of_row.name,
                        percent(|above| above.precision),
                        percent(|above| above.recall),
                        percent(|above| above.promised),
                        percent(|above| above.well_placed),
                    );
                }
                diagrams.push((format!("{}, {name}", of_row.name), bins(&of_kind)));
            }
        }
        let series: Vec<(&str, &[Bin])> =
            diagrams.iter().map(|(name, bins)| (name.as_str(), bins.as_slice())).collect();
        let title = format!("Candidates for missing boxes, {}", of_column.name);
        let name = of_column.name.to_lowercase().replace([' ', '-'], "");
        figures.push((format!("candidates-{name}"), reliability_diagram(&title, &series)));
    }
    text.push('\n');
    Ok((text, figures))
}

/// The candidates of all runs together.
fn bins(runs: &[&Completion]) -> Vec<Bin> {
    let n = runs.first().map_or(0, |run| run.reliability.bins().len());
    let of_bin = |at: usize| {
        let bins = || runs.iter().map(|run| &run.reliability.bins()[at]);
        Bin {
            low: at as f64 / n as f64,
            high: (at + 1) as f64 / n as f64,
            count: bins().map(|bin| bin.count).sum(),
            right: bins().map(|bin| bin.right).sum(),
            confidence: bins().map(|bin| bin.confidence).sum(),
        }
    };
    (0..n).map(of_bin).collect()
}

#[cfg(test)]
mod tests {
    use lacuna_data::{Builder, Xywh};

    use super::*;

    fn dataset(boxes: &[f64]) -> Dataset {
        let mut builder = Builder::default();
        let (image, class) = (builder.image("1.jpg", 100, 100), builder.category("cell"));
        for &x in boxes {
            builder.annotation(image, class, Xywh { x, y: 0.0, width: 10.0, height: 10.0 }, false, ());
        }
        builder.finish()
    }

    /// A box that was moved a little is the same; a second one near a first is not, as each has one match.
    #[test]
    fn what_has_no_match_was_missing() {
        let missing =
            missing_from(&dataset(&[0.0, 50.0]), &dataset(&[1.0, 2.0, 50.0, 80.0])).expect("one image");
        let left: Vec<f64> = missing.annotations().iter().map(|annotation| annotation.bbox.x).collect();
        assert_eq!(left, [2.0, 80.0]);
    }
}
