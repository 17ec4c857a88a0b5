//! The boxes that a data set lacks, as far as a detector can tell.

use lacuna_boxes::{Affine, Detection};
use lacuna_calib::{Confidence, Platt};
use lacuna_data::{Builder, Dataset, Xywh};
use serde::Serialize;

use crate::config::Overlap;
use crate::pseudo::split_by_overlap;

/// A box that is probably missing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Missing {
    /// Index in [`Dataset::images`].
    pub image: usize,
    pub detection: Detection,
    pub confidence: Confidence,
}

/// The candidates among the detections of each image with a raw score above `score_min`, with the
/// confidence of each. Classes are the data set's; `min_side` is in pixels of the image.
pub fn candidates(
    dataset: &Dataset,
    detections: &[Vec<Detection>],
    overlap: &Overlap,
    score_min: f32,
    calibrator: Platt,
) -> Vec<Missing> {
    let of_image = |(image, found): (usize, &Vec<Detection>)| {
        let above: Vec<Detection> = found.iter().copied().filter(|found| found.score.0 > score_min).collect();
        let split = split_by_overlap(&above, &dataset.objects_of(image), overlap, Affine::IDENTITY);
        split.candidates.into_iter().map(move |detection| Missing {
            image,
            detection,
            confidence: calibrator.confidence(detection.score),
        })
    };
    detections.iter().enumerate().flat_map(of_image).collect()
}

/// What an annotation says of itself when nobody drew it.
#[derive(Serialize)]
struct Recovered {
    score: f32,
    confidence: f32,
}

/// The data set with the missing boxes added; each has its `score` and `confidence`.
pub fn completed(dataset: &Dataset, missing: &[Missing]) -> Dataset {
    let mut builder = Builder::extending(dataset);
    for Missing { image, detection, confidence } in missing {
        let bounds = detection.bounds;
        let bbox = Xywh {
            x: bounds.x1.into(),
            y: bounds.y1.into(),
            width: bounds.width().into(),
            height: bounds.height().into(),
        };
        let more = Recovered { score: detection.score.0, confidence: confidence.0 };
        builder.annotation(*image, detection.class, bbox, false, more);
    }
    builder.finish()
}
