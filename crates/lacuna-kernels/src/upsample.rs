//! Nearest-neighbor upsampling added to a finer map: the top-down path of a feature pyramid.

use rayon::prelude::*;

use crate::shape::{Grid, ShapeError, check_grids, check_len};
use crate::simd::{Isa, simd_fn};

/// `y = lateral + upsampled(top)`: `top [N, h, w, C]`, `lateral` and `y [N, H, W, C]`.
#[derive(Clone, Debug)]
pub struct UpsampleAdd {
    top: Grid,
    lateral: Grid,
    channels: usize,
    /// The row of `top` for each row of `lateral`, and likewise the column.
    rows: Vec<usize>,
    columns: Vec<usize>,
}

/// `⌊at · (coarse / fine)⌋` in f32, as PyTorch's `interpolate(mode="nearest")`.
fn nearest(coarse: usize, fine: usize) -> Vec<usize> {
    let ratio = coarse as f32 / fine as f32;
    (0..fine).map(|at| ((at as f32 * ratio) as usize).min(coarse - 1)).collect()
}

impl UpsampleAdd {
    /// Fails unless both grids have the same batch and `top` covers `lateral`.
    pub fn new(top: Grid, lateral: Grid, channels: usize) -> Result<Self, ShapeError> {
        if channels == 0 {
            return Err(ShapeError::Zero { what: "channels" });
        }
        let missing = |coarse: usize, fine: usize| coarse == 0 && fine > 0;
        if top.batch != lateral.batch
            || missing(top.height, lateral.height)
            || missing(top.width, lateral.width)
        {
            return Err(ShapeError::Mismatch {
                left: "top",
                left_shape: vec![top.batch, top.height, top.width, channels],
                right: "lateral",
                right_shape: vec![lateral.batch, lateral.height, lateral.width, channels],
            });
        }
        check_grids("top", &[top], channels)?;
        check_grids("lateral", &[lateral], channels)?;
        let rows = nearest(top.height, lateral.height);
        let columns = nearest(top.width, lateral.width);
        Ok(Self { top, lateral, channels, rows, columns })
    }

    /// `y = lateral + upsampled(top)`
    pub fn forward(&self, isa: Isa, top: &[f32], lateral: &[f32]) -> Result<Vec<f32>, ShapeError> {
        let Self { channels, rows, columns, .. } = self;
        let (top_grid, grid, channels) = (self.top, self.lateral, *channels);
        check_len("top", &[top_grid.batch, top_grid.height, top_grid.width, channels], top.len())?;
        check_len("lateral", &[grid.batch, grid.height, grid.width, channels], lateral.len())?;
        let mut y = lateral.to_vec();
        y.par_chunks_mut((grid.width * channels).max(1)).enumerate().for_each(|(row, y)| {
            let (image, at) = (row / grid.height, row % grid.height);
            let top = &top[(image * top_grid.height + rows[at]) * top_grid.width * channels..];
            for (y, &column) in y.chunks_exact_mut(channels).zip(columns) {
                add(isa, &top[column * channels..][..channels], y);
            }
        });
        Ok(y)
    }

    /// The gradient of `top`; that of `lateral` is `dy` itself.
    pub fn top_gradient(&self, isa: Isa, dy: &[f32]) -> Result<Vec<f32>, ShapeError> {
        let Self { channels, rows, columns, .. } = self;
        let (top, grid, channels) = (self.top, self.lateral, *channels);
        check_len("dy", &[grid.batch, grid.height, grid.width, channels], dy.len())?;
        let mut dtop = vec![0.0; top.pixels() * channels];
        dtop.par_chunks_mut((top.width * channels).max(1)).enumerate().for_each(|(row, dtop)| {
            let (image, at) = (row / top.height, row % top.height);
            for fine in (0..grid.height).filter(|&fine| rows[fine] == at) {
                let dy = &dy[(image * grid.height + fine) * grid.width * channels..];
                for (dy, &column) in dy.chunks_exact(channels).zip(columns) {
                    add(isa, dy, &mut dtop[column * channels..][..channels]);
                }
            }
        });
        Ok(dtop)
    }
}

simd_fn! {
    fn add<S>(s, from: &[f32], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += from;
        }
    }
}
