//! `cargo xtask gaps`: how well calibrators tell the confidence of boxes that are missing, and how much is
//! annotated.
//!
//! Boxes of a completely annotated data set are hidden in every way that the paper has. Calibrators are fitted to
//! what is left and to a detector's results, and judged by what was hidden, on images that they were not fitted to.

use std::path::PathBuf;

use lacuna_boxes::Detection;
use lacuna_calib::{CalibratorKind, CrossFit, Reliability, Sample, estimate_completeness};
use lacuna_data::sparsify::{Percent, Sparse, SparsifyKind, sparsify};
use lacuna_data::{Dataset, coco, results::Results};
use lacuna_gaps::OverlapRule;
use lacuna_gaps::{JudgedDetection, judge, samples};

#[derive(clap::Args)]
pub struct Options {
    /// A complete COCO annotation file
    #[arg(long)]
    annotations: PathBuf,
    /// A COCO results file
    #[arg(long)]
    detections: PathBuf,
    #[arg(long, default_value_t = 0.1)]
    score_min: f32,
    /// Seeds of the splits, from 0 on
    #[arg(long, default_value_t = 3)]
    seeds: u64,
}

const FOLDS: usize = 5;

/// Promised and real precision of candidates from this confidence on are shown.
const SURE: f32 = 0.7;

/// What is printed of a kind of split.
#[derive(Default)]
struct Row {
    share: Vec<f64>,
    estimated: Vec<f64>,
    raw: Vec<f64>,
    platt: Vec<f64>,
    completeness: Vec<f64>,
    per_class: Vec<f64>,
    promised: [Vec<f64>; 2],
    real: [Vec<f64>; 2],
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let dataset = coco::read(&options.annotations)?;
    let results = Results::read(&options.detections, &dataset)?;
    let lists = results.detections().into_iter();
    let detections: Vec<Vec<Detection>> =
        lists.map(|image| image.into_iter().map(|(_, detection)| detection).collect()).collect();
    println!(
        "| hidden | annotated | estimated | ECE of scores | Platt | completeness | per class | Platt ≥ {SURE}: promised → \
         real | completeness ≥ {SURE} |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (name, kind) in kinds() {
        let mut row = Row::default();
        for seed in 0..options.seeds {
            row.measure(&sparsify(&dataset, kind, seed), &detections, options.score_min)?;
        }
        println!("| {name} | {} |", row.cells().join(" | "));
    }
    Ok(())
}

fn kinds() -> Vec<(String, SparsifyKind)> {
    let mut kinds = Vec::new();
    for percent in [30.0, 50.0, 70.0] {
        let share = Percent::new(percent).expect("it is a percentage");
        for (name, kind) in [
            ("Split-1", SparsifyKind::Split1(share)),
            ("Split-2", SparsifyKind::Split2(share)),
            ("Split-3", SparsifyKind::Split3(share)),
        ] {
            kinds.push((format!("{name}, {percent} %"), kind));
        }
    }
    kinds.sort_by(|a, b| a.0.cmp(&b.0));
    kinds.push(("Easy".into(), SparsifyKind::Easy));
    kinds.push(("Hard".into(), SparsifyKind::Hard));
    kinds.push(("Extreme".into(), SparsifyKind::Extreme));
    kinds
}

/// As the command line judges detections.
pub fn overlap() -> OverlapRule {
    OverlapRule { candidate_iou: Some(0.7), min_side: None, ..OverlapRule::default() }
}

impl Row {
    fn measure(
        &mut self,
        Sparse { kept, hidden }: &Sparse,
        detections: &[Vec<Detection>],
        score_min: f32,
    ) -> anyhow::Result<()> {
        let seen = judge(kept, detections, &overlap());
        let observed = samples(&seen, score_min);
        let (given, missing) = (kept.annotations().len() as f64, hidden.annotations().len() as f64);
        self.share.push(given / (given + missing));
        self.estimated.push(estimate_completeness(&observed, kept.categories().len(), 0)?.all.completeness);
        let candidates: Vec<(&JudgedDetection, bool)> = candidates(&seen, hidden, score_min);
        let mut scores = Reliability::default();
        candidates.iter().for_each(|(seen, right)| scores.add(seen.detection.score.0, *right));
        self.raw.extend(scores.ece());
        for (at, kind) in [CalibratorKind::Platt, CalibratorKind::Completeness].into_iter().enumerate() {
            // Platt's cannot always be fitted.
            let Some((error, promised, real)) = errors_of(kind, false, &observed, &candidates) else {
                continue;
            };
            if at == 0 { &mut self.platt } else { &mut self.completeness }.extend(error);
            self.promised[at].extend(promised);
            self.real[at].extend(real);
        }
        let per_class = errors_of(CalibratorKind::Completeness, true, &observed, &candidates);
        self.per_class.extend(per_class.and_then(|(error, ..)| error));
        Ok(())
    }

    fn cells(&self) -> Vec<String> {
        let sure = |at: usize| format!("{} → {}", shown(&self.promised[at]), shown(&self.real[at]));
        let figures =
            [&self.share, &self.estimated, &self.raw, &self.platt, &self.completeness, &self.per_class];
        figures.into_iter().map(|figures| shown(figures)).chain([sure(0), sure(1)]).collect()
    }
}

/// Candidates above the floor, and whether each is one that was hidden.
fn candidates<'a>(
    seen: &'a [Vec<JudgedDetection>],
    hidden: &Dataset,
    score_min: f32,
) -> Vec<(&'a JudgedDetection, bool)> {
    let mut candidates = Vec::new();
    for (image, seen) in seen.iter().enumerate() {
        let objects = hidden.objects_of(image);
        let above = seen.iter().filter(|seen| seen.is_candidate() && seen.detection.score.0 > score_min);
        candidates.extend(above.map(|seen| (seen, seen.is_one_of(&objects, overlap().iou_high))));
    }
    candidates
}

/// The error, and promised and real precision of those that are sure; `None` where nothing can be fitted.
fn errors_of(
    kind: CalibratorKind,
    per_class: bool,
    observed: &[Vec<Sample>],
    candidates: &[(&JudgedDetection, bool)],
) -> Option<(Option<f64>, Option<f64>, Option<f64>)> {
    let cross = CrossFit::new(kind, per_class, observed, FOLDS, 0).ok()?;
    let (mut all, mut sure, mut promised, mut right_ones) = (Reliability::default(), 0, 0.0, 0);
    for (seen, right) in candidates {
        let confidence = seen.confidence(cross.calibrator(seen.image)).0;
        all.add(confidence, *right);
        if confidence >= SURE {
            sure += 1;
            promised += f64::from(confidence);
            right_ones += i32::from(*right);
        }
    }
    let share = |sum: f64| (sure > 0).then(|| sum / f64::from(sure));
    Some((all.ece(), share(promised), share(right_ones.into())))
}

/// The mean over the seeds.
fn shown(figures: &[f64]) -> String {
    match figures.len() {
        0 => "–".into(),
        n => format!("{:.3}", figures.iter().sum::<f64>() / n as f64),
    }
}
