//! `lacuna demo`: the whole story on synthetic data.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use lacuna_boxes::Detection;
use lacuna_calib::{Calibrator, CalibratorKind, Confidence, NoFit, Platt, Reliability};
use lacuna_data::decode::OnBadImage;
use lacuna_data::output::{IfExists, NewFolder, write_file};
use lacuna_data::sparsify::{Percent, Sparse, SparsifyKind, sparsify};
use lacuna_data::{Dataset, coco};
use lacuna_eval::{AveragePrecision, Recovery, recovery};
use lacuna_gaps::{
    Acceptance, Candidate, Completion, DatasetCompleteness, FitOptions, FoldedCalibrator, JudgedDetection,
    Truth, candidate_truths, candidates, completed, expected_precision, judge, judged_truths, reliability,
};
use lacuna_synth::SynthConfig;
use lacuna_train::config::{ConfigSource, RunConfig};
use lacuna_train::evaluate::detect_all;
use lacuna_train::methods::{Calibrated, Method};
use lacuna_train::metrics::FOUND_IOU_MIN;
use lacuna_train::model::Model;
use lacuna_train::run::{Begin, Finished, TrainError};
use serde_json::{Value, json};

use super::synth;
use crate::args::output::OutputArgs;
use crate::render::completeness::completeness_sentences;
use crate::render::number::{percent, thousands};
use crate::render::path_json;
use crate::render::pictures::draw_recovered;
use crate::render::progress::Progress;
use crate::render::run_report::run_report;
use crate::render::table::Table;
use crate::render::training;

const TRAIN_IMAGES: usize = 100;
const TEST_IMAGES: usize = 200;
const HIDDEN_PERCENT: f64 = 50.0;

/// A recovered box is more likely right than wrong.
const CONFIDENCE_MIN: f32 = 0.5;

/// Pictures of recovered boxes in the folder, and of each kind in the report.
const PICTURES: usize = 12;
const REPORT_PICTURES: usize = 8;

/// The whole story on synthetic data: hide half of the boxes, train in spite of it, recover them
///
/// Generates a data set and hides half of the boxes of every class. Trains one detector on the remaining boxes alone,
/// and another with Calibrated Teacher and Focal IoU weight, both for the same number of iterations. Tests both on
/// completely annotated images, and completes the annotations with the second.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder to write
    #[arg(long, value_name = "DIR", default_value = "lacuna-demo")]
    out: PathBuf,

    /// Another seed gives other images and other hidden boxes
    // TOML's integers are signed.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,

    /// Train each for this many iterations; the rest of the schedule scales with it [default: the presets']
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,

    #[command(flatten)]
    output: OutputArgs,
}

/// Where everything is in the demo's folder.
struct DemoFolder {
    out: PathBuf,
}

impl DemoFolder {
    const SPARSE: &str = "annotations/instances_train_sparse.json";
    const HIDDEN: &str = "annotations/instances_train_hidden.json";

    fn at(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }
}

/// All that is said about the demo.
struct DemoResult {
    sparse: Sparse,
    baseline: AveragePrecision,
    teacher: AveragePrecision,
    student: AveragePrecision,
    /// Calibration during training, before and after.
    in_training: [Reliability; 2],
    completed: CompletedDemo,
    pictures: usize,
    seconds: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let began = Instant::now();
    let folder = DemoFolder { out: args.out.clone() };
    let (sparse, test) = generate_data(args)?;

    let (_, baseline) =
        train(args, &folder, "supervised", include_str!("../../presets/synth-supervised.toml"))?;
    let (config, calibrated) =
        train(args, &folder, "calibrated", include_str!("../../presets/synth-calibrated.toml"))?;
    let (before, after) = calibrated.last.window.judged();
    let in_training = [before.clone(), after.clone()];
    let completed = complete(&folder, &config, &sparse, &test)?;
    let pictures = draw_pictures(&folder, &sparse.kept, &completed.recovered)?;
    let page = run_report(&folder.at("calibrated"), REPORT_PICTURES, TRAIN_IMAGES)?;
    write_file(&folder.at("report.html"), IfExists::Refuse, |out| out.write_all(page.to_html().as_bytes()))?;

    let result = DemoResult {
        sparse,
        baseline: baseline.last.student.expect("the demo has a test set"),
        teacher: calibrated.last.teacher.expect("the demo has a test set and a teacher"),
        student: calibrated.last.student.expect("the demo has a test set"),
        in_training,
        completed,
        pictures,
        seconds: began.elapsed().as_secs(),
    };
    let mut out = std::io::stdout().lock();
    match args.output.json {
        true => writeln!(out, "{}", result.json(args))?,
        false => result.print(&folder, &mut out)?,
    }
    Ok(())
}

fn train(args: &Args, folder: &DemoFolder, name: &str, preset: &str) -> Result<(RunConfig, Finished)> {
    let config = config(name, preset, folder, args)?;
    let begin = Begin::New(IfExists::Refuse);
    match training::train(config.clone(), &folder.at(name), begin, Some(name)) {
        Ok(finished) => Ok((config, finished)),
        // A demo starts anew; it is not resumed.
        Err(TrainError::Interrupted { .. }) => Err(lacuna_data::Error::Interrupted.into()),
        Err(error) => Err(error.into()),
    }
}

/// Generates a data set and hides half of its boxes.
fn generate_data(args: &Args) -> Result<(Sparse, Dataset)> {
    let folder = NewFolder::create(&args.out, args.output.if_exists())?;
    let config = SynthConfig { seed: args.seed, ..synth::small_scenes() };
    let splits = [("train", TRAIN_IMAGES), ("test", TEST_IMAGES)];
    let mut datasets = synth::render_splits(&config, &splits, &folder)?;
    let half = Percent::new(HIDDEN_PERCENT).expect("it is a percentage");
    let sparse = sparsify(&datasets[0], SparsifyKind::Split1(half), args.seed);
    for (file, dataset) in [(DemoFolder::SPARSE, &sparse.kept), (DemoFolder::HIDDEN, &sparse.hidden)] {
        folder.file(Path::new(file), |out| coco::write(dataset, out))?;
    }
    folder.finish()?;
    Ok((sparse, datasets.remove(1)))
}

/// A preset with the demo's own paths, seed and length.
fn config(name: &str, text: &str, folder: &DemoFolder, args: &Args) -> Result<RunConfig> {
    let path = PathBuf::from(format!("synth-{name}.toml"));
    let mut config = RunConfig::parse(ConfigSource { path: &path, text, overrides: &[] })?;
    config.train.seed = args.seed;
    if let Some(iterations) = args.iterations {
        let share = iterations as f64 / config.train.iterations as f64;
        let scale = |iteration: &mut u64| *iteration = (*iteration as f64 * share) as u64;
        config.train.iterations = iterations;
        config.train.lr_milestones.iter_mut().for_each(scale);
        if let Method::Calibrated(method) = &mut config.method {
            scale(&mut method.teacher.start_iteration);
        }
    }
    config.data.train.path = Some(folder.at(DemoFolder::SPARSE));
    config.data.train.images = Some(folder.at("train"));
    config.data.hidden = Some(folder.at(DemoFolder::HIDDEN));
    config.data.test.path = Some(folder.at("annotations/instances_test.json"));
    config.data.test.images = Some(folder.at("test"));
    Ok(config)
}

/// What the teacher adds to the sparse annotations, and how well its scores and confidences match the truth.
struct CompletedDemo {
    recovered: Vec<Candidate>,
    /// The hidden boxes that were found, at an IoU of at least [`FOUND_IOU_MIN`].
    found: Recovery,
    /// The same at the IoU that confidences are about.
    found_exactly: Recovery,
    /// Of detections near an annotation in the test images.
    near: Calibration,
    /// Of candidates in the training images, by what was hidden.
    away: Calibration,
    completeness: Result<DatasetCompleteness, NoFit>,
}

/// How well scores, confidences of the calibrator from training, and those of the completeness calibrator match the
/// truth.
struct Calibration {
    scores: Reliability,
    trained: Reliability,
    completeness: Reliability,
}

impl Calibration {
    fn new<'a>(
        truths: &[Truth],
        trained: &Calibrator,
        completeness: impl Fn(&JudgedDetection) -> &'a Calibrator,
    ) -> Self {
        Self {
            scores: reliability(truths, |judged| judged.detection.score.0),
            trained: reliability(truths, |judged| judged.confidence(trained).0),
            completeness: reliability(truths, |judged| judged.confidence(completeness(judged)).0),
        }
    }

    fn json(&self) -> Value {
        json!({ "before": self.scores.ece(), "after": self.trained.ece(), "completeness": self.completeness.ece() })
    }
}

fn complete(
    folder: &DemoFolder,
    config: &RunConfig,
    Sparse { kept, hidden }: &Sparse,
    test: &Dataset,
) -> Result<CompletedDemo> {
    let model = Model::read(&Finished::model(&folder.at("calibrated")))?;
    let progress = Progress::new("completing annotations", kept.images().len() + test.images().len());
    let detect = |dataset: &Dataset, images: &str| {
        let (input, images) = (&model.config.input, folder.at(images));
        detect_all(&model.detector, input, (dataset, &images), OnBadImage::Error, &mut || progress.done())
    };
    let (in_train, in_test) = (detect(kept, "train")?.detections, detect(test, "test")?.detections);
    drop(progress);
    let Method::Calibrated(Calibrated { teacher, overlap, .. }) = &config.method else {
        unreachable!("the preset is of Calibrated Teacher")
    };
    let (score_min, iou_min) = (teacher.score_min, overlap.iou_high);
    let (in_train, in_test) = (judge(kept, &in_train, overlap), judge(test, &in_test, overlap));

    let trained = model.config.calibrator.clone().unwrap_or(Platt::IDENTITY.into());
    let options = FitOptions { kind: CalibratorKind::Completeness, per_class: false, score_min };
    // A demo that is cut short may find too little for a fit.
    let fitted = FoldedCalibrator::fit(&in_train, options).ok();
    let of_image =
        |judged: &JudgedDetection| fitted.as_ref().map_or(&trained, |fitted| fitted.of_image(judged.image));
    let near = Calibration::new(&judged_truths(&in_test, score_min), &trained, |_| {
        fitted.as_ref().map_or(&trained, |fitted| &fitted.whole)
    });
    let truths = candidate_truths(&in_train, score_min, hidden, iou_min);
    let away = Calibration::new(&truths, &trained, of_image);

    let candidates = candidates(&in_train, score_min, |judged| judged.confidence(of_image(judged)));
    let acceptance = Acceptance::Confidence(Confidence(CONFIDENCE_MIN));
    let Completion { recovered, .. } = Completion::new(candidates, acceptance, kept.categories().len());
    let whole = completed(kept, &recovered);
    write_file(&folder.at("completed.json"), IfExists::Refuse, |out| coco::write(&whole, out))?;
    Ok(CompletedDemo {
        found: recovery_at(FOUND_IOU_MIN, &recovered, hidden),
        found_exactly: recovery_at(iou_min, &recovered, hidden),
        recovered,
        near,
        away,
        completeness: DatasetCompleteness::new(kept, &in_train, score_min),
    })
}

/// How many of the hidden boxes were recovered, at an IoU of at least `iou_min`.
fn recovery_at(iou_min: f32, candidates: &[Candidate], hidden: &Dataset) -> Recovery {
    let of_image = |image: usize| {
        let of_image = candidates.iter().filter(|candidate| candidate.image == image);
        let detections: Vec<Detection> = of_image.map(|candidate| candidate.detection).collect();
        recovery(&detections, &hidden.objects_of(image), iou_min)
    };
    (0..hidden.images().len()).map(of_image).sum()
}

/// Draws the images with the most recovered boxes; returns how many.
fn draw_pictures(folder: &DemoFolder, kept: &Dataset, recovered: &[Candidate]) -> Result<usize> {
    let mut counts = vec![0; kept.images().len()];
    recovered.iter().for_each(|candidate| counts[candidate.image] += 1);
    let mut order: Vec<usize> = (0..counts.len()).filter(|&image| counts[image] > 0).collect();
    order.sort_by_key(|&image| std::cmp::Reverse(counts[image]));
    order.truncate(PICTURES);
    let pictures = NewFolder::create(&folder.at("pictures"), IfExists::Refuse)?;
    for &image in &order {
        let picture = draw_recovered(kept, &folder.at("train"), image, recovered)?;
        pictures.file(Path::new(&kept.images()[image].file_name), |out| picture.write_jpeg(out))?;
    }
    pictures.finish()?;
    Ok(order.len())
}

impl DemoResult {
    fn json(&self, args: &Args) -> Value {
        let ap = |ap: &AveragePrecision| json!({ "ap": ap.ap, "ap50": ap.ap50 });
        let Self { sparse, completed, in_training: [before, after], .. } = self;
        let CompletedDemo { recovered, found, found_exactly, near, away, .. } = completed;
        json!({
            "out": path_json(&args.out), "seed": args.seed, "seconds": self.seconds,
            "train": { "images": TRAIN_IMAGES, "given": sparse.kept.annotations().len(),
                       "hidden": sparse.hidden.annotations().len() },
            "baseline": ap(&self.baseline),
            "calibrated": ap(&self.teacher),
            "calibrated_student": ap(&self.student),
            "recovered": { "precision": found.precision(), "recall": found.recall(),
                           "boxes": found.proposed, "expected_precision": expected_precision(recovered),
                           "found_precision": found_exactly.precision() },
            "ece": { "before": before.ece(), "after": after.ece() },
            "ece_test": near.json(),
            "ece_candidates": away.json(),
        })
    }

    fn print(&self, folder: &DemoFolder, out: &mut impl std::io::Write) -> Result<()> {
        let Self { sparse: Sparse { kept, hidden }, completed, .. } = self;
        let counts = [kept.annotations().len(), hidden.annotations().len()].map(thousands);
        writeln!(
            out,
            "{} images, {} boxes given, {} hidden\n",
            thousands(TRAIN_IMAGES),
            counts[0],
            counts[1]
        )?;
        let mut table = Table::new(["trained on the given boxes", "AP", "AP50"]);
        for (name, ap) in [
            ("supervised", &self.baseline),
            ("Calibrated Teacher + Focal IoU", &self.teacher),
            ("  its student", &self.student),
        ] {
            table.row([name.into(), percent(ap.ap), percent(ap.ap50)]);
        }
        writeln!(out, "{table}")?;

        let CompletedDemo { recovered, found, found_exactly, completeness, .. } = completed;
        writeln!(
            out,
            "{} of {} hidden boxes recovered at an IoU of 0.5: recall {} %, precision {} %",
            thousands(found.right),
            thousands(found.hidden),
            percent(found.recall()),
            percent(found.precision())
        )?;
        writeln!(
            out,
            "at an IoU of 0.75, which confidences are about: promised precision {} %, found {} %",
            percent(expected_precision(recovered)),
            percent(found_exactly.precision())
        )?;
        if let Ok(estimate) = completeness {
            completeness_sentences(Ok(estimate), kept).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
        writeln!(out, "\n{}", self.calibration_table())?;

        let [supervised, calibrated, report, completed, pictures] =
            ["supervised", "calibrated", "report.html", "completed.json", "pictures"]
                .map(|name| folder.at(name));
        writeln!(out, "runs       {}, {}", supervised.display(), calibrated.display())?;
        writeln!(out, "report     {}", report.display())?;
        writeln!(out, "completed  {}", completed.display())?;
        writeln!(out, "pictures   {} ({}: given green, recovered red)", pictures.display(), self.pictures)?;
        writeln!(out, "\n{} min {} s", self.seconds / 60, self.seconds % 60)?;
        Ok(())
    }

    fn calibration_table(&self) -> Table {
        let mut table =
            Table::new(["calibration error of detections", "score", "Platt", "completeness", "number"]);
        let count = |reliability: &Reliability| thousands(reliability.count() as usize);
        let [before, after] = &self.in_training;
        table.row([
            "near an annotation, during training".into(),
            percent(before.ece()),
            percent(after.ece()),
            "-".into(),
            count(before),
        ]);
        for (name, Calibration { scores, trained, completeness }) in [
            ("near an annotation, in test images", &self.completed.near),
            ("candidates, in training images", &self.completed.away),
        ] {
            let [score, platt, known] = [scores, trained, completeness].map(|errors| percent(errors.ece()));
            table.row([name.into(), score, platt, known, count(scores)]);
        }
        table
    }
}
