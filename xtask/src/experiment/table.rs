//! A table as its file describes it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use lacuna_data::sparsify::{Percent, SparsifyKind};
use lacuna_train::config::{ConfigSource, RunConfig};
use lacuna_train::methods::Method;
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub title: String,
    /// What it is for and what its settings are, a paragraph.
    pub about: String,
    /// Which of the paper's tables the figures in brackets are from.
    pub paper: String,
    pub seeds: Vec<u64>,
    pub data: Data,
    /// A file beside the table with a section for each method: settings of every row that does not say otherwise, so
    /// that no cell is tuned alone.
    pub preset: PathBuf,
    /// The names of the rows between which the share of a gap is counted: the baseline's, from which differences are also
    /// taken, and full annotation's.
    pub baseline: Option<String>,
    pub full: Option<String>,
    #[serde(default = "precision_alone")]
    pub show: Vec<Show>,
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
}

/// A run of a cell may start from another, which all methods share: `[burn_in]` of the column's file is laid over the
/// rest of it, and the annotations alone are learned.
#[derive(Clone, Copy, Debug)]
pub enum Stage<'a> {
    BurnIn,
    /// From this model, if there was a burn-in.
    After(Option<&'a Path>),
}

/// What a page has of its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Show {
    /// Average precision on test images.
    Precision,
    /// What an iteration costs.
    Cost,
    /// The error of scores and confidences through training.
    Calibration,
    /// What the models add to the annotations that they were trained on.
    Completion,
}

fn precision_alone() -> Vec<Show> {
    vec![Show::Precision]
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Complete annotations, of which a part is hidden; or those of people who left out some.
    pub train: PathBuf,
    pub test: PathBuf,
    pub images: PathBuf,
    /// Only the first of every so many images of `train`: a short run then sees each as often as a long one would see
    /// all.
    pub every: Option<usize>,
    /// What became of `train` when people looked again: what only this has is what was missing.
    pub completed: Option<PathBuf>,
}

/// A detector, or a split.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    pub name: String,
    /// A run's TOML without data and method, in the folder of the table; with `[burn_in]` if there is one.
    pub config: PathBuf,
    pub hide: Option<Hide>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub name: String,
    /// Nothing is hidden, whatever the column says.
    #[serde(default)]
    pub complete: bool,
    pub hide: Option<Hide>,
    /// `[method]` of the run.
    pub method: toml::Table,
    /// The columns that it can be run in, by name; all without.
    #[serde(default)]
    pub only: Vec<String>,
    /// `[method]` of the burn-in, where the annotations alone would not make a detector of its shape.
    pub burn_in: Option<toml::Table>,
    /// The paper's figure of each column.
    #[serde(default)]
    pub paper: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hide {
    kind: HideKind,
    percent: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum HideKind {
    Split1,
    Split2,
    Split3,
    Easy,
    Hard,
    Extreme,
}

impl Hide {
    pub fn name(self) -> String {
        let kind = format!("{:?}", self.kind).to_lowercase();
        self.percent.map_or(kind.clone(), |percent| format!("{kind}-{percent}"))
    }

    pub fn kind(self) -> anyhow::Result<SparsifyKind> {
        let percent =
            || self.percent.and_then(Percent::new).context("a split needs a `percent` from 0 to 100");
        Ok(match self.kind {
            HideKind::Split1 => SparsifyKind::Split1(percent()?),
            HideKind::Split2 => SparsifyKind::Split2(percent()?),
            HideKind::Split3 => SparsifyKind::Split3(percent()?),
            HideKind::Easy => SparsifyKind::Easy,
            HideKind::Hard => SparsifyKind::Hard,
            HideKind::Extreme => SparsifyKind::Extreme,
        })
    }
}

impl Table {
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut table: Self = toml::from_str(&text).with_context(|| path.display().to_string())?;
        let folder = path.parent().unwrap_or(Path::new("."));
        table.preset = folder.join(&table.preset);
        table.columns.iter_mut().for_each(|column| column.config = folder.join(&column.config));
        for section in read_toml(&table.preset)?.keys() {
            let known = Method::NAMES.contains(&section.as_str());
            ensure!(known, "{}: `[{section}]` is no method", table.preset.display());
        }
        for row in &table.rows {
            let figures = row.paper.len();
            ensure!(
                figures == 0 || figures == table.columns.len(),
                "{}: `{}` has {figures} figures of the paper, and there are {} columns",
                path.display(),
                row.name,
                table.columns.len()
            );
        }
        for name in table.rows.iter().flat_map(|row| &row.only) {
            let known = table.columns.iter().any(|column| column.name == *name);
            ensure!(known, "{}: there is no column `{name}`", path.display());
        }
        for name in table.baseline.iter().chain(&table.full) {
            ensure!(table.row(name).is_some(), "{}: there is no row `{name}`", path.display());
        }
        Ok(table)
    }

    /// Data sets are not part of the repository.
    pub fn check_data(&self) -> anyhow::Result<()> {
        let Data { train, test, images, completed, .. } = &self.data;
        let paths = [train, test, images].into_iter().chain(completed);
        match paths.into_iter().find(|path| !path.exists()) {
            Some(absent) => bail!("{} is not there; the table cannot be run", absent.display()),
            None => Ok(()),
        }
    }

    /// Row and column of each cell that can be run.
    pub fn cells(&self) -> impl Iterator<Item = (usize, usize)> {
        let all =
            (0..self.rows.len()).flat_map(|row| (0..self.columns.len()).map(move |column| (row, column)));
        all.filter(|&(row, column)| self.has(row, column))
    }

    /// Whether its page needs nothing of a run but its outcome.
    pub fn does_without_runs(&self) -> bool {
        self.show.iter().all(|show| matches!(show, Show::Precision | Show::Cost))
    }

    pub fn has(&self, row: usize, column: usize) -> bool {
        let only = &self.rows[row].only;
        only.is_empty() || only.contains(&self.columns[column].name)
    }

    pub fn row(&self, name: &str) -> Option<usize> {
        self.rows.iter().position(|row| row.name == name)
    }

    /// What is hidden in a cell.
    pub fn hidden(&self, row: usize, column: usize) -> Option<Hide> {
        let Row { complete, hide, .. } = &self.rows[row];
        if *complete { None } else { hide.or(self.columns[column].hide) }
    }

    /// A run of a cell with this seed, on these annotations, knowing what was hidden; `None` of a burn-in that there
    /// is none of.
    pub fn config(
        &self,
        (row, column): (usize, usize),
        seed: u64,
        (train, hidden): (&Path, Option<&Path>),
        stage: Stage,
    ) -> anyhow::Result<Option<RunConfig>> {
        let path = &self.columns[column].config;
        let mut run = read_toml(path)?;
        let burn_in = run.remove("burn_in");
        let supervised = toml::Table::from_iter([("name".to_owned(), "supervised".into())]);
        let Row { method: of_row, burn_in: own_burn_in, .. } = &self.rows[row];
        let said = match (stage, burn_in) {
            (Stage::BurnIn, Some(toml::Value::Table(burn_in))) => {
                lay_over(&mut run, &burn_in);
                own_burn_in.as_ref().unwrap_or(&supervised)
            }
            (Stage::BurnIn, _) => return Ok(None),
            (Stage::After(_), _) => of_row,
        };
        let name = said.get("name").and_then(toml::Value::as_str).unwrap_or_default();
        let mut method = match read_toml(&self.preset)?.remove(name) {
            Some(toml::Value::Table(preset)) => preset,
            _ => toml::Table::new(),
        };
        lay_over(&mut method, said);
        run.insert("method".into(), method.into());
        let text = toml::to_string(&run).context("a run is TOML")?;
        let quoted = |path: &Path| format!("'{}'", path.display());
        let mut set = vec![
            format!("train.seed={seed}"),
            format!("data.train.path={}", quoted(train)),
            format!("data.train.images={}", quoted(&self.data.images)),
            format!("data.test.path={}", quoted(&self.data.test)),
            format!("data.test.images={}", quoted(&self.data.images)),
        ];
        set.extend(hidden.map(|hidden| format!("data.hidden={}", quoted(hidden))));
        if let Stage::After(Some(model)) = stage {
            set.push(format!("start.model={}", quoted(model)));
        }
        let source = ConfigSource { path, text: &text, overrides: &set };
        let cell = format!("{}, {}", self.rows[row].name, self.columns[column].name);
        Ok(Some(RunConfig::parse(source).with_context(|| cell)?))
    }
}

fn read_toml(path: &Path) -> anyhow::Result<toml::Table> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

/// What is `said` in place of what was there before, table by table.
fn lay_over(onto: &mut toml::Table, said: &toml::Table) {
    for (key, value) in said {
        match (onto.get_mut(key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(value)) => lay_over(old, value),
            _ => {
                onto.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_presets_settings_but_for_its_own() {
        let mut preset: toml::Table = toml::from_str("a = 1\n[t]\nb = 2\nc = 3").expect("TOML");
        lay_over(&mut preset, &toml::from_str("d = 4\n[t]\nb = 5").expect("TOML"));
        assert_eq!(preset, toml::from_str("a = 1\nd = 4\n[t]\nb = 5\nc = 3").expect("TOML"));
    }

    /// Every cell of every table is a run whose configuration is right, with data or without.
    #[test]
    fn every_table_can_be_run() {
        let folder = crate::bench::workspace().join("experiments");
        let files =
            fs::read_dir(&folder).expect("the folder is there").map(|entry| entry.expect("it is").path());
        let tables: Vec<PathBuf> =
            files.filter(|path| path.extension().is_some_and(|e| e == "toml")).collect();
        assert!(!tables.is_empty());
        for path in tables {
            let table = Table::read(&path).unwrap_or_else(|error| panic!("{error:#}"));
            for (row, column) in table.cells() {
                table.hidden(row, column).map(Hide::kind).transpose().expect("a split");
                for stage in [Stage::BurnIn, Stage::After(Some(Path::new("run/checkpoints/last")))] {
                    let config = table.config((row, column), 0, (Path::new("train.json"), None), stage);
                    config.unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
                }
            }
        }
    }
}
