//! One training step: what it is given, what it did, and why it failed.

use lacuna_boxes::Detection;
use lacuna_calib::{Calibrator, NoFit};
use lacuna_data::batch::{Batch, Position, View};
use lacuna_gaps::JudgedImage;
use lacuna_models::{LossOptions, Term};
use lacuna_random::{Purpose, Rng};

use crate::config::RunConfig;
use crate::methods::Threshold;
use crate::phases::Stopwatch;

/// What a step is given.
pub(crate) struct StepContext<'a> {
    pub(crate) config: &'a RunConfig,
    pub(crate) batch: Batch,
    /// The data set's id of each image of the batch.
    pub(crate) image_ids: &'a [u64],
    pub(crate) epoch: EpochProgress,
    pub(crate) stopwatch: &'a mut Stopwatch,
}

impl StepContext<'_> {
    /// The views of the batch, as many as the method asked for.
    pub(crate) fn take_views<const N: usize>(&mut self) -> [View; N] {
        let views = std::mem::take(&mut self.batch.views);
        views.try_into().unwrap_or_else(|views: Vec<View>| {
            panic!("a method of {N} views was given {}", views.len());
        })
    }

    /// A generator for each image, for what a detector samples in this step.
    pub(crate) fn rngs(&self) -> Vec<Rng> {
        let (seed, epoch) = (self.config.train.seed, self.batch.at.epoch);
        self.image_ids.iter().map(|&id| Rng::new(Purpose::Sampling, seed, epoch, id)).collect()
    }

    /// The run's options of the loss, without those that a method adds.
    pub(crate) fn loss_options(&self) -> LossOptions<'static> {
        LossOptions { normalization: self.config.train.normalization, ..LossOptions::default() }
    }
}

/// How far a run is, in epochs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpochProgress {
    /// Epochs before the next batch; grows within an epoch.
    pub(crate) done: f64,
    /// Epochs of the whole run.
    pub(crate) total: f64,
}

impl EpochProgress {
    pub(crate) fn new(next: Position, batches_per_epoch: usize, iterations: u64) -> Self {
        Self {
            done: next.epoch as f64 + next.batch as f64 / batches_per_epoch as f64,
            total: iterations as f64 / batches_per_epoch as f64,
        }
    }
}

/// What a step did.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) losses: Vec<(Term, f32)>,
    pub(crate) images: usize,
    /// The detections that pseudo labels are chosen from, of each image.
    pub(crate) detections: Vec<Vec<Detection>>,
    /// The same compared with the annotations, of each image, by a method that does so.
    pub(crate) judged: Vec<JudgedImage>,
    /// Of each image; none of them is of an annotated object.
    pub(crate) pseudo_labels: Vec<Vec<Detection>>,
    /// What pseudo labels had to be above; `None` where there could be none.
    pub(crate) threshold: Option<Threshold>,
    /// The calibrator before the step, used or not.
    pub(crate) calibrator: Option<Calibrator>,
    /// The refit of the calibrator, if one was due.
    pub(crate) refit: Option<Refit>,
}

/// The outcome of a refit of the calibrator, and how many detections it was fitted to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Refit {
    pub(crate) fit: Result<(), NoFit>,
    pub(crate) detections: usize,
}

/// A step that cannot be taken: its loss or gradient is not finite.
#[derive(Debug)]
pub(crate) struct NotFinite {
    /// "loss" or "gradient".
    pub(crate) what: &'static str,
    pub(crate) losses: Vec<(Term, f32)>,
}
