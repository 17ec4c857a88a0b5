use std::collections::HashSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use lacuna_boxes::{Detection, Score};
use lacuna_calib::Confidence;
use lacuna_data::convert::{ImageFiles, write_folder};
use lacuna_data::layout::{Format, Split};
use lacuna_data::number::shortest;
use lacuna_data::output::{IfExists, NewFile};
use lacuna_data::yolo::LeftOut;
use lacuna_data::{Dataset, coco, label_studio};
use lacuna_eval::{ImageDetection, Match, Recovery, match_detections};
use lacuna_gaps::read_hidden;
use lacuna_gaps::{
    Candidate, FoldedCalibrator, JudgedDetection, candidates, completed, expected_precision, judge, samples,
    threshold_for,
};
use lacuna_train::evaluate::map_classes;
use serde_json::{Map, Value, json};

use super::looking::{Looked, look};
use super::{TooLittle, class_keys, read_results, shown, usage};
use crate::data_args::{AnnotationsArgs, note_problems};
use crate::gaps::Gaps;
use crate::interrupt;
use crate::judging::{FloorArgs, JudgingArgs, MethodArg};
use crate::progress::Progress;
use crate::table::{Table, thousands};
use crate::training::percent;
use lacuna_gaps::CalibratorFile;

/// Add the boxes that are missing, as far as a detector can tell
///
/// Given boxes stay as they are. Recovery ones are marked `"pseudo": true` and have their raw `score` and their
/// `confidence`, the probability that they are right.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    annotations: AnnotationsArgs,

    #[command(flatten)]
    found_by: FoundBy,

    /// The completed data set: a .json file, or a folder for VOC and YOLO
    #[arg(long, value_name = "PATH")]
    out: PathBuf,

    /// The format of the output
    #[arg(long, default_value = "coco")]
    format: FormatArg,

    /// Add boxes with a confidence of at least this
    #[arg(long, value_name = "P", default_value_t = 0.7, conflicts_with = "precision")]
    confidence: f32,

    /// Add as many boxes as are expected to reach this precision together
    #[arg(long, value_name = "P")]
    precision: Option<f32>,

    /// A calibrator and, with --precision, a threshold for each class
    #[arg(long)]
    per_class: bool,

    /// What makes confidences of scores, fitted to these very detections and annotations
    #[arg(long, default_value = "completeness")]
    method: MethodArg,

    /// Take a calibrator that `lacuna calibrate --save` wrote, in place of fitting one
    #[arg(long, value_name = "FILE", conflicts_with = "method")]
    calibrator: Option<PathBuf>,

    /// Take the confidences that the detections have, in place of making new ones
    #[arg(long, conflicts_with_all = ["method", "calibrator", "model"])]
    keep_confidences: bool,

    /// What a simulated split took away: how much of it was found is printed
    #[arg(long, value_name = "COCO_JSON")]
    hidden: Option<PathBuf>,

    /// The added boxes alone, a COCO results file
    #[arg(long, value_name = "FILE")]
    added: Option<PathBuf>,

    /// VOC and YOLO: link the images to the originals instead of copying them, where the file system can
    #[arg(long, conflicts_with = "no_images")]
    link: bool,

    /// VOC and YOLO: write annotations only
    #[arg(long)]
    no_images: bool,

    /// Label Studio: what comes before an image's file name in its URL [default: /data/local-files/?d=]
    #[arg(long, value_name = "URL")]
    image_url: Option<String>,

    /// Label Studio: also write the labeling configuration of the project
    #[arg(long, value_name = "FILE")]
    label_config: Option<PathBuf>,

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

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct FoundBy {
    /// A model that looks for them: a folder that `lacuna import` or `lacuna train` made
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,

    /// Detections of any framework, a COCO results file
    #[arg(long, value_name = "FILE")]
    detections: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum FormatArg {
    Coco,
    Voc,
    Yolo,
    /// Given boxes as annotations, recovered ones as predictions to review
    LabelStudio,
}

/// Who made the predictions that Label Studio is given.
const MODEL_VERSION: &str = concat!("lacuna ", env!("CARGO_PKG_VERSION"));

/// Where a Label Studio that serves local files has them.
const LOCAL_FILES: &str = "/data/local-files/?d=";

/// What was found in each image, the best first, with the confidences that a file had for all of it.
struct Detections {
    of_images: Vec<Vec<Detection>>,
    confidences: Option<Vec<Vec<f32>>>,
}

/// What is added.
struct Added {
    missing: Vec<Candidate>,
    /// Of each class.
    thresholds: Vec<Option<Confidence>>,
    /// How the confidences were made.
    by: String,
}

pub fn run(args: &Args) -> Result<()> {
    check(args)?;
    let mut split = args.annotations.read()?;
    check_outputs(args, &[split.path()])?;
    note_problems(&split);
    let hidden = match &args.hidden {
        Some(path) => Some(read_hidden(path, &split.dataset, !args.annotations.options.classes.is_empty())?),
        None => None,
    };
    let detections = detections(args, &split)?;
    let seen = judge(&split.dataset, &detections.of_images, &args.judging.overlap());
    let added = added(args, &split.dataset, &seen, detections.confidences.as_deref())?;
    let gaps = Gaps::estimate(&split.dataset, &seen, args.floor.score_min);

    let whole = completed(&split.dataset, &added.missing);
    let given = std::mem::replace(&mut split.dataset, whole);
    interrupt::check()?;
    write(args, &split, &added.missing)?;
    let found = hidden.as_ref().map(|hidden| found(args, hidden, &added.missing));
    print(args, &given, &added, found, gaps.as_ref().ok())
}

fn check(args: &Args) -> Result<()> {
    args.judging.check();
    let share = |value: f32| (0.0..=1.0).contains(&value);
    if !share(args.confidence) || !args.precision.is_none_or(share) {
        usage("`--confidence` and `--precision` go from 0 to 1");
    }
    let is_folder = matches!(args.format, FormatArg::Voc | FormatArg::Yolo);
    if is_folder && args.out.extension().is_some_and(|extension| extension == "json") {
        usage("VOC and YOLO are folders, not a .json file");
    }
    if !is_folder && (args.link || args.no_images) {
        usage("`--link` and `--no-images` go with VOC and YOLO");
    }
    let of_label_studio = args.label_config.is_some() || args.image_url.is_some();
    if args.format != FormatArg::LabelStudio && of_label_studio {
        usage("`--label-config` and `--image-url` go with Label Studio");
    }
    let FoundBy { model, detections } = &args.found_by;
    let files = [&args.annotations.path].into_iter().chain(detections);
    let inputs = files.chain(model).chain(&args.hidden).chain(&args.calibrator);
    check_outputs(args, &inputs.map(PathBuf::as_path).collect::<Vec<_>>())
}

fn check_outputs(args: &Args, inputs: &[&Path]) -> Result<()> {
    let outputs = [&args.out].into_iter().chain(&args.added).chain(&args.label_config);
    let outputs: Vec<&Path> = outputs.map(PathBuf::as_path).collect();
    Ok(IfExists::forced(args.force).check_all(&outputs, inputs)?)
}

fn detections(args: &Args, split: &Split) -> Result<Detections> {
    let dataset = &split.dataset;
    if let Some(path) = &args.found_by.detections {
        let results = read_results(path, dataset, &args.annotations.options)?;
        // No box is added twice.
        let repeated: HashSet<usize> = results.duplicates().into_iter().map(|(_, again)| again).collect();
        let mut lists = results.detections();
        lists.iter_mut().for_each(|image| image.retain(|(entry, _)| !repeated.contains(entry)));
        let confidence =
            |(entry, _): &(usize, Detection)| results.entries()[*entry].confidence.map(|c| c as f32);
        let confidences: Option<Vec<Vec<f32>>> =
            lists.iter().map(|image| image.iter().map(confidence).collect()).collect();
        let confidences = confidences.filter(|_| !results.entries().is_empty());
        let bare =
            |image: Vec<(usize, Detection)>| image.into_iter().map(|(_, detection)| detection).collect();
        return Ok(Detections { of_images: lists.into_iter().map(bare).collect(), confidences });
    }
    let path = args.found_by.model.as_ref().expect("the arguments have one or the other");
    let Looked { detections, classes, .. } = look(path, split, &args.annotations.options)?;
    Ok(Detections { of_images: map_classes(&detections, &classes), confidences: None })
}

/// Chooses what is added.
fn added(
    args: &Args,
    dataset: &Dataset,
    seen: &[Vec<JudgedDetection>],
    confidences: Option<&[Vec<f32>]>,
) -> Result<Added> {
    let score_min = args.floor.score_min;
    let (all, by) = match (confidences, &args.calibrator) {
        (None, _) if args.keep_confidences => {
            usage("not all detections have a `confidence`; `lacuna calibrate` gives them one")
        }
        (Some(confidences), _) if args.keep_confidences => {
            let with_confidence = seen.iter().flatten().zip(confidences.iter().flatten());
            let candidates = with_confidence
                .filter(|(seen, _)| seen.is_candidate() && seen.detection.score.0 > score_min)
                .map(|(seen, confidence)| Candidate {
                    image: seen.image,
                    detection: seen.detection,
                    confidence: Confidence(*confidence),
                });
            (candidates.collect(), "the detections' own".to_owned())
        }
        (_, Some(path)) => {
            let calibrator = CalibratorFile::read(path, dataset)?;
            (candidates(seen, score_min, |_| &calibrator), path.display().to_string())
        }
        (_, None) => {
            let kind = args.method.kind();
            let path = args.found_by.detections.as_ref().or(args.found_by.model.as_ref());
            let fitted = FoldedCalibrator::new(kind, args.per_class, &samples(seen, score_min))
                .map_err(|why| TooLittle { path: path.cloned().unwrap_or_default(), why })?;
            (candidates(seen, score_min, |image| fitted.of_image(image)), kind.name().to_owned())
        }
    };
    let all: Vec<Candidate> = all;
    let n_classes = dataset.categories().len();
    let thresholds: Vec<Option<Confidence>> = match args.precision {
        None => vec![Some(Confidence(args.confidence)); n_classes],
        Some(precision) if args.per_class => {
            let of_class = |class: usize| {
                let of_class = all.iter().filter(|missing| missing.detection.class == class).copied();
                threshold_for(precision.into(), &of_class.collect::<Vec<_>>())
            };
            (0..n_classes).map(of_class).collect()
        }
        Some(precision) => vec![threshold_for(precision.into(), &all); n_classes],
    };
    let accepted = |missing: &Candidate| {
        thresholds[missing.detection.class].is_some_and(|threshold| missing.confidence >= threshold)
    };
    let missing = all.into_iter().filter(accepted).collect();
    Ok(Added { missing, thresholds, by })
}

fn write(args: &Args, split: &Split, missing: &[Candidate]) -> Result<()> {
    let if_exists = IfExists::forced(args.force);
    let dataset = &split.dataset;
    let mut files = Vec::new();
    if let Some(path) = &args.added {
        let entries = missing.iter().map(|Candidate { image, detection, confidence }| {
            let size = &dataset.images()[*image];
            let bbox = detection.bbox.clip(size.width as f32, size.height as f32);
            let bbox = [bbox.x1, bbox.y1, bbox.width(), bbox.height()].map(shortest);
            json!({
                "image_id": dataset.images()[*image].id,
                "category_id": dataset.categories()[detection.class].id,
                "bbox": bbox,
                "score": shortest(detection.score.0),
                "confidence": shortest(confidence.0),
            })
        });
        let entries: Vec<Value> = entries.collect();
        files.push(NewFile::write(path, if_exists, |out| Ok(serde_json::to_writer(out, &entries)?))?);
    }
    let format = match args.format {
        FormatArg::Coco => {
            files.push(NewFile::write(&args.out, if_exists, |out| coco::write(dataset, out))?);
            None
        }
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
            None
        }
        FormatArg::Voc => Some(Format::Voc),
        FormatArg::Yolo => Some(Format::Yolo),
    };
    if let Some(format) = format {
        let images = match (args.no_images, args.link) {
            (true, _) => ImageFiles::Leave,
            (false, true) => ImageFiles::HardLink,
            (false, false) => ImageFiles::Copy,
        };
        let progress = Progress::new("writing images", dataset.images().len());
        let splits = std::slice::from_ref(split);
        let written = write_folder(splits, format, images, &args.out, if_exists, &|| progress.done())?;
        drop(progress);
        note_left_out("YOLO", LeftOut { crowds: written.crowds_left_out, outside: written.boxes_left_out });
    }
    Ok(files.into_iter().try_for_each(NewFile::finish)?)
}

fn note_left_out(format: &str, LeftOut { crowds, outside }: LeftOut) {
    if crowds > 0 {
        eprintln!("note: crowd regions left out, because {format} has none: {}", thousands(crowds));
    }
    if outside > 0 {
        eprintln!("note: boxes left out, because they lie outside the image: {}", thousands(outside));
    }
}

/// What of the hidden was found, of all classes and of each, at the IoU that the confidences are about. Each box is found
/// once: a double, which a confidence takes for right, is wrong here.
fn found(args: &Args, hidden: &Dataset, missing: &[Candidate]) -> (Recovery, Vec<Recovery>) {
    let proposals = missing.iter().map(|missing| {
        let Candidate { image, detection, confidence } = *missing;
        ImageDetection::from_detection(image, Detection { score: Score(confidence.0), ..detection })
    });
    let proposals: Vec<ImageDetection> = proposals.collect();
    let mut classes = vec![Recovery::default(); hidden.categories().len()];
    let matches = match_detections(hidden, &proposals, args.judging.iou_high.into());
    for (proposal, matched) in proposals.iter().zip(matches) {
        let of_class = &mut classes[proposal.class];
        match matched {
            Match::Matched(_) => {
                of_class.right += 1;
                of_class.proposed += 1;
            }
            Match::Wrong => of_class.proposed += 1,
            Match::Ignored => {}
        }
    }
    for annotation in hidden.annotations().iter().filter(|annotation| !annotation.crowd) {
        classes[annotation.category].hidden += 1;
    }
    (classes.iter().copied().sum(), classes)
}

fn print(
    args: &Args,
    given: &Dataset,
    added: &Added,
    found: Option<(Recovery, Vec<Recovery>)>,
    gaps: Option<&Gaps>,
) -> Result<()> {
    let Added { missing, thresholds, by } = added;
    let of_class = |class: usize| missing.iter().filter(move |missing| missing.detection.class == class);
    let one_threshold = (!(args.per_class && args.precision.is_some())).then(|| thresholds[0]);
    let mut out = std::io::stdout().lock();
    if args.json {
        let class = |(class, key): (usize, String)| {
            let mut value = json!({
                "added": of_class(class).count(),
                "threshold": thresholds[class].map(|threshold| shortest(threshold.0)),
                "expected_precision": expected_precision(of_class(class)),
            });
            if let Some((_, classes)) = &found {
                value["found_precision"] = json!(classes[class].precision());
                value["found_recall"] = json!(classes[class].recall());
            }
            (key, value)
        };
        let classes: Map<String, Value> = class_keys(given).into_iter().enumerate().map(class).collect();
        let mut result = json!({
            "out": shown(&args.out),
            "given": given.annotations().len(),
            "added": missing.len(),
            "confidences": by,
            "threshold": one_threshold.flatten().map(|threshold| shortest(threshold.0)),
            "expected_precision": expected_precision(missing),
            "completeness": gaps.map(|gaps| gaps.json(given)),
            "classes": classes,
        });
        if let Some((all, _)) = &found {
            result["found_precision"] = json!(all.precision());
            result["found_recall"] = json!(all.recall());
            result["hidden"] = json!(all.hidden);
        }
        writeln!(out, "{result}")?;
        return Ok(());
    }
    let mut heading = vec!["class", "given", "added", "threshold", "expected precision"];
    if found.is_some() {
        heading.extend(["found precision", "found recall"]);
    }
    let mut table = Table::with_heading(&heading);
    let mut row = |name: &str, class: Option<usize>, threshold: Option<Confidence>| {
        let of = |candidate: usize| class.is_none_or(|class| candidate == class);
        let given = given.annotations().iter().filter(|annotation| of(annotation.category)).count();
        let added: Vec<Candidate> =
            missing.iter().filter(|missing| of(missing.detection.class)).copied().collect();
        let threshold = threshold.map_or("-".to_owned(), |threshold| format!("{:.3}", threshold.0));
        let mut cells = vec![name.to_owned(), thousands(given), thousands(added.len()), threshold];
        cells.push(percent(expected_precision(&added)));
        if let Some((all, classes)) = &found {
            let recovered = class.map_or(*all, |class| classes[class]);
            cells.extend([percent(recovered.precision()), percent(recovered.recall())]);
        }
        table.cells(cells);
    };
    for (class, category) in given.categories().iter().enumerate() {
        if of_class(class).next().is_some() || given.categories().len() <= 20 {
            row(&category.name, Some(class), thresholds[class]);
        }
    }
    row("all", None, one_threshold.flatten());
    writeln!(out, "{table}")?;
    if missing.is_empty() {
        writeln!(out, "nothing is sure enough to be added")?;
    }
    gaps.into_iter().flat_map(|gaps| gaps.sentences(given)).try_for_each(|line| writeln!(out, "{line}"))?;
    let (total, path) = (thousands(given.annotations().len() + missing.len()), args.out.display());
    writeln!(
        out,
        "{path}: {total} annotations, {} of them added (confidences: {by})",
        thousands(missing.len())
    )?;
    Ok(())
}
