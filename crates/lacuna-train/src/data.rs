//! The data of a run: what it is trained on, tested on, and what was hidden.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use lacuna_data::layout::{Layout, ReadOptions, Split};
use lacuna_data::{Category, Dataset, Object};
use lacuna_gaps::read_hidden;
use serde::{Deserialize, Serialize};

use crate::config::{DataConfig, PartConfig};
use crate::model::ModelCategory;

/// The data of a run.
pub struct Data {
    /// What is trained on.
    pub train: DataPart,
    /// What is evaluated on, if anything.
    pub test: Option<DataPart>,
    /// The annotations that `sparsify` hid, by image id, with the classes of `train`.
    pub hidden: Option<HashMap<u64, Vec<Object>>>,
}

/// A data set and the folder of its images.
pub struct DataPart {
    /// Images and annotations, restricted to the classes of the run.
    pub dataset: Arc<Dataset>,
    /// Where the images' file names start from.
    pub folder: PathBuf,
    /// The split as it was read.
    pub split: Split,
}

impl Data {
    /// Reads everything that the configuration names.
    ///
    /// # Errors
    /// What is wrong with a file; [`NotHidden`](lacuna_data::Error::NotHidden) or
    /// [`UnknownClass`](lacuna_data::Error::UnknownClass) when what was hidden is not of
    /// the images or classes that are trained.
    pub fn read(config: &DataConfig) -> lacuna_data::Result<Self> {
        let train = DataPart::read(&config.train, config)?.expect("the configuration says where it is");
        let test = DataPart::read(&config.test, config)?;
        let hidden = match &config.hidden {
            Some(path) => {
                let hidden = read_hidden(path, &train.dataset, !config.classes.is_empty())?;
                let images = hidden.images().iter().enumerate();
                Some(images.map(|(index, image)| (image.id, hidden.objects_of(index))).collect())
            }
            None => None,
        };
        Ok(Self { train, test, hidden })
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let of_hidden = |hidden: &HashMap<u64, Vec<Object>>| {
            let sorted: BTreeMap<_, _> = hidden.iter().collect();
            crc32fast::hash(format!("{sorted:?}").as_bytes())
        };
        Fingerprint {
            train: fingerprint(&self.train.dataset),
            test: self.test.as_ref().map(|test| fingerprint(&test.dataset)),
            hidden: self.hidden.as_ref().map(of_hidden),
        }
    }

    /// Which part of the data differs from that of a run with this fingerprint.
    pub(crate) fn difference(&self, begun: &Fingerprint) -> Option<&'static str> {
        let Fingerprint { train, test, hidden } = self.fingerprint();
        let parts = [
            (train == begun.train, "`data.train` has other images or boxes"),
            (test == begun.test, "`data.test` has other images or boxes"),
            (hidden == begun.hidden, "`data.hidden` has other boxes"),
        ];
        parts.into_iter().find(|(same, _)| !same).map(|(_, what)| what)
    }

    /// The classes of `train`, in the order of the detector's.
    pub fn categories(&self) -> Vec<ModelCategory> {
        let of_category =
            |category: &Category| ModelCategory { id: category.id, name: category.name.clone() };
        self.train.dataset.categories().iter().map(of_category).collect()
    }
}

impl DataPart {
    fn read(part: &PartConfig, config: &DataConfig) -> lacuna_data::Result<Option<Self>> {
        let Some(path) = &part.path else { return Ok(None) };
        let options = ReadOptions { images: part.images.as_deref(), on_bad_image: config.on_bad_image };
        let mut split = Layout::detect(path)?.read(part.split.as_deref(), options)?;
        if !config.classes.is_empty() {
            split.dataset = split.dataset.restrict_to(&config.classes)?;
        }
        let folder = split.images()?.to_owned();
        Ok(Some(Self { dataset: Arc::new(split.dataset.clone()), folder, split }))
    }
}

/// Check sums of what is trained, tested and hidden, to tell the data of one run from that of another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fingerprint {
    train: u32,
    test: Option<u32>,
    hidden: Option<u32>,
}

fn fingerprint(dataset: &Dataset) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    for (index, image) in dataset.images().iter().enumerate() {
        let objects = dataset.objects_of(index);
        sum.update(format!("{} {} {} {objects:?}", image.id, image.width, image.height).as_bytes());
    }
    dataset.categories().iter().for_each(|category| sum.update(category.name.as_bytes()));
    sum.finalize()
}
