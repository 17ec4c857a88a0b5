use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use lacuna_data::coco;
use lacuna_data::output::{IfExists, NewFolder};
use lacuna_data::sparsify::{Kind, Percent, Sparse, sparsify};
use lacuna_data::synth::SynthConfig;
use serde_json::json;

use super::{shown, synth};
use crate::table::{Table, thousands};

const TRAIN_IMAGES: usize = 400;
const TEST_IMAGES: usize = 100;
const HIDDEN_PERCENT: f64 = 50.0;

/// Make a data set and hide half of its boxes
///
/// The result is the kind of data that lacuna is for: a training set in which half of the objects
/// of every class were never annotated, what is missing from it, and clean images to test on.
#[derive(clap::Args)]
pub struct Args {
    /// The folder to make
    #[arg(long, value_name = "DIR", default_value = "lacuna-demo")]
    out: PathBuf,

    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Replace a folder that exists
    #[arg(long)]
    force: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let folder = NewFolder::create(&args.out, IfExists::forced(args.force))?;
    let config = SynthConfig { seed: args.seed, ..SynthConfig::default() };
    let splits = [("train", TRAIN_IMAGES), ("test", TEST_IMAGES)];
    let datasets = synth::make(&config, &splits, &folder)?;

    let half = Percent::new(HIDDEN_PERCENT).expect("it is a percentage");
    let Sparse { kept, hidden } = sparsify(&datasets[0], Kind::Split1(half), args.seed);
    let annotations = Path::new("annotations");
    let (sparse_file, hidden_file) =
        (annotations.join("instances_train_sparse.json"), annotations.join("instances_train_hidden.json"));
    for (file, dataset) in [(&sparse_file, &kept), (&hidden_file, &hidden)] {
        folder.file(file, |out| coco::write(dataset, out))?;
    }
    folder.finish()?;

    let mut out = std::io::stdout().lock();
    let count = |dataset: &lacuna_data::Dataset, class: Option<usize>| {
        dataset.annotations().iter().filter(|a| class.is_none_or(|c| a.category == c)).count()
    };
    if args.json {
        let result = json!({
            "out": shown(&args.out), "seed": args.seed,
            "train": { "images": TRAIN_IMAGES, "boxes": count(&datasets[0], None),
                       "given": count(&kept, None), "hidden": count(&hidden, None) },
            "test": { "images": TEST_IMAGES, "boxes": count(&datasets[1], None) },
        });
        writeln!(out, "{result}")?;
        return Ok(());
    }
    let mut table = Table::new(["class", "boxes", "given", "hidden", "test"]);
    let classes = datasets[0].categories().iter().enumerate();
    let rows = classes.map(|(class, category)| (category.name.as_str(), Some(class)));
    for (name, class) in rows.chain([("all", None)]) {
        let [boxes, given, hidden, test] =
            [&datasets[0], &kept, &hidden, &datasets[1]].map(|d| thousands(count(d, class)));
        table.row([name.into(), boxes, given, hidden, test]);
    }
    write!(out, "{table}")?;
    writeln!(out)?;
    writeln!(out, "images            {}", args.out.join("train").display())?;
    writeln!(out, "given boxes       {}", args.out.join(sparse_file).display())?;
    writeln!(out, "hidden boxes      {}", args.out.join(hidden_file).display())?;
    writeln!(out, "clean test images {}", args.out.join("test").display())?;
    Ok(())
}
