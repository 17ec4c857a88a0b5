//! `lacuna calibrate`: confidences for detections of any framework.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use lacuna_calib::{Calibrator, NoFit};
use lacuna_data::Dataset;
use lacuna_data::number::shortest;
use lacuna_data::output::NewFile;
use lacuna_data::results::{Results, Rewrite};
use lacuna_gaps::{
    CalibrationErrors, CalibratorFile, DatasetCompleteness, FitOptions, FoldedCalibrator, JudgedDetection,
    judge,
};
use serde_json::{Map, Value, json};

use crate::args::data::DataArgs;
use crate::args::detections::{DetectionsArgs, best_first, read_results};
use crate::args::judging::{CalibratorArgs, HiddenArgs, JudgingArgs, ScoreFloorArgs};
use crate::args::output::OutputArgs;
use crate::diagnostics::CannotCalibrate;
use crate::render::completeness::{completeness_json, completeness_sentences};
use crate::render::notes::note_problems;
use crate::render::number::{percent, thousands};
use crate::render::path_json;
use crate::render::table::Table;

/// Give detections of any framework confidences that match their precision
///
/// Detections are judged by annotations that may have gaps: near an annotation they are right or wrong, away from all
/// they may be missing boxes. A calibrator is fitted to that, every detection gets its `confidence`, and completeness
/// (the share of objects that are annotated) is estimated. Printed errors are of images that the calibrator was not
/// fitted to.
#[derive(clap::Args)]
// Confidences are for all classes of the detections.
#[command(mut_arg("classes", |classes| classes.hide(true)))]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataArgs,

    #[command(flatten)]
    detections: DetectionsArgs,

    #[command(flatten)]
    calibrator: CalibratorArgs,

    /// Write the detections with their confidences; everything else in them stays as it is
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Replace the scores by the confidences, for tools that read scores only
    #[arg(long, requires = "out")]
    in_place_score: bool,

    /// Write the calibrator, a JSON file, for `complete --calibrator`
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,

    #[command(flatten)]
    hidden: HiddenArgs,

    #[command(flatten)]
    floor: ScoreFloorArgs,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    judging: JudgingArgs,
}

/// All that is said about the detections.
struct Calibrated {
    calibrator: Calibrator,
    near: CalibrationErrors,
    away: Option<CalibrationErrors>,
    completeness: Result<DatasetCompleteness, NoFit>,
    detections: usize,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    args.judging.check();
    let if_exists = args.output.if_exists();
    let detections_path = &args.detections.detections;
    let outputs: Vec<&Path> = args.out.iter().chain(&args.save).map(PathBuf::as_path).collect();
    let inputs = [&args.data.path, detections_path].into_iter().chain(&args.hidden.hidden);
    if_exists.check_all(&outputs, &inputs.map(PathBuf::as_path).collect::<Vec<_>>())?;

    let split = args.data.read()?;
    if_exists.check_all(&outputs, &[split.path()])?;
    note_problems(&split);
    let dataset = &split.dataset;
    let results = read_results(detections_path, dataset, &args.data.options)?;
    let hidden = args.hidden.read(dataset, false)?;

    let judged = judge(dataset, &best_first(&results), &args.judging.rule());
    let score_min = args.floor.score_min;
    let CalibratorArgs { method, per_class } = args.calibrator;
    let fitted = FoldedCalibrator::fit(&judged, FitOptions { kind: method.kind(), per_class, score_min })
        .map_err(|why| CannotCalibrate { path: detections_path.clone(), why })?;
    if let Err(why) = &fitted.folds {
        eprintln!(
            "note: no error after calibration, because a part of the images is too little to fit to: {why}"
        );
    }
    let calibrated = Calibrated {
        near: fitted.judged_errors(&judged, score_min),
        away: hidden
            .map(|hidden| fitted.candidate_errors(&judged, score_min, &hidden, args.judging.iou_high)),
        completeness: DatasetCompleteness::new(dataset, &judged, score_min),
        detections: results.entries().len(),
        calibrator: fitted.whole,
    };
    write(args, dataset, &results, &judged, &calibrated.calibrator)?;
    match args.output.json {
        true => print_json(args, dataset, &calibrated),
        false => print(args, dataset, &calibrated),
    }
}

fn write(
    args: &Args,
    dataset: &Dataset,
    results: &Results,
    judged: &[Vec<JudgedDetection>],
    calibrator: &Calibrator,
) -> Result<()> {
    let if_exists = args.output.if_exists();
    let mut confidences = vec![0.0; results.entries().len()];
    for ((entry, _), judged) in results.detections().iter().flatten().zip(judged.iter().flatten()) {
        confidences[*entry] = shortest(judged.confidence(calibrator).0);
    }
    let mut written = Vec::new();
    if let Some(path) = &args.out {
        let rewrite = |entry: usize| match args.in_place_score {
            // A confidence of another calibrator does not stay beside the new score.
            true => {
                let confidence = results.entries()[entry].confidence.map(|_| confidences[entry]);
                Rewrite { score: Some(confidences[entry]), confidence }
            }
            false => Rewrite { score: None, confidence: Some(confidences[entry]) },
        };
        written.push(NewFile::write(path, if_exists, |out| results.write(out, rewrite))?);
    }
    if let Some(path) = &args.save {
        let file = CalibratorFile::new(dataset, calibrator);
        written.push(NewFile::write(path, if_exists, |out| Ok(serde_json::to_writer(out, &file)?))?);
    }
    Ok(written.into_iter().try_for_each(NewFile::finish)?)
}

fn print_json(args: &Args, dataset: &Dataset, calibrated: &Calibrated) -> Result<()> {
    let Calibrated { calibrator, near, away, completeness, detections } = calibrated;
    let parameters = calibrator.pooled().parameters().into_iter();
    let parameters: Map<String, Value> =
        parameters.map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let mut result = json!({
        "method": args.calibrator.method.kind().name(),
        "per_class": args.calibrator.per_class,
        "parameters": parameters,
        "detections": detections,
        "judged": near.before.count(),
        "error_before": near.before.ece(),
        "error_after": near.ece_after(),
        "completeness": completeness_json(completeness.as_ref(), dataset),
        "out": args.out.as_deref().map(path_json),
        "saved": args.save.as_deref().map(path_json),
    });
    if let Some(errors) = away {
        result["candidates"] = json!({
            "number": errors.before.count(),
            "error_before": errors.before.ece(),
            "error_after": errors.ece_after(),
        });
    }
    Ok(writeln!(std::io::stdout().lock(), "{result}")?)
}

fn print(args: &Args, dataset: &Dataset, calibrated: &Calibrated) -> Result<()> {
    let Calibrated { calibrator, near, away, completeness, detections } = calibrated;
    let mut out = std::io::stdout().lock();
    let parameters = calibrator.pooled().parameters();
    let shown: Vec<String> = parameters.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
    let shown = if shown.is_empty() { String::new() } else { format!(" ({})", shown.join(", ")) };
    let own = match args.calibrator.per_class {
        true => format!(", {} classes with one of their own", calibrator.own_classes()),
        false => String::new(),
    };
    writeln!(out, "{}{shown}{own}\n", args.calibrator.method.kind().name())?;

    let mut table = Table::new(["calibration error of detections", "before", "after", "number"]);
    let mut row = |name: &str, errors: &CalibrationErrors| {
        let count = thousands(errors.before.count() as usize);
        table.row([name.into(), percent(errors.before.ece()), percent(errors.ece_after()), count]);
    };
    row("near an annotation", near);
    if let Some(errors) = away {
        row("candidates, by what was hidden", errors);
    }
    writeln!(out, "{table}")?;

    for line in completeness_sentences(completeness.as_ref(), dataset) {
        writeln!(out, "{line}")?;
    }
    if let Some(path) = &args.out {
        writeln!(out, "\n{}: {} detections", path.display(), thousands(*detections))?;
    }
    if let Some(path) = &args.save {
        writeln!(out, "{}: the calibrator", path.display())?;
    }
    Ok(())
}
