//! Boxes as the numbers that a network regresses, and back.

use lacuna_boxes::Box2;

/// The largest logarithm of a size that is believed: a box 62.5 times its reference.
const SIZE_MAX: f32 = 4.135_166_6; // ln(1000 / 16)

/// A box relative to a reference box (Girshick et al., 2014): the shift of its center in units of the
/// reference's size, and the logarithm of the ratio of the sizes, each times a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BoxCoder {
    /// Of (x, y) and of (width, height).
    pub(crate) weights: (f32, f32),
}

impl BoxCoder {
    pub(crate) fn encode(self, reference: Box2, bbox: Box2) -> [f32; 4] {
        let (width, height) = (reference.width(), reference.height());
        let (x, y) = (reference.x1 + 0.5 * width, reference.y1 + 0.5 * height);
        let (box_width, box_height) = (bbox.width(), bbox.height());
        let (box_x, box_y) = (bbox.x1 + 0.5 * box_width, bbox.y1 + 0.5 * box_height);
        let (shift, size) = self.weights;
        [
            shift * (box_x - x) / width,
            shift * (box_y - y) / height,
            size * (box_width / width).ln(),
            size * (box_height / height).ln(),
        ]
    }

    pub(crate) fn decode(self, reference: Box2, [dx, dy, dw, dh]: [f32; 4]) -> Box2 {
        let (width, height) = (reference.width(), reference.height());
        let (shift, size) = self.weights;
        let x = dx / shift * width + (reference.x1 + 0.5 * width);
        let y = dy / shift * height + (reference.y1 + 0.5 * height);
        let half_width = 0.5 * ((dw / size).min(SIZE_MAX).exp() * width);
        let half_height = 0.5 * ((dh / size).min(SIZE_MAX).exp() * height);
        Box2::new(x - half_width, y - half_height, x + half_width, y + half_height)
    }

    /// From a gradient by the corners of the decoded box to one by the deltas.
    pub(crate) fn gradient(self, reference: Box2, deltas: [f32; 4], [x1, y1, x2, y2]: [f32; 4]) -> [f32; 4] {
        let (shift, size) = self.weights;
        let decoded = self.decode(reference, deltas);
        let grows = |delta: f32| if delta / size < SIZE_MAX { 0.5 / size } else { 0.0 };
        [
            (x1 + x2) * reference.width() / shift,
            (y1 + y2) * reference.height() / shift,
            (x2 - x1) * decoded.width() * grows(deltas[2]),
            (y2 - y1) * decoded.height() * grows(deltas[3]),
        ]
    }
}

/// A box by the distances of its four sides from a location, in units of the location's stride (FCOS).
/// The location is the center of a square of the stride's size.
pub(crate) mod distances {
    use lacuna_boxes::Box2;

    pub(crate) fn encode(square: Box2, bbox: Box2) -> [f32; 4] {
        let ((x, y), width, height) = (square.center(), square.width(), square.height());
        [(x - bbox.x1) / width, (y - bbox.y1) / height, (bbox.x2 - x) / width, (bbox.y2 - y) / height]
    }

    pub(crate) fn decode(square: Box2, [left, top, right, bottom]: [f32; 4]) -> Box2 {
        let ((x, y), width, height) = (square.center(), square.width(), square.height());
        Box2::new(x - left * width, y - top * height, x + right * width, y + bottom * height)
    }

    /// From a gradient by the corners of the decoded box to one by the distances.
    pub(crate) fn gradient(square: Box2, [x1, y1, x2, y2]: [f32; 4]) -> [f32; 4] {
        let (width, height) = (square.width(), square.height());
        [-x1 * width, -y1 * height, x2 * width, y2 * height]
    }
}
