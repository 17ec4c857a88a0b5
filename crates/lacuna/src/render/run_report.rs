//! The numbers and pictures of a run's report, from the files in its folder.

use std::fs;
use std::path::Path;

use anyhow::Result;
use lacuna_boxes::Detection;
use lacuna_calib::{CalibratorKind, Confidence, Platt};
use lacuna_data::Dataset;
use lacuna_eval::Recovery;
use lacuna_gaps::{
    Acceptance, Candidate, Completion, DatasetCompleteness, FitOptions, FoldedCalibrator, JudgedDetection,
    OverlapRule, candidates, expected_precision, judge, read_hidden, recovery_by_class,
};
use lacuna_models::DetectorConfig;
use lacuna_models::resnet::Depth;
use lacuna_report::{Bin, ClassCompletion, Curves, Picture, Report, RunResult, Series, TrainingStage};
use lacuna_train::config::{ConfigSource, RunConfig};
use lacuna_train::data::Data;
use lacuna_train::evaluate::{detect_all, map_classes, match_classes};
use lacuna_train::methods::Method;
use lacuna_train::model::Model;
use lacuna_train::run::{CONFIG, Finished, METRICS};
use serde_json::Value;

use super::completeness::completeness_sentences;
use super::number::thousands;
use super::path_json;
use super::pictures::draw_recovered;
use super::progress::Progress;
use crate::args::judging::DUPLICATE_IOU;
use crate::diagnostics::NotARun;

/// The report of a run, with up to `pictures` images of each kind from up to `sample_images` training images.
pub(crate) fn run_report(run: &Path, pictures: usize, sample_images: usize) -> Result<Report> {
    let path = run.join(CONFIG);
    let not_a_run = |why: String| NotARun { path: run.to_owned(), why };
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
    let name =
        absolute.file_name().map_or_else(|| path_json(run), |name| name.to_string_lossy().into_owned());
    let mut report = Report {
        name,
        method: config.method.title(),
        detector: detector_name(&config.detector),
        iterations_done: lines.iter().filter_map(|line| line["iteration"].as_u64()).max().unwrap_or(0),
        iterations: config.train.iterations,
        results: results(evaluations.last().copied()),
        curves: curves(&train, &evaluations),
        stages: stages(&train),
        config: Some(text),
        ..Report::default()
    };
    report.facts = facts(&report);
    if pictures > 0 && Finished::model(run).exists() {
        add_recovered_boxes(run, &config, pictures, sample_images, &mut report)?;
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

fn results(last_evaluation: Option<&Value>) -> Vec<RunResult> {
    let result = |model: &str| {
        let figure = |name: &str| last_evaluation?.get(format!("{model}_{name}"))?.as_f64();
        let result =
            RunResult { model: model.into(), ap: figure("ap"), ap50: figure("ap50"), ap75: figure("ap75") };
        result.ap.is_some().then_some(result)
    };
    ["student", "teacher"].into_iter().filter_map(result).collect()
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
fn stages(train: &[&Value]) -> Vec<TrainingStage> {
    let taught: Vec<&Value> = train.iter().copied().filter(|line| line.get("scores").is_some()).collect();
    if taught.is_empty() {
        return Vec::new();
    }
    let names = ["early", "middle", "late"];
    let size = taught.len().div_ceil(names.len());
    let first_of = |lines: &[&Value]| lines[0]["iteration"].as_u64().unwrap_or(0);
    let mut begin = 0;
    let stage = |(name, lines): (&str, &[&Value])| {
        let last = lines.last().map_or(0, |line| line["iteration"].as_u64().unwrap_or(0));
        let iterations = (begin + 1, last.max(first_of(lines)));
        begin = last;
        TrainingStage {
            name: name.into(),
            iterations,
            before: bins(lines, "reliability_raw"),
            after: bins(lines, "reliability_calibrated"),
            scores: sums(lines.iter().map(|line| &line["scores"]), &|value| value.as_f64()),
        }
    };
    names.into_iter().zip(taught.chunks(size)).map(stage).collect()
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

/// Adds the boxes that the run's model recovers in its training images.
fn add_recovered_boxes(
    run: &Path,
    config: &RunConfig,
    pictures: usize,
    sample_images: usize,
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
    let every = data.train.dataset.images().len().div_ceil(sample_images);
    let is_sampled = |index: usize| index.is_multiple_of(every);
    let sample = data.train.dataset.with_images(is_sampled);
    let folder = data.train.folder.as_path();
    let detections = match detect(&model, config, &sample, folder) {
        Err(lacuna_data::Error::Image(error)) => {
            eprintln!("note: no pictures: {error}");
            return Ok(());
        }
        detections => detections?,
    };
    let recovered = recover(&model, config, &sample, &detections);
    let hidden = config.data.hidden.as_ref().and_then(|path| {
        // A report is worth having without what was hidden.
        read_hidden(path, &data.train.dataset, true).ok().map(|hidden| hidden.with_images(is_sampled))
    });
    report.facts.extend(recovered.facts(&sample, hidden.as_ref()));
    report.completion = completion_by_class(&sample, &recovered.boxes);
    let draw = |most_confident: bool| -> Result<Vec<Picture>> {
        let images = images_by_confidence(&recovered.boxes, most_confident).into_iter().take(pictures);
        images.map(|image| picture(&sample, folder, image, &recovered.boxes, most_confident)).collect()
    };
    report.most_confident = draw(true)?;
    report.least_confident = draw(false)?;
    Ok(())
}

/// What the model detects in each image, with the data set's classes.
fn detect(
    model: &Model,
    config: &RunConfig,
    dataset: &Dataset,
    folder: &Path,
) -> lacuna_data::Result<Vec<Vec<Detection>>> {
    let progress = Progress::new("looking for missing boxes", dataset.images().len());
    let (detector, input) = (&model.detector, &model.config.input);
    let on_bad_image = config.data.on_bad_image;
    let found = detect_all(detector, input, (dataset, folder), on_bad_image, &mut || progress.done())?;
    Ok(map_classes(&found.detections, &match_classes(&model.config.categories, dataset)))
}

/// The boxes that a run's model recovers.
struct Recovered {
    boxes: Vec<Candidate>,
    confidence_min: f32,
    /// What the confidences are by.
    confidences_by: &'static str,
    /// The IoU that the confidences are about.
    iou_min: f32,
    completeness: Option<DatasetCompleteness>,
}

/// The least confidence of a recovered box, for methods without a threshold of their own.
const CONFIDENCE_MIN: f32 = 0.7;

/// The least raw score of a candidate, for methods without a teacher.
const SCORE_MIN: f32 = 0.1;

fn recover(model: &Model, config: &RunConfig, dataset: &Dataset, detections: &[Vec<Detection>]) -> Recovered {
    let (score_min, rule) = match config.method.teacher_settings() {
        Some((teacher, rule)) => (teacher.score_min, rule),
        None => (SCORE_MIN, OverlapRule::default()),
    };
    // Duplicates would look like missing objects.
    let candidate_iou = rule.candidate_iou.or(Some(DUPLICATE_IOU));
    let judged = judge(dataset, detections, &OverlapRule { min_side: None, candidate_iou, ..rule });
    let options = FitOptions { kind: CalibratorKind::Completeness, per_class: false, score_min };
    let (candidates, confidences_by) =
        match (FoldedCalibrator::fit(&judged, options), &model.config.calibrator) {
            (Ok(fitted), _) => {
                let confidence = |judged: &JudgedDetection| judged.confidence(fitted.of_image(judged.image));
                (candidates(&judged, score_min, confidence), "the completeness calibrator")
            }
            (Err(_), Some(calibrator)) => {
                let confidence = |judged: &JudgedDetection| judged.confidence(calibrator);
                (candidates(&judged, score_min, confidence), "the run's own calibrator")
            }
            (Err(_), None) => {
                let identity = Platt::IDENTITY.into();
                let confidence = |judged: &JudgedDetection| judged.confidence(&identity);
                (candidates(&judged, score_min, confidence), "raw scores")
            }
        };
    let confidence_min = match &config.method {
        Method::Calibrated(method) => method.confidence_min,
        _ => CONFIDENCE_MIN,
    };
    let acceptance = Acceptance::Confidence(Confidence(confidence_min));
    Recovered {
        boxes: Completion::new(candidates, acceptance, dataset.categories().len()).recovered,
        confidence_min,
        confidences_by,
        iou_min: rule.iou_high,
        completeness: DatasetCompleteness::new(dataset, &judged, score_min).ok(),
    }
}

impl Recovered {
    /// In sentences, with the truth where it is known.
    fn facts(&self, dataset: &Dataset, hidden: Option<&Dataset>) -> Vec<String> {
        let mut facts = vec![format!(
            "{} boxes recovered in {} of the training images, with a confidence of at least {} by {}",
            thousands(self.boxes.len()),
            thousands(dataset.images().len()),
            self.confidence_min,
            self.confidences_by
        )];
        if let (Some(hidden), Some(expected)) = (hidden, expected_precision(&self.boxes)) {
            let found: Recovery = recovery_by_class(hidden, &self.boxes, self.iou_min).into_iter().sum();
            facts.push(format!(
                "expected precision {:.0} %, found precision {:.0} % (at an IoU of {}), found recall {:.0} %",
                100.0 * expected,
                100.0 * found.precision().unwrap_or(0.0),
                self.iou_min,
                100.0 * found.recall().unwrap_or(0.0)
            ));
        }
        if let Some(estimate) = &self.completeness {
            facts.extend(completeness_sentences(Ok(estimate), dataset));
        }
        facts
    }
}

/// The images with recovered boxes, each once: by their most confident box, or by their least confident one.
fn images_by_confidence(recovered: &[Candidate], most_confident: bool) -> Vec<usize> {
    let mut sorted: Vec<&Candidate> = recovered.iter().collect();
    sorted.sort_by(|a, b| a.confidence.0.total_cmp(&b.confidence.0));
    if most_confident {
        sorted.reverse();
    }
    let mut images: Vec<usize> = Vec::new();
    for candidate in sorted {
        if !images.contains(&candidate.image) {
            images.push(candidate.image);
        }
    }
    images
}

fn picture(
    dataset: &Dataset,
    folder: &Path,
    image: usize,
    recovered: &[Candidate],
    most_confident: bool,
) -> Result<Picture> {
    let mut jpeg = Vec::new();
    draw_recovered(dataset, folder, image, recovered)?.write_jpeg(&mut jpeg)?;
    let of_image = || recovered.iter().filter(|candidate| candidate.image == image);
    let confidences = of_image().map(|candidate| candidate.confidence.0);
    let (extreme, which) = match most_confident {
        true => (confidences.fold(0.0, f32::max), "most"),
        false => (confidences.fold(1.0, f32::min), "least"),
    };
    let caption = format!(
        "{}: {} given, {} recovered, the {which} confident at {extreme:.2}",
        dataset.images()[image].file_name,
        dataset.objects_of(image).len(),
        of_image().count(),
    );
    Ok(Picture { jpeg, caption })
}

fn completion_by_class(dataset: &Dataset, recovered: &[Candidate]) -> Vec<ClassCompletion> {
    let of_class = |(class, category): (usize, &lacuna_data::Category)| {
        let recovered = || recovered.iter().filter(|candidate| candidate.detection.class == class);
        let given = dataset.annotations().iter().filter(|annotation| annotation.category == class);
        ClassCompletion {
            class: category.name.clone(),
            given: given.count() as u64,
            recovered: recovered().count() as u64,
            confidence: expected_precision(recovered()),
        }
    };
    dataset.categories().iter().enumerate().map(of_class).collect()
}
