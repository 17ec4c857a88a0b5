//! The definition of convolution as one matrix product, for any window.
//!
//! Forward, `y[q] = Σ_tap x[q·stride + tap·dilation − padding] · w[tap]`. The input gradient is the
//! same sum the other way round: input pixels that share their remainder modulo the stride see the
//! same taps, and within such a class `dx[p] = Σ_tap dz[p' + offset(tap)] · w[tap]ᵀ` with integer
//! offsets. Both are a [`Lattice`]: positions that are read at one step and written at another.

use rayon::prelude::*;

use super::weights::{Direction, Weights};
use super::{Conv2d, with_first_pixel};
use crate::gemm::{
    Ahead, ColumnTile, Finish, MAX_ROWS, RowAddress, RowTile, column_tile, columns_per_tile, even_ranges,
    row_tile, rows_per_tile,
};
use crate::memory::{Scratch, Source, Target, load_up_to, store_up_to};
use crate::shape::Grid;
use crate::simd::{Isa, simd_fn};

/// Output pixels per job: enough to reuse a panel of weights from cache, few enough that their
/// input rows stay there.
const BLOCK_PIXELS: usize = 96;

/// Pixels whose gradients are packed at a time for the weight gradient.
const WEIGHT_GRADIENT_PIXELS: usize = 192;

/// A weight gradient of at most this many elements is summed in parts, by pixels; a larger one is
/// shared out by rows.
const SPLIT_PIXELS_BELOW: usize = 1 << 16;

/// Input channels below which rows of the window, not single taps, are read from a padded copy.
const NARROW: usize = 16;

/// Positions `(image, y, x)`; each is written to one output pixel and reads one source pixel per
/// tap.
struct Lattice {
    positions: Grid,
    out: Plane,
    source: Plane,
    /// Offset of each tap in the source, `(y, x)`, and its index in the weights.
    taps: Vec<Tap>,
    /// Where this lattice's panels start in the packed weights.
    panels_at: usize,
}

/// One side of a lattice: images of `height × width` pixels from pixel `first` on; position `q`
/// is pixel `origin + step · q`.
#[derive(Clone, Copy)]
struct Plane {
    first: usize,
    height: usize,
    width: usize,
    step: usize,
    origin: (usize, usize),
}

#[derive(Clone, Copy)]
struct Tap {
    y: isize,
    x: isize,
    index: usize,
}

impl Lattice {
    /// Calls `visit(row, output pixel, source pixel per tap)` for each position of `rows`; a source
    /// pixel outside the image is `None`.
    fn visit(&self, rows: std::ops::Range<usize>, mut visit: impl FnMut(usize, usize, usize, Option<usize>)) {
        let Grid { height, width, .. } = self.positions;
        let (out, source) = (self.out, self.source);
        for (row, position) in rows.enumerate() {
            let (image, y, x) = (position / (height * width), position / width % height, position % width);
            let out_pixel = out.first
                + (image * out.height + out.origin.0 + out.step * y) * out.width
                + out.origin.1
                + out.step * x;
            let (y, x) = ((source.step * y) as isize, (source.step * x) as isize);
            for (t, tap) in self.taps.iter().enumerate() {
                let (y, x) = (y + tap.y, x + tap.x);
                let inside = y >= 0 && x >= 0 && (y as usize) < source.height && (x as usize) < source.width;
                let pixel = inside
                    .then(|| source.first + (image * source.height + y as usize) * source.width + x as usize);
                visit(row, out_pixel, t, pixel);
            }
        }
    }
}

/// The lattices of the forward pass, one per grid.
fn forward_lattices(conv: &Conv2d) -> Vec<Lattice> {
    let window = conv.window;
    let offset = |tap: usize| (tap * window.dilation) as isize - window.padding as isize;
    let taps: Vec<Tap> = (0..window.kernel * window.kernel)
        .map(|index| Tap { y: offset(index / window.kernel), x: offset(index % window.kernel), index })
        .collect();
    with_first_pixel(&conv.inputs)
        .zip(with_first_pixel(&conv.outputs))
        .map(|((source_first, input), (out_first, output))| Lattice {
            positions: output,
            out: Plane {
                first: out_first,
                height: output.height,
                width: output.width,
                step: 1,
                origin: (0, 0),
            },
            source: Plane {
                first: source_first,
                height: input.height,
                width: input.width,
                step: window.stride,
                origin: (0, 0),
            },
            taps: taps.clone(),
            panels_at: 0,
        })
        .collect()
}

/// The lattices of the input gradient: per class of input pixels modulo the stride, per grid.
fn backward_lattices(conv: &Conv2d, panel_floats_per_tap: usize) -> Vec<Lattice> {
    let window = conv.window;
    let stride = window.stride as isize;
    // Along one axis, the taps that pixels of class `class` see: those whose output position
    // (class + padding − tap·dilation) / stride is whole.
    let along = |class: usize| -> Vec<(usize, isize)> {
        (0..window.kernel)
            .map(|tap| (tap, (class + window.padding) as isize - (tap * window.dilation) as isize))
            .filter(|&(_, position)| position % stride == 0)
            .map(|(tap, position)| (tap, position / stride))
            .collect()
    };
    // A stride larger than the images has classes that no pixel is in.
    let classes =
        |size: fn(&Grid) -> usize| 0..conv.inputs.iter().map(size).max().unwrap_or(0).min(window.stride);
    let mut panels_at = 0;
    let mut lattices = Vec::new();
    for class_y in classes(|grid| grid.height) {
        for class_x in classes(|grid| grid.width) {
            let columns = along(class_x);
            let taps: Vec<Tap> = along(class_y)
                .iter()
                .flat_map(|&(tap_y, y)| {
                    columns.iter().map(move |&(tap_x, x)| Tap { y, x, index: tap_y * window.kernel + tap_x })
                })
                .collect();
            let grids = with_first_pixel(&conv.inputs).zip(with_first_pixel(&conv.outputs));
            lattices.extend(grids.map(|((out_first, input), (source_first, output))| {
                let count = |size: usize, class: usize| size.saturating_sub(class).div_ceil(window.stride);
                Lattice {
                    positions: Grid::new(
                        input.batch,
                        count(input.height, class_y),
                        count(input.width, class_x),
                    ),
                    out: Plane {
                        first: out_first,
                        height: input.height,
                        width: input.width,
                        step: window.stride,
                        origin: (class_y, class_x),
                    },
                    source: Plane {
                        first: source_first,
                        height: output.height,
                        width: output.width,
                        step: 1,
                        origin: (0, 0),
                    },
                    taps: taps.clone(),
                    panels_at,
                }
            }));
            panels_at += taps.len() * panel_floats_per_tap;
        }
    }
    lattices
}

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

/// The left operand: `depth` floats from each pixel of an image with `per_pixel` channels.
#[derive(Clone, Copy)]
struct Rows<'a> {
    floats: Source<'a>,
    per_pixel: usize,
    depth: usize,
}

impl Rows<'_> {
    /// The row of a pixel that is on the image.
    fn of(self, pixel: usize) -> RowAddress {
        // SAFETY: the pixel is inside its image, so its row is inside the operand.
        RowAddress(unsafe { self.floats.at(pixel * self.per_pixel, self.depth) })
    }
}

/// An image of few channels (the stem's three) is copied with its padding, so that one row of the
/// window is `kernel · C` floats side by side: 7 taps of 21 floats in place of 49 of 3.
pub(super) fn reads_a_padded_copy(conv: &Conv2d) -> bool {
    conv.in_channels < NARROW && conv.window.kernel > 1 && conv.window.dilation == 1
}

/// The grids of that copy.
pub(super) fn padded(conv: &Conv2d) -> Vec<Grid> {
    let both = 2 * conv.window.padding;
    let widened = |grid: &Grid| Grid::new(grid.batch, grid.height + both, grid.width + both);
    conv.inputs.iter().map(widened).collect()
}

/// The lattices of the forward pass and the rows they read: of `x`, or of its copy, which goes to
/// `copy`.
fn rows_of_input<'a>(conv: &Conv2d, x: &'a [f32], copy: &'a mut Option<Scratch>) -> (Vec<Lattice>, Rows<'a>) {
    let lattices = forward_lattices(conv);
    let (window, channels) = (conv.window, conv.in_channels);
    if !reads_a_padded_copy(conv) {
        return (lattices, Rows { floats: x.into(), per_pixel: channels, depth: channels });
    }
    let wide = padded(conv);
    let copy = copy.insert(Scratch::take(super::pixels(&wide) * channels));
    let mut rest = copy.floats();
    let mut x = x;
    for (&grid, &wide) in conv.inputs.iter().zip(&wide) {
        let (from, to);
        (from, x) = x.split_at(grid.pixels() * channels);
        (to, rest) = rest.split_at_mut(wide.pixels() * channels);
        to.par_chunks_mut((wide.width * channels).max(1)).enumerate().for_each(|(row, to)| {
            let (image, y) = (row / wide.height, row % wide.height);
            to.fill(0.0);
            if (window.padding..window.padding + grid.height).contains(&y) {
                let row = (image * grid.height + y - window.padding) * grid.width * channels;
                to[window.padding * channels..][..grid.width * channels]
                    .copy_from_slice(&from[row..][..grid.width * channels]);
            }
        });
    }
    let taps: Vec<Tap> =
        (0..window.kernel).map(|row| Tap { y: row as isize, x: 0, index: row * window.kernel }).collect();
    let lattices = lattices
        .into_iter()
        .zip(with_first_pixel(&wide))
        .map(|(lattice, (first, wide))| Lattice {
            source: Plane { first, height: wide.height, width: wide.width, ..lattice.source },
            taps: taps.clone(),
            ..lattice
        })
        .collect();
    let rows =
        Rows { floats: (&*copy.floats()).into(), per_pixel: channels, depth: window.kernel * channels };
    (lattices, rows)
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
    let jobs: Vec<(&Lattice, std::ops::Range<usize>, std::ops::Range<usize>)> = lattices
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

/// What the positions after these read, which are likely the thread's next, if each reads one pixel. Where
/// windows overlap, most of what they read is in the cache already.
fn next_rows(lattice: &Lattice, rows: Rows, positions: std::ops::Range<usize>) -> Vec<RowAddress> {
    let mut next = Vec::new();
    if lattice.taps.len() == 1 {
        let end = lattice.positions.pixels().min(positions.end + positions.len());
        lattice.visit(positions.end..end, |_, _, _, pixel| next.extend(pixel.map(|at| rows.of(at))));
    }
    next
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
    unsafe fn multiply(
        &self,
        lattice: &Lattice,
        positions: std::ops::Range<usize>,
        panels: std::ops::Range<usize>,
        out: Target,
    ) {
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
        let next = next_rows(lattice, rows, positions);
        let mut ahead = Ahead::shared_out(&next, rows.depth, tiles.len() * panels.len(), rows.depth);
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
        positions: std::ops::Range<usize>,
        panels: std::ops::Range<usize>,
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

/// # Safety
/// As [`forward`], for `dw`; there must be a pixel of output.
pub(super) unsafe fn weight_gradient(
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
    let pixels = super::pixels(&conv.outputs);
    let n_rows = lattices[0].taps.len() * rows.depth;
    let scale = scale.map(Source::from);

    let parts = (pixels / 512).min(16);
    if parts >= 4 && n_rows * columns <= SPLIT_PIXELS_BELOW {
        // Parts depend on the shape alone, and are added in order: the sum does not depend on the
        // number of threads.
        let len = n_rows * columns;
        let mut partial = Scratch::take(parts * len);
        let partial = &mut partial.floats()[..parts * len];
        let groups = row_groups(isa, lattices[0].taps.len(), rows.depth);
        partial.par_chunks_exact_mut(len).enumerate().for_each(|(part, sum)| {
            let range = part * pixels / parts..(part + 1) * pixels / parts;
            // SAFETY: the part's sum has a row for each of the groups; for x and dz the caller vouches.
            unsafe {
                add_outer_products(isa, &lattices, rows, dz, columns, range, &groups, None, sum.into());
            }
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
            unsafe { add_outer_products(isa, &lattices, rows, dz, columns, 0..pixels, groups, scale, dw) };
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

/// `out[tap, c] = scale · Σ_{p in pixels} x[p + tap][c] · dz[p]` for the rows of `groups`; `out` is
/// `[taps · depth, columns]`.
///
/// # Safety
/// `rows` must hold every pixel of the lattices' sources, `dz` `columns` floats for each of `pixels`,
/// `scale` as many; `out` must have the rows of `groups`, used by no other job.
#[allow(clippy::too_many_arguments)]
unsafe fn add_outer_products(
    isa: Isa,
    lattices: &[Lattice],
    rows: Rows,
    dz: Source,
    columns: usize,
    pixels: std::ops::Range<usize>,
    groups: &[RowGroup],
    scale: Option<Source>,
    out: Target,
) {
    let width = columns_per_tile(isa);
    let panels = columns.div_ceil(width);
    let mut gradients = Scratch::take(panels * WEIGHT_GRADIENT_PIXELS * width);
    let mut channels = Scratch::take(WEIGHT_GRADIENT_PIXELS * MAX_ROWS);
    let zeros = vec![0.0; rows.depth];
    let zero = RowAddress(zeros.as_ptr());
    let n_taps = lattices[0].taps.len();
    let mut addresses = vec![zero; n_taps * WEIGHT_GRADIENT_PIXELS];

    let blocks = lattices.iter().flat_map(|lattice| {
        let first = lattice.out.first;
        let grid = first..first + lattice.positions.pixels();
        let wanted = pixels.start.max(grid.start)..pixels.end.min(grid.end);
        even_ranges(wanted.len(), WEIGHT_GRADIENT_PIXELS)
            .map(move |block| (lattice, wanted.start + block.start..wanted.start + block.end))
    });
    let mut blocks = blocks.peekable();
    let mut accumulate = false;
    while let Some((lattice, block)) = blocks.next() {
        let depth = block.len();
        let scale = if blocks.peek().is_none() { scale } else { None };
        // SAFETY: `dz` has these pixels, as the caller vouches.
        unsafe { pack_gradients(isa, dz, block.clone(), columns, gradients.floats()) };
        addresses.fill(zero);
        let first = lattice.out.first;
        lattice.visit(block.start - first..block.end - first, |row, _, tap, source_pixel| {
            if let Some(pixel) = source_pixel {
                addresses[tap * WEIGHT_GRADIENT_PIXELS + row] = rows.of(pixel);
            }
        });
        let next = next_rows(lattice, rows, block.start - first..block.end - first);
        let tiles = groups.len() * panels;
        let tiles_for_x = (tiles * rows.depth).div_ceil(rows.depth + columns);
        let next_gradients: Vec<_> = (block.end..pixels.end.min(block.end + depth))
            // SAFETY: `dz` has these pixels, as the caller vouches.
            .map(|pixel| RowAddress(unsafe { dz.at(pixel * columns, columns) }))
            .collect();
        let mut ahead = Ahead::shared_out(&next, rows.depth, tiles_for_x, depth).chain(Ahead::shared_out(
            &next_gradients,
            columns,
            (tiles - tiles_for_x).max(1),
            depth,
        ));
        for group in groups {
            let from = &addresses[group.tap * WEIGHT_GRADIENT_PIXELS..][..depth];
            // SAFETY: each address has `rows.depth` readable floats, which the group is within.
            unsafe { pack_channels(isa, from, group.first, group.rows, channels.floats()) };
            for panel in 0..panels {
                let tile = ColumnTile {
                    a: (&*channels.floats()).into(),
                    a_at: 0,
                    a_stride: group.rows,
                    b: (&*gradients.floats()).into(),
                    b_at: panel * depth * width,
                    b_stride: width,
                    depth,
                    ahead: ahead.next().unwrap_or(Ahead::NOTHING),
                    out,
                    out_at: (group.tap * rows.depth + group.first) * columns + panel * width,
                    out_stride: columns,
                    columns: width.min(columns - panel * width),
                    accumulate,
                    scale: scale.map(|scale| (scale, panel * width)),
                };
                // SAFETY: both operands were packed above; the group's rows are this job's alone, and in
                // `out`, as the caller vouches.
                unsafe { column_tile(isa, group.rows, &tile) };
            }
        }
        accumulate = true;
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
    unsafe fn pack_gradients<S>(s, dz: Source, pixels: std::ops::Range<usize>, columns: usize, to: &mut [f32]) {
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
    /// `to[p][c] = from[p][first + c]` for `c < count`.
    ///
    /// # Safety
    /// `first + count` floats must be readable at each address.
    unsafe fn pack_channels<S>(s, from: &[RowAddress], first: usize, count: usize, to: &mut [f32]) {
        assert!(to.len() >= from.len() * count);
        for (address, to) in from.iter().zip(to.chunks_exact_mut(count)) {
            for at in (0..count).step_by(S::LANES) {
                let count = S::LANES.min(count - at);
                // SAFETY: the caller vouches for the address; `to` has `count` floats from `at` on.
                unsafe {
                    let v = load_up_to(s, address.0.add(first + at), count);
                    store_up_to(s, to.as_mut_ptr().add(at), v, count);
                }
            }
        }
    }
}
