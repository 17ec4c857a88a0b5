//! A run from its first iteration to its last: batches, steps, metrics, evaluations and checkpoints in their order.

mod error;
mod evaluation;
mod folder;
mod logging;
mod observer;
mod start;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use lacuna_data::batch::{Batch, Loader};
use lacuna_data::output::IfExists;

pub use error::TrainError;
pub use folder::{CONFIG, METRICS};
pub use observer::Observer;

use crate::checkpoint::{Checkpoints, Progress};
use crate::config::RunConfig;
use crate::data::Data;
use crate::learner::Learner;
use crate::metrics::{MetricsWindow, Record};
use crate::model::ModelConfig;
use crate::phases::{Phase, Stopwatch};
use crate::step::{EpochProgress, StepContext};
use folder::{Logs, RunLock};

/// How a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// In a new folder.
    New(IfExists),
    /// At its last checkpoint.
    Resume,
}

/// The result of a run.
#[derive(Debug)]
pub struct Finished {
    /// The last evaluation, with the sums since the one before.
    pub last: Record,
    /// How long each phase took in this process.
    pub stopwatch: Stopwatch,
    /// The iterations of this process; a resumed run had more.
    pub iterations: u64,
    /// The images of these iterations.
    pub images: u64,
}

impl Finished {
    /// The folder of the run's model.
    pub fn model(run: &Path) -> PathBuf {
        Checkpoints::new(run).last()
    }
}

/// Trains to the end, in the folder `run`.
pub fn train(
    config: RunConfig,
    run: &Path,
    begin: Begin,
    observer: &mut dyn Observer,
) -> Result<Finished, TrainError> {
    Run::start(config, run, begin, observer)?.train()
}

struct Run<'a> {
    config: RunConfig,
    data: Data,
    folder: PathBuf,
    _lock: Option<RunLock>,
    checkpoints: Checkpoints,
    logs: Logs,
    /// The model of a checkpoint, without its calibrator.
    model: ModelConfig,
    loader: Loader,
    batches_per_epoch: usize,

    learner: Learner,
    progress: Progress,
    last_evaluation: Option<Record>,

    /// Where this process began, and how many images it has trained on.
    first_iteration: u64,
    images: u64,
    /// Images that could not be read and have been reported.
    reported_images: HashSet<String>,
    stopwatch: Stopwatch,
    observer: &'a mut dyn Observer,
}

impl Run<'_> {
    fn train(mut self) -> Result<Finished, TrainError> {
        loop {
            if self.evaluation_is_due() {
                self.evaluate()?;
            }
            let stop = self.is_finished() || !self.observer.keep_going();
            if self.checkpoint_is_due(stop) {
                self.timed(Phase::Checkpoint, |run| run.write_checkpoint())?;
            }
            if stop {
                break;
            }
            let batch = self.next_batch()?;
            self.iterate(batch)?;
        }
        self.finish()
    }

    fn is_finished(&self) -> bool {
        self.learner.iteration >= self.config.train.iterations
    }

    /// Every so often, and at the end, if anything has changed since this process began.
    fn checkpoint_is_due(&self, stop: bool) -> bool {
        let iteration = self.learner.iteration;
        let changed = iteration > self.first_iteration || self.last_evaluation.is_some();
        changed && (stop || iteration.is_multiple_of(self.config.train.checkpoint_every))
    }

    fn next_batch(&mut self) -> Result<Batch, TrainError> {
        let batch = self.timed(Phase::Load, |run| run.loader.next());
        for skipped in self.loader.take_skipped().iter().map(ToString::to_string) {
            if self.reported_images.insert(skipped.clone()) {
                self.observer.warn(skipped);
            }
        }
        match batch.expect("a shuffled loader has no end") {
            Ok(batch) => Ok(batch),
            Err(error) => {
                self.write_checkpoint()?;
                Err(error.into())
            }
        }
    }

    fn iterate(&mut self, batch: Batch) -> Result<(), TrainError> {
        let (images, next) = (batch.images.clone(), batch.next);
        let train_images = self.data.train.dataset.images();
        let image_ids: Vec<u64> = images.iter().map(|&image| train_images[image].id).collect();
        let annotations = batch.objects.iter().map(Vec::len).sum();
        let epoch = EpochProgress::new(batch.at, self.batches_per_epoch, self.config.train.iterations);
        let stopwatch = &mut self.stopwatch;
        let context = StepContext { config: &self.config, batch, image_ids: &image_ids, epoch, stopwatch };
        let step = match self.learner.step(context) {
            Ok(step) => step,
            Err(error) => return Err(self.not_finite(error, &images)),
        };
        self.progress.position = next;
        self.images += images.len() as u64;
        self.timed(Phase::Log, |run| run.log_step(&step, annotations, &image_ids))?;

        let window = &self.progress.since_line;
        self.observer.iteration(self.learner.iteration, images.len(), window, self.learner.calibrator());
        if self.learner.iteration.is_multiple_of(self.config.train.log_every) {
            self.progress.since_line = MetricsWindow::default();
        }
        Ok(())
    }

    fn write_checkpoint(&self) -> Result<(), TrainError> {
        self.logs.sync()?;
        Ok(self.checkpoints.write_last(&self.learner, &self.model, &self.progress)?)
    }

    fn finish(mut self) -> Result<Finished, TrainError> {
        if !self.is_finished() {
            return Err(self.interrupted());
        }
        let last = match self.last_evaluation.take() {
            Some(last) => last,
            // A run that was resumed at its end is evaluated again.
            None => self.measure()?,
        };
        let iterations = self.config.train.iterations - self.first_iteration;
        Ok(Finished { last, stopwatch: self.stopwatch, iterations, images: self.images })
    }

    fn timed<T>(&mut self, phase: Phase, work: impl FnOnce(&mut Self) -> T) -> T {
        let start = Instant::now();
        let result = work(self);
        self.stopwatch.add(phase, start.elapsed());
        result
    }
}
