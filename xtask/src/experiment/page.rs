//! A table as people read it.

use std::fmt::Write as _;

use super::Outcome;
use super::table::Table;

/// What the runs of each cell came to.
pub struct Results {
    /// Of each row and column, a seed each.
    cells: Vec<Vec<Vec<Outcome>>>,
}

impl Results {
    pub fn new(table: &Table) -> Self {
        Self { cells: vec![vec![Vec::new(); table.columns.len()]; table.rows.len()] }
    }

    pub fn add(&mut self, row: usize, column: usize, outcome: Outcome) {
        self.cells[row][column].push(outcome);
    }

    pub fn page(&self, table: &Table, name: &str) -> String {
        let mut page = format!("# {}\n\n{}\n\n", table.title, table.about.trim());
        let _ = writeln!(
            page,
            "```\ncargo xtask experiment {name}\n```\n\nMean ± standard deviation over the seeds, in per cent; in \
             brackets the number of seeds where it is not {}, and after the stroke the paper's figure ({}).\n",
            table.seeds.len(),
            table.paper
        );
        for (heading, figure) in [("AP", figure_of_ap as fn(Outcome) -> f64), ("AP50", figure_of_ap50)] {
            let columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
            let _ = writeln!(
                page,
                "| {heading} | {} |\n|---|{}",
                columns.join(" | "),
                "---|".repeat(columns.len())
            );
            for (row, of_row) in table.rows.iter().enumerate() {
                let cell = |column: usize| {
                    let figures: Vec<f64> = self.cells[row][column].iter().copied().map(figure).collect();
                    let paper = of_row.paper.get(column).filter(|_| heading == "AP");
                    cell(&figures, table.seeds.len())
                        + &paper.map_or(String::new(), |paper| format!(" / {paper}"))
                };
                let cells: Vec<String> = (0..columns.len()).map(cell).collect();
                let _ = writeln!(page, "| {} | {} |", of_row.name, cells.join(" | "));
            }
            page.push('\n');
        }
        if let Some(gap) = self.gap(table) {
            page += &gap;
        }
        page
    }

    /// How much of the gap between the baseline and full annotation each row closes.
    fn gap(&self, table: &Table) -> Option<String> {
        let (baseline, full) = (table.row(table.baseline.as_ref()?)?, table.row(table.full.as_ref()?)?);
        let mean_of = |row: usize, column: usize| {
            let figures: Vec<f64> = self.cells[row][column].iter().copied().map(figure_of_ap).collect();
            mean(&figures)
        };
        let columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
        let mut text = format!(
            "Share of the gap in AP that is closed, (row − {}) / ({} − {}):\n\n| | {} |\n|---|{}\n",
            table.rows[baseline].name,
            table.rows[full].name,
            table.rows[baseline].name,
            columns.join(" | "),
            "---|".repeat(columns.len())
        );
        for (row, of_row) in table.rows.iter().enumerate().filter(|(row, _)| *row != baseline && *row != full)
        {
            let share = |column: usize| {
                let (low, high) = (mean_of(baseline, column)?, mean_of(full, column)?);
                Some((mean_of(row, column)? - low) / (high - low))
            };
            let cell = |column: usize| match share(column) {
                Some(share) if share.is_finite() => format!("{:.0} %", 100.0 * share),
                _ => "–".to_owned(),
            };
            let cells: Vec<String> = (0..columns.len()).map(cell).collect();
            let _ = writeln!(text, "| {} | {} |", of_row.name, cells.join(" | "));
        }
        Some(text)
    }
}

fn figure_of_ap(outcome: Outcome) -> f64 {
    outcome.ap
}

fn figure_of_ap50(outcome: Outcome) -> f64 {
    outcome.ap50
}

fn mean(figures: &[f64]) -> Option<f64> {
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

/// `21.3 ± 0.4`, with the number of seeds where some are missing.
fn cell(figures: &[f64], seeds: usize) -> String {
    let Some(mean) = mean(figures) else { return "not run".into() };
    let n = figures.len();
    let mut cell = format!("{:.1}", 100.0 * mean);
    if n > 1 {
        let squares: f64 = figures.iter().map(|figure| (figure - mean).powi(2)).sum();
        let _ = write!(cell, " ± {:.1}", 100.0 * (squares / (n - 1) as f64).sqrt());
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
            seeds = [0]
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
        for (row, ap) in [(0, 0.5), (1, 0.25), (2, 0.4)] {
            results.add(row, 0, Outcome { ap, ap50: 0.5 });
        }
        let page = results.page(&table, "name");
        assert!(page.contains("| full | 50.0 / 42.5 |"), "{page}");
        assert!(page.contains("| ours | 60 % |"), "{page}");
    }
}
