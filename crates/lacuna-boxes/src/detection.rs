use crate::{Box2, iou};

/// A detector's own score of a detection, in `[0, 1]`: an order, not a probability. What a calibrator
/// makes of it is of another type.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Score(pub f32);

/// A box that a detector gives: of one class, with its score.
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
    /// Whether an object of its class, of these boxes and classes, overlaps it more than `iou_min`.
    pub fn is_one_of(&self, objects: impl IntoIterator<Item = (Box2, usize)>, iou_min: f32) -> bool {
        let mut objects = objects.into_iter();
        objects.any(|(bbox, class)| class == self.class && iou(bbox, self.bbox) > iou_min)
    }
}
