//! A synthetic annotation file of the size of COCO's `instances_train2017.json`, with its keys in its
//! order. The shape of outlines does not matter to a reader; their notation does.

use std::io::{self, Write};
use std::path::PathBuf;

use lacuna_data::output::{IfExists, write_file};
use lacuna_random::{Purpose, Rng};

use crate::bench::synthetic::{CROWD_EVERY, coco_category_ids, image_id, separate, write_categories};
use crate::bench::synthetic_data;

const COMMA: &str = ",";

const N_IMAGES: usize = 118_287;
const N_ANNOTATIONS: usize = 860_001;
const WIDTH: usize = 640;
const HEIGHT: usize = 480;

/// Writes the file unless an earlier run did.
pub(crate) fn train2017_size() -> anyhow::Result<PathBuf> {
    let path = synthetic_data()?.join("instances_train2017_size.json");
    if !path.exists() {
        eprintln!("writing {}, 0.5 GB, once", path.display());
        write_file(&path, IfExists::Refuse, |out| write(out))?;
    }
    Ok(path)
}

fn write(out: &mut impl Write) -> io::Result<()> {
    out.write_all(br#"{"info": {"description": "Synthetic data of COCO's size", "year": 2017},"#)?;
    out.write_all(br#""licenses": [{"url": "http://example.org/", "id": 1, "name": "None"}],"images": ["#)?;
    for n in 0..N_IMAGES {
        separate(out, COMMA, n)?;
        let id = image_id(n);
        write!(
            out,
            r#"{{"license": 1,"file_name": "{id:012}.jpg","coco_url": "http://images.example.org/train2017/{id:012}.jpg","height": {HEIGHT},"width": {WIDTH},"date_captured": "2013-11-14 11:18:45","flickr_url": "http://farm9.example.org/8186/8119368305_4e622c8349_z.jpg","id": {id}}}"#,
        )?;
    }
    let category_ids = coco_category_ids();
    out.write_all(br#"],"annotations": ["#)?;
    let mut rng = Rng::new(Purpose::Synth, 2017, 0, 0);
    for n in 0..N_ANNOTATIONS {
        separate(out, COMMA, n)?;
        write_annotation(out, n, &category_ids, &mut rng)?;
    }
    write_categories(out, COMMA)
}

fn write_annotation(out: &mut impl Write, n: usize, category_ids: &[usize], rng: &mut Rng) -> io::Result<()> {
    // In hundredths of a pixel, COCO's precision.
    let (width, height) = (1000 + rng.below(20_000), 1000 + rng.below(15_000));
    let (x, y) = (rng.below(100 * WIDTH - width), rng.below(100 * HEIGHT - height));
    let pixels = |hundredths: usize| hundredths as f64 / 100.0;
    let crowd = n.is_multiple_of(CROWD_EVERY);

    out.write_all(br#"{"segmentation": "#)?;
    if crowd {
        out.write_all(br#"{"counts": ["#)?;
        for run in 0..100 + rng.below(200) {
            separate(out, COMMA, run)?;
            write!(out, "{}", 1 + rng.below(500))?;
        }
        write!(out, r#"],"size": [{HEIGHT},{WIDTH}]}}"#)?;
    } else {
        out.write_all(b"[[")?;
        for point in 0..8 + rng.below(40) {
            separate(out, COMMA, point)?;
            write!(out, "{},{}", pixels(x + rng.below(width)), pixels(y + rng.below(height)))?;
        }
        out.write_all(b"]]")?;
    }
    write!(
        out,
        r#","area": {},"iscrowd": {},"image_id": {},"bbox": [{},{},{},{}],"category_id": {},"id": {}}}"#,
        0.61 * pixels(width) * pixels(height),
        u8::from(crowd),
        image_id(rng.below(N_IMAGES)),
        pixels(x),
        pixels(y),
        pixels(width),
        pixels(height),
        category_ids[rng.below(category_ids.len())],
        1 + 2 * n,
    )
}
