//! The data of a run.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lacuna_data::layout::{Layout, ReadOptions, Split};
use lacuna_data::{Dataset, Error, Object, coco};
use serde::{Deserialize, Serialize};

use crate::config::{DataConfig, PartConfig};
use crate::model::ModelCategory;

pub struct Data {
    pub train: Part,
    pub test: Option<Part>,
    /// The annotations that a simulated split took away, by image id, with the classes of `train`.
    pub hidden: Option<HashMap<u64, Vec<Object>>>,
}

/// A data set and the folder of its images.
pub struct Part {
    pub dataset: Arc<Dataset>,
    pub folder: PathBuf,
    pub split: Split,
}

impl Data {
    /// # Errors
    /// What is wrong with a file; [`Error::NotHidden`] or [`Error::UnknownClass`] when what was hidden is not of
    /// the images or classes that are trained.
    pub fn read(config: &DataConfig) -> lacuna_data::Result<Self> {
        let train = Part::read(&config.train, config)?.expect("the configuration says where it is");
        let test = Part::read(&config.test, config)?;
        let hidden = match &config.hidden {
            Some(path) => Some(hidden(path, &train.dataset, !config.classes.is_empty())?),
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

    /// Which part of the data is not that of a run with this fingerprint.
    pub(crate) fn difference(&self, begun: &Fingerprint) -> Option<&'static str> {
        let Fingerprint { train, test, hidden } = self.fingerprint();
        let parts = [
            (train == begun.train, "`data.train` has other images or boxes"),
            (test == begun.test, "`data.test` has other images or boxes"),
            (hidden == begun.hidden, "`data.hidden` has other boxes"),
        ];
        parts.into_iter().find(|(same, _)| !same).map(|(_, what)| what)
    }

    pub fn categories(&self) -> Vec<ModelCategory> {
        let of_category =
            |category: &lacuna_data::Category| ModelCategory { id: category.id, name: category.name.clone() };
        self.train.dataset.categories().iter().map(of_category).collect()
    }
}

impl Part {
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

/// By image id; classes are found by their names. `some` of the classes are trained, or all.
fn hidden(path: &Path, train: &Dataset, some: bool) -> lacuna_data::Result<HashMap<u64, Vec<Object>>> {
    let hidden = coco::read(path)?;
    let known: HashMap<u64, &str> =
        train.images().iter().map(|image| (image.id, image.file_name.as_str())).collect();
    if let Some(image) = hidden.images().iter().find(|image| known.get(&image.id) != Some(&&*image.file_name))
    {
        let reason = format!("its image {} ({}) is not in the training data", image.id, image.file_name);
        return Err(Error::NotHidden { path: path.to_owned(), reason });
    }
    let names: Vec<String> = train.categories().iter().map(|category| category.name.clone()).collect();
    let class_of = |class: usize| names.iter().position(|known| *known == hidden.categories()[class].name);
    let of_image = |index: usize| {
        let mut objects = Vec::new();
        for object in hidden.objects_of(index) {
            match class_of(object.class) {
                Some(class) => objects.push(Object { class, ..object }),
                None if some => {}
                None => {
                    let name = hidden.categories()[object.class].name.clone();
                    return Err(Error::UnknownClass { name, known: names.clone() });
                }
            }
        }
        Ok((hidden.images()[index].id, objects))
    };
    (0..hidden.images().len()).map(of_image).collect()
}

/// What tells the data of one run from that of another: check sums of what is trained, tested and hidden.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
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
