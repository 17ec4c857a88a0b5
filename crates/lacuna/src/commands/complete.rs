//! `lacuna complete`: adds the missing boxes to a data set.

use std::collections::HashSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use lacuna_boxes::Detection;
use lacuna_calib::{Confidence, NoFit};
use lacuna_data::convert::write_folder;
use lacuna_data::layout::{Format, Split};
use lacuna_data::number::shortest;
use lacuna_data::output::NewFile;
use lacuna_data::yolo::LeftOut;
use lacuna_data::{Dataset, coco, label_studio};
use lacuna_eval::Recovery;
use lacuna_gaps::{
    Acceptance, CalibratorFile, Candidate, Completion, DatasetCompleteness, FitOptions, FoldedCalibrator,
    JudgedDetection, candidates, candidates_with_confidences, completed, expected_precision, judge,
    recovery_by_class,
};
use lacuna_train::evaluate::map_classes;
use serde_json::{Map, Value, json};

use crate::args::data::DataArgs;
use crate::args::detections::{
    DetectionSource, DetectionSourceArgs, ModelDetections, detect_with_model, read_all_results,
};
use crate::args::judging::{CalibratorArgs, HiddenArgs, JudgingArgs, ScoreFloorArgs};
use crate::args::output::{ImageFilesArgs, OutputArgs};
use crate::diagnostics::{CannotCalibrate, usage};
use crate::interrupt;
use crate::render::completeness::{completeness_json, completeness_sentences};
use crate::render::notes::{note_left_out, note_problems};
use crate::render::number::{percent, thousands};
use crate::render::progress::Progress;
use crate::render::table::Table;
use crate::render::{class_keys, path_json};

/// Add the missing boxes, as far as a detector can tell
///
/// Given boxes stay as they are. Recovered boxes are marked in the output and have their raw `score` and their
/// `confidence`, the probability that they are right.
#[derive(clap::Args)]
#[command(mut_arg("classes", |classes| {
    classes.help("Look for these classes only, by name; given boxes of all classes stay")
}))]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataArgs,

    #[command(flatten)]
    source: DetectionSourceArgs,

    /// The completed data set: a .json file, or a folder for VOC and YOLO
    #[arg(long, value_name = "PATH")]
    out: PathBuf,

    /// The format of the output
    #[arg(long, default_value = "coco")]
    format: FormatArg,

    /// Add candidates with at least this confidence
    #[arg(long, value_name = "P", default_value_t = 0.7, conflicts_with = "precision")]
    confidence: f32,

    /// Add as many candidates as are expected to reach this precision together; with --per-class, in each class
    #[arg(long, value_name = "P")]
    precision: Option<f32>,

    #[command(flatten)]
    calibrator: CalibratorArgs,

    /// Use a calibrator that `lacuna calibrate --save` wrote instead of fitting one
    #[arg(long = "calibrator", value_name = "FILE", conflicts_with = "method")]
    calibrator_file: Option<PathBuf>,

    /// Use the confidences that the detections have instead of computing new ones
    #[arg(long, conflicts_with_all = ["method", "calibrator_file", "model"])]
    keep_confidences: bool,

    #[command(flatten)]
    hidden: HiddenArgs,

    /// Also write the recovered boxes alone, a COCO results file
    #[arg(long, value_name = "FILE")]
    recovered: Option<PathBuf>,

    #[command(flatten)]
    image_files: ImageFilesArgs,

    /// Label Studio: what comes before an image's file name in its URL [default: /data/local-files/?d=]
    #[arg(long, value_name = "URL")]
    image_url: Option<String>,

    /// Label Studio: also write the labeling configuration of the project
    #[arg(long, value_name = "FILE")]
    label_config: Option<PathBuf>,

    #[command(flatten)]
    floor: ScoreFloorArgs,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    judging: JudgingArgs,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum FormatArg {
    Coco,
    Voc,
    Yolo,
    /// Given boxes as annotations, recovered boxes as predictions to review
    LabelStudio,
}

/// The author of the predictions in Label Studio.
const MODEL_VERSION: &str = concat!("lacuna ", env!("CARGO_PKG_VERSION"));

/// Where a Label Studio that serves local files has them.
const LOCAL_FILES: &str = "/data/local-files/?d=";

/// The detections of each image, best first, and the confidences that a file has for all of them.
struct Detections {
    images: Vec<Vec<Detection>>,
    confidences: Option<Vec<Vec<f32>>>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    check(args)?;
    let (mut split, is_chosen) = args.data.read_whole()?;
    check_outputs(args, &[split.path()])?;
    note_problems(&split);
    let dataset = &split.dataset;
    let hidden = args.hidden.read(dataset, false)?;

    let detections = read_detections(args, &split)?;
    let judged = judge(dataset, &detections.images, &args.judging.rule());
    let (mut candidates, confidences_by) =
        find_candidates(args, dataset, &judged, detections.confidences.as_deref())?;
    candidates.retain(|candidate| is_chosen[candidate.detection.class]);
    let completion = Completion::new(candidates, acceptance(args), dataset.categories().len());
    let completeness = DatasetCompleteness::new(dataset, &judged, args.floor.score_min);

    let whole = completed(dataset, &completion.recovered);
    let given = std::mem::replace(&mut split.dataset, whole);
    interrupt::check()?;
    write(args, &split, &completion.recovered)?;
    let recovery =
        hidden.map(|hidden| recovery_by_class(&hidden, &completion.recovered, args.judging.iou_high));
    let result = Completed { given: &given, completion, confidences_by, recovery, completeness };
    match args.output.json {
        true => result.print_json(args),
        false => result.print(args),
    }
}

fn check(args: &Args) -> Result<()> {
    args.judging.check();
    let is_share = |value: f32| (0.0..=1.0).contains(&value);
    if !is_share(args.confidence) || !args.precision.is_none_or(is_share) {
        usage("`--confidence` and `--precision` must be from 0 to 1");
    }
    let is_folder = matches!(args.format, FormatArg::Voc | FormatArg::Yolo);
    if is_folder && args.out.extension().is_some_and(|extension| extension == "json") {
        usage("VOC and YOLO data sets are folders: `--out` must not be a .json file");
    }
    if !is_folder && args.image_files.is_given() {
        usage("`--link` and `--no-images` need `--format voc` or `--format yolo`");
    }
    let for_label_studio = args.label_config.is_some() || args.image_url.is_some();
    if args.format != FormatArg::LabelStudio && for_label_studio {
        usage("`--label-config` and `--image-url` need `--format label-studio`");
    }
    let files = [args.data.path.as_path(), args.source.source().path()].into_iter();
    let options = args.hidden.hidden.iter().chain(&args.calibrator_file).map(PathBuf::as_path);
    check_outputs(args, &files.chain(options).collect::<Vec<_>>())
}

fn check_outputs(args: &Args, inputs: &[&Path]) -> Result<()> {
    let outputs = [&args.out].into_iter().chain(&args.recovered).chain(&args.label_config);
    let outputs: Vec<&Path> = outputs.map(PathBuf::as_path).collect();
    Ok(args.output.if_exists().check_all(&outputs, inputs)?)
}

fn acceptance(args: &Args) -> Acceptance {
    match args.precision.map(f64::from) {
        None => Acceptance::Confidence(Confidence(args.confidence)),
        Some(precision) if args.calibrator.per_class => Acceptance::PrecisionPerClass(precision),
        Some(precision) => Acceptance::Precision(precision),
    }
}

fn read_detections(args: &Args, split: &Split) -> Result<Detections> {
    let (dataset, options) = (&split.dataset, &args.data.options);
    let path = match args.source.source() {
        DetectionSource::Model(path) => {
            let ModelDetections { detections, classes, .. } = detect_with_model(path, split, options)?;
            return Ok(Detections { images: map_classes(&detections, &classes), confidences: None });
        }
        DetectionSource::File(path) => path,
    };
    let results = read_all_results(path, dataset)?;
    // No box is added twice.
    let repeated: HashSet<usize> = results.repeated().into_iter().map(|(_, again)| again).collect();
    let mut images = results.detections();
    images.iter_mut().for_each(|image| image.retain(|(entry, _)| !repeated.contains(entry)));
    let confidence = |(entry, _): &(usize, Detection)| results.entries()[*entry].confidence.map(|c| c as f32);
    let confidences: Option<Vec<Vec<f32>>> =
        images.iter().map(|image| image.iter().map(confidence).collect()).collect();
    let confidences = confidences.filter(|_| !results.entries().is_empty());
    let without_entry =
        |image: Vec<(usize, Detection)>| image.into_iter().map(|(_, detection)| detection).collect();
    Ok(Detections { images: images.into_iter().map(without_entry).collect(), confidences })
}

/// The candidates with their confidences, and what these were computed by.
fn find_candidates(
    args: &Args,
    dataset: &Dataset,
    judged: &[Vec<JudgedDetection>],
    confidences: Option<&[Vec<f32>]>,
) -> Result<(Vec<Candidate>, String)> {
    let score_min = args.floor.score_min;
    if args.keep_confidences {
        let Some(confidences) = confidences else {
            usage("not all detections have a `confidence`; `lacuna calibrate` adds it")
        };
        let all = candidates_with_confidences(judged, score_min, confidences);
        return Ok((all, "the detections' own".to_owned()));
    }
    if let Some(path) = &args.calibrator_file {
        let calibrator = CalibratorFile::read(path, dataset)?;
        let all = candidates(judged, score_min, |judged| judged.confidence(&calibrator));
        return Ok((all, path.display().to_string()));
    }
    let CalibratorArgs { method, per_class } = args.calibrator;
    let fitted = FoldedCalibrator::fit(judged, FitOptions { kind: method.kind(), per_class, score_min })
        .map_err(|why| CannotCalibrate { path: args.source.source().path().to_owned(), why })?;
    let all = candidates(judged, score_min, |judged| judged.confidence(fitted.of_image(judged.image)));
    Ok((all, method.kind().name().to_owned()))
}

fn write(args: &Args, split: &Split, recovered: &[Candidate]) -> Result<()> {
    let if_exists = args.output.if_exists();
    let dataset = &split.dataset;
    let mut files = Vec::new();
    if let Some(path) = &args.recovered {
        let entries: Vec<Value> =
            recovered.iter().map(|candidate| results_entry(dataset, candidate)).collect();
        files.push(NewFile::write(path, if_exists, |out| Ok(serde_json::to_writer(out, &entries)?))?);
    }
    match args.format {
        FormatArg::Coco => files.push(NewFile::write(&args.out, if_exists, |out| coco::write(dataset, out))?),
        FormatArg::LabelStudio => {
            let mut left_out = LeftOut::default();
            files.push(NewFile::write(&args.out, if_exists, |out| {
                let url = args.image_url.as_deref().unwrap_or(LOCAL_FILES);
                left_out = label_studio::write(dataset, url, MODEL_VERSION, out)?;
                Ok(())
            })?);
            if let Some(path) = &args.label_config {
                let config = label_studio::labeling_config(dataset.categories());
                files.push(NewFile::write(path, if_exists, |out| out.write_all(config.as_bytes()))?);
            }
            note_left_out("Label Studio", left_out);
        }
        FormatArg::Voc => write_with_images(args, split, Format::Voc)?,
        FormatArg::Yolo => write_with_images(args, split, Format::Yolo)?,
    }
    Ok(files.into_iter().try_for_each(NewFile::finish)?)
}

fn write_with_images(args: &Args, split: &Split, format: Format) -> Result<()> {
    let progress = Progress::new("writing images", split.dataset.images().len());
    let splits = std::slice::from_ref(split);
    let (image_files, if_exists) = (args.image_files.image_files(), args.output.if_exists());
    let written = write_folder(splits, format, image_files, &args.out, if_exists, &|| progress.done())?;
    drop(progress);
    note_left_out("YOLO", LeftOut { crowds: written.crowds_left_out, outside: written.boxes_left_out });
    Ok(())
}

/// A recovered box as an entry of a COCO results file.
fn results_entry(dataset: &Dataset, &Candidate { image, detection, confidence }: &Candidate) -> Value {
    let image = &dataset.images()[image];
    let bbox = detection.bbox.clip(image.width as f32, image.height as f32);
    let bbox = [bbox.x1, bbox.y1, bbox.width(), bbox.height()].map(shortest);
    json!({
        "image_id": image.id,
        "category_id": dataset.categories()[detection.class].id,
        "bbox": bbox,
        "score": shortest(detection.score.0),
        "confidence": shortest(confidence.0),
    })
}

/// All that is said about the result.
struct Completed<'a> {
    given: &'a Dataset,
    completion: Completion,
    confidences_by: String,
    /// Of each class, by what was hidden.
    recovery: Option<Vec<Recovery>>,
    completeness: Result<DatasetCompleteness, NoFit>,
}

impl Completed<'_> {
    /// The threshold, where all classes have the same.
    fn common_threshold(&self, args: &Args) -> Option<Confidence> {
        match acceptance(args) {
            Acceptance::PrecisionPerClass(_) => None,
            Acceptance::Confidence(_) | Acceptance::Precision(_) => {
                self.completion.thresholds.first().copied().flatten()
            }
        }
    }

    fn print_json(&self, args: &Args) -> Result<()> {
        let Self { given, completion, confidences_by, recovery, completeness } = self;
        let class = |(class, key): (usize, String)| {
            let mut value = json!({
                "recovered": completion.of_class(class).count(),
                "threshold": completion.thresholds[class].map(|threshold| shortest(threshold.0)),
                "expected_precision": expected_precision(completion.of_class(class)),
            });
            if let Some(recovery) = recovery {
                value["found_precision"] = json!(recovery[class].precision());
                value["found_recall"] = json!(recovery[class].recall());
            }
            (key, value)
        };
        let classes: Map<String, Value> = class_keys(given).into_iter().enumerate().map(class).collect();
        let mut result = json!({
            "out": path_json(&args.out),
            "given": given.annotations().len(),
            "recovered": completion.recovered.len(),
            "confidences": confidences_by,
            "threshold": self.common_threshold(args).map(|threshold| shortest(threshold.0)),
            "expected_precision": expected_precision(&completion.recovered),
            "completeness": completeness.as_ref().ok().map(|estimate| completeness_json(Ok(estimate), given)),
            "classes": classes,
        });
        if let Some(recovery) = recovery {
            let all: Recovery = recovery.iter().copied().sum();
            result["found_precision"] = json!(all.precision());
            result["found_recall"] = json!(all.recall());
            result["hidden"] = json!(all.hidden);
        }
        Ok(writeln!(std::io::stdout().lock(), "{result}")?)
    }

    fn print(&self, args: &Args) -> Result<()> {
        let Self { given, completion, confidences_by, recovery, completeness } = self;
        let mut heading = vec!["class", "given", "recovered", "threshold", "expected precision"];
        if recovery.is_some() {
            heading.extend(["found precision", "found recall"]);
        }
        let mut table = Table::with_heading(&heading);
        for (class, category) in given.categories().iter().enumerate() {
            if completion.of_class(class).next().is_some() || given.categories().len() <= MANY_CLASSES {
                let boxes =
                    given.annotations().iter().filter(|annotation| annotation.category == class).count();
                let recovered: Vec<&Candidate> = completion.of_class(class).collect();
                let recovery = recovery.as_ref().map(|recovery| recovery[class]);
                table.cells(row(&category.name, boxes, &recovered, completion.thresholds[class], recovery));
            }
        }
        let recovered: Vec<&Candidate> = completion.recovered.iter().collect();
        let all = recovery.as_ref().map(|recovery| recovery.iter().copied().sum());
        table.cells(row("all", given.annotations().len(), &recovered, self.common_threshold(args), all));

        let mut out = std::io::stdout().lock();
        writeln!(out, "{table}")?;
        if recovered.is_empty() {
            writeln!(out, "no candidate is sure enough to be added")?;
        }
        if let Ok(estimate) = completeness {
            completeness_sentences(Ok(estimate), given)
                .iter()
                .try_for_each(|line| writeln!(out, "{line}"))?;
        }
        writeln!(
            out,
            "{}: {} annotations, {} of them recovered (confidences: {confidences_by})",
            args.out.display(),
            thousands(given.annotations().len() + recovered.len()),
            thousands(recovered.len())
        )?;
        Ok(())
    }
}

/// With more classes than this, those without a recovered box are left out of the table.
const MANY_CLASSES: usize = 20;

fn row(
    name: &str,
    given: usize,
    recovered: &[&Candidate],
    threshold: Option<Confidence>,
    recovery: Option<Recovery>,
) -> Vec<String> {
    let threshold = threshold.map_or("-".to_owned(), |threshold| format!("{:.3}", threshold.0));
    let expected = percent(expected_precision(recovered.iter().copied()));
    let mut cells = vec![name.to_owned(), thousands(given), thousands(recovered.len()), threshold, expected];
    if let Some(recovery) = recovery {
        cells.extend([percent(recovery.precision()), percent(recovery.recall())]);
    }
    cells
}
