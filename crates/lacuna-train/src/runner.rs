//! A run from its first iteration to its last: batches, iterations, lines, evaluations, checkpoints.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use lacuna_data::Object;
use lacuna_data::batch::{Loader, LoaderConfig, Order, Position, Recipe};
use lacuna_data::output::{IfExists, NewFolder, write_file};
use lacuna_eval::AveragePrecision;
use lacuna_models::weights::{Checkpoint, WeightsError};
use lacuna_models::{Detector, Term};
use lacuna_random::{Purpose, Rng};

use crate::checkpoint::{CheckpointError, Checkpoints, Progress};
use crate::config::{Method, RunConfig, Source};
use crate::data::{Data, Part};
use crate::evaluate::{classes_in, detect_all, evaluate};
use crate::metrics::{Record, Window};
use crate::model::{Model, ModelConfig, ModelError};
use crate::phases::{Phase, Stopwatch};
use crate::step::{Epochs, Learner, NotFinite, Step};

const CONFIG: &str = "config.toml";
const METRICS: &str = "metrics.jsonl";
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
        "the loss of iteration {iteration} is not finite ({}); its images are {}",
        terms(losses),
        images.join(", ")
    )]
    NotFinite { iteration: u64, losses: Vec<(Term, f32)>, images: Vec<String>, kept: Option<PathBuf> },
    #[error("stopped after iteration {iteration} of {of}")]
    Interrupted { iteration: u64, of: u64, run: PathBuf },
}

fn terms(losses: &[(Term, f32)]) -> String {
    losses.iter().map(|(term, loss)| format!("{term:?}: {loss}")).collect::<Vec<_>>().join(", ")
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
                Some("the one before is still there; make room and go on with `--resume`".into())
            }
            Self::Checkpoint(CheckpointError::Unusable { .. }) => {
                Some("neither checkpoint can be used; start anew with `--force`".into())
            }
            Self::NotARun { .. } => Some("`--resume` goes on with a run that `lacuna train` began".into()),
            Self::OtherConfig { .. } => {
                Some("a run that is resumed must be the same; start another with another `--out`".into())
            }
            Self::NotFinite { kept, .. } => {
                let kept = kept.as_ref().map_or(String::new(), |path| {
                    format!("; everything before this iteration is kept in {}", path.display())
                });
                Some(format!(
                    "lower `train.lr`, lengthen `train.warm_up_iterations` or set `train.gradient_norm_max`{kept}"
                ))
            }
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
    fn go_on(&mut self) -> bool;
    fn warn(&mut self, warning: String);
    /// The data has been read, and this is where the run is.
    fn begins(&mut self, data: &Data, iteration: u64);
    /// After each iteration; `window` is what happened since the last line.
    fn iteration(&mut self, iteration: u64, images: usize, window: &Window);
    fn line(&mut self, record: &Record);
    fn evaluating(&mut self);
    fn evaluated(&mut self, record: &Record);
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
    let data = Data::read(&config.data)?;
    let categories = data.categories();
    let config = config.with_n_classes(categories.len());
    let student = first_student(&config)?;
    begin_folder(&config, run, begin)?;
    let _lock = lock(run)?;

    let checkpoints = Checkpoints::new(run);
    let new = || Learner::new(student.clone(), &config);
    let kept = match begin {
        Begin::New(_) => None,
        Begin::Resume => checkpoints.read(new, &mut |warning| spectator.warn(warning))?,
    };
    let (learner, progress) = kept.unwrap_or_else(|| (new(), Progress::default()));
    drop(student);
    spectator.begins(&data, learner.iteration);

    let model = ModelConfig {
        detector: config.detector.clone(),
        input: config.views.input(),
        calibrator: None,
        categories,
    };
    let files = Files::open(run, learner.iteration)?;
    let run = Run { config, data, folder: run.to_owned(), checkpoints, model, files };
    run.train(learner, progress, spectator)
}

/// The student before its first iteration.
fn first_student(config: &RunConfig) -> Result<Detector, ModelError> {
    let device = Device::flex().autodiff();
    let mut rng = Rng::new(Purpose::Weights, config.train.seed, 0, 0);
    let student = config.detector.init(&device, &mut rng);
    let weights = |error: WeightsError| ModelError::from(error);
    match (&config.start.backbone, &config.start.model) {
        (Some(path), _) => {
            Checkpoint::read(path).map_err(weights)?.into_backbone_of(student).map_err(weights)
        }
        (None, Some(folder)) => {
            let [_, path] = Model::files(folder);
            Checkpoint::read(&path).map_err(weights)?.into_weights_of(student).map_err(weights)
        }
        (None, None) => Ok(student),
    }
}

/// Makes the folder of a new run, or looks whether the one that is there is of the same run.
fn begin_folder(config: &RunConfig, run: &Path, begin: Begin) -> Result<(), TrainError> {
    let text = config.to_toml();
    match begin {
        Begin::New(if_exists) => {
            let folder = NewFolder::create(run, if_exists)?;
            folder.file(Path::new(CONFIG), |out| out.write_all(text.as_bytes()))?;
            Ok(folder.finish()?)
        }
        Begin::Resume => {
            let path = run.join(CONFIG);
            let not_a_run = |why: String| TrainError::NotARun { path: run.to_owned(), why };
            let begun = fs::read_to_string(&path).map_err(|error| not_a_run(format!("{CONFIG}: {error}")))?;
            let source = Source { path: &path, text: &begun, set: &[] };
            let begun = RunConfig::parse(source).map_err(|error| not_a_run(error.to_string()))?;
            let begun = begun.with_n_classes(config.detector.n_classes());
            match config.difference(&begun) {
                Some(key) => Err(TrainError::OtherConfig { path: run.to_owned(), key }),
                None => Ok(()),
            }
        }
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
    /// Whatever they say of later iterations is forgotten: it will be said again.
    fn open(run: &Path, iteration: u64) -> Result<Self, TrainError> {
        let of_json = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            line.get("iteration")?.as_f64()
        };
        let of_csv = |line: &str| line.split(',').next()?.parse::<f64>().ok();
        let heading = Record::csv_heading();
        Ok(Self {
            metrics: reopen(&run.join(METRICS), None, iteration, of_json)?,
            results: reopen(&run.join(RESULTS), Some(&heading), iteration, of_csv)?,
        })
    }

    fn append((path, file): &mut (PathBuf, File), line: &str) -> Result<(), TrainError> {
        // In one piece: a process that is killed leaves whole lines.
        file.write_all(format!("{line}\n").as_bytes())
            .map_err(|source| TrainError::Write { path: path.clone(), source })
    }
}

fn reopen(
    path: &Path,
    heading: Option<&str>,
    iteration: u64,
    iteration_of: impl Fn(&str) -> Option<f64>,
) -> Result<(PathBuf, File), TrainError> {
    let failed = |source| TrainError::Write { path: path.to_owned(), source };
    let kept: Vec<String> = match File::open(path) {
        Ok(file) => {
            let lines = BufReader::new(file).lines().map_while(Result::ok);
            lines.filter(|line| iteration_of(line).is_some_and(|at| at <= iteration as f64)).collect()
        }
        Err(_) => Vec::new(),
    };
    write_file(path, IfExists::Replace, |out| {
        heading.map(str::to_owned).into_iter().chain(kept).try_for_each(|line| writeln!(out, "{line}"))
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
        let (mut images, mut last) = (0, None);
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
            if at > 0 && (!goes_on || at.is_multiple_of(self.config.train.checkpoint_every)) {
                watch.time(Phase::Checkpoint, || {
                    self.checkpoints.write_last(&learner, &self.model, &progress)
                })?;
            }
            if !goes_on {
                break;
            }

            let batch = watch.time(Phase::Load, || loader.next());
            for skipped in loader.take_skipped() {
                spectator.warn(skipped.to_string());
            }
            let batch = match batch.expect("a shuffled loader has no end") {
                Ok(batch) => batch,
                Err(error) => {
                    self.checkpoints.write_last(&learner, &self.model, &progress)?;
                    return Err(error.into());
                }
            };
            let indices = batch.images.clone();
            let ids: Vec<u64> = indices.iter().map(|&image| self.image(image).id).collect();
            let annotations = batch.objects.iter().map(Vec::len).sum();
            let position = batch.next;
            let result;
            (learner, result) = learner.step(&self.config, batch, &ids, epochs, &mut watch);
            let step = match result {
                Ok(step) => step,
                Err(NotFinite { losses }) => {
                    return Err(self.not_finite(&learner, &progress, losses, &indices));
                }
            };
            progress.position = position;
            images += indices.len() as u64;
            watch.time(Phase::Log, || -> Result<(), TrainError> {
                self.account(&step, annotations, &ids, &learner, &mut progress, epochs, spectator)
            })?;
            spectator.iteration(learner.iteration, indices.len(), &progress.since_line);
            if learner.iteration.is_multiple_of(self.config.train.log_every) {
                progress.since_line = Window::default();
            }
        }
        match last {
            Some(last) if learner.iteration == iterations => {
                Ok(Finished { last, watch, iterations: iterations - first, images })
            }
            // A run that had come to its end before.
            None if learner.iteration == iterations => {
                let last = self.record(&learner, progress.since_evaluation.clone(), epochs, None);
                Ok(Finished { last, watch, iterations: iterations - first, images })
            }
            _ => Err(self.interrupted_error(&learner)),
        }
    }

    /// Says what can be known to be odd before anything is trained.
    fn look_ahead(&self, epochs: Epochs, spectator: &mut dyn Spectator) {
        if let Method::Dynamic(method) = &self.config.method
            && method.epoch_end.unwrap_or(epochs.of_run) <= method.epoch_start + 1.0
        {
            spectator.warn(format!(
                "the run has {:.1} epochs, and the threshold grows from epoch {} on: it will stay at {}",
                epochs.of_run,
                method.epoch_start + 1.0,
                method.threshold_start
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
        let range = views.range();
        let of_student = if method.strong_view() { Recipe::Strong(range) } else { Recipe::Weak(range) };
        let of_teacher = method.teaching().map(|_| Recipe::Weak(range));
        let config = LoaderConfig {
            batch_size: train.batch_size,
            recipes: of_teacher.into_iter().chain([of_student]).collect(),
            normalize: views.normalize,
            order: Order::Shuffled,
            seed: train.seed,
            workers: train.workers,
            prefetch: 2,
            on_bad_image: data.on_bad_image.into(),
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
        let teaching = self.config.method.teaching();
        if let Some((teacher, _)) = teaching {
            let warnings = progress.watch.after_step(at, teacher.start_iteration, step);
            warnings.into_iter().for_each(|warning| spectator.warn(warning));
        }
        if at.is_multiple_of(self.config.train.log_every) {
            if teaching.is_some() {
                let warnings = progress.watch.after_window(at, &progress.since_line);
                warnings.into_iter().for_each(|warning| spectator.warn(warning));
            }
            let record = self.record(learner, progress.since_line.clone(), epochs, Some(step));
            Files::append(&mut self.files.metrics, &record.json("train"))?;
            spectator.line(&record);
        }
        Ok(())
    }

    fn record(&self, learner: &Learner, window: Window, epochs: Epochs, step: Option<&Step>) -> Record {
        let calibration = learner.teacher.as_ref().and_then(|teacher| teacher.calibration.as_ref());
        Record {
            iteration: learner.iteration,
            epoch: learner.iteration as f64 / epochs.batches as f64,
            lr: self.config.train.sgd(learner.iteration.saturating_sub(1)).learning_rate,
            window,
            calibrator: calibration.and_then(|calibration| calibration.calibrator),
            threshold: match step {
                Some(step) => step.threshold,
                None => learner.threshold(&self.config, self.position_of(learner, epochs), epochs),
            },
            student: None,
            teacher: None,
        }
    }

    fn position_of(&self, learner: &Learner, epochs: Epochs) -> Position {
        let batches = epochs.batches as u64;
        Position { epoch: learner.iteration / batches, batch: (learner.iteration % batches) as usize }
    }

    fn evaluate(
        &mut self,
        learner: &Learner,
        progress: &mut Progress,
        epochs: Epochs,
        watch: &mut Stopwatch,
        spectator: &mut dyn Spectator,
    ) -> Result<Record, TrainError> {
        let mut record = self.record(learner, progress.since_evaluation.clone(), epochs, None);
        if self.data.test.is_some() {
            spectator.evaluating();
            let plain = burn::module::Module::valid(&learner.student);
            record.student = self.average_precision(&plain, watch, spectator)?;
            if let Some(teacher) = &learner.teacher {
                record.teacher = self.average_precision(&teacher.detector, watch, spectator)?;
            }
        }
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
        progress.since_evaluation = Window::default();
        spectator.evaluated(&record);
        Ok(record)
    }

    fn average_precision(
        &self,
        detector: &Detector,
        watch: &mut Stopwatch,
        spectator: &mut dyn Spectator,
    ) -> Result<Option<AveragePrecision>, TrainError> {
        let Some(Part { dataset, folder, .. }) = &self.data.test else { return Ok(None) };
        watch.time(Phase::Evaluate, || {
            let on_bad_image = self.config.data.on_bad_image.into();
            let found =
                detect_all(detector, &self.model.input, (dataset, folder), on_bad_image, &mut || {
                    spectator.go_on()
                })?;
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
        match self.checkpoints.write_last(learner, &self.model, progress) {
            Ok(()) => self.interrupted_error(learner),
            Err(error) => error.into(),
        }
    }

    /// Keeps the state before the iteration, unless the weights were already lost.
    fn not_finite(
        &self,
        learner: &Learner,
        progress: &Progress,
        losses: Vec<(Term, f32)>,
        images: &[usize],
    ) -> TrainError {
        let kept = match crate::optim::is_finite(&learner.student) {
            true => match self.checkpoints.write_last(learner, &self.model, progress) {
                Ok(()) => Some(self.checkpoints.last()),
                Err(error) => return error.into(),
            },
            false => None,
        };
        let images = images.iter().map(|&image| self.image(image).file_name.clone()).collect();
        TrainError::NotFinite { iteration: learner.iteration + 1, losses, images, kept }
    }
}
