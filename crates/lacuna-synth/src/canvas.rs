//! The canvas that a scene is painted on: RGB in floating point.

use crate::color::{Color, mix};
use crate::stamp::Stamp;

/// A picture of floating-point colors, row by row from the top.
pub(crate) struct Canvas {
    pub width: usize,
    pub height: usize,
    pub pixels: Vec<Color>,
}

impl Canvas {
    /// Each pixel by its `(x, y)`.
    pub(crate) fn from_fn(width: usize, height: usize, mut color: impl FnMut(usize, usize) -> Color) -> Self {
        let mut pixels = Vec::with_capacity(width * height);
        for y in 0..height {
            pixels.extend((0..width).map(|x| color(x, y)));
        }
        Self { width, height, pixels }
    }

    /// Lay a color over the pixels of a stamp, a function of `(x, y)`.
    pub(crate) fn blend(&mut self, stamp: &Stamp, mut color: impl FnMut(usize, usize) -> Color) {
        stamp.for_each(self.width, self.height, |x, y, coverage| {
            let pixel = &mut self.pixels[y * self.width + x];
            *pixel = mix(*pixel, color(x, y), coverage);
        });
    }

    /// The mean color under a stamp; gray when none of it is inside the picture.
    pub(crate) fn mean_under(&self, stamp: &Stamp) -> Color {
        let (mut sum, mut count) = ([0.0; 3], 0.0);
        stamp.for_each_own(self.width, self.height, |x, y| {
            let pixel = self.pixels[y * self.width + x];
            sum = [0, 1, 2].map(|c| sum[c] + pixel[c]);
            count += 1.0;
        });
        if count == 0.0 { [0.5; 3] } else { sum.map(|c| c / count) }
    }
}
