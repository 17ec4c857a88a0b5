//! Made scenes as a data set on disk.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder};
use rayon::prelude::*;
use serde::Serialize;

use super::{CLASSES, Object, Scene, SynthConfig, scene};
use crate::coco;
use crate::dataset::{Builder, Dataset, Xywh};
use crate::error::{Error, Result};
use crate::output::{IfExists, NewFolder};

/// High enough that the smallest objects keep their surface.
const JPEG_QUALITY: u8 = 92;

/// The field of a record that says how much of its object can be seen.
#[derive(Serialize)]
struct Visible {
    visible: f32,
}

/// Make a data set in COCO's layout with these splits, each a name and a number of images. No scene
/// is in two splits, and a split's first images do not depend on how many there are. `go_on` is asked
/// after each image; when it says no, [`Error::Interrupted`] is the result.
///
/// # Panics
/// When [`SynthConfig::check`] fails.
pub fn write_folder(
    config: &SynthConfig,
    splits: &[(&str, usize)],
    out: &Path,
    if_exists: IfExists,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<Dataset>> {
    let folder = NewFolder::create(out, if_exists)?;
    let mut datasets = Vec::new();
    for (nth, &(name, n_images)) in splits.iter().enumerate() {
        let images = folder.path().join(name);
        fs::create_dir_all(&images).map_err(Error::write(&out.join(name)))?;
        let make = |image: usize| {
            let scene = scene(config, ((nth as u64) << 32) + image as u64);
            let file_name = file_name(image);
            write_jpeg(&scene, &images.join(&file_name))
                .map_err(Error::write(&out.join(name).join(&file_name)))?;
            if !go_on() {
                return Err(Error::Interrupted);
            }
            Ok((scene.width, scene.height, scene.objects))
        };
        let scenes: Vec<(u32, u32, Vec<Object>)> =
            (0..n_images).into_par_iter().map(make).collect::<Result<_>>()?;

        let dataset = index(scenes);
        let json = Path::new("annotations").join(format!("instances_{name}.json"));
        let write = || {
            fs::create_dir_all(folder.path().join("annotations"))?;
            let mut file = BufWriter::new(fs::File::create(folder.path().join(&json))?);
            coco::write(&dataset, &mut file)?;
            file.flush()
        };
        write().map_err(Error::write(&out.join(&json)))?;
        datasets.push(dataset);
    }
    folder.finish()?;
    Ok(datasets)
}

fn file_name(image: usize) -> String {
    format!("{:06}.jpg", image + 1)
}

fn write_jpeg(scene: &Scene, path: &Path) -> std::io::Result<()> {
    let mut file = BufWriter::new(fs::File::create(path)?);
    JpegEncoder::new_with_quality(&mut file, JPEG_QUALITY)
        .write_image(&scene.pixels, scene.width, scene.height, ExtendedColorType::Rgb8)
        .map_err(std::io::Error::other)?;
    file.flush()
}

fn index(scenes: Vec<(u32, u32, Vec<Object>)>) -> Dataset {
    let mut builder = Builder::default();
    for class in CLASSES {
        builder.category(class);
    }
    for (n, (width, height, objects)) in scenes.into_iter().enumerate() {
        let image = builder.image(&file_name(n), width, height);
        for Object { class, bbox, visible } in objects {
            let bbox = Xywh {
                x: bbox.x1.into(),
                y: bbox.y1.into(),
                width: bbox.width().into(),
                height: bbox.height().into(),
            };
            builder.annotation(image, class, bbox, false, Visible { visible });
        }
    }
    builder.finish()
}
