//! The weight gradient in Winograd's domain: `dg = Gᵀ dU G`, where at each point `dU = Σ_tiles V[tile]ᵀ D[tile]` of the
//! transformed inputs `V = Bᵀ d B` and gradients `D = A dY Aᵀ`.

use std::marker::PhantomData;
use std::ops::Range;

use super::filtering::Differentiable;
use super::transforms::{Tile, gradient_tile, input_tile, weight_gradient_rows};
use super::{MOST_TRANSFORMED, Points, Tiles, Tiling, whole_vectors};
use crate::conv::Conv2d;
use crate::gemm::{
    Ahead, ColumnTile, RowAddress, column_tile, columns_per_tile, even_ranges, in_parts, rows_per_tile,
};
use crate::memory::{Scratch, Source, Target, unwritten};
use crate::share;
use crate::simd::Isa;

/// Tiles up to which dU is made a tile of the inner kernel at a time, at all points: there are few products for each sum, which
/// would take longer to store and to read back. With more tiles, it is made point by point, which reads the transformed
/// input and gradient from nearer caches.
const TRANSFORMED_AT_ONCE: Tiles = Tiles(64);

/// Tiles transformed at a time: the fewer, the more channels they have, but all of those that are transformed at once. F(6×6) has
/// more sums to store and to read back, and so always many.
fn at_a_time<F: Differentiable>(conv: &Conv2d) -> usize {
    match F::WEIGHTS {
        8.. => 64,
        _ => Tiles((16384 / conv.in_channels).clamp(TRANSFORMED_AT_ONCE.0, 128)).count::<F>(),
    }
}

/// Parts of the tiles, each with a dU of its own, so that threads need not transform the same.
const PARTS: usize = 2;

/// Tiles of a part, at least: sums of another part take as long to read as the products of some thirteen.
const LEAST_PER_PART: Tiles = Tiles(96);

/// Whether the tiles are cut into parts: by the shape alone, because the sum depends on it. With more weights, the
/// sums of two parts would be too many for the caches.
fn in_parts_of_tiles<F: Differentiable>(conv: &Conv2d, tiles: usize) -> bool {
    let (fewer, more) = (conv.in_channels.min(conv.out_channels), conv.in_channels.max(conv.out_channels));
    // With few channels on one side, blocks of the other transform little twice.
    fewer * more <= 128 * 128 && more < 4 * fewer && tiles >= PARTS * LEAST_PER_PART.count::<F>()
}

/// # Safety
/// As [`super::forward`], for `dw`.
pub(in crate::conv) unsafe fn weight_gradient<F: Differentiable>(
    isa: Isa,
    conv: &Conv2d,
    x: &[f32],
    dz: &[f32],
    scale: Option<&[f32]>,
    dw: Target,
) {
    let tiling = Tiling::new::<F>(&conv.inputs, &conv.outputs, conv.window.padding);
    let tiles = tiling.tiles();
    let threads = rayon::current_num_threads();
    let gradient = Gradient::<F> { isa, conv, x: x.into(), dz: dz.into(), scale, dw, filtering: PhantomData };
    if !in_parts_of_tiles::<F>(conv, tiles.len()) {
        share::at_once(blocks::<F>(isa, conv, tiles.len(), 1), |block, threads| {
            // SAFETY: this block of dw is this job's alone; for the rest the caller vouches.
            unsafe { gradient.of_block(&tiles, &block, threads) };
        });
        return;
    }
    let blocks = blocks::<F>(isa, conv, tiles.len(), PARTS);
    // dU[part][point][C][K]
    let width = columns_per_tile(isa);
    let u_rows = Points::new(conv.in_channels, conv.out_channels.next_multiple_of(width));
    let per_part = u_rows.len(F::WEIGHTS * F::WEIGHTS);
    unwritten(PARTS * per_part, |u| {
        let parts = in_parts(tiles.len(), PARTS).enumerate();
        let of_parts = parts.flat_map(|part| blocks.iter().map(move |block| (part.clone(), block)));
        share::at_once(of_parts.collect(), |((part, range), block), threads| {
            let tiles = &tiles[range];
            let at = part * per_part + u_rows.at(0, block.inputs.start) + block.panels.start * width;
            // SAFETY: this block of the part's dU is this job's alone; for the rest the caller vouches.
            unsafe { gradient.point_by_point(tiles, block, threads, u, u_rows, at) };
        });
        // SAFETY: dU is complete.
        let u = unsafe { u.as_source() };
        share::at_once(in_parts(conv.in_channels, threads).collect(), |channels, _| {
            for channel in channels {
                let sums = Sums { u, at: u_rows.at(0, channel), per_point: u_rows.per_point, per_part };
                // SAFETY: dU has a row for each channel; the channel's of dw is this job's alone; for the rest the caller
                // vouches.
                unsafe { gradient.finish::<PARTS>(&sums, channel, 0..conv.out_channels) };
            }
        });
    });
}

/// Input channels and panels of output channels.
struct Block {
    inputs: Range<usize>,
    panels: Range<usize>,
}

/// As many blocks of dw as there are threads for them, in each of so many parts of the tiles. Of the side that has fewer channels
/// all is transformed anew for each of them; if they are as many, of x, as another core may just have written dz.
fn blocks<F: Differentiable>(isa: Isa, conv: &Conv2d, tiles: usize, parts: usize) -> Vec<Block> {
    let (panels, vectors) =
        (conv.out_channels.div_ceil(columns_per_tile(isa)), conv.in_channels.div_ceil(isa.lanes()));
    let at_a_time = tiles.min(at_a_time::<F>(conv));
    let fewer = conv.in_channels.min(conv.out_channels);
    let transformed = parts * F::POINTS * F::POINTS * at_a_time * fewer;
    let most = rayon::current_num_threads().div_ceil(parts).min(MOST_TRANSFORMED / transformed).max(1);
    let by_input = conv.in_channels > conv.out_channels;
    let (of_input, of_output) = if by_input { (most.min(vectors), 1) } else { (1, most.min(panels)) };
    let block = |vectors: Range<usize>| {
        let inputs = vectors.start * isa.lanes()..conv.in_channels.min(vectors.end * isa.lanes());
        in_parts(panels, of_output).map(move |panels| Block { inputs: inputs.clone(), panels })
    };
    in_parts(vectors, of_input).flat_map(block).collect()
}

/// What all shares have in common.
struct Gradient<'a, F> {
    isa: Isa,
    conv: &'a Conv2d,
    x: Source<'a>,
    dz: Source<'a>,
    scale: Option<&'a [f32]>,
    dw: Target<'a>,
    filtering: PhantomData<fn() -> F>,
}

/// Room for V and D of so many tiles, of the channels of a block: a row for each tile at every point.
struct Room {
    scratch: Scratch,
    tiles: usize,
    v_rows: Points,
    d_rows: Points,
}

/// V and D.
#[derive(Clone, Copy)]
struct Operands<'a> {
    v: Source<'a>,
    v_rows: Points,
    d: Source<'a>,
    d_rows: Points,
    tiles: usize,
    /// Columns of D.
    columns: usize,
}

/// Where a tile of the inner kernel goes in dU.
struct To<'a> {
    u: Target<'a>,
    at: usize,
    stride: usize,
    accumulate: bool,
    ahead: Ahead,
}

/// A row of dU at every point, in each of its parts.
struct Sums<'a> {
    u: Source<'a>,
    at: usize,
    per_point: usize,
    per_part: usize,
}

impl<F: Differentiable> Gradient<'_, F> {
    /// # Safety
    /// As [`weight_gradient`], for this block of `dw`.
    unsafe fn of_block(&self, tiles: &[Tile], block: &Block, threads: usize) {
        if tiles.len() <= TRANSFORMED_AT_ONCE.count::<F>() {
            // SAFETY: as the caller vouches.
            return unsafe { self.tile_by_tile(tiles, block, threads) };
        }
        let u_rows = Points::new(block.inputs.len(), block.panels.len() * columns_per_tile(self.isa));
        let mut sums = Scratch::take(u_rows.len(F::WEIGHTS * F::WEIGHTS));
        let u = Target::from(sums.floats());
        // SAFETY: dU has a row for each of the block's inputs; for the rest the caller vouches.
        unsafe { self.point_by_point(tiles, block, threads, u, u_rows, 0) };
        // SAFETY: dU is complete.
        let u = unsafe { u.as_source() };
        share::within(threads, 0..block.inputs.len(), |row| {
            let sums = Sums { u, at: u_rows.at(0, row), per_point: u_rows.per_point, per_part: 0 };
            // SAFETY: these columns of the channel's row of dw are this job's alone; for the rest the caller vouches.
            unsafe { self.finish::<1>(&sums, block.inputs.start + row, self.columns(block)) };
        });
    }

    /// Makes a tile of dU at all points, and transforms it back while it is in a near cache.
    ///
    /// # Safety
    /// As [`weight_gradient`], for this block of `dw`.
    unsafe fn tile_by_tile(&self, tiles: &[Tile], block: &Block, threads: usize) {
        let (width, columns) = (columns_per_tile(self.isa), self.columns(block));
        let mut room = self.room(tiles.len(), block);
        // SAFETY: there is room for all tiles; for the rest the caller vouches.
        let operands = unsafe { self.transform(tiles, block, threads, &mut room) };
        let rows = rows_per_tile(self.isa);
        let jobs = (0..block.panels.len()).flat_map(|panel| {
            even_ranges(block.inputs.len(), rows).map(move |channels| (panel * width, channels))
        });
        share::within(threads, jobs, |(panel_at, channels)| {
            let u_rows = Points::new(channels.len(), width);
            let mut sums = Scratch::take(u_rows.len(F::WEIGHTS * F::WEIGHTS));
            let u = Target::from(sums.floats());
            for weight in 0..F::WEIGHTS * F::WEIGHTS {
                for (i, point) in F::points_of(weight).enumerate() {
                    let (at, stride) = (u_rows.at(weight, 0), u_rows.stride);
                    let to = To { u, at, stride, accumulate: i > 0, ahead: Ahead::NOTHING };
                    // SAFETY: this tile of dU is this job's.
                    unsafe { self.multiply(operands, point, &channels, panel_at, to) };
                }
            }
            // SAFETY: this tile of dU is complete.
            let u = unsafe { u.as_source() };
            let first = columns.start + panel_at;
            for (row, channel) in channels.enumerate() {
                let sums = Sums { u, at: u_rows.at(0, row), per_point: u_rows.per_point, per_part: 0 };
                // SAFETY: these columns of the channel's row of dw are this job's alone; for the rest the caller vouches.
                unsafe {
                    self.finish::<1>(
                        &sums,
                        block.inputs.start + channel,
                        first..columns.end.min(first + width),
                    );
                }
            }
        });
    }

    /// Makes a block of dU, from `u_at` on: for some tiles after others, in order, so that each sum is the same for any number
    /// of threads.
    ///
    /// # Safety
    /// As [`weight_gradient`]; dU must have the block's rows and panels at each point, used by no other job.
    unsafe fn point_by_point(
        &self,
        tiles: &[Tile],
        block: &Block,
        threads: usize,
        u: Target,
        u_rows: Points,
        u_at: usize,
    ) {
        let (rows, width) = (rows_per_tile(self.isa), columns_per_tile(self.isa));
        let (depth, points) = (block.inputs.len(), F::POINTS * F::POINTS);
        let most = tiles.len().min(at_a_time::<F>(self.conv));
        let mut room = self.room(most, block);
        for some in even_ranges(tiles.len(), most) {
            let first = some.start == 0;
            // SAFETY: there is room for as many tiles; for the rest the caller vouches.
            let operands = unsafe { self.transform(&tiles[some], block, threads, &mut room) };
            share::within(threads, 0..F::WEIGHTS * F::WEIGHTS, |weight| {
                for (i, point) in F::points_of(weight).enumerate() {
                    let tiles_of_sums = block.panels.len() * depth.div_ceil(rows);
                    let next_rows = if point + 1 < points { 2 * operands.tiles } else { 0 };
                    let mut ahead = operands.ahead(point + 1, 0..next_rows, tiles_of_sums);
                    for panel_at in (0..block.panels.len()).map(|panel| panel * width) {
                        for channels in even_ranges(depth, rows) {
                            let at = u_at + u_rows.at(weight, channels.start) + panel_at;
                            let ahead = ahead.next().unwrap_or(Ahead::NOTHING);
                            let to = To { u, at, stride: u_rows.stride, accumulate: !first || i > 0, ahead };
                            // SAFETY: the point's sums are this job's alone, as the caller vouches.
                            unsafe { self.multiply(operands, point, &channels, panel_at, to) };
                        }
                    }
                }
            });
        }
    }

    /// The output channels of a block.
    fn columns(&self, block: &Block) -> Range<usize> {
        let width = columns_per_tile(self.isa);
        block.panels.start * width..self.conv.out_channels.min(block.panels.end * width)
    }

    fn room(&self, tiles: usize, block: &Block) -> Room {
        let v_rows = Points::new(tiles, block.inputs.len().next_multiple_of(self.isa.lanes()) + 16);
        let d_rows = Points::new(tiles, block.panels.len() * columns_per_tile(self.isa) + 16);
        let points = F::POINTS * F::POINTS;
        Room { scratch: Scratch::take(v_rows.len(points) + d_rows.len(points)), tiles, v_rows, d_rows }
    }

    /// # Safety
    /// As [`weight_gradient`]; there must be room for as many tiles, of this block.
    unsafe fn transform<'r>(
        &self,
        tiles: &[Tile],
        block: &Block,
        threads: usize,
        room: &'r mut Room,
    ) -> Operands<'r> {
        let &Self { isa, conv, x, dz, .. } = self;
        let columns = self.columns(block);
        let zeros = vec![0.0; block.inputs.len().max(columns.len())];
        let zeros = Source::from(&*zeros);
        let Room { ref mut scratch, tiles: most, v_rows, d_rows } = *room;
        assert!(tiles.len() <= most);
        let (v, d) = scratch.floats().split_at_mut(v_rows.len(F::POINTS * F::POINTS));
        let (v, d) = (Target::from(v), Target::from(d));
        share::within(threads, tiles.iter().enumerate(), |(t, tile)| {
            let (inputs, columns) = (block.inputs.clone(), columns.clone());
            let (v_at, d_at) = (v_rows.at(0, t), d_rows.at(0, t));
            // SAFETY: V and D have a row per tile at each point; this tile's are this job's alone; the caller vouches for
            // x and dz.
            unsafe {
                input_tile::<F>(isa, x, inputs, conv.in_channels, zeros, tile, v, v_at, v_rows.per_point);
                gradient_tile::<F>(
                    isa,
                    dz,
                    columns,
                    conv.out_channels,
                    zeros,
                    tile,
                    d,
                    d_at,
                    d_rows.per_point,
                );
            }
        });
        // SAFETY: V and D are complete, and are borrowed as long as these are used.
        let (v, d) = unsafe { (v.as_source(), d.as_source()) };
        Operands { v, v_rows, d, d_rows, tiles: tiles.len(), columns: columns.len() }
    }

    /// `dU (+)= Vᵀ D` at a point, of some of the block's input channels and the panel of its columns that starts at `panel_at`.
    ///
    /// # Safety
    /// No other job may use the sums.
    unsafe fn multiply(
        &self,
        operands: Operands,
        point: usize,
        channels: &Range<usize>,
        panel_at: usize,
        to: To,
    ) {
        let Operands { v, v_rows, d, d_rows, tiles, columns } = operands;
        let tile = ColumnTile {
            a: v,
            a_at: v_rows.at(point, 0) + channels.start,
            a_stride: v_rows.stride,
            b: d,
            b_at: d_rows.at(point, 0) + panel_at,
            b_stride: d_rows.stride,
            depth: tiles,
            ahead: to.ahead,
            out: to.u,
            out_at: to.at,
            out_stride: to.stride,
            columns: whole_vectors(self.isa, columns, panel_at / columns_per_tile(self.isa)),
            accumulate: to.accumulate,
            scale: None,
        };
        // SAFETY: V and D have a row for each of the tiles; the caller vouches for the sums.
        unsafe { column_tile(self.isa, channels.len(), &tile) };
    }

    /// Transforms a row of dU, the sum of its parts, back to these columns of an input channel's.
    ///
    /// # Safety
    /// dU must be complete and have the row; no other job may use these columns of the channel's row of each tap of `dw`.
    unsafe fn finish<const N_PARTS: usize>(&self, sums: &Sums, channel: usize, columns: Range<usize>) {
        let &Self { isa, conv, scale, dw, .. } = self;
        let &Sums { u, at, per_point, per_part } = sums;
        let scale = scale.map(|scale| Source::from(&scale[columns.clone()]));
        let (to, per_tap) =
            (channel * conv.out_channels + columns.start, conv.in_channels * conv.out_channels);
        // SAFETY: as the caller vouches.
        unsafe {
            weight_gradient_rows::<F, N_PARTS>(
                isa,
                u,
                per_part,
                at,
                per_point,
                columns.len(),
                scale,
                dw,
                to,
                per_tap,
            );
        }
    }
}

impl Operands<'_> {
    /// What as many tiles of sums fetch ahead, of the rows at a point: those of V and then those of D.
    fn ahead(self, point: usize, rows: Range<usize>, tiles_of_sums: usize) -> impl Iterator<Item = Ahead> {
        let Self { v, v_rows, d, d_rows, tiles, .. } = self;
        let row = move |i: usize| {
            let t = i % tiles;
            let (from, at) = if i == t { (v, v_rows.at(point, t)) } else { (d, d_rows.at(point, t)) };
            // SAFETY: both have a row per tile at each point.
            RowAddress(unsafe { from.at(at, 1) })
        };
        Ahead::shared_out(rows, row, v_rows.stride.max(d_rows.stride), tiles_of_sums, tiles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv::winograd::Four;
    use crate::shape::{Grid, Window};

    #[test]
    fn parts_are_of_many_tiles_and_few_weights() {
        let in_parts = |size, channels| {
            let grid = Grid::new(4, size, size);
            let conv = Conv2d::new(vec![grid], channels, channels, Window::new(3, 1, 1)).expect("shapes fit");
            in_parts_of_tiles::<Four>(&conv, 4 * (size / 4) * (size / 4))
        };
        assert!(in_parts(64, 64) && in_parts(32, 128) && !in_parts(32, 256) && !in_parts(16, 128));
    }
}
