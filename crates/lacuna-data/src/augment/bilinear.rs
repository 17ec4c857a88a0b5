//! Bilinear resizing without antialiasing, as PyTorch does it.

use rayon::prelude::*;

use crate::decode::RgbImage;

/// An image at another size, its levels not rounded: `[height, width, 3]`, from 0 to 255.
///
/// Each pixel is interpolated between the four nearest, also where the image is made smaller: PyTorch's
/// `interpolate(mode="bilinear", align_corners=False)`, with which torchvision's detectors resize.
///
/// # Panics
/// When a side of the new size is 0.
pub fn bilinear(image: &RgbImage, (width, height): (u32, u32)) -> Vec<f32> {
    let columns = positions(image.width(), width);
    let rows = positions(image.height(), height);
    let stride = 3 * image.width() as usize;
    let mut pixels = vec![0.0; 3 * width as usize * height as usize];
    pixels.par_chunks_exact_mut(3 * width as usize).zip(rows).for_each(|(out, row)| {
        let [upper, lower] = [row.first, row.second].map(|row| &image.pixels()[row * stride..][..stride]);
        for (out, column) in out.as_chunks_mut::<3>().0.iter_mut().zip(&columns) {
            for (channel, out) in out.iter_mut().enumerate() {
                let at = |row: &[u8], column: usize| f32::from(row[3 * column + channel]);
                let between = |row| {
                    (1.0 - column.share) * at(row, column.first) + column.share * at(row, column.second)
                };
                *out = (1.0 - row.share) * between(upper) + row.share * between(lower);
            }
        }
    });
    pixels
}

/// A place between two pixels of a line.
#[derive(Clone, Copy)]
struct Position {
    first: usize,
    second: usize,
    /// Of the second.
    share: f32,
}

/// Where the pixels of a line of `to` lie in one of `from`.
fn positions(from: u32, to: u32) -> Vec<Position> {
    assert!(from > 0 && to > 0, "a line of {from} pixels cannot have {to}");
    let scale = from as f32 / to as f32;
    let position = |pixel: u32| {
        let place = (scale * (pixel as f32 + 0.5) - 0.5).max(0.0);
        let first = (place as usize).min(from as usize - 1);
        Position { first, second: (first + 1).min(from as usize - 1), share: place - first as f32 }
    };
    (0..to).map(position).collect()
}
