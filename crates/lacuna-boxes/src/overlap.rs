//! Overlap of boxes: IoU and IoF, of pairs and of lists.

use crate::Box2;

/// Intersection over union, in `[0, 1]`; 0 when both boxes are degenerate.
pub fn iou(a: Box2, b: Box2) -> f32 {
    let intersection = a.intersection(b);
    ratio(intersection, a.area() + b.area() - intersection)
}

/// Intersection over the area of `a` ("over foreground"), in `[0, 1]`: 1 when `a` lies inside `b`.
pub fn iof(a: Box2, b: Box2) -> f32 {
    ratio(a.intersection(b), a.area())
}

/// Division in which nothing shared is 0 (also 0 / 0), and rounding never leads above 1. An area
/// beyond the range of f32 is no box of an image: nothing overlaps it.
fn ratio(shared: f32, whole: f32) -> f32 {
    if shared > 0.0 && whole.is_finite() { (shared / whole).min(1.0) } else { 0.0 }
}

/// One value for every pair of two lists of boxes, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct PairwiseMatrix {
    rows: usize,
    columns: usize,
    values: Vec<f32>, // [rows, columns]
}

impl PairwiseMatrix {
    fn from_pairs(a: &[Box2], b: &[Box2], value: impl Fn(Box2, Box2) -> f32) -> Self {
        let values = a.iter().flat_map(|&a| b.iter().map(move |&b| (a, b))).map(|(a, b)| value(a, b));
        Self { rows: a.len(), columns: b.len(), values: values.collect() }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The values of one row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..(row + 1) * self.columns]
    }

    /// One value.
    pub fn get(&self, row: usize, column: usize) -> f32 {
        self.row(row)[column]
    }
}

/// [`iou`] of every box of `a` (rows) with every box of `b` (columns).
pub fn pairwise_iou(a: &[Box2], b: &[Box2]) -> PairwiseMatrix {
    PairwiseMatrix::from_pairs(a, b, iou)
}

/// [`iof`] of every box of `a` (rows) with every box of `b` (columns): the share of `a` that is
/// covered.
pub fn pairwise_iof(a: &[Box2], b: &[Box2]) -> PairwiseMatrix {
    PairwiseMatrix::from_pairs(a, b, iof)
}

/// The largest IoU of `a` with any of `others`, and which one; the first of equals. `None` when
/// nothing overlaps.
pub fn best_iou(a: Box2, others: impl IntoIterator<Item = Box2>) -> Option<(usize, f32)> {
    let mut best: Option<(usize, f32)> = None;
    for (index, other) in others.into_iter().enumerate() {
        let value = iou(a, other);
        if value > best.map_or(0.0, |(_, v)| v) {
            best = Some((index, value));
        }
    }
    best
}
