//! Max-pooling over channels-last images.

use rayon::prelude::*;

use crate::memory::{Source, Target, written};
use crate::shape::{Grid, ShapeError, Window, check_grids, check_len};
use crate::simd::{Isa, Simd, simd_fn};

/// The shape of one max-pooling: `x [N, H, W, C]`, `y [N, H', W', C]`.
#[derive(Clone, Copy, Debug)]
pub struct MaxPool2d {
    input: Grid,
    output: Grid,
    channels: usize,
    window: Window,
}

/// The result of max-pooling, with what its gradient needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    /// The maxima, `[N, H', W', C]`.
    pub y: Vec<f32>,
    /// The tap of the window that each maximum came from; of equal ones the first.
    pub taps: Vec<u8>,
}

impl MaxPool2d {
    /// The window must have at most 15×15 taps and padding of at most half of it, and none may lie
    /// outside the image altogether.
    pub fn new(input: Grid, channels: usize, window: Window) -> Result<Self, ShapeError> {
        if channels == 0 {
            return Err(ShapeError::Zero { what: "channels" });
        }
        let output = window.output(input)?;
        if window.kernel > 15 || window.padding > window.kernel / 2 {
            return Err(ShapeError::Mismatch {
                left: "padding",
                left_shape: vec![window.padding],
                right: "a pooling window of at most 15×15 and at least twice its padding",
                right_shape: vec![window.kernel, window.kernel],
            });
        }
        check_grids("x", &[input], channels)?;
        check_grids("y", &[output], channels)?;
        let pool = Self { input, output, channels, window };
        // With so little padding, only a window that starts before the image can miss it: where there
        // is no image, or where its dilated taps step over it.
        let misses = |outputs: usize, size: usize| {
            (0..outputs.min(window.padding)).any(|out| pool.sources(out, size).is_empty())
        };
        if misses(output.height, input.height) || misses(output.width, input.width) {
            return Err(window.misfit(input));
        }
        Ok(pool)
    }

    /// The grid of the result.
    pub fn output(&self) -> Grid {
        self.output
    }

    /// A NaN in the window is its maximum.
    pub fn forward(&self, isa: Isa, x: &[f32]) -> Result<Pooled, ShapeError> {
        let mut taps = vec![0; self.output.pixels() * self.channels];
        let row_len = (self.output.width * self.channels).max(1);
        let y = self.pooled(x, |row| {
            let rows = taps.par_chunks_mut(row_len).enumerate();
            rows.for_each(|(at, taps)| row.pool(isa, at, Some(taps)));
        })?;
        Ok(Pooled { y, taps })
    }

    /// The maxima alone, where no gradient is wanted.
    pub fn maxima(&self, isa: Isa, x: &[f32]) -> Result<Vec<f32>, ShapeError> {
        let rows = self.output.batch * self.output.height;
        self.pooled(x, |row| (0..rows).into_par_iter().for_each(|at| row.pool(isa, at, None)))
    }

    /// The maxima, of which `pool` makes each row once.
    fn pooled(&self, x: &[f32], pool: impl FnOnce(&PoolRow)) -> Result<Vec<f32>, ShapeError> {
        let Self { input, output, channels, .. } = *self;
        check_len("x", &[input.batch, input.height, input.width, channels], x.len())?;
        let columns: Vec<_> = (0..output.width).map(|out| self.sources(out, input.width)).collect();
        // SAFETY: every row is written.
        Ok(unsafe {
            written(output.pixels() * channels, |y| pool(&PoolRow { pool: self, x, columns: &columns, y }))
        })
    }

    /// `dx`, each `dy` given to the pixel its maximum came from.
    pub fn gradient(&self, isa: Isa, dy: &[f32], taps: &[u8]) -> Result<Vec<f32>, ShapeError> {
        let Self { input, output, channels, .. } = *self;
        let shape = [output.batch, output.height, output.width, channels];
        check_len("dy", &shape, dy.len())?;
        check_len("taps", &shape, taps.len())?;
        let columns: Vec<_> = (0..input.width).map(|at| self.taps_on(at, output.width)).collect();
        // SAFETY: every row of every image is written, each by a job of its own; what sees a pixel is
        // inside the output, whose length was checked.
        Ok(unsafe {
            written(input.pixels() * channels, |dx| {
                (0..input.batch * input.height).into_par_iter().for_each(|row| {
                    let (image, y) = (row / input.height, row % input.height);
                    let image_len = output.height * output.width * channels;
                    let range = image * image_len..(image + 1) * image_len;
                    let rows = self.taps_on(y, output.height);
                    let at = row * input.width * channels;
                    dx.streamed(isa, |dx| {
                        unpool_row(isa, self, &dy[range.clone()], &taps[range], &rows, &columns, dx, at);
                    });
                });
            })
        })
    }

    /// Along one axis, the taps of the window at `out` that are on the image, and what they see.
    fn sources(&self, out: usize, size: usize) -> Vec<Tap> {
        let Window { kernel, stride, padding, dilation } = self.window;
        (0..kernel)
            .filter_map(|tap| {
                let at = (out * stride + tap * dilation).checked_sub(padding).filter(|&at| at < size)?;
                Some(Tap { tap, at })
            })
            .collect()
    }

    /// Along one axis, the taps that see the coordinate `at`, and whose they are.
    fn taps_on(&self, at: usize, size: usize) -> Vec<Tap> {
        let Window { kernel, stride, padding, dilation } = self.window;
        (0..kernel)
            .filter_map(|tap| {
                let offset = (at + padding).checked_sub(tap * dilation)?;
                let out = Some(offset / stride).filter(|&out| offset % stride == 0 && out < size)?;
                Some(Tap { tap, at: out })
            })
            .collect()
    }
}

/// A tap along one axis, and the coordinate at its other end.
#[derive(Clone, Copy)]
struct Tap {
    tap: usize,
    at: usize,
}

/// Channels `first..` of a pixel: `VECTORS` whole vectors of them, or one of `count`.
#[derive(Clone, Copy)]
struct Channels {
    first: usize,
    count: usize,
}

/// Calls `$many` with four vectors of channels at a time, and `$one` with one for the rest.
macro_rules! for_channels {
    ($S:ident, $channels:expr, $many:expr, $one:expr) => {
        let mut first = 0;
        while first + 4 * $S::LANES <= $channels {
            $many(Channels { first, count: $S::LANES });
            first += 4 * $S::LANES;
        }
        while first < $channels {
            let count = $S::LANES.min($channels - first);
            $one(Channels { first, count });
            first += count;
        }
    };
}

/// Where the windows of one row of outputs, or those that see one row of inputs, are.
#[derive(Clone, Copy)]
struct Row<'a> {
    rows: &'a [Tap],
    columns: &'a [Tap],
    kernel: usize,
    width: usize,
    channels: usize,
}

impl Row<'_> {
    /// Every tap, with the offset of the pixel at its other end.
    #[inline(always)]
    fn taps(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.rows.iter().flat_map(move |row| {
            self.columns.iter().map(move |column| {
                let pixel = row.at * self.width + column.at;
                (row.tap * self.kernel + column.tap, pixel * self.channels)
            })
        })
    }
}

/// A row of outputs to be made.
struct PoolRow<'a> {
    pool: &'a MaxPool2d,
    x: &'a [f32],
    /// For each output of a row, the columns that it sees.
    columns: &'a [Vec<Tap>],
    y: Target<'a>,
}

impl PoolRow<'_> {
    /// Makes row `row` of all images' rows, and, if asked for, the taps of its maxima. Each row is made
    /// once.
    fn pool(&self, isa: Isa, row: usize, taps: Option<&mut [u8]>) {
        let MaxPool2d { input, output, channels, .. } = *self.pool;
        let (image, out_y) = (row / output.height, row % output.height);
        let image_len = input.height * input.width * channels;
        let image = &self.x[image * image_len..][..image_len];
        let rows = self.pool.sources(out_y, input.height);
        let at = row * output.width * channels;
        // SAFETY: the sources are on the image, and the row is this job's alone.
        self.y.streamed(isa, |y| unsafe {
            match taps {
                Some(taps) => pool_row::<1>(isa, self.pool, image, &rows, self.columns, y, at, taps),
                None => pool_row::<0>(isa, self.pool, image, &rows, self.columns, y, at, &mut []),
            }
        });
    }
}

simd_fn! {
    /// One row of outputs, at `at` of `y`, from the rows of `x` and, for each output, the columns that it
    /// sees; with `TAPS`, the taps of the maxima as well.
    ///
    /// # Safety
    /// These must be on the image `x`, and the row inside `y`, used by no other job.
    unsafe fn pool_row<S, const TAPS: usize>(
        s,
        pool: &MaxPool2d,
        x: &[f32],
        rows: &[Tap],
        columns: &[Vec<Tap>],
        y: Target,
        at: usize,
        taps: &mut [u8],
    ) {
        let MaxPool2d { input, channels, window, .. } = *pool;
        let x = Source::from(x);
        for (out, columns) in columns.iter().enumerate() {
            let row = Row { rows, columns, kernel: window.kernel, width: input.width, channels };
            let at = at + out * channels;
            let taps = &mut taps[TAPS * out * channels..][..TAPS * channels];
            for_channels!(
                S,
                channels,
                // SAFETY: the caller vouches for the pixels; the channels are inside them.
                |channels| unsafe { pool_channels::<S, 4, TAPS>(s, &row, x, channels, y, at, taps) },
                // SAFETY: as above.
                |channels| unsafe { pool_channels::<S, 1, TAPS>(s, &row, x, channels, y, at, taps) }
            );
        }
    }
}

/// # Safety
/// The channels of the row's pixels must be inside `x`, and those of the pixel at `to` inside `y`, used by no
/// other job.
#[inline(always)]
unsafe fn pool_channels<S: Simd, const VECTORS: usize, const TAPS: usize>(
    s: S,
    row: &Row,
    x: Source,
    channels: Channels,
    y: Target,
    to: usize,
    taps: &mut [u8],
) {
    let Channels { first, count } = channels;
    // No window is wholly outside, so there is a first tap; a window of −∞ keeps it.
    let first_tap = (row.rows[0].tap * row.kernel + row.columns[0].tap) as f32;
    let mut best = [s.splat(f32::NEG_INFINITY); VECTORS];
    let mut from = [s.splat(first_tap); VECTORS];
    for (tap, at) in row.taps() {
        let tap = s.splat(tap as f32);
        for v in 0..VECTORS {
            // SAFETY: as the caller vouches.
            let values = unsafe { x.load(s, at + first + v * S::LANES, count) };
            if TAPS > 0 {
                from[v] = s.select_larger(values, best[v], tap, from[v]);
            }
            best[v] = s.select_larger(values, best[v], values, best[v]);
        }
    }
    for v in 0..VECTORS {
        let at = first + v * S::LANES;
        // SAFETY: as the caller vouches.
        unsafe { y.store_result(s, to + at, best[v], count) };
        if TAPS > 0 {
            taps[at..at + count].copy_from_slice(&s.to_bytes(from[v])[..count]);
        }
    }
}

simd_fn! {
    /// The gradients of one row of inputs, at `at` of `dx`, from the rows of `dy` and, for each input, the
    /// columns that see it.
    ///
    /// # Safety
    /// These must be inside `dy`, and the row inside `dx`, used by no other job.
    unsafe fn unpool_row<S>(
        s,
        pool: &MaxPool2d,
        dy: &[f32],
        taps: &[u8],
        rows: &[Tap],
        columns: &[Vec<Tap>],
        dx: Target,
        at: usize,
    ) {
        let MaxPool2d { output, channels, window, .. } = *pool;
        let dy = Source::from(dy);
        for (x, columns) in columns.iter().enumerate() {
            let row = Row { rows, columns, kernel: window.kernel, width: output.width, channels };
            let at = at + x * channels;
            for_channels!(
                S,
                channels,
                // SAFETY: the caller vouches for the pixels; the channels are inside them.
                |channels| unsafe { unpool_channels::<S, 4>(s, &row, dy, taps, channels, dx, at) },
                // SAFETY: as above.
                |channels| unsafe { unpool_channels::<S, 1>(s, &row, dy, taps, channels, dx, at) }
            );
        }
    }
}

/// # Safety
/// The channels of the row's windows must be inside `dy`, and those of the pixel at `to` inside `dx`, used
/// by no other job.
#[inline(always)]
unsafe fn unpool_channels<S: Simd, const VECTORS: usize>(
    s: S,
    row: &Row,
    dy: Source,
    taps: &[u8],
    channels: Channels,
    dx: Target,
    to: usize,
) {
    let Channels { first, count } = channels;
    let mut sums = [s.zero(); VECTORS];
    for (tap, at) in row.taps() {
        for v in 0..VECTORS {
            let at = at + first + v * S::LANES;
            let mut from = [0; 16];
            from[..count].copy_from_slice(&taps[at..at + count]);
            // SAFETY: as the caller vouches.
            let dy = unsafe { dy.load(s, at, count) };
            sums[v] = s.add(sums[v], s.keep_where(&from, tap as u8, dy));
        }
    }
    for v in 0..VECTORS {
        // SAFETY: as the caller vouches.
        unsafe { dx.store_result(s, to + first + v * S::LANES, sums[v], count) };
    }
}
