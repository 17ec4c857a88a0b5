use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use lacuna_calib::NoFit;
use lacuna_data::Dataset;
use lacuna_data::layout::Split;
use lacuna_data::problems::{Problem, image_problems, problems};
use lacuna_gaps::judge;
use serde::Serialize;
use serde_json::json;

use super::{best_first, read_results};
use crate::data_args::{DataArgs, count};
use crate::gaps::{Gaps, gaps_json};
use crate::judging::{FloorArgs, JudgingArgs};
use crate::progress::Progress;
use crate::table::{Table, thousands};

/// Count a data set's images and boxes, and name every problem
///
/// Small, medium and large are COCO's sizes: an area below 32² pixels, below 96², and from there on;
/// the area is the one in the file (of the mask, in COCO), else the box's. Problems are what real data
/// sets have and lacuna copes with; a data set that it cannot read is refused by every command, this
/// one included.
#[derive(clap::Args)]
// Finding images that cannot be read is what this command is for.
#[command(mut_arg("on_bad_image", |argument| argument.default_value("skip")))]
pub struct Args {
    #[command(flatten)]
    data: DataArgs,

    /// Detections of any framework, a COCO results file, from which is estimated how much is annotated
    #[arg(long, value_name = "FILE")]
    detections: Option<PathBuf>,

    #[command(flatten)]
    floor: FloorArgs,

    /// Look at the image files, too: are they there, are they images, is the size right (`--images`
    /// does so as well)
    #[arg(long)]
    check_images: bool,

    /// Decode every image to its last pixel
    #[arg(long)]
    decode: bool,

    /// Name at most this many problems of a kind (0: all); --json names all
    #[arg(long, value_name = "N", default_value_t = 10)]
    most: usize,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    judging: JudgingArgs,
}

/// What is counted of a class, or of all. Sizes are COCO's: small below 32² pixels, large from 96².
#[derive(Default, Serialize)]
struct Counts {
    boxes: usize,
    crowds: usize,
    images: usize,
    small: usize,
    medium: usize,
    large: usize,
}

#[derive(Serialize)]
struct ClassCounts<'a> {
    id: u64,
    name: &'a str,
    #[serde(flatten)]
    counts: Counts,
}

#[derive(Serialize)]
struct BoxesPerImage {
    min: usize,
    median: f64,
    mean: f64,
    max: usize,
}

#[derive(Serialize)]
struct Inspected<'a> {
    split: &'a str,
    images: usize,
    categories: usize,
    all: Counts,
    boxes_per_image: BoxesPerImage,
    classes: Vec<ClassCounts<'a>>,
    problems: Vec<Problem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completeness: Option<serde_json::Value>,
    #[serde(skip)]
    sentences: Vec<String>,
}

pub fn run(args: &Args) -> Result<()> {
    args.judging.check();
    let splits = args.data.read_all()?;
    if args.detections.is_some() && splits.len() > 1 {
        let known = splits.iter().map(|split| split.name.clone()).collect();
        return Err(lacuna_data::Error::ManySplits { path: args.data.path.clone(), known }.into());
    }
    let inspected: Vec<Inspected> = splits.iter().map(|s| inspect(args, s)).collect::<Result<_>>()?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", json!({ "splits": inspected }))?;
        return Ok(());
    }
    for (n, split) in inspected.iter().enumerate() {
        if n > 0 {
            writeln!(out)?;
        }
        print(split, args.most, &mut out)?;
    }
    Ok(())
}

fn inspect<'a>(args: &Args, split: &'a Split) -> Result<Inspected<'a>> {
    let dataset = &split.dataset;
    let mut classes: Vec<ClassCounts> = dataset
        .categories()
        .iter()
        .map(|c| ClassCounts { id: c.id, name: &c.name, counts: Counts::default() })
        .collect();
    let mut all = Counts { images: dataset.images().len(), ..Counts::default() };
    let mut per_image = Vec::new();
    for image in 0..dataset.images().len() {
        let mut seen = Vec::new();
        for annotation in dataset.annotations_of(image) {
            let of_class = &mut classes[annotation.category].counts;
            if !annotation.crowd && !seen.contains(&annotation.category) {
                seen.push(annotation.category);
                of_class.images += 1;
            }
            of_class.add(annotation);
            all.add(annotation);
        }
        per_image.push(dataset.annotations_of(image).filter(|a| !a.crowd).count());
    }
    let mut problems = problems(dataset);
    problems.extend(split.skipped.iter().map(|bad| Problem::UnreadableImage {
        path: bad.path.display().to_string(),
        reason: bad.problem.to_string(),
    }));
    if args.check_images || args.decode || args.data.options.images.is_some() {
        let progress = Progress::new("looking at images", dataset.images().len());
        problems.extend(image_problems(dataset, split.images()?, args.decode, &|| progress.done())?);
    }
    let gaps = args.detections.as_deref().map(|path| gaps(args, dataset, path)).transpose()?;
    let (completeness, sentences) = match &gaps {
        None => (None, Vec::new()),
        Some(estimate) => {
            let sentences = match estimate {
                Ok(gaps) => gaps.sentences(dataset),
                Err(why) => vec![format!("how much is annotated cannot be told: {why}")],
            };
            (Some(gaps_json(estimate.as_ref(), dataset)), sentences)
        }
    };
    Ok(Inspected {
        split: &split.name,
        images: dataset.images().len(),
        categories: dataset.categories().len(),
        all,
        boxes_per_image: BoxesPerImage::of(per_image),
        classes,
        problems,
        completeness,
        sentences,
    })
}

/// How much is annotated, by what a detector found.
fn gaps(args: &Args, dataset: &Dataset, path: &Path) -> Result<Result<Gaps, NoFit>> {
    let results = read_results(path, dataset, &args.data.options)?;
    let seen = judge(dataset, &best_first(&results), &args.judging.overlap());
    Ok(Gaps::estimate(dataset, &seen, args.floor.score_min))
}

impl Counts {
    fn add(&mut self, annotation: &lacuna_data::Annotation) {
        if annotation.crowd {
            self.crowds += 1;
            return;
        }
        self.boxes += 1;
        match annotation.area {
            area if area < 32.0 * 32.0 => self.small += 1,
            area if area < 96.0 * 96.0 => self.medium += 1,
            _ => self.large += 1,
        }
    }
}

impl BoxesPerImage {
    fn of(mut counts: Vec<usize>) -> Self {
        counts.sort_unstable();
        let n = counts.len();
        Self {
            min: counts[0],
            median: (counts[(n - 1) / 2] + counts[n / 2]) as f64 / 2.0,
            mean: counts.iter().sum::<usize>() as f64 / n as f64,
            max: counts[n - 1],
        }
    }
}

fn print(inspected: &Inspected, most: usize, out: &mut impl std::io::Write) -> Result<()> {
    let Inspected { split, images, categories, all, boxes_per_image, classes, problems, sentences, .. } =
        inspected;
    writeln!(
        out,
        "{split}: images {}, boxes {}, crowd regions {}, classes {categories}",
        thousands(*images),
        thousands(all.boxes),
        thousands(all.crowds)
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
    for class in classes {
        row(class.name, class.id.to_string(), &class.counts);
    }
    row("all", String::new(), all);
    writeln!(out, "{table}")?;

    for sentence in sentences {
        writeln!(out, "{sentence}")?;
    }
    if problems.is_empty() {
        writeln!(out, "no problems found")?;
    }
    for (kind, n) in count(problems) {
        writeln!(out, "{kind}: {}", thousands(n))?;
        let of_kind = problems.iter().filter(|p| p.kind() == kind);
        let shown = if most == 0 { n } else { most.min(n) };
        for problem in of_kind.take(shown) {
            writeln!(out, "  {problem}")?;
        }
        if shown < n {
            writeln!(out, "  and {} more (`--most 0` names all)", thousands(n - shown))?;
        }
    }
    Ok(())
}
