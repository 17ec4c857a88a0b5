//! Charts have the marks that their data asks for, and are sound whatever the data is.

use lacuna_report::{
    Bin, Figure, Mark, Role, Scale, Series, Spread, comparison, histograms, line_chart, reliability_diagram,
};
use proptest::prelude::*;

const SCALES: [Scale; 5] = [Scale::Fitted, Scale::FromZero, Scale::Unit, Scale::Percent, Scale::Log];

fn series(name: &str, values: &[f64]) -> Series {
    let points = values.iter().enumerate().map(|(i, &value)| (50.0 * (i + 1) as f64, value));
    Series { name: name.into(), points: points.collect() }
}

fn dots(figure: &Figure, n: usize) -> usize {
    figure
        .marks()
        .iter()
        .filter(|mark| matches!(mark, Mark::Dot { role, .. } if *role == Role::Series(n)))
        .count()
}

/// The number of points of each line of a series, without its sample in the legend.
fn lines(figure: &Figure, n: usize, legend: bool) -> Vec<usize> {
    let lines = figure.marks().iter().filter_map(|mark| match mark {
        Mark::Line { role, points } if *role == Role::Series(n) => Some(points.len()),
        _ => None,
    });
    lines.skip(usize::from(legend)).collect()
}

fn rectangles(figure: &Figure) -> usize {
    figure.marks().iter().filter(|mark| matches!(mark, Mark::Rectangle { .. })).count()
}

fn texts(figure: &Figure) -> Vec<&str> {
    let texts = figure.marks().iter().filter_map(|mark| match mark {
        Mark::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// Sound XML without any value that is not a number, every mark within the view box.
fn check(figure: &Figure) {
    let svg = figure.to_svg();
    let document = roxmltree::Document::parse(&svg).expect("sound XML");
    let elements = document.descendants().filter(roxmltree::Node::is_element);
    for attribute in elements.flat_map(|node| node.attributes().collect::<Vec<_>>()) {
        let value = attribute.value();
        assert!(!value.contains("NaN") && !value.contains("inf"), "{value}");
    }
    let (width, height) = figure.size();
    for mark in figure.marks() {
        let places = match mark {
            Mark::Line { points, .. } | Mark::Area { points, .. } => points.clone(),
            Mark::Rectangle { corners, .. } => corners.to_vec(),
            Mark::Dot { center: at, .. } | Mark::Text { at, .. } => vec![*at],
        };
        for at in places {
            // A unit in the last place of the sides may be lost on the way.
            assert!(
                (-0.01..=width + 0.01).contains(&at.x) && (-0.01..=height + 0.01).contains(&at.y),
                "{mark:?}"
            );
        }
    }
}

#[test]
fn a_value_that_is_missing_is_a_gap() {
    let mut values = vec![1.0; 40];
    values[10] = f64::NAN;
    values[20] = f64::INFINITY;
    let figure =
        line_chart("Loss", "loss", Scale::FromZero, &[series("a", &values), series("b", &[2.0; 30])]);
    assert_eq!(lines(&figure, 0, true), [10, 9, 19]);
    assert_eq!(lines(&figure, 1, true), [30]);
    assert_eq!((dots(&figure, 0), dots(&figure, 1)), (0, 0));
    check(&figure);
}

#[test]
fn few_points_are_marked_and_one_alone_is_seen() {
    let figure = line_chart("AP", "AP", Scale::FromZero, &[series("student", &[0.1, 0.2, 0.3])]);
    assert_eq!((dots(&figure, 0), lines(&figure, 0, false)), (3, vec![3]));
    let figure = line_chart("AP", "AP", Scale::FromZero, &[series("student", &[0.1])]);
    assert_eq!((dots(&figure, 0), lines(&figure, 0, false)), (1, vec![]));
    // Also between gaps of a long series.
    let mut values = vec![1.0; 60];
    (values[29], values[31]) = (f64::NAN, f64::NAN);
    let figure = line_chart("Loss", "loss", Scale::Log, &[series("total", &values)]);
    assert_eq!((dots(&figure, 0), lines(&figure, 0, false)), (1, vec![29, 28]));
}

#[test]
fn a_logarithm_leaves_out_what_it_does_not_have() {
    let figure = line_chart("Loss", "loss", Scale::Log, &[series("total", &[1.0, 0.0, -1.0, 2.0])]);
    assert_eq!((dots(&figure, 0), lines(&figure, 0, false)), (2, vec![]));
}

#[test]
fn each_bin_with_detections_has_a_point_and_a_bar() {
    let bin = |low: f64, count: u64| Bin {
        low,
        high: low + 0.1,
        count,
        right: count / 2,
        confidence: count as f64 * (low + 0.05),
    };
    let before = [bin(0.5, 10), bin(0.6, 0), bin(0.7, 30), bin(0.8, 20)];
    let after = [bin(0.4, 8)];
    let figure = reliability_diagram("Late", &[("before", &before), ("after", &after), ("none", &[])]);
    assert_eq!((dots(&figure, 0), dots(&figure, 1), rectangles(&figure)), (3, 1, 4));
    assert_eq!(lines(&figure, 0, true), [2]);
    let areas = figure.marks().iter().filter(|mark| matches!(mark, Mark::Area { .. })).count();
    assert_eq!(areas, 1);
    // |0.5 - 0.55|, |0.5 - 0.75| and |0.5 - 0.85|, by 10, 30 and 20 of 60.
    assert!(texts(&figure).contains(&"before: error 0.250"), "{:?}", texts(&figure));
    assert!(texts(&figure).contains(&"after: error 0.050") && texts(&figure).contains(&"none: none"));
    check(&figure);
}

#[test]
fn each_count_has_a_bar_in_its_panel() {
    let panels: [(&str, &[f64]); 4] =
        [("early", &[1.0, 0.0, 3.0]), ("middle", &[2.0; 20]), ("late", &[]), ("last", &[1200.0])];
    let figure = histograms("Scores", &panels);
    assert_eq!(rectangles(&figure), 2 + 20 + 1);
    for text in ["early", "middle", "late", "last", "n = 4", "n = 40", "n = 0", "n = 1,200"] {
        assert!(texts(&figure).contains(&text), "{text}");
    }
    check(&figure);
}

#[test]
fn nothing_is_said_to_be_nothing() {
    let nan = [series("a", &[f64::NAN])];
    let empty = Bin { low: 0.0, high: 0.1, count: 0, right: 0, confidence: 0.0 };
    for figure in [
        line_chart("Loss", "loss", Scale::Log, &[]),
        line_chart("Loss", "loss", Scale::Unit, &nan),
        line_chart("Loss", "loss", Scale::Log, &[series("a", &[0.0, -3.0])]),
        reliability_diagram("Late", &[]),
        reliability_diagram("Late", &[("before", &[empty])]),
        histograms("Scores", &[]),
        histograms("Scores", &[("early", &[0.0, 0.0]), ("late", &[])]),
    ] {
        assert!(texts(&figure).contains(&"nothing to show"));
        check(&figure);
    }
}

#[test]
fn a_long_legend_makes_a_longer_figure() {
    let many = |n: usize| (0..n).map(|i| series(&format!("number {i}"), &[1.0, 2.0])).collect::<Vec<_>>();
    let of = |n: usize| line_chart("Many", "value", Scale::Unit, &many(n));
    assert!(of(24).size().1 > of(2).size().1);
    assert!(texts(&of(24)).contains(&"number 23"));
    assert!(texts(&of(100)).contains(&"and 77 more"));
    check(&of(100));
}

#[test]
fn names_are_text_and_too_long_ones_are_cut() {
    let name = "<script>&\"'".repeat(20);
    let figure = line_chart(&name, &name, Scale::Unit, &[series(&name, &[1.0]), series("b", &[1.0])]);
    check(&figure);
    assert!(!figure.to_svg().contains("<script>"));
    assert!(texts(&figure).iter().all(|text| text.chars().count() < 70));
    assert_eq!(figure.title(), name);
}

fn value() -> impl Strategy<Value = f64> {
    prop_oneof![4 => -2.0..2.0f64, 2 => proptest::num::f64::ANY, 1 => Just(f64::NAN), 1 => Just(f64::INFINITY), 1 => Just(0.5)]
}

#[test]
fn what_was_not_measured_has_no_dot() {
    let spread = |mean: f64| Some(Spread { mean, deviation: 1.0 });
    let rows = [
        ("baseline", vec![spread(30.0), spread(35.0)]),
        ("a method with a long name", vec![None, spread(40.0)]),
    ];
    let figure = comparison("Methods", "AP", &["FCOS", "RetinaNet"], &rows);
    check(&figure);
    assert_eq!((dots(&figure, 0), dots(&figure, 1)), (1, 2));
    assert_eq!(lines(&figure, 1, true), [2, 2], "a line from less to more of each");
    assert!(texts(&figure).contains(&"a method with a long name"), "{:?}", texts(&figure));
    assert!(figure.description().contains("baseline: FCOS 30.0 ± 1.00"), "{}", figure.description());
    let nothing = comparison("Methods", "AP", &["FCOS"], &[("baseline", vec![None])]);
    check(&nothing);
    assert!(texts(&nothing).contains(&"nothing to show"));
}

proptest! {
    #[test]
    fn no_data_breaks_a_chart(
        values in prop::collection::vec(prop::collection::vec((value(), value()), 0..20), 0..9),
        counts in prop::collection::vec(prop::collection::vec(value(), 0..12), 0..8),
        bins in prop::collection::vec(
            prop::collection::vec((value(), value(), 0..4u64, any::<u64>(), value()), 0..6), 0..4
        ),
        name in any::<String>(),
    ) {
        let series: Vec<Series> =
            values.into_iter().map(|points| Series { name: name.clone(), points }).collect();
        for scale in SCALES {
            check(&line_chart(&name, &name, scale, &series));
        }
        let panels: Vec<(&str, &[f64])> = counts.iter().map(|counts| (name.as_str(), counts.as_slice())).collect();
        check(&histograms(&name, &panels));
        let bins: Vec<Vec<Bin>> = bins
            .into_iter()
            .map(|bins| {
                let bin = |(low, high, count, right, confidence)| Bin { low, high, count, right, confidence };
                bins.into_iter().map(bin).collect()
            })
            .collect();
        let bins: Vec<(&str, &[Bin])> = bins.iter().map(|bins| (name.as_str(), bins.as_slice())).collect();
        check(&reliability_diagram(&name, &bins));
    }
}

#[test]
fn pixels_are_there_at_every_scale() {
    let figure = line_chart("AP", "AP", Scale::FromZero, &[series("student", &[0.1, 0.2, 0.3])]);
    let (width, height) = figure.size();
    for scale in 1..=3 {
        let image = figure.to_image(scale);
        assert_eq!(image.size(), (width as u32 * scale, height as u32 * scale));
        assert!(image.pixels().iter().any(|&value| value < 128));
    }
    assert_eq!(figure.to_image(0), figure.to_image(1));
}
