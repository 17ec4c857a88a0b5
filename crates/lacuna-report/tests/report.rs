//! The report is one well-formed page that loads nothing.

use std::collections::HashSet;

use lacuna_report::{Bin, ClassCompletion, Curves, Picture, Report, RunResult, Series, TrainingStage};
use proptest::prelude::*;

const NASTY: &str = "<b>\"cat\" & 'dog'</b>\u{1}";

fn full(text: &str, value: f64) -> Report {
    let series = || vec![Series { name: text.into(), points: vec![(50.0, value), (100.0, 0.5)] }];
    let bins = vec![Bin { low: 0.8, high: 0.9, count: 4, right: 3, confidence: 4.0 * value }];
    let picture = |jpeg: &[u8]| Picture { jpeg: jpeg.to_vec(), caption: text.into() };
    Report {
        name: text.into(),
        method: text.into(),
        detector: text.into(),
        iterations_done: 1500,
        iterations: 2000,
        results: vec![RunResult { model: text.into(), ap: Some(value), ap50: Some(0.5), ap75: None }],
        facts: vec![text.into()],
        curves: Curves {
            losses: series(),
            average_precision: series(),
            boxes_per_image: series(),
            pseudo_labels: series(),
            calibrator: series(),
            calibration_error: series(),
            threshold: series(),
        },
        stages: vec![
            TrainingStage {
                name: text.into(),
                iterations: (1, 100),
                before: bins.clone(),
                after: bins,
                scores: vec![value, 2.0],
            };
            3
        ],
        most_confident: vec![picture(b"\xff\xd8\xff")],
        least_confident: vec![picture(b"Man"), picture(b"M")],
        completion: vec![
            ClassCompletion { class: text.into(), given: 1200, recovered: 30, confidence: Some(0.8) },
            ClassCompletion { class: "other".into(), given: 0, recovered: 10, confidence: Some(0.6) },
        ],
        config: Some(format!("{text}\n[train]\n")),
    }
}

/// The page is written so that it is XML too; what a browser would mend is refused here.
fn check(html: &str) {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(html, options).expect("sound XML");
    let mut ids = HashSet::new();
    for node in document.descendants().filter(roxmltree::Node::is_element) {
        assert!(!["script", "link", "iframe", "object"].contains(&node.tag_name().name()));
        for attribute in node.attributes() {
            let (name, value) = (attribute.name(), attribute.value());
            assert!(!value.contains("NaN") && !name.starts_with("on"), "{name}={value}");
            match name {
                "id" => assert!(ids.insert(value), "{value} twice"),
                "src" => assert!(value.starts_with("data:image/jpeg;base64,")),
                _ => {}
            }
        }
    }
    for node in document.descendants() {
        if let Some(to) = node.attribute("href") {
            assert!(to.strip_prefix('#').is_some_and(|id| ids.contains(id)), "{to}");
        }
        let named = node.attribute("aria-labelledby").unwrap_or("");
        assert!(named.split_whitespace().all(|id| ids.contains(id)), "{named}");
        assert!(node.tag_name().name() != "img" || node.attribute("alt").is_some_and(|alt| !alt.is_empty()));
    }
}

#[test]
fn everything_is_in_the_page_in_its_order() {
    let html = full("street", 0.9).to_html();
    check(&html);
    let parts = [
        "<h1>street</h1>",
        "1,500 of 2,000",
        "<td>90.0</td><td>50.0</td><td>–</td>",
        "<li>street</li>",
        "Losses",
        "Average precision</title>",
        "Boxes per image",
        "Pseudo labels",
        "Calibrator",
        "Calibration error",
        "Threshold",
        "street: iterations 1 to 100",
        "Raw scores",
        "Most confident first",
        "data:image/jpeg;base64,/9j/\"",
        "Least confident first",
        "data:image/jpeg;base64,TWFu\"",
        "data:image/jpeg;base64,TQ==\"",
        "<td>1,200</td><td>30</td><td>80.0</td>",
        "<th scope=\"row\">All</th><td>1,200</td><td>40</td><td>75.0</td>",
        "<details>",
        "[train]",
    ];
    let mut rest = html.as_str();
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part} is not there, or before its place"));
        rest = &rest[at + part.len()..];
    }
    assert_eq!(html.matches("<svg").count(), 7 + 3 + 1);
}

#[test]
fn nothing_is_loaded() {
    let html = full("street", 0.9).to_html();
    assert!(!html.contains("http") && !html.contains("url(") && !html.contains("@import"));
    assert!(!html.contains("<script"));
}

#[test]
fn text_from_outside_stays_text() {
    let html = full(NASTY, 0.9).to_html();
    check(&html);
    assert!(!html.contains("<b>") && !html.contains('\u{1}'));
    assert!(html.contains("&lt;b&gt;&quot;cat&quot; &amp; &#39;dog&#39;&lt;/b&gt;\u{fffd}"));
}

#[test]
fn what_is_empty_is_left_out() {
    let html = Report { name: "new".into(), iterations: 100, ..Report::default() }.to_html();
    check(&html);
    assert!(html.contains("0 of 100") && html.contains("Nothing has been recorded"));
    for tag in ["<section", "<svg", "<img", "<table", "<details", "<nav", "<ul"] {
        assert!(!html.contains(tag), "{tag}");
    }
    let only = Report { completion: full("a", 0.5).completion, ..Report::default() }.to_html();
    check(&only);
    assert_eq!(only.matches("<section").count(), 1);
}

proptest! {
    #[test]
    fn no_value_and_no_text_breaks_the_page(text in any::<String>(), value in proptest::num::f64::ANY) {
        check(&full(&text, value).to_html());
    }
}
