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
    for of_class in order.chunk_by(|&a, &b| classes[a] == classes[b]) {
        let first = kept.len();
        for &candidate in of_class {
            let suppressed =
                kept[first..].iter().any(|&better| f64::from(iou(boxes[better], boxes[candidate])) > iou_max);
            if !suppressed {
                kept.push(candidate);
            }
        }
    }
    kept.sort_unstable_by(best_first);
    kept
}

/// Greater first; a score that is not a number before all others, as PyTorch sorts.
fn descending(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}
