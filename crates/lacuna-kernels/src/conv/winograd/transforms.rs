//! The transforms into and out of Winograd's domain, one vector of channels at a time: those of a line, down the columns
//! of a tile and then along its rows.

use std::mem::MaybeUninit;

use super::filtering::{
    Differentiable, Filtering, GradientIntoPoints, IntoPoints, LONGEST, OutOfPoints, Transform,
    WeightGradientOutOfPoints, WeightsIntoPoints,
};
use crate::gemm::Finish;
use crate::memory::{Source, Target, load_up_to};
use crate::simd::{Simd, simd_fn};

/// One tile: a square of input and one of output pixels.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    /// Index of the first pixel of its images.
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) down: &'a Span,
    pub(super) across: &'a Span,
}

/// Where the pixels of tiles are in one direction, counted from the first of their images, or `None` where there are none:
/// in the padding, between images, and beyond the last.
pub(super) struct Span {
    pub(super) inputs: [Option<usize>; LONGEST],
    pub(super) outputs: [Option<usize>; LONGEST],
}

impl Tile<'_> {
    pub(super) fn input_pixel(&self, row: usize, column: usize) -> Option<usize> {
        Some(self.input + self.down.inputs[row]? + self.across.inputs[column]?)
    }

    pub(super) fn output_pixel(&self, row: usize, column: usize) -> Option<usize> {
        Some(self.output + self.down.outputs[row]? + self.across.outputs[column]?)
    }
}

/// Transforms a square of values: its columns, then the rows of what they become.
///
/// What is between is not zeroed first: that would be done anew for each vector of channels, and take as long as filling
/// it.
#[inline(always)]
fn square<S: Simd, T: Transform>(
    s: S,
    load: impl Fn(usize, usize) -> S::Vector,
    store: impl Fn(usize, usize, S::Vector),
) {
    let mut between = [[MaybeUninit::<S::Vector>::uninit(); LONGEST]; LONGEST];
    for j in 0..T::FROM {
        let mut line = [s.zero(); LONGEST];
        for i in 0..T::FROM {
            line[i] = load(i, j);
        }
        let line = T::line(s, &line);
        for i in 0..T::TO {
            between[i][j].write(line[i]);
        }
    }
    for i in 0..T::TO {
        let mut line = [s.zero(); LONGEST];
        for j in 0..T::FROM {
            // SAFETY: each of the columns was written, with as many rows.
            line[j] = unsafe { between[i][j].assume_init() };
        }
        let line = T::line(s, &line);
        for j in 0..T::TO {
            store(i, j, line[j]);
        }
    }
}

simd_fn! {
    /// Writes the channels `channels` of a tile's `Bᵀ d B` to row `to` of each point of V, rounded up to whole vectors.
    ///
    /// # Safety
    /// `x` must have `all_channels` floats per pixel of the tile's input, and `zeros` as many as `channels`; V must have that
    /// row at each point, `per_point` apart, used by no other job.
    pub(super) unsafe fn input_tile<S; F: Filtering>(
        s,
        x: Source,
        channels: std::ops::Range<usize>,
        all_channels: usize,
        zeros: Source,
        tile: &Tile,
        v: Target,
        to: usize,
        per_point: usize,
    ) {
        let (from, channels) = (channels.start, channels.len());
        // SAFETY: the tile's pixels are inside its input; for the rest the caller vouches.
        unsafe {
            let mut pixels = [[zeros.at(0, channels); LONGEST]; LONGEST];
            for (row, pixels) in pixels.iter_mut().enumerate().take(F::INPUTS) {
                for (column, address) in pixels.iter_mut().enumerate().take(F::INPUTS) {
                    if let Some(pixel) = tile.input_pixel(row, column) {
                        *address = x.at(pixel * all_channels + from, channels);
                    }
                }
            }
            scatter::<S, IntoPoints<F>>(s, &pixels, channels, v, to, per_point);
        }
    }
}

simd_fn! {
    /// Writes the channels `channels` of a tile's `A dY Aᵀ` to row `to` of each point of D, rounded up to whole vectors.
    ///
    /// # Safety
    /// `dz` must have `all_channels` floats per pixel of the tile's output, and `zeros` as many as `channels`; D must have
    /// that row at each point, `per_point` apart, used by no other job.
    pub(super) unsafe fn gradient_tile<S; F: Differentiable>(
        s,
        dz: Source,
        channels: std::ops::Range<usize>,
        all_channels: usize,
        zeros: Source,
        tile: &Tile,
        d: Target,
        to: usize,
        per_point: usize,
    ) {
        let (from, channels) = (channels.start, channels.len());
        // SAFETY: the tile's pixels are inside its output; for the rest the caller vouches.
        unsafe {
            let mut pixels = [[zeros.at(0, channels); LONGEST]; LONGEST];
            for (row, pixels) in pixels.iter_mut().enumerate().take(F::OUTPUTS) {
                for (column, address) in pixels.iter_mut().enumerate().take(F::OUTPUTS) {
                    if let Some(pixel) = tile.output_pixel(row, column) {
                        *address = dz.at(pixel * all_channels + from, channels);
                    }
                }
            }
            scatter::<S, GradientIntoPoints<F>>(s, &pixels, channels, d, to, per_point);
        }
    }
}

/// Transforms a square of pixels to row `to` of each point, rounded up to whole vectors.
///
/// # Safety
/// `channels` floats must be readable at each address that is used; the points must have that row, used by no other job.
#[inline(always)]
unsafe fn scatter<S: Simd, T: Transform>(
    s: S,
    pixels: &[[*const f32; LONGEST]; LONGEST],
    channels: usize,
    to: Target,
    at: usize,
    per_point: usize,
) {
    for channel in (0..channels).step_by(S::LANES) {
        let count = S::LANES.min(channels - channel);
        // SAFETY: as the caller vouches.
        let load = |i: usize, j: usize| unsafe { load_up_to(s, pixels[i][j].add(channel), count) };
        square::<S, T>(s, load, |i, j, value| {
            // SAFETY: as above.
            unsafe { to.store(s, (i * T::TO + j) * per_point + at + channel, value, S::LANES) };
        });
    }
}

simd_fn! {
    /// Writes `Aᵀ M A`, finished, to the channels `channels` of the tiles' output pixels. The rows of M, one for each tile and
    /// `stride` apart, start with the first of these channels at each point.
    ///
    /// # Safety
    /// M must have these rows at each point, `per_point` apart and of whole vectors; `y` must have `all_channels` floats per
    /// pixel of the tiles' outputs, `finish` must cover it, and no other job may use these channels of the tiles' outputs.
    pub(super) unsafe fn output_tiles<S; F: Filtering>(
        s,
        m: Source,
        stride: usize,
        per_point: usize,
        channels: std::ops::Range<usize>,
        all_channels: usize,
        tiles: &[Tile],
        finish: Finish,
        y: Target,
    ) {
        for (t, tile) in tiles.iter().enumerate() {
            for channel in channels.clone().step_by(S::LANES) {
                let count = S::LANES.min(channels.end - channel);
                let from = t * stride + channel - channels.start;
                // SAFETY: M's rows are whole vectors, at each point; vouched for by the caller.
                let load = |i: usize, j: usize| unsafe { m.load(s, (i * F::POINTS + j) * per_point + from, S::LANES) };
                square::<S, OutOfPoints<F>>(s, load, |i, j, value| {
                    if let Some(pixel) = tile.output_pixel(i, j) {
                        let at = pixel * all_channels + channel;
                        // SAFETY: the pixel is inside the output, and so are these channels of it.
                        unsafe { y.store_result(s, at, finish.apply(s, value, channel, at, count), count) };
                    }
                });
            }
        }
    }
}

/// Nine taps of weights: `columns` floats from `at` on, in rows `stride` apart, of taps `per_tap` apart.
#[derive(Clone, Copy)]
pub(super) struct TapRows<'a> {
    pub(super) floats: Source<'a>,
    pub(super) at: usize,
    pub(super) stride: usize,
    pub(super) per_tap: usize,
    /// At most `2 · LANES`.
    pub(super) columns: usize,
    /// A factor per column.
    pub(super) scale: Option<Source<'a>>,
}

/// Rows of weights, ahead of the one in use, that are fetched: each is somewhere else.
const PREFETCH_ROWS: usize = 4;

simd_fn! {
    /// Writes `G g Gᵀ` of the first `rows` rows of the taps to as many rows of each point of U, from `to` on, of panels in
    /// which the vectors that have columns are written, columns beyond the last zero.
    ///
    /// # Safety
    /// The taps must have these rows, and `scale` a float per column; U must have these rows at each point,
    /// `per_point` apart, used by no other job.
    pub(super) unsafe fn weight_rows<S; F: Filtering>(
        s, taps: TapRows, rows: usize, u: Target, to: usize, per_point: usize,
    ) {
        for row in 0..rows {
            for half in 0..taps.columns.div_ceil(S::LANES) {
                let first = half * S::LANES;
                let count = S::LANES.min(taps.columns - first);
                let from = taps.at + row * taps.stride + first;
                let load = |i: usize, j: usize| {
                    // SAFETY: the caller vouches for the row of each tap, and for `scale`.
                    unsafe {
                        let at = taps.floats.at(from + (i * 3 + j) * taps.per_tap, count);
                        s.prefetch(at.wrapping_add(PREFETCH_ROWS * taps.stride));
                        let weights = load_up_to(s, at, count);
                        taps.scale.map_or(weights, |scale| s.mul(weights, scale.load(s, first, count)))
                    }
                };
                square::<S, WeightsIntoPoints<F>>(s, load, |i, j, value| {
                    let at = (i * F::WEIGHTS + j) * per_point + to + (2 * row + half) * S::LANES;
                    // SAFETY: the caller vouches for these rows of U.
                    unsafe { u.store(s, at, value, S::LANES) };
                });
            }
        }
    }
}

simd_fn! {
    /// Writes `scale · Gᵀ dU G` of one row of each point to row `to` of each of the nine taps of `dw`, dU the sum of
    /// `PARTS`, `per_part` apart.
    ///
    /// # Safety
    /// Each part of dU must have the row `from`, of whole vectors, at each point, and `scale` a float per
    /// column; `dw` must have that row of each tap, `per_tap` apart, used by no other job.
    pub(super) unsafe fn weight_gradient_rows<S, const PARTS: usize; F: Differentiable>(
        s,
        u: Source,
        per_part: usize,
        from: usize,
        per_point: usize,
        columns: usize,
        scale: Option<Source>,
        dw: Target,
        to: usize,
        per_tap: usize,
    ) {
        for channel in (0..columns).step_by(S::LANES) {
            let count = S::LANES.min(columns - channel);
            let load = |i: usize, j: usize| {
                let at = (i * F::WEIGHTS + j) * per_point + from + channel;
                // SAFETY: the caller vouches for the row of each part.
                let of_part = |part: usize| unsafe { u.load(s, part * per_part + at, S::LANES) };
                (1..PARTS).fold(of_part(0), |sum, part| s.add(sum, of_part(part)))
            };
            square::<S, WeightGradientOutOfPoints<F>>(s, load, |i, j, value| {
                // SAFETY: likewise for the row of each tap, and `scale` has a float per column.
                unsafe {
                    let value = scale.map_or(value, |scale| s.mul(value, scale.load(s, channel, count)));
                    dw.store(s, (i * 3 + j) * per_tap + to + channel, value, count);
                }
            });
        }
    }
}
