//! `cargo xtask experiment TABLE`: the paper's tables, in small.
//!
//! A table is a file of `experiments/`. Each of its cells is a few runs, one a seed, which are kept under
//! `target/experiments` by the check sum of their whole configuration: a cell that was run is not run again, one that
//! was interrupted goes on where it was. The table is written anew after every run.

mod page;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use lacuna_calib::Calibrator;
use lacuna_data::coco;
use lacuna_data::output::{IfExists, write_file};
use lacuna_data::sparsify::sparsify;
use lacuna_train::config::RunConfig;
use lacuna_train::metrics::{Record, Window};
use lacuna_train::runner::{Begin, Spectator, TrainError, train};

use self::page::Results;
use self::table::{Hide, Table};

#[derive(clap::Args)]
pub struct Options {
    /// The name of a file in `experiments/`, without its ending
    table: String,
    /// Only the first N seeds of each cell
    #[arg(long, value_name = "N")]
    seeds: Option<usize>,
    /// Only cells whose `row, column` contains this; can be given several times
    #[arg(long, value_name = "SUBSTRING")]
    only: Vec<String>,
    /// Stop after so many minutes; what was begun is kept, and goes on the next time
    #[arg(long, value_name = "MINUTES")]
    budget: Option<f64>,
    /// Run nothing: write the table of what there is
    #[arg(long)]
    write_only: bool,
}

/// One run of a cell.
struct Job {
    name: String,
    config: RunConfig,
    folder: PathBuf,
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let root = crate::bench::workspace();
    // Data sets are named from the root of the repository.
    std::env::set_current_dir(root)?;
    let path = Path::new("experiments").join(&options.table).with_extension("toml");
    let table = Table::read(&path)?;
    let cache = Path::new("target/experiments");
    fs::create_dir_all(cache.join("data"))?;
    fs::create_dir_all(cache.join("runs"))?;
    table.check_data()?;

    let mut results = Results::new(&table);
    let mut jobs = Vec::new();
    for (row, column) in table.cells() {
        for &seed in &table.seeds {
            let job = job(&table, (row, column), seed, cache)?;
            match outcome(&job)? {
                Some(outcome) => results.add(row, column, outcome),
                None => jobs.push((row, column, seed, job)),
            }
        }
    }
    let page = Path::new("docs/results").join(&options.table).with_extension("md");
    let write = |results: &Results| -> anyhow::Result<()> {
        fs::create_dir_all("docs/results")?;
        let text = results.page(&table, &options.table);
        Ok(write_file(&page, IfExists::Replace, |out| std::io::Write::write_all(out, text.as_bytes()))?)
    };
    write(&results)?;
    if options.write_only {
        println!("{}", page.display());
        return Ok(());
    }

    // All cells with one seed come before any with two.
    jobs.sort_by_key(|(.., seed, _)| table.seeds.iter().position(|of| of == seed));
    let seeds = options.seeds.unwrap_or(table.seeds.len());
    let wanted = |seed: u64, name: &str| {
        table.seeds.iter().take(seeds).any(|of| *of == seed)
            && (options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str())))
    };
    let deadline = options.budget.map(|minutes| Instant::now() + Duration::from_secs_f64(60.0 * minutes));
    ctrlc::set_handler(|| STOPPED.store(true, Ordering::Relaxed))?;
    for (row, column, seed, job) in jobs {
        if !wanted(seed, &job.name) {
            continue;
        }
        eprintln!("{}", job.name);
        if let Some(outcome) = outcome(&job)? {
            results.add(row, column, outcome);
            continue;
        }
        let begun = job.folder.join("config.toml").exists();
        let begin = if begun { Begin::Resume } else { Begin::New(IfExists::Refuse) };
        let mut watch = Watch::new(job.config.train.iterations, deadline);
        match train(job.config.clone(), &job.folder, begin, &mut watch) {
            Ok(_) => {}
            Err(TrainError::Interrupted { iteration, of, .. }) => {
                println!(
                    "{}: stopped after iteration {iteration} of {of}; it goes on the next time",
                    job.name
                );
                return Ok(());
            }
            Err(error) => return Err(error).with_context(|| job.name.clone()),
        }
        let outcome = outcome(&job)?.with_context(|| format!("{} has no last evaluation", job.name))?;
        results.add(row, column, outcome);
        write(&results)?;
    }
    write(&results)?;
    println!("{}", page.display());
    Ok(())
}

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Average precision at the end of a run, of the teacher if there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    pub ap: f64,
    pub ap50: f64,
}

/// The whole configuration of a run, and where it is kept.
fn job(table: &Table, (row, column): (usize, usize), seed: u64, cache: &Path) -> anyhow::Result<Job> {
    let (sparse, hidden) = match table.hidden(row, column) {
        Some(hide) => {
            let (sparse, hidden) = sparse_data(table, hide, seed, &cache.join("data"))?;
            (sparse, Some(hidden))
        }
        None => (table.data.train.clone(), None),
    };
    let config = table.config(row, column, seed, &sparse, hidden.as_deref())?;
    let sum = crc32fast::hash(config.to_toml().as_bytes());
    let name = format!("{}, {}, seed {seed}", table.rows[row].name, table.columns[column].name);
    // Cells of one configuration, such as full annotation under every split, share a run.
    let folder = format!("{}-{seed}-{sum:08x}", config.method.name());
    Ok(Job { folder: cache.join("runs").join(folder), name, config })
}

/// The files of a split: what is left, and what was hidden.
fn sparse_data(table: &Table, hide: Hide, seed: u64, folder: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let source = fs::read(&table.data.train)?;
    let stem = format!("{:08x}-{}-{seed}", crc32fast::hash(&source), hide.name());
    let (kept, hidden) = (folder.join(format!("{stem}.json")), folder.join(format!("{stem}-hidden.json")));
    if !kept.exists() || !hidden.exists() {
        let dataset = coco::parse(source, &table.data.train)?;
        let sparse = sparsify(&dataset, hide.kind()?, seed);
        for (path, dataset) in [(&hidden, &sparse.hidden), (&kept, &sparse.kept)] {
            write_file(path, IfExists::Replace, |out| coco::write(dataset, out))?;
        }
    }
    Ok((kept, hidden))
}

/// What a run that has come to its end says; `None` of one that has not.
fn outcome(job: &Job) -> anyhow::Result<Option<Outcome>> {
    let path = job.folder.join("results.csv");
    let Ok(text) = fs::read_to_string(&path) else { return Ok(None) };
    let mut lines = text.lines();
    let (Some(heading), Some(last)) = (lines.next(), lines.next_back()) else { return Ok(None) };
    let cells: Vec<(&str, &str)> = heading.split(',').zip(last.split(',')).collect();
    let number = |name: &str| -> Option<f64> {
        cells.iter().find(|(of, _)| *of == name).and_then(|(_, value)| value.parse().ok())
    };
    if number("iteration") != Some(job.config.train.iterations as f64) {
        return Ok(None);
    }
    let of = |who: &str| {
        Some(Outcome { ap: number(&format!("{who}_ap"))?, ap50: number(&format!("{who}_ap50"))? })
    };
    match of("teacher").or_else(|| of("student")) {
        Some(outcome) => Ok(Some(outcome)),
        None => bail!("{} has no average precision in its last row", path.display()),
    }
}

/// A line now and then, until it is time to stop.
struct Watch {
    iterations: u64,
    deadline: Option<Instant>,
    began: (Instant, u64),
    next_line: Instant,
}

const BETWEEN_LINES: Duration = Duration::from_secs(30);

impl Watch {
    fn new(iterations: u64, deadline: Option<Instant>) -> Self {
        let now = Instant::now();
        Self { iterations, deadline, began: (now, 0), next_line: now + BETWEEN_LINES }
    }
}

impl Spectator for Watch {
    fn go_on(&mut self) -> bool {
        !STOPPED.load(Ordering::Relaxed) && self.deadline.is_none_or(|deadline| Instant::now() < deadline)
    }

    fn warn(&mut self, warning: String) {
        eprintln!("warning: {warning}");
    }

    fn begins(&mut self, _: &lacuna_train::data::Data, iteration: u64) {
        self.began = (Instant::now(), iteration);
    }

    fn iteration(&mut self, iteration: u64, _: usize, window: &Window, _: Option<&Calibrator>) {
        if Instant::now() < self.next_line {
            return;
        }
        self.next_line = Instant::now() + BETWEEN_LINES;
        let (began, first) = self.began;
        let each = began.elapsed().as_secs_f64() / (iteration - first).max(1) as f64;
        let left = (self.iterations - iteration) as f64 * each / 60.0;
        eprintln!("  {iteration} / {}, {left:.0} min left, loss {:.3}", self.iterations, window.loss());
    }

    fn evaluated(&mut self, record: &Record) {
        let ap50 = record.teacher.as_ref().or(record.student.as_ref()).and_then(|ap| ap.ap50);
        eprintln!("  iteration {}: AP50 {:.1}", record.iteration, 100.0 * ap50.unwrap_or(0.0));
    }
}
