use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use lacuna_calib::{CalibratorKind, Platt};
use lacuna_data::Dataset;
use lacuna_data::output::{IfExists, write_file};
use lacuna_eval::{ImageDetection, recovered_above};
use lacuna_gaps::{Candidate, FoldedCalibrator, candidates, expected_precision, judge, samples};
use lacuna_gaps::{OverlapRule, read_hidden};
use lacuna_models::DetectorConfig;
use lacuna_models::resnet::Depth;
use lacuna_report::{Bin, ClassCompletion, Curves, Picture, Report, RunResult, Series, Stretch};
use lacuna_train::config::{ConfigSource, RunConfig};
use lacuna_train::data::Data;
use lacuna_train::evaluate::{detect_all, map_classes, match_classes};
use lacuna_train::methods::Method;
use lacuna_train::model::Model;
use lacuna_train::run::{CONFIG, Finished, METRICS};
use serde_json::{Value, json};

use super::{BadFile, shown};
use crate::gallery::picture;
use crate::gaps::Gaps;
use crate::interrupt;
use crate::judging::DOUBLE_IOU;
use crate::progress::Progress;
use crate::table::thousands;

/// Make a page about a run: curves, reliability, score histograms, recovered boxes, configuration
///
/// One HTML file that needs nothing but itself. A run that is not finished has one, too.
#[derive(clap::Args)]
pub struct Args {
    /// The folder of a run that `lacuna train` made
    run: PathBuf,

    /// The page [default: report.html in the run's folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// How many pictures of the surest and of the least sure recovered boxes (0: none)
    #[arg(long, value_name = "N", default_value_t = 8)]
    pictures: usize,

    /// The model looks for missing boxes in at most so many of the training images
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..))]
    look_at: u32,

    /// Replace a page that exists; that of the run's folder is always replaced
    #[arg(long)]
    force: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let (out, if_exists) = match &args.out {
        Some(out) => (out.clone(), IfExists::forced(args.force)),
        None => (args.run.join("report.html"), IfExists::Replace),
    };
    if args.out.is_some() {
        let files = [CONFIG, METRICS].map(|name| args.run.join(name));
        if_exists.check_all(&[&out], &files.each_ref().map(PathBuf::as_path))?;
    }
    let report = report_of(&args.run, args.pictures, args.look_at as usize)?;
    interrupt::check()?;
    write_file(&out, if_exists, |file| file.write_all(report.to_html().as_bytes()))?;
    let mut stdout = std::io::stdout().lock();
    let pictures = report.most_confident.len() + report.least_confident.len();
    if args.json {
        let records = report.curves.losses.first().map_or(0, |losses| losses.points.len());
        writeln!(stdout, "{}", json!({ "out": shown(&out), "records": records, "pictures": pictures }))?;
    } else {
        writeln!(stdout, "{}: {pictures} pictures", out.display())?;
    }
    Ok(())
}

/// What the files of a run tell.
pub fn report_of(run: &Path, pictures: usize, look_at: usize) -> Result<Report> {
    let path = run.join(CONFIG);
    let not_a_run = |why: String| BadFile { path: run.to_owned(), what: "a run of `lacuna train`", why };
    let text = fs::read_to_string(&path).map_err(|error| not_a_run(format!("config.toml: {error}")))?;
    let config = RunConfig::parse(ConfigSource { path: &path, text: &text, overrides: &[] })?;
    let metrics = fs::read_to_string(run.join(METRICS))
        .map_err(|error| not_a_run(format!("metrics.jsonl: {error}")))?;
    // The last line of a run that was killed need not be whole.
    let lines: Vec<Value> = metrics.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of_event =
        |event: &str| -> Vec<&Value> { lines.iter().filter(|line| line["event"] == event).collect() };
    let (train, evaluations) = (of_event("train"), of_event("evaluation"));

    let absolute = std::path::absolute(run)?;
    let name = absolute.file_name().map_or_else(|| shown(run), |name| name.to_string_lossy().into_owned());
    let mut report = Report {
        name,
        method: config.method.title(),
        detector: detector_name(&config.detector),
        iterations_done: lines.iter().filter_map(|line| line["iteration"].as_u64()).max().unwrap_or(0),
        iterations: config.train.iterations,
        outcomes: outcomes(evaluations.last().copied()),
        curves: curves(&train, &evaluations),
        stretches: stretches(&train),
        config: Some(text),
        ..Report::default()
    };
    report.facts = facts(&report);
    if pictures > 0 && Finished::model(run).exists() {
        recover(run, &config, pictures, look_at, &mut report)?;
    }
    Ok(report)
}

fn detector_name(detector: &DetectorConfig) -> String {
    let name = match detector {
        DetectorConfig::RetinaNet(_) => "RetinaNet",
        DetectorConfig::Fcos(_) => "FCOS",
        DetectorConfig::FasterRcnn(_) => "Faster R-CNN",
    };
    let depth = match detector.backbone().depth {
        Depth::ResNet10 => 10,
        Depth::ResNet18 => 18,
        Depth::ResNet34 => 34,
        Depth::ResNet50 => 50,
        Depth::ResNet101 => 101,
    };
    format!("{name}, ResNet-{depth}")
}

fn outcomes(last: Option<&Value>) -> Vec<RunResult> {
    let outcome = |model: &str| {
        let figure = |name: &str| last?.get(format!("{model}_{name}"))?.as_f64();
        let outcome =
            RunResult { model: model.into(), ap: figure("ap"), ap50: figure("ap50"), ap75: figure("ap75") };
        outcome.ap.is_some().then_some(outcome)
    };
    ["student", "teacher"].into_iter().filter_map(outcome).collect()
}

/// The values of some keys over the iterations; a key without any is left out.
fn series(lines: &[&Value], keys: &[(&str, &str)]) -> Vec<Series> {
    let of_key = |(key, name): &(&str, &str)| {
        let point = |line: &&Value| Some((line["iteration"].as_f64()?, line.get(key)?.as_f64()?));
        let points: Vec<(f64, f64)> = lines.iter().filter_map(point).collect();
        (!points.is_empty()).then(|| Series { name: (*name).into(), points })
    };
    keys.iter().filter_map(of_key).collect()
}

fn curves(train: &[&Value], evaluations: &[&Value]) -> Curves {
    let losses = [
        ("loss", "all"),
        ("loss_classification", "classification"),
        ("loss_regression", "regression"),
        ("loss_centerness", "centerness"),
        ("loss_objectness", "objectness"),
        ("loss_proposal_regression", "proposal regression"),
        ("loss_consistency", "consistency"),
    ];
    let taught = train.iter().any(|line| line["detections_per_image"].as_f64() > Some(0.0));
    let boxes = [
        ("annotations_per_image", "annotations"),
        ("detections_per_image", "detections"),
        ("candidates_per_image", "candidates"),
        ("pseudo_labels_per_image", "pseudo labels"),
    ];
    Curves {
        losses: series(train, &losses),
        average_precision: series(
            evaluations,
            &[
                ("student_ap", "student AP"),
                ("teacher_ap", "teacher AP"),
                ("student_ap50", "student AP50"),
                ("teacher_ap50", "teacher AP50"),
            ],
        ),
        boxes_per_image: if taught { series(train, &boxes) } else { Vec::new() },
        pseudo_labels: series(train, &[("pseudo_precision", "precision"), ("pseudo_recall", "recall")]),
        calibrator: series(
            train,
            &[
                ("calibrator_w", "w"),
                ("calibrator_a", "a"),
                ("calibrator_b", "b"),
                ("calibrator_c", "c"),
                ("calibrator_t", "t"),
                ("calibrator_completeness", "completeness"),
            ],
        ),
        calibration_error: series(train, &[("ece_raw", "before"), ("ece_calibrated", "after")]),
        threshold: series(train, &[("threshold_score", "raw score")]),
    }
}

/// A third of the training each, of the lines in which a teacher was judged.
fn stretches(train: &[&Value]) -> Vec<Stretch> {
    let taught: Vec<&Value> = train.iter().copied().filter(|line| line.get("scores").is_some()).collect();
    if taught.is_empty() {
        return Vec::new();
    }
    let names = ["early", "middle", "late"];
    let size = taught.len().div_ceil(names.len());
    let first_of = |lines: &[&Value]| lines[0]["iteration"].as_u64().unwrap_or(0);
    let mut begin = 0;
    let stretch = |(name, lines): (&str, &[&Value])| {
        let last = lines.last().map_or(0, |line| line["iteration"].as_u64().unwrap_or(0));
        let iterations = (begin + 1, last.max(first_of(lines)));
        begin = last;
        Stretch {
            name: name.into(),
            iterations,
            before: bins(lines, "reliability_raw"),
            after: bins(lines, "reliability_calibrated"),
            scores: sums(lines.iter().map(|line| &line["scores"]), &|value| value.as_f64()),
        }
    };
    names.into_iter().zip(taught.chunks(size)).map(stretch).collect()
}

/// Position by position.
fn sums<'a>(lists: impl Iterator<Item = &'a Value>, of: &dyn Fn(&Value) -> Option<f64>) -> Vec<f64> {
    let mut sums: Vec<f64> = Vec::new();
    for list in lists {
        for (at, value) in list.as_array().into_iter().flatten().enumerate() {
            if at == sums.len() {
                sums.push(0.0);
            }
            sums[at] += of(value).unwrap_or(0.0);
        }
    }
    sums
}

fn bins(lines: &[&Value], key: &str) -> Vec<Bin> {
    let lists = || lines.iter().map(|line| &line[key]);
    let counts = sums(lists(), &|bin| bin[0].as_f64());
    let right = sums(lists(), &|bin| bin[1].as_f64());
    let confidence = sums(lists(), &|bin| Some(bin[0].as_f64()? * bin[2].as_f64()?));
    let n = counts.len().max(1) as f64;
    let bin = |at: usize| Bin {
        low: at as f64 / n,
        high: (at + 1) as f64 / n,
        count: counts[at] as u64,
        right: right[at] as u64,
        confidence: confidence[at],
    };
    if counts.iter().sum::<f64>() > 0.0 { (0..counts.len()).map(bin).collect() } else { Vec::new() }
}

fn facts(report: &Report) -> Vec<String> {
    let mut facts = Vec::new();
    let last = |series: &[Series], name: &str| {
        let series = series.iter().find(|series| series.name == name)?;
        series.points.last().map(|point| point.1)
    };
    let errors = &report.curves.calibration_error;
    if let (Some(before), Some(after)) = (last(errors, "before"), last(errors, "after")) {
        facts.push(format!(
            "calibration error of detections near an annotation at the end: {:.1} % by scores, {:.1} % by confidences",
            100.0 * before,
            100.0 * after
        ));
    }
    let labels = &report.curves.pseudo_labels;
    if let Some(precision) = last(labels, "precision") {
        let recall = last(labels, "recall").unwrap_or(0.0);
        facts.push(format!(
            "pseudo labels at the end: {:.0} % right, and {:.0} % of what was hidden found",
            100.0 * precision,
            100.0 * recall
        ));
    }
    facts
}

/// What the run's model finds missing in the images that it was trained on.
fn recover(
    run: &Path,
    config: &RunConfig,
    pictures: usize,
    look_at: usize,
    report: &mut Report,
) -> Result<()> {
    let data = match Data::read(&config.data) {
        Ok(data) => data,
        Err(error) => {
            eprintln!("note: no pictures, because the data of the run cannot be read: {error}");
            return Ok(());
        }
    };
    let model = Model::read(&Finished::model(run))?;
    let dataset = &data.train.dataset;
    let every = dataset.images().len().div_ceil(look_at);
    let chosen = |index: usize| index.is_multiple_of(every);
    let looked_at = dataset.with_images(chosen);
    let progress = Progress::new("looking for missing boxes", looked_at.images().len());
    let part = (&looked_at, data.train.folder.as_path());
    let input = &model.config.input;
    let found = detect_all(&model.detector, input, part, config.data.on_bad_image, &mut || progress.done());
    drop(progress);
    let found = match found {
        Err(lacuna_data::Error::Image(error)) => {
            eprintln!("note: no pictures: {error}");
            return Ok(());
        }
        found => found?,
    };
    let (score_min, overlap) = config
        .method
        .teacher_settings()
        .map_or((0.1, OverlapRule::default()), |(teacher, overlap)| (teacher.score_min, overlap));
    let named = map_classes(&found.detections, &match_classes(&model.config.categories, &looked_at));
    // Doubles would look like objects that are missing.
    let candidate_iou = overlap.candidate_iou.or(Some(DOUBLE_IOU));
    let seen = judge(&looked_at, &named, &OverlapRule { min_side: None, candidate_iou, ..overlap });
    let fitted = FoldedCalibrator::new(CalibratorKind::Completeness, false, &samples(&seen, score_min));
    let (of_run, name) = match model.config.calibrator {
        Some(calibrator) => (calibrator, "the run's own calibrator"),
        None => (Platt::IDENTITY.into(), "raw scores"),
    };
    let (mut missing, by) = match &fitted {
        Ok(fitted) => {
            let missing = candidates(&seen, score_min, |image| fitted.of_image(image));
            (missing, "the calibrator that knows about the gaps")
        }
        Err(_) => (candidates(&seen, score_min, |_| &of_run), name),
    };
    let confidence_min = match &config.method {
        Method::Calibrated(method) => method.confidence_min,
        _ => 0.7,
    };
    missing.retain(|missing| missing.confidence.0 >= confidence_min);

    report.facts.push(format!(
        "{} boxes recovered in {} of the training images, with confidences of at least {confidence_min} by {by}",
        thousands(missing.len()),
        thousands(looked_at.images().len())
    ));
    if let Some(path) = &config.data.hidden
        && let Ok(hidden) = read_hidden(path, dataset, true).map(|hidden| hidden.with_images(chosen))
        && let Some(expected) = expected_precision(&missing)
    {
        let proposals: Vec<ImageDetection> = missing
            .iter()
            .map(|missing| ImageDetection::from_detection(missing.image, missing.detection))
            .collect();
        let truth = recovered_above(&hidden, &proposals, overlap.iou_high.into(), &[0.0])[0].recovered;
        report.facts.push(format!(
            "of these, {:.0} % were expected to be right, and {:.0} % are (at an IoU of {}); {:.0} % of what was hidden is found",
            100.0 * expected,
            100.0 * truth.precision().unwrap_or(0.0),
            overlap.iou_high,
            100.0 * truth.recall().unwrap_or(0.0)
        ));
    }
    if let Ok(gaps) = Gaps::estimate(&looked_at, &seen, score_min) {
        report.facts.extend(gaps.sentences(&looked_at));
    }
    report.completion = completion(&looked_at, &missing);
    let draw = |missing_first: Vec<usize>, surest: bool| -> Result<Vec<Picture>> {
        let mut drawn = Vec::new();
        for image in missing_first.into_iter().take(pictures) {
            drawn.push(drawn_picture(&looked_at, &data.train.folder, image, &missing, surest)?);
        }
        Ok(drawn)
    };
    report.most_confident = draw(images_by_confidence(&missing, true), true)?;
    report.least_confident = draw(images_by_confidence(&missing, false), false)?;
    Ok(())
}

/// The images with recovered boxes, those with the surest first or those with the least sure, each once.
fn images_by_confidence(missing: &[Candidate], surest: bool) -> Vec<usize> {
    let mut sorted: Vec<&Candidate> = missing.iter().collect();
    sorted.sort_by(|a, b| a.confidence.0.total_cmp(&b.confidence.0));
    if surest {
        sorted.reverse();
    }
    let mut images: Vec<usize> = Vec::new();
    for missing in sorted {
        if !images.contains(&missing.image) {
            images.push(missing.image);
        }
    }
    images
}

fn drawn_picture(
    dataset: &Dataset,
    folder: &Path,
    image: usize,
    missing: &[Candidate],
    surest: bool,
) -> Result<Picture> {
    let picture = picture(dataset, folder, image, missing)?;
    let mut jpeg = Vec::new();
    picture.write_jpeg(&mut jpeg)?;
    let of_image = || missing.iter().filter(|missing| missing.image == image);
    let confidences = of_image().map(|missing| missing.confidence.0);
    let extreme = if surest { confidences.fold(0.0, f32::max) } else { confidences.fold(1.0, f32::min) };
    let caption = format!(
        "{}: {} given, {} recovered, the {} with a confidence of {extreme:.2}",
        dataset.images()[image].file_name,
        dataset.objects_of(image).len(),
        of_image().count(),
        if surest { "surest" } else { "least sure" }
    );
    Ok(Picture { jpeg, caption })
}

fn completion(dataset: &Dataset, missing: &[Candidate]) -> Vec<ClassCompletion> {
    let of_class = |(class, category): (usize, &lacuna_data::Category)| {
        let recovered: Vec<Candidate> =
            missing.iter().filter(|missing| missing.detection.class == class).copied().collect();
        ClassCompletion {
            class: category.name.clone(),
            given: dataset.annotations().iter().filter(|annotation| annotation.category == class).count()
                as u64,
            recovered: recovered.len() as u64,
            confidence: expected_precision(&recovered),
        }
    };
    dataset.categories().iter().enumerate().map(of_class).collect()
}
