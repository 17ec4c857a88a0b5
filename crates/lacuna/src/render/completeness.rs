//! Completeness, how much of a data set is annotated, in sentences and in JSON.

use lacuna_calib::{CompletenessEstimate, NoFit};
use lacuna_data::{Dataset, SizeClass};
use lacuna_gaps::DatasetCompleteness;
use serde_json::{Map, Value, json};

use super::class_keys;
use super::number::thousands;

/// The estimate in sentences, or why there is none; a line each.
pub(crate) fn completeness_sentences(
    estimate: Result<&DatasetCompleteness, &NoFit>,
    dataset: &Dataset,
) -> Vec<String> {
    let estimate = match estimate {
        Ok(estimate) => estimate,
        Err(why) => return vec![format!("completeness cannot be told: {why}")],
    };
    let all = &estimate.all;
    if !all.is_known() {
        return vec![format!("completeness cannot be told: {}", why_unknown(all))];
    }
    let mut sentences = vec![format!(
        "about {} of the objects are annotated: roughly {} boxes are missing",
        with_margin(all),
        three_digits(estimate.missing())
    )];
    let classes = dataset.categories().iter().map(|category| category.name.as_str()).collect();
    let sizes = SizeClass::ALL.map(SizeClass::name).to_vec();
    for (what, groups) in [
        ("by class", known_groups(classes, &estimate.classes)),
        ("by size", known_groups(sizes, &estimate.sizes)),
    ] {
        if !groups.is_empty() {
            sentences.push(format!("{what}: {groups}"));
        }
    }
    sentences
}

fn why_unknown(all: &CompletenessEstimate) -> String {
    if all.images < CompletenessEstimate::IMAGES_MIN {
        format!("only {} images have detections", all.images)
    } else if all.top_probability < CompletenessEstimate::TOP_PROBABILITY_MIN {
        "the detector is never sure enough: what it finds away from annotations may be missing boxes or mistakes"
            .to_owned()
    } else {
        format!("it is between {} and {}", percent(all.low), percent(all.high))
    }
}

/// How many groups are named: those with the most detections.
const SHOWN: usize = 8;

/// `cat 48 % ± 8, dog 52 % ± 7`
fn known_groups(names: Vec<&str>, groups: &[Option<CompletenessEstimate>]) -> String {
    let known = names.into_iter().zip(groups).filter_map(|(name, group)| {
        let group = group.as_ref().filter(|group| group.is_known())?;
        Some((name, group))
    });
    let mut known: Vec<(&str, &CompletenessEstimate)> = known.collect();
    known.sort_by_key(|(_, group)| std::cmp::Reverse(group.detections));
    known.truncate(SHOWN);
    let shown = known.iter().map(|(name, group)| format!("{name} {}", with_margin(group)));
    shown.collect::<Vec<_>>().join(", ")
}

/// The estimate as JSON; `known` is false where it cannot be told.
pub(crate) fn completeness_json(estimate: Result<&DatasetCompleteness, &NoFit>, dataset: &Dataset) -> Value {
    let estimate = match estimate {
        Ok(estimate) => estimate,
        Err(why) => return json!({ "known": false, "why": why.to_string() }),
    };
    let one = |group: &CompletenessEstimate| {
        json!({ "share": group.completeness, "low": group.low, "high": group.high, "known": group.is_known(),
                "sure": group.top_probability, "detections": group.detections })
    };
    let named = |names: Vec<String>, groups: &[Option<CompletenessEstimate>]| -> Map<String, Value> {
        let groups = names.into_iter().zip(groups);
        groups.map(|(name, group)| (name, group.as_ref().map_or(Value::Null, one))).collect()
    };
    let mut result = one(&estimate.all);
    result["missing"] = json!(estimate.missing());
    result["classes"] = json!(named(class_keys(dataset), &estimate.classes));
    let sizes = SizeClass::ALL.map(|size| size.name().to_owned()).to_vec();
    result["sizes"] = json!(named(sizes, &estimate.sizes));
    result
}

/// `48 % ± 7`
fn with_margin(estimate: &CompletenessEstimate) -> String {
    let margin = (100.0 * (estimate.high - estimate.low) / 2.0).max(1.0);
    format!("{} ± {margin:.0}", percent(estimate.completeness))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Nobody knows more of the estimate than three digits.
fn three_digits(count: f64) -> String {
    let unit = 10f64.powi(((count.max(1.0).log10().floor() as i32) - 2).max(0));
    thousands(((count / unit).round() * unit) as usize)
}
