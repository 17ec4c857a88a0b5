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
        y.par_chunks_mut(row_len).zip(taps.par_chunks_mut(row_len)).enumerate().for_each(|(row, (y, taps))| {
            let (image, out_y) = (row / output.height, row % output.height);
            let image_len = input.height * input.width * channels;
            pool_row(isa, self, &x[image * image_len..][..image_len], out_y, y, taps);
        });
        Ok(Pooled { y, taps })
    }

    /// `dx`, each `dy` given to the pixel its maximum came from.
    pub fn gradient(&self, isa: Isa, dy: &[f32], taps: &[u8]) -> Result<Vec<f32>, ShapeError> {
        let Self { input, output, channels, .. } = *self;
        let shape = [output.batch, output.height, output.width, channels];
        check_len("dy", &shape, dy.len())?;
        check_len("taps", &shape, taps.len())?;
        let mut dx = vec![0.0; input.pixels() * channels];
        let row_len = (input.width * channels).max(1);
        dx.par_chunks_mut(row_len).enumerate().for_each(|(row, dx)| {
            let (image, y) = (row / input.height, row % input.height);
            let image_len = output.height * output.width * channels;
            let range = image * image_len..(image + 1) * image_len;
            unpool_row(isa, self, &dy[range.clone()], &taps[range], y, dx);
        });
        Ok(dx)
    }

    /// The input coordinate that tap `tap` of the window at `out` sees.
    #[inline(always)]
    fn source(&self, out: usize, tap: usize, size: usize) -> Option<usize> {
        let at = out * self.window.stride + tap * self.window.dilation;
        at.checked_sub(self.window.padding).filter(|&at| at < size)
    }

    /// The window whose tap `tap` sees the input coordinate `at`.
    #[inline(always)]
    fn seen_by(&self, at: usize, tap: usize, size: usize) -> Option<usize> {
        let offset = (at + self.window.padding).checked_sub(tap * self.window.dilation)?;
        Some(offset / self.window.stride).filter(|&out| offset % self.window.stride == 0 && out < size)
    }
}

simd_fn! {
    fn pool_row<S>(s, pool: &MaxPool2d, x: &[f32], out_y: usize, y: &mut [f32], taps: &mut [u8]) {
        let MaxPool2d { input, channels, window, .. } = *pool;
        let kernel = window.kernel;
        for (out_x, (y, taps)) in y.chunks_exact_mut(channels).zip(taps.chunks_exact_mut(channels)).enumerate() {
            for c in (0..channels).step_by(BLOCK) {
                let count = BLOCK.min(channels - c);
                let mut best = [f32::NEG_INFINITY; BLOCK];
                let mut from = [u32::MAX; BLOCK];
                for tap in 0..kernel * kernel {
                    let at_y = pool.source(out_y, tap / kernel, input.height);
                    let at_x = pool.source(out_x, tap % kernel, input.width);
                    let (Some(at_y), Some(at_x)) = (at_y, at_x) else { continue };
                    let pixel = &x[(at_y * input.width + at_x) * channels + c..][..count];
                    let mut values = [f32::NEG_INFINITY; BLOCK];
                    if let Ok(whole) = <&[f32; BLOCK]>::try_from(pixel) {
                        values = *whole;
                    } else {
                        values[..count].copy_from_slice(pixel);
                    }
                    for i in 0..BLOCK {
                        // A NaN beats everything, and the first value beats the empty window.
                        let larger = !(values[i] <= best[i]) | (from[i] == u32::MAX);
                        let kept = best[i].is_nan();
                        best[i] = if larger & !kept { values[i] } else { best[i] };
                        from[i] = if larger & !kept { tap as u32 } else { from[i] };
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
    fn unpool_row<S>(s, pool: &MaxPool2d, dy: &[f32], taps: &[u8], y: usize, dx: &mut [f32]) {
        let MaxPool2d { output, channels, window, .. } = *pool;
        let kernel = window.kernel;
        for (x, dx) in dx.chunks_exact_mut(channels).enumerate() {
            for tap_y in 0..kernel {
                let Some(out_y) = pool.seen_by(y, tap_y, output.height) else { continue };
                for tap_x in 0..kernel {
                    let Some(out_x) = pool.seen_by(x, tap_x, output.width) else { continue };
                    let tap = (tap_y * kernel + tap_x) as u8;
                    let at = (out_y * output.width + out_x) * channels;
                    let (dy, taps) = (&dy[at..][..channels], &taps[at..][..channels]);
                    for ((dx, &dy), &from) in dx.iter_mut().zip(dy).zip(taps) {
                        *dx += if from == tap { dy } else { 0.0 };
                    }
                }
            }
        }
    }
}
