//! Synthetic annotations of the size of COCO's `instances_val2017.json`, and the results file of a
//! middling detector on them: several boxes around most objects, closer ones with higher scores, and
//! many more with low scores.

use std::io::{self, Write};
use std::path::PathBuf;

use lacuna_data::output::{IfExists, write_file};
use lacuna_random::{Purpose, Rng};

use crate::bench::synthetic::{CROWD_EVERY, coco_category_ids, image_id, separate, write_categories};
use crate::bench::synthetic_data;

const COMMA: &str = ", ";

const N_IMAGES: usize = 5_000;
const N_OBJECTS: usize = 36_781;
const N_DETECTIONS: usize = 250_000;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 480.0;

pub(crate) struct Files {
    pub(crate) annotations: PathBuf,
    pub(crate) detections: PathBuf,
}

/// Writes the files unless an earlier run did.
pub(crate) fn val2017_size() -> anyhow::Result<Files> {
    let folder = synthetic_data()?;
    let files = Files {
        annotations: folder.join("instances_val2017_size.json"),
        detections: folder.join("detections_val2017_size.json"),
    };
    if !(files.annotations.exists() && files.detections.exists()) {
        let category_ids = coco_category_ids();
        let mut rng = Rng::new(Purpose::Synth, 2017, 1, 0);
        let objects: Vec<Object> = (0..N_OBJECTS).map(|n| Object::draw(n, &category_ids, &mut rng)).collect();
        write_file(&files.annotations, IfExists::Replace, |out| write_annotations(out, &objects, &mut rng))?;
        let detections = draw_detections(&objects, &category_ids, &mut rng);
        write_file(&files.detections, IfExists::Replace, |out| write_detections(out, &detections))?;
    }
    Ok(files)
}

struct Object {
    image: usize,
    category_id: usize,
    /// Corner and size.
    bbox: [f64; 4],
    crowd: bool,
}

impl Object {
    fn draw(n: usize, category_ids: &[usize], rng: &mut Rng) -> Self {
        Self {
            image: rng.below(N_IMAGES),
            category_id: random_category(category_ids, rng),
            bbox: random_box(rng),
            crowd: n.is_multiple_of(CROWD_EVERY),
        }
    }
}

/// The first class has nearly a quarter of all boxes, as persons have in COCO.
fn random_category(category_ids: &[usize], rng: &mut Rng) -> usize {
    category_ids[(category_ids.len() as f64 * rng.unit().powi(3)) as usize]
}

/// Sides from 8 to 400 pixels, small ones more often, to the hundredth of a pixel as COCO's are.
fn random_box(rng: &mut Rng) -> [f64; 4] {
    let [width, height] = [(); 2].map(|()| hundredths(8.0 * 50.0f64.powf(rng.unit())));
    let x = hundredths(rng.range(0.0, WIDTH - width));
    let y = hundredths(rng.range(0.0, HEIGHT - height));
    [x, y, width, height]
}

fn hundredths(pixels: f64) -> f64 {
    (100.0 * pixels).round() / 100.0
}

struct Detection {
    image: usize,
    category_id: usize,
    bbox: [f64; 4],
    score: f64,
}

/// Image by image, the best first, as detectors write them.
fn draw_detections(objects: &[Object], category_ids: &[usize], rng: &mut Rng) -> Vec<Detection> {
    let mut detections = Vec::with_capacity(N_DETECTIONS);
    for object in objects {
        for _ in 0..rng.below(6) {
            let spread = rng.range(0.0, 0.3);
            let score = ((1.0 - 2.5 * spread) * rng.unit().sqrt()).max(0.001);
            detections.push(Detection {
                image: object.image,
                category_id: object.category_id,
                bbox: jittered(object.bbox, spread, rng),
                score,
            });
        }
    }
    while detections.len() < N_DETECTIONS {
        detections.push(Detection {
            image: rng.below(N_IMAGES),
            category_id: random_category(category_ids, rng),
            bbox: random_box(rng),
            score: 0.001 + 0.6 * rng.unit().powi(4),
        });
    }
    detections.sort_by(|a, b| a.image.cmp(&b.image).then(b.score.total_cmp(&a.score)));
    detections
}

fn jittered([x, y, width, height]: [f64; 4], spread: f64, rng: &mut Rng) -> [f64; 4] {
    let ((right, down), (wider, higher)) = (rng.normals(), rng.normals());
    let scale = |by: f64| (1.0 + spread * by).max(0.1);
    [
        x + 0.5 * spread * right * width,
        y + 0.5 * spread * down * height,
        width * scale(wider),
        height * scale(higher),
    ]
}

fn write_annotations(out: &mut impl Write, objects: &[Object], rng: &mut Rng) -> io::Result<()> {
    out.write_all(br#"{"info": {"description": "Synthetic data of COCO's size", "year": 2017},"images": ["#)?;
    for n in 0..N_IMAGES {
        separate(out, COMMA, n)?;
        let id = image_id(n);
        write!(
            out,
            r#"{{"license": 1,"file_name": "{id:012}.jpg","coco_url": "http://images.example.org/val2017/{id:012}.jpg","height": {HEIGHT},"width": {WIDTH},"date_captured": "2013-11-14 11:18:45","id": {id}}}"#,
        )?;
    }
    out.write_all(br#"],"annotations": ["#)?;
    for (n, Object { image, category_id, bbox: [x, y, width, height], crowd }) in objects.iter().enumerate() {
        separate(out, COMMA, n)?;
        out.write_all(br#"{"segmentation": [["#)?;
        for point in 0..8 + rng.below(40) {
            separate(out, COMMA, point)?;
            let (right, down) = (x + width * rng.unit(), y + height * rng.unit());
            write!(out, "{right:.2},{down:.2}")?;
        }
        write!(
            out,
            r#"]],"area": {},"iscrowd": {},"image_id": {},"bbox": [{x},{y},{width},{height}],"category_id": {category_id},"id": {}}}"#,
            0.61 * width * height,
            u8::from(*crowd),
            image_id(*image),
            1 + 2 * n,
        )?;
    }
    write_categories(out, COMMA)
}

/// 32-bit numbers with the digits of 64 bits, as Python writes the output of a network.
fn write_detections(out: &mut impl Write, detections: &[Detection]) -> io::Result<()> {
    let digits = |value: f64| f64::from(value as f32);
    out.write_all(b"[")?;
    for (n, Detection { image, category_id, bbox, score }) in detections.iter().enumerate() {
        separate(out, COMMA, n)?;
        let [x, y, width, height] = bbox.map(digits);
        write!(
            out,
            r#"{{"image_id": {}, "bbox": [{x}, {y}, {width}, {height}], "score": {}, "category_id": {category_id}}}"#,
            image_id(*image),
            digits(*score),
        )?;
    }
    out.write_all(b"]")
}
