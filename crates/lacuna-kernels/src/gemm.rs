//! The two inner kernels that every matrix product here is made of. Both keep a tile of
//! `rows × (2 · LANES)` sums in registers and read one operand as *panels*: `2 · LANES` columns
//! side by side, one row after another.
//!
//! - [`row_tile`]: `out[r] = Σ_tap Σ_k a[tap][r][k] · panel[tap · depth + k]`. Rows of `a` are given
//!   by address, so the taps of a convolution are read where they lie (no im2col).
//! - [`column_tile`]: `out[r] = Σ_p a[p][r] · b[p]`, the product with `a` transposed that weight
//!   gradients need.
//!
//! Depth is always summed in ascending order by one job, so a result does not depend on how
//! work is shared between threads.

use std::mem::MaybeUninit;

use crate::memory::{Source, Target, load_up_to};
use crate::simd::{Isa, Simd, simd_fn};

/// Rows of the tallest tile: 12 rows × 2 vectors of sums leave 8 of AVX-512's 32 registers for
/// operands. Instruction sets with 16 registers use [`rows_per_tile`] = 6.
pub(crate) const MAX_ROWS: usize = 12;

pub(crate) fn rows_per_tile(isa: Isa) -> usize {
    if isa.lanes() == 16 { MAX_ROWS } else { 6 }
}

/// Rows of a panel, ahead of the one in use, that are fetched from the second-level cache.
const PREFETCH_ROWS: usize = 8;

/// Columns of a tile, and of a panel.
pub(crate) fn columns_per_tile(isa: Isa) -> usize {
    2 * isa.lanes()
}

/// The ranges that `total` rows are cut into: as few as possible, none longer than `most`, and all
/// of nearly one length, because a short rest would run at a fraction of the speed.
pub(crate) fn even_ranges(total: usize, most: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let parts = total.div_ceil(most);
    (0..parts).map(move |i| i * total / parts..(i + 1) * total / parts)
}

/// What happens to a sum before it is stored: `relu(sum + shift[column] + residual)`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Finish<'a> {
    /// `[K]`
    pub(crate) shift: Option<Source<'a>>,
    /// Laid out as the output.
    pub(crate) residual: Option<Source<'a>>,
    pub(crate) relu: bool,
}

impl Finish<'_> {
    /// # Safety
    /// `channel + count` must be within `shift`, and `offset + count` within `residual`.
    #[inline(always)]
    pub(crate) unsafe fn apply<S: Simd>(
        &self,
        s: S,
        mut sum: S::Vector,
        channel: usize,
        offset: usize,
        count: usize,
    ) -> S::Vector {
        if let Some(shift) = self.shift {
            // SAFETY: as the caller vouches.
            sum = s.add(sum, unsafe { shift.load(s, channel, count) });
        }
        if let Some(residual) = self.residual {
            // SAFETY: as the caller vouches.
            sum = s.add(sum, unsafe { residual.load(s, offset, count) });
        }
        if self.relu { s.max(s.zero(), sum) } else { sum }
    }
}

/// The address of one row of the left operand: of an image, or of a row of zeros where the window
/// reaches over the border.
#[derive(Clone, Copy)]
pub(crate) struct RowAddress(pub(crate) *const f32);

// SAFETY: only ever read through, by kernels whose callers vouch for the memory.
unsafe impl Send for RowAddress {}
// SAFETY: as above.
unsafe impl Sync for RowAddress {}

/// A tile's sums in memory. The loop that finishes them is too long to be unrolled; indexed by it, the
/// array of sums would live in memory from the start, and every product would be stored.
struct Spilled([MaybeUninit<f32>; MAX_ROWS * 2 * 16]);

impl Spilled {
    #[inline(always)]
    fn new<S: Simd, const ROWS: usize>(s: S, sums: &[[S::Vector; 2]; ROWS]) -> Self {
        let mut spilled = Self([MaybeUninit::uninit(); MAX_ROWS * 2 * 16]);
        let to: *mut f32 = spilled.0.as_mut_ptr().cast();
        for r in 0..ROWS {
            // SAFETY: at most `MAX_ROWS` rows of two vectors of at most 16 lanes.
            unsafe {
                s.store(to.add(2 * r * S::LANES), sums[r][0]);
                s.store(to.add((2 * r + 1) * S::LANES), sums[r][1]);
            }
        }
        spilled
    }

    /// # Safety
    /// Row `r` must have been given to [`Spilled::new`].
    #[inline(always)]
    unsafe fn get<S: Simd>(&self, s: S, r: usize, half: usize) -> S::Vector {
        // SAFETY: written by `new`, as the caller vouches.
        unsafe { s.load(self.0.as_ptr().cast::<f32>().add((2 * r + half) * S::LANES)) }
    }
}

/// What a later tile will read, fetched into the second-level cache with this tile's products: `step`
/// floats with each. The processor itself does not foresee jumps from row to row.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    pub(crate) from: RowAddress,
    pub(crate) step: usize,
}

impl Ahead {
    /// Some memory that is in the cache anyway.
    pub(crate) const NOTHING: Self = {
        const LINE: &[f32; 16] = &[0.0; 16];
        Self { from: RowAddress(LINE.as_ptr()), step: 0 }
    };

    /// Rows of `floats` each, shared out among `tiles` tiles of `depth` products. If there are more rows
    /// than tiles, neighbours are taken to lie side by side.
    pub(crate) fn shared_out(
        rows: &[RowAddress],
        floats: usize,
        tiles: usize,
        depth: usize,
    ) -> impl Iterator<Item = Self> {
        let per_tile = rows.len().div_ceil(tiles).max(1);
        let step = (per_tile * floats).div_ceil(depth);
        rows.chunks(per_tile).map(move |rows| Self { from: rows[0], step })
    }
}

pub(crate) struct RowTile<'a> {
    /// `[taps]`: the first `rows` of each are used, each of `depth` readable floats from `taps_at` on.
    pub(crate) taps: &'a [[RowAddress; MAX_ROWS]],
    pub(crate) taps_at: usize,
    pub(crate) depth: usize,
    pub(crate) ahead: Ahead,
    /// `[taps · depth, 2 · LANES]`, from `panel_at` on.
    pub(crate) panel: Source<'a>,
    pub(crate) panel_at: usize,
    pub(crate) out: Target<'a>,
    /// Where each row of the output starts, and where in it the first column goes.
    pub(crate) out_rows: &'a [usize; MAX_ROWS],
    pub(crate) out_at: usize,
    /// Columns to store, at most `2 · LANES`.
    pub(crate) columns: usize,
    /// Add to what is there.
    pub(crate) accumulate: bool,
    pub(crate) finish: Finish<'a>,
    /// The output channel of the first column.
    pub(crate) channel: usize,
}

/// Calls the function that is compiled for this number of rows, known only at run time.
macro_rules! for_rows {
    ($rows:expr, $tile_of:ident($isa:expr, $tile:expr)) => {
        for_rows!($rows, $tile_of($isa, $tile), 1 2 3 4 5 6 7 8 9 10 11 12)
    };
    ($rows:expr, $tile_of:ident($isa:expr, $tile:expr), $($n:literal)*) => {
        match $rows {
            $($n => $tile_of::<$n>($isa, $tile),)*
            rows => unreachable!("a tile has 1 to {MAX_ROWS} rows, not {rows}"),
        }
    };
}

/// # Safety
/// The tile's addresses must be readable as documented, its output writable and used by no other
/// job, and its `finish` must cover its output.
pub(crate) unsafe fn row_tile(isa: Isa, rows: usize, tile: &RowTile) {
    // SAFETY: the caller vouches for the tile, of as many rows.
    unsafe {
        for_rows!(rows, row_tile_of(isa, tile));
    }
}

simd_fn! {
    /// # Safety
    /// As [`row_tile`], for `ROWS` rows.
    unsafe fn row_tile_of<S, const ROWS: usize>(s, tile: &RowTile) {
        let mut sums = [[s.zero(); 2]; ROWS];
        // SAFETY: the caller vouches for the panel and for every row.
        unsafe {
            let mut panel = tile.panel.at(tile.panel_at, tile.taps.len() * tile.depth * 2 * S::LANES);
            let mut ahead = tile.ahead.from.0;
            for rows in tile.taps {
                let rows: [*const f32; ROWS] = std::array::from_fn(|r| rows[r].0.add(tile.taps_at));
                for k in 0..tile.depth {
                    let left = s.load(panel);
                    let right = s.load(panel.add(S::LANES));
                    s.prefetch(panel.wrapping_add(PREFETCH_ROWS * 2 * S::LANES));
                    s.prefetch(panel.wrapping_add((PREFETCH_ROWS * 2 + 1) * S::LANES));
                    s.prefetch_second_level(ahead);
                    ahead = ahead.wrapping_add(tile.ahead.step);
                    panel = panel.add(2 * S::LANES);
                    for r in 0..ROWS {
                        let a = s.splat(*rows[r].add(k));
                        sums[r][0] = s.mul_add(a, left, sums[r][0]);
                        sums[r][1] = s.mul_add(a, right, sums[r][1]);
                    }
                }
            }
        }
        let sums = Spilled::new(s, &sums);
        for r in 0..ROWS {
            for half in 0..2 {
                let first = half * S::LANES;
                let count = tile.columns.saturating_sub(first).min(S::LANES);
                if count == 0 {
                    continue;
                }
                let at = tile.out_rows[r] + tile.out_at + first;
                // SAFETY: the caller vouches for the output and what `finish` reads.
                unsafe {
                    let mut sum = sums.get(s, r, half);
                    if tile.accumulate {
                        sum = s.add(sum, load_up_to(s, tile.out.at(at, count), count));
                    }
                    tile.out.store_result(s, at, tile.finish.apply(s, sum, tile.channel + first, at, count), count);
                }
            }
        }
    }
}

pub(crate) struct ColumnTile<'a> {
    /// Row `p` starts at `a_at + p · a_stride`.
    pub(crate) a: Source<'a>,
    pub(crate) a_at: usize,
    pub(crate) a_stride: usize,
    /// Row `p`, of `2 · LANES` floats, starts at `b_at + p · b_stride`.
    pub(crate) b: Source<'a>,
    pub(crate) b_at: usize,
    pub(crate) b_stride: usize,
    /// How many rows `p` are summed; not 0.
    pub(crate) depth: usize,
    pub(crate) ahead: Ahead,
    pub(crate) out: Target<'a>,
    pub(crate) out_at: usize,
    pub(crate) out_stride: usize,
    pub(crate) columns: usize,
    pub(crate) accumulate: bool,
    /// A factor per output channel, and the channel of the first column.
    pub(crate) scale: Option<(Source<'a>, usize)>,
}

/// # Safety
/// `rows` floats of each row of `a` and `2 · LANES` of each row of `b` must be readable, the output
/// writable and used by no other job.
pub(crate) unsafe fn column_tile(isa: Isa, rows: usize, tile: &ColumnTile) {
    // SAFETY: the caller vouches for the tile, of as many rows.
    unsafe {
        for_rows!(rows, column_tile_of(isa, tile));
    }
}

simd_fn! {
    /// # Safety
    /// As [`column_tile`], for `ROWS` rows.
    unsafe fn column_tile_of<S, const ROWS: usize>(s, tile: &ColumnTile) {
        let mut sums = [[s.zero(); 2]; ROWS];
        // SAFETY: the caller vouches for both operands.
        unsafe {
            let mut a = tile.a.at(tile.a_at, (tile.depth - 1) * tile.a_stride + ROWS);
            let mut b = tile.b.at(tile.b_at, (tile.depth - 1) * tile.b_stride + 2 * S::LANES);
            let mut ahead = tile.ahead.from.0;
            for p in 0..tile.depth {
                let left = s.load(b);
                let right = s.load(b.add(S::LANES));
                s.prefetch_second_level(ahead);
                ahead = ahead.wrapping_add(tile.ahead.step);
                for r in 0..ROWS {
                    let x = s.splat(*a.add(r));
                    sums[r][0] = s.mul_add(x, left, sums[r][0]);
                    sums[r][1] = s.mul_add(x, right, sums[r][1]);
                }
                a = a.wrapping_add(tile.a_stride);
                b = b.wrapping_add(tile.b_stride);
            }
        }
        let sums = Spilled::new(s, &sums);
        for r in 0..ROWS {
            for half in 0..2 {
                let first = half * S::LANES;
                let count = tile.columns.saturating_sub(first).min(S::LANES);
                if count == 0 {
                    continue;
                }
                // SAFETY: the caller vouches for the output and the scale.
                unsafe {
                    let at = tile.out_at + r * tile.out_stride + first;
                    let mut sum = sums.get(s, r, half);
                    if tile.accumulate {
                        sum = s.add(sum, load_up_to(s, tile.out.at(at, count), count));
                    }
                    if let Some((scale, channel)) = tile.scale {
                        sum = s.mul(sum, scale.load(s, channel + first, count));
                    }
                    tile.out.store_result(s, at, sum, count);
                }
            }
        }
    }
}
