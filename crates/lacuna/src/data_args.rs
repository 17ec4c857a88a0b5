//! The arguments by which every command is told of a data set.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use lacuna_data::decode::OnBadImage;
use lacuna_data::layout::{Layout, ReadOptions, Split};
use lacuna_data::problems::{Problem, problems};
use lacuna_data::{Dataset, Result};

use crate::table::thousands;

#[derive(clap::Args)]
pub struct DataArgs {
    /// A COCO JSON file, a YOLO data.yaml, or the folder of a COCO, VOC or YOLO data set
    #[arg(value_name = "DATA")]
    pub path: PathBuf,

    #[command(flatten)]
    pub options: DataOptions,
}

/// The same, by name: for commands that are given several files.
#[derive(clap::Args)]
pub struct AnnotationsArgs {
    /// A COCO JSON file, a YOLO data.yaml, or the folder of a COCO, VOC or YOLO data set
    #[arg(long = "annotations", alias = "data", value_name = "DATA")]
    pub path: PathBuf,

    #[command(flatten)]
    pub options: DataOptions,
}

#[derive(clap::Args)]
pub struct DataOptions {
    /// The split to take, where there are several
    #[arg(long)]
    pub split: Option<String>,

    /// Only these classes, by name; can be given several times
    #[arg(long, value_name = "NAME,...")]
    pub classes: Vec<String>,

    /// The folder of the images, where it is not found beside the annotations
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,

    /// What to do about an image that is needed (for its size, in YOLO) and cannot be read
    #[arg(long, value_name = "WHAT", default_value = "error")]
    pub on_bad_image: OnBadImageArg,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum OnBadImageArg {
    /// Refuse the data set
    Error,
    /// Go on without the image, and say so
    Skip,
}

impl From<OnBadImageArg> for OnBadImage {
    fn from(what: OnBadImageArg) -> Self {
        match what {
            OnBadImageArg::Error => Self::Error,
            OnBadImageArg::Skip => Self::Skip,
        }
    }
}

impl DataArgs {
    /// The one split that is meant.
    pub fn read(&self) -> Result<Split> {
        self.options.read(&self.path)
    }

    /// All splits, or the one that was named.
    pub fn read_all(&self) -> Result<Vec<Split>> {
        let (layout, options) = (Layout::detect(&self.path)?, &self.options);
        let names = options.split.as_ref().map_or_else(|| layout.split_names(), |name| vec![name.clone()]);
        names.iter().map(|name| options.read_split(&layout, Some(name))).collect()
    }
}

impl AnnotationsArgs {
    /// The one split that is meant.
    pub fn read(&self) -> Result<Split> {
        self.options.read(&self.path)
    }
}

impl DataOptions {
    fn read(&self, path: &Path) -> Result<Split> {
        self.read_split(&Layout::detect(path)?, self.split.as_deref())
    }

    fn read_split(&self, layout: &Layout, name: Option<&str>) -> Result<Split> {
        let options = ReadOptions { images: self.images.as_deref(), on_bad_image: self.on_bad_image.into() };
        let mut split = layout.read(name, options)?;
        if !self.classes.is_empty() {
            split.dataset = split.dataset.restrict_to(&self.class_names(&split.dataset))?;
        }
        Ok(split)
    }

    /// `--classes cat,dog` names two classes, unless one is called `cat,dog`.
    fn class_names(&self, dataset: &Dataset) -> Vec<String> {
        let is_class = |name: &str| dataset.categories().iter().any(|c| c.name == name);
        let names = self.classes.iter().flat_map(|given| match is_class(given) {
            true => vec![given.clone()],
            false => given.split(',').map(|name| name.trim().to_owned()).collect(),
        });
        names.collect()
    }
}

/// Say in one line what is odd about a data set that was read for something else.
pub fn note_problems(split: &Split) {
    let mut counts = count(&problems(&split.dataset));
    if !split.skipped.is_empty() {
        counts.insert("images left out because they cannot be read", split.skipped.len());
    }
    if !counts.is_empty() {
        let counts: Vec<String> =
            counts.iter().map(|(kind, n)| format!("{kind}: {}", thousands(*n))).collect();
        eprintln!("note: {} (`lacuna inspect` names each one)", counts.join(", "));
    }
}

/// How many there are of each kind.
pub fn count(problems: &[Problem]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for problem in problems {
        *counts.entry(problem.kind()).or_default() += 1;
    }
    counts
}
