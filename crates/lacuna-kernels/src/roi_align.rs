//! RoIAlign (He et al. 2017): a fixed grid of bilinear samples from each region of interest,
//! averaged per cell, with torchvision's two conventions for where a pixel's centre is.

use rayon::prelude::*;

use crate::shape::{Grid, ShapeError, check_len};
use crate::simd::{Isa, simd_fn};

/// Channels whose gradients one job sums: the regions of an image overlap, so the gradient is
/// shared out by channels, in which the regions' order is kept.
const CHANNEL_BLOCK: usize = 32;

/// A region of one image, in image coordinates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Region {
    pub image: usize,
    pub x1: f32,
    pub y1: f32,
    pub x2: f32,
    pub y2: f32,
}

/// Pooling of regions from `x [N, H, W, C]` into `y [R, height, width, C]`.
#[derive(Clone, Copy, Debug)]
pub struct RoiAlign {
    pub height: usize,
    pub width: usize,
    /// Pixels of `x` per pixel of the image.
    pub spatial_scale: f32,
    /// Samples per cell each way; 0 takes one per pixel the cell covers, rounded up.
    pub sampling_ratio: usize,
    /// Shift by half a pixel, so that a pixel's centre is at `.5`, and let regions be smaller than a
    /// pixel.
    pub aligned: bool,
}

/// One axis of a region: the samples of each cell.
struct Axis {
    start: f32,
    cell: f32,
    samples: f32,
    size: usize,
}

/// A sample along one axis: two neighbouring pixels and their weights.
#[derive(Clone, Copy)]
struct Sample {
    low: usize,
    high: usize,
    low_weight: f32,
    high_weight: f32,
}

impl Axis {
    /// The samples of cell `cell` that lie on the map; those more than a pixel off it count as zero.
    fn samples(&self, cell: usize) -> impl Iterator<Item = Sample> + '_ {
        let (first, step) = (self.start + cell as f32 * self.cell, self.cell / self.samples);
        let all = self.samples.max(0.0) as usize;
        // A huge region has more samples than there is time for; those off the map are skipped.
        let sample_at = |at: f32| (at - first) / step - 0.5;
        let (from, to) = if step > 0.0 {
            let (low, high) = (sample_at(-1.0) - 1.0, sample_at(self.size as f32) + 2.0);
            (low.max(0.0) as usize, all.min(high.max(0.0) as usize))
        } else {
            (0, all)
        };
        (from..to).filter_map(move |i| self.sample(first + (i as f32 + 0.5) * step))
    }

    fn sample(&self, at: f32) -> Option<Sample> {
        if self.size == 0 || !(at >= -1.0 && at <= self.size as f32) {
            return None;
        }
        let at = at.max(0.0);
        let low = at as usize;
        Some(if low >= self.size - 1 {
            Sample { low: self.size - 1, high: self.size - 1, low_weight: 1.0, high_weight: 0.0 }
        } else {
            let high_weight = at - low as f32;
            Sample { low, high: low + 1, low_weight: 1.0 - high_weight, high_weight }
        })
    }
}

impl RoiAlign {
    /// `y [R, height, width, C]`. A region with a coordinate that is not finite gives NaN.
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
        let cells = (self.height * self.width * channels).max(1);
        y.par_chunks_mut(cells).zip(regions).for_each(|(y, region)| {
            let Some((vertical, horizontal)) = self.axes(region, grid) else { return y.fill(f32::NAN) };
            let image = &x[region.image * grid.height * grid.width * channels..];
            for (cell, y) in y.chunks_exact_mut(channels).enumerate() {
                for_each_sample(
                    &vertical,
                    &horizontal,
                    cell / self.width,
                    cell % self.width,
                    |pixel, weight| {
                        let at = (pixel.0 * grid.width + pixel.1) * channels;
                        add_weighted(isa, weight, &image[at..][..channels], y);
                    },
                );
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
        let image_len = grid.height * grid.width * channels;
        let mut dx = vec![0.0; grid.batch * image_len];
        let blocks = channels.div_ceil(CHANNEL_BLOCK);
        // [blocks, H, W, ≤ CHANNEL_BLOCK] per image, so that each job has memory of its own.
        dx.par_chunks_mut(image_len.max(1)).enumerate().for_each(|(image, dx)| {
            let sums: Vec<Vec<f32>> = (0..blocks)
                .into_par_iter()
                .map(|block| self.gradient_block(isa, dy, grid, channels, regions, image, block))
                .collect();
            dx.par_chunks_mut(channels).enumerate().for_each(|(pixel, dx)| {
                for (dx, sum) in dx.chunks_mut(CHANNEL_BLOCK).zip(&sums) {
                    let width = dx.len();
                    dx.copy_from_slice(&sum[pixel * width..][..width]);
                }
            });
        });
        Ok(dx)
    }

    /// What `y` is made of: for each cell of a region, row by row, the pixels of its image (as
    /// `y · width + x`) and their weights. For backends that have a gather and no RoIAlign. `None` for
    /// a region that is not finite.
    pub fn weights(&self, region: &Region, grid: Grid) -> Option<Vec<Vec<(usize, f32)>>> {
        let (vertical, horizontal) = self.axes(region, grid)?;
        let cells = (0..self.height * self.width).map(|cell| {
            let mut weights = Vec::new();
            for_each_sample(
                &vertical,
                &horizontal,
                cell / self.width,
                cell % self.width,
                |(y, x), weight| {
                    weights.push((y * grid.width + x, weight));
                },
            );
            weights
        });
        Some(cells.collect())
    }

    /// The gradient of one block of channels of one image, the regions in order.
    #[allow(clippy::too_many_arguments)]
    fn gradient_block(
        &self,
        isa: Isa,
        dy: &[f32],
        grid: Grid,
        channels: usize,
        regions: &[Region],
        image: usize,
        block: usize,
    ) -> Vec<f32> {
        let first = block * CHANNEL_BLOCK;
        let width = CHANNEL_BLOCK.min(channels - first);
        let cells = self.height * self.width;
        let mut sum = vec![0.0; grid.height * grid.width * width];
        for (r, region) in regions.iter().enumerate().filter(|(_, region)| region.image == image) {
            let Some((vertical, horizontal)) = self.axes(region, grid) else { continue };
            for cell in 0..cells {
                let dy = &dy[(r * cells + cell) * channels + first..][..width];
                for_each_sample(
                    &vertical,
                    &horizontal,
                    cell / self.width,
                    cell % self.width,
                    |pixel, weight| {
                        let at = (pixel.0 * grid.width + pixel.1) * width;
                        add_weighted(isa, weight, dy, &mut sum[at..][..width]);
                    },
                );
            }
        }
        sum
    }

    fn check(&self, grid: Grid, channels: usize, regions: &[Region]) -> Result<(), ShapeError> {
        let sizes = [("channels", channels), ("height", self.height), ("width", self.width)];
        if let Some((what, _)) = sizes.into_iter().find(|&(_, size)| size == 0) {
            return Err(ShapeError::Zero { what });
        }
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

    /// The region's axes, vertical and horizontal, on the map; `None` if it is not finite.
    fn axes(&self, region: &Region, grid: Grid) -> Option<(Axis, Axis)> {
        let offset = if self.aligned { 0.5 } else { 0.0 };
        let axis = |low: f32, high: f32, cells: usize, size: usize| {
            let start = low * self.spatial_scale - offset;
            let mut extent = high * self.spatial_scale - offset - start;
            if !self.aligned {
                // A region smaller than a pixel would be ill defined where centres are at corners.
                extent = extent.max(1.0);
            }
            let cell = extent / cells as f32;
            let samples = if self.sampling_ratio > 0 { self.sampling_ratio as f32 } else { cell.ceil() };
            Axis { start, cell, samples, size }
        };
        let finite = [region.x1, region.y1, region.x2, region.y2].iter().all(|x| x.is_finite());
        finite.then(|| {
            (
                axis(region.y1, region.y2, self.height, grid.height),
                axis(region.x1, region.x2, self.width, grid.width),
            )
        })
    }
}

/// Calls `visit((y, x), weight)` for the four pixels of each sample of a cell; the weights of all its
/// samples, on the map or off it, add up to 1.
fn for_each_sample(
    vertical: &Axis,
    horizontal: &Axis,
    row: usize,
    column: usize,
    mut visit: impl FnMut((usize, usize), f32),
) {
    let count = (vertical.samples * horizontal.samples).max(1.0);
    for y in vertical.samples(row) {
        for x in horizontal.samples(column) {
            for (y, y_weight) in [(y.low, y.low_weight), (y.high, y.high_weight)] {
                for (x, x_weight) in [(x.low, x.low_weight), (x.high, x.high_weight)] {
                    visit((y, x), y_weight * x_weight / count);
                }
            }
        }
    }
}

simd_fn! {
    fn add_weighted<S>(s, weight: f32, from: &[f32], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += weight * from;
        }
    }
}
