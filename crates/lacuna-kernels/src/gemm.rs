//! The two inner kernels that every matrix product here is made of. Both keep a tile of
//! `rows × (2 · LANES)` sums (or half of them) in registers and read one operand as *panels*: `2 · LANES` columns
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
use std::ops::Range;

use crate::memory::{Source, Target, load_up_to};
use crate::simd::{Isa, Simd, simd_fn};

/// Rows of the tallest tile: 12 rows × 2 vectors of sums leave 8 of AVX-512's 32 registers for
/// operands. Instruction sets with 16 registers use [`rows_per_tile`] = 6.
pub(crate) const MAX_ROWS: usize = 12;

pub(crate) fn rows_per_tile(isa: Isa) -> usize {
    if isa.lanes() == 16 { MAX_ROWS } else { 6 }
}

/// Products in a row between which nothing but products is done: fetching ahead in between would cost the
/// multipliers a tenth of their time.
const UNROLLED: usize = 4;

/// Rows of a panel, ahead of those in use, that are fetched from the second-level cache.
const PREFETCH_ROWS: usize = 8;

const FLOATS_PER_LINE: usize = 16;

/// Columns of a tile, and of a panel.
pub(crate) fn columns_per_tile(isa: Isa) -> usize {
    2 * isa.lanes()
}

/// The ranges that `total` rows are cut into: as few as possible, none longer than `most`, and all
/// of nearly one length, because a short rest would run at a fraction of the speed.
pub(crate) fn even_ranges(total: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    in_parts(total, total.div_ceil(most))
}

/// As many ranges, all of nearly one length.
pub(crate) fn in_parts(total: usize, parts: usize) -> impl Iterator<Item = Range<usize>> {
    // `i · total / parts`, which could overflow.
    let start = move |i: usize| i * (total / parts) + i * (total % parts) / parts;
    (0..parts).map(move |i| start(i)..start(i + 1))
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

    /// [`Self::apply`] to whole rows, those of the output from `at(r)` on. A short loop for each step: one long loop would
    /// not be unrolled, and the sums it indexes would live in memory from the start.
    ///
    /// # Safety
    /// As [`Self::apply`], for `VECTORS · LANES` floats of each row.
    #[inline(always)]
    unsafe fn apply_to_rows<S: Simd, const ROWS: usize, const VECTORS: usize>(
        &self,
        s: S,
        sums: &mut [[S::Vector; VECTORS]; ROWS],
        channel: usize,
        at: impl Fn(usize) -> usize,
    ) {
        if let Some(shift) = self.shift {
            for half in 0..VECTORS {
                // SAFETY: as the caller vouches.
                let shift = unsafe { shift.load(s, channel + half * S::LANES, S::LANES) };
                for r in 0..ROWS {
                    sums[r][half] = s.add(sums[r][half], shift);
                }
            }
        }
        if let Some(residual) = self.residual {
            // SAFETY: as the caller vouches.
            unsafe { add_rows(s, sums, residual, at) };
        }
        if self.relu {
            for r in 0..ROWS {
                for half in 0..VECTORS {
                    sums[r][half] = s.max(s.zero(), sums[r][half]);
                }
            }
        }
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

/// A tile's sums in memory, where a loop that is not unrolled can find them: indexed by such a loop, the array
/// of sums would live there from the start, and every product would be stored.
struct Spilled([MaybeUninit<f32>; MAX_ROWS * 2 * 16]);

impl Spilled {
    fn new() -> Self {
        Self([MaybeUninit::uninit(); MAX_ROWS * 2 * 16])
    }

    #[inline(always)]
    fn fill<S: Simd, const ROWS: usize, const VECTORS: usize>(
        &mut self,
        s: S,
        sums: &[[S::Vector; VECTORS]; ROWS],
    ) {
        let to: *mut f32 = self.0.as_mut_ptr().cast();
        for r in 0..ROWS {
            for half in 0..VECTORS {
                // SAFETY: at most `MAX_ROWS` rows of two vectors of at most 16 lanes.
                unsafe { s.store(to.add((2 * r + half) * S::LANES), sums[r][half]) };
            }
        }
    }

    /// # Safety
    /// Row `r` must have been given to [`Spilled::fill`].
    #[inline(always)]
    unsafe fn get<S: Simd>(&self, s: S, r: usize, half: usize) -> S::Vector {
        // SAFETY: written by `fill`, as the caller vouches.
        unsafe { s.load(self.0.as_ptr().cast::<f32>().add((2 * r + half) * S::LANES)) }
    }
}

/// What a later tile will read, fetched into the second-level cache with this tile's products: with every
/// [`UNROLLED`] of them two cache lines, `half_step` floats apart (and their neighbors, which the processor
/// adds). The processor itself does not foresee jumps from row to row. A [`row_tile`] whose depth is no multiple of
/// [`UNROLLED`], such as the stem's, fetches nothing ahead.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    pub(crate) from: RowAddress,
    half_step: usize,
}

impl Ahead {
    /// Some memory that is in the cache anyway.
    pub(crate) const NOTHING: Self = {
        const LINE: &[f32; FLOATS_PER_LINE] = &[0.0; FLOATS_PER_LINE];
        Self { from: RowAddress(LINE.as_ptr()), half_step: 0 }
    };

    /// `floats` from an address on, with `depth` products.
    pub(crate) fn new(from: RowAddress, floats: usize, depth: usize) -> Self {
        Self { from, half_step: floats.div_ceil(2 * (depth / UNROLLED).max(1)) }
    }

    /// Rows of `floats` each, shared out among `tiles` tiles of `depth` products. If there are more rows
    /// than tiles, neighbors are taken to lie side by side.
    pub(crate) fn shared_out(
        rows: Range<usize>,
        row: impl Fn(usize) -> RowAddress,
        floats: usize,
        tiles: usize,
        depth: usize,
    ) -> impl Iterator<Item = Self> {
        let per_tile = rows.len().div_ceil(tiles).max(1);
        rows.step_by(per_tile).map(move |first| Self::new(row(first), per_tile * floats, depth))
    }

    #[inline(always)]
    fn fetch<S: Simd>(&mut self, s: S) {
        for _ in 0..2 {
            s.prefetch_second_level(self.from.0);
            self.from.0 = self.from.0.wrapping_add(self.half_step);
        }
    }
}

/// `sums[r] += a(r) · panel[..VECTORS · LANES]`
///
/// # Safety
/// `VECTORS · LANES` floats must be readable at `panel`.
#[inline(always)]
unsafe fn add_product<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    sums: &mut [[S::Vector; VECTORS]; ROWS],
    a: impl Fn(usize) -> f32,
    panel: *const f32,
) {
    // SAFETY: as the caller vouches.
    let panel: [S::Vector; VECTORS] =
        std::array::from_fn(|half| unsafe { s.load(panel.add(half * S::LANES)) });
    for r in 0..ROWS {
        let a = s.splat(a(r));
        for half in 0..VECTORS {
            sums[r][half] = s.mul_add(a, panel[half], sums[r][half]);
        }
    }
}

/// `sums[r] += from[at(r)..][..VECTORS · LANES]`
///
/// # Safety
/// These floats must be readable.
#[inline(always)]
unsafe fn add_rows<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    sums: &mut [[S::Vector; VECTORS]; ROWS],
    from: Source,
    at: impl Fn(usize) -> usize,
) {
    for r in 0..ROWS {
        for half in 0..VECTORS {
            // SAFETY: as the caller vouches.
            let value = unsafe { from.load(s, at(r) + half * S::LANES, S::LANES) };
            sums[r][half] = s.add(sums[r][half], value);
        }
    }
}

/// `to[at(r)..][..VECTORS · LANES] = sums[r]`, past the caches within [`Target::streamed`].
///
/// # Safety
/// These floats must be writable and used by no other job.
#[inline(always)]
unsafe fn store_rows<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    sums: &[[S::Vector; VECTORS]; ROWS],
    to: Target,
    at: impl Fn(usize) -> usize,
) {
    // SAFETY: as the caller vouches.
    unsafe {
        if (0..ROWS).all(|r| to.streams_to(s, at(r))) {
            for r in 0..ROWS {
                for half in 0..VECTORS {
                    s.stream(to.at(at(r) + half * S::LANES, S::LANES), sums[r][half]);
                }
            }
        } else {
            for r in 0..ROWS {
                for half in 0..VECTORS {
                    s.store(to.at(at(r) + half * S::LANES, S::LANES), sums[r][half]);
                }
            }
        }
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
    /// Whether the tile before had the same panel.
    pub(crate) same_panel: bool,
    pub(crate) out: Target<'a>,
    /// Where each row of the output starts, and where in it the first column goes.
    pub(crate) out_rows: &'a [usize; MAX_ROWS],
    pub(crate) out_at: usize,
    /// Columns to store, at most `2 · LANES`; if one vector holds them, the other half of the panel is not multiplied.
    pub(crate) columns: usize,
    /// Add to what is there.
    pub(crate) accumulate: bool,
    pub(crate) finish: Finish<'a>,
    /// The output channel of the first column.
    pub(crate) channel: usize,
}

/// A call of what is compiled for a number of rows that is known only at run time.
macro_rules! for_rows {
    ($rows:expr, $ROWS:ident => $call:expr) => {
        for_rows!($rows, $ROWS => $call, 1 2 3 4 5 6 7 8 9 10 11 12)
    };
    ($rows:expr, $ROWS:ident => $call:expr, $($n:literal)*) => {
        match $rows {
            $($n => {
                const $ROWS: usize = $n;
                $call
            })*
            rows => unreachable!("a tile has 1 to {MAX_ROWS} rows, not {rows}"),
        }
    };
}

/// # Safety
/// The tile's addresses must be readable as documented, its output writable and used by no other
/// job, and its `finish` must cover its output.
pub(crate) unsafe fn row_tile(isa: Isa, rows: usize, tile: &RowTile) {
    let (mut sums, whole) = (Spilled::new(), tile.columns.is_multiple_of(isa.lanes()));
    // SAFETY: the caller vouches for the tile, of as many rows; what is not whole was spilled.
    unsafe {
        // Functions of their own: a rest of fewer than four products in one of them costs all tiles a twentieth.
        match (tile.depth.is_multiple_of(UNROLLED), tile.columns <= isa.lanes()) {
            (true, false) => {
                for_rows!(rows, ROWS => row_tile_of::<ROWS, 2, UNROLLED>(isa, tile, whole, &mut sums));
            }
            (true, true) => {
                for_rows!(rows, ROWS => row_tile_of::<ROWS, 1, UNROLLED>(isa, tile, whole, &mut sums));
            }
            (false, false) => for_rows!(rows, ROWS => row_tile_of::<ROWS, 2, 1>(isa, tile, whole, &mut sums)),
            (false, true) => for_rows!(rows, ROWS => row_tile_of::<ROWS, 1, 1>(isa, tile, whole, &mut sums)),
        }
        if !whole {
            finish_row_tile(isa, rows, tile, &sums);
        }
    }
}

simd_fn! {
    /// Of the first `VECTORS` vectors of a panel; the sums of a tile that is not `whole`, with fewer columns than they have,
    /// are left in `spilled`. `PRODUCTS`, by which its depth can be divided, are done in a row.
    ///
    /// # Safety
    /// As [`row_tile`], for `ROWS` rows.
    unsafe fn row_tile_of<S, const ROWS: usize, const VECTORS: usize, const PRODUCTS: usize>(
        s,
        tile: &RowTile,
        whole: bool,
        spilled: &mut Spilled,
    ) {
        let mut sums = [[s.zero(); VECTORS]; ROWS];
        let panel_floats = tile.taps.len() * tile.depth * 2 * S::LANES;
        // SAFETY: the caller vouches for the panel and for every row.
        unsafe {
            let mut panel = tile.panel.at(tile.panel_at, panel_floats);
            let mut ahead = tile.ahead;
            for rows in tile.taps {
                let rows: [*const f32; ROWS] = std::array::from_fn(|r| rows[r].0.add(tile.taps_at));
                for k in (0..tile.depth).step_by(PRODUCTS) {
                    if !tile.same_panel {
                        let lines = (0..PRODUCTS * 2 * S::LANES).step_by(FLOATS_PER_LINE);
                        // If one vector is a line, every second line is of the other.
                        for line in lines.filter(|line| VECTORS == 2 || line % (2 * S::LANES) < S::LANES) {
                            s.prefetch(panel.wrapping_add(PREFETCH_ROWS * 2 * S::LANES + line));
                        }
                    }
                    if PRODUCTS == UNROLLED {
                        ahead.fetch(s);
                    }
                    for i in 0..PRODUCTS {
                        add_product(s, &mut sums, |r| *rows[r].add(k + i), panel.add(i * 2 * S::LANES));
                    }
                    panel = panel.add(PRODUCTS * 2 * S::LANES);
                }
            }
        }
        if !whole {
            spilled.fill(s, &sums);
            return;
        }
        // SAFETY: the caller vouches for the output and what `finish` reads.
        unsafe {
            let at = |r: usize| tile.out_rows[r] + tile.out_at;
            if tile.accumulate {
                add_rows(s, &mut sums, tile.out.as_source(), at);
            }
            tile.finish.apply_to_rows(s, &mut sums, tile.channel, at);
            store_rows(s, &sums, tile.out, at);
        }
    }
}

simd_fn! {
    /// # Safety
    /// As [`row_tile`], whose `sums` have as many rows.
    unsafe fn finish_row_tile<S>(s, rows: usize, tile: &RowTile, sums: &Spilled) {
        for r in 0..rows {
            for half in 0..2 {
                let first = half * S::LANES;
                let count = tile.columns.saturating_sub(first).min(S::LANES);
                if count == 0 {
                    continue;
                }
                let at = tile.out_rows[r] + tile.out_at + first;
                // SAFETY: the caller vouches for the sums, the output and what `finish` reads.
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
    /// Row `p`, of `columns` floats rounded up to whole vectors, starts at `b_at + p · b_stride`.
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
/// `rows` floats of each row of `a` and `columns` of each row of `b`, rounded up to whole vectors, must be readable, the output
/// writable and used by no other job.
pub(crate) unsafe fn column_tile(isa: Isa, rows: usize, tile: &ColumnTile) {
    let (mut sums, whole) = (Spilled::new(), tile.columns.is_multiple_of(isa.lanes()));
    // SAFETY: the caller vouches for the tile, of as many rows; what is not whole was spilled.
    unsafe {
        if tile.columns <= isa.lanes() {
            for_rows!(rows, ROWS => column_tile_of::<ROWS, 1>(isa, tile, whole, &mut sums));
        } else {
            for_rows!(rows, ROWS => column_tile_of::<ROWS, 2>(isa, tile, whole, &mut sums));
        }
        if !whole {
            finish_column_tile(isa, rows, tile, &sums);
        }
    }
}

simd_fn! {
    /// Of the first `VECTORS` vectors of a panel; the sums of a tile that is not `whole`, with fewer columns than they have,
    /// are left in `spilled`.
    ///
    /// # Safety
    /// As [`column_tile`], for `ROWS` rows.
    unsafe fn column_tile_of<S, const ROWS: usize, const VECTORS: usize>(
        s,
        tile: &ColumnTile,
        whole: bool,
        spilled: &mut Spilled,
    ) {
        let mut sums = [[s.zero(); VECTORS]; ROWS];
        // SAFETY: the caller vouches for both operands.
        unsafe {
            let mut a = tile.a.at(tile.a_at, (tile.depth - 1) * tile.a_stride + ROWS);
            let mut b = tile.b.at(tile.b_at, (tile.depth - 1) * tile.b_stride + VECTORS * S::LANES);
            let mut ahead = tile.ahead;
            if tile.accumulate {
                // What is added to may come from far away, and would be waited for when all products are done.
                for r in 0..ROWS {
                    for half in 0..VECTORS {
                        s.prefetch(tile.out.at(tile.out_at + r * tile.out_stride, 0).wrapping_add(half * S::LANES));
                    }
                }
            }
            let (a_stride, b_stride) = (tile.a_stride, tile.b_stride);
            for _ in 0..tile.depth / UNROLLED {
                ahead.fetch(s);
                for i in 0..UNROLLED {
                    add_product(s, &mut sums, |r| *a.wrapping_add(i * a_stride).add(r), b.wrapping_add(i * b_stride));
                }
                a = a.wrapping_add(UNROLLED * a_stride);
                b = b.wrapping_add(UNROLLED * b_stride);
            }
            for i in 0..tile.depth % UNROLLED {
                add_product(s, &mut sums, |r| *a.wrapping_add(i * a_stride).add(r), b.wrapping_add(i * b_stride));
            }
        }
        if !whole {
            spilled.fill(s, &sums);
            return;
        }
        // SAFETY: the caller vouches for the output and the scale.
        unsafe {
            let at = |r: usize| tile.out_at + r * tile.out_stride;
            if tile.accumulate {
                add_rows(s, &mut sums, tile.out.as_source(), at);
            }
            if let Some((scale, channel)) = tile.scale {
                for half in 0..VECTORS {
                    let scale = scale.load(s, channel + half * S::LANES, S::LANES);
                    for r in 0..ROWS {
                        sums[r][half] = s.mul(sums[r][half], scale);
                    }
                }
            }
            store_rows(s, &sums, tile.out, at);
        }
    }
}

simd_fn! {
    /// # Safety
    /// As [`column_tile`], whose `sums` have as many rows.
    unsafe fn finish_column_tile<S>(s, rows: usize, tile: &ColumnTile, sums: &Spilled) {
        for r in 0..rows {
            for half in 0..2 {
                let first = half * S::LANES;
                let count = tile.columns.saturating_sub(first).min(S::LANES);
                if count == 0 {
                    continue;
                }
                // SAFETY: the caller vouches for the sums, the output and the scale.
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
