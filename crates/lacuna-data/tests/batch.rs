//! The loader: what it gives depends on nothing but seed, epoch and image.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use lacuna_boxes::Box2;
use lacuna_data::augment::{RecolorRange, Resize, ResizeRange};
use lacuna_data::batch::{Batch, Loader, LoaderConfig, Normalization, Order, Position, Recipe, SIZE_DIVISOR};
use lacuna_data::decode::OnBadImage;
use lacuna_data::{Builder, Dataset, Xywh};
use tempfile::TempDir;

const RANGE: ResizeRange = ResizeRange { short_side: (24, 60), long_side_max: 100 };

/// Images of several shapes; image `i` has `i % 4` boxes. Written as BMP: a header and the pixels.
fn synthetic_images(n: usize) -> (TempDir, Arc<Dataset>) {
    let folder = tempfile::tempdir().unwrap();
    let mut builder = Builder::default();
    builder.category("thing");
    for i in 0..n {
        let (width, height) = [(40, 30), (30, 40), (64, 33), (33, 70)][i % 4];
        let name = format!("{i}.bmp");
        let pixels: Vec<u8> = (0..width * height * 3).map(|p| (p * 7 + i as u32 * 31) as u8).collect();
        image::save_buffer(folder.path().join(&name), &pixels, width, height, image::ColorType::Rgb8)
            .unwrap();
        let image = builder.image(&name, width, height);
        for b in 0..i % 4 {
            let bbox = Xywh { x: b as f64 * 3.0, y: 2.0, width: 10.0, height: 8.5 };
            builder.annotation(image, 0, bbox, b == 2, ());
        }
    }
    (folder, Arc::new(builder.finish()))
}

fn config() -> LoaderConfig {
    LoaderConfig {
        batch_size: 3,
        recipes: vec![Recipe::Weak(RANGE), Recipe::Strong(RANGE)],
        normalize: Normalization::Torchvision,
        order: Order::Shuffled,
        seed: 7,
        workers: 2,
        prefetch: 2,
        on_bad_image: OnBadImage::Error,
    }
}

fn load(
    folder: &Path,
    dataset: &Arc<Dataset>,
    config: LoaderConfig,
    start: Position,
    n: usize,
) -> Vec<Batch> {
    let loader = Loader::new(dataset.clone(), folder.into(), config, start);
    loader.take(n).map(Result::unwrap).collect()
}

fn assert_same(a: &[Batch], b: &[Batch]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert_eq!((&a.images, &a.next, &a.objects), (&b.images, &b.next, &b.objects));
        assert_eq!(a.views, b.views);
    }
}

#[test]
fn workers_change_nothing() {
    let (folder, dataset) = synthetic_images(22);
    let with = |workers| {
        load(folder.path(), &dataset, LoaderConfig { workers, ..config() }, Position::default(), 20)
    };
    let one = with(1);
    assert_same(&one, &with(2));
    assert_same(&one, &with(8));
}

#[test]
fn a_follower_has_the_geometry_of_the_view_before_it_and_changes_no_other_view() {
    let (folder, dataset) = synthetic_images(10);
    let first = [Recipe::Weak(RANGE), Recipe::Weak(RANGE)];
    let followers = [RecolorRange::CO_MINING, RecolorRange::UNBIASED_TEACHER].map(Recipe::Follower);
    let with = |recipes: &[Recipe], workers| {
        let config = LoaderConfig { recipes: recipes.to_vec(), workers, ..config() };
        load(folder.path(), &dataset, config, Position::default(), 12)
    };
    let batches = with(&[first, followers].concat(), 2);
    for batch in &batches {
        let (leader, followers) = (&batch.views[1], &batch.views[2..]);
        for follower in followers {
            assert_eq!((&follower.sizes, &follower.to_view), (&leader.sizes, &leader.to_view));
            assert_eq!((follower.height, follower.width), (leader.height, leader.width));
        }
    }
    // What is not before it has a geometry of its own.
    assert!(batches.iter().any(|b| b.views[0].to_view != b.views[1].to_view));
    // Of an image in five, Co-mining leaves the colors.
    let recolored = batches.iter().filter(|b| b.views[2].pixels != b.views[1].pixels).count();
    assert!(recolored > 6, "{recolored} of 12");
    assert!(batches.iter().all(|b| b.views[3].pixels != b.views[2].pixels));
    assert_same(&batches, &with(&[first, followers].concat(), 1));
    for (batch, without) in batches.iter().zip(with(&first, 2)) {
        assert_eq!(batch.views[..2], without.views);
    }
    // A view depends on the place of its recipe, not on those before.
    let plain = Recipe::Plain(Resize { short_side: 24, long_side_max: 64 });
    let others = [plain, Recipe::Weak(RANGE), followers[0]];
    for (batch, other) in batches.iter().zip(with(&others, 2)) {
        assert_eq!(batch.views[1..3], other.views[1..]);
    }
}

/// A student sees the same strong views whether a teacher sees weak ones or not.
#[test]
fn a_strong_view_does_not_depend_on_one_before_it() {
    let (folder, dataset) = synthetic_images(10);
    let with = |recipes: &[Recipe]| {
        let config = LoaderConfig { recipes: recipes.to_vec(), ..config() };
        load(folder.path(), &dataset, config, Position::default(), 12)
    };
    let alone = with(&[Recipe::Strong(RANGE)]);
    let both = with(&[Recipe::Weak(RANGE), Recipe::Strong(RANGE)]);
    let is_alone = |n: usize| both.iter().zip(&alone).all(|(both, alone)| both.views[n] == alone.views[0]);
    assert!(is_alone(1) && !is_alone(0));
}

#[test]
#[should_panic(expected = "two recipes would draw the same random numbers")]
fn no_two_views_draw_the_same_numbers() {
    let (folder, dataset) = synthetic_images(2);
    let recipes = vec![Recipe::Strong(RANGE), Recipe::Weak(RANGE)];
    load(folder.path(), &dataset, LoaderConfig { recipes, ..config() }, Position::default(), 1);
}

#[test]
fn a_loader_goes_on_where_another_stopped() {
    let (folder, dataset) = synthetic_images(10);
    let whole = load(folder.path(), &dataset, config(), Position::default(), 12);
    for stop in [1, 3, 4, 7] {
        let rest = load(folder.path(), &dataset, config(), whole[stop - 1].next, 12 - stop);
        assert_same(&whole[stop..], &rest);
    }
}

#[test]
fn an_epoch_has_every_image_once_and_epochs_differ() {
    let (folder, dataset) = synthetic_images(22);
    let n = Loader::new(dataset.clone(), folder.path().into(), config(), Position::default()).n_batches();
    let batches = load(folder.path(), &dataset, config(), Position::default(), 2 * n);
    let (first, second) = batches.split_at(n);
    let images = |epoch: &[Batch]| epoch.iter().flat_map(|b| b.images.clone()).collect::<Vec<_>>();
    for epoch in [first, second] {
        assert_eq!(images(epoch).len(), 22);
        assert_eq!(images(epoch).into_iter().collect::<BTreeSet<_>>(), (0..22).collect());
    }
    assert_ne!(images(first), images(second));
    assert_eq!(first[n - 1].next, Position { epoch: 1, batch: 0 });

    // Wide with wide and tall with tall, but for what is left at the end.
    let is_wide = |i: &usize| dataset.images()[*i].width >= dataset.images()[*i].height;
    let alike = |b: &&Batch| b.images.iter().all(is_wide) || !b.images.iter().any(is_wide);
    assert!(first.iter().filter(alike).count() >= n - 2);

    // The same image looks different in another epoch, and its two views differ.
    let pixels_of = |epoch: &[Batch]| {
        let batch = epoch.iter().find(|b| b.images.contains(&5)).unwrap();
        let at = batch.images.iter().position(|&i| i == 5).unwrap();
        (batch.views[0].to_view[at], batch.views[1].to_view[at])
    };
    assert_ne!(pixels_of(first), pixels_of(second));
    assert_ne!(pixels_of(first).0, pixels_of(first).1);
}

#[test]
fn views_are_padded_and_boxes_stay_in_the_image() {
    let (folder, dataset) = synthetic_images(8);
    for batch in load(folder.path(), &dataset, config(), Position::default(), 3) {
        assert_eq!(batch.views.len(), 2);
        for view in &batch.views {
            let (height, width) = (view.height as u32, view.width as u32);
            assert!(height.is_multiple_of(SIZE_DIVISOR) && width.is_multiple_of(SIZE_DIVISOR));
            assert_eq!(view.pixels.len(), batch.images.len() * view.height * view.width * 3);
            assert!(view.sizes.iter().all(|&(w, h)| w <= width && h <= height && w.min(h) > 0));
            assert!(view.sizes.iter().any(|s| s.0 + SIZE_DIVISOR > width));
            // Padding is 0; the image's own part is not.
            for (n, &(w, h)) in view.sizes.iter().enumerate() {
                let at = |x: u32, y: u32| {
                    let pixel = ((n * view.height + y as usize) * view.width + x as usize) * 3;
                    &view.pixels[pixel..pixel + 3]
                };
                assert!(w == width || at(w, 0) == [0.0; 3]);
                assert!(h == height || at(0, h) == [0.0; 3]);
                assert!((0..h).any(|y| at(w - 1, y) != [0.0; 3]));
            }
        }
        for ((&image, objects), crowds) in batch.images.iter().zip(&batch.objects).zip(&batch.crowds) {
            // The third box is a crowd.
            assert_eq!((objects.len(), crowds.len()), ([0, 1, 2, 2][image % 4], usize::from(image % 4 == 3)));
            assert!(objects.first().is_none_or(|o| o.bbox == Box2::new(0.0, 2.0, 10.0, 10.5)));
        }
    }
}

/// `torchvision.transforms.functional.normalize(to_tensor(image), mean, std)` of the level 100 in
/// every channel is (-0.405429, -0.285014, -0.061525); in caffe style it is 100 minus the mean.
#[test]
fn pixels_are_normalized_as_the_backbones_expect() {
    let folder = tempfile::tempdir().unwrap();
    let mut builder = Builder::default();
    builder.category("thing");
    builder.image("a.bmp", 2, 1);
    let levels = [100, 100, 100, 10, 20, 30];
    image::save_buffer(folder.path().join("a.bmp"), &levels, 2, 1, image::ColorType::Rgb8).unwrap();
    let dataset = Arc::new(builder.finish());
    let resize = Resize { short_side: 1, long_side_max: 2 };
    let first_pixels = |normalize| {
        let config = LoaderConfig { recipes: vec![Recipe::Plain(resize)], normalize, ..config() };
        load(folder.path(), &dataset, config, Position::default(), 1)[0].views[0].pixels[..6].to_vec()
    };
    let close = |found: Vec<f32>, wanted: [f32; 6]| {
        assert!(found.iter().zip(&wanted).all(|(f, w)| (f - w).abs() < 1e-5), "{found:?}, not {wanted:?}");
    };
    let torch = [-0.405_428_6, -0.285_014, -0.061_525, -1.946_656_5, -1.685_574_2, -1.281_568_6];
    close(first_pixels(Normalization::Torchvision), torch);
    let caffe = [-3.939, -16.779, -23.68, 30.0 - 103.939, 20.0 - 116.779, 10.0 - 123.68];
    close(first_pixels(Normalization::Caffe), caffe);
}

#[test]
fn evaluation_goes_through_once_in_order() {
    let (folder, dataset) = synthetic_images(7);
    let recipes = vec![Recipe::Plain(Resize { short_side: 32, long_side_max: 64 })];
    let config = LoaderConfig { order: Order::AsGiven, recipes, ..config() };
    let batches = load(folder.path(), &dataset, config, Position::default(), 100);
    let images: Vec<Vec<usize>> = batches.into_iter().map(|b| b.images).collect();
    assert_eq!(images, [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
}

#[test]
fn a_bad_image_stops_the_loader_with_its_name() {
    let (folder, dataset) = synthetic_images(9);
    fs::write(folder.path().join("4.bmp"), b"not an image").unwrap();
    let mut loader = Loader::new(dataset, folder.path().into(), config(), Position::default());
    let error = loader.by_ref().find_map(Result::err).unwrap().to_string();
    assert!(error.contains("4.bmp"), "{error}");
    assert!(loader.next().is_none());
}

#[test]
fn bad_images_are_skipped_and_reported_when_asked() {
    let (folder, dataset) = synthetic_images(9);
    fs::write(folder.path().join("4.bmp"), b"not an image").unwrap();
    fs::remove_file(folder.path().join("6.bmp")).unwrap();
    // Another size than the entry's.
    fs::copy(folder.path().join("0.bmp"), folder.path().join("1.bmp")).unwrap();
    let skip = |workers| LoaderConfig { on_bad_image: OnBadImage::Skip, workers, batch_size: 1, ..config() };
    let one = load(folder.path(), &dataset, skip(1), Position::default(), 6);
    assert_same(&one, &load(folder.path(), &dataset, skip(3), Position::default(), 6));
    let images: BTreeSet<usize> = one.iter().flat_map(|b| b.images.clone()).collect();
    assert_eq!(images, BTreeSet::from([0, 2, 3, 5, 7, 8]));
    let mut loader = Loader::new(dataset, folder.path().into(), skip(2), Position::default());
    assert_eq!(loader.by_ref().take(7).filter(Result::is_ok).count(), 7);
    let skipped: Vec<String> = loader.take_skipped().iter().map(ToString::to_string).collect();
    for name in ["4.bmp", "6.bmp", "1.bmp"] {
        assert!(skipped.iter().any(|s| s.contains(name)), "{skipped:?}");
    }
}

#[test]
fn a_data_set_without_a_usable_image_is_an_error_and_not_a_hang() {
    let (folder, dataset) = synthetic_images(5);
    for i in 0..5 {
        fs::remove_file(folder.path().join(format!("{i}.bmp"))).unwrap();
    }
    let config = LoaderConfig { on_bad_image: OnBadImage::Skip, ..config() };
    let mut loader = Loader::new(dataset, folder.path().into(), config, Position::default());
    assert!(loader.next().unwrap().is_err());
    assert!(loader.next().is_none());
}

#[test]
fn bad_images_at_the_end_do_not_fail_an_evaluation() {
    let (folder, dataset) = synthetic_images(5);
    for i in [3, 4] {
        fs::remove_file(folder.path().join(format!("{i}.bmp"))).unwrap();
    }
    let config =
        LoaderConfig { on_bad_image: OnBadImage::Skip, order: Order::AsGiven, batch_size: 1, ..config() };
    let mut loader = Loader::new(dataset, folder.path().into(), config, Position::default());
    let images: Vec<usize> = loader.by_ref().flat_map(|b| b.unwrap().images).collect();
    assert_eq!(images, [0, 1, 2]);
    assert_eq!(loader.take_skipped().len(), 2);
}

#[test]
fn a_loader_can_be_dropped_at_any_time() {
    let (folder, dataset) = synthetic_images(9);
    for taken in 0..4 {
        let mut loader = Loader::new(dataset.clone(), folder.path().into(), config(), Position::default());
        assert_eq!(loader.by_ref().take(taken).count(), taken);
    }
}

#[test]
#[should_panic(expected = "short side 64 to 32")]
fn an_empty_range_of_sizes_is_found_at_once() {
    let (folder, dataset) = synthetic_images(1);
    let recipes = vec![Recipe::Weak(ResizeRange { short_side: (64, 32), long_side_max: 100 })];
    Loader::new(dataset, folder.path().into(), LoaderConfig { recipes, ..config() }, Position::default());
}

#[test]
#[should_panic(expected = "the first recipe has none before it to follow")]
fn a_recipe_that_follows_none_is_found_at_once() {
    let (folder, dataset) = synthetic_images(1);
    let recipes = vec![Recipe::Follower(RecolorRange::CO_MINING), Recipe::Weak(RANGE)];
    Loader::new(dataset, folder.path().into(), LoaderConfig { recipes, ..config() }, Position::default());
}
