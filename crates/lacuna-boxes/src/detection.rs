//! Detections and their scores.

use crate::{Box2, iou};

/// The raw score of a detection, in `[0, 1]`: it orders detections but is not a probability. Calibrated
/// confidences have a type of their own.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Score(pub f32);

/// A box that a detector found, with its class and score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detection {
    /// In pixels of the image.
    pub bbox: Box2,
    /// From 0, background not counted.
    pub class: usize,
    /// The detector's score.
    pub score: Score,
}

impl Detection {
    /// Whether one of these objects (box and class) has its class and an IoU above `iou_min` with it.
    pub fn is_one_of(&self, objects: impl IntoIterator<Item = (Box2, usize)>, iou_min: f32) -> bool {
        let mut objects = objects.into_iter();
        objects.any(|(bbox, class)| class == self.class && iou(bbox, self.bbox) > iou_min)
    }
}
