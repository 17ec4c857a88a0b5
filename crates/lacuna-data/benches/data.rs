//! The parts of reading a data set, each alone: `cargo bench -p lacuna-data`.

use std::path::Path;
use std::sync::Arc;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use lacuna_data::augment::{Photometric, ResizeRange, Resizer};
use lacuna_data::batch::{Loader, LoaderConfig, Normalize, Order, Position, Recipe};
use lacuna_data::decode::{self, OnBadImage, RgbImage};
use lacuna_data::output::{IfExists, NewFolder};
use lacuna_data::sparsify::{Percent, SparsifyKind, sparsify};
use lacuna_data::synth::{SynthConfig, fill_folder, scene};
use lacuna_data::{Builder, Dataset, Xywh, coco};

fn main() {
    divan::main();
}

/// Scenes of one size, as large as COCO's images usually are.
fn scenes() -> SynthConfig {
    SynthConfig { width: 640..=640, height: 480..=480, ..SynthConfig::default() }
}

fn picture() -> RgbImage {
    let scene = scene(&scenes(), 0);
    RgbImage::new(scene.width, scene.height, scene.pixels)
}

/// Four scenes in a folder, and what is in them.
fn folder() -> (tempfile::TempDir, Arc<Dataset>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let scenes_folder =
        NewFolder::create(&folder.path().join("scenes"), IfExists::Refuse).expect("a new folder");
    let mut made = fill_folder(&scenes(), &[("train", 4)], &scenes_folder, &|| true).expect("scenes");
    scenes_folder.finish().expect("a folder of scenes");
    (folder, Arc::new(made.remove(0)))
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
    let file = folder.path().join("scenes/train").join(&dataset.images()[0].file_name);
    let bytes = std::fs::read(file).expect("a scene");
    bencher.bench(|| decode::decode(&bytes, Some((640, 480))).expect("a JPEG"));
}

#[divan::bench(args = [(320, 240), (512, 384)])]
fn resize_640x480(bencher: Bencher, size: (u32, u32)) {
    let (image, mut resizer) = (picture(), Resizer::default());
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
    let image = picture();
    bencher.with_inputs(|| image.clone()).bench_local_refs(|image| operation.apply(image));
}

#[divan::bench]
fn coco_parse(bencher: Bencher) {
    let mut text = Vec::new();
    coco::write(&boxes(1000, 7), &mut text).expect("memory takes it");
    bencher
        .counter(BytesCount::of_slice(&text))
        .with_inputs(|| text.clone())
        .bench_local_values(|text| coco::parse(text, Path::new("made.json")).expect("COCO"));
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
        normalize: Normalize::Torchvision,
        order: Order::AsGiven,
        seed: 0,
        workers: 1,
        prefetch: 1,
        on_bad_image: OnBadImage::Error,
    };
    let images = folder.path().join("scenes/train");
    bencher.bench_local(|| {
        let mut loader = Loader::new(dataset.clone(), images.clone(), config.clone(), Position::default());
        loader.next().expect("a batch").expect("readable images")
    });
}
