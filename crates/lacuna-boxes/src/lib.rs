//! Boxes and what is done with them: overlap ([`iou`], [`iof`]), non-maximum suppression
//! ([`nms`]) and the affine maps that carry boxes between an image and its views ([`Affine`]).
//!
//! Plain numbers in, plain numbers out: no tensors, no files, no allocation beyond the results.

mod affine;
mod detection;
mod nms;
mod overlap;

pub use affine::Affine;
pub use detection::{Detection, Score};
pub use nms::nms;
pub use overlap::{PairwiseMatrix, best_iou, iof, iou, pairwise_iof, pairwise_iou};

/// A box by its corners in pixels: `x1, y1` the upper left one, `x2, y2` the lower right one.
///
/// Coordinates are continuous, as COCO's are: a box over the whole of a 4×3 image is
/// `(0, 0, 4, 3)`. A box with `x2 <= x1` or `y2 <= y1` is *degenerate*; it has no area and
/// overlaps nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Box2 {
    /// The left side.
    pub x1: f32,
    /// The top side.
    pub y1: f32,
    /// The right side.
    pub x2: f32,
    /// The bottom side.
    pub y2: f32,
}

impl Box2 {
    /// A box by its corners.
    pub const fn new(x1: f32, y1: f32, x2: f32, y2: f32) -> Self {
        Self { x1, y1, x2, y2 }
    }

    /// From COCO's corner and size.
    pub fn from_xywh(x: f32, y: f32, width: f32, height: f32) -> Self {
        Self::new(x, y, x + width, y + height)
    }

    /// The width; negative when the corners are swapped.
    pub fn width(self) -> f32 {
        self.x2 - self.x1
    }

    /// The height; negative when the corners are swapped.
    pub fn height(self) -> f32 {
        self.y2 - self.y1
    }

    /// The center, `(x, y)`.
    pub fn center(self) -> (f32, f32) {
        (0.5 * (self.x1 + self.x2), 0.5 * (self.y1 + self.y2))
    }

    /// Width times height; 0 for a degenerate box, never negative.
    pub fn area(self) -> f32 {
        self.width().max(0.0) * self.height().max(0.0)
    }

    /// True when the box encloses no area, or when a coordinate is not a number.
    pub fn is_degenerate(self) -> bool {
        !(self.x2 > self.x1 && self.y2 > self.y1)
    }

    /// The part inside an image of this size. A box wholly outside comes back degenerate, on the
    /// nearest border.
    #[must_use]
    pub fn clip(self, width: f32, height: f32) -> Self {
        Self::new(
            self.x1.clamp(0.0, width),
            self.y1.clamp(0.0, height),
            self.x2.clamp(0.0, width),
            self.y2.clamp(0.0, height),
        )
    }

    /// The area shared with `other`.
    pub fn intersection(self, other: Self) -> f32 {
        let width = self.x2.min(other.x2) - self.x1.max(other.x1);
        let height = self.y2.min(other.y2) - self.y1.max(other.y1);
        width.max(0.0) * height.max(0.0)
    }
}
