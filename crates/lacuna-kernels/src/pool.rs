//! Max-pooling over channels-last images.

use rayon::prelude::*;

use crate::shape::{Grid, ShapeError, Window, check_len};
use crate::simd::{Isa, simd_fn};

/// Channels compared at a time.
const BLOCK: usize = 16;

/// The shape of one max-pooling: `x [N, H, W, C]`, `y [N, H', W', C]`.
#[derive(Clone, Copy, Debug)]
pub struct MaxPool2d {
    input: Grid,
    output: Grid,
    channels: usize,
    window: Window,
}

/// What max-pooling gives: the maxima, and which tap of the window each came from (the first of
/// equal ones), which is all that the gradient needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    pub y: Vec<f32>,
    pub taps: Vec<u8>,
}

impl MaxPool2d {
    /// The window must have at most 255 taps, and padding of at most half of it, so that no window
    /// lies outside the image altogether.
    pub fn new(input: Grid, channels: usize, window: Window) -> Result<Self, ShapeError> {
        if channels == 0 {
            return Err(ShapeError::Zero { what: "channels" });
        }
        let output = window.output(input)?;
        if window.kernel > 15 || 2 * window.padding > window.kernel {
            return Err(ShapeError::Mismatch {
                left: "padding",
                left_shape: vec![window.padding],
                right: "a pooling window of at most 15×15 and at least twice its padding",
                right_shape: vec![window.kernel, window.kernel],
            });
        }
        Ok(Self { input, output, channels, window })
    }

    pub fn output(&self) -> Grid {
        self.output
    }

    /// A NaN in the window is its maximum.
    pub fn forward(&self, isa: Isa, x: &[f32]) -> Result<Pooled, ShapeError> {
        let Self { input, output, channels, .. } = *self;
        check_len("x", &[input.batch, input.height, input.width, channels], x.len())?;
        let len = output.pixels() * channels;
        let (mut y, mut taps) = (vec![0.0; len], vec![0; len]);
        let row_len = (output.width * channels).max(1);
        let columns: Vec<_> = (0..output.width).map(|out| self.sources(out, input.width)).collect();
        y.par_chunks_mut(row_len).zip(taps.par_chunks_mut(row_len)).enumerate().for_each(|(row, (y, taps))| {
            let (image, out_y) = (row / output.height, row % output.height);
            let image_len = input.height * input.width * channels;
            let image = &x[image * image_len..][..image_len];
            pool_row(isa, self, image, &self.sources(out_y, input.height), &columns, y, taps);
        });
        Ok(Pooled { y, taps })
    }

    /// `dx`, each `dy` given to the pixel its maximum came from.
    pub fn gradient(&self, isa: Isa, dy: &[f32], taps: &[u8]) -> Result<Vec<f32>, ShapeError> {
        let Self { input, output, channels, .. } = *self;
        let shape = [output.batch, output.height, output.width, channels];
        check_len("dy", &shape, dy.len())?;
        check_len("taps", &shape, taps.len())?;
        let row_len = (input.width * channels).max(1);
        let columns: Vec<_> = (0..input.width).map(|at| self.seen_by(at, output.width)).collect();
        let mut dx = vec![0.0; input.pixels() * channels];
        dx.par_chunks_mut(row_len).enumerate().for_each(|(row, dx)| {
            let (image, y) = (row / input.height, row % input.height);
            let image_len = output.height * output.width * channels;
            let range = image * image_len..(image + 1) * image_len;
            let rows = self.seen_by(y, output.height);
            unpool_row(isa, self, &dy[range.clone()], &taps[range], &rows, &columns, dx);
        });
        Ok(dx)
    }

    /// Along one axis, the taps of the window at `out` that are on the image, and what they see.
    fn sources(&self, out: usize, size: usize) -> Vec<Seen> {
        let Window { kernel, stride, padding, dilation } = self.window;
        (0..kernel)
            .filter_map(|tap| {
                let at = (out * stride + tap * dilation).checked_sub(padding).filter(|&at| at < size)?;
                Some(Seen { tap, at })
            })
            .collect()
    }

    /// Along one axis, the taps that see the coordinate `at`, and whose they are.
    fn seen_by(&self, at: usize, size: usize) -> Vec<Seen> {
        let Window { kernel, stride, padding, dilation } = self.window;
        (0..kernel)
            .filter_map(|tap| {
                let offset = (at + padding).checked_sub(tap * dilation)?;
                let out = Some(offset / stride).filter(|&out| offset % stride == 0 && out < size)?;
                Some(Seen { tap, at: out })
            })
            .collect()
    }
}

/// A tap along one axis, and the coordinate at its other end.
#[derive(Clone, Copy)]
struct Seen {
    tap: usize,
    at: usize,
}

simd_fn! {
    fn pool_row<S>(
        s, pool: &MaxPool2d, x: &[f32], rows: &[Seen], columns: &[Vec<Seen>], y: &mut [f32], taps: &mut [u8],
    ) {
        let MaxPool2d { input, channels, window, .. } = *pool;
        for ((columns, y), taps) in
            columns.iter().zip(y.chunks_exact_mut(channels)).zip(taps.chunks_exact_mut(channels))
        {
            // No window is wholly outside, so there is a first tap; a window of −∞ keeps it.
            let first = (rows[0].tap * window.kernel + columns[0].tap) as u32;
            for c in (0..channels).step_by(BLOCK) {
                let count = BLOCK.min(channels - c);
                let mut best = [f32::NEG_INFINITY; BLOCK];
                let mut from = [first; BLOCK];
                for row in rows {
                    for column in columns {
                        let pixel = &x[(row.at * input.width + column.at) * channels + c..][..count];
                        let tap = (row.tap * window.kernel + column.tap) as u32;
                        let mut values = [f32::NEG_INFINITY; BLOCK];
                        if let Ok(whole) = <&[f32; BLOCK]>::try_from(pixel) {
                            values = *whole;
                        } else {
                            values[..count].copy_from_slice(pixel);
                        }
                        for i in 0..BLOCK {
                            let larger = (values[i] > best[i]) | values[i].is_nan();
                            best[i] = if larger { values[i] } else { best[i] };
                            from[i] = if larger { tap } else { from[i] };
                        }
                    }
                }
                y[c..c + count].copy_from_slice(&best[..count]);
                for (to, from) in taps[c..c + count].iter_mut().zip(from) {
                    *to = from as u8;
                }
            }
        }
    }
}

simd_fn! {
    fn unpool_row<S>(
        s, pool: &MaxPool2d, dy: &[f32], taps: &[u8], rows: &[Seen], columns: &[Vec<Seen>], dx: &mut [f32],
    ) {
        let MaxPool2d { output, channels, window, .. } = *pool;
        for (columns, dx) in columns.iter().zip(dx.chunks_exact_mut(channels)) {
            for row in rows {
                for column in columns {
                    let tap = (row.tap * window.kernel + column.tap) as u8;
                    let at = (row.at * output.width + column.at) * channels;
                    let (dy, taps) = (&dy[at..][..channels], &taps[at..][..channels]);
                    for ((dx, &dy), &from) in dx.iter_mut().zip(dy).zip(taps) {
                        *dx += if from == tap { dy } else { 0.0 };
                    }
                }
            }
        }
    }
}
