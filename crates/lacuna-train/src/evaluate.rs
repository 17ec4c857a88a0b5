//! A detector on a data set: its detections, and their average precision.

use std::path::Path;

use burn::tensor::Device;
use lacuna_boxes::Detection;
use lacuna_data::decode::{self, ImageError, OnBadImage, RgbImage};
use lacuna_data::{Dataset, Error};
use lacuna_eval::{AveragePrecision, average_precision_of_lists};
use lacuna_models::Detector;
use rayon::prelude::*;

use crate::model::{InputConfig, ModelCategory};

/// Images that are decoded at once, on all cores, before the detector takes them one by one.
const DECODED_AT_ONCE: usize = 16;

/// The detections of a detector in the images of a data set.
pub struct DatasetDetections {
    /// Of each image of the data set, best first, in its coordinates, with the detector's classes.
    pub detections: Vec<Vec<Detection>>,
    /// The images that could not be read; they have no detections.
    pub skipped: Vec<ImageError>,
}

/// Runs a detector on every image. `folder` is where the images' file names start from; `keep_going` is asked after
/// each image.
///
/// # Errors
/// [`Error::Interrupted`] when `keep_going` says no, [`Error::Image`] of an image that cannot be read.
pub fn detect_all(
    detector: &Detector,
    input: &InputConfig,
    (dataset, folder): (&Dataset, &Path),
    on_bad_image: OnBadImage,
    keep_going: &mut dyn FnMut() -> bool,
) -> lacuna_data::Result<DatasetDetections> {
    let mut result = DatasetDetections { detections: Vec::new(), skipped: Vec::new() };
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
                    result.skipped.push(error);
                    Vec::new()
                }
                Err(error) => return Err(error.into()),
            };
            result.detections.push(detections);
            if !keep_going() {
                return Err(Error::Interrupted);
            }
        }
    }
    Ok(result)
}

/// For each class of a model, the data set's class of the same name (of several, that of the same id). `None`: the data
/// set has no such class.
pub fn match_classes(categories: &[ModelCategory], dataset: &Dataset) -> Vec<Option<usize>> {
    let known = dataset.categories();
    let index = |class: &ModelCategory| {
        let same = known.iter().position(|other| other.name == class.name && other.id == class.id);
        same.or_else(|| known.iter().position(|other| other.name == class.name))
    };
    categories.iter().map(index).collect()
}

/// The detections with the data set's classes; `classes` has the data set's class for each of the detector's, as
/// [`match_classes`] gives. Detections of classes that the data set does not have are left out.
pub fn map_classes(detections: &[Vec<Detection>], classes: &[Option<usize>]) -> Vec<Vec<Detection>> {
    let map_class =
        |&detection: &Detection| Some(Detection { class: classes[detection.class]?, ..detection });
    detections.iter().map(|detections| detections.iter().filter_map(map_class).collect()).collect()
}

/// COCO's average precision; `classes` has the data set's class for each of the detector's.
pub(crate) fn average_precision(
    dataset: &Dataset,
    detections: &[Vec<Detection>],
    classes: &[Option<usize>],
) -> AveragePrecision {
    average_precision_of_lists(dataset, &map_classes(detections, classes))
}
