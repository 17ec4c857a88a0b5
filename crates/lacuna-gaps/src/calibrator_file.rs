//! A calibrator on disk, with the names of the classes that it is for.

use std::path::{Path, PathBuf};

use lacuna_calib::Calibrator;
use lacuna_data::Dataset;
use serde::{Deserialize, Serialize};

/// A file that holds no calibrator.
#[derive(Debug, thiserror::Error)]
#[error("{} is not a calibrator: {why}", path.display())]
pub struct NotACalibrator {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// A class's place in the list is what the calibrator knows it by.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibratorFile {
    classes: Vec<String>,
    calibrator: Calibrator,
}

impl CalibratorFile {
    /// For the classes of this data set.
    pub fn new(dataset: &Dataset, calibrator: &Calibrator) -> Self {
        let classes = dataset.categories().iter().map(|category| category.name.clone()).collect();
        Self { classes, calibrator: calibrator.clone() }
    }

    /// The calibrator in this file, for the classes of a data set.
    ///
    /// # Errors
    /// [`NotACalibrator`].
    pub fn read(path: &Path, dataset: &Dataset) -> Result<Calibrator, NotACalibrator> {
        let bad = |why: String| NotACalibrator { path: path.to_owned(), why };
        let text = std::fs::read(path).map_err(|error| bad(error.to_string()))?;
        let Self { classes, calibrator } =
            serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        let place = |class: usize| {
            let name = classes.get(class)?;
            dataset.categories().iter().position(|category| category.name == *name)
        };
        Ok(calibrator.with_classes(place))
    }
}
