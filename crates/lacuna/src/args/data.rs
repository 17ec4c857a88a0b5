//! `DATA`: the data set that a command reads.

use std::path::PathBuf;

use clap::ValueEnum;
use lacuna_data::Result;
use lacuna_data::decode::OnBadImage;
use lacuna_data::layout::{Layout, ReadOptions, Split};

#[derive(clap::Args)]
pub(crate) struct DataArgs {
    /// A COCO JSON file, a YOLO data.yaml, or the folder of a COCO, VOC or YOLO data set
    #[arg(value_name = "DATA")]
    pub(crate) path: PathBuf,

    #[command(flatten)]
    pub(crate) options: DataOptions,
}

#[derive(clap::Args)]
pub(crate) struct DataOptions {
    /// The split to read, where there are several
    #[arg(long)]
    pub(crate) split: Option<String>,

    /// Only these classes, by name; may be given several times (not with --detections)
    #[arg(long, value_name = "NAME,...")]
    pub(crate) classes: Vec<String>,

    /// The folder of the images, where it is not found beside the annotations
    #[arg(long, value_name = "DIR")]
    pub(crate) images: Option<PathBuf>,

    /// What to do about an image that is needed and cannot be read
    #[arg(long, value_name = "WHAT", default_value = "error")]
    pub(crate) on_bad_image: OnBadImageArg,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum OnBadImageArg {
    /// Refuse the data set
    Error,
    /// Leave the image out with a warning
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
    /// Reads one split: the only one, or the one that is named.
    pub(crate) fn read(&self) -> Result<Split> {
        self.options.read_split(&Layout::detect(&self.path)?, self.options.split.as_deref())
    }

    /// The same with all its classes, and which of them `--classes` names.
    pub(crate) fn read_whole(&self) -> Result<(Split, Vec<bool>)> {
        let options = &self.options;
        let split = options.read_whole_split(&Layout::detect(&self.path)?, options.split.as_deref())?;
        let dataset = &split.dataset;
        if !options.are_classes_chosen() {
            let all = vec![true; dataset.categories().len()];
            return Ok((split, all));
        }
        let is_class = |name: &str| dataset.categories().iter().any(|c| c.name == name);
        let names = options.class_names(is_class);
        dataset.restrict_to(&names)?;
        let chosen = dataset.categories().iter().map(|category| names.contains(&category.name)).collect();
        Ok((split, chosen))
    }

    /// Reads all splits, or the one that is named.
    pub(crate) fn read_all(&self) -> Result<Vec<Split>> {
        let (layout, options) = (Layout::detect(&self.path)?, &self.options);
        let names = options.split.as_ref().map_or_else(|| layout.split_names(), |name| vec![name.clone()]);
        names.iter().map(|name| options.read_split(&layout, Some(name))).collect()
    }
}

impl DataOptions {
    /// Reads a split with all its classes.
    pub(crate) fn read_whole_split(&self, layout: &Layout, name: Option<&str>) -> Result<Split> {
        let options = ReadOptions { images: self.images.as_deref(), on_bad_image: self.on_bad_image.into() };
        layout.read(name, options)
    }

    fn read_split(&self, layout: &Layout, name: Option<&str>) -> Result<Split> {
        let mut split = self.read_whole_split(layout, name)?;
        if self.are_classes_chosen() {
            let is_class = |name: &str| split.dataset.categories().iter().any(|c| c.name == name);
            split.dataset = split.dataset.restrict_to(&self.class_names(is_class))?;
        }
        Ok(split)
    }

    pub(crate) fn are_classes_chosen(&self) -> bool {
        !self.classes.is_empty()
    }

    /// `--classes cat,dog` names two classes, unless one is called `cat,dog`.
    pub(crate) fn class_names(&self, is_class: impl Fn(&str) -> bool) -> Vec<String> {
        let names = self.classes.iter().flat_map(|given| match is_class(given) {
            true => vec![given.clone()],
            false => given.split(',').map(|name| name.trim().to_owned()).collect(),
        });
        names.collect()
    }
}
