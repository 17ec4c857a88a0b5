//! `cargo bench -p lacuna-boxes`: the sizes that one image of a detector brings.

use divan::{Bencher, black_box};
use lacuna_boxes::{Box2, nms, pairwise_iou};

/// Boxes spread over an 800×800 image by a fixed stride: some overlap, most do not.
fn random_boxes(n: usize) -> Vec<Box2> {
    (0..n)
        .map(|i| {
            let (x, y) = ((i * 193 % 760) as f32, (i * 389 % 740) as f32);
            Box2::from_xywh(x, y, 20.0 + (i % 37) as f32, 16.0 + (i % 41) as f32)
        })
        .collect()
}

#[divan::bench(args = [100, 1_000, 5_000])]
fn nms_of_80_classes(bencher: Bencher, n: usize) {
    let boxes = random_boxes(n);
    let scores: Vec<f32> = (0..n).map(|i| (i * 7919 % n) as f32 / n as f32).collect();
    let classes: Vec<usize> = (0..n).map(|i| i % 80).collect();
    bencher.bench(|| nms(black_box(&boxes), &scores, &classes, 0.5));
}

#[divan::bench(args = [1_000, 12_276])]
fn iou_with_20_annotations(bencher: Bencher, n: usize) {
    let (boxes, annotations) = (random_boxes(n), random_boxes(20));
    bencher.bench(|| pairwise_iou(black_box(&boxes), &annotations));
}

fn main() {
    divan::main();
}
