//! How much of a data set is annotated, as it is told to people and to machines.

use lacuna_calib::{CompletenessEstimate, CompletenessEstimates, NoFit, Sample, estimate_completeness};
use lacuna_data::Dataset;
use lacuna_gaps::{JudgedDetection, samples};
use serde_json::{Map, Value, json};

use crate::commands::class_keys;
use crate::table::thousands;

/// COCO's sizes: areas below 32² pixels, below 96², and from there on.
const SIZES: [&str; 3] = ["small", "medium", "large"];

/// Estimates of the share of the objects that are annotated.
pub struct Gaps {
    of_classes: CompletenessEstimates,
    of_sizes: CompletenessEstimates,
}

impl Gaps {
    /// From detections that were compared with the annotations.
    ///
    /// # Errors
    /// [`NoFit::TooFew`].
    pub fn estimate(dataset: &Dataset, seen: &[Vec<JudgedDetection>], score_min: f32) -> Result<Self, NoFit> {
        let of_size = |seen: &JudgedDetection| {
            let bbox = seen.detection.bbox;
            let size = match bbox.width() * bbox.height() {
                area if area < 32.0 * 32.0 => 0,
                area if area < 96.0 * 96.0 => 1,
                _ => 2,
            };
            Some(Sample { class: size, ..seen.sample()? })
        };
        let by_size: Vec<Vec<Sample>> = seen
            .iter()
            .map(|seen| {
                seen.iter().filter(|seen| seen.detection.score.0 > score_min).filter_map(of_size).collect()
            })
            .collect();
        Ok(Self {
            of_classes: estimate_completeness(&samples(seen, score_min), dataset.categories().len(), 0)?,
            of_sizes: estimate_completeness(&by_size, SIZES.len(), 0)?,
        })
    }

    pub fn all(&self) -> &CompletenessEstimate {
        &self.of_classes.all
    }

    /// What can be said in sentences; a line each.
    pub fn sentences(&self, dataset: &Dataset) -> Vec<String> {
        let all = self.all();
        if !all.is_known() {
            return vec![format!(
                "how much is annotated cannot be told: {}",
                if all.images < CompletenessEstimate::IMAGES_MIN {
                    format!("there are detections in {} images only", all.images)
                } else if all.top_probability < CompletenessEstimate::TOP_PROBABILITY_MIN {
                    "the detector is never sure enough, so what it finds beside the annotations may be missing \
                     there or wrong"
                        .to_owned()
                } else {
                    format!("between {} and {} of the objects", percent(all.low), percent(all.high))
                }
            )];
        }
        let given = given(dataset);
        let mut sentences = vec![format!(
            "about {} ± {} of the objects are annotated: roughly {} boxes are missing",
            percent(all.completeness),
            percent_points((all.high - all.low) / 2.0),
            rounded(all.missing(given))
        )];
        let named = |names: Vec<&str>, groups: &[Option<CompletenessEstimate>]| {
            let known = names.into_iter().zip(groups).filter_map(|(name, group)| {
                let group = group.as_ref().filter(|group| group.is_known())?;
                Some((name.to_owned(), *group))
            });
            let mut known: Vec<(String, CompletenessEstimate)> = known.collect();
            known.sort_by_key(|(_, group)| std::cmp::Reverse(group.detections));
            known.truncate(SHOWN);
            let shown = known.iter().map(|(name, group)| {
                let margin = percent_points((group.high - group.low) / 2.0);
                format!("{name} {} ± {margin}", percent(group.completeness))
            });
            shown.collect::<Vec<_>>().join(", ")
        };
        let classes = dataset.categories().iter().map(|category| category.name.as_str()).collect();
        for (what, shares) in [
            ("by class", named(classes, &self.of_classes.groups)),
            ("by size", named(SIZES.to_vec(), &self.of_sizes.groups)),
        ] {
            if !shares.is_empty() {
                sentences.push(format!("{what}: {shares}"));
            }
        }
        sentences
    }

    pub fn json(&self, dataset: &Dataset) -> Value {
        let given = given(dataset);
        let one = |share: &CompletenessEstimate| {
            json!({ "share": share.completeness, "low": share.low, "high": share.high, "known": share.is_known(),
                    "sure": share.top_probability, "detections": share.detections })
        };
        let named = |names: Vec<String>, groups: &[Option<CompletenessEstimate>]| -> Map<String, Value> {
            let groups = names.into_iter().zip(groups);
            groups.map(|(name, group)| (name, group.as_ref().map_or(Value::Null, one))).collect()
        };
        let mut result = one(self.all());
        result["missing"] = json!(self.all().missing(given));
        result["classes"] = json!(named(class_keys(dataset), &self.of_classes.groups));
        let sizes = SIZES.map(str::to_owned).to_vec();
        result["sizes"] = json!(named(sizes, &self.of_sizes.groups));
        result
    }
}

/// The estimate, or why there is none.
pub fn gaps_json(gaps: Result<&Gaps, &NoFit>, dataset: &Dataset) -> Value {
    match gaps {
        Ok(gaps) => gaps.json(dataset),
        Err(why) => json!({ "known": false, "why": why.to_string() }),
    }
}

/// How many boxes people gave.
fn given(dataset: &Dataset) -> usize {
    let annotations = dataset.annotations().iter();
    annotations.filter(|annotation| !annotation.crowd && dataset.recovered_mark(annotation).is_none()).count()
}

/// So many classes are named, those with most detections.
const SHOWN: usize = 8;

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn percent_points(share: f64) -> String {
    format!("{:.0}", (100.0 * share).max(1.0))
}

/// To three digits: nobody knows more.
fn rounded(count: f64) -> String {
    let unit = 10f64.powi(((count.max(1.0).log10().floor() as i32) - 2).max(0));
    thousands(((count / unit).round() * unit) as usize)
}
