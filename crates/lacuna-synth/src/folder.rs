//! Synthetic scenes as a data set on disk, in COCO's layout.

use std::path::Path;

use lacuna_data::decode::RgbImage;
use lacuna_data::output::NewFolder;
use lacuna_data::{Builder, Dataset, Error, Result, Xywh, coco};
use rayon::prelude::*;
use serde::Serialize;

use crate::{CLASSES, Scene, SceneObject, SynthConfig, render_scene};

/// The extra field of an annotation: how much of its object can be seen.
#[derive(Serialize)]
struct Visible {
    visible: f32,
}

/// Fill a new folder in COCO's layout with these splits, each a name and a number of images.
///
/// No scene is in two splits, and a split's first images do not depend on how many there are. `go_on` is
/// called after each image and stops the work by returning false.
///
/// # Errors
/// [`Error::Interrupted`] when `go_on` returned false, [`Error::Write`] when a file cannot be written.
///
/// # Panics
/// When [`SynthConfig::check`] fails.
pub fn fill_folder(
    config: &SynthConfig,
    splits: &[(&str, usize)],
    folder: &NewFolder,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<Dataset>> {
    let mut datasets = Vec::new();
    for (nth, &(split, n_images)) in splits.iter().enumerate() {
        let render = |image: usize| {
            let Scene { width, height, pixels, objects } =
                render_scene(config, ((nth as u64) << 32) + image as u64);
            let path = Path::new(split).join(file_name(split, image));
            folder.file(&path, |out| RgbImage::new(width, height, pixels).write_jpeg(out))?;
            if !go_on() {
                return Err(Error::Interrupted);
            }
            Ok((width, height, objects))
        };
        let scenes: Vec<(u32, u32, Vec<SceneObject>)> =
            (0..n_images).into_par_iter().map(render).collect::<Result<_>>()?;
        let dataset = build_dataset(config, split, scenes);
        let json = format!("annotations/instances_{split}.json");
        folder.file(json.as_ref(), |out| coco::write(&dataset, out))?;
        datasets.push(dataset);
    }
    Ok(datasets)
}

/// The split is part of the name, so that the images of all splits fit into one folder.
fn file_name(split: &str, image: usize) -> String {
    format!("{split}_{:06}.jpg", image + 1)
}

fn build_dataset(config: &SynthConfig, split: &str, scenes: Vec<(u32, u32, Vec<SceneObject>)>) -> Dataset {
    let mut builder = Builder::default();
    let mut category = [0; CLASSES.len()];
    for &class in &config.classes {
        category[class] = builder.category(CLASSES[class]);
    }
    for (n, (width, height, objects)) in scenes.into_iter().enumerate() {
        let image = builder.image(&file_name(split, n), width, height);
        for SceneObject { class, bbox, visible } in objects {
            let bbox = Xywh {
                x: bbox.x1.into(),
                y: bbox.y1.into(),
                width: bbox.width().into(),
                height: bbox.height().into(),
            };
            builder.annotation(image, category[class], bbox, false, Visible { visible });
        }
    }
    builder.finish()
}
