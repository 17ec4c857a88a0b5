//! `cargo experiment TABLE`: runs the cells of a table and writes its page.
//!
//! A table is a file of `experiments/`. A cell is one run for each seed. Runs are kept under `target/experiments`, named
//! by the check sum of their configuration: a finished run is not repeated, an interrupted one is resumed. Outcomes are
//! recorded in `experiments/results.csv` ([`crate::ledger`]), so that a table can be finished on another machine. The
//! page is written after every run. Several processes can work at one table.
//!
//! Changes of the code are not part of the name. After one that changes results, remove the folder of the runs and
//! their lines in `results.csv`.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use lacuna_data::output::{IfExists, write_file};

use crate::completion;
use crate::data::{CACHE, DataRoot, project};
use crate::job::{Job, Progress};
use crate::ledger::Ledger;
use crate::page::{NOT_RUN, Page, Results, Run};
use crate::table::{Show, Table};
use crate::watch::Deadline;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The name of a file in `experiments/`, without its ending
    table: String,
    /// The folder that the table names data sets relative to [default: the environment variable LACUNA_DATA]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Only the first N seeds of each cell
    #[arg(long, value_name = "N")]
    seeds: Option<usize>,
    /// Only cells whose `row, column` contains this; can be given several times
    #[arg(long, value_name = "SUBSTRING")]
    only: Vec<String>,
    /// Stop after so many minutes; the next call resumes
    #[arg(long, value_name = "MINUTES")]
    budget: Option<f64>,
    /// Run nothing: write the page of the runs that there are
    #[arg(long, conflicts_with = "list")]
    write_only: bool,
    /// Run nothing: print the name of each run, and whether it is recorded
    #[arg(long)]
    list: bool,
}

/// Recorded outcomes.
const LEDGER: &str = "experiments/results.csv";

/// The pause before asking again for a run that another process works at.
const PAUSE: Duration = Duration::from_secs(5);

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let root = DataRoot::find(options.data.as_deref())?;
    // The paths of tables, pages and derived files, which are part of run names, are relative to the project.
    std::env::set_current_dir(project())?;
    let table = Table::read(&Path::new("experiments").join(&options.table).with_extension("toml"))?;
    root.check(&table.data)?;
    let jobs = plan_jobs(&table, &root)?;
    if options.list {
        return list(&jobs);
    }
    if !options.write_only {
        run_jobs(&table, &jobs, options)?;
    }
    println!("{}", write_page(&table, &options.table, &jobs)?.display());
    Ok(())
}

/// The runs of all cells: those of the first seed come first.
fn plan_jobs(table: &Table, root: &DataRoot) -> anyhow::Result<Vec<Job>> {
    for folder in ["data", "runs"] {
        fs::create_dir_all(Path::new(CACHE).join(folder))?;
    }
    table.cells().map(|cell| Job::new(table, cell, root)).collect()
}

fn list(jobs: &[Job]) -> anyhow::Result<()> {
    let ledger = Ledger::read(Path::new(LEDGER))?;
    for job in jobs.iter().flat_map(|job| job.burn_in.as_deref().into_iter().chain([job])) {
        let run = job.run_name();
        let recorded = if ledger.get(&run).is_some() { "recorded" } else { "-" };
        println!("{run}\t{recorded}\t{}", job.label);
    }
    Ok(())
}

fn run_jobs(table: &Table, jobs: &[Job], options: &Options) -> anyhow::Result<()> {
    let seeds = &table.seeds[..options.seeds.unwrap_or(table.seeds.len()).min(table.seeds.len())];
    let is_named = |job: &Job| options.only.iter().any(|part| job.label.contains(part.as_str()));
    let is_wanted = |job: &&Job| seeds.contains(&job.cell.seed) && (options.only.is_empty() || is_named(job));
    let ledger = Ledger::read(Path::new(LEDGER))?;
    let is_recorded = |job: &&Job| table.needs_only_outcomes() && ledger.get(&job.run_name()).is_some();

    let deadline = Deadline::new(options.budget)?;
    let mut left: VecDeque<&Job> = jobs.iter().filter(is_wanted).filter(|job| !is_recorded(job)).collect();
    let mut busy_in_a_row = 0;
    while let Some(job) = left.pop_front() {
        let progress = job.run(deadline)?;
        match progress {
            Progress::Interrupted => break,
            Progress::RunningElsewhere => {
                left.push_back(job);
                busy_in_a_row += 1;
                if busy_in_a_row >= left.len() {
                    std::thread::sleep(PAUSE);
                }
                if deadline.is_over() {
                    break;
                }
                continue;
            }
            Progress::Finished | Progress::FinishedBefore => {
                if table.show.contains(&Show::Completion) {
                    completion::measure(&job.folder, &job.config).with_context(|| job.label.clone())?;
                }
                if progress == Progress::Finished {
                    write_page(table, &options.table, jobs)?;
                }
            }
        }
        busy_in_a_row = 0;
    }
    Ok(())
}

/// Writes the page of all finished runs and its figures, and gives its path.
fn write_page(table: &Table, name: &str, jobs: &[Job]) -> anyhow::Result<PathBuf> {
    let mut finished = BTreeMap::new();
    for job in jobs {
        if let Some(outcome) = job.outcome()? {
            finished.insert(job.run_name(), outcome);
        }
    }
    let ledger = Ledger::add(Path::new(LEDGER), &finished)?;
    let mut results = Results::new(table);
    for job in jobs {
        let run = job.run_name();
        let usable = finished.contains_key(&run) || table.needs_only_outcomes();
        if let Some(outcome) = ledger.get(&run).filter(|_| usable).cloned() {
            let Job { cell, folder, .. } = job;
            results.add(*cell, Run { folder: folder.clone(), seed: cell.seed, outcome });
        }
    }
    let Page { text, figures } = results.page(table, name)?;
    let path = page_path(name, &text)?;
    let folder = path.parent().unwrap_or(Path::new(".")).join("figures");
    fs::create_dir_all(&folder)?;
    let figures = figures.iter().map(|(name, figure)| (folder.join(name), figure.to_svg()));
    for (path, text) in figures.chain([(path.clone(), text)]) {
        write_file(&path, IfExists::Replace, |out| std::io::Write::write_all(out, text.as_bytes()))?;
    }
    Ok(path)
}

/// `docs/results/NAME.md`. Some pages have figures of runs from before runs were recorded: a page that would lose
/// figures is written beside the runs instead.
fn page_path(name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let page = Path::new("docs/results").join(name).with_extension("md");
    let Ok(published) = fs::read_to_string(&page) else { return Ok(page) };
    let cells_not_run = |text: &str| text.matches(NOT_RUN).count();
    if cells_not_run(text) <= cells_not_run(&published) {
        return Ok(page);
    }
    eprintln!("{} has figures of runs that are not recorded; it stays as it is", page.display());
    let folder = Path::new(CACHE).join("pages");
    fs::create_dir_all(&folder)?;
    Ok(folder.join(name).with_extension("md"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::data::VARIABLE;

    /// Names of runs hold check sums of their configurations: one that changes loses recorded outcomes.
    #[test]
    fn every_recorded_run_is_in_a_table() {
        if std::env::var_os(VARIABLE).is_none() {
            eprintln!("skipped: {VARIABLE} is not set");
            return;
        }
        std::env::set_current_dir(project()).expect("the project is there");
        let root = DataRoot::find(None).expect("the variable is set");
        let mut in_tables = BTreeSet::new();
        for path in crate::table::files() {
            let table = Table::read(&path).unwrap_or_else(|error| panic!("{error:#}"));
            let jobs = plan_jobs(&table, &root).unwrap_or_else(|error| panic!("{error:#}"));
            in_tables.extend(jobs.iter().map(Job::run_name));
        }
        let ledger = Ledger::read(Path::new(LEDGER)).expect("it is readable");
        let lost: Vec<&str> = ledger.runs().filter(|run| !in_tables.contains(*run)).collect();
        assert!(lost.is_empty(), "{} recorded runs are in no table: {lost:?}", lost.len());
    }
}
