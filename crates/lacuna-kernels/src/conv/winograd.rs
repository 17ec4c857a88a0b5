//! Winograd's minimal filtering for 3×3 windows of stride 1 or 2.
//!
//! With tiles of `m × m` outputs and `p × p` points, `Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A` for the
//! input tile `d` and the window `g` (Lavin & Gray 2015). The product `⊙` summed over channels is,
//! for each of the points, one matrix product `[tiles, C] × [C, K]`. The gradients are
//! the adjoints: `dd = B [(G g Gᵀ) ⊙ (A dY Aᵀ)] Bᵀ`, computed as a forward pass with the window
//! turned and transposed, and `dg = Gᵀ [(Bᵀ d B) ⊙ (A dY Aᵀ)] G`.
//!
//! Tiles and points of stride 1 are those of F(6×6), F(4×4) and F(2×2). Of stride 2 every second row and column of pixels
//! sees just the middle of the window, and the others make a convolution of stride 1 with 2×2 weights: 4×4 outputs take 25
//! products of F(4×4, 2×2), 20 twice of F(4, 2) in one direction, and 16 with the weight in the middle. [`Filtering`] has
//! the matrices.
//! [`Conv2d::algorithm`] states the bound of the rounding error, `tests/winograd_error.rs` holds it.

mod filtering;
mod tiling;
mod transforms;
mod weight_gradient;

use std::ops::Range;

use self::filtering::Filtering;
pub(super) use self::filtering::{Doubling, Four, Halving, Six, Two};
use self::tiling::Tiling;
pub(super) use self::tiling::n_tiles;
use self::transforms::{TapRows, Tile, input_tile, output_tiles, weight_rows};
pub(super) use self::weight_gradient::weight_gradient;
use super::Conv2d;
use super::weights::{Direction, Weights};
use crate::gemm::{
    Ahead, Finish, MAX_ROWS, RowAddress, RowTile, columns_per_tile, even_ranges, in_parts, row_tile,
    rows_per_tile,
};
use crate::memory::{Scratch, Source, Target};
use crate::share;
use crate::simd::Isa;

/// Tiles below which the work is shared out by output channels, not by tiles: then each job
/// transforms just the weights it needs, which never leave the cache.
const BY_PANELS_BELOW: Tiles = Tiles(96);

/// Floats of transformed weights a job keeps at a time when shared out by output channels.
const WEIGHT_CHUNK: usize = 150_000;

/// Tiles in a block when shared out by tiles: three of the inner kernel's tiles of twelve rows for each
/// reading of the transformed weights (two of ten with F(6×6) and few channels), and few enough that a block's
/// transformed input stays in the second-level cache (1.3 MB at 256 channels) until all output channels are made of it.
const PER_BLOCK: Tiles = Tiles(36);

const LEAST_PER_BLOCK: Tiles = Tiles(24);

/// Output channels that a share of tiles makes, at most: their transformed weights (at 256 channels 4.7 MB, 8.4 of F(6×6))
/// are read by every block of tiles, and transforming the input anew for others costs less than reading weights from far
/// away.
const COLUMNS_AT_A_TIME: usize = 128;

/// Tiles that a share has at least, for which it transforms the weights: that takes as long as the products of some seven.
const LEAST_PER_SHARE: Tiles = Tiles(32);

/// Floats that all shares together keep transformed (32 MiB), as much as a cache that threads share may hold.
const MOST_TRANSFORMED: usize = 8 << 20;

/// A number of tiles of F(4×4), of 36 points. Others are as many as have as many points.
#[derive(Clone, Copy)]
struct Tiles(usize);

impl Tiles {
    fn count<F: Filtering>(self) -> usize {
        self.0 * 36 / (F::POINTS * F::POINTS)
    }
}

/// How many blocks `tiles` are cut into: as many for each thread, unless that made them too small.
fn blocks<F: Filtering>(tiles: usize, depth: usize, threads: usize) -> usize {
    let per_block = |tiles: Tiles| if weights_weigh_more::<F>(depth) { tiles.0 } else { tiles.count::<F>() };
    let (most, least) = (per_block(PER_BLOCK), per_block(LEAST_PER_BLOCK));
    tiles.div_ceil(most).next_multiple_of(threads).min(tiles.div_ceil(least))
}

/// Whether reading the transformed weights for every block takes longer than reading a block's transformed input from a farther
/// cache: with F(6×6), which has the most of them, and many channels.
fn weights_weigh_more<F: Filtering>(depth: usize) -> bool {
    F::WEIGHTS > 6 && depth > 128
}

/// Matrices, one per point. Points and rows are an odd number of cache lines apart, so that they do not
/// fall into the same cache sets.
#[derive(Clone, Copy)]
struct Points {
    stride: usize,
    per_point: usize,
}

fn odd_lines(floats: usize) -> usize {
    (floats.div_ceil(16) | 1) * 16
}

impl Points {
    /// `[points][rows][stride]`
    fn new(rows: usize, stride: usize) -> Self {
        Self { stride, per_point: odd_lines(rows * stride) }
    }

    /// `[rows][points][columns]`: all points of a row side by side, so that transforming one touches few
    /// pages.
    fn by_rows(points: usize, columns: usize) -> Self {
        let per_point = odd_lines(columns);
        Self { stride: odd_lines(points * per_point), per_point }
    }

    fn at(self, point: usize, row: usize) -> usize {
        point * self.per_point + row * self.stride
    }

    fn len(self, points: usize) -> usize {
        points * self.per_point
    }
}

/// # Safety
/// All tensors must have the shapes that `conv` gives them, `finish` must cover `y`, and no other job may
/// use `y`.
pub(super) unsafe fn forward<F: Filtering>(
    isa: Isa,
    conv: &Conv2d,
    x: &[f32],
    w: &[f32],
    scale: Option<&[f32]>,
    finish: Finish,
    y: Target,
) {
    let tiling = Tiling::new::<F>(&conv.inputs, &conv.outputs, conv.window.padding);
    let tiles = tiling.tiles();
    let weights = Weights {
        w,
        scale,
        in_channels: conv.in_channels,
        out_channels: conv.out_channels,
        direction: Direction::Forward,
    };
    // SAFETY: the tiles are those of x and y; for their lengths the caller vouches.
    unsafe { convolve::<F>(isa, &tiles, x, &weights, finish, y) };
}

/// # Safety
/// As [`forward`], for `dx`.
pub(super) unsafe fn input_gradient<F: Filtering>(
    isa: Isa,
    conv: &Conv2d,
    dz: &[f32],
    w: &[f32],
    scale: Option<&[f32]>,
    dx: Target,
) {
    // Of stride 1, the gradient of a convolution with padding p is a convolution with padding 2 − p. Of stride 2 and with padding 1,
    // the first input depends on the first output alone.
    let padding = 3 - conv.window.stride - conv.window.padding;
    let tiling = Tiling::new::<F>(&conv.outputs, &conv.inputs, padding);
    let tiles = tiling.tiles();
    let weights = Weights {
        w,
        scale,
        in_channels: conv.in_channels,
        out_channels: conv.out_channels,
        direction: Direction::Backward,
    };
    // SAFETY: the tiles are those of dz and dx; for their lengths the caller vouches.
    unsafe { convolve::<F>(isa, &tiles, dz, &weights, Finish::default(), dx) };
}

/// Convolves `x` with the window (forward), or with the window turned by 180° and transposed
/// (backward).
///
/// # Safety
/// `x` and `y` must have a float per channel of `weights` and pixel of the tiles' inputs and outputs,
/// `finish` must cover `y`, and no other job may use `y`.
unsafe fn convolve<F: Filtering>(
    isa: Isa,
    tiles: &[Tile],
    x: &[f32],
    weights: &Weights,
    finish: Finish,
    y: Target,
) {
    let few = tiles.len() < BY_PANELS_BELOW.count::<F>();
    let panels = weights.panels(isa);
    let size = Size { depth: weights.depth(), width: columns_per_tile(isa) };
    let (groups, parts) = cuts::<F>(size, panels, tiles.len(), few, rayon::current_num_threads());
    let share = |panels: Range<usize>| in_parts(tiles.len(), parts).map(move |tiles| (panels.clone(), tiles));
    let shares = in_parts(panels, groups).flat_map(share).collect();
    share::at_once(shares, |(panels, range): (Range<usize>, Range<usize>), threads| {
        let tiles = &tiles[range];
        // SAFETY: as the caller vouches; these panels of these tiles are this job's alone.
        unsafe {
            if few {
                convolve_by_panels::<F>(isa, tiles, x, weights, panels, threads, finish, y);
            } else {
                convolve_by_tiles::<F>(isa, tiles, x, weights, panels, threads, finish, y);
            }
        }
    });
}

/// What a panel of weights has at each point.
#[derive(Clone, Copy)]
struct Size {
    depth: usize,
    width: usize,
}

/// How many shares of output channels there are, and how many of tiles.
fn cuts<F: Filtering>(size: Size, panels: usize, tiles: usize, few: bool, threads: usize) -> (usize, usize) {
    let Size { depth, width } = size;
    if tiles == 0 {
        return (0, 0);
    }
    if few {
        // Each transforms all tiles: as long as the products of a third of a panel take, and less than waiting for others.
        let most = (MOST_TRANSFORMED / (F::POINTS * F::POINTS * tiles * depth)).max(1);
        return (threads.min(panels).min(most), 1);
    }
    let panel_floats = F::WEIGHTS * F::WEIGHTS * depth * width;
    let at_a_time = (MOST_TRANSFORMED / (threads * panel_floats)).clamp(1, COLUMNS_AT_A_TIME / width);
    let groups = panels.div_ceil(at_a_time);
    if groups >= threads {
        return (groups.next_multiple_of(threads).min(panels), 1);
    }
    let most = (tiles / LEAST_PER_SHARE.count::<F>()).min(MOST_TRANSFORMED / (panels * panel_floats)).max(1);
    (groups, threads.div_ceil(groups).min(most))
}

/// Transforms rows of a panel of weights to as many rows of each point of U, from `to` on.
///
/// # Safety
/// U must have these rows at each point, `per_point` apart, used by no other job.
unsafe fn transform_weights<F: Filtering>(
    isa: Isa,
    weights: &Weights,
    panel: usize,
    rows: Range<usize>,
    u: Target,
    to: usize,
    per_point: usize,
) {
    let width = columns_per_tile(isa);
    let columns = panel * width..weights.columns().min((panel + 1) * width);
    match weights.direction {
        Direction::Forward => {
            let taps = TapRows {
                floats: weights.w.into(),
                at: rows.start * weights.out_channels + columns.start,
                stride: weights.out_channels,
                per_tap: weights.in_channels * weights.out_channels,
                columns: columns.len(),
                scale: weights.scale.map(|scale| scale[columns].into()),
            };
            // SAFETY: the weights have these rows of each tap; the caller vouches for U.
            unsafe { weight_rows::<F>(isa, taps, rows.len(), u, to, per_point) };
        }
        Direction::Backward => {
            let mut packed = Scratch::take(9 * rows.len() * width);
            let packed = &mut packed.floats()[..9 * rows.len() * width];
            // The taps of the window turned by 180°.
            weights.pack(isa, panel, (0..9).map(|tap| 8 - tap), rows.clone(), packed);
            let per_tap = rows.len() * width;
            let floats = Source::from(&*packed);
            let taps = TapRows { floats, at: 0, stride: width, per_tap, columns: columns.len(), scale: None };
            // SAFETY: as many rows were packed; the caller vouches for U.
            unsafe { weight_rows::<F>(isa, taps, rows.len(), u, to, per_point) };
        }
    }
}

/// By so many threads.
///
/// # Safety
/// As [`convolve`], for these panels.
#[allow(clippy::too_many_arguments)]
unsafe fn convolve_by_tiles<F: Filtering>(
    isa: Isa,
    tiles: &[Tile],
    x: &[f32],
    weights: &Weights,
    panels: Range<usize>,
    threads: usize,
    finish: Finish,
    y: Target,
) {
    let (depth, columns, width) = (weights.depth(), weights.columns(), columns_per_tile(isa));
    let (points, weight_points) = (F::POINTS * F::POINTS, F::WEIGHTS * F::WEIGHTS);
    let x = Source::from(x);
    let zeros = vec![0.0; depth];
    let zeros = Source::from(&*zeros);

    // U[panel][point][C][2 · LANES], in the order in which it is read.
    let u_rows = Points::new(depth, width);
    let panel_floats = u_rows.len(weight_points);
    let mut transformed = Scratch::take(panels.len() * panel_floats);
    let u = Target::from(transformed.floats());
    let most = tiles.len().div_ceil(blocks::<F>(tiles.len(), depth, threads));
    let u_at = |panel: usize| (panel - panels.start) * panel_floats;
    let chunks = even_ranges(depth, 64);
    let jobs = chunks.flat_map(|rows| panels.clone().map(move |panel| (panel, rows.clone())));
    share::within(threads, jobs, |(panel, rows)| {
        let to = u_at(panel) + u_rows.at(0, rows.start);
        // SAFETY: the rows of this panel lie within each point's matrix and are this job's alone.
        unsafe { transform_weights::<F>(isa, weights, panel, rows, u, to, u_rows.per_point) };
    });
    // SAFETY: every row of these panels was written above, and is not written to until they are used.
    let u = unsafe { u.as_source() };

    share::within(threads, even_ranges(tiles.len(), most), |block| {
        let next = &tiles[block.end..tiles.len().min(block.end + block.len())];
        let tiles = &tiles[block];
        let v_rows = Points::by_rows(points, depth.next_multiple_of(isa.lanes()));
        let m_rows = Points::new(tiles.len(), width);
        let v_floats = tiles.len() * v_rows.stride;
        let mut scratch = Scratch::take(v_floats + m_rows.len(points));
        let (v, m) = scratch.floats().split_at_mut(v_floats);
        let (v, m) = (Target::from(v), Target::from(m));
        for (t, tile) in tiles.iter().enumerate() {
            let to = v_rows.at(0, t);
            // SAFETY: V has a row per tile at each point, and is this job's; the caller vouches for x.
            unsafe { input_tile::<F>(isa, x, 0..depth, depth, zeros, tile, v, to, v_rows.per_point) };
        }
        // SAFETY: V is complete.
        let groups = unsafe { groups(isa, v.as_source(), v_rows, m_rows, tiles.len()) };
        let rows = next.iter().flat_map(|tile| (0..F::STEP).filter_map(|row| tile.input_pixel(row + 1, 1)));
        // SAFETY: the pixel is inside the input, for which the caller vouches.
        let ahead = rows.map(|pixel| RowAddress(unsafe { x.at(pixel * depth, depth) }));
        let mut ahead = ahead.map(|from| Ahead::new(from, F::STEP * depth, depth));
        for panel in panels.clone() {
            for weight in 0..weight_points {
                let of_weight =
                    F::points_of(weight).flat_map(|point| groups.iter().map(move |group| (point, group)));
                for (i, (point, group)) in of_weight.enumerate() {
                    // SAFETY: U and V are complete, and M has a row per tile.
                    unsafe {
                        group.multiply(
                            isa,
                            (v_rows.at(point, 0), depth),
                            (u, u_at(panel) + u_rows.at(weight, 0), whole_vectors(isa, columns, panel)),
                            (m, m_rows.at(point, 0)),
                            false,
                            i > 0,
                            ahead.next().unwrap_or(Ahead::NOTHING),
                        );
                    }
                }
            }
            // SAFETY: M is complete; this panel of the tiles' outputs is this job's alone; the caller
            // vouches for y and `finish`.
            unsafe {
                finish_panel::<F>(isa, m.as_source(), m_rows, panel, columns, tiles, finish, y);
            }
        }
    });
}

/// Transforms a panel of M to the outputs of all tiles.
///
/// # Safety
/// M must have a row for each of the tiles at each point; `y` must have `columns` floats per pixel of the tiles' outputs,
/// `finish` must cover it, and no other job may use this panel of them.
#[allow(clippy::too_many_arguments)]
unsafe fn finish_panel<F: Filtering>(
    isa: Isa,
    m: Source,
    m_rows: Points,
    panel: usize,
    columns: usize,
    tiles: &[Tile],
    finish: Finish,
    y: Target,
) {
    let width = columns_per_tile(isa);
    let channels = panel * width..columns.min((panel + 1) * width);
    let Points { stride, per_point } = m_rows;
    // SAFETY: as the caller vouches.
    y.streamed(isa, |y| unsafe {
        output_tiles::<F>(isa, m, stride, per_point, channels, columns, tiles, finish, y);
    });
}

/// How many of `columns` are in a panel, rounded up to whole vectors.
fn whole_vectors(isa: Isa, columns: usize, panel: usize) -> usize {
    let width = columns_per_tile(isa);
    width.min(columns - panel * width).next_multiple_of(isa.lanes())
}

/// Tiles that the inner kernel multiplies at once: where their rows of V and M are at the first point.
struct Group {
    tiles: usize,
    v: [RowAddress; MAX_ROWS],
    m: [usize; MAX_ROWS],
}

/// # Safety
/// V must have a row per tile.
unsafe fn groups(isa: Isa, v: Source, v_rows: Points, m_rows: Points, tiles: usize) -> Vec<Group> {
    let group = |tiles: Range<usize>| {
        let mut group =
            Group { tiles: tiles.len(), v: [RowAddress(std::ptr::null()); MAX_ROWS], m: [0; MAX_ROWS] };
        for (r, t) in tiles.enumerate() {
            // SAFETY: V has this row, as the caller vouches.
            group.v[r] = RowAddress(unsafe { v.at(v_rows.at(0, t), v_rows.per_point.min(v_rows.stride)) });
            group.m[r] = m_rows.at(0, t);
        }
        group
    };
    even_ranges(tiles, rows_per_tile(isa)).map(group).collect()
}

impl Group {
    /// `M[tile] (+)= V[tile][..depth] · panel[..columns]` for the group's tiles, V, M and the panel from the given
    /// offsets on.
    ///
    /// # Safety
    /// V must have `depth` floats from `v_at` on in each of its rows, `panel` as many rows, and M room for
    /// the group's rows of a panel, used by no other job.
    #[allow(clippy::too_many_arguments)]
    unsafe fn multiply(
        &self,
        isa: Isa,
        (v_at, depth): (usize, usize),
        (panel, panel_at, columns): (Source, usize, usize),
        (m, m_at): (Target, usize),
        accumulate: bool,
        same_panel: bool,
        ahead: Ahead,
    ) {
        let tile = RowTile {
            taps: std::slice::from_ref(&self.v),
            taps_at: v_at,
            depth,
            ahead,
            panel,
            panel_at,
            same_panel,
            out: m,
            out_rows: &self.m,
            out_at: m_at,
            columns,
            accumulate,
            finish: Finish::default(),
            channel: 0,
        };
        // SAFETY: as many addresses were set as the group has tiles; for the rest the caller vouches.
        unsafe { row_tile(isa, self.tiles, &tile) };
    }
}

/// # Safety
/// As [`convolve`], for these panels.
#[allow(clippy::too_many_arguments)]
unsafe fn convolve_by_panels<F: Filtering>(
    isa: Isa,
    tiles: &[Tile],
    x: &[f32],
    weights: &Weights,
    panels: Range<usize>,
    threads: usize,
    finish: Finish,
    y: Target,
) {
    let (depth, columns, width) = (weights.depth(), weights.columns(), columns_per_tile(isa));
    let (points, weight_points) = (F::POINTS * F::POINTS, F::WEIGHTS * F::WEIGHTS);
    let x = Source::from(x);
    let zeros = vec![0.0; depth];
    let zeros = Source::from(&*zeros);

    // V[point][tile][C]
    let v_rows = Points::new(tiles.len(), depth.next_multiple_of(isa.lanes()) + 16);
    let mut transformed = Scratch::take(v_rows.len(points));
    let v = Target::from(transformed.floats());
    share::within(threads, tiles.iter().enumerate(), |(t, tile)| {
        // SAFETY: V has a row per tile at each point; this tile's are this job's alone; the caller vouches
        // for x.
        unsafe {
            input_tile::<F>(isa, x, 0..depth, depth, zeros, tile, v, v_rows.at(0, t), v_rows.per_point);
        };
    });
    // SAFETY: V is complete, and nothing writes to it any more.
    let v = unsafe { v.as_source() };

    let chunk = (WEIGHT_CHUNK / (weight_points * width)).max(16);
    share::within(threads, panels, |panel| {
        let u_rows = Points::new(chunk.min(depth), width);
        let m_rows = Points::new(tiles.len(), width);
        let mut scratch = Scratch::take(u_rows.len(weight_points) + m_rows.len(points));
        let (u, m) = scratch.floats().split_at_mut(u_rows.len(weight_points));
        let (u, m) = (Target::from(u), Target::from(m));
        // SAFETY: V has a row per tile.
        let groups = unsafe { groups(isa, v, v_rows, m_rows, tiles.len()) };
        for rows in even_ranges(depth, chunk) {
            let per_point = u_rows.per_point;
            // SAFETY: U has at least `rows.len()` rows at each point, and belongs to this job.
            unsafe { transform_weights::<F>(isa, weights, panel, rows.clone(), u, 0, per_point) };
            for weight in 0..weight_points {
                let of_weight =
                    F::points_of(weight).flat_map(|point| groups.iter().map(move |group| (point, group)));
                for (i, (point, group)) in of_weight.enumerate() {
                    // SAFETY: this chunk of U and all of V are complete; M belongs to this job.
                    unsafe {
                        group.multiply(
                            isa,
                            (v_rows.at(point, 0) + rows.start, rows.len()),
                            (u.as_source(), u_rows.at(weight, 0), whole_vectors(isa, columns, panel)),
                            (m, m_rows.at(point, 0)),
                            rows.start > 0,
                            i > 0,
                            Ahead::NOTHING,
                        );
                    }
                }
            }
        }
        // SAFETY: M is complete; this panel of the outputs is this job's alone; the caller vouches for y and
        // `finish`.
        unsafe { finish_panel::<F>(isa, m.as_source(), m_rows, panel, columns, tiles, finish, y) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_alike_and_never_small() {
        fn check<F: Filtering>() {
            for tiles in LEAST_PER_SHARE.count::<F>()..2000 {
                for threads in [1, 2, 3, 8, 64] {
                    let most = tiles.div_ceil(blocks::<F>(tiles, 64, threads));
                    let least = even_ranges(tiles, most).map(|block| block.len()).min();
                    // Rounding up the number of blocks takes no more than a third off the bound.
                    assert!(
                        least >= Some(LEAST_PER_BLOCK.count::<F>() * 2 / 3),
                        "{tiles} {threads} {least:?}"
                    );
                }
            }
        }
        check::<Six>();
        check::<Four>();
        assert_eq!(blocks::<Four>(288, 256, 2), 8);
        assert_eq!(blocks::<Four>(288, 256, 3), 9);
        assert_eq!(blocks::<Four>(100, 256, 64), 5);
        assert_eq!((blocks::<Six>(288, 64, 2), blocks::<Six>(288, 256, 2)), (16, 8));
    }

    #[test]
    fn every_thread_has_work_and_what_is_transformed_is_bounded() {
        shares_are_even_and_bounded::<Six>();
        shares_are_even_and_bounded::<Four>();
        shares_are_even_and_bounded::<Two>();
        shares_are_even_and_bounded::<Halving>();
        shares_are_even_and_bounded::<Doubling>();
        let size = Size { depth: 64, width: 32 };
        assert_eq!(cuts::<Four>(size, 4, 0, true, 2), (0, 0));
        // Two threads: 256 to 256 channels by output channels, 64 to 64 by tiles.
        assert_eq!(cuts::<Four>(Size { depth: 256, ..size }, 8, 256, false, 2), (2, 1));
        assert_eq!(cuts::<Four>(size, 2, 1024, false, 2), (1, 2));
    }

    fn shares_are_even_and_bounded<F: Filtering>() {
        let (points, weights) = (F::POINTS * F::POINTS, F::WEIGHTS * F::WEIGHTS);
        for panels in 1..70 {
            for depth in [16, 64, 256, 512, 2048] {
                for tiles in [1, 16, 95, 96, 97, 300, 5000] {
                    for threads in [1, 2, 3, 8, 64] {
                        let (size, few) = (Size { depth, width: 32 }, tiles < BY_PANELS_BELOW.count::<F>());
                        let (groups, parts) = cuts::<F>(size, panels, tiles, few, threads);
                        let what = format!("{panels} {depth} {tiles} {threads}: {groups} {parts}");
                        assert!((1..=panels).contains(&groups) && (1..=tiles).contains(&parts), "{what}");
                        let of_panels = groups.min(threads) * panels.div_ceil(groups) * weights * depth * 32;
                        let transformed =
                            if few { groups * points * tiles * depth } else { parts * of_panels };
                        let one_panel_each = parts == 1 && panels.div_ceil(groups) == 1;
                        assert!(
                            groups * parts == 1 || one_panel_each || transformed <= 2 * MOST_TRANSFORMED,
                            "{what}"
                        );
                        // Every thread has as many shares of output channels, as long but for a panel; or is helped.
                        let as_many = groups.is_multiple_of(threads) || groups == panels;
                        assert!(few || groups < threads || as_many, "{what}");
                    }
                }
            }
        }
    }
}
