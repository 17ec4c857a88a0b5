//! The arguments by which every command is told of a data set.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lacuna_data::Result;
use lacuna_data::layout::{Layout, Split};
use lacuna_data::problems::{Problem, problems};

use crate::table::thousands;

#[derive(clap::Args)]
pub struct DataArgs {
    /// A COCO JSON file, a YOLO data.yaml, or the folder of a COCO, VOC or YOLO data set
    #[arg(value_name = "DATA")]
    pub path: PathBuf,

    /// The split to take, where there are several
    #[arg(long)]
    pub split: Option<String>,

    /// Only these classes, by name
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub classes: Vec<String>,

    /// The folder of the images, where it is not found beside the annotations
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,
}

impl DataArgs {
    /// The one split that is meant.
    pub fn read(&self) -> Result<Split> {
        self.finish(Layout::detect(&self.path)?.read(self.split.as_deref())?)
    }

    /// All splits, or the one that was named.
    pub fn read_all(&self) -> Result<Vec<Split>> {
        if self.split.is_some() {
            return Ok(vec![self.read()?]);
        }
        let layout = Layout::detect(&self.path)?;
        layout.split_names().iter().map(|name| self.finish(layout.read(Some(name))?)).collect()
    }

    fn finish(&self, mut split: Split) -> Result<Split> {
        if !self.classes.is_empty() {
            split.dataset = split.dataset.restrict_to(&self.classes)?;
        }
        if let Some(images) = &self.images {
            split.set_images(images.clone());
        }
        Ok(split)
    }
}

/// Say in one line what is odd about a data set that was read for something else.
pub fn note_problems(split: &Split) {
    let counts = count(&problems(&split.dataset));
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
