//! The definition of convolution as one matrix product, for any window.
//!
//! Forward, `y[q] = Σ_tap x[q·stride + tap·dilation − padding] · w[tap]`. The input gradient is the
//! same sum the other way round: input pixels that share their remainder modulo the stride see the
//! same taps, and within such a class `dx[p] = Σ_tap dz[p' + offset(tap)] · w[tap]ᵀ` with integer
//! offsets. Both are a [`Lattice`]: positions that are read at one step and written at another.

mod lattice;
mod weight_gradient;

use std::ops::Range;

use self::lattice::{Lattice, Rows, backward_lattices, next_positions, rows_of_input};
pub(super) use self::lattice::{padded, reads_a_padded_copy};
pub(super) use self::weight_gradient::weight_gradient;
use super::Conv2d;
use super::weights::{Direction, Weights};
use crate::gemm::{
    Ahead, Finish, MAX_ROWS, RowAddress, RowTile, columns_per_tile, even_ranges, in_parts, row_tile,
    rows_per_tile,
};
use crate::memory::{Scratch, Source, Target};
use crate::share;
use crate::simd::{Isa, simd_fn};

/// Output pixels per job: enough to reuse a panel of weights from cache, few enough that their
/// input rows stay there.
const BLOCK_PIXELS: usize = 96;

/// Floats of weights that are packed at a time where there are many: half of a second-level cache of 1 MiB.
const PACKED_AT_A_TIME: usize = 1 << 17;

/// Floats of weights that are packed for all shares of positions together: 128 MiB.
const MOST_PACKED: usize = 1 << 25;

/// # Safety
/// All tensors must have the shapes that `conv` gives them, `finish` must cover `y`, and no other job may
/// use `y`.
pub(super) unsafe fn forward(
    isa: Isa,
    conv: &Conv2d,
    x: &[f32],
    w: &[f32],
    scale: Option<&[f32]>,
    finish: Finish,
    y: Target,
) {
    let weights = Weights {
        w,
        scale,
        in_channels: conv.in_channels,
        out_channels: conv.out_channels,
        direction: Direction::Forward,
    };
    let mut padded = None;
    let (lattices, rows) = rows_of_input(conv, x, &mut padded);
    // SAFETY: the lattices are those of x (or of its copy) and y; for their lengths the caller vouches.
    unsafe { multiply(isa, &lattices, rows, &weights, finish, y) };
}

/// # Safety
/// As [`forward`], for `dx`.
pub(super) unsafe fn input_gradient(
    isa: Isa,
    conv: &Conv2d,
    dz: &[f32],
    w: &[f32],
    scale: Option<&[f32]>,
    dx: Target,
) {
    let weights = Weights {
        w,
        scale,
        in_channels: conv.in_channels,
        out_channels: conv.out_channels,
        direction: Direction::Backward,
    };
    let lattices = backward_lattices(conv);
    let rows = Rows { floats: dz.into(), per_pixel: conv.out_channels, depth: conv.out_channels };
    // SAFETY: the lattices are those of dz and dx; for their lengths the caller vouches.
    unsafe { multiply(isa, &lattices, rows, &weights, Finish::default(), dx) };
}

/// `out[position] = finish(Σ_tap rows[position + tap] · w[tap])` over all lattices.
///
/// # Safety
/// `rows` must hold every pixel of the lattices' sources, and `out` every pixel they are written to, used by no other
/// job; `finish` must cover `out`.
unsafe fn multiply(
    isa: Isa,
    lattices: &[Lattice],
    rows: Rows,
    weights: &Weights,
    finish: Finish,
    out: Target,
) {
    let zeros = vec![0.0; rows.depth];
    let zero = RowAddress(zeros.as_ptr());
    let columns = weights.columns();
    share::at_once(shares(isa, lattices, weights), |Share { panels, positions: (part, parts) }, threads| {
        let mut packed = pack(isa, weights, lattices, rows.depth, panels.clone());
        let packed = Source::from(&*packed.floats());
        let product = Product { isa, rows, zero, packed, panels: panels.clone(), columns, finish };
        let blocks = lattices.iter().flat_map(|lattice| {
            let positions = in_parts(lattice.positions.pixels(), parts).nth(part).unwrap_or_default();
            even_ranges(positions.len(), BLOCK_PIXELS)
                .map(move |block| (lattice, positions.start + block.start..positions.start + block.end))
        });
        share::within(threads, blocks, |(lattice, positions)| {
            // SAFETY: the caller vouches for all operands; these positions and panels are this job's alone.
            out.streamed(isa, |out| unsafe {
                if lattice.taps.is_empty() {
                    product.fill_zero(lattice, positions, out);
                } else {
                    product.multiply(lattice, positions, out);
                }
            });
        });
    });
}

/// What is computed with weights that are packed for it.
struct Share {
    /// Output channels.
    panels: Range<usize>,
    /// Of each lattice, which of how many parts.
    positions: (usize, usize),
}

fn shares(isa: Isa, lattices: &[Lattice], weights: &Weights) -> Vec<Share> {
    let positions = lattices.iter().map(|lattice| lattice.positions.pixels()).sum();
    let taps = weights.w.len() / (weights.in_channels * weights.out_channels);
    let panel_floats = taps * weights.depth() * columns_per_tile(isa);
    let (panels, threads) = (weights.panels(isa), rayon::current_num_threads());
    let (groups, parts) = cuts(panels, panel_floats, positions, taps * weights.columns(), threads);
    let share = |panels: Range<usize>| {
        (0..parts).map(move |part| Share { panels: panels.clone(), positions: (part, parts) })
    };
    in_parts(panels, groups).flat_map(share).collect()
}

/// How many shares of output channels there are, and how many of positions: by output channels where there are panels for
/// every thread and more of them than of positions (`columns` counts them for each tap), a few at a time that the
/// second-level cache holds; else by positions, with all weights packed for each thread.
fn cuts(
    panels: usize,
    panel_floats: usize,
    positions: usize,
    columns: usize,
    threads: usize,
) -> (usize, usize) {
    if positions == 0 {
        return (0, 0);
    }
    if panels >= 2 * threads && columns >= positions {
        let most = (PACKED_AT_A_TIME / panel_floats).clamp(1, panels.div_ceil(threads));
        return (panels.div_ceil(most).next_multiple_of(threads).min(panels), 1);
    }
    let most = (MOST_PACKED / (panels * panel_floats)).max(1);
    let parts = threads.min(positions.div_ceil(BLOCK_PIXELS)).min(most);
    (threads.div_ceil(parts).min(panels), parts)
}

/// These panels for the taps of each lattice, `[taps, depth, 2 · LANES]` each; those of one class share theirs.
fn pack(isa: Isa, weights: &Weights, lattices: &[Lattice], depth: usize, panels: Range<usize>) -> Scratch {
    let floats_per_tap = depth * columns_per_tile(isa);
    let taps = lattices.iter().map(|lattice| lattice.taps_before + lattice.taps.len()).max().unwrap_or(0);
    let mut packed = Scratch::take(panels.len() * taps * floats_per_tap);
    // A tap of a padded copy is a row of the window.
    let together = depth / weights.depth();
    let mut done = 0;
    for Lattice { taps, taps_before, .. } in lattices {
        if *taps_before < done || taps.is_empty() {
            continue;
        }
        done = taps_before + taps.len();
        let indices: Vec<usize> = taps.iter().flat_map(|tap| tap.index..tap.index + together).collect();
        let to = &mut packed.floats()[panels.len() * taps_before * floats_per_tap..];
        for (panel, to) in panels.clone().zip(to.chunks_exact_mut(taps.len() * floats_per_tap)) {
            weights.pack(isa, panel, indices.iter().copied(), 0..weights.depth(), to);
        }
    }
    packed
}

/// What the jobs of one share have in common.
struct Product<'a> {
    isa: Isa,
    rows: Rows<'a>,
    /// A row of zeros.
    zero: RowAddress,
    panels: Range<usize>,
    packed: Source<'a>,
    columns: usize,
    finish: Finish<'a>,
}

impl Product<'_> {
    /// # Safety
    /// As [`multiply`], for these positions.
    unsafe fn multiply(&self, lattice: &Lattice, positions: Range<usize>, out: Target) {
        let Self { isa, rows, columns, ref panels, .. } = *self;
        let (n_taps, width) = (lattice.taps.len(), columns_per_tile(isa));
        let tiles: Vec<_> = even_ranges(positions.len(), rows_per_tile(isa)).collect();
        // [tiles, taps][MAX_ROWS]
        let mut table = vec![[self.zero; MAX_ROWS]; tiles.len() * n_taps];
        let mut out_rows = vec![[0; MAX_ROWS]; tiles.len()];
        for (t, tile) in tiles.iter().enumerate() {
            let range = positions.start + tile.start..positions.start + tile.end;
            lattice.outputs(range.clone(), |row, pixel| out_rows[t][row] = pixel * columns);
            let table = &mut table[t * n_taps..][..n_taps];
            lattice.sources(range, |row, tap, pixel| table[tap][row] = rows.address(pixel));
        }
        let next = next_positions(lattice, positions);
        let row = |position| rows.near(lattice, position);
        let mut ahead = Ahead::shared_out(next, row, rows.depth, tiles.len() * panels.len(), rows.depth);
        let panels_at = panels.len() * lattice.taps_before * rows.depth * width;
        for (i, panel) in panels.clone().enumerate() {
            let channel = panel * width;
            for (t, tile) in tiles.iter().enumerate() {
                let tile_job = RowTile {
                    taps: &table[t * n_taps..][..n_taps],
                    taps_at: 0,
                    depth: rows.depth,
                    ahead: ahead.next().unwrap_or(Ahead::NOTHING),
                    panel: self.packed,
                    panel_at: panels_at + i * n_taps * rows.depth * width,
                    same_panel: t > 0,
                    out,
                    out_rows: &out_rows[t],
                    out_at: channel,
                    columns: width.min(columns - channel),
                    accumulate: false,
                    finish: self.finish,
                    channel,
                };
                // SAFETY: the addresses were taken from the operand or from the zeros; for the rest the
                // caller vouches.
                unsafe { row_tile(isa, tile.len(), &tile_job) };
            }
        }
    }

    /// The gradient of pixels that no tap reaches (1×1, stride 2).
    ///
    /// # Safety
    /// As [`multiply`], for these positions.
    unsafe fn fill_zero(&self, lattice: &Lattice, positions: Range<usize>, out: Target) {
        let width = columns_per_tile(self.isa);
        let (first, end) = (self.panels.start * width, self.columns.min(self.panels.end * width));
        lattice.outputs(positions, |_, pixel| {
            // SAFETY: the pixel is in the output, and its channels are this job's alone.
            unsafe { store_zeros(self.isa, out, pixel * self.columns + first, end - first) };
        });
    }
}

simd_fn! {
    /// # Safety
    /// `count` floats from `at` on must be within `to`, used by no other job.
    unsafe fn store_zeros<S>(s, to: Target, at: usize, count: usize) {
        for offset in (0..count).step_by(S::LANES) {
            // SAFETY: as the caller vouches.
            unsafe { to.store_result(s, at + offset, s.zero(), S::LANES.min(count - offset)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_work_and_packed_weights_are_bounded() {
        for panels in 1..70 {
            for (positions, columns, panel_floats) in [
                (1, 64, 2048),
                (95, 256, 1 << 15),
                (256, 4608, 1 << 18),
                (4096, 64, 1 << 12),
                (50_000, 1, 1 << 21),
            ] {
                for threads in [1, 2, 3, 8, 64] {
                    let (groups, parts) = cuts(panels, panel_floats, positions, columns, threads);
                    assert!((1..=panels).contains(&groups) && parts >= 1);
                    assert!(groups * parts >= threads.min(panels), "{panels} {positions} {threads}");
                    let packed = parts * panels * panel_floats;
                    assert!(parts == 1 || packed <= MOST_PACKED, "{panels} {positions} {threads}");
                    // By output channels every thread has as many shares, and these are as long but for a panel.
                    let as_many = groups.is_multiple_of(threads);
                    assert!(parts > 1 || panels < 2 * threads || as_many || groups == panels);
                }
            }
        }
        assert_eq!(cuts(4, 2048, 0, 64, 2), (0, 0));
    }
}
