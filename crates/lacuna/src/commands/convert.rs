//! `lacuna convert`: a data set in another format.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use lacuna_data::coco;
use lacuna_data::convert::{Converted, write_folder};
use lacuna_data::layout::{Format, Split};
use lacuna_data::output::write_file;
use lacuna_data::yolo::LeftOut;
use serde_json::json;

use crate::args::data::DataArgs;
use crate::args::output::{ImageFilesArgs, OutputArgs};
use crate::diagnostics::usage;
use crate::render::notes::{note_left_out, note_problems};
use crate::render::number::thousands;
use crate::render::path_json;
use crate::render::progress::Progress;

/// Convert a data set to COCO, VOC or YOLO
///
/// Converts every split, unless one is named, and copies the images into the new layout.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataArgs,

    /// The new data set: a folder, or a .json file for one split in COCO's format
    #[arg(long, value_name = "PATH")]
    out: PathBuf,

    /// The new format; not needed for a .json file
    #[arg(long)]
    to: Option<FormatArg>,

    #[command(flatten)]
    image_files: ImageFilesArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum FormatArg {
    Coco,
    Voc,
    Yolo,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let if_exists = args.output.if_exists();
    if_exists.check_all(&[&args.out], &[&args.data.path])?;
    let is_json = args.out.extension().is_some_and(|e| e == "json");
    let format = match (args.to, is_json) {
        (Some(FormatArg::Coco), _) | (None, true) => Format::Coco,
        (Some(FormatArg::Voc), false) => Format::Voc,
        (Some(FormatArg::Yolo), false) => Format::Yolo,
        (Some(_), true) => {
            usage("a .json file is in COCO's format: `--out` must be a folder for VOC and YOLO")
        }
        (None, false) => usage("a folder needs `--to coco`, `--to voc` or `--to yolo`"),
    };

    let (splits, written) = if is_json {
        if args.image_files.is_given() {
            usage(
                "`--link` and `--no-images` need a folder as `--out`: no images are written beside a .json file",
            );
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
        let images = args.image_files.image_files();
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
    if args.output.json {
        let result = json!({
            "out": path_json(&args.out), "splits": names, "images": images, "annotations": annotations,
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
        note_left_out("YOLO", LeftOut { crowds: crowds_left_out, outside: boxes_left_out });
    }
    Ok(())
}
