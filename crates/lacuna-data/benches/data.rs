//! Benchmarks of the steps from files to batches: `cargo bench -p lacuna-data`.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use lacuna_data::augment::{Photometric, ResizeRange, Resizer};
use lacuna_data::batch::{Loader, LoaderConfig, Normalization, Order, Position, Recipe};
use lacuna_data::decode::{self, OnBadImage, RgbImage};
use lacuna_data::sparsify::{Percent, SparsifyKind, sparsify};
use lacuna_data::{Builder, Dataset, Xywh, coco};
use lacuna_random::{Purpose, Rng};

fn main() {
    divan::main();
}

/// A picture as large as COCO's usually are: smooth waves and some noise, which compress like a photograph.
fn picture(seed: u64) -> RgbImage {
    let mut rng = Rng::new(Purpose::Resample, seed, 0, 0);
    let mut pixels = vec![0; 3 * 640 * 480];
    rng.fill(&mut pixels);
    for (i, value) in pixels.iter_mut().enumerate() {
        let (x, y, channel) = ((i / 3 % 640) as f64, (i / 1920) as f64, (i % 3) as f64);
        let wave = (0.03 * x + channel).sin() + (0.05 * y - 0.02 * x).cos();
        *value = (128.0 + 50.0 * wave + f64::from(*value) / 16.0) as u8;
    }
    RgbImage::new(640, 480, pixels)
}

/// A folder of four pictures with seven boxes each.
fn folder() -> (tempfile::TempDir, Arc<Dataset>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dataset = boxes(4, 7);
    for (seed, image) in (0..).zip(dataset.images()) {
        let mut file = File::create(folder.path().join(&image.file_name)).expect("a new file");
        picture(seed).write_jpeg(&mut file).expect("a JPEG");
    }
    (folder, Arc::new(dataset))
}

/// A data set of boxes with outlines of 30 points.
fn boxes(n_images: usize, per_image: usize) -> Dataset {
    #[derive(serde::Serialize)]
    struct Outline {
        segmentation: [Vec<f64>; 1],
    }
    let mut builder = Builder::default();
    for class in 0..80 {
        builder.category(&format!("class {class}"));
    }
    for n in 0..n_images {
        let image = builder.image(&format!("{n:012}.jpg"), 640, 480);
        for k in 0..per_image {
            let bbox = Xywh { x: 10.25 * k as f64, y: 17.5, width: 120.37, height: 80.11 };
            let outline = (0..60).map(|i| bbox.x + 1.37 * f64::from(i)).collect();
            builder.annotation(image, (n + k) % 80, bbox, false, Outline { segmentation: [outline] });
        }
    }
    builder.finish()
}

#[divan::bench]
fn decode_jpeg_640x480(bencher: Bencher) {
    let (folder, dataset) = folder();
    let file = folder.path().join(&dataset.images()[0].file_name);
    let bytes = std::fs::read(file).expect("a picture");
    bencher.bench(|| decode::decode(&bytes, Some((640, 480))).expect("a JPEG"));
}

#[divan::bench(args = [(320, 240), (512, 384)])]
fn resize_640x480(bencher: Bencher, size: (u32, u32)) {
    let (image, mut resizer) = (picture(0), Resizer::default());
    bencher.bench_local(|| resizer.resize(&image, size));
}

#[divan::bench(args = [
    Photometric::Identity,
    Photometric::AutoContrast,
    Photometric::Equalize,
    Photometric::Solarize { threshold: 128 },
    Photometric::Color { factor: 1.5 },
    Photometric::Contrast { factor: 1.5 },
    Photometric::Brightness { factor: 1.5 },
    Photometric::Sharpness { factor: 1.5 },
    Photometric::Posterize { bits: 3 },
    Photometric::Hue { turn: 0.1 },
    Photometric::Blur { sigma: 1.0 },
])]
fn photometric_640x480(bencher: Bencher, operation: Photometric) {
    let image = picture(0);
    bencher.with_inputs(|| image.clone()).bench_local_refs(|image| operation.apply(image));
}

#[divan::bench]
fn coco_parse(bencher: Bencher) {
    let mut text = Vec::new();
    coco::write(&boxes(1000, 7), &mut text).expect("memory takes it");
    bencher
        .counter(BytesCount::of_slice(&text))
        .with_inputs(|| text.clone())
        .bench_local_values(|text| coco::parse(text, Path::new("boxes.json")).expect("COCO"));
}

#[divan::bench]
fn coco_write(bencher: Bencher) {
    let dataset = boxes(1000, 7);
    bencher.bench_local(|| {
        let mut text = Vec::new();
        coco::write(&dataset, &mut text).expect("memory takes it");
        text
    });
}

#[divan::bench]
fn sparsify_split1(bencher: Bencher) {
    let dataset = boxes(1000, 7);
    let half = Percent::new(50.0).expect("a percentage");
    bencher
        .counter(ItemsCount::new(dataset.annotations().len()))
        .bench_local(|| sparsify(&dataset, SparsifyKind::Split1(half), 0));
}

/// Decoding, both views, normalization; the start of the one worker is included.
#[divan::bench]
fn batch_of_4_weak_and_strong(bencher: Bencher) {
    let (folder, dataset) = folder();
    let range = ResizeRange { short_side: (240, 240), long_side_max: 320 };
    let config = LoaderConfig {
        batch_size: 4,
        recipes: vec![Recipe::Weak(range), Recipe::Strong(range)],
        normalize: Normalization::Torchvision,
        order: Order::AsGiven,
        seed: 0,
        workers: 1,
        prefetch: 1,
        on_bad_image: OnBadImage::Error,
    };
    let images = folder.path().to_path_buf();
    bencher.bench_local(|| {
        let mut loader = Loader::new(dataset.clone(), images.clone(), config.clone(), Position::default());
        loader.next().expect("a batch").expect("readable images")
    });
}
