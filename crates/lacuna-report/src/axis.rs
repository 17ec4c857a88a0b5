//! Axes: from values to positions between 0 and 1, with ticks at round numbers.

/// The range of the vertical axis of a line chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From the least value to the greatest.
    Fitted,
    /// From zero, or the least value when that is below it, to the greatest.
    FromZero,
    /// From 0 to 1.
    Unit,
    /// From 0 to 1, written as 0 to 100 %.
    Percent,
    /// Logarithmic; only positive values are shown.
    Log,
}

/// The range of an axis and its ticks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    low: f64,
    high: f64,
    log: bool,
    /// The positions of the ticks, from 0 to 1, with their labels.
    pub(crate) ticks: Vec<(f64, String)>,
}

/// Whether a value can be shown. Differences of larger ones could overflow.
pub(crate) fn shown(value: f64) -> bool {
    value.is_finite() && value.abs() < 1e300
}

impl Axis {
    /// An axis with about `n_ticks` ticks for those of the values that can be [`shown`].
    pub(crate) fn new(scale: Scale, values: impl Iterator<Item = f64>, n_ticks: usize) -> Self {
        let values = values.filter(|&value| shown(value) && (scale != Scale::Log || value > 0.0));
        let range = values.fold(None, |range, value| {
            let (low, high) = range.unwrap_or((value, value));
            Some((value.min(low), value.max(high)))
        });
        match (scale, range) {
            (Scale::Unit, _) => Self::linear(0.0, 1.0, n_ticks, false),
            (Scale::Percent, _) => Self::linear(0.0, 1.0, n_ticks, true),
            (Scale::Log, Some((low, high))) => Self::log(low, high, n_ticks),
            (Scale::FromZero, Some((low, high))) => {
                Self::rounded(low.min(0.0), high.max(0.0), n_ticks, false)
            }
            (Scale::Fitted, Some((low, high))) => Self::rounded(low, high, n_ticks, false),
            (Scale::Log, None) => Self::log(0.1, 1.0, n_ticks),
            (Scale::FromZero | Scale::Fitted, None) => Self::linear(0.0, 1.0, n_ticks, false),
        }
    }

    /// An axis of iterations, from 0 to the largest value exactly.
    pub(crate) fn iterations(values: impl Iterator<Item = f64>, n_ticks: usize) -> Self {
        let (low, high) = values
            .filter(|&value| shown(value))
            .fold((0.0f64, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low < high { widen(low, high) } else { (0.0, 1.0) };
        Self::linear(low, high, n_ticks, false)
    }

    /// An axis of shares, from 0 to the largest, labeled as percentages.
    pub(crate) fn shares(shares: impl Iterator<Item = f64>, n_ticks: usize) -> Self {
        let greatest = shares.filter(|&share| shown(share)).fold(0.0, f64::max);
        if greatest > 0.0 {
            Self::rounded(0.0, greatest, n_ticks, true)
        } else {
            Self::linear(0.0, 1.0, n_ticks, true)
        }
    }

    /// The same axis with unlabeled ticks.
    pub(crate) fn without_labels(&self) -> Self {
        Self { ticks: self.ticks.iter().map(|(at, _)| (*at, String::new())).collect(), ..self.clone() }
    }

    fn rounded(low: f64, high: f64, n_ticks: usize, percent: bool) -> Self {
        let (low, high) = widen(low, high);
        let step = round_step(high - low, n_ticks);
        Self::linear((low / step).floor() * step, (high / step).ceil() * step, n_ticks, percent)
    }

    fn linear(low: f64, high: f64, n_ticks: usize, percent: bool) -> Self {
        let step = round_step(high - low, n_ticks);
        // The tolerance keeps rounding from losing the last tick.
        let (first, last) = ((low / step - 1e-6).ceil(), (high / step + 1e-6).floor());
        let greatest = low.abs().max(high.abs());
        let mut ticks = Vec::new();
        let mut tick = first;
        while tick <= last && ticks.len() < 4 * n_ticks.max(2) {
            let value = tick * step;
            let label = if percent {
                format!("{} %", label(100.0 * value, 100.0 * step, 100.0 * greatest))
            } else {
                label(value, step, greatest)
            };
            ticks.push((((value - low) / (high - low)).clamp(0.0, 1.0), label));
            tick += 1.0;
        }
        Self { low, high, log: false, ticks }
    }

    /// A logarithmic axis between numbers of the form 1, 2 or 5 times a power of ten. The ticks are all of these
    /// numbers, or only the powers of ten.
    fn log(low: f64, high: f64, n_ticks: usize) -> Self {
        const TOLERANCE: f64 = 1e-9;
        let all: Vec<(i32, f64)> = (low.log10().floor() as i32..=high.log10().ceil() as i32 + 1)
            .flat_map(|power| [1.0f64, 2.0, 5.0].map(|digit| (power, digit.log10())))
            .collect();
        let place = |&(power, digit): &(i32, f64)| f64::from(power) + digit;
        let from = all.iter().rposition(|at| place(at) <= low.log10() + TOLERANCE).unwrap_or(0);
        let to = all.iter().position(|at| place(at) >= high.log10() - TOLERANCE).unwrap_or(all.len() - 1);
        let (from, to) =
            if from < to { (from, to) } else { (from.saturating_sub(1), (to + 1).min(all.len() - 1)) };
        let span = &all[from..=to];
        let (low, high) = (place(&span[0]), place(&span[span.len() - 1]));

        let powers = || span.iter().filter(|(_, digit)| *digit == 0.0);
        let chosen: Vec<&(i32, f64)> = if span.len() <= n_ticks + 2 {
            span.iter().collect()
        } else {
            powers().step_by(powers().count().div_ceil(n_ticks).max(1)).collect()
        };
        let ticks = chosen.into_iter().map(|at| {
            let value = 10f64.powf(at.1).round() * 10f64.powi(at.0);
            ((place(at) - low) / (high - low), label(value, value, value))
        });
        Self { low, high, log: true, ticks: ticks.collect() }
    }

    /// The position of a value, from 0 to 1; `None` when the axis cannot show it.
    pub(crate) fn place(&self, value: f64) -> Option<f64> {
        let there = shown(value) && (!self.log || value > 0.0);
        let value = if self.log { value.log10() } else { value };
        there.then(|| ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0))
    }
}

/// Widen a range that is empty, or empty up to rounding.
fn widen(low: f64, high: f64) -> (f64, f64) {
    let size = low.abs().max(high.abs());
    if high - low > 1e-9 * size && high - low > 1e-200 {
        (low, high)
    } else if size > 1e-190 {
        (low - 0.1 * size, high + 0.1 * size)
    } else {
        (-1.0, 1.0)
    }
}

/// The least number of the form 1, 2 or 5 times a power of ten that divides `span` into at most `n_ticks` steps.
fn round_step(span: f64, n_ticks: usize) -> f64 {
    let least = span / n_ticks.max(1) as f64;
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= least * (1.0 - 1e-9));
    step.unwrap_or(10.0) * power
}

/// The label of a tick, with as many digits as its step needs. Thousands and millions are abbreviated when
/// `greatest`, the largest magnitude on the axis, is that large.
fn label(value: f64, step: f64, greatest: f64) -> String {
    if value.abs() < step / 2.0 {
        return if greatest < 1e4 { format!("{:.*}", digits(step), 0.0) } else { "0".into() };
    }
    if greatest >= 1e9 || step < 1e-4 {
        let short = format!("{value:.2e}");
        let (mantissa, power) = short.split_once('e').unwrap_or((&short, "0"));
        let mantissa = if mantissa.contains('.') {
            mantissa.trim_end_matches('0').trim_end_matches('.')
        } else {
            mantissa
        };
        return format!("{mantissa}e{power}");
    }
    let (unit, letter) = match greatest {
        1e6.. => (1e6, "M"),
        1e4.. => (1e3, "k"),
        _ => (1.0, ""),
    };
    format!("{:.*}{letter}", digits(step / unit), value / unit)
}

/// The number of decimals that multiples of a step need.
fn digits(step: f64) -> usize {
    (-(step * 1.000_001).log10().floor()).clamp(0.0, 6.0) as usize
}

/// A count with thousands separators.
pub(crate) fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        let axis = |scale, values: &[f64]| Axis::new(scale, values.iter().copied(), 5);
        assert_eq!(labels(&axis(Scale::FromZero, &[0.31, 0.07])), ["0.0", "0.1", "0.2", "0.3", "0.4"]);
        assert_eq!(labels(&axis(Scale::Fitted, &[-1.3, 2.0])), ["-2", "-1", "0", "1", "2"]);
        assert_eq!(labels(&axis(Scale::Percent, &[])), ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]);
        assert_eq!(labels(&axis(Scale::Log, &[0.3, 4.0])), ["0.2", "0.5", "1", "2", "5"]);
        assert_eq!(labels(&axis(Scale::Log, &[1e-6, 20.0])), ["1e-6", "0.0001", "0.01", "1"]);
        assert_eq!(labels(&axis(Scale::Fitted, &[3.0, 3.0])), ["2.6", "2.8", "3.0", "3.2", "3.4"]);
        let iterations = Axis::iterations([50.0, 180_000.0].into_iter(), 5);
        assert_eq!(labels(&iterations), ["0", "50k", "100k", "150k"]);
        assert_eq!(
            labels(&Axis::iterations([0.0, 2000.0].into_iter(), 4)),
            ["0", "500", "1000", "1500", "2000"]
        );
    }

    #[test]
    fn counts_have_thousands_separators() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }

    proptest! {
        #[test]
        fn every_value_has_a_place_and_every_tick(
            values in prop::collection::vec(proptest::num::f64::ANY, 0..6), n_ticks in 1..9usize
        ) {
            for scale in [Scale::Fitted, Scale::FromZero, Scale::Unit, Scale::Percent, Scale::Log] {
                let axis = Axis::new(scale, values.iter().copied(), n_ticks);
                for &value in &values {
                    let there = shown(value) && (scale != Scale::Log || value > 0.0);
                    prop_assert_eq!(axis.place(value).is_some(), there);
                    prop_assert!(axis.place(value).is_none_or(|at| (0.0..=1.0).contains(&at)));
                }
                for (at, label) in &axis.ticks {
                    prop_assert!((-1e-6..=1.0 + 1e-6).contains(at), "{at} {label}");
                    prop_assert!(!label.contains("NaN") && !label.contains("inf"), "{label}");
                }
            }
        }
    }
}
