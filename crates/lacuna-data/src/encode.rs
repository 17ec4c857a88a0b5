//! RGB8 pixels to image files.

use std::io::{self, Write};

use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

use crate::decode::RgbImage;

/// High enough that the smallest objects of synthetic scenes keep their surface and drawn lines their color.
const JPEG_QUALITY: u8 = 92;

impl RgbImage {
    /// Write a JPEG, within [`write_file`](crate::output::write_file) or
    /// [`NewFolder::file`](crate::output::NewFolder::file), so that it is there whole or not at all.
    ///
    /// # Errors
    /// When `out` fails, or a side is beyond JPEG's 65535 pixels.
    pub fn write_jpeg(&self, out: &mut impl Write) -> io::Result<()> {
        self.encode(JpegEncoder::new_with_quality(out, JPEG_QUALITY))
    }

    /// Write a PNG, which loses nothing, likewise.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn write_png(&self, out: &mut impl Write) -> io::Result<()> {
        // Into memory first: of an output that fails the encoder would not say why.
        let mut png = Vec::new();
        self.encode(PngEncoder::new(&mut png))?;
        out.write_all(&png)
    }

    fn encode(&self, encoder: impl ImageEncoder) -> io::Result<()> {
        encoder.write_image(self.pixels(), self.width(), self.height(), ExtendedColorType::Rgb8).map_err(
            |error| match error {
                image::ImageError::IoError(error) => error,
                error => io::Error::other(error),
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::decode::{RgbImage, read};
    use crate::output::{IfExists, write_file};

    #[test]
    fn a_jpeg_reads_back_as_it_was_written() {
        // Halves in strong colors: their border stays sharp only if color is stored in full.
        let half = |color: [u8; 3]| color.repeat(16 * 8);
        let image = RgbImage::new(16, 16, [half([230, 60, 70]), half([20, 90, 240])].concat());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jpg");
        write_file(&path, IfExists::Refuse, |out| image.write_jpeg(out)).unwrap();
        let back = read(&path, Some((16, 16))).unwrap();
        assert!(image.pixels().iter().zip(back.pixels()).all(|(a, b)| a.abs_diff(*b) <= 4));
    }

    #[test]
    fn a_png_reads_back_bit_for_bit() {
        // Neighbors that differ at random: nothing that an encoder could smooth survives a loss.
        let pixels: Vec<u8> =
            (0..37u32 * 23 * 3).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let image = RgbImage::new(37, 23, pixels);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        write_file(&path, IfExists::Refuse, |out| image.write_png(out)).unwrap();
        assert_eq!(read(&path, Some((37, 23))).unwrap().pixels(), image.pixels());
    }

    #[test]
    fn an_output_that_fails_is_an_error() {
        struct Full;
        impl std::io::Write for Full {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let image = RgbImage::new(1, 1, vec![0; 3]);
        assert_eq!(image.write_png(&mut Full).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        assert_eq!(image.write_jpeg(&mut Full).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_side_beyond_jpeg_is_refused() {
        let long = RgbImage::new(70_000, 1, vec![0; 210_000]);
        assert!(long.write_jpeg(&mut Vec::new()).is_err());
    }
}
