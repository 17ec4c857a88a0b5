//! One module a command: its arguments and what it does.

pub mod calibrate;
pub mod complete;
pub mod convert;
pub mod demo;
pub mod eval;
pub mod import;
pub mod inspect;
mod looking;
pub mod predict;
pub mod report;
pub mod sparsify;
pub mod synth;
pub mod train;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use lacuna_boxes::Detection;
use lacuna_calib::NoFit;
use lacuna_data::results::Results;
use lacuna_data::{Category, Dataset};

use crate::data_args::DataOptions;
use crate::table::thousands;

/// Detections that determine no calibrator.
#[derive(Debug, thiserror::Error)]
#[error("no calibrator can be fitted to {}: {why}", path.display())]
pub struct TooLittle {
    pub path: PathBuf,
    pub why: NoFit,
}

impl TooLittle {
    pub fn hint(&self) -> Option<String> {
        let hint = match self.why {
            NoFit::TooFew { .. } | NoFit::OneOutcome => {
                "are the detections of these images? A lower `--score-min` looks at more of them"
            }
            NoFit::Separable => "more images would tell, or `--method isotonic`",
            NoFit::Falling => "are the annotations those of these images?",
            NoFit::NotAScore | NoFit::NotConverged => return None,
        };
        Some(hint.into())
    }
}

/// What JSON calls each class: its name, with its id where another has the same.
pub fn class_keys(dataset: &Dataset) -> Vec<String> {
    let categories = dataset.categories();
    let mut times: HashMap<&str, usize> = HashMap::new();
    categories.iter().for_each(|category| *times.entry(&category.name).or_default() += 1);
    let key = |category: &Category| match times[category.name.as_str()] {
        1 => category.name.clone(),
        _ => format!("{} ({})", category.name, category.id),
    };
    categories.iter().map(key).collect()
}

/// A file that is not what it should be.
#[derive(Debug, thiserror::Error)]
#[error("{} is not {what}: {why}", path.display())]
pub struct BadFile {
    pub path: PathBuf,
    pub what: &'static str,
    pub why: String,
}

/// A results file, with a line about what is odd in it.
///
/// # Errors
/// What is wrong with it.
pub fn read_results(path: &Path, dataset: &Dataset, options: &DataOptions) -> lacuna_data::Result<Results> {
    if !options.classes.is_empty() {
        usage("`--classes` does not go with `--detections`: results are told class by class");
    }
    let results = Results::read(path, dataset)?;
    note_duplicates(&results, path);
    Ok(results)
}

/// The detections of each image, the best first.
pub fn best_first(results: &Results) -> Vec<Vec<Detection>> {
    let lists = results.detections().into_iter();
    lists.map(|image| image.into_iter().map(|(_, detection)| detection).collect()).collect()
}

/// Say in one line that detections are there twice.
fn note_duplicates(results: &Results, path: &Path) {
    let duplicates = results.duplicates();
    if let Some((first, again)) = duplicates.first() {
        let count = thousands(duplicates.len());
        eprintln!(
            "note: {}: detections that repeat another: {count} (the first: {again}, the same as {first})",
            path.display()
        );
    }
}

/// A usage error in what the arguments say together, reported as clap reports its own.
pub fn usage(message: &str) -> ! {
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{message}\n")).exit()
}

/// A path as JSON can have it: names need not be Unicode.
pub fn shown(path: &Path) -> String {
    path.display().to_string()
}
