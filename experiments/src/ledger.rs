//! `experiments/results.csv`: the outcomes of runs. Runs are large and stay on the machine that made them; this file is
//! part of the project, so that a table can be finished elsewhere or later.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, fs};

use anyhow::{Context, bail, ensure};
use lacuna_data::output::{IfExists, write_file};

const HEADING: &str = "run,ap,ap50,seconds,instructions";

/// The last evaluation of a run: the teacher's if there is one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) ap: f64,
    pub(crate) ap50: f64,
    pub(crate) cost: Option<Cost>,
}

/// Processor time of an iteration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cost {
    pub(crate) seconds: f64,
    /// The instruction set of the run: times on different ones are not comparable.
    pub(crate) instructions: String,
}

/// Outcomes by the names of their runs. A name holds the check sum of the configuration; neither the code nor the test
/// data is part of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ledger(BTreeMap<String, Outcome>);

impl Ledger {
    /// Empty if there is no file.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        Self::parse(&fs::read_to_string(path)?).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut lines = text.lines();
        ensure!(lines.next() == Some(HEADING), "its first line is not `{HEADING}`");
        let mut ledger = Self::default();
        for (number, line) in lines.enumerate() {
            let (run, outcome) = parse_line(line).with_context(|| format!("line {}: {line}", number + 2))?;
            ensure!(!ledger.0.contains_key(&run), "line {}: {run} is recorded twice", number + 2);
            ledger.0.insert(run, outcome);
        }
        Ok(ledger)
    }

    #[cfg(test)]
    pub(crate) fn runs(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(crate) fn get(&self, run: &str) -> Option<&Outcome> {
        self.0.get(run)
    }

    /// Adds outcomes to the file, under a lock, and gives the whole. An outcome that differs from the recorded one is
    /// refused: the code has changed, or the machine is another.
    pub(crate) fn add(path: &Path, outcomes: &BTreeMap<String, Outcome>) -> anyhow::Result<Self> {
        let lock = fs::File::create(path.with_extension("lock"))?;
        lock.lock()?;
        let before = Self::read(path)?;
        let mut ledger = before.clone();
        for (run, outcome) in outcomes {
            let known = ledger.0.entry(run.clone()).or_insert_with(|| outcome.clone());
            ensure!(
                (known.ap, known.ap50) == (outcome.ap, outcome.ap50),
                "{run} has an AP of {}, but {} in {}; remove its folder or its line",
                outcome.ap,
                known.ap,
                path.display()
            );
            known.cost = known.cost.take().or_else(|| outcome.cost.clone());
        }
        if ledger != before {
            let text = ledger.to_string();
            write_file(path, IfExists::Replace, |out| std::io::Write::write_all(out, text.as_bytes()))?;
        }
        Ok(ledger)
    }
}

fn parse_line(line: &str) -> anyhow::Result<(String, Outcome)> {
    let cells: Vec<&str> = line.split(',').collect();
    let [run, ap, ap50, seconds, instructions] = cells[..] else { bail!("a line has five cells") };
    let cost = match seconds {
        "" => None,
        _ => Some(Cost { seconds: seconds.parse()?, instructions: instructions.to_owned() }),
    };
    Ok((run.to_owned(), Outcome { ap: ap.parse()?, ap50: ap50.parse()?, cost }))
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(f, "{HEADING}")?;
        for (run, Outcome { ap, ap50, cost }) in &self.0 {
            write!(f, "{run},{ap},{ap50},")?;
            match cost {
                Some(Cost { seconds, instructions }) => writeln!(f, "{seconds},{instructions}")?,
                None => writeln!(f, ",")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(ap: f64, seconds: Option<f64>) -> Outcome {
        let cost = seconds.map(|seconds| Cost { seconds, instructions: "avx2".to_owned() });
        Outcome { ap, ap50: 0.1 + ap, cost }
    }

    fn named(outcomes: &[(&str, Outcome)]) -> BTreeMap<String, Outcome> {
        outcomes.iter().map(|(run, outcome)| ((*run).to_owned(), outcome.clone())).collect()
    }

    #[test]
    fn outcomes_are_kept_to_the_last_bit_and_never_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("results.csv");
        assert_eq!(Ledger::read(&path).expect("none is empty"), Ledger::default());
        let first = named(&[("b-0-12", outcome(1.0 / 3.0, None)), ("a-0-12", outcome(0.2, Some(0.125)))]);
        let written = Ledger::add(&path, &first).expect("it is written");
        assert_eq!(Ledger::read(&path).expect("it is read"), written);
        // The cost may become known later.
        let more = named(&[("b-0-12", outcome(1.0 / 3.0, Some(0.5))), ("c-1-34", outcome(0.25, None))]);
        let ledger = Ledger::add(&path, &more).expect("it is written");
        assert_eq!(ledger.get("b-0-12"), Some(&outcome(1.0 / 3.0, Some(0.5))));
        assert_eq!(ledger.get("c-1-34"), Some(&outcome(0.25, None)));
        let error = Ledger::add(&path, &named(&[("a-0-12", outcome(0.3, None))])).expect_err("it was 0.2");
        assert!(error.to_string().starts_with("a-0-12 has an AP of 0.3, but 0.2 in"), "{error}");
        assert_eq!(Ledger::read(&path).expect("it is read"), ledger);
    }

    #[test]
    fn a_malformed_line_is_named() {
        let heading = HEADING;
        let error =
            Ledger::parse(&format!("{heading}\na,0.1,0.2,,\nb,0.1,x,,\n")).expect_err("x is no number");
        assert!(format!("{error:#}").contains("line 3: b,0.1,x,,"), "{error:#}");
        let error = Ledger::parse(&format!("{heading}\na,0.1,0.2,,\na,0.1,0.2,,\n"))
            .expect_err("it is recorded twice");
        assert!(format!("{error:#}").contains("line 3: a is recorded twice"), "{error:#}");
        assert!(Ledger::parse("run,ap\n").is_err());
    }
}
