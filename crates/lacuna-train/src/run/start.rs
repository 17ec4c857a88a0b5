//! The start of a run: a new one, or one that is resumed.

use std::collections::HashSet;
use std::path::Path;

use burn::tensor::Device;
use lacuna_data::batch::{Loader, LoaderConfig, Order, Position};
use lacuna_models::Detector;
use lacuna_models::weights::Checkpoint;
use lacuna_random::{Purpose, Rng};

use super::folder::{self, Logs, RunLock};
use super::{Begin, Observer, Run, TrainError};
use crate::checkpoint::{Checkpoints, Progress};
use crate::config::RunConfig;
use crate::data::{Data, DataPart};
use crate::evaluate::match_classes;
use crate::learner::Learner;
use crate::model::{Model, ModelCategory, ModelConfig, ModelError};
use crate::phases::Stopwatch;

impl<'a> Run<'a> {
    /// Reads the data and makes the learner, before the folder of a new run is made.
    pub(super) fn start(
        config: RunConfig,
        folder: &Path,
        begin: Begin,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, TrainError> {
        match begin {
            Begin::New(if_exists) => folder::check_new(&config, folder, if_exists)?,
            Begin::Resume => folder::check_resumed(&config, folder)?,
        }
        // A run is not replaced while another process trains in it.
        let mut lock = RunLock::acquire_if_run(folder)?;
        let data = Data::read(&config.data)?;
        let categories = data.categories();
        let config = config.with_n_classes(categories.len());
        let checkpoints = Checkpoints::new(folder);
        let (learner, progress) = match begin {
            Begin::New(if_exists) => {
                let learner = new_learner(&config, &categories)?;
                folder::create(&config, folder, if_exists)?;
                lock = Some(RunLock::acquire(folder)?);
                (learner, Progress::new(&data))
            }
            Begin::Resume => resume(&config, &data, folder, &checkpoints, observer)?,
        };
        observer.started(&data, learner.iteration);

        let logs = Logs::open(folder, learner.iteration, progress.evaluated)?;
        let batches = loader(&config, &data, progress.position);
        let detector = config.detector.clone();
        let model = ModelConfig { detector, input: config.views.input(), calibrator: None, categories };
        let mut run = Self {
            batches_per_epoch: batches.n_batches(),
            first_iteration: learner.iteration,
            images: 0,
            last_evaluation: None,
            reported_images: HashSet::new(),
            stopwatch: Stopwatch::default(),
            folder: folder.to_owned(),
            _lock: lock,
            config,
            data,
            model,
            checkpoints,
            logs,
            loader: batches,
            learner,
            progress,
            observer,
        };
        run.warn_before_training();
        Ok(run)
    }

    /// Warns of what is known to be odd before anything is trained.
    fn warn_before_training(&mut self) {
        let iterations = self.config.train.iterations;
        let epochs = iterations as f64 / self.batches_per_epoch as f64;
        for warning in self.config.method.warnings_before_training(iterations, epochs) {
            self.observer.warn(warning);
        }
        let Some(DataPart { dataset, .. }) = &self.data.test else { return };
        let known = match_classes(&self.model.categories, dataset);
        for (class, category) in dataset.categories().iter().enumerate() {
            if !known.contains(&Some(class)) {
                self.observer.warn(format!("the class `{}` is tested, but not trained", category.name));
            }
        }
    }
}

/// The learner of the last checkpoint; a new one if the run stopped before its first.
fn resume(
    config: &RunConfig,
    data: &Data,
    folder: &Path,
    checkpoints: &Checkpoints,
    observer: &mut dyn Observer,
) -> Result<(Learner, Progress), TrainError> {
    let empty = || Ok(Learner::new(random_student(config), config));
    match checkpoints.read(empty, &mut |warning| observer.warn(warning))? {
        Some((learner, progress)) => match data.difference(&progress.data) {
            Some(what) => Err(TrainError::OtherData { path: folder.to_owned(), what }),
            None => Ok((learner, progress)),
        },
        None => Ok((new_learner(config, &data.categories())?, Progress::new(data))),
    }
}

/// A learner before its first iteration, with the weights that `[start]` names.
fn new_learner(config: &RunConfig, categories: &[ModelCategory]) -> Result<Learner, ModelError> {
    let student = random_student(config);
    let student = match (&config.start.backbone, &config.start.model) {
        (Some(path), _) => Checkpoint::read(path)?.into_backbone_of(student)?,
        (None, Some(folder)) => {
            check_classes(folder, categories)?;
            let [_, path] = Model::files(folder);
            Checkpoint::read(&path)?.into_weights_of(student)?
        }
        (None, None) => student,
    };
    Ok(Learner::new(student, config))
}

fn random_student(config: &RunConfig) -> Detector {
    let mut rng = Rng::new(Purpose::Weights, config.train.seed, 0, 0);
    config.detector.init(&Device::flex().autodiff(), &mut rng)
}

/// Refuses a model whose classes are not those of the data.
fn check_classes(folder: &Path, categories: &[ModelCategory]) -> Result<(), ModelError> {
    let model = ModelConfig::read(folder)?;
    let names = |categories: &[ModelCategory]| -> Vec<String> {
        categories.iter().map(|category| category.name.clone()).collect()
    };
    let (of_model, of_data) = (names(&model.categories), names(categories));
    if model.has_names() && of_model != of_data {
        return Err(ModelError::OtherClasses { path: folder.to_owned(), model: of_model, data: of_data });
    }
    Ok(())
}

fn loader(config: &RunConfig, data: &Data, start: Position) -> Loader {
    let RunConfig { method, views, train, .. } = config;
    let loader = LoaderConfig {
        batch_size: train.batch_size,
        recipes: method.as_dyn().views(views.range()),
        normalize: views.normalize,
        order: Order::Shuffled,
        seed: train.seed,
        workers: train.workers,
        prefetch: 2,
        on_bad_image: config.data.on_bad_image,
    };
    let DataPart { dataset, folder, .. } = &data.train;
    Loader::new(dataset.clone(), folder.clone(), loader, start)
}
