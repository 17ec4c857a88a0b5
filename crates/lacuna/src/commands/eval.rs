use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use lacuna_train::evaluate::{classes_in, detect_all, evaluate};
use lacuna_train::model::Model;
use serde_json::json;

use super::{shown, usage};
use crate::data_args::{DataArgs, note_problems};
use crate::progress::Progress;
use crate::table::{Table, thousands};
use crate::training::percent;

/// Test a model on annotated images: COCO's average precision
///
/// The model's classes are found in the data set by their names.
#[derive(clap::Args)]
pub struct Args {
    /// A folder that `lacuna import` or `lacuna train` made
    model: PathBuf,

    #[command(flatten)]
    data: DataArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let model = Model::read(&args.model)?;
    let split = args.data.read()?;
    note_problems(&split);
    let dataset = &split.dataset;
    let classes = classes_in(&model.config.categories, dataset);
    if classes.iter().all(Option::is_none) {
        usage(&format!("no class of {} is one of {}", args.model.display(), split.path().display()));
    }
    let unknown =
        dataset.categories().iter().enumerate().filter(|(class, _)| !classes.contains(&Some(*class)));
    for (_, category) in unknown {
        eprintln!("warning: the model does not know the class `{}`", category.name);
    }

    let progress = Progress::new("looking at images", dataset.images().len());
    let on_bad_image = args.data.on_bad_image.into();
    let folder = split.images()?;
    let found =
        detect_all(&model.detector, &model.config.input, (dataset, folder), on_bad_image, &mut || {
            progress.done()
        })?;
    drop(progress);
    for skipped in &found.skipped {
        eprintln!("warning: {skipped}");
    }
    let ap = evaluate(dataset, &found.detections, &classes);

    let mut out = std::io::stdout().lock();
    let images = dataset.images().len();
    if args.json {
        let per_class: serde_json::Map<_, _> = dataset
            .categories()
            .iter()
            .zip(ap.per_class.iter().zip(&ap.per_class_50))
            .map(|(category, (ap, ap50))| (category.name.clone(), json!({ "ap": ap, "ap50": ap50 })))
            .collect();
        let mut result = serde_json::to_value(&ap)?;
        for key in ["per_class", "per_class_50"] {
            result.as_object_mut().map(|result| result.remove(key));
        }
        let result =
            json!({ "model": shown(&args.model), "images": images, "coco": result, "classes": per_class });
        writeln!(out, "{result}")?;
        return Ok(());
    }
    let mut table = Table::new(["class", "AP", "AP50"]);
    for (category, (of_class, of_class_50)) in
        dataset.categories().iter().zip(ap.per_class.iter().zip(&ap.per_class_50))
    {
        table.row([category.name.clone(), percent(*of_class), percent(*of_class_50)]);
    }
    table.row(["all".into(), percent(ap.ap), percent(ap.ap50)]);
    writeln!(out, "{table}")?;
    let mut table = Table::new(["", "all", "small", "medium", "large"]);
    let row = |name: &str, values: [Option<f64>; 4]| {
        let [all, small, medium, large] = values.map(percent);
        [name.to_owned(), all, small, medium, large]
    };
    table.row(row("AP", [ap.ap, ap.ap_small, ap.ap_medium, ap.ap_large]));
    table.row(row("recall of 100", [ap.ar_100, ap.ar_small, ap.ar_medium, ap.ar_large]));
    write!(out, "{table}")?;
    writeln!(out, "\n{} images, AP75 {}", thousands(images), percent(ap.ap75))?;
    Ok(())
}
