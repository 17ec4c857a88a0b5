use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::decode::ImageError;

pub type Result<T> = std::result::Result<T, Error>;

/// What can be wrong with a data set's files. Every variant names the file, and the line where
/// there is one.
#[derive(Debug, Error)]
pub enum Error {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },

    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },

    #[error("{} exists already", path.display())]
    Exists { path: PathBuf },

    #[error("{} was not made by lacuna and is not replaced", path.display())]
    NotOurs { path: PathBuf },

    #[error("the output {} would replace {}, which it is made from", path.display(), input.display())]
    ReplacesInput { path: PathBuf, input: PathBuf },

    #[error("the outputs {} and {} are one, or one is in the other", path.display(), other.display())]
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

    #[error("{} holds no data set in a known layout", path.display())]
    UnknownLayout { path: PathBuf },

    #[error("{} looks like a YOLO data set, but its class names are nowhere", path.display())]
    NoClasses { path: PathBuf },

    #[error("{}: the data set is empty: it has no {what}", path.display())]
    Empty { path: PathBuf, what: &'static str },

    #[error("{} has no split `{split}`", path.display())]
    UnknownSplit { path: PathBuf, split: String, known: Vec<String> },

    #[error("{} has two splits named `{split}`", path.display())]
    RepeatedSplit { path: PathBuf, split: String },

    #[error("{} has several splits", path.display())]
    ManySplits { path: PathBuf, known: Vec<String> },

    #[error("there is no class `{name}` in the data set")]
    UnknownClass { name: String, known: Vec<String> },

    #[error("images {first} and {second} would both be written as `{name}`")]
    NameClash { first: String, second: String, name: String },

    #[error("`{name}` cannot be the name of a file in the new folder: it leads elsewhere")]
    NameOutside { name: String },

    #[error("VOC has no place for the name {name:?}")]
    NotAVocName { name: String },

    #[error("the splits `{first}` and `{second}` have different classes, which this format cannot have")]
    ClassesDiffer { first: String, second: String },

    #[error(transparent)]
    Image(#[from] ImageError),

    #[error("interrupted")]
    Interrupted,

    #[error("the folder of the images of {} was not found", path.display())]
    NoImages { path: PathBuf, tried: Vec<PathBuf> },
}

/// What is wrong with an entry of a results file.
#[derive(Debug, Error)]
pub enum DetectionFault {
    #[error("is of image {image}, which the annotations do not have")]
    UnknownImage { image: u64 },

    #[error("is of category {category}, which the annotations do not have")]
    UnknownCategory { category: u64 },

    /// `instead` is what the entry has in its place.
    #[error("has {}no `bbox`; lacuna judges boxes", instead.map_or(String::new(), |field| format!("`{field}` but ")))]
    NoBox { instead: Option<&'static str> },

    #[error("has a `bbox` of negative size: {bbox:?}")]
    NegativeBox { bbox: [f64; 4] },

    /// Its corners are finite in f64 but not in f32.
    #[error("has a `bbox` beyond any image: {bbox:?}")]
    HugeBox { bbox: [f64; 4] },

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

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("check the path; it is taken from the current folder".into())
            }
            Self::Write { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("the folder it is to be written into does not exist; make it first".into())
            }
            Self::Exists { .. } => Some("choose another name, or replace it with `--force`".into()),
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
            Self::NotHidden { .. } => {
                Some("`lacuna sparsify` writes it with `--hidden`, beside the sparse annotations".into())
            }
            Self::UnknownSplit { known, .. } => Some(format!("its splits are {}", list(known))),
            Self::ManySplits { known, .. } => Some(format!("choose one of {} with `--split`", list(known))),
            Self::UnknownClass { name, known } => Some(match nearest(name, known) {
                Some(close) => format!("did you mean `{close}`?"),
                None => format!("its classes are {}", list(known)),
            }),
            Self::NoClasses { .. } => {
                Some("they are in a `data.yaml` (`names: [...]`) or, a line each, in a `classes.txt`".into())
            }
            Self::NotOurs { .. } => Some("delete it yourself, or choose another name".into()),
            Self::ReplacesInput { .. } | Self::OneOutput { .. } => Some("choose another name".into()),
            Self::RepeatedSplit { .. } => {
                Some("name the annotation file itself instead of the folder".into())
            }
            Self::NameOutside { .. } => {
                Some("correct the `file_name`, or the split's name, in the annotation files".into())
            }
            Self::NameClash { .. } => {
                Some("rename one of the images, or convert one split at a time with `--split`".into())
            }
            Self::NotAVocName { .. } => Some(
                "names of classes and images are one line in VOC, without control characters or white space \
                 at their ends"
                    .into(),
            ),
            Self::ClassesDiffer { .. } => {
                Some("`--classes` restricts both to the classes that they share".into())
            }
            Self::NoImages { tried, .. } => {
                let tried: Vec<_> = tried.iter().map(|p| p.display().to_string()).collect();
                Some(format!("name it with `--images DIR`; tried {}", list(&tried)))
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

/// The name that differs least from `name`, when it is close enough to be a slip of the hand.
pub fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    let name = name.to_lowercase();
    let close = |k: &&String| edits(&name, &k.to_lowercase());
    let best = known.iter().min_by_key(close)?;
    (close(&best) <= 1 + name.chars().count() / 4).then_some(best)
}

/// Levenshtein's distance.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
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
        assert_eq!((edits("", "abc"), edits("kitten", "sitting"), edits("a", "a")), (3, 3, 0));
    }
}
