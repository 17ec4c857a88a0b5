//! What must hold for all boxes, degenerate ones included.

use lacuna_boxes::{Affine, Box2, best_iou, iof, iou, nms, pairwise_iof, pairwise_iou};
use proptest::prelude::*;

fn coordinate() -> impl Strategy<Value = f32> {
    prop_oneof![-50.0f32..700.0, (-50i16..700).prop_map(f32::from)]
}

/// Any four numbers: some boxes are degenerate, some beyond all images, some not even numbers.
fn any_box() -> impl Strategy<Value = Box2> {
    let any = || prop_oneof![20 => coordinate(), 1 => any::<f32>()];
    (any(), any(), any(), any()).prop_map(|(x1, y1, x2, y2)| Box2::new(x1, y1, x2, y2))
}

fn proper_box() -> impl Strategy<Value = Box2> {
    (coordinate(), coordinate(), 0.5f32..300.0, 0.5f32..300.0)
        .prop_map(|(x, y, w, h)| Box2::from_xywh(x, y, w, h))
}

fn detections() -> impl Strategy<Value = Vec<(Box2, f32, usize)>> {
    // Few different scores, so that ties are common.
    prop::collection::vec((any_box(), (0u8..8).prop_map(|s| f32::from(s) / 8.0), 0usize..3), 0..60)
}

fn columns(d: &[(Box2, f32, usize)]) -> (Vec<Box2>, Vec<f32>, Vec<usize>) {
    (d.iter().map(|d| d.0).collect(), d.iter().map(|d| d.1).collect(), d.iter().map(|d| d.2).collect())
}

proptest! {
    #[test]
    fn overlap_is_symmetric_and_within_0_and_1(a in any_box(), b in any_box()) {
        prop_assert_eq!(iou(a, b), iou(b, a));
        prop_assert!((0.0..=1.0).contains(&iou(a, b)));
        prop_assert!((0.0..=1.0).contains(&iof(a, b)));
        prop_assert!(iou(a, b) <= iof(a, b) + 1e-6);
    }

    #[test]
    fn a_box_overlaps_itself_fully_unless_it_has_no_area(a in any_box()) {
        let has_area = !a.is_degenerate() && a.area() > 0.0 && (2.0 * a.area()).is_finite();
        prop_assert_eq!(iou(a, a), if has_area { 1.0 } else { 0.0 });
    }

    #[test]
    fn a_degenerate_box_overlaps_nothing(a in any_box(), b in any_box()) {
        prop_assume!(a.is_degenerate());
        prop_assert_eq!(iou(a, b), 0.0);
        prop_assert_eq!(iof(a, b), 0.0);
    }

    #[test]
    fn the_matrix_holds_the_pairs(
        a in prop::collection::vec(any_box(), 0..6), b in prop::collection::vec(any_box(), 0..6)
    ) {
        let (over_union, over_first) = (pairwise_iou(&a, &b), pairwise_iof(&a, &b));
        prop_assert_eq!((over_union.rows(), over_union.columns()), (a.len(), b.len()));
        for (i, &x) in a.iter().enumerate() {
            for (j, &y) in b.iter().enumerate() {
                prop_assert_eq!(over_union.get(i, j), iou(x, y));
                prop_assert_eq!(over_first.get(i, j), iof(x, y));
            }
            let largest = over_union.row(i).iter().copied().fold(0.0, f32::max);
            prop_assert_eq!(best_iou(x, b.iter().copied()).map_or(0.0, |(_, v)| v), largest);
        }
    }

    #[test]
    fn a_clipped_box_lies_in_the_image_and_in_the_box(a in proper_box()) {
        let c = a.clip(640.0, 480.0);
        prop_assert!(c.x1 >= 0.0 && c.y1 >= 0.0 && c.x2 <= 640.0 && c.y2 <= 480.0);
        prop_assert_eq!(c.area(), a.intersection(Box2::new(0.0, 0.0, 640.0, 480.0)));
        prop_assert_eq!(c.clip(640.0, 480.0), c);
    }

    #[test]
    fn nms_is_idempotent_and_leaves_no_overlap_within_a_class(
        d in detections(), iou_max in 0.0f64..1.0
    ) {
        let (boxes, scores, classes) = columns(&d);
        let kept = nms(&boxes, &scores, &classes, iou_max);
        prop_assert!(kept.is_sorted_by(|&a, &b| scores[a] > scores[b] || (scores[a] == scores[b] && a < b)));
        for (n, &a) in kept.iter().enumerate() {
            for &b in &kept[..n] {
                prop_assert!(classes[a] != classes[b] || f64::from(iou(boxes[a], boxes[b])) <= iou_max);
            }
        }
        // Whatever was dropped overlaps a kept box of its class that is at least as good.
        for dropped in (0..boxes.len()).filter(|i| !kept.contains(i)) {
            prop_assert!(kept.iter().any(|&k| classes[k] == classes[dropped]
                && scores[k] >= scores[dropped]
                && f64::from(iou(boxes[k], boxes[dropped])) > iou_max));
        }
        let survivors: Vec<_> = kept.iter().map(|&i| d[i]).collect();
        let (boxes, scores, classes) = columns(&survivors);
        prop_assert_eq!(nms(&boxes, &scores, &classes, iou_max), (0..survivors.len()).collect::<Vec<_>>());
    }

    #[test]
    fn an_affine_map_can_be_undone(
        a in proper_box(), from in (1u32..2000, 1u32..2000), to in (1u32..2000, 1u32..2000),
        flip: bool, x in -40.0f64..40.0, y in -40.0f64..40.0
    ) {
        let mut map = Affine::resize(from, to);
        if flip {
            map = map.then(Affine::flip_horizontal(to.0));
        }
        map = map.then(Affine::shift(x, y));
        let there = map.apply(a);
        prop_assert!(!there.is_degenerate() || there.width() < 1e-3 || there.height() < 1e-3);
        let back = map.inverse().apply(there);
        // The view's coordinates are f32: their rounding, seen from the image.
        let step = |to: u32, from: u32, at: f32| 4e-7 * (at.abs() + to as f32 + 80.0) * (from as f32 / to as f32);
        let x_step = step(to.0, from.0, there.x1.abs().max(there.x2.abs())) + 1e-4;
        let y_step = step(to.1, from.1, there.y1.abs().max(there.y2.abs())) + 1e-4;
        prop_assert!((back.x1 - a.x1).abs() <= x_step && (back.x2 - a.x2).abs() <= x_step, "{a:?} {back:?}");
        prop_assert!((back.y1 - a.y1).abs() <= y_step && (back.y2 - a.y2).abs() <= y_step, "{a:?} {back:?}");
    }

    #[test]
    fn flipping_twice_changes_nothing(a in proper_box(), width in 1u32..2000) {
        let flip = Affine::flip_horizontal(width);
        prop_assert_eq!(flip.then(flip), Affine::IDENTITY);
        prop_assert_eq!(flip.inverse(), flip);
        prop_assert!(flip.apply(a).x1 <= flip.apply(a).x2);
    }
}

#[test]
fn empty_lists_are_fine() {
    assert!(nms(&[], &[], &[], 0.5).is_empty());
    assert_eq!(pairwise_iou(&[], &[Box2::default()]).rows(), 0);
    assert_eq!(pairwise_iou(&[Box2::default()], &[]).rows(), 1);
    assert_eq!(best_iou(Box2::default(), []), None);
}
