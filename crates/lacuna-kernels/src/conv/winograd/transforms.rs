//! The transforms into and out of Winograd's domain, one vector of channels at a time: those of a line, down the columns
//! of a tile and then along its rows.

use std::mem::MaybeUninit;

use super::filtering::{Differentiable, Filtering, LONGEST, Line};
use crate::gemm::Finish;
use crate::memory::{Source, Target, load_up_to};
use crate::shape::Grid;
use crate::simd::{Simd, simd_fn};

/// One tile: squares of input and of output pixels, and where their images are.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// Index of the images' first pixels.
    pub(super) input_image: usize,
    pub(super) output_image: usize,
    pub(super) input: Grid,
    pub(super) output: Grid,
    /// Row and column of the first pixels, of the input counted from where its padding begins.
    pub(super) input_at: [usize; 2],
    pub(super) output_at: [usize; 2],
    pub(super) padding: usize,
}

impl Tile {
    /// The input pixel at `(row, column)` of the tile, or `None` in the padding.
    fn input_pixel(&self, row: usize, column: usize) -> Option<usize> {
        let [y, x] = self.input_at;
        let y = (y + row).checked_sub(self.padding).filter(|&y| y < self.input.height)?;
        let x = (x + column).checked_sub(self.padding).filter(|&x| x < self.input.width)?;
        Some(self.input_image + y * self.input.width + x)
    }

    /// The first of the tile's own pixels in a row, without those it shares with its neighbours to the left
    /// and above.
    pub(super) fn row_of_input(&self, row: usize) -> Option<usize> {
        self.input_pixel(self.padding + row, self.padding)
    }

    /// The tile's first output pixel, and how many rows and columns the image has from there on.
    fn outputs(&self) -> (usize, usize, usize) {
        let (Grid { height, width, .. }, [y, x]) = (self.output, self.output_at);
        (self.output_image + y * width + x, height - y, width - x)
    }
}

/// What is between the two halves of a transform, filled by columns and read by rows. It is not zeroed first: that
/// would be done anew for each vector of channels, and take as long as filling it.
struct Between<S: Simd>([[MaybeUninit<S::Vector>; LONGEST]; LONGEST]);

impl<S: Simd> Between<S> {
    #[inline(always)]
    fn new() -> Self {
        Self([[MaybeUninit::uninit(); LONGEST]; LONGEST])
    }

    #[inline(always)]
    fn set_column(&mut self, column: usize, line: &[S::Vector]) {
        for (row, &value) in line.iter().enumerate() {
            self.0[row][column].write(value);
        }
    }

    /// # Safety
    /// This row of the first `columns` columns must have been set.
    #[inline(always)]
    unsafe fn row(&self, s: S, row: usize, columns: usize) -> Line<S> {
        let mut line = [s.zero(); LONGEST];
        for column in 0..columns {
            // SAFETY: as the caller vouches.
            line[column] = unsafe { self.0[row][column].assume_init() };
        }
        line
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
        // SAFETY: the tile's pixels are inside its input, and what is read of `between` was set before; for the rest the
        // caller vouches.
        unsafe {
            let mut pixels = [[zeros.at(0, channels); LONGEST]; LONGEST];
            for (row, pixels) in pixels.iter_mut().enumerate().take(F::INPUTS) {
                for (column, address) in pixels.iter_mut().enumerate().take(F::INPUTS) {
                    if let Some(pixel) = tile.input_pixel(row, column) {
                        *address = x.at(pixel * all_channels + from, channels);
                    }
                }
            }
            for channel in (0..channels).step_by(S::LANES) {
                let count = S::LANES.min(channels - channel);
                let mut between = Between::<S>::new();
                for j in 0..F::INPUTS {
                    let mut d = [s.zero(); LONGEST];
                    for i in 0..F::INPUTS {
                        d[i] = load_up_to(s, pixels[i][j].add(channel), count);
                    }
                    between.set_column(j, &F::into_points(s, &d)[..F::POINTS]);
                }
                for i in 0..F::POINTS {
                    let line = F::into_points(s, &between.row(s, i, F::INPUTS));
                    for j in 0..F::POINTS {
                        v.store(s, (i * F::POINTS + j) * per_point + to + channel, line[j], S::LANES);
                    }
                }
            }
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
        // SAFETY: the tile's pixels are inside its output, and what is read of `between` was set before; for the rest the
        // caller vouches.
        unsafe {
            let mut pixels = [[zeros.at(0, channels); LONGEST]; LONGEST];
            let (first, rows, columns) = tile.outputs();
            for (row, pixels) in pixels.iter_mut().enumerate().take(F::OUTPUTS.min(rows)) {
                for (column, address) in pixels.iter_mut().enumerate().take(F::OUTPUTS.min(columns)) {
                    let pixel = first + row * tile.output.width + column;
                    *address = dz.at(pixel * all_channels + from, channels);
                }
            }
            for channel in (0..channels).step_by(S::LANES) {
                let count = S::LANES.min(channels - channel);
                let mut between = Between::<S>::new();
                for j in 0..F::OUTPUTS {
                    let mut y = [s.zero(); LONGEST];
                    for i in 0..F::OUTPUTS {
                        y[i] = load_up_to(s, pixels[i][j].add(channel), count);
                    }
                    between.set_column(j, &F::gradient_into_points(s, &y)[..F::POINTS]);
                }
                for i in 0..F::POINTS {
                    let line = F::gradient_into_points(s, &between.row(s, i, F::OUTPUTS));
                    for j in 0..F::POINTS {
                        d.store(s, (i * F::POINTS + j) * per_point + to + channel, line[j], S::LANES);
                    }
                }
            }
        }
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
            let (first, rows, columns) = tile.outputs();
            for channel in channels.clone().step_by(S::LANES) {
                let count = S::LANES.min(channels.end - channel);
                let from = t * stride + channel - channels.start;
                let mut between = Between::<S>::new();
                for j in 0..F::POINTS {
                    let mut line = [s.zero(); LONGEST];
                    for i in 0..F::POINTS {
                        // SAFETY: M's rows are whole vectors, at each point; vouched for by the caller.
                        line[i] = unsafe { m.load(s, (i * F::POINTS + j) * per_point + from, S::LANES) };
                    }
                    between.set_column(j, &F::out_of_points(s, &line)[..F::OUTPUTS]);
                }
                for i in 0..F::OUTPUTS {
                    // SAFETY: each column was set above, of as many rows.
                    let line = F::out_of_points(s, &unsafe { between.row(s, i, F::POINTS) });
                    for j in 0..F::OUTPUTS {
                        if i < rows && j < columns {
                            let at = (first + i * tile.output.width + j) * all_channels + channel;
                            // SAFETY: the pixel is inside the output, and so are these channels of it.
                            unsafe { y.store_result(s, at, finish.apply(s, line[j], channel, at, count), count) };
                        }
                    }
                }
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
                let mut g = [s.zero(); 9];
                for tap in 0..9 {
                    // SAFETY: the caller vouches for the row of each tap, and for `scale`.
                    unsafe {
                        let at = taps.floats.at(from + tap * taps.per_tap, count);
                        s.prefetch(at.wrapping_add(PREFETCH_ROWS * taps.stride));
                        g[tap] = load_up_to(s, at, count);
                        if let Some(scale) = taps.scale {
                            g[tap] = s.mul(g[tap], scale.load(s, first, count));
                        }
                    }
                }
                let mut between = Between::<S>::new();
                for x in 0..3 {
                    let line = F::weights_into_points(s, [g[x], g[3 + x], g[6 + x]]);
                    between.set_column(x, &line[..F::WEIGHTS]);
                }
                for i in 0..F::WEIGHTS {
                    // SAFETY: three columns were set above.
                    let [a, b, c, ..] = unsafe { between.row(s, i, 3) };
                    let line = F::weights_into_points(s, [a, b, c]);
                    for j in 0..F::WEIGHTS {
                        let at = (i * F::WEIGHTS + j) * per_point + to + (2 * row + half) * S::LANES;
                        // SAFETY: the caller vouches for these rows of U.
                        unsafe { u.store(s, at, line[j], S::LANES) };
                    }
                }
            }
        }
    }
}

simd_fn! {
    /// Writes `scale · Gᵀ dU G` of one row of each point to row `to` of each of the nine taps of `dw`.
    ///
    /// # Safety
    /// dU must have the row `from`, of whole vectors, at each point, and `scale` a float per column; `dw` must
    /// have that row of each tap, `per_tap` apart, used by no other job.
    pub(super) unsafe fn weight_gradient_rows<S; F: Differentiable>(
        s,
        u: Source,
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
            let mut between = Between::<S>::new();
            for j in 0..F::WEIGHTS {
                let mut line = [s.zero(); LONGEST];
                for i in 0..F::WEIGHTS {
                    // SAFETY: the caller vouches for the row.
                    line[i] = unsafe { u.load(s, (i * F::WEIGHTS + j) * per_point + from + channel, S::LANES) };
                }
                between.set_column(j, &F::weight_gradient_out_of_points(s, &line));
            }
            for i in 0..3 {
                // SAFETY: each column was set above, of three rows.
                let line = unsafe { between.row(s, i, F::WEIGHTS) };
                let line = F::weight_gradient_out_of_points(s, &line);
                for j in 0..3 {
                    // SAFETY: likewise for the row of each tap, and `scale` has a float per column.
                    unsafe {
                        let gradient = match scale {
                            Some(scale) => s.mul(line[j], scale.load(s, channel, count)),
                            None => line[j],
                        };
                        dw.store(s, (i * 3 + j) * per_tap + to + channel, gradient, count);
                    }
                }
            }
        }
    }
}
