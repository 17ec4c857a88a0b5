//! A detection together with its image: what evaluation works with.

use std::cmp::Ordering;

use lacuna_boxes::{Box2, Detection};
use lacuna_data::Xywh;

/// A detection in an image of a data set, with the full precision of a results file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageDetection {
    /// Index in [`Dataset::images`](lacuna_data::Dataset::images).
    pub image: usize,
    /// Index in [`Dataset::categories`](lacuna_data::Dataset::categories).
    pub class: usize,
    /// In pixels.
    pub bbox: Xywh,
    /// The raw score or the confidence, whichever is evaluated.
    pub score: f64,
}

impl ImageDetection {
    /// A model's detection in the image with this index.
    pub fn from_detection(image: usize, detection: Detection) -> Self {
        let Detection { bbox, class, score } = detection;
        Self { image, class, bbox: to_xywh(bbox), score: score.0.into() }
    }
}

/// A box in COCO's form. A degenerate one becomes a point: with a negative area it would be in no area range and
/// would not count as an error.
pub(crate) fn to_xywh(bbox: Box2) -> Xywh {
    if bbox.is_degenerate() {
        return Xywh { x: 0.0, y: 0.0, width: 0.0, height: 0.0 };
    }
    let [x1, y1, x2, y2] = [bbox.x1, bbox.y1, bbox.x2, bbox.y2].map(f64::from);
    Xywh { x: x1, y: y1, width: x2 - x1, height: y2 - y1 }
}

/// The order with the greater score first and NaN last, as NumPy sorts.
pub(crate) fn best_first(a: f64, b: f64) -> Ordering {
    b.partial_cmp(&a).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}
