//! The data of a run.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use lacuna_data::decode::OnBadImage;
use lacuna_data::layout::{Layout, ReadOptions, Split};
use lacuna_data::{Dataset, Error, Object, coco};

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
    /// What is wrong with a file, or [`Error::UnknownClass`] when something of a class was hidden that is not
    /// trained.
    pub fn read(config: &DataConfig) -> lacuna_data::Result<Self> {
        let train = Part::read(&config.train, config)?.expect("the configuration says where it is");
        let test = Part::read(&config.test, config)?;
        let hidden = match &config.hidden {
            Some(path) => Some(hidden(&coco::read(path)?, &train.dataset)?),
            None => None,
        };
        Ok(Self { train, test, hidden })
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
        let on_bad_image = OnBadImage::from(config.on_bad_image);
        let options = ReadOptions { images: part.images.as_deref(), on_bad_image };
        let mut split = Layout::detect(path)?.read(part.split.as_deref(), options)?;
        if !config.classes.is_empty() {
            split.dataset = split.dataset.restrict_to(&config.classes)?;
        }
        let folder = split.images()?.to_owned();
        Ok(Some(Self { dataset: Arc::new(split.dataset.clone()), folder, split }))
    }
}

/// By image id; classes are found by their names.
fn hidden(hidden: &Dataset, train: &Dataset) -> lacuna_data::Result<HashMap<u64, Vec<Object>>> {
    let names: Vec<String> = train.categories().iter().map(|category| category.name.clone()).collect();
    let class_of = |class: usize| {
        let name = &hidden.categories()[class].name;
        let unknown = || Error::UnknownClass { name: name.clone(), known: names.clone() };
        names.iter().position(|known| known == name).ok_or_else(unknown)
    };
    let of_image = |index: usize| {
        let objects = hidden.objects_of(index).into_iter();
        let objects = objects.map(|object| Ok(Object { class: class_of(object.class)?, ..object }));
        Ok((hidden.images()[index].id, objects.collect::<lacuna_data::Result<_>>()?))
    };
    (0..hidden.images().len()).map(of_image).collect()
}
