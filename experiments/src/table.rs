//! A table of experiments, as its file in `experiments/` describes it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use lacuna_data::sparsify::{Percent, SparsifyKind};
use lacuna_train::config::{ConfigSource, RunConfig};
use lacuna_train::methods::Method;
use serde::Deserialize;

/// A table: one run for each row, column and seed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    pub(crate) title: String,
    /// A paragraph for its page: what it shows, and its settings.
    pub(crate) about: String,
    /// Where the paper's figures are from.
    pub(crate) paper: String,
    pub(crate) seeds: Vec<u64>,
    pub(crate) data: Data,
    /// A file beside the table with a section for each method. Its settings hold in every row that does not set them, so
    /// that no cell is tuned alone.
    preset: PathBuf,
    /// The row that differences are taken from.
    pub(crate) baseline: Option<String>,
    /// The row that, with the baseline, spans the gap to be closed.
    pub(crate) full: Option<String>,
    #[serde(default = "default_sections")]
    pub(crate) show: Vec<Show>,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
}

/// Where a run is in its table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) row: usize,
    pub(crate) column: usize,
    pub(crate) seed: u64,
}

/// A run may start from the model of a burn-in on the annotations alone, which methods share. Its settings are those of
/// the column's file with `[burn_in]` laid over them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage<'a> {
    BurnIn,
    /// From this model, if there was a burn-in.
    After(Option<&'a Path>),
}

/// A section of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Show {
    /// Average precision on test images.
    Precision,
    /// Processor time of an iteration.
    Cost,
    /// Calibration errors of scores and confidences during training.
    Calibration,
    /// Boxes that the models recover in their training images.
    Completion,
}

fn default_sections() -> Vec<Show> {
    vec![Show::Precision]
}

/// Data sets, relative to the data root.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Data {
    /// Annotations to train on: complete ones, of which a part is hidden, or some with gaps of their own.
    pub(crate) train: PathBuf,
    pub(crate) test: PathBuf,
    pub(crate) images: PathBuf,
    /// Keep the first of every so many images of `train`: a short run then sees each as often as a long one would see
    /// all.
    pub(crate) every: Option<usize>,
    /// `train` after a second pass of annotation: what only this file has was missing.
    pub(crate) completed: Option<PathBuf>,
}

/// A detector, or a split.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// A run's TOML without data and method, relative to the table; `[burn_in]` is optional.
    config: PathBuf,
    hide: Option<Hide>,
}

/// A method.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Nothing is hidden, whatever the column says.
    #[serde(default)]
    complete: bool,
    hide: Option<Hide>,
    /// `[method]` of the run.
    method: toml::Table,
    /// The names of the columns that it is run in; empty means all.
    #[serde(default)]
    only: Vec<String>,
    /// `[method]` of the burn-in, where that is not supervised training.
    burn_in: Option<toml::Table>,
    /// The paper's figure for each column.
    #[serde(default)]
    pub(crate) paper: Vec<String>,
}

/// The annotations that a cell hides.

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hide {
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
    /// Its part of a file name.
    pub(crate) fn name(self) -> String {
        let kind = format!("{:?}", self.kind).to_lowercase();
        self.percent.map_or(kind.clone(), |percent| format!("{kind}-{percent}"))
    }

    pub(crate) fn kind(self) -> anyhow::Result<SparsifyKind> {
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
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut table: Self = toml::from_str(&text).with_context(|| path.display().to_string())?;
        let folder = path.parent().unwrap_or(Path::new("."));
        table.preset = folder.join(&table.preset);
        table.columns.iter_mut().for_each(|column| column.config = folder.join(&column.config));
        table.check().with_context(|| path.display().to_string())?;
        Ok(table)
    }

    /// Whether all names in it are of something.
    fn check(&self) -> anyhow::Result<()> {
        for section in read_toml(&self.preset)?.keys() {
            let known = Method::NAMES.contains(&section.as_str());
            ensure!(known, "{}: `[{section}]` is no method", self.preset.display());
        }
        for Row { name, paper, .. } in &self.rows {
            ensure!(
                paper.is_empty() || paper.len() == self.columns.len(),
                "`{name}` has {} figures of the paper, but there are {} columns",
                paper.len(),
                self.columns.len()
            );
        }
        for name in self.rows.iter().flat_map(|row| &row.only) {
            let known = self.columns.iter().any(|column| column.name == *name);
            ensure!(known, "there is no column `{name}`");
        }
        for name in self.baseline.iter().chain(&self.full) {
            ensure!(self.row(name).is_some(), "there is no row `{name}`");
        }
        Ok(())
    }

    /// All cells: those of the first seed come first.
    pub(crate) fn cells(&self) -> impl Iterator<Item = Cell> {
        let pairs =
            || (0..self.rows.len()).flat_map(|row| (0..self.columns.len()).map(move |column| (row, column)));
        let all = self
            .seeds
            .iter()
            .flat_map(move |&seed| pairs().map(move |(row, column)| Cell { row, column, seed }));
        all.filter(|cell| self.has(cell.row, cell.column))
    }

    /// Whether its page can be written without the folders of its runs.
    pub(crate) fn needs_only_outcomes(&self) -> bool {
        self.show.iter().all(|show| matches!(show, Show::Precision | Show::Cost))
    }

    /// Whether this row is run in this column.
    pub(crate) fn has(&self, row: usize, column: usize) -> bool {
        let only = &self.rows[row].only;
        only.is_empty() || only.contains(&self.columns[column].name)
    }

    pub(crate) fn row(&self, name: &str) -> Option<usize> {
        self.rows.iter().position(|row| row.name == name)
    }

    /// The annotations that are hidden in a cell.
    pub(crate) fn hidden(&self, cell: Cell) -> Option<Hide> {
        let Row { complete, hide, .. } = &self.rows[cell.row];
        if *complete { None } else { hide.or(self.columns[cell.column].hide) }
    }

    /// The configuration of a run on these annotations; `hidden` is what they lack. `None` for the burn-in of a column
    /// that has none. Data paths are relative to the data root.
    pub(crate) fn config(
        &self,
        cell: Cell,
        (train, hidden): &(PathBuf, Option<PathBuf>),
        stage: Stage,
    ) -> anyhow::Result<Option<RunConfig>> {
        let (row, column) = (&self.rows[cell.row], &self.columns[cell.column]);
        let mut run = read_toml(&column.config)?;
        let burn_in = run.remove("burn_in");
        let supervised = toml::Table::from_iter([("name".to_owned(), "supervised".into())]);
        let method = match (stage, burn_in) {
            (Stage::BurnIn, Some(toml::Value::Table(burn_in))) => {
                lay_over(&mut run, &burn_in);
                row.burn_in.as_ref().unwrap_or(&supervised)
            }
            (Stage::BurnIn, _) => return Ok(None),
            (Stage::After(_), _) => &row.method,
        };
        run.insert("method".into(), self.with_preset(method)?.into());
        let text = toml::to_string(&run).context("a run is TOML")?;
        let quoted = |path: &Path| format!("'{}'", path.display());
        let mut set = vec![
            format!("train.seed={}", cell.seed),
            format!("data.train.path={}", quoted(train)),
            format!("data.train.images={}", quoted(&self.data.images)),
            format!("data.test.path={}", quoted(&self.data.test)),
            format!("data.test.images={}", quoted(&self.data.images)),
        ];
        set.extend(hidden.as_deref().map(|hidden| format!("data.hidden={}", quoted(hidden))));
        if let Stage::After(Some(model)) = stage {
            set.push(format!("start.model={}", quoted(model)));
        }
        let source = ConfigSource { path: &column.config, text: &text, overrides: &set };
        let config = RunConfig::parse(source).with_context(|| format!("{}, {}", row.name, column.name))?;
        Ok(Some(config))
    }

    /// The settings of a method over those of its preset.
    fn with_preset(&self, settings: &toml::Table) -> anyhow::Result<toml::Table> {
        let name = settings.get("name").and_then(toml::Value::as_str).unwrap_or_default();
        let mut method = match read_toml(&self.preset)?.remove(name) {
            Some(toml::Value::Table(preset)) => preset,
            _ => toml::Table::new(),
        };
        lay_over(&mut method, settings);
        Ok(method)
    }
}

fn read_toml(path: &Path) -> anyhow::Result<toml::Table> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

/// Replaces values of `onto` by those of `over`, table by table.
fn lay_over(onto: &mut toml::Table, over: &toml::Table) {
    for (key, value) in over {
        match (onto.get_mut(key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(value)) => lay_over(old, value),
            _ => {
                onto.insert(key.clone(), value.clone());
            }
        }
    }
}

/// The files of all tables.
#[cfg(test)]
pub(crate) fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir(env!("CARGO_MANIFEST_DIR")).expect("the folder exists");
    let is_table = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "toml") && !path.ends_with("Cargo.toml")
    };
    entries.map(|entry| entry.expect("it is readable").path()).filter(is_table).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_row_replace_those_of_the_preset() {
        let mut preset: toml::Table = toml::from_str("a = 1\n[t]\nb = 2\nc = 3").expect("TOML");
        lay_over(&mut preset, &toml::from_str("d = 4\n[t]\nb = 5").expect("TOML"));
        assert_eq!(preset, toml::from_str("a = 1\nd = 4\n[t]\nb = 5\nc = 3").expect("TOML"));
    }

    /// Every cell of every table has a valid configuration; no data is needed for that.
    #[test]
    fn every_table_can_be_run() {
        let tables = files();
        assert!(!tables.is_empty());
        for path in tables {
            let table = Table::read(&path).unwrap_or_else(|error| panic!("{error:#}"));
            for cell in table.cells() {
                table.hidden(cell).map(Hide::kind).transpose().expect("a split");
                for stage in [Stage::BurnIn, Stage::After(Some(Path::new("run/checkpoints/last")))] {
                    let config = table.config(cell, &("train.json".into(), None), stage);
                    config.unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
                }
            }
        }
    }
}
