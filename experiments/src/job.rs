//! One run of a cell: its configuration, its name, its training, and its outcome.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use lacuna_data::output::IfExists;
use lacuna_kernels::Isa;
use lacuna_train::config::RunConfig;
use lacuna_train::run::{Begin, Finished, TrainError, train};

use crate::data::{CACHE, DataRoot};
use crate::ledger::{Cost, Outcome};
use crate::table::{Cell, Stage, Table};
use crate::watch::{Deadline, Watch};

/// A file beside a run: the processor seconds of an iteration.
const SECONDS: &str = "seconds.txt";

/// One run of a cell.
pub(crate) struct Job {
    pub(crate) cell: Cell,
    /// Row, column and seed, for people.
    pub(crate) label: String,
    /// With its data where it is on this machine.
    pub(crate) config: RunConfig,
    pub(crate) folder: PathBuf,
    /// The run whose model it starts from.
    pub(crate) burn_in: Option<Box<Job>>,
}

/// How far a call of [`Job::run`] got.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Finished,
    FinishedBefore,
    /// Another process works at it.
    RunningElsewhere,
    /// A later call resumes it.
    Interrupted,
}

impl Job {
    pub(crate) fn new(table: &Table, cell: Cell, root: &DataRoot) -> anyhow::Result<Self> {
        let Cell { row, column, seed } = cell;
        let annotations = root.annotations(&table.data, table.hidden(cell), seed)?;
        let label = format!("{}, {}, seed {seed}", table.rows[row].name, table.columns[column].name);
        let job = |label: String, stage: Stage, burn_in: Option<Box<Self>>| -> anyhow::Result<Option<Self>> {
            let Some(config) = table.config(cell, &annotations, stage)? else { return Ok(None) };
            let folder = Path::new(CACHE).join("runs").join(run_name(&config, seed));
            Ok(Some(Self { cell, label, config: root.locate_data(config), folder, burn_in }))
        };
        let burn_in = job(format!("{label}, burn-in"), Stage::BurnIn, None)?.map(Box::new);
        let model = burn_in.as_ref().map(|burn_in| Finished::model(&burn_in.folder));
        let whole = job(label, Stage::After(model.as_deref()), burn_in)?;
        Ok(whole.expect("only a burn-in can be absent"))
    }

    /// The name that the run is recorded by.
    pub(crate) fn run_name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Trains to the end, unless that was done before; first the run that it starts from.
    pub(crate) fn run(&self, deadline: Deadline) -> anyhow::Result<Progress> {
        if self.outcome()?.is_some() {
            return Ok(Progress::FinishedBefore);
        }
        if let Some(burn_in) = &self.burn_in {
            let progress = burn_in.run(deadline)?;
            if matches!(progress, Progress::RunningElsewhere | Progress::Interrupted) {
                return Ok(progress);
            }
        }
        eprintln!("{}", self.label);
        let begun = self.folder.join("config.toml").exists();
        let begin = if begun { Begin::Resume } else { Begin::New(IfExists::Refuse) };
        let mut watch = Watch::new(self.config.train.iterations, deadline);
        match train(self.config.clone(), &self.folder, begin, &mut watch) {
            Ok(_) => {}
            Err(TrainError::Running { .. } | TrainError::Data(lacuna_data::Error::Exists { .. })) => {
                return Ok(Progress::RunningElsewhere);
            }
            Err(TrainError::Interrupted { iteration, of, .. }) => {
                println!("{}: stopped after iteration {iteration} of {of}; run again to resume", self.label);
                return Ok(Progress::Interrupted);
            }
            Err(error) => return Err(error).with_context(|| self.label.clone()),
        }
        if let Some(seconds) = watch.seconds_per_iteration() {
            fs::write(self.folder.join(SECONDS), format!("{seconds:.4}\n"))?;
        }
        self.outcome()?.with_context(|| format!("{} has no last evaluation", self.label))?;
        Ok(Progress::Finished)
    }

    /// The last evaluation of a finished run; `None` of any other.
    pub(crate) fn outcome(&self) -> anyhow::Result<Option<Outcome>> {
        let path = self.folder.join("results.csv");
        let Ok(text) = fs::read_to_string(&path) else { return Ok(None) };
        let mut lines = text.lines();
        let (Some(heading), Some(last)) = (lines.next(), lines.next_back()) else { return Ok(None) };
        let cells: Vec<(&str, &str)> = heading.split(',').zip(last.split(',')).collect();
        let number = |name: &str| -> Option<f64> {
            cells.iter().find(|(key, _)| *key == name).and_then(|(_, value)| value.parse().ok())
        };
        let iterations = self.config.train.iterations;
        if number("iteration") != Some(iterations as f64) || saved_iteration(&self.folder) != Some(iterations)
        {
            return Ok(None);
        }
        let precision = |model: &str| number(&format!("{model}_ap")).zip(number(&format!("{model}_ap50")));
        match precision("teacher").or_else(|| precision("student")) {
            Some((ap, ap50)) => Ok(Some(Outcome { ap, ap50, cost: self.cost() })),
            None => bail!("{} has no average precision in its last row", path.display()),
        }
    }

    fn cost(&self) -> Option<Cost> {
        let text = fs::read_to_string(self.folder.join(SECONDS)).ok()?;
        let seconds = text.trim().parse().ok()?;
        Some(Cost { seconds, instructions: Isa::best().name().to_owned() })
    }
}

/// Method, seed and the check sum of the whole configuration, with data paths relative to the data root. Cells of one
/// configuration, such as full annotation under every split, share a run.
fn run_name(config: &RunConfig, seed: u64) -> String {
    let sum = crc32fast::hash(config.to_toml().as_bytes());
    format!("{}-{seed}-{sum:08x}", config.method.name())
}

/// The iteration of the last checkpoint: a run evaluates before it saves.
fn saved_iteration(run: &Path) -> Option<u64> {
    let state = fs::read_to_string(Finished::model(run).join("state.json")).ok()?;
    serde_json::from_str::<serde_json::Value>(state.lines().next()?).ok()?["iteration"].as_u64()
}
