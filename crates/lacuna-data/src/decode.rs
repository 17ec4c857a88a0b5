//! Image files to 8-bit RGB pixels.
//!
//! A file is known by its content, never by its name. Whatever it holds becomes RGB8 as Pillow's
//! `convert("RGB")` makes it: gray is repeated, a palette looked up, alpha dropped, CMYK and YCCK
//! read by Adobe's (inverted) convention. Of 16-bit samples the high byte is kept. Color profiles
//! are ignored. Of an animation, the first frame.
//!
//! Differs from the reference: Pillow keeps the high byte of 16-bit color, too, but clips 16-bit
//! *gray* at 255, which turns nearly every such image white.
//!
//! A JPEG that ends too early is refused, as Pillow refuses it. One that is complete but damaged
//! in the middle decodes as far as it goes, as it does in Pillow: JPEG has no check sum.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::{self, Cursor, Read as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageReader};
use memchr::memmem;
use serde::{Deserialize, Serialize};

use crate::dataset::Xywh;

/// Images of more pixels are refused before anything is allocated for them: a file of a few bytes
/// can claim any size. 512 MiB of RGB, the size at which Pillow refuses, too.
pub(crate) const MAX_PIXELS: u64 = 512 * 1024 * 1024 / 3;

/// Enough for the headers of nearly every file, a camera's thumbnail included.
const HEADER_BYTES: u64 = 64 * 1024;

/// 8-bit RGB pixels, row by row from the top.
#[derive(Clone, PartialEq, Eq)]
pub struct RgbImage {
    width: u32,
    height: u32,
    pixels: Vec<u8>, // [height, width, 3]
}

impl RgbImage {
    /// # Panics
    /// When a side is 0, or `pixels` are not `3·width·height` bytes.
    pub fn new(width: u32, height: u32, pixels: Vec<u8>) -> Self {
        assert!(width > 0 && height > 0, "an image of {width}×{height} pixels");
        let bytes = 3 * u64::from(width) * u64::from(height);
        assert_eq!(pixels.len() as u64, bytes, "bytes of a {width}×{height} RGB image");
        Self { width, height, pixels }
    }

    /// In pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// In pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Width and height.
    pub fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// The samples, `[height, width, 3]`.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The samples, `[height, width, 3]`, to change.
    pub(crate) fn pixels_mut(&mut self) -> &mut [u8] {
        &mut self.pixels
    }

    /// The samples, `[height, width, 3]`, taken out of the image.
    pub(crate) fn into_pixels(self) -> Vec<u8> {
        self.pixels
    }
}

impl fmt::Debug for RgbImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RgbImage({}×{})", self.width, self.height)
    }
}

/// The size of an image as its file stores it, and as it is shown once turned by its EXIF
/// orientation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSize {
    /// Width and height of the stored pixels.
    pub stored: (u32, u32),
    /// Width and height as shown.
    pub oriented: (u32, u32),
    orientation: Orientation,
}

impl ImageSize {
    fn new(stored: (u32, u32), orientation: Orientation) -> Self {
        use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
        let on_its_side = matches!(orientation, Rotate90 | Rotate90FlipH | Rotate270 | Rotate270FlipH);
        Self { stored, oriented: if on_its_side { (stored.1, stored.0) } else { stored }, orientation }
    }

    /// A box on the stored pixels as a box on the turned ones.
    pub(crate) fn turned(self, bbox: Xywh) -> Xywh {
        let (image_width, image_height) = (f64::from(self.stored.0), f64::from(self.stored.1));
        let Xywh { x, y, width, height } = bbox;
        let (from_right, from_below) = (image_width - (x + width), image_height - (y + height));
        let upright = |x, y| Xywh { x, y, width, height };
        let on_its_side = |x, y| Xywh { x, y, width: height, height: width };
        match self.orientation {
            Orientation::NoTransforms => upright(x, y),
            Orientation::FlipHorizontal => upright(from_right, y),
            Orientation::Rotate180 => upright(from_right, from_below),
            Orientation::FlipVertical => upright(x, from_below),
            Orientation::Rotate90FlipH => on_its_side(y, x),
            Orientation::Rotate90 => on_its_side(from_below, x),
            Orientation::Rotate270FlipH => on_its_side(from_below, from_right),
            Orientation::Rotate270 => on_its_side(y, from_right),
        }
    }

    /// True when [`decode`] gives an image of this size.
    pub fn agrees_with(self, annotated: (u32, u32)) -> bool {
        self.stored == annotated || self.oriented == annotated
    }
}

/// The kinds of image file that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
    /// WebP.
    WebP,
    /// BMP.
    Bmp,
}

impl ImageFormat {
    /// By the first bytes of the content.
    fn detect(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0xFF, 0xD8, 0xFF, ..] => Some(Self::Jpeg),
            [0x89, b'P', b'N', b'G', ..] => Some(Self::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            [b'B', b'M', ..] => Some(Self::Bmp),
            _ => None,
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Bmp => "BMP",
        })
    }
}

/// Why bytes are not the image that was asked for.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Fields are named in the messages.
pub enum DecodeError {
    /// There are no bytes.
    #[error("is empty")]
    Empty,
    /// The content is of no known format.
    #[error("is not a JPEG, PNG, WebP or BMP image")]
    UnknownFormat,
    /// The file ends too early.
    #[error("is a {format} image that ends too early")]
    Truncated { format: ImageFormat },
    /// The decoder failed.
    #[error("is a {format} image that does not decode: {reason}")]
    Broken { format: ImageFormat, reason: String },
    /// The image claims too many pixels.
    #[error("claims to be {}×{} pixels, more than {MAX_PIXELS} in all", size.0, size.1)]
    TooLarge { size: (u32, u32) },
    /// The size is not the annotated one.
    #[error("is {}×{} pixels, annotated as {}×{}", found.0, found.1, annotated.0, annotated.1)]
    SizeMismatch { found: (u32, u32), annotated: (u32, u32) },
}

impl DecodeError {
    fn broken(format: ImageFormat, error: &image::ImageError) -> Self {
        // The outer errors only repeat that a decoder failed; the innermost one says at what.
        let mut cause: &dyn Error = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        Self::Broken { format, reason: cause.to_string() }
    }
}

/// What is wrong with an image file.
#[derive(Debug, thiserror::Error)]
pub enum ImageProblem {
    /// There is no such file.
    #[error("does not exist")]
    Absent,
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// The content is not the image that was asked for.
    #[error(transparent)]
    Undecodable(#[from] DecodeError),
}

impl From<io::Error> for ImageProblem {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::NotFound { Self::Absent } else { Self::Unreadable(error) }
    }
}

/// An image file that cannot be used, and why.
#[derive(Debug, thiserror::Error)]
#[error("image {} {problem}", path.display())]
pub struct ImageError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: ImageProblem,
}

/// What to do about an image that is absent, does not decode, or has another size than its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnBadImage {
    /// Stop with an error.
    Error,
    /// Go on without it, and say so.
    Skip,
}

/// [`decode`] the file at `path`.
pub fn read(path: &Path, annotated_size: Option<(u32, u32)>) -> Result<RgbImage, ImageError> {
    let image =
        std::fs::read(path).map_err(ImageProblem::from).and_then(|bytes| Ok(decode(&bytes, annotated_size)?));
    image.map_err(|problem| ImageError { path: path.to_owned(), problem })
}

/// The size of the image at `path`, from its header alone: pixels are neither read nor checked.
pub fn read_size(path: &Path) -> Result<ImageSize, ImageError> {
    size_of_file(path).map_err(|problem| ImageError { path: path.to_owned(), problem })
}

fn size_of_file(path: &Path) -> Result<ImageSize, ImageProblem> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    file.by_ref().take(HEADER_BYTES).read_to_end(&mut bytes)?;
    let from_start = size(&bytes);
    let whole = (bytes.len() as u64) < HEADER_BYTES;
    if whole || matches!(from_start, Ok(_) | Err(DecodeError::UnknownFormat)) {
        return Ok(from_start?);
    }
    // Large metadata push the size beyond the start of some files.
    file.read_to_end(&mut bytes)?;
    Ok(size(&bytes)?)
}

fn size(bytes: &[u8]) -> Result<ImageSize, DecodeError> {
    let (format, mut decoder) = open(bytes)?;
    let orientation = decoder.orientation().map_err(|error| DecodeError::broken(format, &error))?;
    Ok(ImageSize::new(decoder.dimensions(), orientation))
}

/// The pixels of a JPEG, PNG, WebP or BMP image.
///
/// Cameras store pictures as the sensor saw them, with a note (EXIF) on how to turn them. Some
/// annotators saw the stored pixels and some the turned ones, so the annotated size decides: the
/// orientation is applied exactly when the stored size disagrees with `annotated_size` and the
/// turned size agrees. Without an annotated size the pixels come as they are stored.
pub fn decode(bytes: &[u8], annotated_size: Option<(u32, u32)>) -> Result<RgbImage, DecodeError> {
    let (format, mut decoder) = open(bytes)?;
    let stored = decoder.dimensions();
    let orientation = match annotated_size {
        Some(annotated) if annotated != stored => {
            let orientation = decoder.orientation().map_err(|error| DecodeError::broken(format, &error))?;
            if ImageSize::new(stored, orientation).oriented != annotated {
                return Err(DecodeError::SizeMismatch { found: stored, annotated });
            }
            orientation
        }
        _ => Orientation::NoTransforms,
    };
    // The decoder below fills the missing part of a truncated JPEG with gray.
    if format == ImageFormat::Jpeg && !has_end_of_image(bytes) {
        return Err(DecodeError::Truncated { format });
    }

    let color = decoder.color_type();
    let mut samples = vec![0; decoder.total_bytes() as usize];
    // A decoder that panics on a file must not take a training run with it, nor hide the file's name.
    let read = AssertUnwindSafe(|| decoder.read_image(&mut samples));
    match catch_unwind(read) {
        Ok(read) => read.map_err(|error| DecodeError::broken(format, &error))?,
        Err(_) => return Err(DecodeError::Broken { format, reason: "its decoder failed".into() }),
    }
    let image = RgbImage::new(stored.0, stored.1, rgb8(samples, color));
    Ok(turn(image, orientation))
}

/// A decoder that has read the header of an image, and found a size worth decoding.
fn open(bytes: &[u8]) -> Result<(ImageFormat, impl ImageDecoder), DecodeError> {
    if bytes.is_empty() {
        return Err(DecodeError::Empty);
    }
    let format = ImageFormat::detect(bytes).ok_or(DecodeError::UnknownFormat)?;
    let coded = match format {
        ImageFormat::Jpeg => image::ImageFormat::Jpeg,
        ImageFormat::Png => image::ImageFormat::Png,
        ImageFormat::WebP => image::ImageFormat::WebP,
        ImageFormat::Bmp => image::ImageFormat::Bmp,
    };
    let decoder = ImageReader::with_format(Cursor::new(bytes), coded)
        .into_decoder()
        .map_err(|error| DecodeError::broken(format, &error))?;

    let (width, height) = decoder.dimensions();
    match u64::from(width) * u64::from(height) {
        0 => Err(DecodeError::Broken { format, reason: format!("its size is {width}×{height}") }),
        1..=MAX_PIXELS => Ok((format, decoder)),
        _ => Err(DecodeError::TooLarge { size: (width, height) }),
    }
}

/// True when the coded data of a JPEG reach their end marker.
fn has_end_of_image(jpeg: &[u8]) -> bool {
    let mut rest = &jpeg[2..];
    // Segments are skipped whole: the thumbnail in one of them has an end of its own.
    while let [first, second, ..] = *rest {
        let skipped = match (first, second) {
            // Start of scan. Coded data never hold the end marker by chance.
            (0xFF, 0xDA) => return memmem::find(rest, &[0xFF, 0xD9]).is_some(),
            // Stray bytes, fill bytes, and markers without a length.
            (0xFF, 0x00 | 0x01 | 0xD0..=0xD8 | 0xFF) | (..=0xFE, _) => 1,
            (0xFF, _) => match *rest {
                [_, _, high, low, ..] => 2 + usize::from(u16::from_be_bytes([high, low])),
                _ => return false,
            },
        };
        rest = rest.get(skipped..).unwrap_or_default();
    }
    false
}

/// Samples of any kind as RGB8.
fn rgb8(samples: Vec<u8>, color: ColorType) -> Vec<u8> {
    let channels = usize::from(color.channel_count());
    let samples = match usize::from(color.bytes_per_pixel()) / channels {
        1 => samples,
        _ => samples.as_chunks().0.iter().map(|&sample| (u16::from_ne_bytes(sample) >> 8) as u8).collect(),
    };
    match channels {
        3 => samples,
        1 => samples.iter().flat_map(|&gray| [gray; 3]).collect(),
        2 => samples.as_chunks().0.iter().flat_map(|&[gray, _alpha]| [gray; 3]).collect(),
        _ => samples.as_chunks().0.iter().flat_map(|&[r, g, b, _alpha]| [r, g, b]).collect(),
    }
}

fn turn(image: RgbImage, orientation: Orientation) -> RgbImage {
    if orientation == Orientation::NoTransforms {
        return image;
    }
    let (width, height) = image.size();
    let buffer = image::RgbImage::from_raw(width, height, image.into_pixels());
    let mut turned = DynamicImage::ImageRgb8(buffer.expect("an RgbImage has all its pixels"));
    turned.apply_orientation(orientation);
    RgbImage::new(turned.width(), turned.height(), turned.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_turn_with_the_pixels() {
        let (width, height) = (7u32, 5u32);
        let bbox = Xywh { x: 1.0, y: 2.0, width: 3.0, height: 2.0 };
        let inside = |x: u32, y: u32| (1..4).contains(&x) && (2..4).contains(&y);
        let levels = (0..height).flat_map(|y| (0..width).flat_map(move |x| [u8::from(inside(x, y)); 3]));
        let image = RgbImage::new(width, height, levels.collect());
        for code in 1..=8 {
            let orientation = Orientation::from_exif(code).expect("1 to 8 are orientations");
            let size = ImageSize::new((width, height), orientation);
            let turned = turn(image.clone(), orientation);
            assert_eq!(turned.size(), size.oriented);
            let lit = |x: u32, y: u32| turned.pixels()[(3 * (y * turned.width() + x)) as usize] == 1;
            let lit: Vec<(u32, u32)> = (0..turned.height())
                .flat_map(|y| (0..turned.width()).map(move |x| (x, y)))
                .filter(|&(x, y)| lit(x, y))
                .collect();
            let Xywh { x, y, width, height } = size.turned(bbox);
            let (first, last) = (lit[0], lit[lit.len() - 1]);
            let found =
                (f64::from(first.0), f64::from(first.1), f64::from(last.0 + 1), f64::from(last.1 + 1));
            assert_eq!((x, y, x + width, y + height), found, "orientation {code}");
        }
    }
}
