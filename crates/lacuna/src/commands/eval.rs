use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use lacuna_boxes::{Detection, Score};
use lacuna_calib::Proximity;
use lacuna_data::layout::Split;
use lacuna_data::number::shortest;
use lacuna_data::output::{IfExists, write_file};
use lacuna_data::results::Results;
use lacuna_data::{Annotation, Builder, Dataset};
use lacuna_eval::{
    AveragePrecision, AveragePrecisionAt, CalibrationError, ImageDetection, RecoveryAbove, average_precision,
    average_precision_at, outcomes, recovered_above,
};
use lacuna_gaps::judge;
use lacuna_gaps::read_hidden;
use lacuna_train::evaluate::map_classes;
use serde_json::{Map, Value, json};

use super::looking::{Looked, look};
use super::{class_keys, read_results, shown, usage};
use crate::data_args::{AnnotationsArgs, note_problems};
use crate::interrupt;
use crate::judging::{JudgingArgs, score};
use crate::table::{Table, thousands};
use crate::training::percent;

/// Judge detections of any framework, or a model: COCO's average precision and calibration errors
///
/// Average precision is pycocotools', to the last digit. Calibration errors compare each detection's confidence
/// with what it is: right if it has an object of its class for itself at an IoU of at least --iou, the surest
/// choosing first; detections in crowd regions are left out.
///
/// With --hidden, the annotations are sparse and both together are the truth; then the detections away from all
/// given annotations are also judged as proposals for what was hidden.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    judge: Judge,

    #[command(flatten)]
    annotations: AnnotationsArgs,

    /// What a simulated split took away from the annotations
    #[arg(long, value_name = "COCO_JSON")]
    hidden: Option<PathBuf>,

    /// The IoU from which on a detection is right; the average precision at it is printed, too
    #[arg(long, value_name = "IOU", default_value_t = 0.5)]
    iou: f64,

    /// Into how many bins of equal width confidences are put
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    bins: u32,

    /// What is called confidence [default: `confidence` if all detections have one, else `score`]
    #[arg(long)]
    field: Option<FieldArg>,

    /// A reliability diagram with a histogram of confidences: a .svg or .png file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Detections with a raw score below this have no part in calibration errors and proposals
    #[arg(long, value_name = "SCORE", default_value = "0", value_parser = score)]
    score_min: f32,

    /// Replace a plot that exists
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
struct Judge {
    /// A model to test: a folder that `lacuna import` or `lacuna train` made; its classes are found by their
    /// names
    model: Option<PathBuf>,

    /// Detections to judge, a COCO results file
    #[arg(long, value_name = "FILE")]
    detections: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum FieldArg {
    Score,
    Confidence,
}

impl FieldArg {
    fn name(self) -> &'static str {
        match self {
            Self::Score => "score",
            Self::Confidence => "confidence",
        }
    }
}

/// Detections by their raw scores, and what each is called sure by.
struct Judged {
    found: Vec<ImageDetection>,
    /// One for each; `None` when they have none.
    confidences: Option<Vec<f64>>,
}

/// The thresholds of proposals: 0.05, 0.1, …, 0.95.
const THRESHOLDS: std::ops::RangeInclusive<u32> = 1..=19;

/// All that is said about the detections.
struct Evaluation {
    ap: AveragePrecision,
    at_iou: AveragePrecisionAt,
    field: FieldArg,
    calibration: Option<CalibrationError>,
    per_class: Vec<Option<CalibrationError>>,
    proposals: Option<Vec<RecoveryAbove>>,
}

pub fn run(args: &Args) -> Result<()> {
    args.judging.check();
    if !(args.iou > 0.0 && args.iou <= 1.0) {
        usage("`--iou` is above 0, and 1 at most");
    }
    let plot = args.plot.as_deref().map(|path| (path, PlotFormat::of(path)));
    if let Some((path, _)) = plot {
        let files = [&args.annotations.path].into_iter().chain(&args.judge.detections).chain(&args.hidden);
        let files: Vec<&Path> = files.map(PathBuf::as_path).collect();
        IfExists::forced(args.force).check_all(&[path], &files)?;
    }
    let split = args.annotations.read()?;
    note_problems(&split);
    let given = &split.dataset;
    let some_classes = !args.annotations.options.classes.is_empty();
    let hidden = args.hidden.as_deref().map(|path| read_hidden(path, given, some_classes)).transpose()?;
    let union = hidden.as_ref().map(|hidden| union(given, hidden));
    let truth = union.as_ref().unwrap_or(given);
    let judged = match &args.judge.detections {
        Some(path) => of_file(&read_results(path, given, &args.annotations.options)?),
        None => of_model(args, &split)?,
    };
    let evaluation = evaluate(args, given, truth, hidden.as_ref(), &judged);
    interrupt::check()?;
    if let Some((path, format)) = plot {
        let figure = reliability_figure(&evaluation);
        write_file(path, IfExists::forced(args.force), |out| match format {
            PlotFormat::Svg => out.write_all(figure.to_svg().as_bytes()),
            PlotFormat::Png => figure.to_image(2).write_png(out),
        })?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", evaluation.json(args, truth))?;
        return Ok(());
    }
    evaluation.print(args, truth, &mut out)
}

#[derive(Clone, Copy)]
enum PlotFormat {
    Svg,
    Png,
}

impl PlotFormat {
    fn of(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => Self::Svg,
            Some("png") => Self::Png,
            _ => usage("`--plot` names a .svg or a .png file"),
        }
    }
}

fn of_file(results: &Results) -> Judged {
    let entries = results.entries();
    let found = entries.iter().map(|entry| ImageDetection {
        image: entry.image,
        class: entry.class,
        bbox: entry.bbox,
        score: entry.score,
    });
    let confidences = entries.iter().map(|entry| entry.confidence).collect::<Option<Vec<f64>>>();
    Judged { found: found.collect(), confidences: confidences.filter(|all| !all.is_empty()) }
}

fn of_model(args: &Args, split: &Split) -> Result<Judged> {
    let path = args.judge.model.as_ref().expect("the arguments have one or the other");
    let Looked { model, detections, classes } = look(path, split, &args.annotations.options)?;
    let confidences = model.calibrator.as_ref().map(|calibrator| {
        let known = detections.iter().flatten().filter(|found| classes[found.class].is_some());
        known.map(|d| calibrator.confidence(d.class, d.score, Proximity::Unknown).0.into()).collect()
    });
    let named = map_classes(&detections, &classes);
    let images = named.iter().enumerate();
    let found = images
        .flat_map(|(image, found)| found.iter().map(move |&d| ImageDetection::from_detection(image, d)));
    Ok(Judged { found: found.collect(), confidences })
}

/// What is given and what was hidden.
fn union(given: &Dataset, hidden: &Dataset) -> Dataset {
    let mut builder = Builder::extending(given);
    for annotation in hidden.annotations() {
        let Annotation { image, category, bbox, area, crowd, .. } = *annotation;
        builder.annotation_of_area(image, category, (bbox, area), crowd, ());
    }
    builder.finish()
}

fn evaluate(
    args: &Args,
    given: &Dataset,
    truth: &Dataset,
    hidden: Option<&Dataset>,
    judged: &Judged,
) -> Evaluation {
    let Judged { found, confidences } = judged;
    let field = match (args.field, confidences) {
        (Some(FieldArg::Confidence), None) => {
            usage("not all detections have a `confidence`; `lacuna calibrate` gives them one")
        }
        (Some(field), _) => field,
        (None, Some(_)) => FieldArg::Confidence,
        (None, None) => FieldArg::Score,
    };
    let sure: Vec<ImageDetection> = match (field, confidences) {
        (FieldArg::Confidence, Some(confidences)) => {
            let pairs = found.iter().zip(confidences);
            pairs.map(|(found, confidence)| ImageDetection { score: *confidence, ..*found }).collect()
        }
        _ => found.clone(),
    };
    // Scores of a file are of 64 bits: the floor is the number that reads like it.
    let floor = shortest(args.score_min);
    let above: Vec<ImageDetection> =
        sure.iter().zip(found).filter(|(_, raw)| raw.score >= floor).map(|(sure, _)| *sure).collect();
    let outcomes = outcomes(truth, &above, args.iou);
    let bins = NonZeroUsize::new(args.bins as usize).expect("there is at least one bin");
    Evaluation {
        ap: average_precision(truth, found),
        at_iou: average_precision_at(truth, found, args.iou),
        field,
        calibration: CalibrationError::of(&outcomes, bins),
        per_class: CalibrationError::per_class(&outcomes, truth.categories().len(), bins),
        proposals: hidden.map(|hidden| proposals(args, given, hidden, &above)),
    }
}

/// The detections away from all given annotations, as proposals for what was hidden.
fn proposals(args: &Args, given: &Dataset, hidden: &Dataset, found: &[ImageDetection]) -> Vec<RecoveryAbove> {
    let mut of_images: Vec<Vec<ImageDetection>> = vec![Vec::new(); given.images().len()];
    found.iter().for_each(|found| of_images[found.image].push(*found));
    of_images.iter_mut().for_each(|image| image.sort_by(|a, b| b.score.total_cmp(&a.score)));
    let detection = |found: &ImageDetection| Detection {
        bbox: found.bbox.to_box(),
        class: found.class,
        score: Score(found.score as f32),
    };
    let detections: Vec<Vec<Detection>> =
        of_images.iter().map(|image| image.iter().map(detection).collect()).collect();
    let seen = judge(given, &detections, &args.judging.overlap());
    let pairs = seen.iter().flatten().zip(of_images.iter().flatten());
    let proposals: Vec<ImageDetection> =
        pairs.filter(|(seen, _)| seen.is_candidate()).map(|(_, found)| *found).collect();
    let thresholds: Vec<f64> = THRESHOLDS.map(|n| f64::from(n) / 20.0).collect();
    recovered_above(hidden, &proposals, args.iou, &thresholds)
}

fn reliability_figure(evaluation: &Evaluation) -> lacuna_report::Figure {
    let bins = evaluation.calibration.as_ref().map_or(&[][..], |calibration| &calibration.bins);
    let bins: Vec<lacuna_report::Bin> = bins
        .iter()
        .map(|bin| lacuna_report::Bin {
            low: bin.low,
            high: bin.high,
            count: bin.count as u64,
            right: bin.right as u64,
            confidence: bin.confidence.unwrap_or(0.0) * bin.count as f64,
        })
        .collect();
    lacuna_report::reliability_diagram("Reliability", &[(evaluation.field.name(), &bins)])
}

impl Evaluation {
    fn json(&self, args: &Args, truth: &Dataset) -> Value {
        let ap = &self.ap;
        let coco = json!({
            "AP": ap.ap, "AP50": ap.ap50, "AP75": ap.ap75,
            "APs": ap.ap_small, "APm": ap.ap_medium, "APl": ap.ap_large,
            "AR1": ap.ar_1, "AR10": ap.ar_10, "AR100": ap.ar_100,
            "ARs": ap.ar_small, "ARm": ap.ar_medium, "ARl": ap.ar_large,
        });
        let calibration = |error: &CalibrationError| {
            json!({ "detections": error.n, "d_ece": error.d_ece, "ace": error.ace, "mce": error.mce,
                    "la_ece": error.la_ece, "brier": error.brier, "nll": error.nll })
        };
        let keys = class_keys(truth);
        let classes: Map<String, Value> = (0..truth.categories().len())
            .map(|class| {
                let value = json!({
                    "AP": ap.per_class[class], "AP50": ap.per_class_50[class],
                    "AP_at_iou": self.at_iou.per_class[class],
                    "calibration": self.per_class[class].as_ref().map(calibration),
                });
                (keys[class].clone(), value)
            })
            .collect();
        let mut of_all = self.calibration.as_ref().map_or_else(|| json!({ "detections": 0 }), calibration);
        of_all["of"] = json!(self.field.name());
        of_all["iou"] = json!(args.iou);
        of_all["score_min"] = json!(shortest(args.score_min));
        of_all["bins"] = json!(self.calibration.as_ref().map(|error| &error.bins));
        let mut result = json!({
            "images": truth.images().len(),
            "coco": coco,
            "at_iou": { "iou": args.iou, "AP": self.at_iou.ap },
            "classes": classes,
            "calibration": of_all,
        });
        let judged = args.judge.model.as_ref().map(|model| ("model", model));
        if let Some((key, path)) = judged.or(args.judge.detections.as_ref().map(|path| ("detections", path)))
        {
            result[key] = json!(shown(path));
        }
        if let Some(proposals) = &self.proposals {
            let row = |above: &RecoveryAbove| {
                let recovered = above.recovered;
                json!({
                    "threshold": above.threshold, "proposed": recovered.proposed, "right": recovered.right,
                    "precision": recovered.precision(), "recall": recovered.recall(), "f1": recovered.f1(),
                    "promised_precision": above.promised_precision,
                })
            };
            let hidden = proposals.first().map_or(0, |above| above.recovered.hidden);
            result["hidden"] =
                json!({ "hidden": hidden, "thresholds": proposals.iter().map(row).collect::<Vec<_>>() });
        }
        result
    }

    fn print(&self, args: &Args, truth: &Dataset, out: &mut impl std::io::Write) -> Result<()> {
        let ap = &self.ap;
        let at_iou = format!("AP at {}", args.iou);
        let mut table = Table::with_heading(&["class", "AP", "AP50", &at_iou, "detections", "D-ECE"]);
        let mut row = |name: &str, aps: [Option<f64>; 3], error: Option<&CalibrationError>| {
            let [ap, ap50, at_iou] = aps.map(percent);
            let count = thousands(error.map_or(0, |error| error.n));
            table.cells(vec![name.into(), ap, ap50, at_iou, count, percent(error.map(|error| error.d_ece))]);
        };
        for (class, category) in truth.categories().iter().enumerate() {
            let aps = [ap.per_class[class], ap.per_class_50[class], self.at_iou.per_class[class]];
            row(&category.name, aps, self.per_class[class].as_ref());
        }
        row("all", [ap.ap, ap.ap50, self.at_iou.ap], self.calibration.as_ref());
        writeln!(out, "{table}")?;

        let mut table = Table::new(["", "all", "small", "medium", "large"]);
        let row = |name: &str, values: [Option<f64>; 4]| {
            let [all, small, medium, large] = values.map(percent);
            [name.to_owned(), all, small, medium, large]
        };
        table.row(row("AP", [ap.ap, ap.ap_small, ap.ap_medium, ap.ap_large]));
        table.row(row("recall of 100", [ap.ar_100, ap.ar_small, ap.ar_medium, ap.ar_large]));
        table.row(row("recall of 10", [ap.ar_10, None, None, None]));
        table.row(row("recall of 1", [ap.ar_1, None, None, None]));
        writeln!(out, "{table}")?;

        if let Some(CalibrationError { n, d_ece, ace, mce, la_ece, brier, nll, .. }) = &self.calibration {
            let [d_ece, ace, mce, la_ece] = [d_ece, ace, mce, la_ece].map(|error| percent(Some(*error)));
            writeln!(
                out,
                "calibration of `{}` ({} detections, right from an IoU of {}, {} bins):\n  D-ECE {d_ece}, ACE {ace}, \
                 MCE {mce}, LaECE {la_ece}, Brier score {brier:.4}, NLL {nll:.4}",
                self.field.name(),
                thousands(*n),
                args.iou,
                args.bins
            )?;
        }
        if let Some(proposals) = &self.proposals {
            writeln!(out, "\nproposals for what was hidden, right from an IoU of {}:", args.iou)?;
            let mut table = Table::new(["threshold", "proposed", "promised", "precision", "recall", "F1"]);
            for above in proposals {
                let recovered = above.recovered;
                table.row([
                    format!("{:.2}", above.threshold),
                    thousands(recovered.proposed),
                    percent(above.promised_precision),
                    percent(recovered.precision()),
                    percent(recovered.recall()),
                    percent(recovered.f1()),
                ]);
            }
            write!(out, "{table}")?;
        }
        writeln!(out, "\n{} images, AP75 {}", thousands(truth.images().len()), percent(ap.ap75))?;
        Ok(())
    }
}
