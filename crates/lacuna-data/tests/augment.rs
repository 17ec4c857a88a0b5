//! Views against Pillow and torchvision (fixtures/photometric/make.py, fixtures/recolor/make.py,
//! fixtures/resize/make.py), and what must hold for all of them.

#![allow(clippy::unwrap_used)] // the allowance for tests does not reach their helpers

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::PathBuf;

use lacuna_boxes::Box2;
use lacuna_data::augment::{
    ColorJitter, Erasing, GaussianBlur, Photometric, RandomErasing, Recolor, RecolorRange, Resize,
    ResizeRange, Resizer, ViewPlan, bilinear,
};
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
            "Gray" => Photometric::Color { factor: 0.0 },
            "Hue" => Photometric::Hue { turn: value as f32 },
            "Blur" => Photometric::Blur { sigma: value as f32 },
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
struct RecolorCases {
    all_colors: AllColors,
    images: Vec<NamedImage>,
    cases: Vec<RecolorCase>,
}

#[derive(Deserialize)]
struct RecolorCase {
    images: Vec<String>,
    operations: Vec<Operation>,
}

#[test]
fn recolorings_equal_torchvisions() {
    let cases: RecolorCases = serde_json::from_slice(&fixture("recolor/cases.json")).unwrap();
    let (images, expected) = (fixture("recolor/images.bin"), fixture("recolor/expected.bin"));
    let (mut images, mut expected) = (&images[..], &expected[..]);
    let images: HashMap<String, RgbImage> =
        cases.images.into_iter().map(|i| (i.name, next_image(&mut images, i.size))).collect();
    for case in cases.cases {
        let mut recolor = Recolor::default();
        for (operation, named) in recolor.operations.iter_mut().zip(&case.operations) {
            *operation = named.photometric();
        }
        for name in case.images {
            let mut view = images[&name].clone();
            recolor.apply(&mut view);
            let difference = largest_difference(&view, &next_image(&mut expected, view.size()));
            assert_eq!(difference, 0, "{:?} of {name}", recolor.operations);
        }
    }
    assert!(expected.is_empty());
}

#[derive(Deserialize)]
struct AllColors {
    turn: f32,
    checksum: String,
}

/// The check sum is the script's.
#[test]
fn every_color_turns_as_torchvisions() {
    let cases: RecolorCases = serde_json::from_slice(&fixture("recolor/cases.json")).unwrap();
    let AllColors { turn, checksum } = cases.all_colors;
    let colors = (0..1u32 << 24).flat_map(|n| [n >> 16, n >> 8, n].map(|sample| sample as u8));
    let mut image = RgbImage::new(4096, 4096, colors.collect());
    Photometric::Hue { turn }.apply(&mut image);
    let sum = image.pixels().chunks_exact(1 << 16).fold(0u64, |total, block| {
        let weighted: u64 = block.iter().zip(0..).map(|(&sample, n)| u64::from(sample) * (2 * n + 1)).sum();
        total.wrapping_mul(31).wrapping_add(weighted)
    });
    assert_eq!(sum.to_string(), checksum);
}

#[derive(Deserialize)]
struct ErasingCase {
    scale: (f64, f64),
    ratio: (f64, f64),
    size: (u32, u32),
    /// The part of the draws that gave a rectangle.
    found: f64,
    /// Of x, y, width and height.
    mean: [f64; 4],
    deviation: [f64; 4],
}

#[test]
fn erasings_are_where_torchvisions_are() {
    let cases: Vec<ErasingCase> = serde_json::from_slice(&fixture("recolor/erasings.json")).unwrap();
    let n = 20_000.0; // here and there
    let mut rng = rng_for(3);
    for ErasingCase { scale, ratio, size, found, mean, deviation } in cases {
        let range = erasing(RandomErasing { scale, ratio, probability: 1.0 });
        let drawn = (0..n as usize).filter_map(|_| range.draw(size, &mut rng).erasings[0]);
        let drawn: Vec<[f64; 4]> =
            drawn.map(|e: Erasing| [e.x, e.y, e.width, e.height].map(f64::from)).collect();
        let count = drawn.len() as f64;
        // Five standard deviations of the difference of two means.
        let near = 5.0 * (2.0 * found * (1.0 - found) / n).sqrt();
        assert!((count / n - found).abs() <= near, "{range:?}: {count} of {n}, not {found}");
        for (i, (mean, deviation)) in mean.into_iter().zip(deviation).enumerate() {
            let our_mean = drawn.iter().map(|e| e[i]).sum::<f64>() / count;
            let our_square = drawn.iter().map(|e| (e[i] - our_mean).powi(2)).sum::<f64>() / count;
            let near = 5.0 * deviation * (2.0 / count).sqrt();
            assert!((our_mean - mean).abs() < near, "{range:?}: {our_mean}, not {mean}");
            assert!((our_square.sqrt() / deviation - 1.0).abs() < 0.05, "{range:?}: {our_square}");
        }
    }
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

fn rng_for(seed: u64) -> Rng {
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
    let mut rng = rng_for(0);
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
            other => panic!("{other:?} is not one of the nine"),
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

const NOTHING: RecolorRange =
    RecolorRange { jitter: None, gray_probability: 0.0, blur: None, erasings: [None; 3] };

fn erasing(range: RandomErasing) -> RecolorRange {
    RecolorRange { erasings: [Some(range), None, None], ..NOTHING }
}

#[test]
fn recolorings_are_drawn_as_often_as_they_should_be_and_within_their_ranges() {
    let mut rng = rng_for(2);
    let (mut orders, mut jittered, mut gray, mut blurred, mut erased) = (HashMap::new(), 0, 0, 0, [0; 3]);
    // Of brightness, contrast, saturation, hue and σ.
    let mut extremes = [(f32::MAX, f32::MIN); 5];
    for _ in 0..24_000 {
        let drawn = RecolorRange::UNBIASED_TEACHER.draw((300, 200), &mut rng);
        let (jitter, rest) = drawn.operations.split_at(4);
        let order: Vec<usize> = jitter
            .iter()
            .chain(&rest[1..])
            .filter_map(|operation| match *operation {
                Photometric::Brightness { factor } => Some((0, factor)),
                Photometric::Contrast { factor } => Some((1, factor)),
                Photometric::Color { factor } => Some((2, factor)),
                Photometric::Hue { turn } => Some((3, turn)),
                Photometric::Blur { sigma } => Some((4, sigma)),
                _ => None,
            })
            .map(|(which, value)| {
                extremes[which] = (extremes[which].0.min(value), extremes[which].1.max(value));
                which
            })
            .collect();
        if jitter[0] != Photometric::Identity {
            jittered += 1;
            *orders.entry(order[..4].to_vec()).or_insert(0) += 1;
        }
        gray += usize::from(rest[0] == Photometric::Color { factor: 0.0 });
        blurred += usize::from(rest[1] != Photometric::Identity);
        for (count, erasing) in erased.iter_mut().zip(drawn.erasings) {
            *count += usize::from(erasing.is_some());
        }
    }
    // Standard deviations: 62, 62, 77; 71, 77, 71.
    assert!((18_900..19_500).contains(&jittered), "{jittered}");
    assert!((4_500..5_100).contains(&gray), "{gray}");
    assert!((11_650..12_350).contains(&blurred), "{blurred}");
    for (count, probability) in erased.into_iter().zip([0.7, 0.5, 0.3]) {
        assert!((f64::from(count as u32) - 24_000.0 * probability).abs() < 350.0, "{erased:?}");
    }
    // 800 of each order, with a standard deviation of 28.
    assert_eq!(orders.len(), 24);
    assert!(orders.values().all(|count| (670..930).contains(count)), "{orders:?}");
    let ranges = [(0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1), (0.1, 2.0)];
    for ((least, most), (low, high)) in extremes.into_iter().zip(ranges) {
        assert!(least >= low && least < low + 0.01 && most <= high && most > high - 0.01, "{extremes:?}");
    }
}

#[test]
fn co_mining_jitters_and_does_nothing_else() {
    let mut rng = rng_for(4);
    let mut unchanged = 0;
    for _ in 0..1_000 {
        let drawn = RecolorRange::CO_MINING.draw((30, 20), &mut rng);
        unchanged += usize::from(drawn == Recolor::default());
        assert_eq!((&drawn.operations[4..], drawn.erasings), (&[Photometric::Identity; 2][..], [None; 3]));
        for operation in drawn.operations {
            if let Photometric::Brightness { factor } = operation {
                assert!((0.2..=1.8).contains(&factor));
            }
        }
    }
    assert!((140..260).contains(&unchanged), "{unchanged}"); // standard deviation 13
}

/// torchvision leaves a step of strength 0 out; done, a turn of hues by 0 would change the image.
#[test]
fn a_jitter_of_no_strength_leaves_the_image() {
    let none = ColorJitter { brightness: 0.0, contrast: 0.0, saturation: 0.0, hue: 0.0, probability: 1.0 };
    let image = RgbImage::new(16, 16, (0..768).map(|i| (i * 37 % 251) as u8).collect());
    let mut view = image.clone();
    RecolorRange { jitter: Some(none), ..NOTHING }.draw((16, 16), &mut rng_for(0)).apply(&mut view);
    assert_eq!(view, image);
    Photometric::Hue { turn: 0.0 }.apply(&mut view);
    assert_ne!(view, image);
}

#[test]
fn half_of_the_views_are_flipped_and_every_short_side_occurs() {
    let range = ResizeRange { short_side: (30, 39), long_side_max: 1000 };
    let (mut flipped, mut heights) = (0, HashSet::new());
    let mut rng = rng_for(1);
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

/// Center of gravity ± half of the mass.
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
        let plan = ViewPlan::weak((width, height), range, &mut rng_for(seed));
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
        let plan = ViewPlan::strong(size, range, &mut rng_for(seed));
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
        let plan = ViewPlan::strong(size, range, &mut rng_for(seed));
        prop_assert_eq!(plan, ViewPlan::strong(size, range, &mut rng_for(seed)));
        // Working memory used for another image changes nothing.
        let mut used = Resizer::default();
        used.resize(&RgbImage::new(5, 4, vec![200; 60]), (50, 3));
        prop_assert_eq!(plan.render(&image, &mut used), plan.render(&image, &mut Resizer::default()));
    }
}

fn any_erasing() -> impl Strategy<Value = RandomErasing> {
    let scale = (0.0..1.0, 0.0..1.0).prop_map(|(a, b): (f64, f64)| (a.min(b), a.max(b)));
    let ratio = (0.01..100.0, 1.0..50.0).prop_map(|(low, times): (f64, f64)| (low, low * times));
    (scale, ratio, 0.5..1.0).prop_map(|(scale, ratio, probability)| RandomErasing {
        scale,
        ratio,
        probability,
    })
}

fn any_recoloring() -> impl Strategy<Value = RecolorRange> {
    let strength = || 0.0..1.5;
    let jitter = (strength(), strength(), strength(), 0.0..0.5, 0.5..1.0).prop_map(
        |(brightness, contrast, saturation, hue, probability)| ColorJitter {
            brightness,
            contrast,
            saturation,
            hue,
            probability,
        },
    );
    let blur = (0.0..1.0, 0.0..20.0, 0.5..1.0).prop_map(|(low, more, probability): (f64, f64, f64)| {
        GaussianBlur { sigma: (low, low + more), probability }
    });
    let erasings = [any_erasing(), any_erasing(), any_erasing()].prop_map(|erasings| erasings.map(Some));
    (jitter, 0.0..1.0, blur, erasings).prop_map(|(jitter, gray_probability, blur, erasings)| RecolorRange {
        jitter: Some(jitter),
        gray_probability,
        blur: Some(blur),
        erasings,
    })
}

/// The same steps, none of which is ever done.
fn never(range: RecolorRange) -> RecolorRange {
    RecolorRange {
        jitter: range.jitter.map(|jitter| ColorJitter { probability: 0.0, ..jitter }),
        gray_probability: 0.0,
        blur: range.blur.map(|blur| GaussianBlur { probability: 0.0, ..blur }),
        erasings: range.erasings.map(|erasing| Some(RandomErasing { probability: 0.0, ..erasing? })),
    }
}

fn patterned((width, height): (u32, u32)) -> RgbImage {
    RgbImage::new(width, height, (0..3 * width * height).map(|i| (i * 91 % 253) as u8).collect())
}

proptest! {
    #[test]
    fn erasings_are_inside_the_image_and_change_nothing_outside(
        (width, height) in extreme_size(),
        range in any_recoloring(),
        seed in any::<u64>(),
    ) {
        let drawn = range.draw((width, height), &mut rng_for(seed));
        for erasing in drawn.erasings.into_iter().flatten() {
            prop_assert!(erasing.x + erasing.width <= width && erasing.y + erasing.height <= height);
            // Never from side to side.
            prop_assert!(erasing.width < width && erasing.height < height);
        }
        let image = patterned((width, height));
        let mut view = image.clone();
        Recolor { erasings: drawn.erasings, ..Recolor::default() }.apply(&mut view);
        for (i, (before, after)) in image.pixels().iter().zip(view.pixels()).enumerate() {
            let (x, y) = (i as u32 / 3 % width, i as u32 / 3 / width);
            let erased = drawn.erasings.iter().flatten().any(|e| {
                (e.x..e.x + e.width).contains(&x) && (e.y..e.y + e.height).contains(&y)
            });
            prop_assert!(erased || before == after);
        }
    }

    #[test]
    fn the_same_generator_draws_the_same_recoloring(
        size in extreme_size(),
        range in any_recoloring(),
        resize in any_range(),
        seed in any::<u64>(),
    ) {
        let weak = ViewPlan::weak(size, resize, &mut rng_for(seed));
        let plan = weak.follower(range, &mut rng_for(seed));
        prop_assert_eq!(plan, weak.follower(range, &mut rng_for(seed)));
        let image = patterned(size);
        let mut resizer = Resizer::default();
        prop_assert_eq!(plan.render(&image, &mut resizer), plan.render(&image, &mut resizer));
    }

    #[test]
    fn a_follower_has_its_leaders_geometry(
        size in extreme_size(),
        range in any_recoloring(),
        resize in any_range(),
        seed in any::<u64>(),
    ) {
        let image = patterned(size);
        let mut resizer = Resizer::default();
        let weak = ViewPlan::weak(size, resize, &mut rng_for(seed));
        for leader in [weak, ViewPlan::strong(size, resize, &mut rng_for(seed))] {
            let follower = leader.follower(range, &mut rng_for(!seed));
            prop_assert_eq!((follower.size(), follower.to_view()), (leader.size(), leader.to_view()));
            prop_assert_eq!(follower.render(&image, &mut resizer).size(), leader.size());
            // Its colors are the image's and not the leader's.
            prop_assert_eq!(leader.follower(never(range), &mut rng_for(!seed)), weak);
        }
    }

    #[test]
    fn what_is_never_done_leaves_the_image(size in extreme_size(), range in any_recoloring(), seed in any::<u64>()) {
        let image = patterned(size);
        let mut view = image.clone();
        never(range).draw(size, &mut rng_for(seed)).apply(&mut view);
        prop_assert_eq!(view, image);
    }

    #[test]
    fn a_constant_image_stays_when_blurred(size in extreme_size(), level in any::<u8>(), sigma in 0.0f32..40.0) {
        let image = RgbImage::new(size.0, size.1, vec![level; 3 * size.0 as usize * size.1 as usize]);
        let mut view = image.clone();
        Photometric::Blur { sigma }.apply(&mut view);
        prop_assert_eq!(view, image);
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
