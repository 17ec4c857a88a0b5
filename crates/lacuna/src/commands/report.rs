//! `lacuna report`: a page about a run.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use lacuna_data::output::{IfExists, write_file};
use lacuna_train::run::{CONFIG, METRICS};
use serde_json::json;

use crate::args::output::OutputArgs;
use crate::interrupt;
use crate::render::path_json;
use crate::render::run_report::run_report;

/// Write a page about a run: curves, reliability, score histograms, recovered boxes, configuration
///
/// The page is one HTML file that loads nothing else. Unfinished runs have one, too.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of a run that `lacuna train` wrote
    run: PathBuf,

    /// The page [default: report.html in the run's folder, which is always replaced]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Show this many images with the most, and with the least confident recovered boxes (0: none)
    #[arg(long, value_name = "N", default_value_t = 8)]
    pictures: usize,

    /// Look for missing boxes in at most this many of the training images
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..))]
    sample_images: u32,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (out, if_exists) = match &args.out {
        Some(out) => (out.clone(), args.output.if_exists()),
        None => (args.run.join("report.html"), IfExists::Replace),
    };
    if args.out.is_some() {
        let files = [CONFIG, METRICS].map(|name| args.run.join(name));
        if_exists.check_all(&[&out], &files.each_ref().map(PathBuf::as_path))?;
    }
    let report = run_report(&args.run, args.pictures, args.sample_images as usize)?;
    interrupt::check()?;
    write_file(&out, if_exists, |file| file.write_all(report.to_html().as_bytes()))?;
    let mut stdout = std::io::stdout().lock();
    let pictures = report.most_confident.len() + report.least_confident.len();
    if args.output.json {
        let records = report.curves.losses.first().map_or(0, |losses| losses.points.len());
        writeln!(stdout, "{}", json!({ "out": path_json(&out), "records": records, "pictures": pictures }))?;
    } else {
        writeln!(stdout, "{}: {pictures} pictures", out.display())?;
    }
    Ok(())
}
