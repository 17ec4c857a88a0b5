//! Results as people and machines read them: tables, numbers, sentences, JSON, progress, pictures.

pub(crate) mod completeness;
pub(crate) mod notes;
pub(crate) mod number;
pub(crate) mod pictures;
pub(crate) mod progress;
pub(crate) mod run_report;
pub(crate) mod table;
pub(crate) mod training;

use std::collections::HashMap;
use std::path::Path;

use lacuna_data::{Category, Dataset};

/// A path as JSON can have it: file names need not be Unicode.
pub(crate) fn path_json(path: &Path) -> String {
    path.display().to_string()
}

/// The key of each class in JSON: its name, with its id where another class has the same name.
pub(crate) fn class_keys(dataset: &Dataset) -> Vec<String> {
    let categories = dataset.categories();
    let mut times: HashMap<&str, usize> = HashMap::new();
    categories.iter().for_each(|category| *times.entry(&category.name).or_default() += 1);
    let key = |category: &Category| match times[category.name.as_str()] {
        1 => category.name.clone(),
        _ => format!("{} ({})", category.name, category.id),
    };
    categories.iter().map(key).collect()
}
