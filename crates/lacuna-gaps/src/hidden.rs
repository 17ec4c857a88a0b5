//! What a simulated split took away from a data set: the truth that results are measured against.

use std::collections::HashMap;
use std::path::Path;

use lacuna_data::{Annotation, Builder, Category, Dataset, Error, Image, coco};

/// The data set with nothing but the annotations of this file, which a simulated split took away from it. Images
/// and classes are at the same places; classes are found by their names. `some` of them are of interest, or all.
///
/// # Errors
/// What is wrong with the file; [`Error::NotHidden`] or [`Error::UnknownClass`] when it has images or classes that
/// the data set has not.
pub fn read_hidden(path: &Path, dataset: &Dataset, some: bool) -> lacuna_data::Result<Dataset> {
    let hidden = coco::read(path)?;
    let known: HashMap<u64, usize> =
        dataset.images().iter().enumerate().map(|(index, image)| (image.id, index)).collect();
    let index_of = |image: &Image| {
        let index = known.get(&image.id).copied();
        index.filter(|&index| dataset.images()[index].file_name == image.file_name).ok_or_else(|| {
            let reason = format!("its image {} ({}) is not in the data set", image.id, image.file_name);
            Error::NotHidden { path: path.to_owned(), reason }
        })
    };
    let indices = hidden.images().iter().map(index_of).collect::<lacuna_data::Result<Vec<usize>>>()?;
    let names: Vec<String> = dataset.categories().iter().map(|category| category.name.clone()).collect();
    let mut builder = Builder::extending(&dataset.filter(|_, _| false));
    for annotation in hidden.annotations() {
        let Category { id, name, .. } = &hidden.categories()[annotation.category];
        let known = dataset.categories();
        // Of several classes of one name, that of the same id.
        let class = known.iter().position(|known| known.name == *name && known.id == *id);
        match class.or_else(|| names.iter().position(|known| known == name)) {
            Some(class) => {
                let Annotation { image, bbox, area, crowd, .. } = *annotation;
                builder.annotation_of_area(indices[image], class, (bbox, area), crowd, ());
            }
            None if some => {}
            None => return Err(Error::UnknownClass { name: name.clone(), known: names }),
        }
    }
    Ok(builder.finish())
}
