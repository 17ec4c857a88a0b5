//! Checkpoints: the whole state of a run on disk, from which it resumes bit-identically.
//!
//! `checkpoints/last` is a model folder with everything else that training changes beside the model. A new one is
//! written under another name and synced before it replaces the last, which stays as `previous`. Lengths and check sums
//! of all files are in `state.json`, which is written last and has a check sum of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use burn::module::Module;
use lacuna_boxes::Score;
use lacuna_calib::{Calibrator, Outcome, Sample};
use lacuna_data::batch::Position;
use lacuna_models::Detector;
use lacuna_models::weights::{Checkpoint, WeightsError, to_safetensors};
use serde::{Deserialize, Serialize};

use crate::data::{Data, Fingerprint};
use crate::learner::Learner;
use crate::metrics::MetricsWindow;
use crate::model::{self, ModelConfig, ModelError};
use crate::optim::InPlace;
use crate::warnings::RunWarnings;

const STATE: &str = "state.json";
const STUDENT: &str = "student.safetensors";
const MOMENTUM: &str = "momentum.safetensors";

/// The state of a run besides its learner.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Progress {
    /// What the run is trained on.
    pub(crate) data: Fingerprint,
    /// Where the next batch is.
    pub(crate) position: Position,
    /// The iteration of the last evaluation.
    pub(crate) evaluated: u64,
    /// The best AP so far.
    pub(crate) best: Option<f64>,
    pub(crate) since_line: MetricsWindow,
    pub(crate) since_evaluation: MetricsWindow,
    pub(crate) warnings: RunWarnings,
}

impl Progress {
    /// Before the first iteration.
    pub(crate) fn new(data: &Data) -> Self {
        Self { data: data.fingerprint(), ..Self::default() }
    }
}

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// It could not be written; the one before is still there.
    #[error("cannot write the checkpoint {}: {source}", path.display())]
    Write {
        /// The checkpoint.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is missing parts, or damaged.
    #[error("the checkpoint {} cannot be used: {why}", path.display())]
    Unusable {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The learner that it is read into could not be made.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// `state.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    data: Fingerprint,
    iteration: u64,
    epoch: u64,
    batch: usize,
    evaluated: u64,
    best: Option<f64>,
    calibrator: Option<Calibrator>,
    /// Class, score and outcome of the detections of each image, the oldest first.
    queue: Vec<Vec<(usize, f32, Outcome)>>,
    since_line: MetricsWindow,
    since_evaluation: MetricsWindow,
    #[serde(rename = "watch")]
    warnings: RunWarnings,
    /// Length and CRC-32 of the other files.
    files: BTreeMap<String, (u64, u32)>,
}

/// The checkpoints of a run.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoints {
    folder: PathBuf,
}

impl Checkpoints {
    pub(crate) fn new(run: &Path) -> Self {
        Self { folder: run.join("checkpoints") }
    }

    pub(crate) fn last(&self) -> PathBuf {
        self.folder.join("last")
    }

    pub(crate) fn best(&self) -> PathBuf {
        self.folder.join("best")
    }

    fn previous(&self) -> PathBuf {
        self.folder.join("previous")
    }

    /// The model for use: the teacher if there is one.
    fn model_files(learner: &Learner, config: &ModelConfig) -> Vec<(&'static str, Vec<u8>)> {
        let config = ModelConfig { calibrator: learner.calibrator().cloned(), ..config.clone() };
        match &learner.teacher {
            Some(teacher) => model::files(teacher, &config),
            None => model::files(&learner.student.valid(), &config),
        }
    }

    /// Writes the model as the best so far.
    pub(crate) fn write_best(&self, learner: &Learner, config: &ModelConfig) -> Result<(), CheckpointError> {
        self.replace(&self.best(), &Self::model_files(learner, config), false)
    }

    /// Writes the whole state; the checkpoint before it becomes `previous`.
    pub(crate) fn write_last(
        &self,
        learner: &Learner,
        config: &ModelConfig,
        progress: &Progress,
    ) -> Result<(), CheckpointError> {
        let mut files = Self::model_files(learner, config);
        let student = learner.student.valid();
        if learner.teacher.is_some() {
            files.push((STUDENT, to_safetensors(&student)));
        }
        files.push((MOMENTUM, to_safetensors(&learner.optimizer.velocities_of(student))));
        files.push((STATE, State::new(learner, progress, &files).to_bytes()));
        self.replace(&self.last(), &files, true)
    }

    /// Writes a folder under another name, syncs it, and puts it in the place of `path`.
    fn replace(&self, path: &Path, files: &[(&str, Vec<u8>)], keep_old: bool) -> Result<(), CheckpointError> {
        let new = self.folder.join(".new");
        let write = || -> io::Result<()> {
            remove(&new)?;
            fs::create_dir_all(&new)?;
            for (name, bytes) in files {
                let mut file = File::create(new.join(name))?;
                file.write_all(bytes)?;
                file.sync_all()?;
            }
            sync_folder(&new)?;
            let aside = if keep_old { self.previous() } else { self.folder.join(".old") };
            remove(&aside)?;
            if path.exists() {
                fs::rename(path, &aside)?;
            }
            fs::rename(&new, path)?;
            if !keep_old {
                remove(&aside)?;
            }
            sync_folder(&self.folder)
        };
        write().map_err(|source| {
            let _ = remove(&new);
            CheckpointError::Write { path: path.to_owned(), source }
        })
    }

    /// Reads the last checkpoint, or the previous one if the last cannot be used; `None` if there is none yet.
    /// `learner` makes a learner to read into; `warn` gets the reasons why a checkpoint cannot be used.
    pub(crate) fn read(
        &self,
        learner: impl Fn() -> Result<Learner, ModelError>,
        warn: &mut dyn FnMut(String),
    ) -> Result<Option<(Learner, Progress)>, CheckpointError> {
        let restore_best = || -> io::Result<()> {
            let old = self.folder.join(".old");
            if old.exists() && !self.best().exists() { fs::rename(old, self.best()) } else { Ok(()) }
        };
        restore_best().map_err(|source| CheckpointError::Write { path: self.best(), source })?;
        let mut unusable = None;
        for path in [self.last(), self.previous()] {
            if !path.exists() {
                continue;
            }
            match read(&path, learner()?) {
                Ok(read) => {
                    if path != self.last() {
                        // The usable one becomes the last, so that the next write keeps it as `previous`.
                        let restore = || -> io::Result<()> {
                            if self.last().exists() {
                                let damaged = self.folder.join("damaged");
                                remove(&damaged)?;
                                fs::rename(self.last(), damaged)?;
                            }
                            fs::rename(&path, self.last())
                        };
                        restore().map_err(|source| CheckpointError::Write { path: self.last(), source })?;
                    }
                    return Ok(Some(read));
                }
                Err(error) => {
                    warn(error.to_string());
                    unusable = Some(error);
                }
            }
        }
        match unusable {
            Some(error) => Err(error),
            None => Ok(None),
        }
    }
}

fn read(folder: &Path, learner: Learner) -> Result<(Learner, Progress), CheckpointError> {
    let unusable = |why: String| CheckpointError::Unusable { path: folder.to_owned(), why };
    let bytes = fs::read(folder.join(STATE)).map_err(|error| unusable(format!("{STATE}: {error}")))?;
    let state = State::from_bytes(&bytes).map_err(|error| unusable(format!("{STATE}: {error}")))?;
    for (name, (length, sum)) in &state.files {
        let bytes = fs::read(folder.join(name)).map_err(|error| unusable(format!("{name}: {error}")))?;
        if bytes.len() as u64 != *length {
            return Err(unusable(format!("{name} has {} bytes, not {length}", bytes.len())));
        }
        if crc32fast::hash(&bytes) != *sum {
            return Err(unusable(format!("{name} was damaged: its check sum is another")));
        }
    }
    let weights = |name: &str, module: Detector| -> Result<Detector, CheckpointError> {
        let checkpoint = Checkpoint::read(&folder.join(name));
        let module = checkpoint.and_then(|checkpoint| checkpoint.into_weights_of(module));
        module.map_err(|error: WeightsError| unusable(error.to_string()))
    };
    let Learner { student, teacher, mut calibration, mut optimizer, .. } = learner;
    let student_file = if teacher.is_some() { STUDENT } else { model::WEIGHTS };
    let teacher = teacher.map(|teacher| weights(model::WEIGHTS, teacher.into_inner())).transpose()?;
    let student = weights(student_file, student.into_inner())?;
    optimizer.set_velocities(&student, &weights(MOMENTUM, student.valid())?);
    if let Some(calibration) = &mut calibration {
        calibration.calibrator = state.calibrator;
        for image in &state.queue {
            let sample = |&(class, score, outcome)| Sample { class, score: Score(score), outcome };
            calibration.queue.push(image.iter().map(sample).collect());
        }
    }
    let State {
        data, iteration, epoch, batch, evaluated, best, since_line, since_evaluation, warnings, ..
    } = state;
    let position = Position { epoch, batch };
    let progress = Progress { data, position, evaluated, best, since_line, since_evaluation, warnings };
    let (student, teacher) = (InPlace::new(student), teacher.map(InPlace::new));
    Ok((Learner { student, teacher, calibration, optimizer, iteration }, progress))
}

impl State {
    fn new(learner: &Learner, progress: &Progress, files: &[(&str, Vec<u8>)]) -> Self {
        let queue = learner.calibration.iter().flat_map(|calibration| calibration.queue.images());
        let sample = |sample: &Sample| (sample.class, sample.score.0, sample.outcome);
        let Progress { data, position, evaluated, best, since_line, since_evaluation, warnings } =
            progress.clone();
        Self {
            data,
            iteration: learner.iteration,
            epoch: position.epoch,
            batch: position.batch,
            evaluated,
            best,
            calibrator: learner.calibrator().cloned(),
            queue: queue.map(|image| image.iter().map(sample).collect()).collect(),
            since_line,
            since_evaluation,
            warnings,
            files: files
                .iter()
                .map(|(name, bytes)| ((*name).to_owned(), (bytes.len() as u64, crc32fast::hash(bytes))))
                .collect(),
        }
    }

    /// A line of JSON, and a line with its check sum.
    fn to_bytes(&self) -> Vec<u8> {
        let state = serde_json::to_string(self).expect("a state can be written as JSON");
        format!("{state}\n{:08x}\n", crc32fast::hash(state.as_bytes())).into_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
        let (state, sum) = text.split_once('\n').ok_or("it is not whole")?;
        if sum.trim_end() != format!("{:08x}", crc32fast::hash(state.as_bytes())) {
            return Err("it was damaged: its check sum is another".to_owned());
        }
        serde_json::from_str(state).map_err(|error| error.to_string())
    }
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// A rename is on disk only when its folder is.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
