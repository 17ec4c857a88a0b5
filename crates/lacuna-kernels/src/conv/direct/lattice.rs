//! What is read where, and written where.

use std::ops::Range;

use rayon::prelude::*;

use crate::conv::{Conv2d, pixels, with_first_pixel};
use crate::gemm::{Ahead, RowAddress};
use crate::memory::{Scratch, Source};
use crate::shape::Grid;

/// Input channels below which rows of the window, not single taps, are read from a padded copy.
const NARROW: usize = 16;

/// Positions `(image, y, x)`; each is written to one output pixel and reads one source pixel per
/// tap.
pub(super) struct Lattice {
    pub(super) positions: Grid,
    pub(super) out: Plane,
    pub(super) source: Plane,
    /// Offset of each tap in the source, `(y, x)`, and its index in the weights.
    pub(super) taps: Vec<Tap>,
    /// Taps of the classes whose weights are packed before this one's.
    pub(super) taps_before: usize,
}

/// One side of a lattice: images of `height × width` pixels from pixel `first` on; position `q`
/// is pixel `origin + step · q`.
#[derive(Clone, Copy)]
pub(super) struct Plane {
    pub(super) first: usize,
    height: usize,
    width: usize,
    step: usize,
    origin: (usize, usize),
}

#[derive(Clone, Copy)]
pub(super) struct Tap {
    pub(super) y: isize,
    pub(super) x: isize,
    pub(super) index: usize,
}

impl Lattice {
    /// Calls `visit(row, output pixel)` for each position of `rows`.
    pub(super) fn outputs(&self, rows: Range<usize>, mut visit: impl FnMut(usize, usize)) {
        let Plane { first, height, width, step, origin } = self.out;
        self.lines(rows, |row, len, (image, y, x)| {
            let pixel = first + (image * height + origin.0 + step * y) * width + origin.1 + step * x;
            (0..len).for_each(|i| visit(row + i, pixel + step * i));
        });
    }

    /// Calls `visit(row, tap, source pixel)` for each position of `rows` and each tap that is on the image there.
    pub(super) fn sources(&self, rows: Range<usize>, mut visit: impl FnMut(usize, usize, usize)) {
        let Plane { first, height, width, step, .. } = self.source;
        self.lines(rows, |row, len, (image, y, x)| {
            for (t, tap) in self.taps.iter().enumerate() {
                let (y, x) = ((step * y) as isize + tap.y, (step * x) as isize + tap.x);
                if y < 0 || y as usize >= height || x >= width as isize {
                    continue;
                }
                let line = first + (image * height + y as usize) * width;
                if x >= 0 && x as usize + step * (len - 1) < width {
                    (0..len).for_each(|i| visit(row + i, t, line + x as usize + step * i));
                } else {
                    let on_image = |i: &usize| (0..width as isize).contains(&(x + (step * i) as isize));
                    let pixel = |i| line + (x + (step * i) as isize) as usize;
                    (0..len).filter(on_image).for_each(|i| visit(row + i, t, pixel(i)));
                }
            }
        });
    }

    /// Calls `line(row, length, (image, y, x))` for the positions of `rows`, those of one line of an image together: what
    /// depends on the line is worked out once.
    fn lines(&self, rows: Range<usize>, mut line: impl FnMut(usize, usize, (usize, usize, usize))) {
        let Grid { height, width, .. } = self.positions;
        let mut at = rows.start;
        while at < rows.end {
            let (image, y, x) = (at / (height * width), at / width % height, at % width);
            let len = (width - x).min(rows.end - at);
            line(at - rows.start, len, (image, y, x));
            at += len;
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
            taps_before: 0,
        })
        .collect()
}

/// The lattices of the input gradient: per class of input pixels modulo the stride, per grid.
pub(super) fn backward_lattices(conv: &Conv2d) -> Vec<Lattice> {
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
    let mut taps_before = 0;
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
                    taps_before,
                }
            }));
            taps_before += taps.len();
        }
    }
    lattices
}

/// The left operand: `depth` floats from each pixel of an image with `per_pixel` channels.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) floats: Source<'a>,
    pub(super) per_pixel: usize,
    pub(super) depth: usize,
}

impl Rows<'_> {
    /// The row of a pixel that is on the image.
    pub(super) fn address(self, pixel: usize) -> RowAddress {
        // SAFETY: the pixel is inside its image, so its row is inside the operand.
        RowAddress(unsafe { self.floats.at(pixel * self.per_pixel, self.depth) })
    }

    /// The row that a position of a lattice with one tap reads, to be fetched, not read: any if it is off the image.
    pub(super) fn near(self, lattice: &Lattice, position: usize) -> RowAddress {
        let mut row = Ahead::NOTHING.from;
        lattice.sources(position..position + 1, |_, _, pixel| row = self.address(pixel));
        row
    }
}

/// An image of few channels (the stem's three) is copied with its padding, so that one row of the
/// window is `kernel · C` floats side by side: 7 taps of 21 floats in place of 49 of 3.
pub(in crate::conv) fn reads_a_padded_copy(conv: &Conv2d) -> bool {
    conv.in_channels < NARROW && conv.window.kernel > 1 && conv.window.dilation == 1
}

/// The grids of that copy.
pub(in crate::conv) fn padded(conv: &Conv2d) -> Vec<Grid> {
    let both = 2 * conv.window.padding;
    let widened = |grid: &Grid| Grid::new(grid.batch, grid.height + both, grid.width + both);
    conv.inputs.iter().map(widened).collect()
}

/// The lattices of the forward pass and the rows they read: of `x`, or of its copy, which goes to
/// `copy`.
pub(super) fn rows_of_input<'a>(
    conv: &Conv2d,
    x: &'a [f32],
    copy: &'a mut Option<Scratch>,
) -> (Vec<Lattice>, Rows<'a>) {
    let lattices = forward_lattices(conv);
    let (window, channels) = (conv.window, conv.in_channels);
    if !reads_a_padded_copy(conv) {
        return (lattices, Rows { floats: x.into(), per_pixel: channels, depth: channels });
    }
    let wide = padded(conv);
    let copy = copy.insert(Scratch::take(pixels(&wide) * channels));
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

/// The positions after these, which are likely the thread's next, if each reads one pixel. Where windows
/// overlap, most of what they read is in the cache already.
pub(super) fn next_positions(lattice: &Lattice, positions: Range<usize>) -> Range<usize> {
    let next = if lattice.taps.len() == 1 { positions.len() } else { 0 };
    positions.end..lattice.positions.pixels().min(positions.end + next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Window;

    /// Of each position and tap, where it is read and written by the definition.
    fn by_definition(lattice: &Lattice, rows: Range<usize>) -> (Vec<[usize; 2]>, Vec<[usize; 3]>) {
        let Grid { height, width, .. } = lattice.positions;
        let (mut outputs, mut sources) = (Vec::new(), Vec::new());
        for (row, at) in rows.enumerate() {
            let (image, y, x) = (at / (height * width), at / width % height, at % width);
            let out = &lattice.out;
            let (out_y, out_x) = (out.origin.0 + out.step * y, out.origin.1 + out.step * x);
            outputs.push([row, out.first + (image * out.height + out_y) * out.width + out_x]);
            let source = &lattice.source;
            for (t, tap) in lattice.taps.iter().enumerate() {
                let (y, x) = ((source.step * y) as isize + tap.y, (source.step * x) as isize + tap.x);
                if (0..source.height as isize).contains(&y) && (0..source.width as isize).contains(&x) {
                    let line = image * source.height + y as usize;
                    sources.push([row, t, source.first + line * source.width + x as usize]);
                }
            }
        }
        (outputs, sources)
    }

    #[test]
    fn a_walk_by_lines_is_the_walk_by_positions() {
        let grids = vec![Grid::new(3, 5, 7), Grid::new(3, 2, 1)];
        for window in [Window::new(3, 2, 1), Window::new(3, 1, 2), Window::new(1, 2, 0), Window::new(5, 3, 2)]
        {
            let conv = Conv2d::new(grids.clone(), 4, 4, window).expect("shapes fit");
            for lattice in forward_lattices(&conv).iter().chain(&backward_lattices(&conv)) {
                let positions = lattice.positions.pixels();
                for start in 0..positions {
                    for end in start..=positions {
                        let (mut outputs, mut sources) = (Vec::new(), Vec::new());
                        lattice.outputs(start..end, |row, pixel| outputs.push([row, pixel]));
                        lattice.sources(start..end, |row, tap, pixel| sources.push([row, tap, pixel]));
                        sources.sort_unstable();
                        let expected = by_definition(lattice, start..end);
                        assert_eq!((outputs, sources), expected, "{window:?} {start}..{end}");
                    }
                }
            }
        }
    }
}
