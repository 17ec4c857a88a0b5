//! From the text of a configuration file to a [`RunConfig`], and back.
//!
//! The defaults are a whole configuration as a tree of values. The file's values replace them one by one, so a key that
//! the defaults do not have is unknown, and an error can name the keys that there are.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use lacuna_data::nearest;
use lacuna_models::resnet::Depth;
use lacuna_models::{DetectorConfig, DetectorKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize as _, Serialize};
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::RunConfig;
use super::rules::Violation;
use crate::methods::Method;

/// Where a configuration gives a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceLocation {
    /// In a line of the file.
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// In an override, such as `train.lr=0.005`.
    Override {
        /// The whole override as it was given.
        assignment: String,
    },
    /// Nowhere in the file.
    File {
        /// The file.
        path: PathBuf,
    },
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Line { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Override { assignment } => write!(f, "override `{assignment}`"),
            Self::File { path } => write!(f, "{}", path.display()),
        }
    }
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
#[error("{location}: {problem}")]
pub struct ConfigError {
    /// Where the value stands.
    pub location: SourceLocation,
    /// What is wrong with it.
    pub problem: String,
    /// The nearest known key or word, or which there are.
    pub hint: Option<String>,
}

/// A configuration as it was given: a file, and values that override it.
#[derive(Clone, Copy, Debug)]
pub struct ConfigSource<'a> {
    /// The file, for messages.
    pub path: &'a Path,
    /// Its text.
    pub text: &'a str,
    /// Each `key=value`, with the value in TOML; what is not TOML is a string.
    pub overrides: &'a [String],
}

impl RunConfig {
    /// Reads a configuration: defaults for what is not given, and every value checked.
    pub fn parse(source: ConfigSource) -> Result<Self, ConfigError> {
        let given = Given::read(source)?;
        let config = given.config()?;
        config
            .check()
            .map_err(|Violation { key, rule }| given.error(&key, format!("`{key}` must be {rule}")))?;
        Ok(config)
    }

    /// The whole configuration as TOML, without the number of classes, which the data gives.
    pub fn to_toml(&self) -> String {
        // Taken out of this section, which has no text of the user's that may look the same.
        let n_classes = format!("n_classes = {}\n", self.detector.n_classes());
        [
            section("data", &self.data),
            section("detector", &self.detector).replacen(&n_classes, "", 1),
            section("start", &self.start),
            section("views", &self.views),
            section("train", &self.train),
            section("method", &self.method),
        ]
        .join("\n")
    }

    /// The same detector for this number of classes.
    #[must_use]
    pub(crate) fn with_n_classes(mut self, n_classes: usize) -> Self {
        match &mut self.detector {
            DetectorConfig::RetinaNet(config) => config.n_classes = n_classes,
            DetectorConfig::Fcos(config) => config.n_classes = n_classes,
            DetectorConfig::FasterRcnn(config) => config.n_classes = n_classes,
        }
        self
    }

    /// The first key in which the two differ and that has an effect on results.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let [ours, theirs] =
            [self, other].map(|config| Table::try_from(config).expect("a configuration is a table"));
        first_difference("", &ours, &theirs)
    }
}

/// Keys without an effect on results so far. The data may be moved: a fingerprint tells whether it is the same.
const WITHOUT_EFFECT: [&str; 8] = [
    "data.on_bad_image",
    "data.train.path",
    "data.train.images",
    "data.test.path",
    "data.test.images",
    "data.hidden",
    "train.workers",
    "train.checkpoint_every",
];

fn first_difference(above: &str, ours: &Table, theirs: &Table) -> Option<String> {
    let keys = ours.keys().chain(theirs.keys().filter(|key| !ours.contains_key(*key)));
    keys.map(|key| (join(above, key), ours.get(key), theirs.get(key))).find_map(|(path, a, b)| match (a, b) {
        (Some(Value::Table(a)), Some(Value::Table(b))) => first_difference(&path, a, b),
        (a, b) => (a != b && !WITHOUT_EFFECT.contains(&path.as_str())).then_some(path),
    })
}

/// No key has so many parts.
const KEY_PARTS_MAX: usize = 16;

/// The values of the file and of the overrides, and where each stands.
struct Given<'a> {
    path: &'a Path,
    values: Table,
    locations: HashMap<String, SourceLocation>,
}

impl<'a> Given<'a> {
    fn read(source: ConfigSource<'a>) -> Result<Self, ConfigError> {
        let ConfigSource { path, text, overrides } = source;
        let line_of = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
        let at_its_location = |error: toml::de::Error| {
            let location = match error.span() {
                Some(span) => SourceLocation::Line { path: path.into(), line: line_of(span.start) },
                None => SourceLocation::File { path: path.into() },
            };
            ConfigError { location, problem: error.message().to_owned(), hint: None }
        };
        let table = DeTable::parse(text).map_err(at_its_location)?;
        let mut locations = HashMap::new();
        let mut note = |key: String, at: usize| {
            locations.insert(key, SourceLocation::Line { path: path.into(), line: line_of(at) });
        };
        note_locations("", table.get_ref(), &mut note);
        let mut values: Table = toml::from_str(text).map_err(at_its_location)?;
        for assignment in overrides {
            let location = SourceLocation::Override { assignment: assignment.clone() };
            let wrong = |problem: String| ConfigError { location: location.clone(), problem, hint: None };
            let (key, value) = assignment.split_once('=').ok_or_else(|| {
                wrong(format!("`{assignment}` is not of the form `key=value`, such as `train.lr=0.005`"))
            })?;
            let (key, value) = (key.trim(), value.trim());
            // Tables in tables are built, and dropped, by recursion.
            if key.split('.').count() > KEY_PARTS_MAX {
                return Err(wrong(format!(
                    "`{assignment}` is of a key with more than {KEY_PARTS_MAX} parts"
                )));
            }
            let value = toml::from_str::<Table>(&format!("value = {value}"))
                .ok()
                .and_then(|mut table| table.remove("value"))
                .unwrap_or_else(|| Value::String(value.to_owned()));
            put(&mut values, key, value).map_err(wrong)?;
            locations.insert(key.to_owned(), location);
        }
        Ok(Self { path, values, locations })
    }

    /// Where a key, or else the nearest table above it, stands.
    fn location(&self, key: &str) -> SourceLocation {
        let mut key = key;
        loop {
            if let Some(location) = self.locations.get(key) {
                return location.clone();
            }
            match key.rsplit_once('.') {
                Some((above, _)) => key = above,
                None => return SourceLocation::File { path: self.path.into() },
            }
        }
    }

    fn error(&self, key: &str, problem: String) -> ConfigError {
        ConfigError { location: self.location(key), problem, hint: None }
    }

    /// A word that decides which other keys there are; `default` if it need not be given.
    fn word(&self, key: &str, words: &[&str], default: Option<&str>) -> Result<String, ConfigError> {
        let known = words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        let given = key.split('.').try_fold(None, |value: Option<&Value>, part| {
            let table = value.map_or(Some(&self.values), Value::as_table)?;
            table.get(part).map(Some)
        });
        match given.flatten() {
            Some(Value::String(word)) if words.contains(&word.as_str()) => Ok(word.clone()),
            Some(value) => {
                let mut error = self.error(key, format!("`{key}` is {value}, not one of {known}"));
                let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
                error.hint = value.as_str().and_then(|word| nearest(word, &words)).map(did_you_mean);
                Err(error)
            }
            None => default
                .map(str::to_owned)
                .ok_or_else(|| self.error(key, format!("`{key}` is missing; it is one of {known}"))),
        }
    }

    /// The defaults, with the given values in their place.
    fn config(&self) -> Result<RunConfig, ConfigError> {
        // Before a key is missed: its table may only be misspelt.
        self.check_tables()?;
        let kind = self.word("detector.kind", &["retinanet", "fcos", "fasterrcnn"], None)?;
        let depths: [&str; 5] = ["resnet10", "resnet18", "resnet34", "resnet50", "resnet101"];
        let depth = self.word("detector.backbone.depth", &depths, Some("resnet50"))?;
        let method = self.word("method.name", Method::NAMES, None)?;

        let kind_of = match kind.as_str() {
            "retinanet" => DetectorKind::RetinaNet,
            "fcos" => DetectorKind::Fcos,
            _ => DetectorKind::FasterRcnn,
        };
        let depth_of = Depth::deserialize(Value::String(depth.clone())).expect("it is one of them");
        let mut method = Method::published(&method, kind_of).expect("it is one of them");
        let defaults = RunConfig::new(kind_of, depth_of, method.clone());
        let mut table = Table::try_from(&defaults).expect("every configuration can be written as TOML");
        remove_n_classes(&mut table);
        self.replace_values("", &mut table, &self.values)?;
        table["detector"]["backbone"]["depth"] = Value::String(depth);

        let mut take = |key: &str| table.remove(key).expect("the defaults have it");
        let detector = without(take("detector"), "kind");
        let settings = without(take("method"), "name");
        Ok(RunConfig {
            data: self.deserialize("data", take("data"))?,
            start: self.deserialize("start", take("start"))?,
            views: self.deserialize("views", take("views"))?,
            train: self.deserialize("train", take("train"))?,
            detector: match kind_of {
                DetectorKind::RetinaNet => DetectorConfig::RetinaNet(self.deserialize("detector", detector)?),
                DetectorKind::Fcos => DetectorConfig::Fcos(self.deserialize("detector", detector)?),
                DetectorKind::FasterRcnn => {
                    DetectorConfig::FasterRcnn(self.deserialize("detector", detector)?)
                }
            },
            method: {
                method.set_settings(settings).map_err(|error| self.value_error("method", error))?;
                method
            },
        })
    }

    fn check_tables(&self) -> Result<(), ConfigError> {
        let known = ["data", "detector", "start", "views", "train", "method"].map(str::to_owned);
        match self.values.keys().find(|key| !known.contains(key)) {
            Some(key) => Err(self.unknown("", key, &known)),
            None => Ok(()),
        }
    }

    fn unknown(&self, above: &str, key: &str, known: &[String]) -> ConfigError {
        let hint = nearest(key, known)
            .map_or_else(|| format!("its keys are `{}`", known.join("`, `")), did_you_mean);
        let problem = match above {
            "" => format!("there is no table `[{key}]`"),
            above => format!("there is no key `{key}` in `[{above}]`"),
        };
        ConfigError { hint: Some(hint), ..self.error(&join(above, key), problem) }
    }

    fn replace_values(&self, above: &str, onto: &mut Table, given: &Table) -> Result<(), ConfigError> {
        for (key, value) in given {
            let path = join(above, key);
            let Some(old) = onto.get_mut(key) else {
                let known: Vec<String> = onto.keys().cloned().collect();
                return Err(self.unknown(above, key, &known));
            };
            match (old, value) {
                (Value::Table(old), Value::Table(value)) => self.replace_values(&path, old, value)?,
                (Value::Table(_), value) => {
                    return Err(self.error(&path, format!("`{path}` is a table, not {value}")));
                }
                (_, Value::Table(_)) => {
                    return Err(self.error(&path, format!("`{path}` is a value, not a table")));
                }
                (old, value) => *old = value.clone(),
            }
        }
        Ok(())
    }

    fn deserialize<T: DeserializeOwned>(&self, section: &str, mut value: Value) -> Result<T, ConfigError> {
        if section == "detector" {
            // Known only when the data has been read.
            value.as_table_mut().expect("it is a table").insert("n_classes".to_owned(), Value::Integer(1));
        }
        serde_path_to_error::deserialize(value).map_err(|error| self.value_error(section, error))
    }

    /// A value of the wrong type.
    fn value_error(&self, section: &str, error: serde_path_to_error::Error<toml::de::Error>) -> ConfigError {
        let key = join(section, &error.path().to_string());
        let key = key.strip_suffix(".?").unwrap_or(&key).to_owned();
        self.error(&key, format!("`{key}`: {}", error.into_inner().message()))
    }
}

fn section(name: &str, values: &impl Serialize) -> String {
    toml::to_string(&HashMap::from([(name, values)])).expect("every configuration can be written as TOML")
}

fn did_you_mean(word: &str) -> String {
    format!("did you mean `{word}`?")
}

fn join(above: &str, key: &str) -> String {
    if above.is_empty() { key.to_owned() } else { format!("{above}.{key}") }
}

fn without(value: Value, key: &str) -> Value {
    let Value::Table(mut table) = value else { unreachable!("a section is a table") };
    table.remove(key);
    Value::Table(table)
}

fn remove_n_classes(table: &mut Table) {
    if let Some(Value::Table(detector)) = table.get_mut("detector") {
        detector.remove("n_classes");
    }
}

fn put(values: &mut Table, key: &str, value: Value) -> Result<(), String> {
    match key.split_once('.') {
        None if key.is_empty() => Err("a key is missing before `=`".to_owned()),
        None => {
            values.insert(key.to_owned(), value);
            Ok(())
        }
        Some((first, rest)) => {
            let below = values.entry(first).or_insert_with(|| Value::Table(Table::new()));
            match below {
                Value::Table(below) => put(below, rest, value),
                _ => Err(format!("`{first}` is a value, not a table")),
            }
        }
    }
}

fn note_locations(above: &str, table: &DeTable, note: &mut dyn FnMut(String, usize)) {
    for (key, value) in table {
        let path = join(above, key.get_ref());
        note(path.clone(), key.span().start);
        note_below(&path, value, note);
    }
}

fn note_below(path: &str, value: &Spanned<DeValue>, note: &mut dyn FnMut(String, usize)) {
    if let DeValue::Table(table) = value.get_ref() {
        note_locations(path, table, note);
    }
}
