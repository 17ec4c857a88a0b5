//! Non-maximum suppression.

use std::cmp::Ordering;

use crate::{Box2, iou};

/// Non-maximum suppression within each class: the indices of the boxes that stay, best score
/// first.
///
/// From the best score down, a box is dropped when its IoU with a kept box *of its class* is above
/// `iou_max`. Equal scores keep the order in which they were given.
///
/// The same result as torchvision's `batched_nms` (fixture `fixtures/nms`).
/// Differs from the reference: up to 1,000 boxes torchvision moves the classes apart by an offset
/// added to the coordinates, and so rounds them; here the coordinates are compared as they are,
/// which is what torchvision itself does above 1,000. There it keeps the same boxes, but leaves the
/// order of equal scores open.
///
/// # Panics
/// When the three lists differ in length.
pub fn nms(boxes: &[Box2], scores: &[f32], classes: &[usize], iou_max: f64) -> Vec<usize> {
    assert!(
        boxes.len() == scores.len() && boxes.len() == classes.len(),
        "nms: {} boxes, {} scores, {} classes",
        boxes.len(),
        scores.len(),
        classes.len()
    );
    let best_first = |&a: &usize, &b: &usize| descending(scores[a], scores[b]).then(a.cmp(&b));

    let mut order: Vec<usize> = (0..boxes.len()).collect();
    order.sort_unstable_by(|a, b| classes[*a].cmp(&classes[*b]).then_with(|| best_first(a, b)));

    let mut kept: Vec<usize> = Vec::new();
    let mut better = Columns::default();
    for of_class in order.chunk_by(|&a, &b| classes[a] == classes[b]) {
        better.clear();
        for &candidate in of_class {
            if !better.any_overlaps(boxes[candidate], iou_max) {
                better.push(boxes[candidate]);
                kept.push(candidate);
            }
        }
    }
    kept.sort_unstable_by(best_first);
    kept
}

/// Boxes by columns, so that one is compared with many at once.
#[derive(Default)]
struct Columns {
    boxes: Vec<Box2>,
    x1: Vec<f32>,
    y1: Vec<f32>,
    x2: Vec<f32>,
    y2: Vec<f32>,
    area: Vec<f32>,
}

impl Columns {
    fn clear(&mut self) {
        self.boxes.clear();
        for column in [&mut self.x1, &mut self.y1, &mut self.x2, &mut self.y2, &mut self.area] {
            column.clear();
        }
    }

    fn push(&mut self, b: Box2) {
        self.boxes.push(b);
        let columns = [&mut self.x1, &mut self.y1, &mut self.x2, &mut self.y2, &mut self.area];
        for (column, value) in columns.into_iter().zip([b.x1, b.y1, b.x2, b.y2, b.area()]) {
            column.push(value);
        }
    }

    /// Is the IoU of `b` with any of them above `iou_max`?
    fn any_overlaps(&self, b: Box2, iou_max: f64) -> bool {
        const AT_ONCE: usize = 16;
        // Without a division and slightly less strict; what passes is checked exactly.
        let (nearly, area) = ((iou_max - 1e-4) as f32, b.area());
        let columns = (self.x1.chunks(AT_ONCE).zip(self.y1.chunks(AT_ONCE)))
            .zip(self.x2.chunks(AT_ONCE).zip(self.y2.chunks(AT_ONCE)))
            .zip(self.area.chunks(AT_ONCE).zip(self.boxes.chunks(AT_ONCE)));
        for (((x1, y1), (x2, y2)), (areas, boxes)) in columns {
            let mut near = false;
            for i in 0..boxes.len() {
                let width = (b.x2.min(x2[i]) - b.x1.max(x1[i])).max(0.0);
                let height = (b.y2.min(y2[i]) - b.y1.max(y1[i])).max(0.0);
                let shared = width * height;
                near |= shared >= nearly * (area + areas[i] - shared);
            }
            if near && boxes.iter().any(|&other| f64::from(iou(other, b)) > iou_max) {
                return true;
            }
        }
        false
    }
}

/// Greater first; a score that is not a number before all others, as PyTorch sorts.
fn descending(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}
