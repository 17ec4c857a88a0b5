//! How images are cut into tiles.
//!
//! Where the size of images is no multiple of a tile's, tiles reach over their border. So the images of a batch are laid side by
//! side, with the padding that both need between them, and cut together, if that takes fewer tiles: four images of 32×32
//! pixels, laid 2×2, have 121 tiles of 6×6; each by itself, they have 144.

use super::filtering::Filtering;
use super::transforms::{Span, Tile};
use crate::conv::with_first_pixel;
use crate::shape::Grid;

/// The tiles of several grids of images.
pub(super) struct Tiling(Vec<TiledGrid>);

struct TiledGrid {
    /// Index of the first pixel of images that are cut together, in the input and in the output.
    first: Vec<[usize; 2]>,
    down: Vec<Span>,
    across: Vec<Span>,
}

impl Tiling {
    /// For a convolution with so much padding.
    pub(super) fn new<F: Filtering>(inputs: &[Grid], outputs: &[Grid], padding: usize) -> Self {
        let grids = with_first_pixel(inputs).zip(with_first_pixel(outputs));
        let grids = grids.filter(|(_, (_, output))| output.batch > 0);
        let tiled = |((input_first, input), (output_first, output)): ((usize, Grid), (usize, Grid))| {
            let images = [input.height * input.width, output.height * output.width];
            // Of stride 2, inputs and outputs of neighbors are not equally far apart.
            let [n_down, n_across] =
                if F::STEP == F::OUTPUTS { side_by_side(output, F::OUTPUTS, padding) } else { [1, 1] };
            let down = Line {
                n: n_down,
                sizes: [input.height, output.height],
                steps: [input.width, output.width],
                image_steps: images.map(|pixels| n_across * pixels),
                padding,
            };
            let across = Line {
                n: n_across,
                sizes: [input.width, output.width],
                steps: [1, 1],
                image_steps: images,
                padding,
            };
            let first = |image: usize| [input_first + image * images[0], output_first + image * images[1]];
            TiledGrid {
                first: (0..output.batch).step_by(n_down * n_across).map(first).collect(),
                down: down.spans::<F>(),
                across: across.spans::<F>(),
            }
        };
        Self(grids.map(tiled).collect())
    }

    pub(super) fn tiles(&self) -> Vec<Tile<'_>> {
        let mut tiles = Vec::new();
        for TiledGrid { first, down, across } in &self.0 {
            for &[input, output] in first {
                for down in down {
                    tiles.extend(across.iter().map(|across| Tile { input, output, down, across }));
                }
            }
        }
        tiles
    }
}

/// How many tiles of `size × size` outputs there are, of a convolution of stride 1.
pub(in crate::conv) fn n_tiles(outputs: &[Grid], size: usize, padding: usize) -> usize {
    let of_grid = |&grid: &Grid| {
        let sides = side_by_side(grid, size, padding);
        grid.batch / sides.iter().product::<usize>() * together(sides, grid, size, padding)
    };
    outputs.iter().map(of_grid).sum()
}

/// How many images are cut together, down and across: all of a batch, where that saves a twentieth of the tiles; or one.
fn side_by_side(outputs: Grid, size: usize, padding: usize) -> [usize; 2] {
    let (batch, tiles) = (outputs.batch, |sides| together(sides, outputs, size, padding));
    (1..=batch.isqrt())
        .filter(|few| batch.is_multiple_of(*few))
        .flat_map(|few| [[few, batch / few], [batch / few, few]])
        .min_by_key(|&sides| (tiles(sides), sides))
        .filter(|&sides| 20 * tiles(sides) <= 19 * batch * tiles([1, 1]))
        .unwrap_or([1, 1])
}

/// The tiles of so many images, down and across, that are cut together.
fn together([down, across]: [usize; 2], image: Grid, size: usize, padding: usize) -> usize {
    along(down, image.height, padding).div_ceil(size) * along(across, image.width, padding).div_ceil(size)
}

/// Outputs of `n` images side by side, of stride 1. Between the inputs of two images is the padding that both need, and between
/// their outputs as much as is left of the two pixels by which a window is larger than its output.
fn along(n: usize, outputs: usize, padding: usize) -> usize {
    n * outputs + (n - 1) * (2 - padding)
}

/// Images side by side in one direction; of pairs, the input's first.
struct Line {
    n: usize,
    /// Pixels of an image.
    sizes: [usize; 2],
    /// From a pixel to the next, and from an image to the next.
    steps: [usize; 2],
    image_steps: [usize; 2],
    padding: usize,
}

impl Line {
    fn spans<F: Filtering>(&self) -> Vec<Span> {
        let [_, outputs] = self.sizes;
        let all = along(self.n, outputs, self.padding);
        let span = |tile: usize| {
            let (input, output) = ((tile * F::STEP).wrapping_sub(self.padding), tile * F::OUTPUTS);
            let within = |i, many, pixel| if i < many { pixel } else { None };
            Span {
                inputs: std::array::from_fn(|i| within(i, F::INPUTS, self.pixel(0, input.wrapping_add(i)))),
                outputs: std::array::from_fn(|i| within(i, F::OUTPUTS, self.pixel(1, output + i))),
            }
        };
        (0..all.div_ceil(F::OUTPUTS)).map(span).collect()
    }

    /// The pixel at a position, which wraps around below 0.
    fn pixel(&self, side: usize, position: usize) -> Option<usize> {
        let (image, pixel) = match self.n {
            1 => (0, position),
            _ => (position / self.period(), position % self.period()),
        };
        (image < self.n && pixel < self.sizes[side])
            .then(|| image * self.image_steps[side] + pixel * self.steps[side])
    }

    fn period(&self) -> usize {
        self.sizes[0] + self.padding
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::filtering::{Four, Six, Two};
    use super::*;
    use crate::shape::Window;

    /// Every output is in one tile, and every tap of its window where the definition has it.
    fn check<F: Filtering>(input: Grid, padding: usize) {
        let what = format!("{input:?}, padding {padding}, tiles of {}", F::OUTPUTS);
        let output = Window::new(3, 1, padding).output(input).expect("a window fits");
        // A grid before it, so that its first pixel is not 0.
        let grids = ([Grid::new(1, 3, 3), input], [Grid::new(1, 1 + 2 * padding, 1 + 2 * padding), output]);
        let tiling = Tiling::new::<F>(&grids.0, &grids.1, padding);
        let tiles = tiling.tiles();
        assert_eq!(tiles.len(), n_tiles(&grids.1, F::OUTPUTS, padding), "{what}");
        let mut seen = BTreeMap::new();
        for tile in &tiles {
            for (i, j) in (0..F::OUTPUTS).flat_map(|i| (0..F::OUTPUTS).map(move |j| (i, j))) {
                let taps: Vec<_> = (0..9).map(|tap| tile.input_pixel(i + tap / 3, j + tap % 3)).collect();
                if let Some(pixel) = tile.output_pixel(i, j) {
                    assert!(seen.insert(pixel, taps).is_none(), "{what}");
                }
            }
        }
        let first = grids.1[0].pixels();
        assert_eq!(seen.len(), first + output.pixels(), "{what}");
        for (pixel, taps) in seen.range(first..) {
            let at = pixel - first;
            let (image, y, x) =
                (at / (output.height * output.width), at / output.width % output.height, at % output.width);
            for (tap, found) in taps.iter().enumerate() {
                let within = |at: usize, size: usize| at.checked_sub(padding).filter(|&at| at < size);
                let expected = within(y + tap / 3, input.height)
                    .zip(within(x + tap % 3, input.width))
                    .map(|(y, x)| 9 + (image * input.height + y) * input.width + x);
                assert_eq!(*found, expected, "{what}: tap {tap} of {image} {y} {x}");
            }
        }
    }

    #[test]
    fn every_output_is_in_one_tile_that_sees_its_window() {
        for padding in 0..=2 {
            for (height, width) in [(3, 3), (4, 7), (7, 5), (8, 8), (13, 6), (16, 17)] {
                for batch in 1..=6 {
                    let grid = Grid::new(batch, height, width);
                    check::<Six>(grid, padding);
                    check::<Four>(grid, padding);
                    check::<Two>(grid, padding);
                }
            }
        }
    }

    #[test]
    fn images_are_cut_together_if_that_takes_fewer_tiles() {
        let grid = |batch, size| Grid::new(batch, size, size);
        assert_eq!(side_by_side(grid(4, 32), 6, 1), [2, 2]);
        assert_eq!(n_tiles(&[grid(4, 32)], 6, 1), 121);
        assert_eq!(side_by_side(grid(4, 32), 4, 1), [1, 1]);
        assert_eq!(side_by_side(grid(4, 64), 6, 1), [1, 1]);
        assert_eq!(side_by_side(grid(2, 13), 4, 1), [1, 2]);
        assert_eq!(n_tiles(&[grid(0, 13), grid(2, 13)], 4, 1), 28);
    }
}
