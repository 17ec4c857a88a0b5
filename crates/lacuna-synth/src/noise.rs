//! Fractal noise over a picture.

use lacuna_random::Rng;

/// Value noise summed over `octaves`, each with half the cell size and half the weight of the one
/// before, stretched to make use of 0..1. One value per pixel.
pub(crate) fn fractal(rng: &mut Rng, width: usize, height: usize, cell: f32, octaves: u32) -> Vec<f32> {
    let mut sum = vec![0.0; width * height];
    let (mut cell, mut weight, mut total) = (cell, 1.0, 0.0);
    for _ in 0..octaves {
        add_octave(&mut sum, width, height, cell, weight, rng);
        total += weight;
        (cell, weight) = (0.5 * cell, 0.5 * weight);
    }
    // Sums of random values gather around their mean.
    let stretch = 1.6 / total;
    for value in &mut sum {
        *value = (0.5 + (*value - 0.5 * total) * stretch).clamp(0.0, 1.0);
    }
    sum
}

/// Random values at the corners of a grid of cells, smoothly interpolated between.
fn add_octave(sum: &mut [f32], width: usize, height: usize, cell: f32, weight: f32, rng: &mut Rng) {
    let cell = cell.max(1.5);
    let columns = (width as f32 / cell) as usize + 3;
    let rows = (height as f32 / cell) as usize + 3;
    let lattice: Vec<f32> = (0..columns * rows).map(|_| weight * rng.unit() as f32).collect();
    let (x_shift, y_shift) = (rng.unit() as f32, rng.unit() as f32);
    let across: Vec<(usize, f32)> = (0..width).map(|x| cell_of(x, cell, x_shift)).collect();

    let mut line = vec![0.0; columns];
    for (y, sum_row) in sum.chunks_exact_mut(width).enumerate() {
        let (row, t) = cell_of(y, cell, y_shift);
        let above = &lattice[row * columns..][..columns];
        let below = &lattice[(row + 1) * columns..][..columns];
        for ((value, a), b) in line.iter_mut().zip(above).zip(below) {
            *value = a + (b - a) * t;
        }
        for (value, &(column, t)) in sum_row.iter_mut().zip(&across) {
            *value += line[column] + (line[column + 1] - line[column]) * t;
        }
    }
}

/// The cell a pixel lies in, and how far into it (eased, so that cells meet without a crease).
fn cell_of(pixel: usize, cell: f32, shift: f32) -> (usize, f32) {
    let position = pixel as f32 / cell + shift;
    let index = position as usize;
    let t = position - index as f32;
    (index, t * t * (3.0 - 2.0 * t))
}
