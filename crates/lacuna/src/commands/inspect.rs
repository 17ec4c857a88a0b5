//! `lacuna inspect`: what is in a data set, what is wrong with it, how much of it is annotated.

use std::io::Write as _;

use anyhow::Result;
use lacuna_calib::NoFit;
use lacuna_data::layout::Split;
use lacuna_data::problems::{Problem, image_problems, problems};
use lacuna_data::statistics::{BoxesPerImage, Counts, Statistics};
use lacuna_gaps::{DatasetCompleteness, judge};
use serde_json::{Value, json};

use crate::args::data::DataArgs;
use crate::args::detections::{best_first, read_results};
use crate::args::judging::{JudgingArgs, ScoreFloorArgs};
use crate::render::completeness::{completeness_json, completeness_sentences};
use crate::render::notes::count_by_kind;
use crate::render::number::thousands;
use crate::render::progress::Progress;
use crate::render::table::Table;

/// Count images and boxes, list every problem, and estimate how much is annotated
///
/// Small, medium and large are COCO's sizes: an area below 32² pixels, below 96², and from there on. The area is the
/// one in the file (of the mask, in COCO), else that of the box. Problems are oddities that every command copes with;
/// a data set that cannot be read is refused by every command.
#[derive(clap::Args)]
// Finding images that cannot be read is what this command is for.
#[command(mut_arg("on_bad_image", |argument| argument.default_value("skip")))]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataArgs,

    /// Estimate how much is annotated from detections of any framework, a COCO results file
    #[arg(long, value_name = "FILE")]
    detections: Option<std::path::PathBuf>,

    #[command(flatten)]
    floor: ScoreFloorArgs,

    /// Check the image files: are they there, are they images, is the size right (also with --images)
    #[arg(long)]
    check_images: bool,

    /// Decode every image to its last pixel
    #[arg(long)]
    decode: bool,

    /// List at most this many problems of a kind (0: all); --json lists all
    #[arg(long, value_name = "N", default_value_t = 10)]
    most: usize,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    judging: JudgingArgs,
}

/// All that is said about a split.
struct Inspection<'a> {
    split: &'a Split,
    statistics: Statistics,
    problems: Vec<Problem>,
    completeness: Option<Result<DatasetCompleteness, NoFit>>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    args.judging.check();
    let splits = args.data.read_all()?;
    if args.detections.is_some() && splits.len() > 1 {
        let known = splits.iter().map(|split| split.name.clone()).collect();
        return Err(lacuna_data::Error::ManySplits { path: args.data.path.clone(), known }.into());
    }
    let inspected: Vec<Inspection> = splits.iter().map(|s| inspect(args, s)).collect::<Result<_>>()?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let splits: Vec<Value> = inspected.iter().map(Inspection::json).collect();
        writeln!(out, "{}", json!({ "splits": splits }))?;
        return Ok(());
    }
    for (n, inspection) in inspected.iter().enumerate() {
        if n > 0 {
            writeln!(out)?;
        }
        inspection.print(args.most, &mut out)?;
    }
    Ok(())
}

fn inspect<'a>(args: &Args, split: &'a Split) -> Result<Inspection<'a>> {
    let dataset = &split.dataset;
    let mut problems = problems(dataset);
    problems.extend(split.skipped.iter().map(|bad| Problem::UnreadableImage {
        path: bad.path.display().to_string(),
        reason: bad.problem.to_string(),
    }));
    if args.check_images || args.decode || args.data.options.images.is_some() {
        let progress = Progress::new("checking images", dataset.images().len());
        problems.extend(image_problems(dataset, split.images()?, args.decode, &|| progress.done())?);
    }
    let completeness = match &args.detections {
        Some(path) => {
            let results = read_results(path, dataset, &args.data.options)?;
            let judged = judge(dataset, &best_first(&results), &args.judging.rule());
            Some(DatasetCompleteness::new(dataset, &judged, args.floor.score_min))
        }
        None => None,
    };
    Ok(Inspection { split, statistics: Statistics::new(dataset), problems, completeness })
}

impl Inspection<'_> {
    fn json(&self) -> Value {
        let Statistics { all, classes, boxes_per_image } = &self.statistics;
        let dataset = &self.split.dataset;
        let class = |(category, counts): (&lacuna_data::Category, &Counts)| {
            let mut value = json!({ "id": category.id, "name": category.name });
            let counts = json!(counts);
            value.as_object_mut().expect("an object").extend(counts.as_object().expect("an object").clone());
            value
        };
        let classes: Vec<Value> = dataset.categories().iter().zip(classes).map(class).collect();
        let mut value = json!({
            "split": self.split.name,
            "images": dataset.images().len(),
            "categories": dataset.categories().len(),
            "all": all,
            "boxes_per_image": boxes_per_image,
            "classes": classes,
            "problems": self.problems,
        });
        if let Some(estimate) = &self.completeness {
            value["completeness"] = completeness_json(estimate.as_ref(), dataset);
        }
        value
    }

    fn print(&self, most: usize, out: &mut impl std::io::Write) -> Result<()> {
        let Statistics { all, classes, boxes_per_image } = &self.statistics;
        let dataset = &self.split.dataset;
        writeln!(
            out,
            "{}: images {}, boxes {}, crowd regions {}, classes {}",
            self.split.name,
            thousands(all.images),
            thousands(all.boxes),
            thousands(all.crowds),
            classes.len()
        )?;
        let BoxesPerImage { min, median, mean, max } = boxes_per_image;
        writeln!(out, "boxes per image: {min} to {max}, median {median}, mean {mean:.1}\n")?;

        let mut table = Table::new(["class", "id", "boxes", "images", "small", "medium", "large", "crowds"]);
        let mut row = |name: &str, id: String, counts: &Counts| {
            let Counts { boxes, crowds, images, small, medium, large } = *counts;
            let [boxes, images, small, medium, large, crowds] =
                [boxes, images, small, medium, large, crowds].map(thousands);
            table.row([name.into(), id, boxes, images, small, medium, large, crowds]);
        };
        for (category, counts) in dataset.categories().iter().zip(classes) {
            row(&category.name, category.id.to_string(), counts);
        }
        row("all", String::new(), all);
        writeln!(out, "{table}")?;

        if let Some(estimate) = &self.completeness {
            for sentence in completeness_sentences(estimate.as_ref(), dataset) {
                writeln!(out, "{sentence}")?;
            }
        }
        self.print_problems(most, out)
    }

    fn print_problems(&self, most: usize, out: &mut impl std::io::Write) -> Result<()> {
        if self.problems.is_empty() {
            writeln!(out, "no problems found")?;
        }
        for (kind, n) in count_by_kind(&self.problems) {
            writeln!(out, "{kind}: {}", thousands(n))?;
            let of_kind = self.problems.iter().filter(|p| p.kind() == kind);
            let shown = if most == 0 { n } else { most.min(n) };
            for problem in of_kind.take(shown) {
                writeln!(out, "  {problem}")?;
            }
            if shown < n {
                writeln!(out, "  and {} more (`--most 0` lists all)", thousands(n - shown))?;
            }
        }
        Ok(())
    }
}
