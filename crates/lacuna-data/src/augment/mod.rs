//! The views of an image that teacher and student see.
//!
//! A [`ViewPlan`] is drawn from the size of the image alone, before any pixel is read: the size of
//! a batch and the way of its boxes are known from the annotation file. [`ViewPlan::render`] then
//! makes the pixels, [`ViewPlan::to_view`] the map of the boxes.

mod bilinear;
mod blur;
mod hue;
mod photometric;
mod recolor;

use fast_image_resize as fir;
use lacuna_boxes::Affine;

use crate::decode::RgbImage;
pub use bilinear::bilinear;
use lacuna_random::Rng;
pub use photometric::Photometric;
pub use recolor::{ColorJitter, Erasing, GaussianBlur, RandomErasing, Recolor, RecolorRange};

/// How large a view is, its aspect ratio being that of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resize {
    /// The short side, unless that makes the long side longer than it may be.
    pub short_side: u32,
    /// The longest that the long side may be.
    pub long_side_max: u32,
}

impl Resize {
    /// The size of the view of an image of this size.
    ///
    /// `scale = min(short_side / min(w, h), long_side_max / max(w, h))`, and each side is
    /// `⌊side·scale + ½⌋` as in mmdetection, but at least 1.
    pub fn view_size(self, size: (u32, u32)) -> (u32, u32) {
        self.scaled(size, 0.5)
    }

    /// As [`Self::view_size`], but each side is `⌊side·scale⌋` as in torchvision.
    pub fn view_size_of_torchvision(self, size: (u32, u32)) -> (u32, u32) {
        self.scaled(size, 0.0)
    }

    fn scaled(self, (width, height): (u32, u32), added: f64) -> (u32, u32) {
        let short = f64::from(self.short_side) / f64::from(width.min(height));
        let long = f64::from(self.long_side_max) / f64::from(width.max(height));
        let scaled = |side: u32| ((f64::from(side) * short.min(long) + added) as u32).max(1);
        (scaled(width), scaled(height))
    }
}

/// The sizes that views are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResizeRange {
    /// The shortest and the longest short side, both possible.
    pub short_side: (u32, u32),
    /// The longest that the long side may be.
    pub long_side_max: u32,
}

impl ResizeRange {
    /// Every short side of the range is equally likely.
    ///
    /// # Panics
    /// When the range is empty.
    pub fn draw(self, rng: &mut Rng) -> Resize {
        let (low, high) = self.short_side;
        assert!(low <= high, "no short side is between {low} and {high}");
        Resize { short_side: rng.between(low, high), long_side_max: self.long_side_max }
    }
}

/// What is done to an image to make one of its views: resize, then flip, then what changes colors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ViewPlan {
    image_size: (u32, u32),
    size: (u32, u32),
    flip: bool,
    recolor: Recolor,
}

impl ViewPlan {
    /// The teacher's view: resize and flip.
    pub fn weak(image_size: (u32, u32), resize: ResizeRange, rng: &mut Rng) -> Self {
        let drawn = Self::plain(image_size, resize.draw(rng));
        Self { flip: rng.chance(0.5), ..drawn }
    }

    /// The student's view: resize, flip and one photometric operation.
    pub fn strong(image_size: (u32, u32), resize: ResizeRange, rng: &mut Rng) -> Self {
        let weak = Self::weak(image_size, resize, rng);
        Self { recolor: Photometric::draw(rng).into(), ..weak }
    }

    /// A view with this one's resize and flip, and a recoloring of its own in place of this one's
    /// colors.
    pub fn follower(self, recolor: RecolorRange, rng: &mut Rng) -> Self {
        Self { recolor: recolor.draw(self.size, rng), ..self }
    }

    /// The view at test time: resize alone, nothing drawn.
    pub fn plain(image_size: (u32, u32), resize: Resize) -> Self {
        let size = resize.view_size(image_size);
        Self { image_size, size, flip: false, recolor: Recolor::default() }
    }

    /// Width and height of the view.
    pub fn size(&self) -> (u32, u32) {
        self.size
    }

    /// The map from the image to the view.
    pub fn to_view(&self) -> Affine {
        let resized = Affine::resize(self.image_size, self.size);
        if self.flip { resized.then(Affine::flip_horizontal(self.size.0)) } else { resized }
    }

    /// The pixels of the view.
    ///
    /// # Panics
    /// When the image is not of the size that the plan was made for.
    pub fn render(&self, image: &RgbImage, resizer: &mut Resizer) -> RgbImage {
        assert_eq!(image.size(), self.image_size, "the size of the image a view was planned for");
        let mut view = resizer.resize(image, self.size);
        if self.flip {
            flip_horizontal(&mut view);
        }
        self.recolor.apply(&mut view);
        view
    }
}

/// Resizes images; keeps its working memory from one to the next.
#[derive(Default)]
pub struct Resizer {
    convolution: fir::Resizer,
    /// An image with its rows resized and its columns not yet.
    rows_resized: Vec<u8>,
}

impl Resizer {
    /// Antialiased bilinear interpolation, within 1 level of Pillow's `BILINEAR` (fixture
    /// `fixtures/resize`; coefficients have 16 bits here and 22 there, and of 176 million samples
    /// of photographs 2 were 2 levels away).
    ///
    /// # Panics
    /// When a side of the new size is 0.
    pub fn resize(&mut self, image: &RgbImage, (width, height): (u32, u32)) -> RgbImage {
        if image.size() == (width, height) {
            return image.clone();
        }
        let mut pixels = vec![0; 3 * width as usize * height as usize];
        if image.width() == width || image.height() == height {
            self.convolve(image.pixels(), image.size(), &mut pixels, (width, height));
        } else {
            // Rows first, rounded to whole levels, then columns, as Pillow does when the aspect
            // ratio is kept. In the library's own order, columns first, 1 sample in 10 differs.
            let between = (width, image.height());
            let mut rows_resized = std::mem::take(&mut self.rows_resized);
            rows_resized.resize(3 * between.0 as usize * between.1 as usize, 0);
            self.convolve(image.pixels(), image.size(), &mut rows_resized, between);
            self.convolve(&rows_resized, between, &mut pixels, (width, height));
            self.rows_resized = rows_resized;
        }
        RgbImage::new(width, height, pixels)
    }

    fn convolve(&mut self, from: &[u8], from_size: (u32, u32), to: &mut [u8], to_size: (u32, u32)) {
        // Typed images: with the type known only at run time, the code of all types is compiled.
        use fir::images::{TypedImage, TypedImageRef};
        use fir::pixels::U8x3;
        let from = TypedImageRef::<U8x3>::from_buffer(from_size.0, from_size.1, from);
        let to = TypedImage::<U8x3>::from_buffer(to_size.0, to_size.1, to);
        let (from, mut to) = (from.expect("as many bytes as pixels"), to.expect("as many bytes as pixels"));
        let bilinear = fir::ResizeAlg::Convolution(fir::FilterType::Bilinear);
        self.convolution
            .resize_typed(&from, &mut to, &fir::ResizeOptions::new().resize_alg(bilinear))
            .expect("both images are RGB8 and not empty");
    }
}

/// Mirror left to right, in place.
fn flip_horizontal(image: &mut RgbImage) {
    let stride = 3 * image.width() as usize;
    for row in image.pixels_mut().chunks_exact_mut(stride) {
        row.as_chunks_mut::<3>().0.reverse();
    }
}
