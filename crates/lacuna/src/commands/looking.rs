//! A model over the images of a data set, as commands show it.

use std::path::Path;

use anyhow::Result;
use lacuna_boxes::Detection;
use lacuna_data::layout::Split;
use lacuna_train::evaluate::{detect_all, match_classes};
use lacuna_train::model::{Model, ModelConfig};

use super::usage;
use crate::data_args::DataOptions;
use crate::progress::Progress;

/// What a model found.
pub struct Looked {
    pub model: ModelConfig,
    /// In each image, the best first, with the model's classes.
    pub detections: Vec<Vec<Detection>>,
    /// Of each of the model's classes, the data set's of the same name.
    pub classes: Vec<Option<usize>>,
}

/// # Errors
/// What is wrong with the model or an image.
pub fn look(model: &Path, split: &Split, options: &DataOptions) -> Result<Looked> {
    let Model { config, detector } = Model::read(model)?;
    let dataset = &split.dataset;
    let classes = match_classes(&config.categories, dataset);
    if classes.iter().all(Option::is_none) {
        usage(&format!("no class of {} is one of {}", model.display(), split.path().display()));
    }
    let unknown =
        dataset.categories().iter().enumerate().filter(|(class, _)| !classes.contains(&Some(*class)));
    for (_, category) in unknown {
        eprintln!("warning: the model does not know the class `{}`", category.name);
    }
    let progress = Progress::new("looking at images", dataset.images().len());
    let part = (dataset, split.images()?);
    let found =
        detect_all(&detector, &config.input, part, options.on_bad_image.into(), &mut || progress.done())?;
    drop(progress);
    for skipped in &found.skipped {
        eprintln!("warning: {skipped}");
    }
    Ok(Looked { model: config, detections: found.detections, classes })
}
