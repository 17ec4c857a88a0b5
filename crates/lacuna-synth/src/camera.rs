//! From the painted scene to the bytes of a picture: light, lens and sensor.

use lacuna_random::Rng;

use crate::canvas::Canvas;
use crate::color::Color;
use crate::outline::direction;

/// Apply light, blur and sensor noise; the result is RGB8.
pub(crate) fn expose(mut canvas: Canvas, rng: &mut Rng) -> Vec<u8> {
    illuminate(&mut canvas, rng);
    blur(&mut canvas, rng.range(0.0, 0.2) as f32);
    let sensor = Noise::new(rng.range(0.0, 0.035) as f32, 3 * canvas.width, rng);
    let mut bytes = Vec::with_capacity(3 * canvas.pixels.len());
    for row in canvas.pixels.chunks_exact(canvas.width) {
        let noise = sensor.row(rng);
        let samples = row.as_flattened().iter().zip(noise);
        // The cast saturates: what is too bright is white.
        bytes.extend(samples.map(|(&value, noise)| ((value + noise) * 255.0 + 0.5) as u8));
    }
    bytes
}

/// The light of the whole scene: its color, brighter on one side, darker in the corners, and a
/// haze that lifts the dark.
fn illuminate(canvas: &mut Canvas, rng: &mut Rng) {
    let brightness = rng.range(0.75, 1.15) as f32;
    let tint: Color = [0; 3].map(|_| brightness * rng.range(0.88, 1.12) as f32);
    let slope = rng.range(0.0, 0.3) as f32;
    let toward = direction(rng).map(|d| d * slope);
    let vignette = rng.range(0.0, 0.25) as f32;
    let haze = rng.range(0.0, 0.12) as f32;
    let (to_x, to_y) = (2.0 / canvas.width as f32, 2.0 / canvas.height as f32);
    for (y, row) in canvas.pixels.chunks_exact_mut(canvas.width).enumerate() {
        let v = y as f32 * to_y - 1.0;
        for (x, pixel) in row.iter_mut().enumerate() {
            let u = x as f32 * to_x - 1.0;
            let light = (1.0 + toward[0] * u + toward[1] * v) * (1.0 - vignette * 0.5 * (u * u + v * v));
            *pixel = [0, 1, 2].map(|c| haze + (1.0 - haze) * pixel[c] * tint[c] * light);
        }
    }
}

/// Mix each pixel with its neighbors: `side` of each, down and across.
fn blur(canvas: &mut Canvas, side: f32) {
    let middle = 1.0 - 2.0 * side;
    let width = canvas.width;
    let weigh = |a: &Color, b: &Color, c: &Color| [0, 1, 2].map(|i| middle * b[i] + side * (a[i] + c[i]));

    let mut row = vec![[0.0; 3]; width];
    for pixels in canvas.pixels.chunks_exact_mut(width) {
        row.copy_from_slice(pixels);
        for (pixel, near) in pixels[1..width - 1].iter_mut().zip(row.windows(3)) {
            *pixel = weigh(&near[0], &near[1], &near[2]);
        }
    }
    let mut above = canvas.pixels[..width].to_vec();
    for y in 1..canvas.height - 1 {
        let (done, below) = canvas.pixels.split_at_mut((y + 1) * width);
        let pixels = &mut done[y * width..];
        row.copy_from_slice(pixels);
        for (x, pixel) in pixels.iter_mut().enumerate() {
            *pixel = weigh(&above[x], &row[x], &below[x]);
        }
        std::mem::swap(&mut above, &mut row);
    }
}

/// The sensor's noise. A draw for each sample would cost more than the rest of the picture, so each row
/// takes a stretch of one long sequence, from a random start.
struct Noise {
    sequence: Vec<f32>,
    row_len: usize,
}

impl Noise {
    const STARTS: usize = 8192;

    fn new(deviation: f32, row_len: usize, rng: &mut Rng) -> Self {
        // The sum of four uniform draws is close to normal; its variance is 4/12.
        let scale = deviation * 3.0_f32.sqrt();
        let mut normal = || scale * ((0..4).map(|_| rng.unit()).sum::<f64>() - 2.0) as f32;
        Self { sequence: (0..Self::STARTS + row_len).map(|_| normal()).collect(), row_len }
    }

    fn row(&self, rng: &mut Rng) -> &[f32] {
        &self.sequence[rng.below(Self::STARTS)..][..self.row_len]
    }
}
