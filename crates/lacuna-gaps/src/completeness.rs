//! How much of a data set is annotated, as far as a detector's output tells.

use lacuna_calib::{CompletenessEstimate, CompletenessEstimates, NoFit, Sample, estimate_completeness};
use lacuna_data::{Dataset, SizeClass};

use crate::judge::{JudgedDetection, samples};

/// The completeness of a data set: of all objects, by class, and by size.
pub struct DatasetCompleteness {
    /// Of all objects together.
    pub all: CompletenessEstimate,
    /// Of each class; `None` where there is too little to tell.
    pub classes: Vec<Option<CompletenessEstimate>>,
    /// Of small, medium and large objects, in the order of [`SizeClass::ALL`].
    pub sizes: Vec<Option<CompletenessEstimate>>,
    /// How many boxes people gave.
    pub given: usize,
}

impl DatasetCompleteness {
    /// From detections that were judged by the annotations.
    ///
    /// # Errors
    /// [`NoFit::TooFew`].
    pub fn new(dataset: &Dataset, judged: &[Vec<JudgedDetection>], score_min: f32) -> Result<Self, NoFit> {
        let CompletenessEstimates { all, groups: classes } =
            estimate_completeness(&samples(judged, score_min), dataset.categories().len(), 0)?;
        let CompletenessEstimates { groups: sizes, .. } =
            estimate_completeness(&samples_by_size(judged, score_min), SizeClass::ALL.len(), 0)?;
        Ok(Self { all, classes, sizes, given: given_boxes(dataset) })
    }

    /// How many boxes are missing, as far as that is known.
    pub fn missing(&self) -> f64 {
        self.all.missing(self.given)
    }
}

/// The samples of each image with a detection's size in the place of its class.
fn samples_by_size(judged: &[Vec<JudgedDetection>], score_min: f32) -> Vec<Vec<Sample>> {
    let sample = |detection: &JudgedDetection| {
        let bbox = detection.detection.bbox;
        let size = SizeClass::from_area((bbox.width() * bbox.height()).into());
        Some(Sample { class: size as usize, ..detection.sample()? })
    };
    let of_image = |judged: &Vec<JudgedDetection>| {
        judged.iter().filter(|judged| judged.is_above(score_min)).filter_map(sample).collect()
    };
    judged.iter().map(of_image).collect()
}

/// Crowd regions and recovered boxes are not what people gave.
fn given_boxes(dataset: &Dataset) -> usize {
    let annotations = dataset.annotations().iter();
    annotations.filter(|annotation| !annotation.crowd && dataset.recovered_mark(annotation).is_none()).count()
}
