//! RoIAlign (He et al. 2017): a fixed grid of bilinear samples from each region of interest,
//! averaged per cell, with torchvision's two conventions for where a pixel's center is.

use rayon::prelude::*;

use crate::memory::Target;
use crate::shape::{Grid, ShapeError, check_grids, check_len, check_size};
use crate::simd::{Isa, simd_fn};

/// Channels whose gradients one job sums: the regions of an image overlap, so the gradient is
/// shared out by channels, in which the regions' order is kept.
const CHANNEL_BLOCK: usize = 32;

/// A region of one image, in image coordinates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Region {
    /// The index of its image in the batch.
    pub image: usize,
    /// Left.
    pub x1: f32,
    /// Top.
    pub y1: f32,
    /// Right.
    pub x2: f32,
    /// Bottom.
    pub y2: f32,
}

/// Pooling of regions from `x [N, H, W, C]` into `y [R, height, width, C]`.
#[derive(Clone, Copy, Debug)]
pub struct RoiAlign {
    /// Rows of cells.
    pub height: usize,
    /// Columns of cells.
    pub width: usize,
    /// Pixels of `x` per pixel of the image.
    pub spatial_scale: f32,
    /// Samples per cell each way; 0 takes one per pixel the cell covers, rounded up.
    pub sampling_ratio: usize,
    /// Shift by half a pixel, so that a pixel's center is at `.5`, and let regions be smaller than a
    /// pixel.
    pub aligned: bool,
}

/// A sample along one axis: two neighboring pixels and their weights.
#[derive(Clone, Copy)]
struct Sample {
    low: usize,
    high: usize,
    low_weight: f32,
    high_weight: f32,
}

impl Sample {
    /// The sample at `at` of a map of `size` pixels; more than a pixel off it there is none.
    fn new(at: f32, size: usize) -> Option<Self> {
        if size == 0 || !(at >= -1.0 && at <= size as f32) {
            return None;
        }
        let at = at.max(0.0);
        let low = at as usize;
        Some(if low >= size - 1 {
            Self { low: size - 1, high: size - 1, low_weight: 1.0, high_weight: 0.0 }
        } else {
            let high_weight = at - low as f32;
            Self { low, high: low + 1, low_weight: 1.0 - high_weight, high_weight }
        })
    }
}

/// Samples beyond the edges of the map that are looked at, because which ones lie on it is known only
/// up to rounding.
const MARGIN: f32 = 8.0;

/// One axis of a region, divided into cells.
struct Axis {
    start: f32,
    cell: f32,
    /// Samples per cell.
    samples: f32,
}

impl Axis {
    fn is_finite(&self) -> bool {
        [self.start, self.cell, self.samples].iter().all(|x| x.is_finite())
    }

    /// The samples of cell `cell` that lie on a map of `size` pixels; the others count as zero.
    fn on_map(&self, cell: usize, size: usize) -> Vec<Sample> {
        let first = self.start + cell as f32 * self.cell;
        let all = self.samples.max(0.0) as usize;
        // A huge region has more samples than there is time for; those off the map are skipped.
        let index_at = |at: f32| (at - first) / self.cell * self.samples - 0.5;
        let (from, to) = if self.cell > 0.0 {
            let (low, high) = (index_at(-1.0) - MARGIN, index_at(size as f32) + MARGIN);
            (low.max(0.0) as usize, all.min(high.max(0.0) as usize))
        } else {
            (0, all)
        };
        // In torchvision's order of operations, so that a sample on the very edge falls on the same
        // side of it.
        (from..to)
            .filter_map(|i| Sample::new(first + (i as f32 + 0.5) * self.cell / self.samples, size))
            .collect()
    }
}

/// All samples of a region: those of each row and of each column of cells.
struct Samples {
    rows: Vec<Vec<Sample>>,
    columns: Vec<Vec<Sample>>,
    /// Samples per cell, on the map or off it.
    count: f32,
}

impl Samples {
    /// Calls `visit((y, x), weight)` for the four pixels of each sample of a cell, the cells counted row
    /// by row. The weights of all its samples, on the map or off it, add up to 1.
    fn visit(&self, cell: usize, mut visit: impl FnMut((usize, usize), f32)) {
        let (row, column) = (cell / self.columns.len(), cell % self.columns.len());
        for y in &self.rows[row] {
            for x in &self.columns[column] {
                for (y, y_weight) in [(y.low, y.low_weight), (y.high, y.high_weight)] {
                    for (x, x_weight) in [(x.low, x.low_weight), (x.high, x.high_weight)] {
                        visit((y, x), y_weight * x_weight / self.count);
                    }
                }
            }
        }
    }
}

impl RoiAlign {
    /// `y [R, height, width, C]`. A region with a coordinate or a size that is not finite gives NaN.
    pub fn forward(
        &self,
        isa: Isa,
        x: &[f32],
        grid: Grid,
        channels: usize,
        regions: &[Region],
    ) -> Result<Vec<f32>, ShapeError> {
        check_len("x", &[grid.batch, grid.height, grid.width, channels], x.len())?;
        self.check(grid, channels, regions)?;
        let mut y = vec![0.0; regions.len() * self.height * self.width * channels];
        let cells = self.height * self.width * channels;
        y.par_chunks_mut(cells).zip(regions).for_each(|(y, region)| {
            let Some(samples) = self.samples(region, grid) else { return y.fill(f32::NAN) };
            let image = &x[region.image * grid.height * grid.width * channels..];
            for (cell, y) in y.chunks_exact_mut(channels).enumerate() {
                samples.visit(cell, |pixel, weight| {
                    let at = (pixel.0 * grid.width + pixel.1) * channels;
                    add_weighted(isa, weight, &image[at..][..channels], y);
                });
            }
        });
        Ok(y)
    }

    /// `dx [N, H, W, C]` from `dy [R, height, width, C]`. A region that is not finite adds nothing.
    pub fn gradient(
        &self,
        isa: Isa,
        dy: &[f32],
        grid: Grid,
        channels: usize,
        regions: &[Region],
    ) -> Result<Vec<f32>, ShapeError> {
        check_len("dy", &[regions.len(), self.height, self.width, channels], dy.len())?;
        self.check(grid, channels, regions)?;
        let samples: Vec<Option<Samples>> =
            regions.par_iter().map(|region| self.samples(region, grid)).collect();
        let cells = self.height * self.width;
        let mut dx = vec![0.0; grid.pixels() * channels];
        let target = Target::from(&mut *dx);
        let blocks = channels.div_ceil(CHANNEL_BLOCK);
        // A job has one block of channels of one image to itself.
        (0..grid.batch * blocks).into_par_iter().with_max_len(1).for_each(|job| {
            let (image, first) = (job / blocks, job % blocks * CHANNEL_BLOCK);
            let width = CHANNEL_BLOCK.min(channels - first);
            let of_image = regions.iter().zip(&samples).enumerate().filter(|(_, (r, _))| r.image == image);
            for (r, (_, samples)) in of_image {
                let Some(samples) = samples else { continue };
                for cell in 0..cells {
                    let dy = &dy[(r * cells + cell) * channels + first..][..width];
                    samples.visit(cell, |(y, x), weight| {
                        let at = ((image * grid.height + y) * grid.width + x) * channels + first;
                        // SAFETY: the pixel is on the map, and these channels of it are this job's alone.
                        let dx = unsafe { std::slice::from_raw_parts_mut(target.at(at, width), width) };
                        add_weighted(isa, weight, dy, dx);
                    });
                }
            }
        });
        Ok(dx)
    }

    /// What `y` is made of: for each cell of a region, row by row, the pixels of its image (as
    /// `y · width + x`) and their weights. For backends that have a gather and no RoIAlign. `None` for
    /// a region that is not finite.
    pub fn weights(&self, region: &Region, grid: Grid) -> Option<Vec<Vec<(usize, f32)>>> {
        let samples = self.samples(region, grid)?;
        let cells = (0..self.height * self.width).map(|cell| {
            let mut weights = Vec::new();
            samples.visit(cell, |(y, x), weight| weights.push((y * grid.width + x, weight)));
            weights
        });
        Some(cells.collect())
    }

    fn check(&self, grid: Grid, channels: usize, regions: &[Region]) -> Result<(), ShapeError> {
        let sizes = [("channels", channels), ("height", self.height), ("width", self.width)];
        if let Some((what, _)) = sizes.into_iter().find(|&(_, size)| size == 0) {
            return Err(ShapeError::Zero { what });
        }
        check_grids("x", &[grid], channels)?;
        check_size("y", &[regions.len(), self.height, self.width, channels])?;
        match regions.iter().enumerate().find(|(_, region)| region.image >= grid.batch) {
            Some((row, region)) => Err(ShapeError::Index {
                tensor: "regions",
                row,
                value: region.image as i64,
                limit: grid.batch,
            }),
            None => Ok(()),
        }
    }

    /// The region's samples on the map; `None` if it is not finite, or so large that its size is not.
    fn samples(&self, region: &Region, grid: Grid) -> Option<Samples> {
        let offset = if self.aligned { 0.5 } else { 0.0 };
        let axis = |low: f32, high: f32, cells: usize| {
            let start = low * self.spatial_scale - offset;
            let end = high * self.spatial_scale - offset;
            let mut extent = end - start;
            if !self.aligned && extent < 1.0 {
                // A region smaller than a pixel would be ill defined where centers are at corners.
                extent = 1.0;
            }
            let cell = extent / cells as f32;
            let samples = if self.sampling_ratio > 0 { self.sampling_ratio as f32 } else { cell.ceil() };
            Some(Axis { start, cell, samples }).filter(|axis| end.is_finite() && axis.is_finite())
        };
        let vertical = axis(region.y1, region.y2, self.height)?;
        let horizontal = axis(region.x1, region.x2, self.width)?;
        Some(Samples {
            rows: (0..self.height).map(|row| vertical.on_map(row, grid.height)).collect(),
            columns: (0..self.width).map(|column| horizontal.on_map(column, grid.width)).collect(),
            count: (vertical.samples * horizontal.samples).max(1.0),
        })
    }
}

simd_fn! {
    fn add_weighted<S>(s, weight: f32, from: &[f32], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += weight * from;
        }
    }
}
