//! The folder of a run: its configuration, its growing files, and the lock that one process holds.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use lacuna_data::output::{IfExists, NewFolder, write_file};

use super::TrainError;
use crate::config::{ConfigSource, DataConfig, RunConfig};
use crate::metrics::Record;

/// The configuration of a run, in its folder.
pub const CONFIG: &str = "config.toml";
/// The metrics of a run, in its folder.
pub const METRICS: &str = "metrics.jsonl";
const RESULTS: &str = "results.csv";

/// Refuses a folder for a new run that holds what the run is made from, or that exists and may not be replaced.
pub(super) fn check_new(config: &RunConfig, run: &Path, if_exists: IfExists) -> Result<(), TrainError> {
    let DataConfig { train, test, hidden, .. } = &config.data;
    let parts = [train, test].into_iter().flat_map(|part| [&part.path, &part.images]);
    let inputs = parts.chain([hidden, &config.start.backbone, &config.start.model]).flatten();
    Ok(if_exists.check_all(&[run], &inputs.map(PathBuf::as_path).collect::<Vec<_>>())?)
}

/// Refuses to resume a run that was begun with another configuration.
pub(super) fn check_resumed(config: &RunConfig, run: &Path) -> Result<(), TrainError> {
    let path = run.join(CONFIG);
    let not_a_run = |why: String| TrainError::NotARun { path: run.to_owned(), why };
    let begun = fs::read_to_string(&path).map_err(|error| not_a_run(format!("{CONFIG}: {error}")))?;
    let source = ConfigSource { path: &path, text: &begun, overrides: &[] };
    let begun = RunConfig::parse(source).map_err(|error| not_a_run(error.to_string()))?;
    match config.difference(&begun) {
        Some(key) => Err(TrainError::OtherConfig { path: run.to_owned(), key }),
        None => Ok(()),
    }
}

/// Makes the folder of a new run.
pub(super) fn create(config: &RunConfig, run: &Path, if_exists: IfExists) -> Result<(), TrainError> {
    let folder = NewFolder::create(run, if_exists)?;
    folder.file(Path::new(CONFIG), |out| out.write_all(config.to_toml().as_bytes()))?;
    Ok(folder.finish()?)
}

/// Held while a process trains in the folder. The system releases it when the process ends.
#[derive(Debug)]
pub(super) struct RunLock {
    _file: File,
}

impl RunLock {
    /// Locks a folder that exists.
    pub(super) fn acquire(run: &Path) -> Result<Self, TrainError> {
        let path = run.join(".lock");
        let failed = |source| TrainError::Write { path: path.clone(), source };
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(fs::TryLockError::WouldBlock) => Err(TrainError::Running { path: run.to_owned() }),
            Err(fs::TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    /// Locks the folder if there is a run in it.
    pub(super) fn acquire_if_run(run: &Path) -> Result<Option<Self>, TrainError> {
        if run.join(CONFIG).exists() { Self::acquire(run).map(Some) } else { Ok(None) }
    }
}

/// `metrics.jsonl` and `results.csv`, which grow.
pub(super) struct Logs {
    metrics: LogFile,
    results: LogFile,
}

impl Logs {
    /// Opens both without the lines of later iterations and later evaluations: a resumed run writes them again.
    pub(super) fn open(run: &Path, iteration: u64, evaluated: u64) -> Result<Self, TrainError> {
        let keep_json = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let limit = if line.get("event")? == "evaluation" { evaluated } else { iteration };
            Some(line.get("iteration")?.as_u64()? <= limit)
        };
        let heading = Record::csv_heading();
        let cells = heading.split(',').count();
        let keep_csv = |line: &str| {
            let at = line.split(',').next()?.parse::<u64>().ok()?;
            Some(line.split(',').count() == cells && at <= evaluated)
        };
        let update = |text: &str| move_to_heading(text, &heading);
        Ok(Self {
            metrics: LogFile::open(run.join(METRICS), None, str::to_owned, keep_json)?,
            results: LogFile::open(run.join(RESULTS), Some(&heading), update, keep_csv)?,
        })
    }

    /// A line of sums over the last iterations.
    pub(super) fn write_iterations(&mut self, record: &Record) -> Result<(), TrainError> {
        self.metrics.append(&record.json("train"))
    }

    /// A line and a row of an evaluation.
    pub(super) fn write_evaluation(&mut self, record: &Record) -> Result<(), TrainError> {
        self.metrics.append(&record.json("evaluation"))?;
        self.results.append(&record.csv())
    }

    /// Before a checkpoint: it must not know of lines that a power cut could still take away.
    pub(super) fn sync(&self) -> Result<(), TrainError> {
        for LogFile { path, file } in [&self.metrics, &self.results] {
            file.sync_data().map_err(|source| TrainError::Write { path: path.clone(), source })?;
        }
        Ok(())
    }
}

struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    /// Opens a file to append to, after `update` of its text, with the lines that `is_kept` says.
    fn open(
        path: PathBuf,
        heading: Option<&str>,
        update: impl Fn(&str) -> String,
        is_kept: impl Fn(&str) -> Option<bool>,
    ) -> Result<Self, TrainError> {
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(lacuna_data::Error::Read { path, source }.into()),
        };
        let text = update(&text);
        let kept = text.lines().filter(|line| is_kept(line) == Some(true));
        write_file(&path, IfExists::Replace, |out| {
            heading.into_iter().chain(kept).try_for_each(|line| writeln!(out, "{line}"))
        })?;
        match OpenOptions::new().append(true).open(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(TrainError::Write { path, source }),
        }
    }

    fn append(&mut self, line: &str) -> Result<(), TrainError> {
        // In one write: a process that is killed leaves whole lines.
        self.file
            .write_all(format!("{line}\n").as_bytes())
            .map_err(|source| TrainError::Write { path: self.path.clone(), source })
    }
}

/// The whole rows of a table with each cell in its column of `heading`. A run of another version may have other columns.
fn move_to_heading(text: &str, heading: &str) -> String {
    let mut lines = text.lines();
    let Some(old) = lines.next().filter(|old| *old != heading) else { return text.to_owned() };
    let names: Vec<&str> = old.split(',').collect();
    let rows = lines.map(|row| row.split(',').collect::<Vec<&str>>()).filter(|row| row.len() == names.len());
    let moved = |row: Vec<&str>| {
        let cell = |name: &str| names.iter().position(|old| *old == name).map_or("", |at| row[at]);
        heading.split(',').map(cell).collect::<Vec<_>>().join(",")
    };
    rows.map(moved).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A resumed run drops lines of iterations and evaluations after its checkpoint, and lines that are not whole.
    #[test]
    fn lines_after_the_checkpoint_are_dropped() {
        let run = tempfile::tempdir().expect("a temporary folder");
        let line = |event: &str, at: u64| format!("{{\"event\":\"{event}\",\"iteration\":{at}}}\n");
        let metrics = [line("train", 10), line("evaluation", 10), line("train", 20), line("evaluation", 20)];
        fs::write(run.path().join(METRICS), metrics.concat() + &line("train", 30) + "{\"event\":\"tr")
            .expect("it can be written");
        let heading = Record::csv_heading();
        let row = |at: u64| at.to_string() + &",0".repeat(heading.split(',').count() - 1);
        let rows = [heading.clone(), row(10), row(20), "1".to_owned()].join("\n");
        fs::write(run.path().join(RESULTS), rows).expect("it can be written");

        drop(Logs::open(run.path(), 20, 10).expect("the files can be opened"));
        let read = |name: &str| fs::read_to_string(run.path().join(name)).expect("it can be read");
        assert_eq!(read(METRICS), metrics[..3].concat());
        assert_eq!(read(RESULTS), [heading.clone(), row(10)].join("\n") + "\n");
    }

    #[test]
    fn rows_of_other_columns_keep_their_cells() {
        assert_eq!(move_to_heading("a,c\n1,3\n4\n5,6\n", "a,b,c"), "1,,3\n5,,6");
        assert_eq!(move_to_heading("a,b\n1,2\n", "a,b"), "a,b\n1,2\n");
    }

    #[test]
    fn a_folder_is_locked_by_one_at_a_time() {
        let run = tempfile::tempdir().expect("a temporary folder");
        let lock = RunLock::acquire(run.path()).expect("nobody else is here");
        assert!(matches!(RunLock::acquire(run.path()), Err(TrainError::Running { .. })));
        drop(lock);
        assert!(RunLock::acquire(run.path()).is_ok());
    }
}
