//! Anchors, and where the rows of a head's output that belong to them are.

use std::ops::Range;

use lacuna_boxes::Box2;
use serde::{Deserialize, Serialize};

use crate::detector::{DetectorConfigError, require};
use crate::ops::Grid;

/// The anchors of one level: every size at every ratio (height / width), at every location.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnchorConfig {
    /// Per level, the finest first.
    pub sizes: Vec<Vec<f32>>,
    /// Height / width.
    pub ratios: Vec<f32>,
}

impl AnchorConfig {
    /// RetinaNet's nine: 32 … 512 pixels, each also ∛2 and ∛4 times as large (whole pixels, as
    /// torchvision's), at ratios of ½, 1 and 2.
    pub fn retinanet() -> Self {
        let sizes = [32.0, 64.0, 128.0, 256.0, 512.0f64].map(|size| {
            (0..3).map(|third| (size * 2f64.powf(f64::from(third) / 3.0)).floor() as f32).collect()
        });
        Self { sizes: sizes.into(), ratios: vec![0.5, 1.0, 2.0] }
    }

    /// The three of a region proposal network: 32 … 512 pixels at ratios of ½, 1 and 2.
    pub fn rpn() -> Self {
        Self {
            sizes: [32.0, 64.0, 128.0, 256.0, 512.0].map(|size| vec![size]).into(),
            ratios: vec![0.5, 1.0, 2.0],
        }
    }

    pub(crate) fn check(&self) -> Result<(), DetectorConfigError> {
        let positive = |values: &[f32]| values.iter().all(|value| *value > 0.0 && value.is_finite());
        require(self.sizes.len() == 5, "anchors.sizes", "a list for each of the five levels")?;
        let count = self.sizes[0].len();
        require(
            count > 0 && self.sizes.iter().all(|sizes| sizes.len() == count),
            "anchors.sizes",
            "as many at every level",
        )?;
        require(self.sizes.iter().all(|sizes| positive(sizes)), "anchors.sizes", "positive")?;
        require(
            !self.ratios.is_empty() && positive(&self.ratios),
            "anchors.ratios",
            "positive, and one at least",
        )
    }

    pub(crate) fn per_location(&self) -> usize {
        self.ratios.len() * self.sizes.first().map_or(0, Vec::len)
    }

    /// The anchors of a batch padded to `(height, width)`, on these grids.
    pub(crate) fn over(&self, grids: &[Grid], padded: (usize, usize)) -> Anchors {
        Anchors::new(grids, padded, |level| {
            let at = |ratio: f32, size: f32| {
                let (height, width) = (ratio.sqrt() * size, 1.0 / ratio.sqrt() * size);
                // To the nearest whole pixel, halves to the even one, as PyTorch rounds.
                let [x, y] = [width / 2.0, height / 2.0].map(f32::round_ties_even);
                Box2::new(-x, -y, x, y)
            };
            let sizes = &self.sizes[level];
            self.ratios.iter().flat_map(|&ratio| sizes.iter().map(move |&size| at(ratio, size))).collect()
        })
    }
}

/// The anchors of one batch. Anchor i of image n stands, over all levels, in row `row(n, i)` of a
/// head's output `[Σ N·H·W·A, ..]`.
#[derive(Clone, Debug)]
pub(crate) struct Anchors {
    /// Of any image, level after level.
    boxes: Vec<Box2>,
    /// The end of each level in `boxes`.
    ends: Vec<usize>,
    batch: usize,
}

impl Anchors {
    /// `cell_of_level(level)` gives the anchors around the origin.
    fn new(
        grids: &[Grid],
        (height, width): (usize, usize),
        cell_of_level: impl Fn(usize) -> Vec<Box2>,
    ) -> Self {
        let (mut boxes, mut ends) = (Vec::new(), Vec::new());
        for (level, grid) in grids.iter().enumerate() {
            let cell = cell_of_level(level);
            let (down, right) = (height / grid.height, width / grid.width);
            for y in 0..grid.height {
                for x in 0..grid.width {
                    let (x, y) = ((x * right) as f32, (y * down) as f32);
                    boxes.extend(cell.iter().map(|a| Box2::new(x + a.x1, y + a.y1, x + a.x2, y + a.y2)));
                }
            }
            ends.push(boxes.len());
        }
        Self { boxes, ends, batch: grids.first().map_or(0, |grid| grid.batch) }
    }

    /// A square of 8 pixels at each location of P3, of 16 at those of P4, and so on: FCOS's locations.
    pub(crate) fn locations(grids: &[Grid], padded: (usize, usize)) -> Self {
        Self::new(grids, padded, |level| {
            let half = (4 << level) as f32;
            vec![Box2::new(-half, -half, half, half)]
        })
    }

    /// The anchors of any image.
    pub(crate) fn boxes(&self) -> &[Box2] {
        &self.boxes
    }

    /// Where each level is in [`Self::boxes`].
    pub(crate) fn levels(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| start..end)
    }

    /// The rows of a level's anchors of an image.
    pub(crate) fn rows_of_level(&self, level: Range<usize>, image: usize) -> Range<usize> {
        let start = self.batch * level.start + image * level.len();
        start..start + level.len()
    }

    /// The rows of an image, in the order of [`Self::boxes`].
    pub(crate) fn rows(&self, image: usize) -> impl Iterator<Item = usize> {
        self.levels().flat_map(move |level| self.rows_of_level(level, image))
    }

    /// The rows of all images.
    pub(crate) fn n_rows(&self) -> usize {
        self.batch * self.boxes.len()
    }
}
