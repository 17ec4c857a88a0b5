//! One-line notes on stderr about what is odd in the input, or left out of the output.

use std::collections::BTreeMap;
use std::path::Path;

use lacuna_data::layout::Split;
use lacuna_data::problems::{Problem, problems};
use lacuna_data::results::Results;
use lacuna_data::yolo::LeftOut;

use super::number::thousands;

/// Notes the problems of a data set that was read for something else.
pub(crate) fn note_problems(split: &Split) {
    let mut counts = count_by_kind(&problems(&split.dataset));
    if !split.skipped.is_empty() {
        counts.insert("images left out because they cannot be read", split.skipped.len());
    }
    if !counts.is_empty() {
        let counts: Vec<String> =
            counts.iter().map(|(kind, n)| format!("{kind}: {}", thousands(*n))).collect();
        eprintln!("note: {} (`lacuna inspect` lists them)", counts.join(", "));
    }
}

/// How many problems there are of each kind.
pub(crate) fn count_by_kind(problems: &[Problem]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for problem in problems {
        *counts.entry(problem.kind()).or_default() += 1;
    }
    counts
}

/// Notes detections that are in a results file twice.
pub(crate) fn note_repeated_detections(results: &Results, path: &Path) {
    let repeated = results.duplicates();
    if let Some((first, again)) = repeated.first() {
        let count = thousands(repeated.len());
        eprintln!(
            "note: {}: detections that repeat another: {count} (detection {again} is the same as {first})",
            path.display()
        );
    }
}

/// Notes what a format cannot hold.
pub(crate) fn note_left_out(format: &str, LeftOut { crowds, outside }: LeftOut) {
    if crowds > 0 {
        eprintln!("note: crowd regions left out, because {format} has none: {}", thousands(crowds));
    }
    if outside > 0 {
        eprintln!("note: boxes left out, because they lie outside the image: {}", thousands(outside));
    }
}
