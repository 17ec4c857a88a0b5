use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use lacuna_boxes::Detection;
use lacuna_calib::Proximity;
use lacuna_data::decode::{self, RgbImage};
use lacuna_data::draw::{Outline, draw};
use lacuna_data::output::{IfExists, NewFolder, write_file};
use lacuna_data::{Dataset, coco, layout};
use lacuna_train::evaluate::match_classes;
use lacuna_train::model::{Model, ModelCategory, ModelConfig};
use serde::Serialize;
use serde_json::json;

use super::import::named_categories;
use super::{shown, usage};
use crate::data_args::OnBadImageArg;
use crate::progress::Progress;
use crate::table::thousands;

/// Run a model over images; the result is a COCO results file
///
/// Boxes are those of the image, [x, y, width, height], and scores the detector's own. A model that was
/// trained with a calibrator adds the confidence of each: the probability that it is right, as far as detections
/// near an annotation tell.
#[derive(clap::Args)]
pub struct Args {
    /// A folder that `lacuna import` or `lacuna train` made
    model: PathBuf,

    /// Image files, or folders of them
    #[arg(required = true, value_name = "IMAGES")]
    images: Vec<PathBuf>,

    /// The detections, a JSON file
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// A COCO file that gives the images their ids; without it they count from 1
    #[arg(long, value_name = "COCO_JSON")]
    annotations: Option<PathBuf>,

    /// A COCO file that gives the classes of these names their ids, in place of the model's; a model without names
    /// takes them in the file's order
    #[arg(long, value_name = "COCO_JSON")]
    categories: Option<PathBuf>,

    /// Only detections with a score above this; lower than the model's own floor it has no effect
    #[arg(long, value_name = "SCORE", default_value_t = 0.0)]
    score_min: f32,

    /// Also write pictures with the detections in them into this folder
    #[arg(long, value_name = "DIR")]
    draw: Option<PathBuf>,

    /// What to do about an image that cannot be read
    #[arg(long, value_name = "WHAT", default_value = "error")]
    on_bad_image: OnBadImageArg,

    /// Replace an output that exists
    #[arg(long)]
    force: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Of the classes, in turn: colors that are told apart, also by the color-blind (Okabe and Ito, 2008).
const COLORS: [[u8; 3]; 7] = [
    [230, 159, 0],
    [86, 180, 233],
    [0, 158, 115],
    [240, 228, 66],
    [0, 114, 178],
    [213, 94, 0],
    [204, 121, 167],
];

/// One image to look at.
struct Input {
    path: PathBuf,
    id: u64,
    file_name: String,
    annotated_size: Option<(u32, u32)>,
}

/// One entry of a results file.
#[derive(Serialize)]
struct Entry<'a> {
    image_id: u64,
    file_name: &'a str,
    category_id: u64,
    bbox: [f32; 4],
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    confidence: Option<f32>,
}

pub fn run(args: &Args) -> Result<()> {
    if !(0.0..=1.0).contains(&args.score_min) {
        usage("`--score-min` goes from 0 to 1");
    }
    let if_exists = IfExists::forced(args.force);
    let of_model = Model::files(&args.model);
    let files: Vec<&Path> =
        args.annotations.iter().chain(&args.categories).chain(&of_model).map(PathBuf::as_path).collect();
    let outputs: Vec<&Path> = [&args.out].into_iter().chain(&args.draw).map(PathBuf::as_path).collect();
    if_exists.check_all(&outputs, &files)?;
    let mut model = Model::read(&args.model)?;
    if let Some(path) = &args.categories {
        model.config.categories = match model.config.has_names() {
            true => categories_of_names(path, &model.config.categories)?,
            false => named_categories(path, &model.config.detector)?,
        };
    }
    let inputs = match &args.annotations {
        Some(path) => annotated_inputs(&coco::read(path)?, path, &args.images)?,
        None => inputs(&args.images)?,
    };
    if_exists.check_all(&outputs, &inputs.iter().map(|input| input.path.as_path()).collect::<Vec<_>>())?;
    let pictures = args.draw.as_deref().map(|folder| NewFolder::create(folder, if_exists)).transpose()?;

    let progress = Progress::new("looking at images", inputs.len());
    let (mut entries, mut images) = (Vec::new(), 0);
    for input in &inputs {
        match decode::read(&input.path, input.annotated_size) {
            Ok(image) => {
                let mut detections = model.detect(&image);
                detections.retain(|detection| detection.score.0 > args.score_min);
                entries.extend(detections.iter().map(|detection| entry(input, detection, &model.config)));
                if let Some(folder) = &pictures {
                    let name = Path::new(&input.file_name).with_extension("jpg");
                    let name = format!("{}_{}", input.id, name.display().to_string().replace('/', "_"));
                    let picture = with_detections(image, &detections, &model.config);
                    folder.file(Path::new(&name), |out| picture.write_jpeg(out))?;
                }
                images += 1;
            }
            Err(error) if args.on_bad_image == OnBadImageArg::Skip => eprintln!("warning: {error}"),
            Err(error) => return Err(lacuna_data::Error::from(error).into()),
        }
        if !progress.done() {
            return Err(lacuna_data::Error::Interrupted.into());
        }
    }
    drop(progress);

    write_file(&args.out, if_exists, |out| Ok(serde_json::to_writer(out, &entries)?))?;
    if let Some(folder) = pictures {
        folder.finish()?;
    }

    let mut out = std::io::stdout().lock();
    let detections = entries.len();
    if args.json {
        writeln!(out, "{}", json!({"out": shown(&args.out), "images": images, "detections": detections}))?;
    } else {
        let (images, detections) = (thousands(images), thousands(detections));
        writeln!(out, "{}: {detections} detections in {images} images", args.out.display())?;
    }
    Ok(())
}

/// The categories of a file that are called like these.
fn categories_of_names(path: &Path, categories: &[ModelCategory]) -> Result<Vec<ModelCategory>> {
    let dataset = coco::read(path)?;
    let known = match_classes(categories, &dataset);
    let of_file = |(class, known): (&ModelCategory, Option<usize>)| {
        let Some(known) = known else {
            usage(&format!("{} has no category `{}`, which the model has", path.display(), class.name))
        };
        ModelCategory { id: dataset.categories()[known].id, name: class.name.clone() }
    };
    Ok(categories.iter().zip(known).map(of_file).collect())
}

fn entry<'a>(input: &'a Input, detection: &Detection, model: &ModelConfig) -> Entry<'a> {
    let bbox = detection.bbox;
    Entry {
        image_id: input.id,
        file_name: &input.file_name,
        category_id: model.categories[detection.class].id,
        bbox: [bbox.x1, bbox.y1, bbox.width(), bbox.height()],
        score: detection.score.0,
        confidence: confidence(detection, model),
    }
}

/// How sure the model's calibrator is, if it has one. Nothing is known of what is annotated in the image.
fn confidence(detection: &Detection, model: &ModelConfig) -> Option<f32> {
    let calibrator = model.calibrator.as_ref()?;
    Some(calibrator.confidence(detection.class, detection.score, Proximity::Unknown).0)
}

/// A picture of the image with its detections, the best on top.
fn with_detections(mut image: RgbImage, detections: &[Detection], model: &ModelConfig) -> RgbImage {
    let outline = |detection: &Detection| {
        let sure = confidence(detection, model);
        let name = &model.categories[detection.class].name;
        Outline {
            bbox: detection.bbox,
            color: COLORS[detection.class % COLORS.len()],
            label: Some(format!("{name} {:.2}", sure.unwrap_or(detection.score.0))),
        }
    };
    draw(&mut image, &detections.iter().rev().map(outline).collect::<Vec<_>>());
    image
}

/// The files that were named and those in the folders that were named, with their names in them.
fn files(paths: &[PathBuf]) -> Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let within = layout::image_files(path)?;
            if within.is_empty() {
                usage(&format!("{} holds no image", path.display()));
            }
            files.extend(within.into_iter().map(|name| (path.join(&name), name.display().to_string())));
        } else {
            let name =
                path.file_name().map_or_else(|| shown(path), |name| name.to_string_lossy().into_owned());
            files.push((path.clone(), name));
        }
    }
    Ok(files)
}

/// The images by their places, from 1.
fn inputs(paths: &[PathBuf]) -> Result<Vec<Input>> {
    let files = files(paths)?;
    let input = |(id, (path, file_name))| Input { path, id, file_name, annotated_size: None };
    Ok((1..).zip(files).map(input).collect())
}

/// The images that the annotations know: of a folder those, and of files each.
fn annotated_inputs(dataset: &Dataset, annotations: &Path, paths: &[PathBuf]) -> Result<Vec<Input>> {
    let by_name: HashMap<&str, usize> =
        dataset.images().iter().enumerate().map(|(index, image)| (image.file_name.as_str(), index)).collect();
    let (mut inputs, mut named) = (Vec::new(), HashSet::new());
    let mut add = |path: PathBuf, index: usize| {
        let image = &dataset.images()[index];
        if !named.insert(index) {
            usage(&format!(
                "{} is image {} of {}, which is named twice",
                path.display(),
                image.id,
                annotations.display()
            ));
        }
        let annotated_size = Some((image.width, image.height));
        inputs.push(Input { path, id: image.id, file_name: image.file_name.clone(), annotated_size });
    };
    for path in paths {
        if path.is_dir() {
            let before = dataset
                .images()
                .iter()
                .enumerate()
                .map(|(index, image)| (path.join(&image.file_name), index));
            let present: Vec<_> = before.filter(|(path, _)| path.is_file()).collect();
            if present.is_empty() {
                usage(&format!("{} holds none of the images of {}", path.display(), annotations.display()));
            }
            present.into_iter().for_each(|(path, index)| add(path, index));
        } else {
            // An image may be named from any folder above it.
            let name = path.iter().enumerate().find_map(|(depth, _)| {
                let tail: PathBuf = path.iter().skip(depth).collect();
                by_name.get(tail.to_str()?).copied()
            });
            match name {
                Some(index) => add(path.clone(), index),
                None => usage(&format!("{} is not an image of {}", path.display(), annotations.display())),
            }
        }
    }
    Ok(inputs)
}
