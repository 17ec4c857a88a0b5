//! `lacuna synth`: synthetic scenes with known boxes.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use lacuna_data::Dataset;
use lacuna_data::output::NewFolder;
use lacuna_synth::{CLASSES, SynthConfig, fill_folder};
use serde_json::json;

use crate::args::output::OutputArgs;
use crate::diagnostics::usage;
use crate::render::number::thousands;
use crate::render::path_json;
use crate::render::progress::Progress;

/// Generate a synthetic data set: cluttered scenes of eight classes, in COCO's layout
///
/// The same options give the same images on every machine.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Images of the split `train`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    images: u32,

    /// Images of the split `test`
    #[arg(long, value_name = "N", default_value_t = 0)]
    test: u32,

    /// Another seed gives other scenes
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// The size of the largest scenes in pixels; the smallest have two thirds of it, each way
    #[arg(long, value_name = "WxH", value_parser = parse_size, default_value = "384x320")]
    size: (u32, u32),

    /// Amount of clutter that belongs to no class, as a multiple of the usual
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    clutter: f32,

    /// Only objects of these classes [default: all eight]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = parse_class)]
    classes: Vec<usize>,

    /// The fewest and the most objects in a scene
    #[arg(long, value_name = "MIN-MAX", value_parser = parse_range, default_value = "5-15")]
    objects: (u32, u32),

    /// The diameter of the smallest objects, in pixels
    #[arg(long, value_name = "PIXELS", default_value_t = SynthConfig::default().side_min)]
    side_min: f32,

    /// The diameter of the largest objects, as a share of the scene's shorter side
    #[arg(long, value_name = "SHARE", default_value_t = SynthConfig::default().side_max)]
    side_max: f32,

    #[command(flatten)]
    output: OutputArgs,
}

fn parse_size(text: &str) -> Result<(u32, u32), String> {
    let parse = || {
        let (width, height) = text.split_once('x')?;
        Some((width.parse().ok()?, height.parse().ok()?))
    };
    parse().ok_or_else(|| "a size is written WIDTHxHEIGHT, as in 384x320".into())
}

fn parse_class(name: &str) -> Result<usize, String> {
    let known = || format!("the classes are {}", CLASSES.join(", "));
    CLASSES.iter().position(|class| *class == name).ok_or_else(known)
}

fn parse_range(text: &str) -> Result<(u32, u32), String> {
    let parse = || {
        let (low, high) = text.split_once('-')?;
        Some((low.parse().ok()?, high.parse().ok()?))
    };
    parse().ok_or_else(|| "a range is written MIN-MAX, as in 5-15".into())
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (width, height) = args.size;
    let config = SynthConfig {
        seed: args.seed,
        width: width * 2 / 3..=width,
        height: height * 2 / 3..=height,
        classes: if args.classes.is_empty() { SynthConfig::default().classes } else { args.classes.clone() },
        objects: args.objects.0..=args.objects.1,
        side_min: args.side_min,
        side_max: args.side_max,
        clutter: args.clutter,
    };
    if let Err(error) = config.check() {
        usage(&error.to_string());
    }
    let folder = NewFolder::create(&args.out, args.output.if_exists())?;
    let mut splits = vec![("train", args.images as usize)];
    if args.test > 0 {
        splits.push(("test", args.test as usize));
    }
    let datasets = render_splits(&config, &splits, &folder)?;
    folder.finish()?;

    let mut out = std::io::stdout().lock();
    let counted =
        splits.iter().zip(&datasets).map(|((name, n), dataset)| (name, *n, dataset.annotations().len()));
    if args.output.json {
        let splits: Vec<_> = counted
            .map(|(name, images, boxes)| json!({ "split": name, "images": images, "boxes": boxes }))
            .collect();
        writeln!(out, "{}", json!({ "out": path_json(&args.out), "seed": args.seed, "splits": splits }))?;
    } else {
        for (name, images, boxes) in counted {
            let path = args.out.join("annotations").join(format!("instances_{name}.json"));
            writeln!(out, "{}: {} images, {} boxes", path.display(), thousands(images), thousands(boxes))?;
        }
    }
    Ok(())
}

/// Renders the splits and shows progress.
pub(crate) fn render_splits(
    config: &SynthConfig,
    splits: &[(&str, usize)],
    folder: &NewFolder,
) -> Result<Vec<Dataset>> {
    let progress = Progress::new("rendering images", splits.iter().map(|(_, n)| n).sum());
    Ok(fill_folder(config, splits, folder, &|| progress.done())?)
}

/// Scenes of a few large objects, which a small detector learns within minutes.
pub(crate) fn small_scenes() -> SynthConfig {
    SynthConfig {
        seed: 0,
        width: 144..=216,
        height: 144..=216,
        // Ball and tile.
        classes: vec![0, 7],
        objects: 3..=5,
        side_min: 30.0,
        side_max: 0.4,
        clutter: 0.0,
    }
}
