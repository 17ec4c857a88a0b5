//! The transforms into and out of Winograd's domain, one vector of channels at a time.
//!
//! The interpolation points are 0, ±1, ±2 and ∞ for F(4×4, 3×3), and 0, ±1 and ∞ for F(2×2, 3×3).

use std::mem::MaybeUninit;

use crate::gemm::Finish;
use crate::memory::{Source, Target, load_up_to};
use crate::shape::Grid;
use crate::simd::{Simd, simd_fn};

/// A line of at most six values; only the first `POINTS`, outputs or taps are used.
type Line<S> = [<S as Simd>::Vector; 6];

/// One tile: a square of output pixels from `(y, x)` on, and where its image is.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// Index of the images' first pixels.
    pub(super) input_image: usize,
    pub(super) output_image: usize,
    pub(super) input: Grid,
    pub(super) output: Grid,
    pub(super) y: usize,
    pub(super) x: usize,
    pub(super) padding: usize,
}

impl Tile {
    /// The input pixel at `(row, column)` of the tile, or `None` in the padding.
    fn input_pixel(&self, row: usize, column: usize) -> Option<usize> {
        let y = (self.y + row).checked_sub(self.padding).filter(|&y| y < self.input.height)?;
        let x = (self.x + column).checked_sub(self.padding).filter(|&x| x < self.input.width)?;
        Some(self.input_image + y * self.input.width + x)
    }

    /// The first of the tile's own pixels in a row, without those it shares with its neighbours to the left
    /// and above.
    pub(super) fn row_of_input(&self, row: usize) -> Option<usize> {
        self.input_pixel(self.padding + row, self.padding)
    }

    /// The tile's first output pixel, and how many rows and columns the image has from there on.
    fn outputs(&self) -> (usize, usize, usize) {
        let Grid { height, width, .. } = self.output;
        (self.output_image + self.y * width + self.x, height - self.y, width - self.x)
    }
}

/// What is between the two halves of a transform, filled by columns and read by rows. It is not zeroed first: that
/// would be done anew for each vector of channels, and take as long as filling it.
struct Between<S: Simd>([[MaybeUninit<S::Vector>; 6]; 6]);

impl<S: Simd> Between<S> {
    #[inline(always)]
    fn new() -> Self {
        Self([[MaybeUninit::uninit(); 6]; 6])
    }

    #[inline(always)]
    fn set_column(&mut self, column: usize, line: &Line<S>, rows: usize) {
        for row in 0..rows {
            self.0[row][column].write(line[row]);
        }
    }

    /// # Safety
    /// This row of the first `columns` columns must have been set.
    #[inline(always)]
    unsafe fn row(&self, s: S, row: usize, columns: usize) -> Line<S> {
        let mut line = [s.zero(); 6];
        for column in 0..columns {
            // SAFETY: as the caller vouches.
            line[column] = unsafe { self.0[row][column].assume_init() };
        }
        line
    }
}

/// `Bᵀ d`
#[inline(always)]
fn into_points<S: Simd, const POINTS: usize>(s: S, d: &Line<S>) -> Line<S> {
    if POINTS == 6 {
        // [4 0 -5 0 1 0; 0 -4 -4 1 1 0; 0 4 -4 -1 1 0; 0 -2 -1 2 1 0; 0 2 -1 -2 1 0; 0 4 0 -5 0 1]
        let (two, four, minus_four, minus_five) = (s.splat(2.0), s.splat(4.0), s.splat(-4.0), s.splat(-5.0));
        let even_1 = s.mul_add(minus_four, d[2], d[4]);
        let odd_1 = s.mul_add(minus_four, d[1], d[3]);
        let even_2 = s.sub(d[4], d[2]);
        let odd_2 = s.mul(two, s.sub(d[3], d[1]));
        [
            s.mul_add(minus_five, d[2], s.mul_add(four, d[0], d[4])),
            s.add(even_1, odd_1),
            s.sub(even_1, odd_1),
            s.add(even_2, odd_2),
            s.sub(even_2, odd_2),
            s.mul_add(minus_five, d[3], s.mul_add(four, d[1], d[5])),
        ]
    } else {
        // [1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1]
        let zero = s.zero();
        [s.sub(d[0], d[2]), s.add(d[1], d[2]), s.sub(d[2], d[1]), s.sub(d[1], d[3]), zero, zero]
    }
}

/// `Aᵀ m`
#[inline(always)]
fn out_of_points<S: Simd, const POINTS: usize>(s: S, m: &Line<S>) -> Line<S> {
    let zero = s.zero();
    if POINTS == 6 {
        // [1 1 1 1 1 0; 0 1 -1 2 -2 0; 0 1 1 4 4 0; 0 1 -1 8 -8 1]
        let (sum_1, difference_1) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
        let (sum_2, difference_2) = (s.add(m[3], m[4]), s.sub(m[3], m[4]));
        [
            s.add(m[0], s.add(sum_1, sum_2)),
            s.mul_add(s.splat(2.0), difference_2, difference_1),
            s.mul_add(s.splat(4.0), sum_2, sum_1),
            s.add(m[5], s.mul_add(s.splat(8.0), difference_2, difference_1)),
            zero,
            zero,
        ]
    } else {
        // [1 1 1 0; 0 1 -1 -1]
        let difference = s.sub(m[1], m[2]);
        [s.add(m[0], s.add(m[1], m[2])), s.sub(difference, m[3]), zero, zero, zero, zero]
    }
}

/// `A y`, the adjoint of [`out_of_points`].
#[inline(always)]
fn gradient_into_points<S: Simd, const POINTS: usize>(s: S, y: &Line<S>) -> Line<S> {
    let zero = s.zero();
    if POINTS == 6 {
        let (even_1, odd_1) = (s.add(y[0], y[2]), s.add(y[1], y[3]));
        let even_2 = s.mul_add(s.splat(4.0), y[2], y[0]);
        let odd_2 = s.mul_add(s.splat(8.0), y[3], s.mul(s.splat(2.0), y[1]));
        [y[0], s.add(even_1, odd_1), s.sub(even_1, odd_1), s.add(even_2, odd_2), s.sub(even_2, odd_2), y[3]]
    } else {
        [y[0], s.add(y[0], y[1]), s.sub(y[0], y[1]), s.sub(zero, y[1]), zero, zero]
    }
}

/// `G g`
#[inline(always)]
fn weights_into_points<S: Simd, const POINTS: usize>(s: S, g: [S::Vector; 3]) -> Line<S> {
    if POINTS == 6 {
        // [1/4 0 0; -1/6 -1/6 -1/6; -1/6 1/6 -1/6; 1/24 1/12 1/6; 1/24 -1/12 1/6; 0 0 1]
        let minus_sixth = s.splat(-1.0 / 6.0);
        let even_1 = s.mul(minus_sixth, s.add(g[0], g[2]));
        let odd_1 = s.mul(minus_sixth, g[1]);
        let even_2 = s.mul_add(s.splat(1.0 / 6.0), g[2], s.mul(s.splat(1.0 / 24.0), g[0]));
        let odd_2 = s.mul(s.splat(1.0 / 12.0), g[1]);
        [
            s.mul(s.splat(0.25), g[0]),
            s.add(even_1, odd_1),
            s.sub(even_1, odd_1),
            s.add(even_2, odd_2),
            s.sub(even_2, odd_2),
            g[2],
        ]
    } else {
        // [1 0 0; 1/2 1/2 1/2; 1/2 -1/2 1/2; 0 0 1]
        let half = s.splat(0.5);
        let even = s.mul(half, s.add(g[0], g[2]));
        let odd = s.mul(half, g[1]);
        [g[0], s.add(even, odd), s.sub(even, odd), g[2], s.zero(), s.zero()]
    }
}

/// `Gᵀ u`, the adjoint of [`weights_into_points`].
#[inline(always)]
fn weight_gradient_out_of_points<S: Simd, const POINTS: usize>(s: S, u: &Line<S>) -> [S::Vector; 3] {
    if POINTS == 6 {
        let minus_sixth = s.splat(-1.0 / 6.0);
        let sum_1 = s.mul(minus_sixth, s.add(u[1], u[2]));
        let difference_1 = s.mul(minus_sixth, s.sub(u[1], u[2]));
        let (sum_2, difference_2) = (s.add(u[3], u[4]), s.sub(u[3], u[4]));
        [
            s.mul_add(s.splat(1.0 / 24.0), sum_2, s.mul_add(s.splat(0.25), u[0], sum_1)),
            s.mul_add(s.splat(1.0 / 12.0), difference_2, difference_1),
            s.mul_add(s.splat(1.0 / 6.0), sum_2, s.add(u[5], sum_1)),
        ]
    } else {
        let half = s.splat(0.5);
        let sum = s.mul(half, s.add(u[1], u[2]));
        [s.add(u[0], sum), s.mul(half, s.sub(u[1], u[2])), s.add(sum, u[3])]
    }
}

simd_fn! {
    /// Writes the channels `channels` of a tile's `Bᵀ d B` to row `to` of each point of V, rounded up to whole vectors.
    ///
    /// # Safety
    /// `x` must have `all_channels` floats per pixel of the tile's input, and `zeros` as many as `channels`; V must have that
    /// row at each point, `per_point` apart, used by no other job.
    pub(super) unsafe fn input_tile<S, const POINTS: usize>(
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
            let mut pixels = [[zeros.at(0, channels); POINTS]; POINTS];
            for (row, pixels) in pixels.iter_mut().enumerate() {
                for (column, address) in pixels.iter_mut().enumerate() {
                    if let Some(pixel) = tile.input_pixel(row, column) {
                        *address = x.at(pixel * all_channels + from, channels);
                    }
                }
            }
            for channel in (0..channels).step_by(S::LANES) {
                let count = S::LANES.min(channels - channel);
                let mut between = Between::<S>::new();
                for j in 0..POINTS {
                    let mut d = [s.zero(); 6];
                    for i in 0..POINTS {
                        d[i] = load_up_to(s, pixels[i][j].add(channel), count);
                    }
                    between.set_column(j, &into_points::<S, POINTS>(s, &d), POINTS);
                }
                for i in 0..POINTS {
                    let line = into_points::<S, POINTS>(s, &between.row(s, i, POINTS));
                    for j in 0..POINTS {
                        v.store(s, (i * POINTS + j) * per_point + to + channel, line[j], S::LANES);
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
    pub(super) unsafe fn gradient_tile<S, const POINTS: usize>(
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
        let size = POINTS - 2;
        let (from, channels) = (channels.start, channels.len());
        // SAFETY: the tile's pixels are inside its output, and what is read of `between` was set before; for the rest the
        // caller vouches.
        unsafe {
            let mut pixels = [[zeros.at(0, channels); 4]; 4];
            let (first, rows, columns) = tile.outputs();
            for (row, pixels) in pixels.iter_mut().enumerate().take(size.min(rows)) {
                for (column, address) in pixels.iter_mut().enumerate().take(size.min(columns)) {
                    let pixel = first + row * tile.output.width + column;
                    *address = dz.at(pixel * all_channels + from, channels);
                }
            }
            for channel in (0..channels).step_by(S::LANES) {
                let count = S::LANES.min(channels - channel);
                let mut between = Between::<S>::new();
                for j in 0..size {
                    let mut y = [s.zero(); 6];
                    for i in 0..size {
                        y[i] = load_up_to(s, pixels[i][j].add(channel), count);
                    }
                    between.set_column(j, &gradient_into_points::<S, POINTS>(s, &y), POINTS);
                }
                for i in 0..POINTS {
                    let line = gradient_into_points::<S, POINTS>(s, &between.row(s, i, size));
                    for j in 0..POINTS {
                        d.store(s, (i * POINTS + j) * per_point + to + channel, line[j], S::LANES);
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
    pub(super) unsafe fn output_tiles<S, const POINTS: usize>(
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
        let size = POINTS - 2;
        for (t, tile) in tiles.iter().enumerate() {
            let (first, rows, columns) = tile.outputs();
            for channel in channels.clone().step_by(S::LANES) {
                let count = S::LANES.min(channels.end - channel);
                let from = t * stride + channel - channels.start;
                let mut between = Between::<S>::new();
                for j in 0..POINTS {
                    let mut line = [s.zero(); 6];
                    for i in 0..POINTS {
                        // SAFETY: M's rows are whole vectors, at each point; vouched for by the caller.
                        line[i] = unsafe { m.load(s, (i * POINTS + j) * per_point + from, S::LANES) };
                    }
                    between.set_column(j, &out_of_points::<S, POINTS>(s, &line), size);
                }
                for i in 0..size {
                    // SAFETY: each column was set above, of `size` rows.
                    let line = out_of_points::<S, POINTS>(s, &unsafe { between.row(s, i, POINTS) });
                    for j in 0..size {
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
    pub(super) unsafe fn weight_rows<S, const POINTS: usize>(
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
                    let line = weights_into_points::<S, POINTS>(s, [g[x], g[3 + x], g[6 + x]]);
                    between.set_column(x, &line, POINTS);
                }
                for i in 0..POINTS {
                    // SAFETY: three columns were set above.
                    let [a, b, c, ..] = unsafe { between.row(s, i, 3) };
                    let line = weights_into_points::<S, POINTS>(s, [a, b, c]);
                    for j in 0..POINTS {
                        let at = (i * POINTS + j) * per_point + to + (2 * row + half) * S::LANES;
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
    pub(super) unsafe fn weight_gradient_rows<S, const POINTS: usize>(
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
            for j in 0..POINTS {
                let mut line = [s.zero(); 6];
                for i in 0..POINTS {
                    // SAFETY: the caller vouches for the row.
                    line[i] = unsafe { u.load(s, (i * POINTS + j) * per_point + from + channel, S::LANES) };
                }
                let [a, b, c] = weight_gradient_out_of_points::<S, POINTS>(s, &line);
                between.set_column(j, &[a, b, c, c, c, c], 3);
            }
            for i in 0..3 {
                // SAFETY: each column was set above, of three rows.
                let line = unsafe { between.row(s, i, POINTS) };
                let line = weight_gradient_out_of_points::<S, POINTS>(s, &line);
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
