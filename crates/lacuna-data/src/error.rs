//! Errors of reading and writing data sets, with hints on what to do.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::decode::ImageError;

/// The result of reading or writing data sets.
pub type Result<T> = std::result::Result<T, Error>;

/// What can be wrong with a data set's files. Every variant names the file, and the line where
/// there is one.
#[derive(Debug, Error)]
#[allow(missing_docs)] // Fields are named in the messages.
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },

    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },

    /// The output exists and must not be replaced.
    #[error("{} exists already", path.display())]
    Exists { path: PathBuf },

    /// The output is a folder that lacuna did not make.
    #[error("{} was not written by lacuna and is not replaced", path.display())]
    NotOurs { path: PathBuf },

    /// The output would replace its own input.
    #[error("the output {} would replace {}, which it is made from", path.display(), input.display())]
    ReplacesInput { path: PathBuf, input: PathBuf },

    /// Two outputs are the same, or one is inside the other.
    #[error("the outputs {} and {} are the same, or one is inside the other", path.display(), other.display())]
    OneOutput { path: PathBuf, other: PathBuf },

    /// The text is not of the language it should be in (JSON, XML, YAML, a YOLO line).
    #[error("{}:{line}: {problem}", path.display())]
    Syntax { path: PathBuf, line: usize, problem: String },

    /// Valid text with a meaning that a data set cannot have.
    #[error("{}:{line}: {problem}", path.display())]
    Invalid { path: PathBuf, line: usize, problem: String },

    /// The file is well formed but is something else.
    #[error("{} is not a COCO annotation file: {reason}", path.display())]
    NotCoco { path: PathBuf, reason: String },

    /// The file is well formed but is something else.
    #[error("{} is not a COCO results file: {reason}", path.display())]
    NotResults { path: PathBuf, reason: &'static str },

    /// An entry of a results file that is no detection on the data set. Entries count from 0.
    #[error("{}:{line}: detection {detection} {fault}", path.display())]
    Detection { path: PathBuf, line: usize, detection: usize, fault: DetectionFault },

    /// Annotations that were not taken away from the data set they are said to be from.
    #[error("{} is not what was hidden: {reason}", path.display())]
    NotHidden { path: PathBuf, reason: String },

    /// The path holds no data set that is recognized.
    #[error("{} holds no data set in a known layout", path.display())]
    UnknownLayout { path: PathBuf },

    /// A YOLO data set without the names of its classes.
    #[error("{} looks like a YOLO data set, but its class names are nowhere", path.display())]
    NoClasses { path: PathBuf },

    /// The data set has no images or no categories.
    #[error("{}: the data set is empty: it has no {what}", path.display())]
    Empty { path: PathBuf, what: &'static str },

    /// The data set has no such split.
    #[error("{} has no split `{split}`", path.display())]
    UnknownSplit { path: PathBuf, split: String, known: Vec<String> },

    /// Two splits have the same name.
    #[error("{} has two splits named `{split}`", path.display())]
    RepeatedSplit { path: PathBuf, split: String },

    /// There are several splits and none was chosen.
    #[error("{} has several splits", path.display())]
    ManySplits { path: PathBuf, known: Vec<String> },

    /// The data set has no such class.
    #[error("there is no class `{name}` in the data set")]
    UnknownClass { name: String, known: Vec<String> },

    /// Two images would be written under one name.
    #[error("images {first} and {second} would both be written as `{name}`")]
    NameClash { first: String, second: String, name: String },

    /// A name would lead out of the new folder.
    #[error("`{name}` cannot be the name of a file in the new folder: it leads elsewhere")]
    NameOutside { name: String },

    /// A name that VOC's XML cannot hold.
    #[error("VOC has no place for the name {name:?}")]
    NotAVocName { name: String },

    /// Splits with different classes in a format that has one list of classes.
    #[error("the splits `{first}` and `{second}` have different classes, which this format cannot have")]
    ClassesDiffer { first: String, second: String },

    /// An image file cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),

    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,

    /// The folder of the images was not found.
    #[error("the folder of the images of {} was not found", path.display())]
    NoImages { path: PathBuf, tried: Vec<PathBuf> },
}

/// What is wrong with an entry of a results file.
#[derive(Debug, Error)]
#[allow(missing_docs)] // Fields are named in the messages.
pub enum DetectionFault {
    /// The image is not in the annotations.
    #[error("is of image {image}, which the annotations do not have")]
    UnknownImage { image: u64 },

    /// The category is not in the annotations.
    #[error("is of category {category}, which the annotations do not have")]
    UnknownCategory { category: u64 },

    /// `instead` is what the entry has in its place.
    #[error("has {}no `bbox`; lacuna judges boxes", instead.map_or(String::new(), |field| format!("`{field}` but ")))]
    NoBox { instead: Option<&'static str> },

    /// A side of the box is negative.
    #[error("has a `bbox` of negative size: {bbox:?}")]
    NegativeBox { bbox: [f64; 4] },

    /// Its corners are finite in f64 but not in f32.
    #[error("has a `bbox` beyond any image: {bbox:?}")]
    HugeBox { bbox: [f64; 4] },

    /// A number is not in `[0, 1]`.
    #[error("has `{field}` {value}; it must be from 0 to 1")]
    OutOfRange { field: &'static str, value: f64 },

    /// A field that is missing or of the wrong kind, or, without its name, some field.
    #[error("{problem}")]
    Field { field: Option<&'static str>, problem: String },
}

impl DetectionFault {
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::UnknownImage { .. } => Some(
                "`image_id` is the `id` of an image of the annotations; are they of the images that the detector saw?",
            ),
            Self::UnknownCategory { .. } => Some(
                "`category_id` is the `id` of a category of the annotations, not the class number of the detector",
            ),
            Self::Field { field: Some("image_id"), .. } => {
                Some("`image_id` is the `id` of an image of the annotations, not the name of its file")
            }
            Self::OutOfRange { field: "score", .. } => Some(
                "are these logits or percentages? put logits through a sigmoid, divide percentages by 100",
            ),
            _ => None,
        }
    }
}

impl Error {
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |source| Self::Read { path: path.into(), source }
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |source| Self::Write { path: path.into(), source }
    }

    /// What to do about it, in words that hold for every program that uses this library.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("check the path; it is taken from the current folder".into())
            }
            Self::Write { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("the folder it is to be written into does not exist; make it first".into())
            }
            Self::NotCoco { .. } => Some(
                "a COCO annotation file is one JSON object with the lists `images`, `annotations` and \
                 `categories`"
                    .into(),
            ),
            Self::NotResults { .. } => Some(
                "a COCO results file is one JSON list of objects with `image_id`, `category_id`, `bbox` and \
                 `score`"
                    .into(),
            ),
            Self::Detection { fault, .. } => fault.hint().map(Into::into),
            Self::UnknownLayout { .. } => Some(
                "known layouts: a COCO JSON file or a folder with `annotations/*.json` or \
                 `train/_annotations.coco.json`; VOC's `Annotations/` and `JPEGImages/`; YOLO's `data.yaml`, \
                 `images/` and `labels/`"
                    .into(),
            ),
            Self::UnknownSplit { known, .. } | Self::ManySplits { known, .. } => {
                Some(format!("its splits are {}", list(known)))
            }
            Self::UnknownClass { name, known } => Some(match nearest(name, known) {
                Some(close) => format!("did you mean `{close}`?"),
                None => format!("its classes are {}", list(known)),
            }),
            Self::NoClasses { .. } => {
                Some("they are in a `data.yaml` (`names: [...]`) or, a line each, in a `classes.txt`".into())
            }
            Self::NotOurs { .. } => Some("delete it yourself, or choose another name".into()),
            Self::Exists { .. } | Self::ReplacesInput { .. } | Self::OneOutput { .. } => {
                Some("choose another name".into())
            }
            Self::RepeatedSplit { .. } => {
                Some("name the annotation file itself instead of the folder".into())
            }
            Self::NameOutside { .. } => {
                Some("correct the `file_name`, or the split's name, in the annotation files".into())
            }
            Self::NameClash { .. } => Some("rename one of the images, or convert one split at a time".into()),
            Self::NotAVocName { .. } => Some(
                "names of classes and images are one line in VOC, without control characters or white space at their ends"
                    .into(),
            ),
            Self::ClassesDiffer { .. } => Some("restrict both to the classes that they share".into()),
            Self::NoImages { tried, .. } => {
                let tried: Vec<_> = tried.iter().map(|p| p.display().to_string()).collect();
                Some(format!("tried {}", list(&tried)))
            }
            _ => None,
        }
    }
}

/// `a, b and c`, at most a dozen of them.
fn list(names: &[String]) -> String {
    const MOST: usize = 12;
    let quoted: Vec<String> = names.iter().take(MOST).map(|n| format!("`{n}`")).collect();
    match (names.len() > MOST, quoted.as_slice()) {
        (true, _) => format!("{} and {} more", quoted.join(", "), names.len() - MOST),
        (false, []) => "none".into(),
        (false, [one]) => one.clone(),
        (false, [first @ .., last]) => format!("{} and {last}", first.join(", ")),
    }
}

/// The known name that is nearest to `name` by edit distance, if it is near enough to be a typing mistake.
pub fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    let name = name.to_lowercase();
    let distance = |known: &&String| strsim::levenshtein(&name, &known.to_lowercase());
    let best = known.iter().min_by_key(distance)?;
    (distance(&best) <= 1 + name.chars().count() / 4).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_only_when_near() {
        let known: Vec<String> = ["person", "bicycle", "traffic light"].map(String::from).into();
        assert_eq!(nearest("persn", &known), Some("person"));
        assert_eq!(nearest("Bicycle", &known), Some("bicycle"));
        assert_eq!(nearest("trafic  light", &known), Some("traffic light"));
        assert_eq!(nearest("zebra", &known), None);
    }
}
