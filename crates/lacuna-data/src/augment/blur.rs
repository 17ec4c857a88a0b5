//! Gaussian blur, as Pillow does it.

use crate::decode::RgbImage;

/// Box blurs that make up a Gaussian one.
const PASSES: usize = 3;

/// Pillow's `GaussianBlur`: three box blurs along the rows, then three along the columns, each
/// rounded to whole levels.
pub(super) fn blur(image: &mut RgbImage, sigma: f32) {
    let window = Window::new(sigma);
    let stride = 3 * image.width() as usize;
    let mut from = image.pixels().to_vec();
    let mut to = vec![0; from.len()];
    for _ in 0..PASSES {
        for (from, to) in from.chunks_exact(stride).zip(to.chunks_exact_mut(stride)) {
            window.slide(from, to, &mut [0; 3]);
        }
        std::mem::swap(&mut from, &mut to);
    }
    let mut sums = vec![0; stride];
    for _ in 0..PASSES {
        window.slide(&from, &mut to, &mut sums);
        std::mem::swap(&mut from, &mut to);
    }
    image.pixels_mut().copy_from_slice(&from);
}

/// The mean over a box that reaches a whole number of elements to either side, and a part of the
/// next ones. Weights have 24 fractional bits.
struct Window {
    reach: usize,
    inner: u32,
    outer: u32,
}

impl Window {
    /// The window that has a third of the Gaussian's variance.
    ///
    /// As in Gwosdek and others, «Theoretical Foundations of Gaussian Convolution by Extended Box
    /// Filtering» (2011), in f32 and f64 where Pillow has `float` and `double`.
    fn new(sigma: f32) -> Self {
        let variance = sigma * sigma / PASSES as f32;
        let length = (12.0 * f64::from(variance) + 1.0).sqrt() as f32;
        let whole = ((f64::from(length) - 1.0) / 2.0).floor() as f32;
        let next = whole + 1.0;
        let part = (2.0 * whole + 1.0) * (whole * next - 3.0 * variance) / (6.0 * (variance - next * next));
        let radius = whole + part;

        let reach = radius as u32;
        let one = 1u32 << 24;
        let inner = (one as f32 / (radius * 2.0 + 1.0)) as u32;
        let outer = one.saturating_sub((2 * reach + 1) * inner) / 2;
        Self { reach: reach as usize, inner, outer }
    }

    /// Blur a line whose elements have as many samples as there are sums. Beyond its ends it goes on
    /// with its first and last element.
    #[inline(always)] // for rows, whose elements have 3 samples, the inner loops vanish
    fn slide(&self, from: &[u8], to: &mut [u8], sums: &mut [u32]) {
        let samples = sums.len();
        let last = from.len() / samples - 1;
        let element = |i: usize| &from[i.min(last) * samples..][..samples];

        // Around the element before the first.
        for (sum, &first) in sums.iter_mut().zip(element(0)) {
            *sum = (self.reach as u32 + 1) * u32::from(first);
        }
        for i in 0..self.reach {
            for (sum, &sample) in sums.iter_mut().zip(element(i)) {
                *sum += u32::from(sample);
            }
        }
        for (i, to) in to.chunks_exact_mut(samples).enumerate() {
            // The element that leaves the inner part of the window is then its outer one.
            let left = element(i.saturating_sub(self.reach + 1));
            let (new, right) = (element(i + self.reach), element(i + self.reach + 1));
            for ((((to, sum), &left), &new), &right) in
                to.iter_mut().zip(&mut *sums).zip(left).zip(new).zip(right)
            {
                *sum = *sum + u32::from(new) - u32::from(left);
                let weighed = *sum * self.inner + (u32::from(left) + u32::from(right)) * self.outer;
                *to = ((weighed + (1 << 23)) >> 24) as u8;
            }
        }
    }
}
