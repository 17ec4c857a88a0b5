//! `lacuna predict`: a model over images.

use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use lacuna_boxes::Detection;
use lacuna_calib::Proximity;
use lacuna_data::decode::{self, RgbImage};
use lacuna_data::draw::{Outline, draw};
use lacuna_data::layout::{self, Layout};
use lacuna_data::output::{NewFolder, write_file};
use lacuna_data::{Dataset, coco};
use lacuna_train::evaluate::match_classes;
use lacuna_train::model::{Model, ModelCategory, ModelConfig};
use serde::Serialize;
use serde_json::json;

use super::import::named_categories;
use crate::args::data::{DataOptions, OnBadImageArg};
use crate::args::output::OutputArgs;
use crate::diagnostics::usage;
use crate::render::number::thousands;
use crate::render::path_json;
use crate::render::progress::Progress;

/// Run a model over images and write a COCO results file
///
/// Boxes are [x, y, width, height] in pixels of the image, scores are the detector's own. A model that was trained
/// with a calibrator adds the `confidence` of each detection: the probability that it is right.
///
/// Images of a data set keep its image ids. Image files and folders of images are numbered from 1, unless --ids-from
/// names a COCO file that has them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A data set, or image files, or folders of images
    #[arg(required = true, value_name = "DATA")]
    data: Vec<PathBuf>,

    /// A folder that `lacuna train` or `lacuna import` wrote
    #[arg(long, value_name = "DIR")]
    model: PathBuf,

    /// The detections, a JSON file
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    #[command(flatten)]
    options: DataOptions,

    /// Image files and folders: take the image ids from this COCO file
    #[arg(long, value_name = "COCO_JSON")]
    ids_from: Option<PathBuf>,

    /// Take category ids from this COCO file: by class name, or in its order for a model without names
    #[arg(long, value_name = "COCO_JSON")]
    categories: Option<PathBuf>,

    /// Only detections with a score above this; the model's own floor holds, too
    #[arg(long, value_name = "SCORE", default_value_t = 0.0)]
    score_min: f32,

    /// Also write the images with the detections drawn in, into this folder
    #[arg(long, value_name = "DIR")]
    draw: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,
}

/// The colors of classes, in turn. Color-blind people can tell them apart (Okabe and Ito, 2008).
const COLORS: [[u8; 3]; 7] = [
    [230, 159, 0],
    [86, 180, 233],
    [0, 158, 115],
    [240, 228, 66],
    [0, 114, 178],
    [213, 94, 0],
    [204, 121, 167],
];

/// One image to run the model over.
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

pub(crate) fn run(args: &Args) -> Result<()> {
    if !(0.0..=1.0).contains(&args.score_min) {
        usage("`--score-min` must be from 0 to 1");
    }
    let if_exists = args.output.if_exists();
    let of_model = Model::files(&args.model);
    let files: Vec<&Path> =
        args.ids_from.iter().chain(&args.categories).chain(&of_model).map(PathBuf::as_path).collect();
    let outputs: Vec<&Path> = [&args.out].into_iter().chain(&args.draw).map(PathBuf::as_path).collect();
    if_exists.check_all(&outputs, &files)?;
    let mut model = Model::read(&args.model)?;
    if let Some(path) = &args.categories {
        model.config.categories = match model.config.has_names() {
            true => categories_of_names(path, &model.config.categories)?,
            false => named_categories(path, &model.config.detector)?,
        };
    }
    let is_wanted = wanted_classes(&args.options, &model.config.categories);
    let inputs = find_images(args)?;
    if_exists.check_all(&outputs, &inputs.iter().map(|input| input.path.as_path()).collect::<Vec<_>>())?;
    let pictures = args.draw.as_deref().map(|folder| NewFolder::create(folder, if_exists)).transpose()?;

    let progress = Progress::new("detecting", inputs.len());
    let (mut entries, mut images) = (Vec::new(), 0);
    for input in &inputs {
        match decode::read(&input.path, input.annotated_size) {
            Ok(image) => {
                let mut detections = model.detect(&image);
                detections.retain(|found| found.score.0 > args.score_min && is_wanted[found.class]);
                entries.extend(detections.iter().map(|detection| entry(input, detection, &model.config)));
                if let Some(folder) = &pictures {
                    let name = Path::new(&input.file_name).with_extension("jpg");
                    let name = format!("{}_{}", input.id, name.display().to_string().replace('/', "_"));
                    let picture = with_detections(image, &detections, &model.config);
                    folder.file(Path::new(&name), |out| picture.write_jpeg(out))?;
                }
                images += 1;
            }
            Err(error) if args.options.on_bad_image == OnBadImageArg::Skip => eprintln!("warning: {error}"),
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
    if args.output.json {
        writeln!(
            out,
            "{}",
            json!({"out": path_json(&args.out), "images": images, "detections": detections})
        )?;
    } else {
        let (images, detections) = (thousands(images), thousands(detections));
        writeln!(out, "{}: {detections} detections in {images} images", args.out.display())?;
    }
    Ok(())
}

/// Which of the model's classes are detected: those that `--classes` names, or all.
fn wanted_classes(options: &DataOptions, categories: &[ModelCategory]) -> Vec<bool> {
    if !options.are_classes_chosen() {
        return vec![true; categories.len()];
    }
    let is_class = |name: &str| categories.iter().any(|category| category.name == name);
    let names = options.class_names(is_class);
    if let Some(unknown) = names.iter().find(|name| !is_class(name)) {
        usage(&format!("the model has no class `{unknown}`"));
    }
    categories.iter().map(|category| names.contains(&category.name)).collect()
}

/// The categories of a file that have these names.
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

/// The confidence by the model's calibrator, if it has one. Nothing is known of the image's annotations.
fn confidence(detection: &Detection, model: &ModelConfig) -> Option<f32> {
    let calibrator = model.calibrator.as_ref()?;
    Some(calibrator.confidence(detection.class, detection.score, Proximity::Unknown).0)
}

/// A picture of the image with its detections, the best on top.
fn with_detections(mut image: RgbImage, detections: &[Detection], model: &ModelConfig) -> RgbImage {
    let outline = |detection: &Detection| {
        let shown = confidence(detection, model).unwrap_or(detection.score.0);
        let name = &model.categories[detection.class].name;
        Outline {
            bbox: detection.bbox,
            color: COLORS[detection.class % COLORS.len()],
            label: Some(format!("{name} {shown:.2}")),
        }
    };
    draw(&mut image, &detections.iter().rev().map(outline).collect::<Vec<_>>());
    image
}

/// The files that are named, and those in the folders that are named, with their names there.
fn list_files(paths: &[PathBuf]) -> Result<Vec<(PathBuf, String)>> {
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
                path.file_name().map_or_else(|| path_json(path), |name| name.to_string_lossy().into_owned());
            files.push((path.clone(), name));
        }
    }
    Ok(files)
}

/// The images of a data set, or those that are named.
fn find_images(args: &Args) -> Result<Vec<Input>> {
    if let Some(layout) = data_set(&args.data)? {
        if args.ids_from.is_some() {
            usage("`--ids-from` is for image files and folders: a data set has ids of its own");
        }
        return data_set_inputs(&layout, &args.options);
    }
    if args.options.split.is_some() || args.options.images.is_some() {
        usage("`--split` and `--images` need a data set as DATA");
    }
    match &args.ids_from {
        Some(path) => inputs_with_ids(&coco::read(path)?, path, &args.data),
        None => numbered_inputs(&args.data),
    }
}

/// The data set that is named; `None` if image files or folders of images are.
fn data_set(paths: &[PathBuf]) -> Result<Option<Layout>> {
    let [path] = paths else { return Ok(None) };
    let is_file = |extensions: &[&str]| {
        path.extension().and_then(|extension| extension.to_str()).is_some_and(|e| extensions.contains(&e))
    };
    if !path.is_dir() {
        return Ok(if is_file(&["json", "yaml", "yml"]) { Some(Layout::detect(path)?) } else { None });
    }
    match Layout::detect(path) {
        Ok(layout) => Ok(Some(layout)),
        Err(lacuna_data::Error::UnknownLayout { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn data_set_inputs(layout: &Layout, options: &DataOptions) -> Result<Vec<Input>> {
    let split = options.read_whole_split(layout, options.split.as_deref())?;
    let folder = split.images()?;
    let input = |image: &lacuna_data::Image| Input {
        path: folder.join(&image.file_name),
        id: image.id,
        file_name: image.file_name.clone(),
        annotated_size: Some((image.width, image.height)),
    };
    Ok(split.dataset.images().iter().map(input).collect())
}

/// Images numbered from 1.
fn numbered_inputs(paths: &[PathBuf]) -> Result<Vec<Input>> {
    let files = list_files(paths)?;
    let input = |(id, (path, file_name))| Input { path, id, file_name, annotated_size: None };
    Ok((1..).zip(files).map(input).collect())
}

/// The images that a COCO file has: of a folder those that are there, and each file that is named.
fn inputs_with_ids(dataset: &Dataset, annotations: &Path, paths: &[PathBuf]) -> Result<Vec<Input>> {
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
