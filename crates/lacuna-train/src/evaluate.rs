//! A detector over a data set.

use std::path::Path;

use burn::tensor::Device;
use lacuna_boxes::Detection;
use lacuna_data::decode::{self, ImageError, OnBadImage, RgbImage};
use lacuna_data::{Dataset, Error};
use lacuna_eval::{AveragePrecision, average_precision_of_lists};
use lacuna_models::Detector;
use rayon::prelude::*;

use crate::model::{InputConfig, ModelCategory};

/// So many images are decoded at once, on all cores, before the detector sees them one by one.
const DECODED_AT_ONCE: usize = 16;

/// What a detector finds in the images of a data set.
pub struct DatasetDetections {
    /// Of each image of the data set, best first, in its coordinates, with the detector's classes.
    pub detections: Vec<Vec<Detection>>,
    /// Images that could not be read; nothing was found in them.
    pub skipped: Vec<ImageError>,
}

/// `folder` is where the images' file names start from; `go_on` is asked after each image.
///
/// # Errors
/// [`Error::Interrupted`] when `go_on` says no, [`Error::Image`] of an image that cannot be read.
pub fn detect_all(
    detector: &Detector,
    input: &InputConfig,
    (dataset, folder): (&Dataset, &Path),
    on_bad_image: OnBadImage,
    go_on: &mut dyn FnMut() -> bool,
) -> lacuna_data::Result<DatasetDetections> {
    let mut found = DatasetDetections { detections: Vec::new(), skipped: Vec::new() };
    for images in dataset.images().chunks(DECODED_AT_ONCE) {
        let decoded: Vec<Result<RgbImage, ImageError>> = images
            .par_iter()
            .map(|image| decode::read(&folder.join(&image.file_name), Some((image.width, image.height))))
            .collect();
        for image in decoded {
            let detections = match image {
                Ok(image) => {
                    detector.detect(&input.images(&image, detector.two_views(), &Device::flex())).remove(0)
                }
                Err(error) if on_bad_image == OnBadImage::Skip => {
                    found.skipped.push(error);
                    Vec::new()
                }
                Err(error) => return Err(error.into()),
            };
            found.detections.push(detections);
            if !go_on() {
                return Err(Error::Interrupted);
            }
        }
    }
    Ok(found)
}

/// For each class of a model, the data set's class of the same name; of several, that of the same id.
pub fn classes_in(categories: &[ModelCategory], dataset: &Dataset) -> Vec<Option<usize>> {
    let known = dataset.categories();
    let index = |class: &ModelCategory| {
        let same = known.iter().position(|other| other.name == class.name && other.id == class.id);
        same.or_else(|| known.iter().position(|other| other.name == class.name))
    };
    categories.iter().map(index).collect()
}

/// The detections with the data set's classes, `classes` being the data set's for each of the detector's own.
/// Those of classes that it does not have are left out.
pub fn renamed(detections: &[Vec<Detection>], classes: &[Option<usize>]) -> Vec<Vec<Detection>> {
    let renamed = |found: &Vec<Detection>| {
        found.iter().filter_map(|&found| Some(Detection { class: classes[found.class]?, ..found })).collect()
    };
    detections.iter().map(renamed).collect()
}

/// COCO's average precision of a detector; `classes` are the data set's for each of its own.
pub fn evaluate(
    dataset: &Dataset,
    detections: &[Vec<Detection>],
    classes: &[Option<usize>],
) -> AveragePrecision {
    average_precision_of_lists(dataset, &renamed(detections, classes))
}
