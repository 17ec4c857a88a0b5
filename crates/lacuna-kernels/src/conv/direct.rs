//! The definition of convolution as one matrix product, for any window.
//!
//! Forward, `y[q] = Σ_tap x[q·stride + tap·dilation − padding] · w[tap]`. The input gradient is the
//! same sum the other way round: input pixels that share their remainder modulo the stride see the
//! same taps, and within such a class `dx[p] = Σ_tap dz[p' + offset(tap)] · w[tap]ᵀ` with integer
//! offsets. Both are a [`Lattice`]: positions that are read at one step and written at another.

mod lattice;
mod weight_gradient;

use std::ops::Range;

use rayon::prelude::*;

use self::lattice::{Lattice, Rows, Tap, backward_lattices, next_positions, rows_of_input};
pub(super) use self::lattice::{padded, reads_a_padded_copy};
pub(super) use self::weight_gradient::weight_gradient;
use super::Conv2d;
use super::weights::{Direction, Weights};
use crate::gemm::{
    Ahead, Finish, MAX_ROWS, RowAddress, RowTile, columns_per_tile, even_ranges, row_tile, rows_per_tile,
};
use crate::memory::{Scratch, Source, Target};
use crate::simd::{Isa, simd_fn};

/// Output pixels per job: enough to reuse a panel of weights from cache, few enough that their
/// input rows stay there.
const BLOCK_PIXELS: usize = 96;

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
    let taps = conv.window.kernel * conv.window.kernel;
    let mut packed = Scratch::take(weights.panels(isa) * taps * weights.depth() * columns_per_tile(isa));
    pack_all(isa, &weights, std::iter::once((0, (0..taps).collect())), packed.floats());
    // SAFETY: the lattices are those of x (or of its copy) and y; for their lengths the caller vouches.
    unsafe { multiply(isa, &lattices, rows, packed.floats(), &weights, finish, y) };
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
    let panel_floats_per_tap = weights.panels(isa) * weights.depth() * columns_per_tile(isa);
    let lattices = backward_lattices(conv, panel_floats_per_tap);
    let taps = conv.window.kernel * conv.window.kernel;
    let mut packed = Scratch::take(taps * panel_floats_per_tap);
    // Lattices of the same class share their panels.
    let mut classes: Vec<(usize, Vec<usize>)> = lattices
        .iter()
        .filter(|lattice| !lattice.taps.is_empty())
        .map(|lattice| (lattice.panels_at, lattice.taps.iter().map(|tap| tap.index).collect()))
        .collect();
    classes.dedup();
    pack_all(isa, &weights, classes.into_iter(), packed.floats());
    let rows = Rows { floats: dz.into(), per_pixel: conv.out_channels, depth: conv.out_channels };
    // SAFETY: the lattices are those of dz and dx; for their lengths the caller vouches.
    unsafe { multiply(isa, &lattices, rows, packed.floats(), &weights, Finish::default(), dx) };
}

/// Packs every panel for each list of taps, the list's panels from its offset on.
fn pack_all(
    isa: Isa,
    weights: &Weights,
    lists: impl Iterator<Item = (usize, Vec<usize>)>,
    packed: &mut [f32],
) {
    for (at, taps) in lists {
        let panel_floats = taps.len() * weights.depth() * columns_per_tile(isa);
        let to = &mut packed[at..][..weights.panels(isa) * panel_floats];
        to.par_chunks_mut(panel_floats).enumerate().for_each(|(panel, to)| {
            weights.pack(isa, panel, taps.iter().copied(), 0..weights.depth(), to);
        });
    }
}

/// `out[position] = finish(Σ_tap rows[position + tap] · panels[tap])` over all lattices.
///
/// # Safety
/// `rows` must hold every pixel of the lattices' sources, `panels` the packed weights of their taps, and
/// `out` every pixel they are written to, used by no other job; `finish` must cover `out`.
unsafe fn multiply(
    isa: Isa,
    lattices: &[Lattice],
    rows: Rows,
    panels: &[f32],
    weights: &Weights,
    finish: Finish,
    out: Target,
) {
    let n_panels = weights.panels(isa);
    let zeros = vec![0.0; rows.depth];
    let product = Product {
        isa,
        rows,
        zero: RowAddress(zeros.as_ptr()),
        panels: panels.into(),
        columns: weights.columns(),
        finish,
    };

    // Few blocks of pixels are cut by panels as well, so that every thread has work. Neither cut
    // changes a sum.
    let blocks: usize = lattices.iter().map(|l| l.positions.pixels().div_ceil(BLOCK_PIXELS)).sum();
    let panel_groups = (4 * rayon::current_num_threads()).div_ceil(blocks.max(1)).clamp(1, n_panels);
    let jobs: Vec<(&Lattice, Range<usize>, Range<usize>)> = lattices
        .iter()
        .flat_map(|lattice| {
            even_ranges(lattice.positions.pixels(), BLOCK_PIXELS).flat_map(move |positions| {
                even_ranges(n_panels, n_panels.div_ceil(panel_groups))
                    .map(move |panels| (lattice, positions.clone(), panels))
            })
        })
        .collect();
    jobs.into_par_iter().for_each(|(lattice, positions, panels)| {
        // SAFETY: the caller vouches for all operands; these positions and panels are this job's alone.
        out.streamed(isa, |out| unsafe {
            if lattice.taps.is_empty() {
                product.fill_zero(lattice, positions, panels, out);
            } else {
                product.multiply(lattice, positions, panels, out);
            }
        });
    });
}

/// What the jobs of one product share.
#[derive(Clone, Copy)]
struct Product<'a> {
    isa: Isa,
    rows: Rows<'a>,
    /// A row of zeros.
    zero: RowAddress,
    panels: Source<'a>,
    columns: usize,
    finish: Finish<'a>,
}

impl Product<'_> {
    /// # Safety
    /// As [`multiply`], for these positions and panels.
    unsafe fn multiply(&self, lattice: &Lattice, positions: Range<usize>, panels: Range<usize>, out: Target) {
        let Self { isa, rows, columns, .. } = *self;
        let (n_taps, width) = (lattice.taps.len(), columns_per_tile(isa));
        let tiles: Vec<_> = even_ranges(positions.len(), rows_per_tile(isa)).collect();
        // [tiles, taps][MAX_ROWS]
        let mut table = vec![[self.zero; MAX_ROWS]; tiles.len() * n_taps];
        let mut out_rows = vec![[0; MAX_ROWS]; tiles.len()];
        for (t, tile) in tiles.iter().enumerate() {
            let range = positions.start + tile.start..positions.start + tile.end;
            lattice.visit(range, |row, out_pixel, tap, source_pixel| {
                out_rows[t][row] = out_pixel * columns;
                if let Some(pixel) = source_pixel {
                    table[t * n_taps + tap][row] = rows.of(pixel);
                }
            });
        }
        let next = next_positions(lattice, positions);
        let row = |position| rows.near(lattice, position);
        let mut ahead = Ahead::shared_out(next, row, rows.depth, tiles.len() * panels.len(), rows.depth);
        for panel in panels {
            let channel = panel * width;
            for (t, tile) in tiles.iter().enumerate() {
                let tile_job = RowTile {
                    taps: &table[t * n_taps..][..n_taps],
                    taps_at: 0,
                    depth: rows.depth,
                    ahead: ahead.next().unwrap_or(Ahead::NOTHING),
                    panel: self.panels,
                    panel_at: lattice.panels_at + panel * n_taps * rows.depth * width,
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
    /// As [`multiply`], for these positions and panels.
    unsafe fn fill_zero(
        &self,
        lattice: &Lattice,
        positions: Range<usize>,
        panels: Range<usize>,
        out: Target,
    ) {
        let width = columns_per_tile(self.isa);
        let (first, end) = (panels.start * width, self.columns.min(panels.end * width));
        let alone = Lattice { taps: vec![Tap { y: 0, x: 0, index: 0 }], ..*lattice };
        alone.visit(positions, |_, pixel, _, _| {
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
