//! `lacuna sparsify`: the splits of the paper.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use lacuna_data::coco;
use lacuna_data::output::NewFile;
use lacuna_data::sparsify::{Percent, Sparse, SparsifyKind, sparsify};
use serde_json::json;

use crate::args::data::DataArgs;
use crate::args::output::OutputArgs;
use crate::diagnostics::usage;
use crate::interrupt::{self, Interruptible};
use crate::render::notes::note_problems;
use crate::render::number::thousands;
use crate::render::path_json;

/// Hide a part of the boxes, as the splits of the paper do
///
/// The result depends only on the data set, the kind and the seed. Crowd regions always stay.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataArgs,

    /// Which boxes are hidden
    #[arg(long)]
    kind: KindArg,

    /// The percentage to hide, for split1, split2 and split3
    #[arg(long, value_name = "P", value_parser = parse_percent, allow_negative_numbers = true)]
    percent: Option<Percent>,

    /// Another seed hides other boxes
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// The sparse data set, a COCO JSON file
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Also write the hidden boxes; both files together are the original
    #[arg(long, value_name = "FILE")]
    hidden: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum KindArg {
    /// P % of the boxes of each class
    Split1,
    /// In each image, all boxes of a class with a probability of P %; at least one class stays
    Split2,
    /// P % of all boxes
    Split3,
    /// One box of each image that has several
    Easy,
    /// Half of the boxes of each image
    Hard,
    /// All boxes of each image but one
    Extreme,
}

fn parse_percent(text: &str) -> Result<Percent, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Percent::new(number).ok_or_else(|| "a percentage is from 0 to 100".into())
}

impl Args {
    fn kind(&self) -> SparsifyKind {
        let percent = || self.percent.unwrap_or_else(|| usage("this kind needs `--percent P`"));
        let kind = match self.kind {
            KindArg::Split1 => return SparsifyKind::Split1(percent()),
            KindArg::Split2 => return SparsifyKind::Split2(percent()),
            KindArg::Split3 => return SparsifyKind::Split3(percent()),
            KindArg::Easy => SparsifyKind::Easy,
            KindArg::Hard => SparsifyKind::Hard,
            KindArg::Extreme => SparsifyKind::Extreme,
        };
        if self.percent.is_some() {
            usage("only split1, split2 and split3 take `--percent`");
        }
        kind
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let kind = args.kind();
    let if_exists = args.output.if_exists();
    let outputs = std::iter::once(&args.out).chain(&args.hidden).map(PathBuf::as_path);
    let outputs: Vec<&Path> = outputs.collect();
    if_exists.check_all(&outputs, &[&args.data.path])?;
    let split = args.data.read()?;
    if_exists.check_all(&outputs, &[split.path()])?;
    note_problems(&split);
    let Sparse { kept, hidden } = sparsify(&split.dataset, kind, args.seed);
    // Both files, or none: they get their names when both are written.
    interrupt::watch();
    let write =
        |path, dataset| NewFile::write(path, if_exists, |out| coco::write(dataset, &mut Interruptible(out)));
    let mut written = vec![write(&args.out, &kept)?];
    if let Some(path) = &args.hidden {
        written.push(write(path, &hidden)?);
    }
    written.into_iter().try_for_each(NewFile::finish)?;

    let (n_kept, n_hidden) = (kept.annotations().len(), hidden.annotations().len());
    let mut out = std::io::stdout().lock();
    if args.output.json {
        let result = json!({
            "annotations": n_kept + n_hidden, "kept": n_kept, "hidden": n_hidden, "seed": args.seed,
            "out": path_json(&args.out), "hidden_out": args.hidden.as_deref().map(path_json),
        });
        writeln!(out, "{result}")?;
    } else {
        let (total, path) = (thousands(n_kept + n_hidden), args.out.display());
        writeln!(out, "{path}: {} of {total} annotations", thousands(n_kept))?;
        if let Some(path) = &args.hidden {
            writeln!(out, "{}: the other {}", path.display(), thousands(n_hidden))?;
        }
    }
    Ok(())
}
