//! The photometric operations of the paper, with Pillow's meaning.

use super::blur::blur;
use super::hue::turn_hues;
use crate::decode::RgbImage;
use lacuna_random::Rng;

/// One operation on colors that leaves every object where it is, with Pillow's meaning of each
/// (`ImageOps`, `ImageEnhance` and `ImageFilter`; fixtures `fixtures/photometric` and
/// `fixtures/recolor`), equal in every sample.
///
/// A `factor` enhances: 0 takes the property away, 1 leaves the image as it is, more exaggerates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs)] // Fields are explained by their variants.
pub enum Photometric {
    /// Change nothing.
    #[default]
    Identity,
    /// Stretch each channel over the whole of 0..=255.
    AutoContrast,
    /// Make the histogram of each channel as flat as a table can.
    Equalize,
    /// Invert the samples at and above the threshold.
    Solarize { threshold: u8 },
    /// Blend with the gray image.
    Color { factor: f32 },
    /// Blend with the mean gray.
    Contrast { factor: f32 },
    /// Blend with black.
    Brightness { factor: f32 },
    /// Blend with the smoothed image.
    Sharpness { factor: f32 },
    /// Keep the upper `bits` of each sample, 1 to 8.
    Posterize { bits: u8 },
    /// Turn all hues by this part of the color circle, from −½ to ½, as torchvision does.
    Hue { turn: f32 },
    /// Blur with a Gaussian of this standard deviation, in pixels.
    Blur { sigma: f32 },
}

/// A new value for each value of a sample.
type Table = [u8; 256];

impl Photometric {
    /// One of the paper's nine operations, each equally likely, of a strength within its ranges. Hue
    /// and blur are not among them.
    pub fn draw(rng: &mut Rng) -> Self {
        let operation = rng.below(9);
        let mut factor = || rng.range(0.28, 1.72) as f32;
        match operation {
            0 => Self::Identity,
            1 => Self::AutoContrast,
            2 => Self::Equalize,
            3 => Self::Solarize { threshold: rng.between(25, 230) as u8 },
            4 => Self::Color { factor: factor() },
            5 => Self::Contrast { factor: factor() },
            6 => Self::Brightness { factor: factor() },
            7 => Self::Sharpness { factor: factor() },
            _ => Self::Posterize { bits: rng.between(1, 4) as u8 },
        }
    }

    /// # Panics
    /// When `bits` are not 1 to 8.
    pub fn apply(self, image: &mut RgbImage) {
        match self {
            Self::Identity => {}
            Self::AutoContrast => map_channels(image, stretched),
            Self::Equalize => map_channels(image, flattened),
            Self::Solarize { threshold } => map(image, |v| if v < threshold { v } else { 255 - v }),
            Self::Color { factor } => saturate(image, factor),
            Self::Contrast { factor } => {
                let mean = mean_gray(image);
                map(image, |v| blend(mean, v, factor));
            }
            Self::Brightness { factor } => map(image, |v| blend(0, v, factor)),
            Self::Sharpness { factor } => sharpen(image, factor),
            Self::Posterize { bits } => {
                assert!((1..=8).contains(&bits), "posterize to {bits} bits");
                map(image, |v| v & (u8::MAX << (8 - bits)));
            }
            Self::Hue { turn } => turn_hues(image, turn),
            Self::Blur { sigma } => blur(image, sigma),
        }
    }
}

/// `degenerate + factor·(value − degenerate)`, clipped to 0..=255 and rounded towards zero: the
/// arithmetic of Pillow's `Image.blend`, in f32 as there.
fn blend(degenerate: u8, value: u8, factor: f32) -> u8 {
    let (degenerate, value) = (f32::from(degenerate), f32::from(value));
    (degenerate + factor * (value - degenerate)) as u8
}

fn build_table(value: impl Fn(u8) -> u8) -> Table {
    std::array::from_fn(|v| value(v as u8))
}

fn map(image: &mut RgbImage, value: impl Fn(u8) -> u8) {
    let table = build_table(value);
    for sample in image.pixels_mut() {
        *sample = table[usize::from(*sample)];
    }
}

/// Map each channel by the table made from its histogram.
fn map_channels(image: &mut RgbImage, table_of: impl Fn(&[u32; 256]) -> Table) {
    let mut histograms = [[0; 256]; 3];
    for pixel in image.pixels().as_chunks::<3>().0 {
        for (histogram, &sample) in histograms.iter_mut().zip(pixel) {
            histogram[usize::from(sample)] += 1;
        }
    }
    let tables = histograms.each_ref().map(table_of);
    for pixel in image.pixels_mut().as_chunks_mut::<3>().0 {
        for (table, sample) in tables.iter().zip(pixel) {
            *sample = table[usize::from(*sample)];
        }
    }
}

/// `v → 255·(v − low)/(high − low)`, `low` and `high` the outermost values that occur; a constant
/// channel stays.
fn stretched(histogram: &[u32; 256]) -> Table {
    let low = histogram.iter().position(|&count| count > 0).unwrap_or(0);
    let high = histogram.iter().rposition(|&count| count > 0).unwrap_or(0);
    if high <= low {
        return build_table(|v| v);
    }
    let scale = 255.0 / (high - low) as f64;
    let offset = -(low as f64) * scale;
    build_table(|v| (f64::from(v) * scale + offset) as u8)
}

/// `v → (step/2 + samples below v) / step`, with `step` = (samples below the highest value) / 255,
/// all in integers; a channel too small or too uniform to have a step stays.
fn flattened(histogram: &[u32; 256]) -> Table {
    let samples: u32 = histogram.iter().sum();
    let highest = histogram.iter().rfind(|&&count| count > 0).copied().unwrap_or(0);
    let step = (samples - highest) / 255;
    if step == 0 {
        return build_table(|v| v);
    }
    let mut below = step / 2;
    histogram.map(|count| {
        let value = (below / step).min(255) as u8;
        below += count;
        value
    })
}

/// Luma by ITU-R 601-2 in 16 fractional bits, Pillow's `convert("L")`.
fn gray([r, g, b]: [u8; 3]) -> u8 {
    ((19595 * u32::from(r) + 38470 * u32::from(g) + 7471 * u32::from(b) + 0x8000) >> 16) as u8
}

fn mean_gray(image: &RgbImage) -> u8 {
    let pixels = image.pixels().as_chunks::<3>().0;
    let sum: u64 = pixels.iter().map(|&pixel| u64::from(gray(pixel))).sum();
    (sum as f64 / pixels.len() as f64 + 0.5) as u8
}

/// [`blend`] for every degenerate value: two look-ups are faster than the arithmetic by far, and a
/// view has more samples than the tables have entries.
fn blend_tables(factor: f32) -> Vec<Table> {
    (0..=255).map(|degenerate| build_table(|v| blend(degenerate, v, factor))).collect()
}

fn saturate(image: &mut RgbImage, factor: f32) {
    let blended = blend_tables(factor);
    for pixel in image.pixels_mut().as_chunks_mut::<3>().0 {
        let with_gray = &blended[usize::from(gray(*pixel))];
        *pixel = pixel.map(|sample| with_gray[usize::from(sample)]);
    }
}

/// Blend with the image smoothed by Pillow's `SMOOTH`: each sample weighs 5, its eight neighbors
/// 1, of 13. The outermost pixels are not smoothed, nor are images less than 3 pixels wide or high.
fn sharpen(image: &mut RgbImage, factor: f32) {
    let (width, height) = (image.width() as usize, image.height() as usize);
    if width < 3 || height < 3 {
        return;
    }
    let blended = blend_tables(factor);
    let stride = 3 * width;
    let pixels = image.pixels_mut();
    // The row above as it was: the image is overwritten on the way down.
    let mut above = pixels[..stride].to_vec();
    let mut columns = vec![0u16; stride]; // above + here + below
    let mut smooth = vec![0; stride];
    for row in 1..height - 1 {
        let (here, below) = pixels[row * stride..(row + 2) * stride].split_at_mut(stride);
        for (((sum, above), here), below) in columns.iter_mut().zip(&above).zip(&*here).zip(&*below) {
            *sum = u16::from(*above) + u16::from(*here) + u16::from(*below);
        }
        above.copy_from_slice(here);

        let inside = 3..stride - 3;
        let neighbors = columns.iter().zip(&columns[3..]).zip(&columns[6..]);
        for ((smooth, here), ((left, middle), right)) in
            smooth[inside.clone()].iter_mut().zip(&here[inside.clone()]).zip(neighbors)
        {
            let weighted = left + middle + right + 4 * u16::from(*here);
            *smooth = ((weighted + 6) / 13) as u8; // to the nearest: thirteenths have no ties
        }
        for (here, smooth) in here[inside.clone()].iter_mut().zip(&smooth[inside]) {
            *here = blended[usize::from(*smooth)][usize::from(*here)];
        }
    }
}
