use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use lacuna_data::coco;
use lacuna_data::convert::{Converted, ImageFiles, write_folder};
use lacuna_data::layout::{Format, Split};
use lacuna_data::output::{IfExists, write_file};
use serde_json::json;

use super::{shown, usage};
use crate::data_args::{DataArgs, note_problems};
use crate::progress::Progress;
use crate::table::thousands;

/// Turn a data set into another format: COCO, VOC or YOLO
///
/// Every split is converted, unless one is named. ImageFiles are copied into the new layout.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    data: DataArgs,

    /// The new data set: a folder, or a name ending in .json for a COCO file of one split
    out: PathBuf,

    /// The new format; a name ending in .json says COCO by itself
    #[arg(long)]
    to: Option<FormatArg>,

    /// Link the images to the originals instead of copying them, where the file system can
    #[arg(long, conflicts_with = "no_images")]
    link: bool,

    /// Write annotations only
    #[arg(long)]
    no_images: bool,

    /// Replace an output that exists
    #[arg(long)]
    force: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum FormatArg {
    Coco,
    Voc,
    Yolo,
}

pub fn run(args: &Args) -> Result<()> {
    let if_exists = IfExists::forced(args.force);
    if_exists.check_all(&[&args.out], &[&args.data.path])?;
    let is_json = args.out.extension().is_some_and(|e| e == "json");
    let format = match (args.to, is_json) {
        (Some(FormatArg::Coco), _) | (None, true) => Format::Coco,
        (Some(FormatArg::Voc), false) => Format::Voc,
        (Some(FormatArg::Yolo), false) => Format::Yolo,
        (Some(_), true) => usage("a .json file is COCO's; name a folder for VOC or YOLO"),
        (None, false) => usage("`--to coco`, `--to voc` or `--to yolo` is needed for a folder"),
    };

    let (splits, written) = if is_json {
        if args.link || args.no_images {
            usage("`--link` and `--no-images` go with a folder; a .json file has no images");
        }
        let split = args.data.read()?;
        if_exists.check_all(&[&args.out], &[split.path()])?;
        note_problems(&split);
        write_file(&args.out, if_exists, |out| coco::write(&split.dataset, out))?;
        let (images, annotations) = (split.dataset.images().len(), split.dataset.annotations().len());
        (vec![split], Converted { images, annotations, ..Converted::default() })
    } else {
        let splits = args.data.read_all()?;
        splits.iter().for_each(note_problems);
        let images = match (args.no_images, args.link) {
            (true, _) => ImageFiles::Leave,
            (false, true) => ImageFiles::HardLink,
            (false, false) => ImageFiles::Copy,
        };
        let progress =
            Progress::new("converting images", splits.iter().map(|s| s.dataset.images().len()).sum());
        let written = write_folder(&splits, format, images, &args.out, if_exists, &|| progress.done())?;
        (splits, written)
    };
    print(args, &splits, &written)
}

fn print(args: &Args, splits: &[Split], written: &Converted) -> Result<()> {
    let names: Vec<&str> = splits.iter().map(|s| s.name.as_str()).collect();
    let Converted { images, annotations, crowds_left_out, boxes_left_out } = *written;
    let mut out = std::io::stdout().lock();
    if args.json {
        let result = json!({
            "out": shown(&args.out), "splits": names, "images": images, "annotations": annotations,
            "crowds_left_out": crowds_left_out, "boxes_left_out": boxes_left_out,
        });
        writeln!(out, "{result}")?;
    } else {
        let (images, annotations) = (thousands(images), thousands(annotations));
        writeln!(
            out,
            "{}: {images} images, {annotations} annotations ({})",
            args.out.display(),
            names.join(", ")
        )?;
        if crowds_left_out > 0 {
            eprintln!("note: crowd regions left out, because YOLO has none: {}", thousands(crowds_left_out));
        }
        if boxes_left_out > 0 {
            eprintln!(
                "note: boxes left out, because they lie outside the image: {}",
                thousands(boxes_left_out)
            );
        }
    }
    Ok(())
}
