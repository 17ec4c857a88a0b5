//! The weight gradient by the definition: `dw[tap] = Σ_pixels x[pixel + tap]ᵀ · dz[pixel]`.

use std::ops::Range;

use rayon::prelude::*;

use super::lattice::{Lattice, Rows, next_positions, rows_of_input};
use crate::conv::Conv2d;
use crate::gemm::{
    Ahead, ColumnTile, RowAddress, column_tile, columns_per_tile, even_ranges, in_parts, rows_per_tile,
};
use crate::memory::{Scratch, Source, Target, load_up_to};
use crate::simd::{Isa, simd_fn};

/// Pixels whose gradients are packed at a time.
const PIXELS_AT_A_TIME: usize = 192;

/// As many, if that is all of them: then the weight gradient is written once and not read back.
const ALL_PIXELS_AT_A_TIME: usize = 256;

/// Channels beyond which the rows of a block are packed: they are so far apart that caches have too few places for a line of
/// each, and the narrower the tiles, the more often it is read. 1024 with AVX-512, 256 with AVX2.
fn most_channels_in_place(isa: Isa) -> usize {
    4 * isa.lanes() * isa.lanes()
}

/// A weight gradient of at most this many elements is summed in parts, by pixels; a larger one is
/// shared out by rows.
const SPLIT_PIXELS_BELOW: usize = 1 << 16;

/// # Safety
/// All tensors must have the shapes that `conv` gives them, and no other job may use `dw`; there must be a pixel of output.
pub(in crate::conv) unsafe fn weight_gradient(
    isa: Isa,
    conv: &Conv2d,
    x: &[f32],
    dz: &[f32],
    scale: Option<&[f32]>,
    dw: Target,
) {
    let mut padded = None;
    let (lattices, rows) = rows_of_input(conv, x, &mut padded);
    let dz = Source::from(dz);
    let columns = conv.out_channels;
    let pixels = crate::conv::pixels(&conv.outputs);
    let n_rows = lattices[0].taps.len() * rows.depth;
    let scale = scale.map(Source::from);
    let plain = conv.window.kernel == 1 && conv.window.stride == 1 && conv.window.padding == 0;
    let product = OuterProduct { isa, lattices: &lattices, rows, plain, dz, columns };

    let parts = (pixels / 512).min(16);
    if parts >= 4 && n_rows * columns <= SPLIT_PIXELS_BELOW {
        // Parts depend on the shape alone, and are added in order: the sum does not depend on the
        // number of threads.
        let len = n_rows * columns;
        let mut partial = Scratch::take(parts * len);
        let partial = &mut partial.floats()[..parts * len];
        let groups = row_groups(isa, lattices[0].taps.len(), rows.depth);
        let ranges: Vec<_> = in_parts(pixels, parts).collect();
        partial.par_chunks_exact_mut(len).zip(ranges).for_each(|(sum, range)| {
            // SAFETY: the part's sum has a row for each of the groups; for x and dz the caller vouches.
            unsafe { product.add(range, &groups, None, sum.into()) };
        });
        let partial = Source::from(&*partial);
        (0..n_rows).into_par_iter().with_min_len(16).for_each(|row| {
            // SAFETY: both `partial` and `dw` have `columns` floats per row; the row is this job's.
            unsafe { sum_parts(isa, partial, parts, len, row * columns, columns, scale, dw) };
        });
    } else {
        let groups = row_groups(isa, lattices[0].taps.len(), rows.depth);
        let share = groups.len().div_ceil(rayon::current_num_threads());
        groups.par_chunks(share).for_each(|groups| {
            // SAFETY: these rows of dw are this job's alone; for all tensors the caller vouches.
            unsafe { product.add(0..pixels, groups, scale, dw) };
        });
    }
}

/// Rows of the weight gradient that one tile computes: channels `first..first + rows` of one tap.
#[derive(Clone, Copy)]
struct RowGroup {
    tap: usize,
    first: usize,
    rows: usize,
}

fn row_groups(isa: Isa, taps: usize, depth: usize) -> Vec<RowGroup> {
    (0..taps)
        .flat_map(|tap| {
            even_ranges(depth, rows_per_tile(isa)).map(move |channels| RowGroup {
                tap,
                first: channels.start,
                rows: channels.len(),
            })
        })
        .collect()
}

/// The operands of `dw`.
struct OuterProduct<'a> {
    isa: Isa,
    lattices: &'a [Lattice],
    rows: Rows<'a>,
    /// Whether an output pixel sees the input pixel of the same number, and no other (1×1, stride 1).
    plain: bool,
    dz: Source<'a>,
    columns: usize,
}

/// Rows `stride` apart, from `at` on, of an operand of the inner kernel.
#[derive(Clone, Copy)]
struct Operand<'a> {
    floats: Source<'a>,
    at: usize,
    stride: usize,
}

impl OuterProduct<'_> {
    /// `out[tap, c] = scale · Σ_{p in pixels} x[p + tap][c] · dz[p]` for the rows of `groups`; `out` is
    /// `[taps · depth, columns]`. Operands are packed unless their rows lie evenly and near to one another.
    ///
    /// # Safety
    /// `rows` must hold every pixel of the lattices' sources, `dz` `columns` floats for each of `pixels`,
    /// `scale` as many; `out` must have the rows of `groups`, used by no other job.
    unsafe fn add(&self, pixels: Range<usize>, groups: &[RowGroup], scale: Option<Source>, out: Target) {
        let &Self { isa, lattices, rows, plain, dz, columns } = self;
        let width = columns_per_tile(isa);
        let panels = columns.div_ceil(width);
        // A panel takes two lines of each pixel; in place there is nothing behind the last channel to fill up a vector with.
        let gradients_in_place =
            columns.is_multiple_of(isa.lanes()) && 2 * columns <= most_channels_in_place(isa);
        let channels_in_place = plain && rows.depth <= most_channels_in_place(isa);
        let most = if pixels.len() <= ALL_PIXELS_AT_A_TIME { ALL_PIXELS_AT_A_TIME } else { PIXELS_AT_A_TIME };
        let mut gradients = Scratch::take(if gradients_in_place { 0 } else { panels * most * width });
        // Rows of whole vectors, which are stored faster than parts of them.
        let channels_stride = rows_per_tile(isa).next_multiple_of(isa.lanes());
        let mut channels = Scratch::take(if channels_in_place { 0 } else { most * channels_stride });
        let zeros = vec![0.0; rows.depth];
        let zero = RowAddress(zeros.as_ptr());
        let n_taps = lattices[0].taps.len();
        let mut addresses = vec![zero; if channels_in_place { 0 } else { n_taps * most }];

        let blocks = lattices.iter().flat_map(|lattice| {
            let first = lattice.out.first;
            let grid = first..first + lattice.positions.pixels();
            let wanted = pixels.start.max(grid.start)..pixels.end.min(grid.end);
            even_ranges(wanted.len(), most)
                .map(move |block| (lattice, wanted.start + block.start..wanted.start + block.end))
        });
        let blocks: Vec<_> = blocks.collect();
        let mut add = |out: Target| {
            for (i, (lattice, block)) in blocks.iter().enumerate() {
                let depth = block.len();
                let positions = block.start - lattice.out.first..block.end - lattice.out.first;
                if !gradients_in_place {
                    // SAFETY: `dz` has these pixels, as the caller vouches.
                    unsafe { pack_gradients(isa, dz, block.clone(), columns, gradients.floats()) };
                }
                if !channels_in_place {
                    addresses.fill(zero);
                    lattice.sources(positions.clone(), |row, tap, pixel| {
                        addresses[tap * most + row] = rows.address(pixel);
                    });
                }
                let packed = Source::from(&*gradients.floats());
                let gradients = |panel: usize| {
                    if gradients_in_place {
                        Operand { floats: dz, at: block.start * columns + panel * width, stride: columns }
                    } else {
                        Operand { floats: packed, at: panel * depth * width, stride: width }
                    }
                };
                // Each operand is fetched ahead by a share of the tiles that is like its share of the floats.
                let tiles = groups.len() * panels;
                let tiles_for_x = (tiles * rows.depth).div_ceil(rows.depth + columns);
                let tiles_for_dz = (tiles - tiles_for_x).max(1);
                let next = next_positions(lattice, positions);
                let next_gradients = block.end..pixels.end.min(block.end + depth);
                let row = |position| rows.near(lattice, position);
                // SAFETY: `dz` has these pixels, as the caller vouches.
                let gradient = |pixel| RowAddress(unsafe { dz.at(pixel * columns, columns) });
                let mut ahead = Ahead::shared_out(next, row, rows.depth, tiles_for_x, depth)
                    .chain(Ahead::shared_out(next_gradients, gradient, columns, tiles_for_dz, depth));
                for group in groups {
                    let a = if channels_in_place {
                        let at = block.start * rows.depth + group.first;
                        Operand { floats: rows.floats, at, stride: rows.depth }
                    } else {
                        let from = &addresses[group.tap * most..][..depth];
                        let wanted = group.first..group.first + group.rows;
                        // SAFETY: each address has `rows.depth` readable floats, which the group is within.
                        unsafe {
                            pack_channels(isa, from, rows.depth, wanted, channels.floats(), channels_stride);
                        }
                        Operand { floats: (&*channels.floats()).into(), at: 0, stride: channels_stride }
                    };
                    for panel in 0..panels {
                        let b = gradients(panel);
                        let tile = ColumnTile {
                            a: a.floats,
                            a_at: a.at,
                            a_stride: a.stride,
                            b: b.floats,
                            b_at: b.at,
                            b_stride: b.stride,
                            depth,
                            ahead: ahead.next().unwrap_or(Ahead::NOTHING),
                            out,
                            out_at: (group.tap * rows.depth + group.first) * columns + panel * width,
                            out_stride: columns,
                            columns: width.min(columns - panel * width),
                            accumulate: i > 0,
                            scale: scale
                                .filter(|_| i + 1 == blocks.len())
                                .map(|scale| (scale, panel * width)),
                        };
                        // SAFETY: both operands have these rows, in place as much as packed: of `dz` only if its columns
                        // are whole vectors. The group's rows are this job's alone, and in `out`, as the caller vouches.
                        unsafe { column_tile(isa, group.rows, &tile) };
                    }
                }
            }
        };
        if blocks.len() == 1 { out.streamed(isa, add) } else { add(out) }
    }
}

simd_fn! {
    /// `to[i] = scale[i − first] · Σ_part partial[part][i]` for the `count` values from `first` on.
    ///
    /// # Safety
    /// They must be within `to` and within each of the parts of `len` floats, `scale` must have `count`
    /// floats, and no other job may use these of `to`.
    unsafe fn sum_parts<S>(
        s,
        partial: Source,
        parts: usize,
        len: usize,
        first: usize,
        count: usize,
        scale: Option<Source>,
        to: Target,
    ) {
        for at in (0..count).step_by(S::LANES) {
            let lanes = S::LANES.min(count - at);
            // SAFETY: as the caller vouches.
            unsafe {
                let mut sum = s.zero();
                for part in 0..parts {
                    sum = s.add(sum, partial.load(s, part * len + first + at, lanes));
                }
                if let Some(scale) = scale {
                    sum = s.mul(sum, scale.load(s, at, lanes));
                }
                to.store(s, first + at, sum, lanes);
            }
        }
    }
}

simd_fn! {
    /// `to[panel][p] = dz[p][panel]`, the last panel filled up with zeros.
    ///
    /// # Safety
    /// `dz` must have `columns` floats for each of `pixels`.
    unsafe fn pack_gradients<S>(s, dz: Source, pixels: Range<usize>, columns: usize, to: &mut [f32]) {
        let width = 2 * S::LANES;
        for (panel, to) in to.chunks_exact_mut(pixels.len() * width).enumerate().take(columns.div_ceil(width)) {
            let first = panel * width;
            for (pixel, to) in pixels.clone().zip(to.chunks_exact_mut(width)) {
                for (half, to) in to.chunks_exact_mut(S::LANES).enumerate() {
                    let channel = first + half * S::LANES;
                    let count = columns.saturating_sub(channel).min(S::LANES);
                    // SAFETY: `count` channels from `channel` on are inside the pixel; `to` is a
                    // whole vector.
                    unsafe {
                        let v = dz.load(s, pixel * columns + channel.min(columns), count);
                        s.store(to.as_mut_ptr(), v);
                    }
                }
            }
        }
    }
}

simd_fn! {
    /// `to[p][c] = from[p][wanted.start + c]`, with others up to a whole vector.
    ///
    /// # Safety
    /// `depth` floats must be readable at each address, `wanted` be among them.
    unsafe fn pack_channels<S>(
        s,
        from: &[RowAddress],
        depth: usize,
        wanted: Range<usize>,
        to: &mut [f32],
        stride: usize,
    ) {
        assert!(wanted.len() <= stride && stride.is_multiple_of(S::LANES) && to.len() >= from.len() * stride);
        for first in wanted.clone().step_by(S::LANES) {
            let count = S::LANES.min(depth - first);
            let to = to.as_mut_ptr().wrapping_add(first - wanted.start);
            for (p, address) in from.iter().enumerate() {
                // SAFETY: the caller vouches for the address; `to` has a whole vector at each multiple of `stride`.
                unsafe { s.store(to.add(p * stride), load_up_to(s, address.0.add(first), count)) };
            }
        }
    }
}
