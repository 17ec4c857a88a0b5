use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use lacuna_boxes::Detection;
use lacuna_calib::{Calibrator, CalibratorKind, Platt, Reliability};
use lacuna_data::decode::OnBadImage;
use lacuna_data::output::{IfExists, NewFolder, write_file};
use lacuna_data::sparsify::{Percent, Sparse, SparsifyKind, sparsify};
use lacuna_data::synth::SynthConfig;
use lacuna_data::{Dataset, coco};
use lacuna_eval::{AveragePrecision, Recovery, recovered};
use lacuna_gaps::{
    Candidate, FoldedCalibrator, JudgedDetection, candidates, completed, expected_precision, judge, samples,
};
use lacuna_train::config::{ConfigSource, RunConfig};
use lacuna_train::evaluate::detect_all;
use lacuna_train::methods::{Calibrated, Method};
use lacuna_train::metrics::FOUND_IOU_MIN;
use lacuna_train::model::Model;
use lacuna_train::run::{Begin, Finished, TrainError};
use serde_json::json;

use super::{report, shown, synth};
use crate::gallery::picture;
use crate::gaps::Gaps;
use crate::progress::Progress;
use crate::table::{Table, thousands};
use crate::training::{self, percent};

const TRAIN_IMAGES: usize = 100;
const TEST_IMAGES: usize = 200;
const HIDDEN_PERCENT: f64 = 50.0;

/// Boxes that are likelier to be right than not are added.
const CONFIDENCE_MIN: f32 = 0.5;

/// So many pictures of recovered boxes are made, and so many of each kind are in the report.
const PICTURES: usize = 12;
const REPORT_PICTURES: usize = 8;

/// The whole story on made data: hide half of the boxes, train in spite of it, get them back
///
/// Makes a data set and hides half of the boxes of every class. Trains a detector on what is left as if it
/// were complete, and another with Calibrated Teacher and Focal IoU weight for as many iterations. Tests
/// both on clean images, and completes the annotations with the second.
#[derive(clap::Args)]
pub struct Args {
    /// The folder to make
    #[arg(long, value_name = "DIR", default_value = "lacuna-demo")]
    out: PathBuf,

    // TOML's whole numbers have a sign.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,

    /// Train each for so many iterations; the steps of the learning rate and the first pseudo labels move
    /// along [default: the presets']
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,

    /// Replace a folder that exists
    #[arg(long)]
    force: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Where everything is, from the demo's folder.
struct Places {
    out: PathBuf,
}

impl Places {
    const SPARSE: &str = "annotations/instances_train_sparse.json";
    const HIDDEN: &str = "annotations/instances_train_hidden.json";

    fn at(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }
}

pub fn run(args: &Args) -> Result<()> {
    let began = Instant::now();
    let places = Places { out: args.out.clone() };
    let (sparse, test) = make_data(args)?;
    let Sparse { kept, hidden } = &sparse;

    let run = |name: &str, text: &str| -> Result<(RunConfig, Finished)> {
        let config = config(name, text, &places, args)?;
        let folder = places.at(name);
        match training::train(config.clone(), &folder, Begin::New(IfExists::Refuse), Some(name)) {
            Ok(finished) => Ok((config, finished)),
            // A demo is begun anew, not gone on with.
            Err(TrainError::Interrupted { .. }) => Err(lacuna_data::Error::Interrupted.into()),
            Err(error) => Err(error.into()),
        }
    };
    let (_, baseline) = run("supervised", include_str!("../../../../configs/synth-supervised.toml"))?;
    let (config, calibrated) = run("calibrated", include_str!("../../../../configs/synth-calibrated.toml"))?;
    let (before, after) = calibrated.last.window.judged();
    let in_training = [before.clone(), after.clone()];
    let completion = complete(&places, &config, &sparse, &test)?;
    let pictures = draw_pictures(&places, kept, &completion.missing)?;
    let page = report::report_of(&places.at("calibrated"), REPORT_PICTURES, TRAIN_IMAGES)?;
    write_file(&places.at("report.html"), IfExists::Refuse, |out| out.write_all(page.to_html().as_bytes()))?;

    let baseline = baseline.last.student.expect("the demo has a test set");
    let teacher = calibrated.last.teacher.expect("the demo has a test set and a teacher");
    let student = calibrated.last.student.expect("the demo has a test set");
    let seconds = began.elapsed().as_secs();
    let mut out = std::io::stdout().lock();
    if args.json {
        let ap = |ap: &AveragePrecision| json!({ "ap": ap.ap, "ap50": ap.ap50 });
        let Completion { recovered, judged, candidates, .. } = &completion;
        let ece = |c: &Calibration| json!({ "before": c.scores.ece(), "after": c.trained.ece(), "completeness": c.completeness.ece() });
        let [before, after] = &in_training;
        let result = json!({
            "out": shown(&args.out), "seed": args.seed, "seconds": seconds,
            "train": { "images": TRAIN_IMAGES, "given": kept.annotations().len(),
                       "hidden": hidden.annotations().len() },
            "baseline": ap(&baseline),
            "calibrated": ap(&teacher),
            "calibrated_student": ap(&student),
            "recovered": { "precision": recovered.precision(), "recall": recovered.recall(),
                           "boxes": recovered.proposed, "expected_precision": completion.expected_precision,
                           "found_precision": completion.well_placed.precision() },
            "ece": { "before": before.ece(), "after": after.ece() },
            "ece_test": ece(judged),
            "ece_candidates": ece(candidates),
        });
        writeln!(out, "{result}")?;
        return Ok(());
    }
    write_report(
        &mut out,
        &places,
        (kept, hidden),
        [&baseline, &student, &teacher],
        &in_training,
        &completion,
        pictures,
    )?;
    writeln!(out, "\n{} min {} s", seconds / 60, seconds % 60)?;
    Ok(())
}

/// The folder with a data set of which half of the boxes are hidden.
fn make_data(args: &Args) -> Result<(Sparse, Dataset)> {
    let folder = NewFolder::create(&args.out, IfExists::forced(args.force))?;
    let config = SynthConfig { seed: args.seed, ..synth::small() };
    let splits = [("train", TRAIN_IMAGES), ("test", TEST_IMAGES)];
    let mut datasets = synth::make(&config, &splits, &folder)?;
    let half = Percent::new(HIDDEN_PERCENT).expect("it is a percentage");
    let sparse = sparsify(&datasets[0], SparsifyKind::Split1(half), args.seed);
    for (file, dataset) in [(Places::SPARSE, &sparse.kept), (Places::HIDDEN, &sparse.hidden)] {
        folder.file(Path::new(file), |out| coco::write(dataset, out))?;
    }
    folder.finish()?;
    Ok((sparse, datasets.remove(1)))
}

/// A preset with the demo's own places, seed and length.
fn config(name: &str, text: &str, places: &Places, args: &Args) -> Result<RunConfig> {
    let path = PathBuf::from(format!("configs/synth-{name}.toml"));
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
    config.data.train.path = Some(places.at(Places::SPARSE));
    config.data.train.images = Some(places.at("train"));
    config.data.hidden = Some(places.at(Places::HIDDEN));
    config.data.test.path = Some(places.at("annotations/instances_test.json"));
    config.data.test.images = Some(places.at("test"));
    Ok(config)
}

/// What the teacher adds to the sparse annotations, and how much its scores are worth.
struct Completion {
    missing: Vec<Candidate>,
    expected_precision: Option<f64>,
    recovered: Recovery,
    /// The same at the IoU that confidences are about.
    well_placed: Recovery,
    /// Of detections near an annotation of the test images.
    judged: Calibration,
    /// Of candidates in the training images, by what was hidden.
    candidates: Calibration,
    gaps: Option<Gaps>,
}

/// Scores, and confidences by the calibrator that training had and by the one that knows about the gaps, against
/// the truth.
#[derive(Default)]
struct Calibration {
    scores: Reliability,
    trained: Reliability,
    completeness: Reliability,
}

impl Calibration {
    fn add(&mut self, seen: &JudgedDetection, [trained, completeness]: [&Calibrator; 2], right: bool) {
        self.scores.add(seen.detection.score.0, right);
        self.trained.add(seen.confidence(trained).0, right);
        self.completeness.add(seen.confidence(completeness).0, right);
    }
}

fn complete(
    places: &Places,
    config: &RunConfig,
    Sparse { kept, hidden }: &Sparse,
    test: &Dataset,
) -> Result<Completion> {
    let model = Model::read(&Finished::model(&places.at("calibrated")))?;
    let progress = Progress::new("completing annotations", kept.images().len() + test.images().len());
    let detect = |dataset: &Dataset, folder: &str| {
        let part = (dataset, places.at(folder));
        let input = &model.config.input;
        detect_all(&model.detector, input, (part.0, &part.1), OnBadImage::Error, &mut || progress.done())
    };
    let (in_train, in_test) = (detect(kept, "train")?, detect(test, "test")?);
    drop(progress);
    let Method::Calibrated(Calibrated { teacher, overlap, .. }) = &config.method else {
        unreachable!("the preset is of Calibrated Teacher")
    };
    let (floor, in_train) = (teacher.score_min, judge(kept, &in_train.detections, overlap));
    let trained = model.config.calibrator.clone().unwrap_or(Platt::IDENTITY.into());
    // A demo that is cut short need not have found enough.
    let fitted = FoldedCalibrator::new(CalibratorKind::Completeness, false, &samples(&in_train, floor));
    let whole = fitted.as_ref().map_or(&trained, |fitted| &fitted.whole);
    let of_image = |image: usize| fitted.as_ref().map_or(&trained, |fitted| fitted.of_image(image));

    let (mut judged, mut of_candidates) = (Calibration::default(), Calibration::default());
    let above = |seen: &&JudgedDetection| seen.detection.score.0 > floor;
    for seen in judge(test, &in_test.detections, overlap).iter().flatten().filter(above) {
        if let Some(of) = seen.sample().and_then(|sample| sample.judged()) {
            judged.add(seen, [&trained, whole], of.right);
        }
    }
    for seen in in_train.iter().flatten().filter(above).filter(|seen| seen.is_candidate()) {
        let right = seen.is_one_of(&hidden.objects_of(seen.image), overlap.iou_high);
        of_candidates.add(seen, [&trained, of_image(seen.image)], right);
    }

    let mut missing = candidates(&in_train, floor, of_image);
    missing.retain(|missing| missing.confidence.0 >= CONFIDENCE_MIN);
    let found_at = |iou_min: f32| -> Recovery {
        let of_image = |image: usize| {
            let added = missing.iter().filter(|missing| missing.image == image);
            let added: Vec<Detection> = added.map(|missing| missing.detection).collect();
            recovered(&added, &hidden.objects_of(image), iou_min)
        };
        (0..kept.images().len()).map(of_image).sum()
    };
    let whole = completed(kept, &missing);
    write_file(&places.at("completed.json"), IfExists::Refuse, |out| coco::write(&whole, out))?;
    Ok(Completion {
        expected_precision: expected_precision(&missing),
        recovered: found_at(FOUND_IOU_MIN),
        well_placed: found_at(overlap.iou_high),
        missing,
        judged,
        candidates: of_candidates,
        gaps: Gaps::estimate(kept, &in_train, floor).ok(),
    })
}

/// Pictures of the images with the most recovered boxes.
fn draw_pictures(places: &Places, kept: &Dataset, missing: &[Candidate]) -> Result<usize> {
    let mut counts = vec![0; kept.images().len()];
    missing.iter().for_each(|missing| counts[missing.image] += 1);
    let mut order: Vec<usize> = (0..counts.len()).filter(|&image| counts[image] > 0).collect();
    order.sort_by_key(|&image| std::cmp::Reverse(counts[image]));
    order.truncate(PICTURES);
    let folder = NewFolder::create(&places.at("pictures"), IfExists::Refuse)?;
    for &image in &order {
        let picture = picture(kept, &places.at("train"), image, missing)?;
        folder.file(Path::new(&kept.images()[image].file_name), |out| picture.write_jpeg(out))?;
    }
    folder.finish()?;
    Ok(order.len())
}

fn write_report(
    out: &mut impl std::io::Write,
    places: &Places,
    (kept, hidden): (&Dataset, &Dataset),
    [baseline, student, teacher]: [&AveragePrecision; 3],
    [before, after]: &[Reliability; 2],
    completion: &Completion,
    pictures: usize,
) -> Result<()> {
    let counts = [kept.annotations().len(), hidden.annotations().len()].map(thousands);
    writeln!(out, "{} images, {} boxes given, {} hidden", thousands(TRAIN_IMAGES), counts[0], counts[1])?;
    writeln!(out)?;
    let mut table = Table::new(["trained on the given boxes", "AP", "AP50"]);
    let rows =
        [("supervised", baseline), ("Calibrated Teacher + Focal IoU", teacher), ("  its student", student)];
    for (name, ap) in rows {
        table.row([name.into(), percent(ap.ap), percent(ap.ap50)]);
    }
    write!(out, "{table}")?;
    writeln!(out)?;
    let Completion { recovered, well_placed, judged, candidates, gaps, expected_precision, .. } = completion;
    writeln!(
        out,
        "{} of {} hidden boxes recovered: {} % of them, with a precision of {} %",
        thousands(recovered.right),
        thousands(recovered.hidden),
        percent(recovered.recall()),
        percent(recovered.precision())
    )?;
    writeln!(
        out,
        "(at an IoU of 0.75, which confidences are about: promised {} %, found {} %)",
        percent(*expected_precision),
        percent(well_placed.precision())
    )?;
    gaps.iter().flat_map(|gaps| gaps.sentences(kept)).try_for_each(|line| writeln!(out, "{line}"))?;
    writeln!(out)?;
    let mut table =
        Table::new(["calibration error of detections", "score", "Platt", "completeness", "number"]);
    let count = |reliability: &Reliability| thousands(reliability.count() as usize);
    let training = [percent(before.ece()), percent(after.ece()), "-".into(), count(before)];
    let [score, platt, completeness, number] = training;
    table.row(["near an annotation, during training".into(), score, platt, completeness, number]);
    for (name, Calibration { scores, trained, completeness }) in
        [("near an annotation, in test images", judged), ("away from all annotations", candidates)]
    {
        let [score, platt, known] = [scores, trained, completeness].map(|errors| percent(errors.ece()));
        table.row([name.into(), score, platt, known, count(scores)]);
    }
    write!(out, "{table}")?;
    writeln!(out)?;
    writeln!(
        out,
        "runs               {}, {}",
        places.at("supervised").display(),
        places.at("calibrated").display()
    )?;
    writeln!(out, "report             {}", places.at("report.html").display())?;
    writeln!(out, "completed          {}", places.at("completed.json").display())?;
    writeln!(
        out,
        "pictures           {} ({pictures}: given green, recovered red)",
        places.at("pictures").display()
    )?;
    Ok(())
}
