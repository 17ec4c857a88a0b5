//! `cargo xtask experiment TABLE`: the paper's tables, in small.
//!
//! A table is a file of `experiments/`. Each of its cells is a few runs, one a seed, which are kept under
//! `target/experiments` by the check sum of their whole configuration: a cell that was run is not run again, one that
//! was interrupted goes on where it was. What a run came to is kept in `experiments/results.csv` ([`ledger`]), so that a
//! table can be gone on with where the runs are not. The table is written anew after every run. Several processes can work
//! at one table: none touches what another is at. A change of the code that changes results is not seen: then the folder,
//! and the lines of its runs, are to be removed.

mod calibration;
mod completion;
mod ledger;
mod page;
mod table;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use lacuna_calib::Calibrator;
use lacuna_data::coco;
use lacuna_data::output::{IfExists, write_file};
use lacuna_data::sparsify::sparsify;
use lacuna_kernels::Isa;
use lacuna_train::config::RunConfig;
use lacuna_train::metrics::{MetricsWindow, Record};
use lacuna_train::run::{Begin, Finished, Observer, TrainError, train};

use self::ledger::{Cost, Ledger, Outcome};
use self::page::{Page, Results, Run};
use self::table::{Data, Hide, Show, Stage, Table};

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
    /// The run whose model it starts from.
    burn_in: Option<Box<Job>>,
}

/// Where a job is in its table.
struct Place {
    row: usize,
    column: usize,
    seed: u64,
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

    // All cells with one seed come before any with two.
    let mut jobs = Vec::new();
    for &seed in &table.seeds {
        for (row, column) in table.cells() {
            jobs.push((Place { row, column, seed }, job(&table, (row, column), seed, cache)?));
        }
    }
    if !options.write_only {
        let seeds = &table.seeds[..options.seeds.unwrap_or(table.seeds.len()).min(table.seeds.len())];
        let wanted = |(place, job): &&(Place, Job)| {
            let named = || options.only.iter().any(|part| job.name.contains(part.as_str()));
            seeds.contains(&place.seed) && (options.only.is_empty() || named())
        };
        let deadline = options.budget.map(|minutes| Instant::now() + Duration::from_secs_f64(60.0 * minutes));
        ctrlc::set_handler(|| STOPPED.store(true, Ordering::Relaxed))?;
        let ledger = Ledger::read(Path::new(LEDGER))?;
        let known = |job: &Job| table.does_without_runs() && ledger.get(&job.run_name()).is_some();
        let left = jobs.iter().filter(wanted).map(|(_, job)| job).filter(|job| !known(job));
        let mut left: VecDeque<&Job> = left.collect();
        let mut in_a_row = 0;
        while let Some(job) = left.pop_front() {
            match job.run(deadline)? {
                ran @ (Ran::ToItsEnd | Ran::Already) => {
                    if table.show.contains(&Show::Completion) {
                        completion::measure(&job.folder, &job.config).with_context(|| job.name.clone())?;
                    }
                    if matches!(ran, Ran::ToItsEnd) {
                        write(&table, &options.table, &jobs)?;
                    }
                }
                Ran::Elsewhere => {
                    left.push_back(job);
                    in_a_row += 1;
                    if in_a_row >= left.len() {
                        std::thread::sleep(WAITING);
                    }
                    if over(deadline) {
                        break;
                    }
                    continue;
                }
                Ran::Stopped => break,
            }
            in_a_row = 0;
        }
    }
    write(&table, &options.table, &jobs)?;
    println!("{}", page_of(&options.table).display());
    Ok(())
}

/// How long to wait for what another process works at.
const WAITING: Duration = Duration::from_secs(5);

fn page_of(name: &str) -> PathBuf {
    Path::new("docs/results").join(name).with_extension("md")
}

/// Where outcomes are kept.
const LEDGER: &str = "experiments/results.csv";

/// The page of all runs that have come to their end.
fn write(table: &Table, name: &str, jobs: &[(Place, Job)]) -> anyhow::Result<()> {
    let mut here = BTreeMap::new();
    for (_, job) in jobs {
        if let Some(outcome) = outcome(job)? {
            here.insert(job.run_name(), outcome);
        }
    }
    let ledger = Ledger::add(Path::new(LEDGER), &here)?;
    let mut results = Results::new(table);
    for (Place { row, column, seed }, job) in jobs {
        let run = job.run_name();
        let known = here.contains_key(&run) || table.does_without_runs();
        if let Some(outcome) = ledger.get(&run).filter(|_| known).cloned() {
            results.add(*row, *column, Run { folder: job.folder.clone(), seed: *seed, outcome });
        }
    }
    let page = page_of(name);
    let figures_of = page.parent().unwrap_or(Path::new(".")).join("figures");
    fs::create_dir_all(&figures_of)?;
    let Page { text, figures } = results.page(table, name)?;
    let figures = figures.iter().map(|(name, figure)| (figures_of.join(name), figure.to_svg()));
    for (path, text) in figures.chain([(page, text)]) {
        write_file(&path, IfExists::Replace, |out| std::io::Write::write_all(out, text.as_bytes()))?;
    }
    Ok(())
}

/// Beside a run: the seconds of one core that an iteration took.
const COST: &str = "seconds.txt";

/// What this process took so far.
fn processor_time() -> Duration {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(usage.tv_sec.unsigned_abs(), u32::try_from(usage.tv_nsec).unwrap_or(0))
}

enum Ran {
    ToItsEnd,
    /// It had come to its end before.
    Already,
    /// Another process is at it.
    Elsewhere,
    /// It goes on the next time.
    Stopped,
}

impl Job {
    fn run_name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// To its end, unless it is there; before it the run that it starts from.
    fn run(&self, deadline: Option<Instant>) -> anyhow::Result<Ran> {
        let done = outcome(self)?.is_some();
        if !done {
            if let Some(burn_in) = &self.burn_in {
                match burn_in.run(deadline)? {
                    Ran::ToItsEnd | Ran::Already => {}
                    other => return Ok(other),
                }
            }
            eprintln!("{}", self.name);
            let begun = self.folder.join("config.toml").exists();
            let begin = if begun { Begin::Resume } else { Begin::New(IfExists::Refuse) };
            let mut watch = Watch::new(self.config.train.iterations, deadline);
            match train(self.config.clone(), &self.folder, begin, &mut watch) {
                Ok(_) => {
                    if let Some(seconds) = watch.cost() {
                        fs::write(self.folder.join(COST), format!("{seconds:.4}\n"))?;
                    }
                }
                Err(TrainError::Running { .. } | TrainError::Data(lacuna_data::Error::Exists { .. })) => {
                    return Ok(Ran::Elsewhere);
                }
                Err(TrainError::Interrupted { iteration, of, .. }) => {
                    println!(
                        "{}: stopped after iteration {iteration} of {of}; it goes on the next time",
                        self.name
                    );
                    return Ok(Ran::Stopped);
                }
                Err(error) => return Err(error).with_context(|| self.name.clone()),
            }
            outcome(self)?.with_context(|| format!("{} has no last evaluation", self.name))?;
        }
        Ok(if done { Ran::Already } else { Ran::ToItsEnd })
    }
}

static STOPPED: AtomicBool = AtomicBool::new(false);

/// The whole configuration of a run, and where it is kept.
fn job(table: &Table, (row, column): (usize, usize), seed: u64, cache: &Path) -> anyhow::Result<Job> {
    let data = cache.join("data");
    let train = thinned(&table.data, &data)?;
    let (sparse, hidden) = match table.hidden(row, column) {
        Some(hide) => {
            let (sparse, hidden) = sparse_data(&train, hide, seed, &data)?;
            (sparse, Some(hidden))
        }
        None => {
            let completed = table.data.completed.as_deref();
            let missing = completed.map(|completed| completion::missing_file(&train, completed, &data));
            (train, missing.transpose()?)
        }
    };
    let of = |stage: Stage| -> anyhow::Result<Option<(RunConfig, PathBuf)>> {
        let Some(config) = table.config((row, column), seed, (&sparse, hidden.as_deref()), stage)? else {
            return Ok(None);
        };
        // Cells of one configuration, such as full annotation under every split, share a run.
        let sum = crc32fast::hash(config.to_toml().as_bytes());
        let folder = format!("{}-{seed}-{sum:08x}", config.method.name());
        Ok(Some((config, cache.join("runs").join(folder))))
    };
    let name = format!("{}, {}, seed {seed}", table.rows[row].name, table.columns[column].name);
    let burn_in = of(Stage::BurnIn)?.map(|(config, folder)| {
        Box::new(Job { name: format!("{name}, burn-in"), config, folder, burn_in: None })
    });
    let start = burn_in.as_ref().map(|burn_in| Finished::model(&burn_in.folder));
    let whole = of(Stage::After(start.as_deref()))?;
    let (config, folder) = whole.expect("only a burn-in need not be there");
    Ok(Job { name, config, folder, burn_in })
}

/// The file of the training images that the table wants.
fn thinned(data: &Data, folder: &Path) -> anyhow::Result<PathBuf> {
    let Some(every) = data.every else { return Ok(data.train.clone()) };
    let source = fs::read(&data.train)?;
    let path = folder.join(format!("{:08x}-every-{every}.json", crc32fast::hash(&source)));
    if !path.exists() {
        let dataset = coco::parse(source, &data.train)?.with_images(|image| image.is_multiple_of(every));
        write_file(&path, IfExists::Replace, |out| coco::write(&dataset, out))?;
    }
    Ok(path)
}

/// The files of a split: what is left, and what was hidden.
fn sparse_data(train: &Path, hide: Hide, seed: u64, folder: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let source = fs::read(train)?;
    let stem = format!("{:08x}-{}-{seed}", crc32fast::hash(&source), hide.name());
    let (kept, hidden) = (folder.join(format!("{stem}.json")), folder.join(format!("{stem}-hidden.json")));
    if !kept.exists() || !hidden.exists() {
        let dataset = coco::parse(source, train)?;
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
    let iterations = job.config.train.iterations;
    if number("iteration") != Some(iterations as f64) || kept(&job.folder) != Some(iterations) {
        return Ok(None);
    }
    let of = |who: &str| {
        let (ap, ap50) = (number(&format!("{who}_ap"))?, number(&format!("{who}_ap50"))?);
        let seconds =
            fs::read_to_string(job.folder.join(COST)).ok().and_then(|text| text.trim().parse().ok());
        let cost = seconds.map(|seconds| Cost { seconds, instructions: Isa::best().name().to_owned() });
        Some(Outcome { ap, ap50, cost })
    };
    match of("teacher").or_else(|| of("student")) {
        Some(outcome) => Ok(Some(outcome)),
        None => bail!("{} has no average precision in its last row", path.display()),
    }
}

/// The iteration of a run's last checkpoint: the last evaluation is told before its model is kept.
fn kept(run: &Path) -> Option<u64> {
    let state = fs::read_to_string(Finished::model(run).join("state.json")).ok()?;
    serde_json::from_str::<serde_json::Value>(state.lines().next()?).ok()?["iteration"].as_u64()
}

fn over(deadline: Option<Instant>) -> bool {
    STOPPED.load(Ordering::Relaxed) || deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// A line now and then, until it is time to stop.
struct Watch {
    iterations: u64,
    deadline: Option<Instant>,
    began: (Instant, u64),
    next_line: Instant,
    /// The processor's time before the first iteration, and after the last so far; and how many they are.
    cost: Option<(Duration, Duration, u64)>,
}

const BETWEEN_LINES: Duration = Duration::from_secs(30);

impl Watch {
    fn new(iterations: u64, deadline: Option<Instant>) -> Self {
        let now = Instant::now();
        Self { iterations, deadline, began: (now, 0), next_line: now + BETWEEN_LINES, cost: None }
    }
}

impl Watch {
    /// Of one core, an iteration; `None` where there were too few to tell.
    fn cost(&self) -> Option<f64> {
        const ENOUGH: u64 = 100;
        let (before, after, count) = self.cost.filter(|(.., count)| *count >= ENOUGH)?;
        Some((after - before).as_secs_f64() / count as f64)
    }
}

impl Observer for Watch {
    fn keep_going(&mut self) -> bool {
        !over(self.deadline)
    }

    fn warn(&mut self, warning: String) {
        eprintln!("warning: {warning}");
    }

    fn started(&mut self, _: &lacuna_train::data::Data, iteration: u64) {
        self.began = (Instant::now(), iteration);
        self.cost = Some((processor_time(), processor_time(), 0));
    }

    fn iteration(&mut self, iteration: u64, _: usize, window: &MetricsWindow, _: Option<&Calibrator>) {
        self.cost = self.cost.map(|(before, _, count)| (before, processor_time(), count + 1));
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
