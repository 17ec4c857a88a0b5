//! Charts: a title, a legend, axes with round ticks, and the data.

use crate::axis::{Axis, Scale, shown, thousands};
use crate::figure::{Anchor, Figure, Mark, Point, Role};

/// Narrow enough that text is legible when a phone shows the whole figure.
const WIDTH: f64 = 420.0;
const MARGIN: f64 = 16.0;
const TITLE_BASELINE: f64 = 24.0;
const LEGEND_ROW: f64 = 19.0;
/// The mean width of a letter in the usual sans-serif fonts, at the size of labels.
const LETTER: f64 = 6.4;
const TITLE_LETTER: f64 = 7.8;
/// Longer legends are cut.
const LONGEST_LEGEND: usize = 24;
/// Series with at most this many points have a dot at each.
const FEW_POINTS: usize = 15;

/// A line of values over the iterations. A value that is not finite leaves a gap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Iteration and value.
    pub points: Vec<(f64, f64)>,
}

/// The detections whose confidence (or raw score) is between `low` and `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// The lower edge.
    pub low: f64,
    /// The upper edge.
    pub high: f64,
    /// The number of detections.
    pub count: u64,
    /// How many of them are right.
    pub right: u64,
    /// The sum of their confidences.
    pub confidence: f64,
}

impl Bin {
    /// Mean confidence and precision, from 0 to 1; `None` for an empty bin.
    fn means(&self) -> Option<(f64, f64)> {
        let [confidence, precision] = [self.confidence, self.right as f64].map(|sum| sum / self.count as f64);
        (self.count > 0 && shown(confidence)).then(|| (confidence.clamp(0.0, 1.0), precision.min(1.0)))
    }
}

/// A chart of lines over the iterations. If there are few points, each has a dot.
pub fn line_chart(title: &str, y_label: &str, scale: Scale, series: &[Series]) -> Figure {
    const HEIGHT: f64 = 280.0;
    let visible = |&(x, y): &(f64, f64)| shown(x) && shown(y) && (scale != Scale::Log || y > 0.0);
    let points = || series.iter().flat_map(|series| series.points.iter().copied().filter(visible));
    if points().next().is_none() {
        return empty_figure(title, HEIGHT);
    }
    let said = series.iter().filter_map(|series| {
        let mut points = series.points.iter().filter(|point| visible(point));
        let (at, first) = points.next()?;
        Some(match points.next_back() {
            Some((_, last)) => format!("{}: from {} to {}", series.name, short(*first), short(*last)),
            None => format!("{}: {} at iteration {}", series.name, short(*first), short(*at)),
        })
    });
    let said = said.collect::<Vec<_>>().join("; ");
    let mut figure =
        Figure::new(title, &format!("Lines of {y_label} over the iterations. {said}."), (WIDTH, HEIGHT));
    let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
    let top = heading(&mut figure, title, if names.len() > 1 { &names } else { &[] });
    let bottom = figure.size().1;
    let y = Axis::new(scale, points().map(|(_, y)| y), 5);
    let x = Axis::iterations(points().map(|(x, _)| x), 5);
    let plot = Plot { left: margin_of(&y), right: WIDTH - MARGIN, top: top + 25.0, bottom: bottom - 40.0 };
    plot.frame(&mut figure, &x, &y);
    figure.text(
        Role::Text,
        Anchor::Start,
        Point::new(MARGIN, top + 11.0),
        fitting(y_label, WIDTH - 2.0 * MARGIN, LETTER),
    );
    figure.text(Role::Text, Anchor::End, Point::new(plot.right, bottom - 7.0), "iteration");

    for (n, series) in series.iter().enumerate() {
        let role = Role::Series(n);
        let few = series.points.iter().filter(|point| visible(point)).count() <= FEW_POINTS;
        for run in series.points.split(|point| !visible(point)).filter(|run| !run.is_empty()) {
            let places: Vec<Point> =
                run.iter().filter_map(|&(at, value)| Some(plot.at(x.place(at)?, y.place(value)?))).collect();
            if few || places.len() == 1 {
                for &center in &places {
                    figure.add(Mark::Dot { role, center });
                }
            }
            if places.len() > 1 {
                figure.line(role, places);
            }
        }
    }
    figure
}

/// A reliability diagram: precision against confidence, with the area to the diagonal shaded. Above the diagonal,
/// confidences are too low; below, too high. A histogram of the confidences is underneath. The legend states the
/// expected calibration error (Naeini et al., 2015), `Σ n_bin/n · |precision − mean confidence|`.
pub fn reliability_diagram(title: &str, series: &[(&str, &[Bin])]) -> Figure {
    const HEIGHT: f64 = 430.0;
    const STRIP: f64 = 64.0;
    let count = |bins: &[Bin]| {
        bins.iter().filter(|bin| bin.means().is_some()).map(|bin| bin.count as f64).sum::<f64>()
    };
    if series.iter().all(|(_, bins)| count(bins) == 0.0) {
        return empty_figure(title, HEIGHT);
    }
    let names: Vec<String> = series
        .iter()
        .map(|(name, bins)| {
            let gap = |bin: &Bin| {
                bin.means().map(|(confidence, precision)| bin.count as f64 * (precision - confidence).abs())
            };
            let error = bins.iter().filter_map(gap).sum::<f64>() / count(bins);
            if error.is_finite() { format!("{name}: error {error:.3}") } else { format!("{name}: none") }
        })
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let said = format!("Precision of detections against their confidence. {}.", names.join("; "));
    let mut figure = Figure::new(title, &said, (WIDTH, HEIGHT));
    let top = heading(&mut figure, title, &names);
    let bottom = figure.size().1;

    let share =
        |bins: &[Bin], bin: &Bin| if bin.means().is_some() { bin.count as f64 / count(bins) } else { 0.0 };
    let shares = series.iter().flat_map(|(_, bins)| bins.iter().map(move |bin| share(bins, bin)));
    let (unit, shares) = (Axis::new(Scale::Unit, [].into_iter(), 5), Axis::shares(shares, 3));
    let left = margin_of(&unit).max(margin_of(&shares));
    let strip = Plot { left, right: WIDTH - MARGIN, top: bottom - 40.0 - STRIP, bottom: bottom - 40.0 };
    let plot = Plot { left, right: WIDTH - MARGIN, top: top + 25.0, bottom: strip.top - 34.0 };
    plot.frame(&mut figure, &unit.without_labels(), &unit);
    strip.frame(&mut figure, &unit, &shares);
    figure.text(Role::Text, Anchor::Start, Point::new(MARGIN, top + 11.0), "precision");
    figure.text(Role::Text, Anchor::Start, Point::new(MARGIN, strip.top - 12.0), "share of detections");
    figure.text(Role::Text, Anchor::End, Point::new(plot.right, bottom - 7.0), "confidence");
    figure.line(Role::Reference, [plot.at(0.0, 0.0), plot.at(1.0, 1.0)]);

    for (n, (_, bins)) in series.iter().enumerate() {
        let role = Role::Series(n);
        for run in bins.split(|bin| bin.means().is_none()).filter(|run| !run.is_empty()) {
            let means: Vec<(f64, f64)> = run.iter().filter_map(Bin::means).collect();
            let curve: Vec<Point> =
                means.iter().map(|&(confidence, precision)| plot.at(confidence, precision)).collect();
            let diagonal = means.iter().rev().map(|&(confidence, _)| plot.at(confidence, confidence));
            if curve.len() > 1 {
                figure.add(Mark::Area { role, points: curve.iter().copied().chain(diagonal).collect() });
                figure.line(role, curve.iter().copied());
            }
            for center in curve {
                figure.add(Mark::Dot { role, center });
            }
        }
        for bin in bins.iter().filter(|bin| bin.means().is_some()) {
            // The bars of the series are side by side within the bin.
            let (low, high) = (bin.low.clamp(0.0, 1.0), bin.high.clamp(0.0, 1.0));
            let side = |part: usize| low + (high - low) * (0.08 + 0.84 * part as f64 / series.len() as f64);
            let Some(height) = shares.place(share(bins, bin)) else { continue };
            figure.add(Mark::Rectangle {
                role,
                corners: [strip.at(side(n), 0.0), strip.at(side(n + 1), height)],
            });
        }
    }
    figure
}

/// Histograms of scores from 0 to 1, side by side, in bins of equal width. Bars are shares of their own histogram,
/// and all histograms have the same vertical axis. At most sixty are shown.
pub fn histograms(title: &str, panels: &[(&str, &[f64])]) -> Figure {
    const COLUMNS: usize = 3;
    const MOST_PANELS: usize = 60;
    const HEAD: f64 = 70.0;
    const ROW: f64 = 190.0;
    const GAP: f64 = 30.0;
    let panels: Vec<Histogram> =
        panels.iter().take(MOST_PANELS).map(|(name, counts)| Histogram::new(name, counts)).collect();
    if panels.iter().all(|panel| panel.total == 0.0) {
        return empty_figure(title, HEAD + ROW);
    }
    let said = panels.iter().map(Histogram::in_words).collect::<Vec<_>>().join("; ");
    let height = HEAD + ROW * panels.len().div_ceil(COLUMNS) as f64;
    let mut figure = Figure::new(title, &format!("Histograms of scores. {said}."), (WIDTH, height));
    let top = heading(&mut figure, title, &[]);
    let y = Axis::shares(panels.iter().flat_map(|panel| panel.shares.iter().copied()), 4);
    let x = Axis::new(Scale::Unit, [].into_iter(), 2);
    let left = margin_of(&y);
    let columns = panels.len().min(COLUMNS);
    let width = (WIDTH - MARGIN - left - GAP * (columns - 1) as f64) / columns as f64;
    figure.text(Role::Text, Anchor::Start, Point::new(MARGIN, top + 11.0), "share of detections");
    figure.text(Role::Text, Anchor::End, Point::new(WIDTH - MARGIN, height - 7.0), "score");

    for (n, Histogram { name, total, shares }) in panels.iter().enumerate() {
        let (column, row) = (n % COLUMNS, n / COLUMNS);
        let left = left + column as f64 * (width + GAP);
        let bottom = top + ROW * (row + 1) as f64 - 15.0;
        let plot = Plot { left, right: left + width, top: bottom - ROW + 76.0, bottom };
        plot.frame(&mut figure, &x, &if column == 0 { y.clone() } else { y.without_labels() });
        let above = |up: f64| Point::new(plot.left, plot.top - up);
        figure.text(Role::Title, Anchor::Start, above(26.0), fitting(name, width + GAP, TITLE_LETTER));
        let total = if *total < 1e15 { thousands(total.round() as u64) } else { format!("{total:.1e}") };
        figure.text(Role::Text, Anchor::Start, above(10.0), format!("n = {total}"));
        for (i, &share) in shares.iter().enumerate().filter(|&(_, &share)| share > 0.0) {
            let side = |part: f64| (i as f64 + part) / shares.len() as f64;
            let Some(height) = y.place(share) else { continue };
            let corners = [plot.at(side(0.06), 0.0), plot.at(side(0.94), height)];
            figure.add(Mark::Rectangle { role: Role::Series(0), corners });
        }
    }
    figure
}

/// A mean and its standard deviation; 0 for a single value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
}

/// A dot plot that compares rows: for each series, a dot at the mean and a line of one standard deviation to each
/// side. `None` was not measured and has no dot.
pub fn comparison(
    title: &str,
    x_label: &str,
    series: &[&str],
    rows: &[(&str, Vec<Option<Spread>>)],
) -> Figure {
    const ROW: f64 = 34.0;
    /// Between the dots of one row.
    const APART: f64 = 8.0;
    let spreads = || rows.iter().flat_map(|(_, spreads)| spreads.iter().flatten());
    let ends =
        || spreads().flat_map(|spread| [spread.mean - spread.deviation, spread.mean + spread.deviation]);
    if !ends().any(shown) {
        return empty_figure(title, 90.0 + ROW * rows.len() as f64);
    }
    let said = rows.iter().map(|(name, spreads)| {
        let figures = series.iter().zip(spreads).filter_map(|(name, spread)| {
            let Spread { mean, deviation } = (*spread)?;
            Some(format!("{name} {} ± {}", short(mean), short(deviation)))
        });
        format!("{name}: {}", figures.collect::<Vec<_>>().join(", "))
    });
    let said = said.collect::<Vec<_>>().join("; ");
    let height = 110.0 + ROW * rows.len() as f64;
    let mut figure = Figure::new(title, &format!("{x_label}. {said}."), (WIDTH, height));
    let top = heading(&mut figure, title, if series.len() > 1 { series } else { &[] });
    let bottom = figure.size().1;
    let longest = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let left = (MARGIN + LETTER * longest as f64 + 8.0).min(0.56 * WIDTH);
    let plot = Plot { left, right: WIDTH - MARGIN, top: top + 4.0, bottom: bottom - 40.0 };
    let x = Axis::new(Scale::Fitted, ends(), 5);
    let row = (plot.bottom - plot.top) / rows.len() as f64;
    for (place, label) in &x.ticks {
        let at = plot.at(*place, 0.0);
        figure.line(Role::Grid, [at, plot.at(*place, 1.0)]);
        figure.text(Role::Text, Anchor::Middle, Point::new(at.x, at.y + 17.0), label.as_str());
    }
    figure.line(Role::Axis, [plot.at(0.0, 0.0), plot.at(1.0, 0.0)]);
    figure.text(Role::Text, Anchor::End, Point::new(plot.right, bottom - 7.0), x_label);
    for (n, (name, spreads)) in rows.iter().enumerate() {
        let middle = plot.top + (n as f64 + 0.5) * row;
        let name = fitting(name, left - MARGIN - 8.0, LETTER);
        figure.text(Role::Text, Anchor::End, Point::new(left - 8.0, middle + 4.0), name);
        for (nth, spread) in spreads.iter().enumerate() {
            let Some(Spread { mean, deviation }) = *spread else { continue };
            let y = middle + APART * (nth as f64 - (spreads.len() - 1) as f64 / 2.0);
            let at = |value: f64| Some(Point::new(plot.at(x.place(value)?, 0.0).x, y));
            let role = Role::Series(nth);
            figure.line(role, [at(mean - deviation), at(mean + deviation)].into_iter().flatten());
            if let Some(center) = at(mean) {
                figure.add(Mark::Dot { role, center });
            }
        }
    }
    figure
}

struct Histogram<'a> {
    name: &'a str,
    total: f64,
    /// They add up to 1, or are all 0.
    shares: Vec<f64>,
}

impl<'a> Histogram<'a> {
    /// Counts that are negative or not finite count as zero.
    fn new(name: &'a str, counts: &[f64]) -> Self {
        let counts = || counts.iter().map(|&count| if shown(count) { count.max(0.0) } else { 0.0 });
        let total: f64 = counts().sum();
        let shares = counts().map(|count| if total > 0.0 { count / total } else { 0.0 });
        Self { name, total, shares: shares.collect() }
    }

    fn in_words(&self) -> String {
        if self.total == 0.0 {
            return format!("{}: none", self.name);
        }
        let middles = (0..self.shares.len()).map(|i| (i as f64 + 0.5) / self.shares.len() as f64);
        let mean: f64 = middles.zip(&self.shares).map(|(middle, share)| middle * share).sum();
        format!("{}: mean about {mean:.2}", self.name)
    }
}

/// The figure for a chart without data.
fn empty_figure(title: &str, height: f64) -> Figure {
    const NOTHING: &str = "nothing to show";
    let mut figure = Figure::new(title, NOTHING, (WIDTH, height));
    heading(&mut figure, title, &[]);
    figure.text(Role::Text, Anchor::Middle, Point::new(WIDTH / 2.0, height / 2.0), NOTHING);
    figure
}

/// Draw the title and, if there are names, a legend. Returns the height at which it ends.
fn heading(figure: &mut Figure, title: &str, names: &[&str]) -> f64 {
    const SAMPLE: f64 = 22.0;
    let title = fitting(title, WIDTH - 2.0 * MARGIN, TITLE_LETTER);
    figure.text(Role::Title, Anchor::Start, Point::new(MARGIN, TITLE_BASELINE), title);
    let mut y = TITLE_BASELINE + 6.0;
    let mut x = f64::INFINITY;
    for (n, name) in names.iter().enumerate().take(LONGEST_LEGEND) {
        let left = names.len() - n;
        let name = if n + 1 == LONGEST_LEGEND && left > 1 { &format!("and {left} more") } else { *name };
        let name = fitting(name, WIDTH - 2.0 * MARGIN - SAMPLE - 6.0, LETTER);
        let width = SAMPLE + 6.0 + LETTER * name.chars().count() as f64;
        if x + width > WIDTH - MARGIN {
            // A second row makes the figure longer, not the plot smaller.
            if x.is_finite() {
                figure.grow(LEGEND_ROW);
            }
            (x, y) = (MARGIN, y + LEGEND_ROW);
        }
        figure.line(Role::Series(n), [Point::new(x, y - 4.0), Point::new(x + SAMPLE, y - 4.0)]);
        figure.text(Role::Text, Anchor::Start, Point::new(x + SAMPLE + 6.0, y), name);
        x += width + 16.0;
    }
    y + 10.0
}

/// Text cut to a width; two dots mark the cut.
fn fitting(text: &str, width: f64, letter: f64) -> String {
    let room = (width / letter) as usize;
    if text.chars().count() <= room {
        return text.into();
    }
    let kept: String = text.chars().take(room.saturating_sub(2)).collect();
    format!("{}..", kept.trim_end())
}

/// The left margin that the labels of a vertical axis need.
fn margin_of(axis: &Axis) -> f64 {
    let longest = axis.ticks.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0);
    MARGIN + LETTER * longest as f64 + 8.0
}

/// A number with three significant digits.
fn short(value: f64) -> String {
    let digits = if value == 0.0 { 0.0 } else { 2.0 - value.abs().log10().floor() };
    if (-6.0..=6.0).contains(&digits) {
        format!("{value:.*}", digits.max(0.0) as usize)
    } else {
        format!("{value:.2e}")
    }
}

/// The part of a figure that shows the data.
struct Plot {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Plot {
    /// The point at these positions along both axes, 0 to 1.
    fn at(&self, x: f64, y: f64) -> Point {
        Point::new(self.left + x * (self.right - self.left), self.bottom - y * (self.bottom - self.top))
    }

    /// Draw grid lines at the ticks of the vertical axis, the horizontal axis, and the labels of both.
    fn frame(&self, figure: &mut Figure, x: &Axis, y: &Axis) {
        for (place, label) in &y.ticks {
            let at = self.at(0.0, *place);
            figure.line(Role::Grid, [at, self.at(1.0, *place)]);
            if !label.is_empty() {
                figure.text(Role::Text, Anchor::End, Point::new(at.x - 8.0, at.y + 4.0), label.as_str());
            }
        }
        figure.line(Role::Axis, [self.at(0.0, 0.0), self.at(1.0, 0.0)]);
        for (place, label) in &x.ticks {
            let at = self.at(*place, 0.0);
            figure.line(Role::Axis, [at, Point::new(at.x, at.y + 4.0)]);
            if !label.is_empty() {
                figure.text(Role::Text, Anchor::Middle, Point::new(at.x, at.y + 17.0), label.as_str());
            }
        }
    }
}
