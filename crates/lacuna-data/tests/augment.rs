//! Views against Pillow (fixtures/photometric/make.py, fixtures/resize/make.py), and what must hold
//! for all of them.

#![allow(clippy::unwrap_used)] // the allowance for tests does not reach their helpers

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use lacuna_boxes::Box2;
use lacuna_data::augment::{Photometric, Resize, ResizeRange, Resizer, ViewPlan, bilinear};
use lacuna_data::decode::RgbImage;
use lacuna_random::{Purpose, Rng};
use proptest::prelude::*;
use serde::Deserialize;

fn fixture(file: &str) -> Vec<u8> {
    fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(file)).unwrap()
}

/// The next image of a file that holds raw images one after the other.
fn next_image(raw: &mut &[u8], (width, height): (u32, u32)) -> RgbImage {
    let (pixels, rest) = raw.split_at(3 * width as usize * height as usize);
    *raw = rest;
    RgbImage::new(width, height, pixels.to_vec())
}

fn largest_difference(a: &RgbImage, b: &RgbImage) -> u8 {
    assert_eq!(a.size(), b.size());
    a.pixels().iter().zip(b.pixels()).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

#[derive(Deserialize)]
struct PhotometricCases {
    images: Vec<NamedImage>,
    operations: Vec<Operation>,
}

#[derive(Deserialize)]
struct NamedImage {
    name: String,
    size: (u32, u32),
}

#[derive(Deserialize)]
struct Operation {
    name: String,
    value: Option<f64>,
}

impl Operation {
    fn photometric(&self) -> Photometric {
        let value = self.value.unwrap_or_default();
        let factor = value as f32;
        match self.name.as_str() {
            "AutoContrast" => Photometric::AutoContrast,
            "Equalize" => Photometric::Equalize,
            "Solarize" => Photometric::Solarize { threshold: value as u8 },
            "Color" => Photometric::Color { factor },
            "Contrast" => Photometric::Contrast { factor },
            "Brightness" => Photometric::Brightness { factor },
            "Sharpness" => Photometric::Sharpness { factor },
            "Posterize" => Photometric::Posterize { bits: value as u8 },
            other => panic!("no operation {other}"),
        }
    }
}

#[test]
fn photometric_operations_equal_pillows() {
    let cases: PhotometricCases = serde_json::from_slice(&fixture("photometric/cases.json")).unwrap();
    let (images, expected) = (fixture("photometric/images.bin"), fixture("photometric/expected.bin"));
    let (mut images, mut expected) = (&images[..], &expected[..]);
    for NamedImage { name, size } in &cases.images {
        let image = next_image(&mut images, *size);
        for operation in &cases.operations {
            let photometric = operation.photometric();
            let mut view = image.clone();
            photometric.apply(&mut view);
            let difference = largest_difference(&view, &next_image(&mut expected, *size));
            assert_eq!(difference, 0, "{photometric:?} of {name}");
        }
    }
    assert!(images.is_empty() && expected.is_empty());
}

#[derive(Deserialize)]
struct ResizeCase {
    from: (u32, u32),
    to: (u32, u32),
}

#[test]
fn resizing_is_within_1_of_pillows() {
    let cases: Vec<ResizeCase> = serde_json::from_slice(&fixture("resize/cases.json")).unwrap();
    let (images, expected) = (fixture("resize/images.bin"), fixture("resize/expected.bin"));
    let (mut images, mut expected) = (&images[..], &expected[..]);
    let mut resizer = Resizer::default();
    for ResizeCase { from, to } in cases {
        let resized = resizer.resize(&next_image(&mut images, from), to);
        let difference = largest_difference(&resized, &next_image(&mut expected, to));
        assert!(difference <= 1, "{from:?} to {to:?}: differs by {difference}");
    }
    assert!(images.is_empty() && expected.is_empty());
}

fn rng(seed: u64) -> Rng {
    Rng::new(Purpose::View { recipe: 1 }, seed, 0, 0)
}

#[test]
fn view_sizes_are_mmdetections() {
    // As mmcv's rescale_size(size, (1333, short_side)); the last would have no height there.
    let view_size = |short_side, size| Resize { short_side, long_side_max: 1333 }.view_size(size);
    assert_eq!(view_size(800, (640, 480)), (1067, 800));
    assert_eq!(view_size(800, (480, 640)), (800, 1067));
    assert_eq!(view_size(800, (640, 200)), (1333, 417));
    assert_eq!(view_size(400, (4000, 3000)), (533, 400));
    assert_eq!(view_size(800, (800, 800)), (800, 800));
    assert_eq!(view_size(800, (1, 1)), (800, 800));
    assert_eq!(view_size(800, (100_000, 1)), (1333, 1));
}

#[test]
fn every_operation_is_drawn_equally_often_and_within_its_range() {
    let mut rng = rng(0);
    let mut counts = [0; 9];
    let (mut thresholds, mut bits_drawn) = (HashSet::new(), HashSet::new());
    let (mut least, mut most) = (f32::MAX, f32::MIN);
    for _ in 0..90_000 {
        let (operation, factor) = match Photometric::draw(&mut rng) {
            Photometric::Identity => (0, None),
            Photometric::AutoContrast => (1, None),
            Photometric::Equalize => (2, None),
            Photometric::Solarize { threshold } => {
                thresholds.insert(threshold);
                (3, None)
            }
            Photometric::Color { factor } => (4, Some(factor)),
            Photometric::Contrast { factor } => (5, Some(factor)),
            Photometric::Brightness { factor } => (6, Some(factor)),
            Photometric::Sharpness { factor } => (7, Some(factor)),
            Photometric::Posterize { bits } => {
                bits_drawn.insert(bits);
                (8, None)
            }
        };
        counts[operation] += 1;
        if let Some(factor) = factor {
            (least, most) = (least.min(factor), most.max(factor));
        }
    }
    // 10,000 of each, with a standard deviation of 94.
    assert!(counts.iter().all(|count| (9_600..10_400).contains(count)), "{counts:?}");
    assert_eq!(thresholds, (25..=230).collect());
    assert_eq!(bits_drawn, (1..=4).collect());
    assert!((0.28..0.29).contains(&least) && (1.71..=1.72).contains(&most), "{least}..{most}");
}

#[test]
fn half_of_the_views_are_flipped_and_every_short_side_occurs() {
    let range = ResizeRange { short_side: (30, 39), long_side_max: 1000 };
    let (mut flipped, mut heights) = (0, HashSet::new());
    let mut rng = rng(1);
    for _ in 0..10_000 {
        let plan = ViewPlan::weak((80, 60), range, &mut rng);
        flipped += usize::from(plan.to_view().point(0.0, 0.0).0 > 0.0);
        heights.insert(plan.size().1);
    }
    assert!((4_800..5_200).contains(&flipped), "{flipped}"); // standard deviation 50
    assert_eq!(heights, (30..=39).collect());
}

#[test]
fn a_view_of_the_same_size_is_the_image() {
    let image = RgbImage::new(3, 2, (0..18).collect());
    let plan = ViewPlan::plain((3, 2), Resize { short_side: 2, long_side_max: 3 });
    assert_eq!(plan.render(&image, &mut Resizer::default()), image);
    assert_eq!(plan.to_view(), lacuna_boxes::Affine::IDENTITY);
}

#[test]
#[should_panic(expected = "the size of the image a view was planned for")]
fn a_plan_is_for_images_of_one_size() {
    let plan = ViewPlan::plain((3, 2), Resize { short_side: 2, long_side_max: 3 });
    plan.render(&RgbImage::new(2, 3, vec![0; 18]), &mut Resizer::default());
}

/// A black image with a white box.
fn with_white_box((width, height): (u32, u32), (x1, y1, x2, y2): (u32, u32, u32, u32)) -> RgbImage {
    let white = |x, y| (x1..x2).contains(&x) && (y1..y2).contains(&y);
    let pixels = (0..height).flat_map(|y| (0..width).flat_map(move |x| [255 * u8::from(white(x, y)); 3]));
    RgbImage::new(width, height, pixels.collect())
}

/// The box of what is bright, its borders placed by how bright the border pixels are: the sum over
/// a row or column through the box is its extent.
fn bright_box(view: &RgbImage) -> Box2 {
    let (width, height) = (view.width() as usize, view.height() as usize);
    let sample = |x: usize, y: usize| f32::from(view.pixels()[3 * (y * width + x)]) / 255.0;
    let columns: Vec<f32> =
        (0..width).map(|x| (0..height).map(|y| sample(x, y)).fold(0.0, f32::max)).collect();
    let rows: Vec<f32> = (0..height).map(|y| (0..width).map(|x| sample(x, y)).fold(0.0, f32::max)).collect();
    let (x1, x2) = extent(&columns);
    let (y1, y2) = extent(&rows);
    Box2::new(x1, y1, x2, y2)
}

/// Centre of gravity ± half of the mass.
fn extent(profile: &[f32]) -> (f32, f32) {
    let brightest = profile.iter().copied().fold(f32::MIN, f32::max);
    let mass: f32 = profile.iter().map(|v| v / brightest).sum();
    let moment: f32 = profile.iter().enumerate().map(|(i, v)| (i as f32 + 0.5) * v / brightest).sum();
    (moment / mass - mass / 2.0, moment / mass + mass / 2.0)
}

fn extreme_size() -> impl Strategy<Value = (u32, u32)> {
    prop_oneof![(1u32..40, 1u32..40), (1u32..3, 1u32..400), (1u32..400, 1u32..3)]
}

fn any_range() -> impl Strategy<Value = ResizeRange> {
    (1u32..60, 0u32..60, 1u32..150)
        .prop_map(|(low, more, long_side_max)| ResizeRange { short_side: (low, low + more), long_side_max })
}

proptest! {
    #[test]
    fn boxes_travel_with_the_pixels(
        (width, height) in (30u32..90, 30u32..90),
        (left, top, right, bottom) in (0.1f32..0.4, 0.1f32..0.4, 0.6f32..0.9, 0.6f32..0.9),
        short_side in 25u32..120,
        seed in any::<u64>(),
    ) {
        let corner = |part: f32, side: u32| (part * side as f32) as u32;
        let (x1, y1, x2, y2) = (corner(left, width), corner(top, height), corner(right, width), corner(bottom, height));
        let range = ResizeRange { short_side: (short_side, short_side), long_side_max: 10_000 };
        let plan = ViewPlan::weak((width, height), range, &mut rng(seed));
        let view = plan.render(&with_white_box((width, height), (x1, y1, x2, y2)), &mut Resizer::default());
        let mapped = plan.to_view().apply(Box2::new(x1 as f32, y1 as f32, x2 as f32, y2 as f32));
        let found = bright_box(&view);
        for (a, b) in [(mapped.x1, found.x1), (mapped.y1, found.y1), (mapped.x2, found.x2), (mapped.y2, found.y2)] {
            prop_assert!((a - b).abs() < 0.1, "{:?} is found at {:?} by {:?}", mapped, found, plan);
        }
    }

    #[test]
    fn every_plan_can_be_rendered(size in extreme_size(), range in any_range(), seed in any::<u64>()) {
        let image = RgbImage::new(size.0, size.1, (0..3 * size.0 * size.1).map(|i| (i * 37 % 251) as u8).collect());
        let plan = ViewPlan::strong(size, range, &mut rng(seed));
        let view = plan.render(&image, &mut Resizer::default());
        prop_assert_eq!(view.size(), plan.size());

        let (short, long) = (view.width().min(view.height()), view.width().max(view.height()));
        prop_assert!(short >= 1 && long <= range.long_side_max);
        prop_assert!(short <= range.short_side.1);
        // The corners of the image are the corners of the view.
        let whole = plan.to_view().apply(Box2::new(0.0, 0.0, size.0 as f32, size.1 as f32));
        prop_assert!((whole.x1.abs() + whole.y1.abs()) < 1e-3);
        prop_assert!((whole.x2 - view.width() as f32).abs() + (whole.y2 - view.height() as f32).abs() < 1e-3);
    }

    #[test]
    fn the_same_generator_draws_the_same_view(size in extreme_size(), range in any_range(), seed in any::<u64>()) {
        let image = RgbImage::new(size.0, size.1, (0..3 * size.0 * size.1).map(|i| (i * 91 % 253) as u8).collect());
        let plan = ViewPlan::strong(size, range, &mut rng(seed));
        prop_assert_eq!(plan, ViewPlan::strong(size, range, &mut rng(seed)));
        // Working memory used for another image changes nothing.
        let mut used = Resizer::default();
        used.resize(&RgbImage::new(5, 4, vec![200; 60]), (50, 3));
        prop_assert_eq!(plan.render(&image, &mut used), plan.render(&image, &mut Resizer::default()));
    }
}

/// This test is based on `fixtures/bilinear/make.py`.
#[test]
fn bilinear_is_pytorchs() {
    let cases: serde_json::Value = serde_json::from_slice(&fixture("bilinear/cases.json")).unwrap();
    for case in cases.as_array().unwrap() {
        let [width, height]: [u32; 2] = serde_json::from_value(case["size"].clone()).unwrap();
        let [new_width, new_height]: [u32; 2] = serde_json::from_value(case["new_size"].clone()).unwrap();
        let image = RgbImage::new(width, height, serde_json::from_value(case["pixels"].clone()).unwrap());
        let expected: Vec<f32> = serde_json::from_value(case["expected"].clone()).unwrap();
        let actual = bilinear(&image, (new_width, new_height));
        assert_eq!(actual.len(), expected.len());
        for (a, b) in actual.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-3, "{width}x{height} to {new_width}x{new_height}: {a}, not {b}");
        }
    }
}
