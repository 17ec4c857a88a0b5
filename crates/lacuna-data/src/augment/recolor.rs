//! The color changes of other systems: jitter, gray, blur and erasing.

use super::photometric::Photometric;
use crate::decode::RgbImage;
use lacuna_random::{Purpose, Rng};

/// How strongly colors are jittered, with the meaning of torchvision's `ColorJitter`.
///
/// A factor is drawn from `[max(0, 1 − x), 1 + x]` for each of brightness, contrast and saturation,
/// and a turn of all hues from `[−hue, hue]` of the color circle. The four are done in random order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColorJitter {
    /// The largest change of brightness.
    pub brightness: f64,
    /// The largest change of contrast.
    pub contrast: f64,
    /// The largest change of saturation.
    pub saturation: f64,
    /// At most ½.
    pub hue: f64,
    /// Of all four together.
    pub probability: f64,
}

/// How far an image is blurred.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaussianBlur {
    /// The least and the largest standard deviation, in pixels.
    pub sigma: (f64, f64),
    /// The probability of a blur.
    pub probability: f64,
}

/// How large the rectangles are that are replaced by noise, with the meaning of torchvision's
/// `RandomErasing`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomErasing {
    /// Area of the rectangle, as a part of the image's.
    pub scale: (f64, f64),
    /// Height by width; its logarithm is uniform.
    pub ratio: (f64, f64),
    /// The probability of an erasing.
    pub probability: f64,
}

/// What recolorings are drawn from: the steps in their order, each of them optional.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecolorRange {
    /// Changes of brightness, contrast, saturation and hue.
    pub jitter: Option<ColorJitter>,
    /// How likely all colors become their gray.
    pub gray_probability: f64,
    /// A blur.
    pub blur: Option<GaussianBlur>,
    /// Up to three rectangles of noise.
    pub erasings: [Option<RandomErasing>; 3],
}

impl RecolorRange {
    /// Co-mining's second view.
    ///
    /// Differs from the reference: there images are blue, green, red and Pillow takes them for red,
    /// green, blue.
    pub const CO_MINING: Self = Self {
        jitter: Some(ColorJitter {
            brightness: 0.8,
            contrast: 0.8,
            saturation: 0.8,
            hue: 0.2,
            probability: 0.8,
        }),
        gray_probability: 0.0,
        blur: None,
        erasings: [None; 3],
    };

    /// Unbiased Teacher's strong view.
    ///
    /// Differs from the reference: the noise of the erasings is uniform here and, there, normal of
    /// standard deviation 255 and wrapped to bytes. The channels are swapped there as in Co-mining.
    pub const UNBIASED_TEACHER: Self = Self {
        jitter: Some(ColorJitter {
            brightness: 0.4,
            contrast: 0.4,
            saturation: 0.4,
            hue: 0.1,
            probability: 0.8,
        }),
        gray_probability: 0.2,
        blur: Some(GaussianBlur { sigma: (0.1, 2.0), probability: 0.5 }),
        erasings: [
            Some(RandomErasing { scale: (0.05, 0.2), ratio: (0.3, 3.3), probability: 0.7 }),
            Some(RandomErasing { scale: (0.02, 0.2), ratio: (0.1, 6.0), probability: 0.5 }),
            Some(RandomErasing { scale: (0.02, 0.2), ratio: (0.05, 8.0), probability: 0.3 }),
        ],
    };

    /// SAOD's second view.
    ///
    /// Differs from the reference: there a part of one annotated box is blackened, too, and the three
    /// are done in one order.
    pub const SAOD: Self = Self {
        jitter: Some(ColorJitter {
            brightness: 0.5,
            contrast: 0.5,
            saturation: 0.5,
            hue: 0.0,
            probability: 1.0,
        }),
        gray_probability: 0.0,
        blur: None,
        erasings: [None; 3],
    };

    /// A recoloring of an image of this size.
    pub fn draw(self, size: (u32, u32), rng: &mut Rng) -> Recolor {
        let mut operations = [Photometric::Identity; 6];
        if let Some(jitter) = self.jitter.filter(|jitter| rng.chance(jitter.probability)) {
            operations[..4].copy_from_slice(&jitter.draw(rng));
        }
        if rng.chance(self.gray_probability) {
            operations[4] = Photometric::Color { factor: 0.0 };
        }
        if let Some(blur) = self.blur.filter(|blur| rng.chance(blur.probability)) {
            operations[5] = Photometric::Blur { sigma: rng.range(blur.sigma.0, blur.sigma.1) as f32 };
        }
        let erasings = self.erasings.map(|erasing| {
            let erasing = erasing.filter(|erasing| rng.chance(erasing.probability))?;
            erasing.draw(size, rng)
        });
        Recolor { operations, erasings }
    }
}

impl ColorJitter {
    fn draw(self, rng: &mut Rng) -> [Photometric; 4] {
        let mut factor = |strength: f64| rng.range((1.0 - strength).max(0.0), 1.0 + strength) as f32;
        let mut operations = [
            Photometric::Brightness { factor: factor(self.brightness) },
            Photometric::Contrast { factor: factor(self.contrast) },
            Photometric::Color { factor: factor(self.saturation) },
            // A turn by 0 would change the image a little.
            match self.hue {
                0.0 => Photometric::Identity,
                hue => Photometric::Hue { turn: rng.range(-hue, hue) as f32 },
            },
        ];
        rng.shuffle(&mut operations);
        operations
    }
}

impl RandomErasing {
    /// None if ten rectangles in turn do not fit, as happens to those of extreme ratio.
    fn draw(self, (width, height): (u32, u32), rng: &mut Rng) -> Option<Erasing> {
        let area = f64::from(width) * f64::from(height);
        let log_ratio = (libm::log(self.ratio.0), libm::log(self.ratio.1));
        for _ in 0..10 {
            let area = area * rng.range(self.scale.0, self.scale.1);
            let ratio = libm::exp(rng.range(log_ratio.0, log_ratio.1));
            let side = |squared: f64| squared.sqrt().round_ties_even() as u32;
            let (w, h) = (side(area / ratio), side(area * ratio));
            if w < width && h < height {
                let (y, x) = (rng.between(0, height - h), rng.between(0, width - w));
                return Some(Erasing { x, y, width: w, height: h, noise_seed: rng.seed() });
            }
        }
        None
    }
}

/// Several changes of colors that leave every object where it is, though erasing may hide it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recolor {
    /// One after the other.
    pub operations: [Photometric; 6],
    /// After them.
    pub erasings: [Option<Erasing>; 3],
}

impl Recolor {
    /// # Panics
    /// When an erasing is not inside the image.
    pub fn apply(self, image: &mut RgbImage) {
        for operation in self.operations {
            operation.apply(image);
        }
        for erasing in self.erasings.into_iter().flatten() {
            erasing.apply(image);
        }
    }
}

impl From<Photometric> for Recolor {
    fn from(operation: Photometric) -> Self {
        let mut recolor = Self::default();
        recolor.operations[0] = operation;
        recolor
    }
}

/// A rectangle that is replaced by noise: every level of every sample is equally likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erasing {
    /// The left side.
    pub x: u32,
    /// The top side.
    pub y: u32,
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
    /// The seed of the noise.
    pub noise_seed: u64,
}

impl Erasing {
    fn apply(self, image: &mut RgbImage) {
        let mut noise = Rng::new(Purpose::Erase, self.noise_seed, 0, 0);
        let stride = 3 * image.width() as usize;
        let (left, right) = (3 * self.x as usize, 3 * (self.x + self.width) as usize);
        let (top, bottom) = (self.y as usize * stride, (self.y + self.height) as usize * stride);
        for row in image.pixels_mut()[top..bottom].chunks_exact_mut(stride) {
            noise.fill(&mut row[left..right]);
        }
    }
}
