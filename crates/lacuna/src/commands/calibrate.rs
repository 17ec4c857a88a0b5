use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use lacuna_calib::{Calibrator, CrossFit, NoFit, Reliability};
use lacuna_data::Dataset;
use lacuna_data::number::shortest;
use lacuna_data::output::{IfExists, NewFile};
use lacuna_data::results::Rewrite;
use lacuna_gaps::read_hidden;
use lacuna_gaps::{FoldedCalibrator, JudgedDetection, judge, samples};
use serde_json::{Map, Value, json};

use super::{TooLittle, best_first, read_results, shown};
use crate::data_args::{AnnotationsArgs, note_problems};
use crate::gaps::{Gaps, gaps_json};
use crate::judging::{FloorArgs, JudgingArgs, MethodArg};
use crate::table::{Table, thousands};
use crate::training::percent;
use lacuna_gaps::CalibratorFile;

/// Give detections of any framework confidences that match their precision
///
/// Detections are compared with annotations that may have gaps: those near an annotation are right or wrong, those
/// away from all may be missing boxes. The calibrator is fitted to that, every detection gets its `confidence`, and
/// how much is annotated is estimated. The errors that are printed are of images to which the calibrator was not
/// fitted.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    annotations: AnnotationsArgs,

    /// A COCO results file: a JSON list with `image_id`, `category_id`, `bbox` and `score`
    #[arg(long, value_name = "FILE")]
    detections: PathBuf,

    /// What makes confidences of scores
    #[arg(long, default_value = "completeness")]
    method: MethodArg,

    /// A calibrator of its own for each class with detections enough
    #[arg(long)]
    per_class: bool,

    /// The detections with their confidences; all else in them stays as it is
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Put the confidences in the place of the scores, for tools that know nothing else
    #[arg(long, requires = "out")]
    in_place_score: bool,

    /// The calibrator, a JSON file, for `complete --calibrator`
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,

    /// What a simulated split took away, to measure confidences of missing boxes against it
    #[arg(long, value_name = "COCO_JSON")]
    hidden: Option<PathBuf>,

    #[command(flatten)]
    floor: FloorArgs,

    /// Replace outputs that exist
    #[arg(long)]
    force: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    judging: JudgingArgs,
}

/// The calibration error of some detections, by their scores and by their confidences.
#[derive(Default)]
struct Errors {
    before: Reliability,
    after: Reliability,
}

pub fn run(args: &Args) -> Result<()> {
    args.judging.check();
    let if_exists = IfExists::forced(args.force);
    let outputs: Vec<&Path> = args.out.iter().chain(&args.save).map(PathBuf::as_path).collect();
    let inputs = [&args.annotations.path, &args.detections].into_iter().chain(&args.hidden);
    if_exists.check_all(&outputs, &inputs.map(PathBuf::as_path).collect::<Vec<_>>())?;

    let split = args.annotations.read()?;
    if_exists.check_all(&outputs, &[split.path()])?;
    note_problems(&split);
    let dataset = &split.dataset;
    let results = read_results(&args.detections, dataset, &args.annotations.options)?;
    let hidden = args.hidden.as_deref().map(|path| read_hidden(path, dataset, false)).transpose()?;

    let seen = judge(dataset, &best_first(&results), &args.judging.overlap());
    let observed = samples(&seen, args.floor.score_min);
    let kind = args.method.kind();
    let too_little = |why: NoFit| TooLittle { path: args.detections.clone(), why };
    let fitted = FoldedCalibrator::new(kind, args.per_class, &observed).map_err(too_little)?;
    let calibrator = &fitted.whole;
    let errors = errors(&seen, args.floor.score_min, fitted.folds.as_ref().ok());
    let of_candidates =
        hidden.as_ref().map(|hidden| candidate_errors(&seen, args, fitted.folds.as_ref().ok(), hidden));
    if let Err(why) = &fitted.folds {
        eprintln!(
            "note: no error after calibration, because a part of the images is too little to fit to: {why}"
        );
    }
    let gaps = Gaps::estimate(dataset, &seen, args.floor.score_min);

    let mut confidences = vec![0.0; results.entries().len()];
    for ((entry, _), seen) in results.detections().iter().flatten().zip(seen.iter().flatten()) {
        confidences[*entry] = shortest(seen.confidence(calibrator).0);
    }
    let mut written = Vec::new();
    if let Some(path) = &args.out {
        let rewrite = |entry: usize| match args.in_place_score {
            // A confidence that was there before is none of this calibrator's.
            true => {
                let confidence = results.entries()[entry].confidence.map(|_| confidences[entry]);
                Rewrite { score: Some(confidences[entry]), confidence }
            }
            false => Rewrite { score: None, confidence: Some(confidences[entry]) },
        };
        written.push(NewFile::write(path, if_exists, |out| results.write(out, rewrite))?);
    }
    if let Some(path) = &args.save {
        let saved = CalibratorFile::new(dataset, calibrator);
        written.push(NewFile::write(path, if_exists, |out| Ok(serde_json::to_writer(out, &saved)?))?);
    }
    written.into_iter().try_for_each(NewFile::finish)?;

    print(args, dataset, calibrator, &errors, of_candidates.as_ref(), gaps.as_ref(), &seen)
}

/// Of detections near an annotation.
fn errors(seen: &[Vec<JudgedDetection>], score_min: f32, folds: Option<&CrossFit>) -> Errors {
    let mut errors = Errors::default();
    for seen in seen.iter().flatten().filter(|seen| seen.detection.score.0 > score_min) {
        if let Some(judged) = seen.sample().and_then(|sample| sample.judged()) {
            errors.before.add(judged.score.0, judged.right);
            if let Some(folds) = folds {
                errors.after.add(seen.confidence(folds.calibrator(seen.image)).0, judged.right);
            }
        }
    }
    errors
}

/// Of detections away from all annotations, by what was hidden.
fn candidate_errors(
    seen: &[Vec<JudgedDetection>],
    args: &Args,
    folds: Option<&CrossFit>,
    hidden: &Dataset,
) -> Errors {
    let mut errors = Errors::default();
    let (score_min, iou_high) = (args.floor.score_min, args.judging.iou_high);
    for (image, seen) in seen.iter().enumerate() {
        let objects = hidden.objects_of(image);
        for seen in seen.iter().filter(|seen| seen.is_candidate() && seen.detection.score.0 > score_min) {
            let right = seen.is_one_of(&objects, iou_high);
            errors.before.add(seen.detection.score.0, right);
            if let Some(folds) = folds {
                errors.after.add(seen.confidence(folds.calibrator(image)).0, right);
            }
        }
    }
    errors
}

fn print(
    args: &Args,
    dataset: &Dataset,
    calibrator: &Calibrator,
    errors: &Errors,
    of_candidates: Option<&Errors>,
    gaps: Result<&Gaps, &NoFit>,
    seen: &[Vec<JudgedDetection>],
) -> Result<()> {
    let parameters = calibrator.pooled().parameters();
    let detections: usize = seen.iter().map(Vec::len).sum();
    let mut out = std::io::stdout().lock();
    if args.json {
        let parameters: Map<String, Value> =
            parameters.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let mut result = json!({
            "method": args.method.kind().name(),
            "per_class": args.per_class,
            "parameters": parameters,
            "detections": detections,
            "judged": errors.before.count(),
            "error_before": errors.before.ece(),
            "error_after": errors.after.ece(),
            "completeness": gaps_json(gaps, dataset),
            "out": args.out.as_deref().map(shown),
            "saved": args.save.as_deref().map(shown),
        });
        if let Some(Errors { before, after }) = of_candidates {
            result["candidates"] =
                json!({ "number": before.count(), "error_before": before.ece(), "error_after": after.ece() });
        }
        writeln!(out, "{result}")?;
        return Ok(());
    }
    let shown: Vec<String> = parameters.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
    let shown = if shown.is_empty() { String::new() } else { format!(" ({})", shown.join(", ")) };
    let own = calibrator.own_classes();
    let own = if args.per_class { format!(", {own} classes with one of their own") } else { String::new() };
    writeln!(out, "{}{shown}{own}\n", args.method.kind().name())?;
    let mut table = Table::new(["calibration error of detections", "before", "after", "number"]);
    let mut row = |name: &str, errors: &Errors| {
        let count = thousands(errors.before.count() as usize);
        table.row([name.into(), percent(errors.before.ece()), percent(errors.after.ece()), count]);
    };
    row("near an annotation", errors);
    if let Some(errors) = of_candidates {
        row("away from all, by what was hidden", errors);
    }
    writeln!(out, "{table}")?;
    match gaps {
        Ok(gaps) => gaps.sentences(dataset).iter().try_for_each(|line| writeln!(out, "{line}"))?,
        Err(why) => writeln!(out, "how much is annotated cannot be told: {why}")?,
    }
    if let Some(path) = &args.out {
        writeln!(out, "\n{}: {} detections", path.display(), thousands(detections))?;
    }
    if let Some(path) = &args.save {
        writeln!(out, "{}: the calibrator", path.display())?;
    }
    Ok(())
}
