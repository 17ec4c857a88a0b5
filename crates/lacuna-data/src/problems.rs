//! Problems of a data set that are reported but accepted, because real data sets, COCO included, have them.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;

use rayon::prelude::*;
use serde::Serialize;

use crate::dataset::{Annotation, Dataset, Xywh};
use crate::decode::{self, ImageProblem};
use crate::error::{Error, Result};

/// A problem and where it is. Ids are those of the file.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "problem", rename_all = "snake_case")]
#[allow(missing_docs)] // Fields are named in the messages.
pub enum Problem {
    /// Kept in files, never trained on.
    ZeroSizeBox { annotation: u64, image: u64 },
    /// Clipped for training.
    BoxPartlyOutside { annotation: u64, image: u64 },
    /// Nothing of it is left for training.
    BoxOutside { annotation: u64, image: u64 },
    /// The same class and the same box as an earlier annotation of the image.
    RepeatedBox { annotation: u64, image: u64, first: u64 },
    /// No boxes, or only crowds.
    ImageWithoutBoxes { image: u64, file_name: String },
    /// The same file name as an earlier image.
    RepeatedFileName { image: u64, first: u64, file_name: String },
    /// No boxes, or only crowds.
    CategoryWithoutBoxes { category: u64, name: String },
    /// The same name as an earlier category.
    RepeatedCategoryName { category: u64, first: u64, name: String },
    /// A file of the data set that is not in it, because its size could not be read.
    UnreadableImage { path: String, reason: String },
    /// Found only when the image files are checked.
    BadImage { image: u64, file_name: String, reason: String },
}

impl Problem {
    /// What the problem is, for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ZeroSizeBox { .. } => "boxes of zero size",
            Self::BoxPartlyOutside { .. } => "boxes partly outside the image",
            Self::BoxOutside { .. } => "boxes wholly outside the image",
            Self::RepeatedBox { .. } => "boxes that are there twice",
            Self::ImageWithoutBoxes { .. } => "images without boxes",
            Self::RepeatedFileName { .. } => "file names that are there twice",
            Self::CategoryWithoutBoxes { .. } => "categories without boxes",
            Self::RepeatedCategoryName { .. } => "category names that are there twice",
            Self::UnreadableImage { .. } => "images left out because they cannot be read",
            Self::BadImage { .. } => "images that cannot be used",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::ZeroSizeBox { annotation, image } => {
                write!(f, "annotation {annotation} of image {image} has a box of zero size")
            }
            Self::BoxPartlyOutside { annotation, image } => {
                write!(f, "annotation {annotation} of image {image} lies partly outside the image")
            }
            Self::BoxOutside { annotation, image } => {
                write!(f, "annotation {annotation} of image {image} lies wholly outside the image")
            }
            Self::RepeatedBox { annotation, image, first } => {
                write!(f, "annotation {annotation} of image {image} repeats annotation {first}")
            }
            Self::ImageWithoutBoxes { image, file_name } => {
                write!(f, "image {image} ({file_name}) has no boxes")
            }
            Self::RepeatedFileName { image, first, file_name } => {
                write!(f, "image {image} has the file name of image {first}, {file_name}")
            }
            Self::CategoryWithoutBoxes { category, name } => {
                write!(f, "category {category} ({name}) has no boxes")
            }
            Self::RepeatedCategoryName { category, first, name } => {
                write!(f, "category {category} has the name of category {first}, {name}")
            }
            Self::UnreadableImage { path, reason } => write!(f, "{path} {reason}"),
            Self::BadImage { image, file_name, reason } => write!(f, "image {image} ({file_name}) {reason}"),
        }
    }
}

/// Every problem that the annotations show: boxes first, then images, then categories.
pub fn problems(dataset: &Dataset) -> Vec<Problem> {
    let boxes =
        (0..dataset.images().len()).into_par_iter().flat_map_iter(|image| box_problems(dataset, image));
    let mut found: Vec<Problem> = boxes.collect();
    let mut names: HashMap<&str, u64> = HashMap::new();
    for (index, image) in dataset.images().iter().enumerate() {
        if dataset.annotations_of(index).all(|a| a.crowd) {
            found.push(Problem::ImageWithoutBoxes { image: image.id, file_name: image.file_name.clone() });
        }
        if let Some(first) = names.insert(&image.file_name, image.id) {
            let file_name = image.file_name.clone();
            found.push(Problem::RepeatedFileName { image: image.id, first, file_name });
        }
    }
    let used: HashSet<usize> =
        dataset.annotations().iter().filter(|a| !a.crowd).map(|a| a.category).collect();
    let mut names: HashMap<&str, u64> = HashMap::new();
    for (index, category) in dataset.categories().iter().enumerate() {
        if !used.contains(&index) {
            found.push(Problem::CategoryWithoutBoxes { category: category.id, name: category.name.clone() });
        }
        if let Some(first) = names.insert(&category.name, category.id) {
            let name = category.name.clone();
            found.push(Problem::RepeatedCategoryName { category: category.id, first, name });
        }
    }
    found
}

/// The problems of the boxes of one image.
fn box_problems(dataset: &Dataset, index: usize) -> Vec<Problem> {
    let image = &dataset.images()[index];
    let mut found = Vec::new();
    let mut seen: HashMap<[u64; 5], u64> = HashMap::new();
    for &Annotation { id, category, bbox, .. } in dataset.annotations_of(index) {
        let Xywh { x, y, width, height } = bbox;
        let (annotation, image_id) = (id, image.id);
        let (image_width, image_height) = (f64::from(image.width), f64::from(image.height));
        // Files round coordinates: COCO's own go over the border by some hundredths of a pixel.
        const ROUNDING: f64 = 0.05;
        let within = |low: f64, size: f64, limit: f64| low >= -ROUNDING && low + size <= limit + ROUNDING;
        let outside = |low: f64, size: f64, limit: f64| low + size <= 0.0 || low >= limit;
        // As trained on, that is in f32: a box of a millionth of a pixel has no size there.
        if bbox.to_box().is_degenerate() {
            found.push(Problem::ZeroSizeBox { annotation, image: image_id });
        } else if outside(x, width, image_width) || outside(y, height, image_height) {
            found.push(Problem::BoxOutside { annotation, image: image_id });
        } else if !(within(x, width, image_width) && within(y, height, image_height)) {
            found.push(Problem::BoxPartlyOutside { annotation, image: image_id });
        }
        let place = [category as u64, x.to_bits(), y.to_bits(), width.to_bits(), height.to_bits()];
        let first = *seen.entry(place).or_insert(id);
        if first != id {
            found.push(Problem::RepeatedBox { annotation, image: image_id, first });
        }
    }
    found
}

/// Check the image files below `folder`: their headers or, if `thorough`, all of their pixels. `go_on` is called
/// after each image and stops the check by returning false.
///
/// # Errors
/// [`Error::Interrupted`] when `go_on` returned false.
pub fn image_problems(
    dataset: &Dataset,
    folder: &Path,
    thorough: bool,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<Problem>> {
    let check = |image: &crate::Image| {
        let (path, annotated) = (folder.join(&image.file_name), (image.width, image.height));
        let problem = if thorough {
            decode::read(&path, Some(annotated)).err().map(|e| e.problem.to_string())
        } else {
            match decode::read_size(&path) {
                Ok(size) if size.agrees_with(annotated) => None,
                Ok(size) => {
                    let found = size.stored;
                    Some(
                        ImageProblem::from(decode::DecodeError::SizeMismatch { found, annotated })
                            .to_string(),
                    )
                }
                Err(e) => Some(e.problem.to_string()),
            }
        };
        if !go_on() {
            return Some(Err(Error::Interrupted));
        }
        let (image, file_name) = (image.id, image.file_name.clone());
        problem.map(|reason| Ok(Problem::BadImage { image, file_name, reason }))
    };
    dataset.images().par_iter().filter_map(check).collect()
}
