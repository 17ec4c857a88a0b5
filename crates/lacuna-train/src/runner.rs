//! A run from its first iteration to its last: batches, iterations, lines, evaluations, checkpoints.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use lacuna_calib::Calibrator;
use lacuna_data::Object;
use lacuna_data::batch::{Loader, LoaderConfig, Order, Position};
use lacuna_data::output::{IfExists, NewFolder, write_file};
use lacuna_eval::AveragePrecision;
use lacuna_models::weights::{Checkpoint, WeightsError};
use lacuna_models::{Detector, Term};
use lacuna_random::{Purpose, Rng};

use crate::checkpoint::{CheckpointError, Checkpoints, Progress};
use crate::config::{DataConfig, Method, RunConfig, Saod, Source};
use crate::data::{Data, Part};
use crate::evaluate::{classes_in, detect_all, evaluate};
use crate::learner::{Learner, NotFinite, Step};
use crate::methods::{Epochs, Lesson};
use crate::metrics::{MetricsWindow, Record, term_name};
use crate::model::{Model, ModelCategory, ModelConfig, ModelError};
use crate::phases::{Phase, Stopwatch};

pub const CONFIG: &str = "config.toml";
pub const METRICS: &str = "metrics.jsonl";
const RESULTS: &str = "results.csv";

#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Data(#[from] lacuna_data::Error),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("{} is not the folder of a run: {why}", path.display())]
    NotARun { path: PathBuf, why: String },
    #[error("{} was begun with another `{key}`", path.display())]
    OtherConfig { path: PathBuf, key: String },
    #[error("another process is training in {}", path.display())]
    Running { path: PathBuf },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "the {what} of iteration {iteration} is not finite ({}); its images are {}",
        terms(losses),
        images.join(", ")
    )]
    NotFinite {
        what: &'static str,
        iteration: u64,
        losses: Vec<(Term, f32)>,
        images: Vec<String>,
        /// Everything before this iteration.
        kept: PathBuf,
    },
    #[error("{} was begun with other data: {what}", path.display())]
    OtherData { path: PathBuf, what: &'static str },
    #[error("stopped after iteration {iteration} of {of}")]
    Interrupted { iteration: u64, of: u64, run: PathBuf },
}

fn terms(losses: &[(Term, f32)]) -> String {
    losses.iter().map(|(term, loss)| format!("{} {loss}", term_name(*term))).collect::<Vec<_>>().join(", ")
}

impl TrainError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Data(lacuna_data::Error::Exists { .. }) => Some(
                "go on with it with `--resume`, replace it with `--force`, or choose another `--out`".into(),
            ),
            Self::Data(error) => error.hint(),
            Self::Model(error) => error.hint(),
            Self::Checkpoint(CheckpointError::Write { .. }) => {
                Some("what was kept before is still there; make room and go on with `--resume`".into())
            }
            Self::Checkpoint(CheckpointError::Unusable { .. }) => {
                Some("no checkpoint of the run can be used; start anew with `--force`".into())
            }
            Self::Checkpoint(CheckpointError::Model(error)) => error.hint(),
            Self::NotARun { .. } => Some("`--resume` goes on with a run that `lacuna train` began".into()),
            Self::OtherConfig { .. } => {
                Some("a run that is resumed must be the same; start another with another `--out`".into())
            }
            Self::NotFinite { kept, .. } => Some(format!(
                "lower `train.lr`, lengthen `train.warm_up_iterations` or set `train.gradient_norm_max`, in a run \
                 of another `--out`; with `start.model = \"{}\"` it begins where this one was",
                kept.display()
            )),
            Self::OtherData { .. } => Some("a run goes on with the data it was begun with".into()),
            Self::Interrupted { run, .. } => {
                Some(format!("go on with the same command and `--resume`; all is kept in {}", run.display()))
            }
            Self::Running { .. } | Self::Write { .. } => None,
        }
    }
}

/// Who looks at a run while it goes on.
pub trait Spectator {
    /// Whether to go on; asked often.
    fn go_on(&mut self) -> bool {
        true
    }
    fn warn(&mut self, _warning: String) {}
    /// The data has been read, and this is where the run is.
    fn begins(&mut self, _data: &Data, _iteration: u64) {}
    /// After each iteration; `window` is what happened since the last line.
    fn iteration(
        &mut self,
        _iteration: u64,
        _images: usize,
        _window: &MetricsWindow,
        _calibrator: Option<&Calibrator>,
    ) {
    }
    /// So many images of so many have been looked at in an evaluation.
    fn evaluating(&mut self, _images: usize, _of: usize) {}
    fn evaluated(&mut self, _record: &Record) {}
}

/// How a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// In a new folder.
    New(IfExists),
    /// Where it was when it stopped.
    Resume,
}

/// What a run leaves.
#[derive(Debug)]
pub struct Finished {
    /// The last evaluation, with what happened since the one before.
    pub last: Record,
    pub watch: Stopwatch,
    /// Of this process: a run that was resumed had more.
    pub iterations: u64,
    pub images: u64,
}

impl Finished {
    /// The model for use, with all that came before.
    pub fn model(run: &Path) -> PathBuf {
        Checkpoints::new(run).last()
    }
}

/// Trains to the end, in the folder `run`.
pub fn train(
    config: RunConfig,
    run: &Path,
    begin: Begin,
    spectator: &mut dyn Spectator,
) -> Result<Finished, TrainError> {
    match begin {
        Begin::New(if_exists) => check_new(&config, run, if_exists)?,
        Begin::Resume => check_begun(&config, run)?,
    }
    // No run is replaced while somebody works in it.
    let mut held = if run.join(CONFIG).exists() { Some(lock(run)?) } else { None };
    let data = Data::read(&config.data)?;
    let categories = data.categories();
    let config = config.with_n_classes(categories.len());
    let checkpoints = Checkpoints::new(run);
    let new = || first_student(&config, &categories, begin).map(|student| Learner::new(student, &config));
    let (learner, progress) = match begin {
        Begin::New(if_exists) => {
            let learner = new()?;
            make_folder(&config, run, if_exists)?;
            held = Some(lock(run)?);
            (learner, Progress::of(&data))
        }
        Begin::Resume => match checkpoints.read(new, &mut |warning| spectator.warn(warning))? {
            Some((learner, progress)) => {
                if let Some(what) = data.difference(&progress.data) {
                    return Err(TrainError::OtherData { path: run.to_owned(), what });
                }
                (learner, progress)
            }
            None => {
                let student = first_student(&config, &categories, Begin::New(IfExists::Refuse))?;
                (Learner::new(student, &config), Progress::of(&data))
            }
        },
    };
    spectator.begins(&data, learner.iteration);

    let model = ModelConfig {
        detector: config.detector.clone(),
        input: config.views.input(),
        calibrator: None,
        categories,
    };
    let files = Files::open(run, learner.iteration, progress.evaluated)?;
    let run = Run { config, data, folder: run.to_owned(), checkpoints, model, files };
    let finished = run.train(learner, progress, spectator);
    drop(held);
    finished
}

/// The student before its first iteration. One that is resumed has its weights elsewhere.
fn first_student(
    config: &RunConfig,
    categories: &[ModelCategory],
    begin: Begin,
) -> Result<Detector, ModelError> {
    let device = Device::flex().autodiff();
    let mut rng = Rng::new(Purpose::Weights, config.train.seed, 0, 0);
    let student = config.detector.init(&device, &mut rng);
    if begin == Begin::Resume {
        return Ok(student);
    }
    let weights = |error: WeightsError| ModelError::from(error);
    match (&config.start.backbone, &config.start.model) {
        (Some(path), _) => {
            Checkpoint::read(path).map_err(weights)?.into_backbone_of(student).map_err(weights)
        }
        (None, Some(folder)) => {
            let model = ModelConfig::read(folder)?;
            let names = |categories: &[ModelCategory]| -> Vec<String> {
                categories.iter().map(|category| category.name.clone()).collect()
            };
            let (of_model, of_data) = (names(&model.categories), names(categories));
            if model.has_names() && of_model != of_data {
                return Err(ModelError::OtherClasses {
                    path: folder.clone(),
                    model: of_model,
                    data: of_data,
                });
            }
            let [_, path] = Model::files(folder);
            Checkpoint::read(&path).map_err(weights)?.into_weights_of(student).map_err(weights)
        }
        (None, None) => Ok(student),
    }
}

/// Whether a new run may have this folder, before any work is done: nothing that it is made from is in it.
fn check_new(config: &RunConfig, run: &Path, if_exists: IfExists) -> Result<(), TrainError> {
    let DataConfig { train, test, hidden, .. } = &config.data;
    let parts = [train, test].into_iter().flat_map(|part| [&part.path, &part.images]);
    let inputs = parts.chain([hidden, &config.start.backbone, &config.start.model]).flatten();
    Ok(if_exists.check_all(&[run], &inputs.map(PathBuf::as_path).collect::<Vec<_>>())?)
}

/// Makes the folder of a new run.
fn make_folder(config: &RunConfig, run: &Path, if_exists: IfExists) -> Result<(), TrainError> {
    let folder = NewFolder::create(run, if_exists)?;
    folder.file(Path::new(CONFIG), |out| out.write_all(config.to_toml().as_bytes()))?;
    Ok(folder.finish()?)
}

/// Whether the run in this folder is the one that is to go on.
fn check_begun(config: &RunConfig, run: &Path) -> Result<(), TrainError> {
    let path = run.join(CONFIG);
    let not_a_run = |why: String| TrainError::NotARun { path: run.to_owned(), why };
    let begun = fs::read_to_string(&path).map_err(|error| not_a_run(format!("{CONFIG}: {error}")))?;
    let source = Source { path: &path, text: &begun, set: &[] };
    let begun = RunConfig::parse(source).map_err(|error| not_a_run(error.to_string()))?;
    match config.difference(&begun) {
        Some(key) => Err(TrainError::OtherConfig { path: run.to_owned(), key }),
        None => Ok(()),
    }
}

/// Held while a process trains in the folder; the system lets go of it when the process ends.
fn lock(run: &Path) -> Result<File, TrainError> {
    let path = run.join(".lock");
    let failed = |source| TrainError::Write { path: path.clone(), source };
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(TrainError::Running { path: run.to_owned() }),
        Err(fs::TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// The files that grow.
struct Files {
    metrics: (PathBuf, File),
    results: (PathBuf, File),
}

impl Files {
    /// Whatever they say of later iterations, and of evaluations that were not kept, is forgotten: it will be
    /// said again.
    fn open(run: &Path, iteration: u64, evaluated: u64) -> Result<Self, TrainError> {
        let of_json = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let limit = if line.get("event")? == "evaluation" { evaluated } else { iteration };
            Some(line.get("iteration")?.as_u64()? <= limit)
        };
        let heading = Record::csv_heading();
        let cells = heading.split(',').count();
        let of_csv = |line: &str| {
            let at = line.split(',').next()?.parse::<u64>().ok()?;
            Some(line.split(',').count() == cells && at <= evaluated)
        };
        Ok(Self {
            metrics: reopen(&run.join(METRICS), None, str::to_owned, of_json)?,
            results: reopen(&run.join(RESULTS), Some(&heading), |text| with_heading(text, &heading), of_csv)?,
        })
    }

    fn append((path, file): &mut (PathBuf, File), line: &str) -> Result<(), TrainError> {
        // In one piece: a process that is killed leaves whole lines.
        file.write_all(format!("{line}\n").as_bytes())
            .map_err(|source| TrainError::Write { path: path.clone(), source })
    }

    /// A checkpoint must not know of lines that a power cut could still take away.
    fn sync(&self) -> Result<(), TrainError> {
        for (path, file) in [&self.metrics, &self.results] {
            file.sync_data().map_err(|source| TrainError::Write { path: path.clone(), source })?;
        }
        Ok(())
    }
}

/// The whole rows of a table, each cell under the name that it had; a run that was begun by another version may have
/// other columns.
fn with_heading(text: &str, heading: &str) -> String {
    let mut lines = text.lines();
    let Some(had) = lines.next().filter(|had| *had != heading) else { return text.to_owned() };
    let names: Vec<&str> = had.split(',').collect();
    let rows = lines.map(|row| row.split(',').collect::<Vec<&str>>()).filter(|row| row.len() == names.len());
    let moved = |row: Vec<&str>| {
        let cell = |name: &str| names.iter().position(|of| *of == name).map_or("", |at| row[at]);
        heading.split(',').map(cell).collect::<Vec<_>>().join(",")
    };
    rows.map(moved).collect::<Vec<_>>().join("\n")
}

/// Opens a file to append to it, with the lines that are to be kept.
fn reopen(
    path: &Path,
    heading: Option<&str>,
    as_now: impl Fn(&str) -> String,
    is_kept: impl Fn(&str) -> Option<bool>,
) -> Result<(PathBuf, File), TrainError> {
    let failed = |source| TrainError::Write { path: path.to_owned(), source };
    let text = match fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(source) => return Err(lacuna_data::Error::Read { path: path.to_owned(), source }.into()),
    };
    let text = as_now(&text);
    let kept = text.lines().filter(|line| is_kept(line) == Some(true));
    write_file(path, IfExists::Replace, |out| {
        heading.into_iter().chain(kept).try_for_each(|line| writeln!(out, "{line}"))
    })?;
    let file = OpenOptions::new().append(true).open(path).map_err(failed)?;
    Ok((path.to_owned(), file))
}

/// What stays the same during a run.
struct Run {
    config: RunConfig,
    data: Data,
    folder: PathBuf,
    checkpoints: Checkpoints,
    model: ModelConfig,
    files: Files,
}

impl Run {
    fn train(
        mut self,
        mut learner: Learner,
        mut progress: Progress,
        spectator: &mut dyn Spectator,
    ) -> Result<Finished, TrainError> {
        let iterations = self.config.train.iterations;
        let mut loader = self.loader(progress.position);
        let epochs =
            Epochs { batches: loader.n_batches(), of_run: iterations as f64 / loader.n_batches() as f64 };
        self.look_ahead(epochs, spectator);
        let mut watch = Stopwatch::default();
        let first = learner.iteration;
        let (mut images, mut last, mut told) = (0, None, HashSet::new());
        loop {
            let at = learner.iteration;
            if at > 0 && progress.evaluated < at && self.evaluation_is_due(at) {
                match self.evaluate(&learner, &mut progress, epochs, &mut watch, spectator) {
                    Ok(record) => last = Some(record),
                    Err(TrainError::Data(lacuna_data::Error::Interrupted)) => {
                        return Err(self.interrupted(&learner, &progress));
                    }
                    Err(error) => return Err(error),
                }
            }
            let goes_on = at < iterations && spectator.go_on();
            let changed = at > first || last.is_some();
            if changed && (!goes_on || at.is_multiple_of(self.config.train.checkpoint_every)) {
                watch.time(Phase::Checkpoint, || self.keep(&learner, &progress))?;
            }
            if !goes_on {
                break;
            }

            let batch = watch.time(Phase::Load, || loader.next());
            for skipped in loader.take_skipped().iter().map(ToString::to_string) {
                if told.insert(skipped.clone()) {
                    spectator.warn(skipped);
                }
            }
            let batch = match batch.expect("a shuffled loader has no end") {
                Ok(batch) => batch,
                Err(error) => {
                    self.keep(&learner, &progress)?;
                    return Err(error.into());
                }
            };
            let indices = batch.images.clone();
            let ids: Vec<u64> = indices.iter().map(|&image| self.image(image).id).collect();
            let annotations = batch.objects.iter().map(Vec::len).sum();
            let position = batch.next;
            let result;
            let lesson = Lesson { config: &self.config, batch, ids: &ids, epochs, watch: &mut watch };
            (learner, result) = learner.step(lesson);
            let step = match result {
                Ok(step) => step,
                Err(not_finite) => return Err(self.not_finite(&learner, &progress, not_finite, &indices)),
            };
            progress.position = position;
            images += indices.len() as u64;
            watch.time(Phase::Log, || -> Result<(), TrainError> {
                self.account(&step, annotations, &ids, &learner, &mut progress, epochs, spectator)
            })?;
            let calibrator = learner.calibrator();
            spectator.iteration(learner.iteration, indices.len(), &progress.since_line, calibrator);
            if learner.iteration.is_multiple_of(self.config.train.log_every) {
                progress.since_line = MetricsWindow::default();
            }
        }
        match last {
            Some(last) if learner.iteration == iterations => {
                Ok(Finished { last, watch, iterations: iterations - first, images })
            }
            // A run that had come to its end before is judged again.
            None if learner.iteration == iterations => {
                let last = self.judged(&learner, &progress, epochs, &mut watch, spectator)?;
                Ok(Finished { last, watch, iterations: iterations - first, images })
            }
            _ => Err(self.interrupted_error(&learner)),
        }
    }

    /// Says what can be known to be odd before anything is trained.
    fn look_ahead(&self, epochs: Epochs, spectator: &mut dyn Spectator) {
        if let Method::Dynamic(method) = &self.config.method
            && method.epoch_end.map_or(epochs.of_run, |end| end.min(epochs.of_run))
                <= method.epoch_start + 1.0
        {
            spectator.warn(format!(
                "the run has {:.1} epochs, and the threshold grows from epoch {} on: it will stay at {}",
                epochs.of_run,
                method.epoch_start + 1.0,
                method.threshold_start
            ));
        }
        let iterations = self.config.train.iterations;
        if let Some(first) = self.config.method.first_pseudo_labels().filter(|first| *first >= iterations) {
            spectator.warn(format!(
                "there will be no pseudo labels: they begin after {first} iterations, and the run has {iterations}"
            ));
        }
        if let Method::Saod(Saod { mining_start, .. }) = &self.config.method
            && *mining_start >= iterations
        {
            spectator.warn(format!(
                "no regions will be mined: that begins after {mining_start} iterations, and the run has {iterations}"
            ));
        }
        let Some(Part { dataset, .. }) = &self.data.test else { return };
        let known = classes_in(&self.model.categories, dataset);
        for (class, category) in dataset.categories().iter().enumerate() {
            if !known.contains(&Some(class)) {
                spectator.warn(format!("the class `{}` is tested, but not trained", category.name));
            }
        }
    }

    fn image(&self, index: usize) -> &lacuna_data::Image {
        &self.data.train.dataset.images()[index]
    }

    fn loader(&self, start: Position) -> Loader {
        let RunConfig { method, views, train, data, .. } = &self.config;
        let config = LoaderConfig {
            batch_size: train.batch_size,
            recipes: method.views(views.range()),
            normalize: views.normalize,
            order: Order::Shuffled,
            seed: train.seed,
            workers: train.workers,
            prefetch: 2,
            on_bad_image: data.on_bad_image,
        };
        let Part { dataset, folder, .. } = &self.data.train;
        Loader::new(dataset.clone(), folder.clone(), config, start)
    }

    fn evaluation_is_due(&self, iteration: u64) -> bool {
        let train = &self.config.train;
        iteration == train.iterations
            || train.evaluate_every.is_some_and(|every| iteration.is_multiple_of(every))
    }

    /// Adds an iteration to the sums; when it is time, writes their line.
    #[allow(clippy::too_many_arguments)]
    fn account(
        &mut self,
        step: &Step,
        annotations: usize,
        ids: &[u64],
        learner: &Learner,
        progress: &mut Progress,
        epochs: Epochs,
        spectator: &mut dyn Spectator,
    ) -> Result<(), TrainError> {
        let hidden: Option<Vec<Vec<Object>>> = self
            .data
            .hidden
            .as_ref()
            .map(|hidden| ids.iter().map(|id| hidden.get(id).cloned().unwrap_or_default()).collect());
        for window in [&mut progress.since_line, &mut progress.since_evaluation] {
            window.add(step, annotations, hidden.as_deref());
        }
        let at = learner.iteration;
        let first_pseudo_labels = self.config.method.first_pseudo_labels();
        if let Some(first) = first_pseudo_labels {
            let warnings = progress.watch.after_step(at, first, step);
            warnings.into_iter().for_each(|warning| spectator.warn(warning));
        }
        if at.is_multiple_of(self.config.train.log_every) {
            if first_pseudo_labels.is_some() {
                let warnings = progress.watch.after_window(at, &progress.since_line);
                warnings.into_iter().for_each(|warning| spectator.warn(warning));
            }
            let record = self.record(learner, progress, progress.since_line.clone(), epochs);
            Files::append(&mut self.files.metrics, &record.json("train"))?;
        }
        Ok(())
    }

    fn record(
        &self,
        learner: &Learner,
        progress: &Progress,
        window: MetricsWindow,
        epochs: Epochs,
    ) -> Record {
        Record {
            iteration: learner.iteration,
            epoch: learner.iteration as f64 / epochs.batches as f64,
            lr: self.config.train.sgd(learner.iteration.saturating_sub(1)).learning_rate,
            taught: self.config.method.first_pseudo_labels().is_some(),
            window,
            calibrator: learner.calibrator().cloned(),
            threshold: learner.threshold(&self.config, progress.position, epochs),
            student: None,
            teacher: None,
        }
    }

    fn evaluate(
        &mut self,
        learner: &Learner,
        progress: &mut Progress,
        epochs: Epochs,
        watch: &mut Stopwatch,
        spectator: &mut dyn Spectator,
    ) -> Result<Record, TrainError> {
        let record = self.judged(learner, progress, epochs, watch, spectator)?;
        Files::append(&mut self.files.metrics, &record.json("evaluation"))?;
        Files::append(&mut self.files.results, &record.csv())?;
        let of_model = record.teacher.as_ref().or(record.student.as_ref()).and_then(|ap| ap.ap);
        if let Some(ap) = of_model
            && progress.best.is_none_or(|best| ap > best)
        {
            watch.time(Phase::Checkpoint, || self.checkpoints.write_best(learner, &self.model))?;
            progress.best = Some(ap);
        }
        progress.evaluated = learner.iteration;
        progress.since_evaluation = MetricsWindow::default();
        spectator.evaluated(&record);
        Ok(record)
    }

    /// Where the learner is, by the test images if there are any.
    fn judged(
        &self,
        learner: &Learner,
        progress: &Progress,
        epochs: Epochs,
        watch: &mut Stopwatch,
        spectator: &mut dyn Spectator,
    ) -> Result<Record, TrainError> {
        let record = self.record(learner, progress, progress.since_evaluation.clone(), epochs);
        let plain = burn::module::Module::valid(&learner.student);
        let student = self.average_precision(&plain, watch, spectator)?;
        let teacher = match &learner.teacher {
            Some(teacher) => self.average_precision(&teacher.detector, watch, spectator)?,
            None => None,
        };
        Ok(Record { student, teacher, ..record })
    }

    fn average_precision(
        &self,
        detector: &Detector,
        watch: &mut Stopwatch,
        spectator: &mut dyn Spectator,
    ) -> Result<Option<AveragePrecision>, TrainError> {
        let Some(Part { dataset, folder, .. }) = &self.data.test else { return Ok(None) };
        watch.time(Phase::Evaluate, || {
            let on_bad_image = self.config.data.on_bad_image;
            let (mut images, of) = (0, dataset.images().len());
            let mut go_on = || {
                images += 1;
                spectator.evaluating(images, of);
                spectator.go_on()
            };
            let found = detect_all(detector, &self.model.input, (dataset, folder), on_bad_image, &mut go_on)?;
            for skipped in &found.skipped {
                spectator.warn(skipped.to_string());
            }
            let classes = classes_in(&self.model.categories, dataset);
            Ok(Some(evaluate(dataset, &found.detections, &classes)))
        })
    }

    fn interrupted_error(&self, learner: &Learner) -> TrainError {
        let of = self.config.train.iterations;
        TrainError::Interrupted { iteration: learner.iteration, of, run: self.folder.clone() }
    }

    /// Keeps everything, and says so.
    fn interrupted(&self, learner: &Learner, progress: &Progress) -> TrainError {
        match self.keep(learner, progress) {
            Ok(()) => self.interrupted_error(learner),
            Err(error) => error,
        }
    }

    fn keep(&self, learner: &Learner, progress: &Progress) -> Result<(), TrainError> {
        self.files.sync()?;
        Ok(self.checkpoints.write_last(learner, &self.model, progress)?)
    }

    /// Keeps the state before the iteration.
    fn not_finite(
        &self,
        learner: &Learner,
        progress: &Progress,
        NotFinite { what, losses }: NotFinite,
        images: &[usize],
    ) -> TrainError {
        if let Err(error) = self.keep(learner, progress) {
            return error;
        }
        let images = images.iter().map(|&image| self.image(image).file_name.clone()).collect();
        let (iteration, kept) = (learner.iteration + 1, self.checkpoints.last());
        TrainError::NotFinite { what, iteration, losses, images, kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of iterations that were not kept, evaluations that were not kept, and lines that are not whole
    /// are forgotten when a run goes on.
    #[test]
    fn lines_after_the_checkpoint_are_forgotten() {
        let run = tempfile::tempdir().expect("a temporary folder");
        let line = |event: &str, at: u64| format!("{{\"event\":\"{event}\",\"iteration\":{at}}}\n");
        let metrics = [line("train", 10), line("evaluation", 10), line("train", 20), line("evaluation", 20)];
        fs::write(run.path().join(METRICS), metrics.concat() + &line("train", 30) + "{\"event\":\"tr")
            .expect("it can be written");
        let heading = Record::csv_heading();
        let row = |at: u64| at.to_string() + &",0".repeat(heading.split(',').count() - 1);
        let rows = [heading.clone(), row(10), row(20), "1".to_owned()].join("\n");
        fs::write(run.path().join(RESULTS), rows).expect("it can be written");

        drop(Files::open(run.path(), 20, 10).expect("the files can be opened"));
        let read = |name: &str| fs::read_to_string(run.path().join(name)).expect("it can be read");
        assert_eq!(read(METRICS), metrics[..3].concat());
        assert_eq!(read(RESULTS), [heading.clone(), row(10)].join("\n") + "\n");
    }

    #[test]
    fn rows_of_other_columns_keep_their_cells() {
        assert_eq!(with_heading("a,c\n1,3\n4\n5,6\n", "a,b,c"), "1,,3\n5,,6");
        assert_eq!(with_heading("a,b\n1,2\n", "a,b"), "a,b\n1,2\n");
    }

    #[test]
    fn a_folder_is_held_by_one_at_a_time() {
        let run = tempfile::tempdir().expect("a temporary folder");
        let held = lock(run.path()).expect("nobody else is here");
        assert!(matches!(lock(run.path()), Err(TrainError::Running { .. })));
        drop(held);
        assert!(lock(run.path()).is_ok());
    }
}
