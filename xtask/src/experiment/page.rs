//! A table as people read it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use lacuna_report::{Figure, Spread, comparison};

use super::ledger::{Cost, Outcome};
use super::table::{Show, Table};
use super::{calibration, completion};

/// A run that has come to its end.
#[derive(Clone, Debug)]
pub struct Run {
    pub folder: PathBuf,
    pub seed: u64,
    pub outcome: Outcome,
}

/// The runs of each cell.
pub struct Results {
    /// Of each row and column, a seed each.
    cells: Vec<Vec<Vec<Run>>>,
}

/// A page of Markdown, and the figures in it by their names.
pub struct Page {
    pub text: String,
    pub figures: Vec<(String, Figure)>,
}

impl Results {
    pub fn new(table: &Table) -> Self {
        Self { cells: vec![vec![Vec::new(); table.columns.len()]; table.rows.len()] }
    }

    pub fn add(&mut self, row: usize, column: usize, run: Run) {
        self.cells[row][column].push(run);
    }

    pub fn page(&self, table: &Table, name: &str) -> anyhow::Result<Page> {
        let mut text = format!("# {}\n\n{}\n\n", table.title, table.about.trim());
        let _ = writeln!(
            text,
            "```\ncargo xtask experiment {name}\n```\n\nMean ± standard deviation over the seeds, in per cent; in \
             brackets the number of seeds where it is not {}.\n",
            table.seeds.len(),
        );
        let mut figures = Vec::new();
        for show in &table.show {
            let (section, of_section) = match show {
                Show::Precision => self.precision(table),
                Show::Cost => (self.cost(table), Vec::new()),
                Show::Calibration => calibration::section(table, &self.cells)?,
                Show::Completion => completion::section(table, &self.cells)?,
            };
            text += &section;
            for (of, figure) in of_section {
                let _ = writeln!(text, "![{}](figures/{name}-{of}.svg)\n", figure.title());
                figures.push((format!("{name}-{of}.svg"), figure));
            }
        }
        Ok(Page { text: text.trim_end().to_owned() + "\n", figures })
    }

    fn figures(&self, row: usize, column: usize, figure: fn(&Outcome) -> f64) -> Vec<f64> {
        self.cells[row][column].iter().map(|run| figure(&run.outcome)).collect()
    }

    fn precision(&self, table: &Table) -> (String, Vec<(String, Figure)>) {
        let mut text = String::new();
        let seeds = table.seeds.len();
        for (heading, figure) in [("AP", figure_of_ap as fn(&Outcome) -> f64), ("AP50", figure_of_ap50)] {
            let with_paper = heading == "AP" && table.rows.iter().any(|row| !row.paper.is_empty());
            if with_paper {
                let _ = writeln!(text, "After the stroke the paper's figure ({}).\n", table.paper);
            }
            text += &markdown(table, heading, &[], |row, column| {
                let paper = table.rows[row].paper.get(column).filter(|_| with_paper);
                cell(&self.figures(row, column, figure), seeds)
                    + &paper.map_or(String::new(), |paper| format!(" / {paper}"))
            });
        }
        text.extend([self.differences(table), self.gap(table)].into_iter().flatten());

        let columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
        let spread = |row: usize, column: usize| {
            let figures = self.figures(row, column, figure_of_ap);
            let spread = Spread { mean: 100.0 * mean(&figures)?, deviation: 100.0 * deviation(&figures) };
            Some(spread)
        };
        let rows: Vec<(&str, Vec<Option<Spread>>)> = table
            .rows
            .iter()
            .enumerate()
            .map(|(row, of_row)| {
                (of_row.name.as_str(), (0..columns.len()).map(|column| spread(row, column)).collect())
            })
            .collect();
        (text, vec![("ap".to_owned(), comparison(&table.title, "AP", &columns, &rows))])
    }

    /// The processor time of an iteration, of the runs of which it was noted, on the instruction set that most ran on.
    fn cost(&self, table: &Table) -> String {
        let costs =
            |runs: &[Run]| -> Vec<Cost> { runs.iter().filter_map(|run| run.outcome.cost.clone()).collect() };
        let mut runs_on = BTreeMap::<String, usize>::new();
        for cost in self.cells.iter().flatten().flat_map(|runs| costs(runs)) {
            *runs_on.entry(cost.instructions).or_default() += 1;
        }
        let Some((most, _)) = runs_on.into_iter().max_by_key(|(_, runs)| *runs) else { return String::new() };
        let seconds = markdown(table, "", &[], |row, column| {
            let costs = costs(&self.cells[row][column]).into_iter().filter(|cost| cost.instructions == most);
            let seconds: Vec<f64> = costs.map(|cost| cost.seconds).collect();
            mean(&seconds).map_or("–".to_owned(), |seconds| format!("{seconds:.2}"))
        });
        format!("Seconds of one core ({most}) that an iteration took, means over the seeds:\n\n{seconds}")
    }

    /// What each row has more than the baseline. A seed gives most rows of a column the same start, the same gaps and the
    /// same views, so that a difference varies less than what it is of.
    fn differences(&self, table: &Table) -> Option<String> {
        let baseline = table.row(table.baseline.as_ref()?)?;
        let differences = markdown(table, "", &[baseline], |row, column| {
            let of_seed = |run: &Run| {
                let of_baseline = self.cells[baseline][column].iter().find(|other| other.seed == run.seed)?;
                Some(run.outcome.ap - of_baseline.outcome.ap)
            };
            let differences: Vec<f64> = self.cells[row][column].iter().filter_map(of_seed).collect();
            let cell = cell(&differences, table.seeds.len());
            match cell.strip_prefix('-') {
                Some(rest) if !rest.starts_with("0.0") => format!("−{rest}"),
                Some(rest) => rest.to_owned(),
                None if cell.starts_with("0.0") || differences.is_empty() => cell,
                None => format!("+{cell}"),
            }
        });
        Some(format!("AP less that of {} with the same seed:\n\n{differences}", table.rows[baseline].name))
    }

    /// How much of the gap between the baseline and full annotation each row closes.
    fn gap(&self, table: &Table) -> Option<String> {
        let (baseline, full) = (table.row(table.baseline.as_ref()?)?, table.row(table.full.as_ref()?)?);
        let shares = markdown(table, "", &[baseline, full], |row, column| {
            // Of the seeds that all three have.
            let ap_of = |row: usize, seed: u64| {
                self.cells[row][column].iter().find(|run| run.seed == seed).map(|run| run.outcome.ap)
            };
            let of_seed =
                |run: &Run| Some([run.outcome.ap, ap_of(baseline, run.seed)?, ap_of(full, run.seed)?]);
            let seeds: Vec<[f64; 3]> = self.cells[row][column].iter().filter_map(of_seed).collect();
            let [ours, low, high] =
                [0, 1, 2].map(|n| mean(&seeds.iter().map(|of| of[n]).collect::<Vec<_>>()));
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
}

/// All rows but those left out, a column for each of the table's, and an empty line. What a row does not have is a dash.
fn markdown(
    table: &Table,
    heading: &str,
    left_out: &[usize],
    cell: impl Fn(usize, usize) -> String,
) -> String {
    let columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    let heading = [heading, &columns.join(" | ")].join(" | ");
    let mut text = format!("| {} |\n|---|{}\n", heading.trim_start(), "---|".repeat(columns.len()));
    for (row, of_row) in table.rows.iter().enumerate().filter(|(row, _)| !left_out.contains(row)) {
        let cell = |column| if table.has(row, column) { cell(row, column) } else { "–".to_owned() };
        let cells: Vec<String> = (0..columns.len()).map(cell).collect();
        let _ = writeln!(text, "| {} | {} |", of_row.name, cells.join(" | "));
    }
    text + "\n"
}

fn figure_of_ap(outcome: &Outcome) -> f64 {
    outcome.ap
}

fn figure_of_ap50(outcome: &Outcome) -> f64 {
    outcome.ap50
}

pub fn mean(figures: &[f64]) -> Option<f64> {
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

/// The standard deviation of what the figures are a sample of; zero of one alone.
fn deviation(figures: &[f64]) -> f64 {
    let Some(mean) = mean(figures).filter(|_| figures.len() > 1) else { return 0.0 };
    let squares: f64 = figures.iter().map(|figure| (figure - mean).powi(2)).sum();
    (squares / (figures.len() - 1) as f64).sqrt()
}

/// `21.3 ± 0.4`, with the number of seeds where some are missing.
pub fn cell(figures: &[f64], seeds: usize) -> String {
    let Some(mean) = mean(figures) else { return "not run".into() };
    let n = figures.len();
    let mut cell = format!("{:.1}", 100.0 * mean);
    if n > 1 {
        let _ = write!(cell, " ± {:.1}", 100.0 * deviation(figures));
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
    fn cells_have_mean_and_deviation_and_say_what_was_not_run() {
        assert_eq!(cell(&[], 3), "not run");
        assert_eq!(cell(&[0.25], 3), "25.0 (1)");
        assert_eq!(cell(&[0.2, 0.3], 3), "25.0 ± 7.1 (2)");
        assert_eq!(cell(&[0.2, 0.3, 0.25], 3), "25.0 ± 5.0");
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
            results.add(row, 0, Run { folder: PathBuf::new(), seed, outcome });
        }
        let Page { text, figures } = results.page(&table, "name").expect("it reads nothing");
        assert!(text.contains("| full | 50.0 (1) / 42.5 |"), "{text}");
        assert!(text.contains("| full | +25.0 (1) |"), "{text}");
        assert!(text.contains("| ours | +5.0 ± 14.1 |"), "{text}");
        // By the seed that all three have.
        assert!(text.contains("| ours | −20 % |"), "{text}");
        assert!(text.contains("(figures/name-ap.svg)") && figures[0].0 == "name-ap.svg", "{text}");
    }
}
