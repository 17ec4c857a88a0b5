//! A calibrator on disk, with the names of the classes that it is for.

use std::path::Path;

use anyhow::Result;
use lacuna_calib::Calibrator;
use lacuna_data::Dataset;
use serde::{Deserialize, Serialize};

use super::BadFile;

/// A class's place in the list is what the calibrator knows it by.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedCalibrator {
    classes: Vec<String>,
    calibrator: Calibrator,
}

impl SavedCalibrator {
    pub fn new(dataset: &Dataset, calibrator: &Calibrator) -> Self {
        let classes = dataset.categories().iter().map(|category| category.name.clone()).collect();
        Self { classes, calibrator: calibrator.clone() }
    }

    /// The calibrator in this file, for the classes of a data set.
    ///
    /// # Errors
    /// [`BadFile`].
    pub fn read(path: &Path, dataset: &Dataset) -> Result<Calibrator> {
        let bad = |why: String| BadFile { path: path.to_owned(), what: "a calibrator", why };
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
