//! Every kind of image file against Pillow's pixels (fixtures/decode/make.py), and bytes that are
//! no image, or no longer.

#![allow(clippy::unwrap_used)] // the allowance for tests does not reach their helpers

use std::fs;
use std::path::PathBuf;

use lacuna_data::decode::{DecodeError, ImageProblem, RgbImage, decode, read, read_size};
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    file: String,
    size: (u32, u32),
    /// The size after the EXIF orientation, where the file has one.
    turned_size: Option<(u32, u32)>,
    /// The largest difference from Pillow in any sample.
    tolerance: u8,
}

fn fixture(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/decode").join(file)
}

fn cases() -> Vec<Case> {
    serde_json::from_slice(&read_bytes("cases.json")).unwrap()
}

fn read_bytes(file: &str) -> Vec<u8> {
    fs::read(fixture(file)).unwrap()
}

fn expected(case: &Case, suffix: &str) -> Vec<u8> {
    read_bytes(&format!("{}{suffix}", case.file.split('.').next().unwrap()))
}

#[track_caller]
fn assert_close(case: &Case, image: &RgbImage, expected: &[u8]) {
    assert_eq!(image.pixels().len(), expected.len(), "{}", case.file);
    let difference = image.pixels().iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    assert!(difference <= case.tolerance, "{}: differs by {difference} > {}", case.file, case.tolerance);
}

#[test]
fn every_kind_of_file_has_pillows_pixels() {
    for case in cases() {
        for annotated in [None, Some(case.size)] {
            let image =
                decode(&read_bytes(&case.file), annotated).unwrap_or_else(|e| panic!("{} {e}", case.file));
            assert_eq!(image.size(), case.size, "{}", case.file);
            assert_close(&case, &image, &expected(&case, ".rgb"));
        }
    }
}

#[test]
fn exif_turns_an_image_only_into_its_annotated_size() {
    let mut turned = 0;
    for case in cases() {
        let Some(turned_size) = case.turned_size.filter(|&size| size != case.size) else { continue };
        let image = decode(&read_bytes(&case.file), Some(turned_size)).unwrap();
        assert_eq!(image.size(), turned_size, "{}", case.file);
        assert_close(&case, &image, &expected(&case, ".turned.rgb"));
        turned += 1;
    }
    assert_eq!(turned, 7, "orientations 5 to 8, PNG, WebP and the one with a thumbnail");
}

#[test]
fn a_size_that_no_orientation_explains_is_refused() {
    for (file, annotated) in [("exif_6.jpg", (13, 13)), ("exif_3.jpg", (13, 19)), ("png_rgb.png", (13, 19))] {
        let refused = decode(&read_bytes(file), Some(annotated));
        assert!(
            matches!(refused, Err(DecodeError::SizeMismatch { found: (19, 13), annotated: a }) if a == annotated),
            "{file}"
        );
        assert!(!read_size(&fixture(file)).unwrap().agrees_with(annotated));
    }
}

#[test]
fn the_header_tells_both_sizes() {
    for case in cases() {
        let oriented = case.turned_size.unwrap_or(case.size);
        let size = read_size(&fixture(&case.file)).unwrap();
        assert_eq!((size.stored, size.oriented), (case.size, oriented), "{}", case.file);
        assert!(size.agrees_with(case.size) && size.agrees_with(oriented));
    }
}

#[test]
fn a_header_longer_than_the_first_read_is_found() {
    // Two comments of 60 KB between the start of the image and all the rest.
    let jpeg = read_bytes("exif_6.jpg");
    let comment = [&[0xFF, 0xFE, 0xEA, 0x60][..], &[b'x'; 0xEA60 - 2]].concat();
    let long = [&jpeg[..2], &comment, &comment, &jpeg[2..]].concat();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.jpg");
    fs::write(&path, &long).unwrap();
    let size = read_size(&path).unwrap();
    assert_eq!((size.stored, size.oriented), ((19, 13), (13, 19)));
    assert_eq!(read(&path, None).unwrap(), decode(&jpeg, None).unwrap());
}

#[test]
fn the_name_of_a_file_does_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("photo.jpg");
    fs::copy(fixture("png_rgb.png"), &path).unwrap();
    assert_eq!(read(&path, None).unwrap().pixels(), read_bytes("png_rgb.rgb"));
}

#[test]
fn a_file_cut_short_is_refused() {
    for case in cases() {
        let whole = read_bytes(&case.file);
        assert!(decode(&whole[..whole.len() / 2], None).is_err(), "{}", case.file);
        if case.file.ends_with(".jpg") {
            let refused = decode(&whole[..whole.len() - 1], None);
            assert!(matches!(refused, Err(DecodeError::Truncated { .. })), "{}", case.file);
        }
    }
}

#[test]
fn bytes_after_the_end_of_a_jpeg_are_ignored() {
    let mut jpeg = read_bytes("jpeg_444.jpg");
    let image = decode(&jpeg, None).unwrap();
    jpeg.extend([0xFF, 0xDA, 1, 2, 3]);
    assert_eq!(decode(&jpeg, None).unwrap(), image);
}

#[test]
fn a_few_bytes_that_claim_a_huge_image_are_refused() {
    let mut png = read_bytes("png_rgb.png");
    png[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]); // 65536×65536
    // The check sum of the header, so that the size is what is refused.
    let sum = crc32(&png[12..29]).to_be_bytes();
    png[29..33].copy_from_slice(&sum);
    let refused = decode(&png, None).unwrap_err();
    assert!(matches!(refused, DecodeError::TooLarge { size: (65536, 65536) }), "{refused}");

    let mut jpeg = read_bytes("jpeg_444.jpg");
    let frame = jpeg.windows(2).position(|marker| marker == [0xFF, 0xC0]).unwrap();
    jpeg[frame + 5..frame + 9].fill(0xFF);
    let refused = decode(&jpeg, None).unwrap_err();
    assert!(matches!(refused, DecodeError::TooLarge { size: (65535, 65535) }), "{refused}");
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
    })
}

#[test]
fn errors_name_the_file_and_what_is_wrong_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let jpeg = read_bytes("jpeg_444.jpg");
    let png = read_bytes("png_rgb.png");
    let files = [
        (folder.path().join("nowhere.jpg"), "does not exist"),
        (folder.path().to_owned(), "cannot be read: "),
        (write("empty.jpg", b""), "is empty"),
        (write("page.jpg", b"<html>not found</html>"), "is not a JPEG, PNG, WebP or BMP image"),
        (write("half.jpg", &jpeg[..jpeg.len() - 100]), "is a JPEG image that ends too early"),
        (write("half.png", &png[..png.len() / 2]), "is a PNG image that does not decode: "),
    ];
    for (path, what) in files {
        let message = read(&path, None).unwrap_err().to_string();
        assert!(message.starts_with(&format!("image {} {what}", path.display())), "{message}");
    }
    let error = read(&fixture("png_rgb.png"), Some((640, 480))).unwrap_err();
    assert!(error.to_string().ends_with("png_rgb.png is 19×13 pixels, annotated as 640×480"), "{error}");
    assert!(matches!(
        error.problem,
        ImageProblem::Undecodable(DecodeError::SizeMismatch { found: (19, 13), annotated: (640, 480) })
    ));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        start in prop::sample::select(vec![
            &b""[..], b"\xFF\xD8\xFF", b"\x89PNG\r\n\x1a\n", b"RIFF\x30\0\0\0WEBPVP8 ", b"RIFF\x30\0\0\0WEBPVP8L",
            b"RIFF\x30\0\0\0WEBPVP8X", b"BM",
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let _ = decode(&[start, &rest].concat(), None);
    }

    #[test]
    fn damaged_files_never_panic(
        file in prop::sample::select(cases().into_iter().map(|case| case.file).collect::<Vec<_>>()),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
        annotated in prop::option::of((1u32..30, 1u32..30)),
    ) {
        let mut bytes = read_bytes(&file);
        for (index, value) in damage {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let (Ok(image), Some(annotated)) = (decode(&bytes, annotated), annotated) {
            prop_assert_eq!(image.size(), annotated);
        }
    }
}
