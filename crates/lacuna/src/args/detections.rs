//! `--detections` and `--model`: where detections come from.

use std::path::{Path, PathBuf};

use anyhow::Result;
use lacuna_boxes::Detection;
use lacuna_data::Dataset;
use lacuna_data::layout::Split;
use lacuna_data::results::Results;
use lacuna_train::evaluate::{detect_all, match_classes};
use lacuna_train::model::{Model, ModelConfig};

use super::data::DataOptions;
use crate::diagnostics::usage;
use crate::render::notes::note_repeated_detections;
use crate::render::progress::Progress;

/// Detections of any framework.
#[derive(clap::Args)]
pub(crate) struct DetectionsArgs {
    /// Detections of any framework, a COCO results file: a JSON list with `image_id`, `category_id`, `bbox`, `score`
    #[arg(long, value_name = "FILE")]
    pub(crate) detections: PathBuf,
}

/// Detections of any framework, or a model that makes them.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct DetectionSourceArgs {
    /// A model: a folder that `lacuna train` or `lacuna import` wrote; its classes are found by name
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,

    /// Detections of any framework, a COCO results file: a JSON list with `image_id`, `category_id`, `bbox`, `score`
    #[arg(long, value_name = "FILE")]
    pub(crate) detections: Option<PathBuf>,
}

/// Exactly one of the two.
pub(crate) enum DetectionSource<'a> {
    Model(&'a Path),
    File(&'a Path),
}

impl DetectionSourceArgs {
    pub(crate) fn source(&self) -> DetectionSource<'_> {
        match (&self.model, &self.detections) {
            (Some(model), None) => DetectionSource::Model(model),
            (None, Some(file)) => DetectionSource::File(file),
            _ => unreachable!("the arguments are a group of which exactly one is required"),
        }
    }
}

impl<'a> DetectionSource<'a> {
    pub(crate) fn path(&self) -> &'a Path {
        match self {
            Self::Model(path) | Self::File(path) => path,
        }
    }
}

/// Reads a results file, and notes what is odd in it.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read_results(
    path: &Path,
    dataset: &Dataset,
    options: &DataOptions,
) -> lacuna_data::Result<Results> {
    if options.are_classes_chosen() {
        usage("`--classes` cannot be combined with `--detections`: results are reported by class anyway");
    }
    read_all_results(path, dataset)
}

/// The same for a data set that has all its classes.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read_all_results(path: &Path, dataset: &Dataset) -> lacuna_data::Result<Results> {
    let results = Results::read(path, dataset)?;
    note_repeated_detections(&results, path);
    Ok(results)
}

/// The detections of each image, best first.
pub(crate) fn best_first(results: &Results) -> Vec<Vec<Detection>> {
    let lists = results.detections().into_iter();
    lists.map(|image| image.into_iter().map(|(_, detection)| detection).collect()).collect()
}

/// What a model detects in the images of a data set.
pub(crate) struct ModelDetections {
    pub(crate) model: ModelConfig,
    /// Of each image, best first, with the model's classes.
    pub(crate) detections: Vec<Vec<Detection>>,
    /// For each of the model's classes, the data set's of the same name.
    pub(crate) classes: Vec<Option<usize>>,
}

/// Runs a model over the images of a data set.
///
/// # Errors
/// What is wrong with the model or an image.
pub(crate) fn detect_with_model(
    model: &Path,
    split: &Split,
    options: &DataOptions,
) -> Result<ModelDetections> {
    let Model { config, detector } = Model::read(model)?;
    let dataset = &split.dataset;
    let classes = match_classes(&config.categories, dataset);
    if classes.iter().all(Option::is_none) {
        usage(&format!("{} and {} have no class in common", model.display(), split.path().display()));
    }
    for (class, category) in dataset.categories().iter().enumerate() {
        if !classes.contains(&Some(class)) {
            eprintln!("warning: the model does not know the class `{}`", category.name);
        }
    }
    let progress = Progress::new("detecting", dataset.images().len());
    let part = (dataset, split.images()?);
    let found =
        detect_all(&detector, &config.input, part, options.on_bad_image.into(), &mut || progress.done())?;
    drop(progress);
    for skipped in &found.skipped {
        eprintln!("warning: {skipped}");
    }
    Ok(ModelDetections { model: config, detections: found.detections, classes })
}
