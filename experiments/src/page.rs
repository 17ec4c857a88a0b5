//! The page of a table: Markdown and figures.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use lacuna_report::{Figure, Spread, comparison};

use crate::ledger::{Cost, Outcome};
use crate::table::{Cell, Show, Table};
use crate::{calibration, completion};

/// The content of a cell without runs.
pub(crate) const NOT_RUN: &str = "not run";

/// A finished run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) folder: PathBuf,
    pub(crate) seed: u64,
    pub(crate) outcome: Outcome,
}

/// The runs of a table by row and column, one for each seed.
pub(crate) struct Results {
    runs: Vec<Vec<Vec<Run>>>,
}

/// A page, or a section of one: Markdown, and its figures by name. Names in a section are without that of the page.
pub(crate) struct Page {
    pub(crate) text: String,
    pub(crate) figures: Vec<(String, Figure)>,
}

impl Results {
    pub(crate) fn new(table: &Table) -> Self {
        Self { runs: vec![vec![Vec::new(); table.columns.len()]; table.rows.len()] }
    }

    pub(crate) fn add(&mut self, cell: Cell, run: Run) {
        self.runs[cell.row][cell.column].push(run);
    }

    pub(crate) fn page(&self, table: &Table, name: &str) -> anyhow::Result<Page> {
        let mut text = format!("# {}\n\n{}\n\n", table.title, table.about.trim());
        let _ = writeln!(
            text,
            "```\ncargo experiment {name}\n```\n\nCells are the mean ± standard deviation over {} seeds, in percent. \
             Where fewer seeds were run, their number follows in parentheses.\n",
            table.seeds.len(),
        );
        let mut figures = Vec::new();
        for show in &table.show {
            let section = match show {
                Show::Precision => self.precision(table),
                Show::Cost => self.cost(table),
                Show::Calibration => calibration::section(table, &self.runs)?,
                Show::Completion => completion::section(table, &self.runs)?,
            };
            text += &section.text;
            for (suffix, figure) in section.figures {
                let _ = writeln!(text, "![{}](figures/{name}-{suffix}.svg)\n", figure.title());
                figures.push((format!("{name}-{suffix}.svg"), figure));
            }
        }
        Ok(Page { text: text.trim_end().to_owned() + "\n", figures })
    }

    /// One number of each run of a cell.
    fn numbers(&self, row: usize, column: usize, number: fn(&Outcome) -> f64) -> Vec<f64> {
        self.runs[row][column].iter().map(|run| number(&run.outcome)).collect()
    }

    fn precision(&self, table: &Table) -> Page {
        let mut text = String::new();
        if table.rows.iter().any(|row| !row.paper.is_empty()) {
            let _ = writeln!(text, "After the slash: the paper's figure ({}).\n", table.paper);
        }
        let seeds = table.seeds.len();
        text += &markdown(table, "AP", &[], |row, column| {
            let paper = table.rows[row].paper.get(column).map(|paper| format!(" / {paper}"));
            mean_and_deviation(&self.numbers(row, column, |run| run.ap), seeds) + &paper.unwrap_or_default()
        });
        text += &markdown(table, "AP50", &[], |row, column| {
            mean_and_deviation(&self.numbers(row, column, |run| run.ap50), seeds)
        });
        text.extend([self.differences(table), self.closed_gap(table)].into_iter().flatten());
        Page { text, figures: vec![("ap".to_owned(), self.precision_figure(table))] }
    }

    fn precision_figure(&self, table: &Table) -> Figure {
        let columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
        let spread = |row: usize, column: usize| {
            let aps = self.numbers(row, column, |run| run.ap);
            Some(Spread { mean: 100.0 * mean(&aps)?, deviation: 100.0 * deviation(&aps) })
        };
        let spreads = |row: usize| (0..columns.len()).map(|column| spread(row, column)).collect();
        let rows: Vec<(&str, Vec<Option<Spread>>)> =
            table.rows.iter().enumerate().map(|(at, row)| (row.name.as_str(), spreads(at))).collect();
        comparison(&table.title, "AP", &columns, &rows)
    }

    /// Processor time of an iteration, of the runs on the instruction set that most ran on.
    fn cost(&self, table: &Table) -> Page {
        let recorded =
            |runs: &[Run]| -> Vec<Cost> { runs.iter().filter_map(|run| run.outcome.cost.clone()).collect() };
        let mut runs_on = BTreeMap::<String, usize>::new();
        for cost in self.runs.iter().flatten().flat_map(|runs| recorded(runs)) {
            *runs_on.entry(cost.instructions).or_default() += 1;
        }
        let Some((most, _)) = runs_on.into_iter().max_by_key(|(_, runs)| *runs) else {
            return Page { text: String::new(), figures: Vec::new() };
        };
        let seconds = markdown(table, "", &[], |row, column| {
            let costs =
                recorded(&self.runs[row][column]).into_iter().filter(|cost| cost.instructions == most);
            let seconds: Vec<f64> = costs.map(|cost| cost.seconds).collect();
            mean(&seconds).map_or("–".to_owned(), |seconds| format!("{seconds:.2}"))
        });
        let text =
            format!("Processor time of an iteration in seconds ({most}), mean over the seeds:\n\n{seconds}");
        Page { text, figures: Vec::new() }
    }

    /// How far each row is above the baseline. Most rows of a column share start, gaps and views of a seed, so
    /// differences vary less than the numbers themselves.
    fn differences(&self, table: &Table) -> Option<String> {
        let baseline = table.row(table.baseline.as_ref()?)?;
        let differences = markdown(table, "", &[baseline], |row, column| {
            let difference = |run: &Run| Some(run.outcome.ap - self.ap(baseline, column, run.seed)?);
            let differences: Vec<f64> = self.runs[row][column].iter().filter_map(difference).collect();
            let cell = mean_and_deviation(&differences, table.seeds.len());
            match cell.strip_prefix('-') {
                Some(rest) if !rest.starts_with("0.0") => format!("−{rest}"),
                Some(rest) => rest.to_owned(),
                None if cell.starts_with("0.0") || differences.is_empty() => cell,
                None => format!("+{cell}"),
            }
        });
        let baseline = &table.rows[baseline].name;
        Some(format!("Difference in AP to the row \"{baseline}\" with the same seed:\n\n{differences}"))
    }

    /// How much of the gap between the baseline and full annotation each row closes, over the seeds that all three have.
    fn closed_gap(&self, table: &Table) -> Option<String> {
        let (baseline, full) = (table.row(table.baseline.as_ref()?)?, table.row(table.full.as_ref()?)?);
        let shares = markdown(table, "", &[baseline, full], |row, column| {
            let aps = |run: &Run| {
                let [low, high] = [baseline, full].map(|row| self.ap(row, column, run.seed));
                Some([run.outcome.ap, low?, high?])
            };
            let seeds: Vec<[f64; 3]> = self.runs[row][column].iter().filter_map(aps).collect();
            let [ours, low, high] =
                [0, 1, 2].map(|n| mean(&seeds.iter().map(|aps| aps[n]).collect::<Vec<_>>()));
            match ours.zip(low).zip(high).map(|((ours, low), high)| (ours - low) / (high - low)) {
                Some(share) if share.is_finite() => {
                    format!("{} %", (100.0 * share).round() + 0.0).replace('-', "−")
                }
                _ => "–".to_owned(),
            }
        });
        let [baseline, full] = [baseline, full].map(|row| &table.rows[row].name);
        Some(format!(
            "Share of the gap in AP that is closed, (row − {baseline}) / ({full} − {baseline}):\n\n{shares}"
        ))
    }

    fn ap(&self, row: usize, column: usize, seed: u64) -> Option<f64> {
        self.runs[row][column].iter().find(|run| run.seed == seed).map(|run| run.outcome.ap)
    }
}

/// A Markdown table with an empty line after it: all rows but those left out. A cell that its row does not have is a
/// dash.
fn markdown(
    table: &Table,
    heading: &str,
    left_out: &[usize],
    content: impl Fn(usize, usize) -> String,
) -> String {
    let columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    let heading = [heading, &columns.join(" | ")].join(" | ");
    let mut text = format!("| {} |\n|---|{}\n", heading.trim_start(), "---|".repeat(columns.len()));
    for (at, row) in table.rows.iter().enumerate().filter(|(at, _)| !left_out.contains(at)) {
        let cell = |column| if table.has(at, column) { content(at, column) } else { "–".to_owned() };
        let cells: Vec<String> = (0..columns.len()).map(cell).collect();
        let _ = writeln!(text, "| {} | {} |", row.name, cells.join(" | "));
    }
    text + "\n"
}

/// `None` of no numbers.
pub(crate) fn mean(numbers: &[f64]) -> Option<f64> {
    (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
}

/// The sample standard deviation (n − 1); 0 of a single number.
fn deviation(numbers: &[f64]) -> f64 {
    let Some(mean) = mean(numbers).filter(|_| numbers.len() > 1) else { return 0.0 };
    let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
    (squares / (numbers.len() - 1) as f64).sqrt()
}

/// `21.3 ± 0.4` in percent, with the number of seeds where some are missing.
pub(crate) fn mean_and_deviation(numbers: &[f64], seeds: usize) -> String {
    let Some(mean) = mean(numbers) else { return NOT_RUN.into() };
    let n = numbers.len();
    let mut cell = format!("{:.1}", 100.0 * mean);
    if n > 1 {
        let _ = write!(cell, " ± {:.1}", 100.0 * deviation(numbers));
    }
    if n < seeds {
        let _ = write!(cell, " ({n})");
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_mean_deviation_and_the_number_of_seeds_if_some_are_missing() {
        assert_eq!(mean_and_deviation(&[], 3), "not run");
        assert_eq!(mean_and_deviation(&[0.25], 3), "25.0 (1)");
        assert_eq!(mean_and_deviation(&[0.2, 0.3], 3), "25.0 ± 7.1 (2)");
        assert_eq!(mean_and_deviation(&[0.2, 0.3, 0.25], 3), "25.0 ± 5.0");
    }

    #[test]
    fn the_gap_is_that_between_the_baseline_and_full_annotation() {
        let text = r#"
            title = "T"
            about = "A"
            paper = "its Table 1"
            seeds = [0, 1]
            preset = "preset.toml"
            baseline = "base"
            full = "full"
            data = { train = "a", test = "b", images = "c" }
            columns = [{ name = "FCOS", config = "fcos.toml" }]
            [[rows]]
            name = "full"
            method = { name = "supervised" }
            paper = ["42.5"]
            [[rows]]
            name = "base"
            method = { name = "supervised" }
            [[rows]]
            name = "ours"
            method = { name = "calibrated" }
        "#;
        let table: Table = toml::from_str(text).expect("a table");
        let mut results = Results::new(&table);
        for (row, seed, ap) in [(0, 0, 0.5), (1, 0, 0.25), (1, 1, 0.35), (2, 1, 0.5), (2, 0, 0.2)] {
            let outcome = Outcome { ap, ap50: 0.5, cost: None };
            results.add(Cell { row, column: 0, seed }, Run { folder: PathBuf::new(), seed, outcome });
        }
        let Page { text, figures } = results.page(&table, "name").expect("it reads nothing");
        assert!(text.contains("| full | 50.0 (1) / 42.5 |"), "{text}");
        assert!(text.contains("| full | +25.0 (1) |"), "{text}");
        assert!(text.contains("| ours | +5.0 ± 14.1 |"), "{text}");
        // Over the seed that all three have.
        assert!(text.contains("| ours | −20 % |"), "{text}");
        assert!(text.contains("(figures/name-ap.svg)") && figures[0].0 == "name-ap.svg", "{text}");
    }
}
