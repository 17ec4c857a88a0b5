//! `cargo experiment gaps`: how well calibrators tell the confidence of missing boxes, and how much is annotated.
//!
//! Boxes of a complete data set are hidden in every way that the paper has. Calibrators are fitted to the annotations
//! that are left and a detector's results, and judged by the hidden boxes on images that they were not fitted to.

use std::path::PathBuf;

use lacuna_boxes::Detection;
use lacuna_calib::{CalibratorKind, CrossFit, Reliability, Sample, estimate_completeness};
use lacuna_data::sparsify::{Percent, Sparse, SparsifyKind, sparsify};
use lacuna_data::{coco, results::Results};
use lacuna_gaps::{Truth, candidate_truths, judge, reliability, samples};

use crate::judging::overlap_rule;
use crate::page::mean;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// A complete COCO annotation file
    #[arg(long)]
    annotations: PathBuf,
    /// A COCO results file
    #[arg(long)]
    detections: PathBuf,
    /// Candidates have a score above this
    #[arg(long, default_value_t = 0.1)]
    score_min: f32,
    /// Seeds of the splits, from 0 on
    #[arg(long, default_value_t = 3)]
    seeds: u64,
}

const FOLDS: usize = 5;

/// Candidates of at least this confidence have their promised and real precision in the table.
const CONFIDENT: f32 = 0.7;

/// A line of the table: the numbers of each seed of a split.
#[derive(Default)]
struct Row {
    completeness: Vec<f64>,
    estimated_completeness: Vec<f64>,
    error_of_scores: Vec<f64>,
    platt: Numbers,
    completeness_calibrator: Numbers,
    per_class: Numbers,
}

/// The numbers of one kind of calibrator.
#[derive(Default)]
struct Numbers {
    error: Vec<f64>,
    promised: Vec<f64>,
    real: Vec<f64>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let dataset = coco::read(&options.annotations)?;
    let results = Results::read(&options.detections, &dataset)?;
    let images = results.detections().into_iter();
    let detections: Vec<Vec<Detection>> =
        images.map(|image| image.into_iter().map(|(_, detection)| detection).collect()).collect();
    println!(
        "| hidden | annotated | estimated | ECE of scores | Platt | completeness | per class | Platt ≥ {CONFIDENT}: \
         promised → real | completeness ≥ {CONFIDENT} |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (name, kind) in splits() {
        let mut row = Row::default();
        for seed in 0..options.seeds {
            row.measure(&sparsify(&dataset, kind, seed), &detections, options.score_min)?;
        }
        println!("| {name} | {} |", row.cells().join(" | "));
    }
    Ok(())
}

/// All splits of the paper, by name.
fn splits() -> Vec<(String, SparsifyKind)> {
    let mut splits = Vec::new();
    for percent in [30.0, 50.0, 70.0] {
        let share = Percent::new(percent).expect("it is a percentage");
        for (name, kind) in [
            ("Split-1", SparsifyKind::Split1(share)),
            ("Split-2", SparsifyKind::Split2(share)),
            ("Split-3", SparsifyKind::Split3(share)),
        ] {
            splits.push((format!("{name}, {percent} %"), kind));
        }
    }
    splits.sort_by(|a, b| a.0.cmp(&b.0));
    splits.push(("Easy".into(), SparsifyKind::Easy));
    splits.push(("Hard".into(), SparsifyKind::Hard));
    splits.push(("Extreme".into(), SparsifyKind::Extreme));
    splits
}

impl Row {
    /// Adds the numbers of one seed.
    fn measure(
        &mut self,
        Sparse { kept, hidden }: &Sparse,
        detections: &[Vec<Detection>],
        score_min: f32,
    ) -> anyhow::Result<()> {
        let judged = judge(kept, detections, &overlap_rule());
        let images = samples(&judged, score_min);
        let (given, missing) = (kept.annotations().len() as f64, hidden.annotations().len() as f64);
        self.completeness.push(given / (given + missing));
        self.estimated_completeness
            .push(estimate_completeness(&images, kept.categories().len(), 0)?.all.completeness);
        let candidates = candidate_truths(&judged, score_min, hidden, overlap_rule().iou_high);
        let by_score = reliability(&candidates, |candidate| candidate.detection.score.0);
        self.error_of_scores.extend(by_score.ece());
        self.platt.measure(CalibratorKind::Platt, false, &images, &candidates);
        self.completeness_calibrator.measure(CalibratorKind::Completeness, false, &images, &candidates);
        self.per_class.measure(CalibratorKind::Completeness, true, &images, &candidates);
        Ok(())
    }

    fn cells(&self) -> Vec<String> {
        let numbers = [
            &self.completeness,
            &self.estimated_completeness,
            &self.error_of_scores,
            &self.platt.error,
            &self.completeness_calibrator.error,
            &self.per_class.error,
        ];
        let precisions = [&self.platt, &self.completeness_calibrator];
        let precisions =
            precisions.map(|Numbers { promised, real, .. }| format!("{} → {}", cell(promised), cell(real)));
        numbers.into_iter().map(|numbers| cell(numbers)).chain(precisions).collect()
    }
}

impl Numbers {
    /// Adds the calibration error, and promised and real precision of confident candidates. Adds nothing where no such
    /// calibrator can be fitted, which happens to Platt's.
    fn measure(
        &mut self,
        kind: CalibratorKind,
        per_class: bool,
        images: &[Vec<Sample>],
        candidates: &[Truth],
    ) {
        let Ok(cross) = CrossFit::new(kind, per_class, images, FOLDS, 0) else { return };
        let (mut all, mut confident, mut promised, mut right_ones) = (Reliability::default(), 0, 0.0, 0);
        for (candidate, right) in candidates {
            let confidence = candidate.confidence(cross.calibrator(candidate.image)).0;
            all.add(confidence, *right);
            if confidence >= CONFIDENT {
                confident += 1;
                promised += f64::from(confidence);
                right_ones += i32::from(*right);
            }
        }
        self.error.extend(all.ece());
        if confident > 0 {
            self.promised.push(promised / f64::from(confident));
            self.real.push(f64::from(right_ones) / f64::from(confident));
        }
    }
}

/// The mean over the seeds.
fn cell(numbers: &[f64]) -> String {
    mean(numbers).map_or("–".into(), |mean| format!("{mean:.3}"))
}
