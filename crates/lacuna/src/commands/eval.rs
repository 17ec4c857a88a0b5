//! `lacuna eval`: average precision and calibration errors.

use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use lacuna_calib::Proximity;
use lacuna_data::Dataset;
use lacuna_data::layout::Split;
use lacuna_data::number::shortest;
use lacuna_data::output::write_file;
use lacuna_data::results::Results;
use lacuna_eval::{
    AveragePrecision, AveragePrecisionAt, CalibrationError, ImageDetection, RecoveryAbove, average_precision,
    average_precision_at, judge_confidences,
};
use lacuna_gaps::{given_and_hidden, recovery_above_thresholds};
use lacuna_train::evaluate::map_classes;
use serde_json::{Map, Value, json};

use crate::args::data::DataArgs;
use crate::args::detections::{
    DetectionSource, DetectionSourceArgs, ModelDetections, detect_with_model, read_results,
};
use crate::args::judging::{HiddenArgs, JudgingArgs, parse_score};
use crate::args::output::OutputArgs;
use crate::diagnostics::usage;
use crate::interrupt;
use crate::render::notes::note_problems;
use crate::render::number::{percent, thousands};
use crate::render::table::Table;
use crate::render::{class_keys, path_json};

/// Evaluate a model or detections: average precision, calibration errors
///
/// Average precision agrees with pycocotools to 1e-12. Calibration errors compare each detection's confidence
/// with the truth: it is right if it has an object of its class to itself at an IoU of at least --iou, the most
/// confident detection choosing first. Detections in crowd regions are left out.
///
/// With --hidden, the given and the hidden annotations together are the truth, and candidates are also evaluated as
/// proposals for the hidden ones.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataArgs,

    #[command(flatten)]
    source: DetectionSourceArgs,

    #[command(flatten)]
    hidden: HiddenArgs,

    /// A detection is right from this IoU on; average precision at this IoU is printed, too
    #[arg(long, value_name = "IOU", default_value_t = 0.5)]
    iou: f64,

    /// The number of bins of equal width for calibration errors
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    bins: u32,

    /// What is evaluated as the confidence [default: `confidence` if all detections have it, else `score`]
    #[arg(long)]
    field: Option<FieldArg>,

    /// A reliability diagram with a histogram of confidences: a .svg or .png file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Leave detections with a lower raw score out of calibration errors and proposals
    #[arg(long, value_name = "SCORE", default_value = "0", value_parser = parse_score)]
    score_min: f32,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    judging: JudgingArgs,
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

/// What is evaluated.
struct Detections {
    /// With their raw scores.
    scored: Vec<ImageDetection>,
    /// One for each; `None` unless all have one.
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

pub(crate) fn run(args: &Args) -> Result<()> {
    args.judging.check();
    if !(args.iou > 0.0 && args.iou <= 1.0) {
        usage("`--iou` must be above 0 and at most 1");
    }
    let plot = args.plot.as_deref().map(|path| (path, PlotFormat::from_path(path)));
    if let Some((path, _)) = plot {
        let inputs = [args.data.path.as_path(), args.source.source().path()].into_iter();
        let inputs = inputs.chain(args.hidden.hidden.as_deref()).collect::<Vec<_>>();
        args.output.if_exists().check_all(&[path], &inputs)?;
    }
    let split = args.data.read()?;
    note_problems(&split);
    let given = &split.dataset;
    let hidden = args.hidden.read(given, args.data.options.are_classes_chosen())?;
    let union = hidden.as_ref().map(|hidden| given_and_hidden(given, hidden));
    let truth = union.as_ref().unwrap_or(given);
    let detections = match args.source.source() {
        DetectionSource::File(path) => from_results(&read_results(path, given, &args.data.options)?),
        DetectionSource::Model(path) => from_model(path, args, &split)?,
    };
    let evaluation = evaluate(args, given, truth, hidden.as_ref(), &detections);
    interrupt::check()?;
    if let Some((path, format)) = plot {
        let figure = reliability_figure(&evaluation);
        write_file(path, args.output.if_exists(), |out| match format {
            PlotFormat::Svg => out.write_all(figure.to_svg().as_bytes()),
            PlotFormat::Png => figure.to_image(2).write_png(out),
        })?;
    }
    let mut out = std::io::stdout().lock();
    if args.output.json {
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
    fn from_path(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => Self::Svg,
            Some("png") => Self::Png,
            _ => usage("`--plot` must be a .svg or a .png file"),
        }
    }
}

fn from_results(results: &Results) -> Detections {
    let entries = results.entries();
    let scored = entries.iter().map(|entry| ImageDetection {
        image: entry.image,
        class: entry.class,
        bbox: entry.bbox,
        score: entry.score,
    });
    let confidences = entries.iter().map(|entry| entry.confidence).collect::<Option<Vec<f64>>>();
    Detections { scored: scored.collect(), confidences: confidences.filter(|all| !all.is_empty()) }
}

fn from_model(path: &Path, args: &Args, split: &Split) -> Result<Detections> {
    let ModelDetections { model, detections, classes } = detect_with_model(path, split, &args.data.options)?;
    let confidences = model.calibrator.as_ref().map(|calibrator| {
        let known = detections.iter().flatten().filter(|found| classes[found.class].is_some());
        known.map(|d| calibrator.confidence(d.class, d.score, Proximity::Unknown).0.into()).collect()
    });
    let with_image = |(image, found): (usize, Vec<lacuna_boxes::Detection>)| {
        found.into_iter().map(move |detection| ImageDetection::from_detection(image, detection))
    };
    let scored = map_classes(&detections, &classes).into_iter().enumerate().flat_map(with_image).collect();
    Ok(Detections { scored, confidences })
}

fn evaluate(
    args: &Args,
    given: &Dataset,
    truth: &Dataset,
    hidden: Option<&Dataset>,
    detections: &Detections,
) -> Evaluation {
    let Detections { scored, confidences } = detections;
    let field = match (args.field, confidences) {
        (Some(FieldArg::Confidence), None) => {
            usage("not all detections have a `confidence`; `lacuna calibrate` adds it")
        }
        (Some(field), _) => field,
        (None, Some(_)) => FieldArg::Confidence,
        (None, None) => FieldArg::Score,
    };
    let confident: Vec<ImageDetection> = match (field, confidences) {
        (FieldArg::Confidence, Some(confidences)) => {
            let pairs = scored.iter().zip(confidences);
            pairs.map(|(scored, confidence)| ImageDetection { score: *confidence, ..*scored }).collect()
        }
        _ => scored.clone(),
    };
    // Scores of a file are of 64 bits: the floor is the number that reads like it.
    let floor = shortest(args.score_min);
    let pairs = confident.iter().zip(scored).filter(|(_, scored)| scored.score >= floor);
    let above: Vec<ImageDetection> = pairs.map(|(confident, _)| *confident).collect();
    let judged = judge_confidences(truth, &above, args.iou);
    let bins = NonZeroUsize::new(args.bins as usize).expect("there is at least one bin");
    Evaluation {
        ap: average_precision(truth, scored),
        at_iou: average_precision_at(truth, scored, args.iou),
        field,
        calibration: CalibrationError::measure(&judged, bins),
        per_class: CalibrationError::per_class(&judged, truth.categories().len(), bins),
        proposals: hidden.map(|hidden| {
            let thresholds: Vec<f64> = THRESHOLDS.map(|n| f64::from(n) / 20.0).collect();
            recovery_above_thresholds(given, hidden, &above, &args.judging.rule(), args.iou, &thresholds)
        }),
    }
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
        match args.source.source() {
            DetectionSource::Model(path) => result["model"] = json!(path_json(path)),
            DetectionSource::File(path) => result["detections"] = json!(path_json(path)),
        }
        if let Some(proposals) = &self.proposals {
            let row = |above: &RecoveryAbove| {
                let recovered = above.recovered;
                json!({
                    "threshold": above.threshold, "proposed": recovered.proposed, "right": recovered.right,
                    "precision": recovered.precision(), "recall": recovered.recall(), "f1": recovered.f1(),
                    "expected_precision": above.expected_precision,
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
        table.row(row("recall, 100 detections", [ap.ar_100, ap.ar_small, ap.ar_medium, ap.ar_large]));
        table.row(row("recall, 10 detections", [ap.ar_10, None, None, None]));
        table.row(row("recall, 1 detection", [ap.ar_1, None, None, None]));
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
            writeln!(
                out,
                "\ncandidates as proposals for the hidden boxes, right from an IoU of {}:",
                args.iou
            )?;
            let mut table = Table::new(["threshold", "proposed", "expected", "precision", "recall", "F1"]);
            for above in proposals {
                let recovered = above.recovered;
                table.row([
                    format!("{:.2}", above.threshold),
                    thousands(recovered.proposed),
                    percent(above.expected_precision),
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
