//! The completeness of annotations: which share of the objects is annotated, estimated from what a detector finds.

use std::collections::HashSet;

use lacuna_random::{Purpose, Rng};

use crate::capped_logistic::{Bin, CappedLogistic};
use crate::logistic::{logit, logit_of};
use crate::{NoFit, Outcome, Sample};

/// An estimate of completeness, the share of the objects that are annotated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompletenessEstimate {
    /// The estimate, in `[0, 1]`.
    pub completeness: f64,
    /// The lower end of the 95 % interval (bootstrap over images).
    pub low: f64,
    /// The upper end of that interval.
    pub high: f64,
    /// The probability that one of the top 2 % of the detections is an object, by the data alone.
    pub top_probability: f64,
    /// The number of detections that the estimate is made from.
    pub detections: usize,
    /// The number of images that these detections are in.
    pub images: usize,
}

/// Estimates of completeness: for all detections, and for each group of them (a class, or a range of sizes).
#[derive(Clone, Debug, PartialEq)]
pub struct CompletenessEstimates {
    /// For all detections together.
    pub all: CompletenessEstimate,
    /// For each group; `None` if the group has no detections.
    pub groups: Vec<Option<CompletenessEstimate>>,
}

impl CompletenessEstimate {
    /// The fewest images for a reliable interval.
    pub const IMAGES_MIN: usize = 20;

    /// The least `top_probability` of a detector that is good enough for an estimate.
    pub const TOP_PROBABILITY_MIN: f64 = 0.8;

    /// The widest interval of a reliable estimate.
    const WIDTH_MAX: f64 = 0.3;

    /// Whether the estimate is reliable.
    ///
    /// If not even the top detections are mostly objects, there are two explanations for few matches with
    /// annotations, missing annotations and wrong detections, and the data cannot tell them apart.
    pub fn is_known(&self) -> bool {
        self.top_probability >= Self::TOP_PROBABILITY_MIN
            && self.images >= Self::IMAGES_MIN
            && self.high - self.low <= Self::WIDTH_MAX
    }

    /// The expected number of missing boxes if `given` boxes are annotated: `given·(1 − c)/c`.
    pub fn missing(&self, given: usize) -> f64 {
        given as f64 * (1.0 - self.completeness) / self.completeness
    }
}

/// At least this many detections near annotations, and away from them, are needed for an estimate.
const SAMPLES_MIN: usize = 20;

/// Bins of the final fit.
const BINS: usize = 128;
/// Bins of the fits that find where the background ends.
const FINE_BINS: usize = 512;
/// Bootstrap samples.
const RESAMPLES: u64 = 200;
/// The most fits in the search for the end of the background.
const ROUNDS: usize = 4;

/// Detections that are objects with a lower probability than this are background and are left out of the fit.
/// They say little about where the curve levels off, and they are so many that they would determine its shape.
const BACKGROUND: f64 = 0.2;

/// The `x = logit(score)` below which the probability of an object is less than [`BACKGROUND`].
fn background_below(fit: &CappedLogistic) -> f64 {
    (logit(BACKGROUND) - fit.b) / fit.w
}

/// Estimate completeness from the detections of each image. [`Sample::class`] is the group, `0..n_groups`.
///
/// The estimate is the height `c` at which `P(annotated | score) = c·σ(w·logit(score) + b)` levels off, fitted to the
/// detections above the background. The interval is a bootstrap over images. The fewer detections a group
/// has, the nearer its estimate is to that of all.
///
/// # Errors
/// [`NoFit::TooFew`], or [`NoFit::NotConverged`].
pub fn estimate_completeness(
    images: &[Vec<Sample>],
    n_groups: usize,
    seed: u64,
) -> Result<CompletenessEstimates, NoFit> {
    check_sample_counts(images.iter().flatten())?;
    let grouped = Grouped::new(images, n_groups);
    let once = vec![1; images.len()];
    let whole = grouped.fit(&once, None).ok_or(NoFit::NotConverged)?;
    let resampled: Vec<Fits> = (0..RESAMPLES)
        .filter_map(|at| {
            let mut rng = Rng::new(Purpose::Resample, seed, at, 0);
            let mut times = vec![0u32; images.len()];
            (0..images.len()).for_each(|_| times[rng.below(images.len())] += 1);
            grouped.fit(&times, Some(&whole.all))
        })
        .collect();
    let estimate =
        |fit: CappedLogistic, around: Option<&CappedLogistic>, resampled: Vec<f64>, points: &SortedPoints| {
            let (low, high) = interval(resampled, fit.c);
            let points = points.above(whole.x_min);
            let curve = CappedLogistic::fit_without_assumption(&bin(points, &once, BINS), around);
            let top_probability = curve.map_or(0.0, |curve| curve.top_probability);
            let images = points.iter().map(|point| point.image).collect::<HashSet<u32>>().len();
            CompletenessEstimate {
                completeness: fit.c,
                low,
                high,
                top_probability,
                detections: points.len(),
                images,
            }
        };
    let all = estimate(whole.all, None, resampled.iter().map(|fits| fits.all.c).collect(), &grouped.all);
    let group = |group: usize| {
        let resampled = resampled.iter().filter_map(|fits| Some(fits.groups[group]?.c)).collect();
        Some(estimate(whole.groups[group]?, Some(&whole.all), resampled, &grouped.groups[group]))
    };
    Ok(CompletenessEstimates { all, groups: (0..n_groups).map(group).collect() })
}

/// Check that there are [`SAMPLES_MIN`] detections near annotations and as many away from them.
///
/// # Errors
/// [`NoFit::TooFew`].
pub(crate) fn check_sample_counts<'a>(samples: impl Iterator<Item = &'a Sample>) -> Result<(), NoFit> {
    let (mut near, mut away) = (0, 0);
    for sample in samples {
        match sample.outcome {
            Outcome::Candidate => away += 1,
            Outcome::Right | Outcome::Wrong => near += 1,
        }
    }
    if near < SAMPLES_MIN || away < SAMPLES_MIN { Err(NoFit::TooFew { near, away }) } else { Ok(()) }
}

/// Fit the curve of all these detections or, with `around`, that of a class, near the curve of all classes.
pub(crate) fn fit_capped_logistic(
    samples: &[Sample],
    around: Option<&CappedLogistic>,
) -> Option<CappedLogistic> {
    let points = SortedPoints::new(samples.iter().map(|sample| Point::new(0, sample)).collect());
    let x_min = around.map_or_else(|| points.find_background(&[1], None), background_below);
    CappedLogistic::fit(&bin(points.above(x_min), &[1], BINS), around)
}

/// The curves of all detections and of each group.
struct Fits {
    /// Where the background ends.
    x_min: f64,
    all: CappedLogistic,
    groups: Vec<Option<CappedLogistic>>,
}

/// A detection.
#[derive(Clone, Copy)]
struct Point {
    image: u32,
    /// `logit(score)`.
    x: f64,
    /// Whether it is near an annotation.
    annotated: bool,
}

impl Point {
    fn new(image: usize, sample: &Sample) -> Self {
        let x = logit_of(sample.score);
        Self { image: image as u32, x, annotated: sample.outcome != Outcome::Candidate }
    }
}

/// Detections by ascending score.
struct SortedPoints {
    points: Vec<Point>,
}

impl SortedPoints {
    fn new(mut points: Vec<Point>) -> Self {
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Self { points }
    }

    fn above(&self, x_min: f64) -> &[Point] {
        &self.points[self.points.partition_point(|point| point.x < x_min)..]
    }

    /// Find where the background ends: a fixed point of fitting a curve to what is above `x_min` and taking
    /// [`background_below`] of it as the next `x_min`. The search begins at `start`.
    fn find_background(&self, times: &[u32], start: Option<&CappedLogistic>) -> f64 {
        let mut last = start.copied();
        let mut x_min = last.as_ref().map_or(f64::NEG_INFINITY, background_below);
        for _ in 0..ROUNDS {
            let bins = bin(self.above(x_min), times, FINE_BINS);
            let fit = last.map_or_else(
                || CappedLogistic::fit(&bins, None),
                |last| CappedLogistic::fit_from(&bins, &last),
            );
            let Some(fit) = fit else { break };
            let next = background_below(&fit);
            let settled = last.is_some() && (next - x_min).abs() < 0.01;
            if settled || self.above(next).len() < 10 * SAMPLES_MIN {
                break;
            }
            (last, x_min) = (Some(fit), next);
        }
        x_min
    }
}

/// Put sorted points into at most `n_bins` bins with equally many points each. Points of image `i` count
/// `times[i]` times.
fn bin(points: &[Point], times: &[u32], n_bins: usize) -> Vec<Bin> {
    let sum = |points: &[Point]| {
        let (mut x, mut count, mut annotated) = (0.0, 0.0, 0.0);
        for point in points {
            let times = f64::from(times[point.image as usize]);
            x += times * point.x;
            count += times;
            annotated += if point.annotated { times } else { 0.0 };
        }
        Bin { x: x / count, count, annotated }
    };
    let size = points.len().div_ceil(n_bins).max(1);
    points.chunks(size).map(sum).filter(|bin| bin.count > 0.0).collect()
}

/// Detections of all images, together and by group.
struct Grouped {
    all: SortedPoints,
    groups: Vec<SortedPoints>,
}

impl Grouped {
    fn new(images: &[Vec<Sample>], n_groups: usize) -> Self {
        let mut all = Vec::new();
        let mut groups = vec![Vec::new(); n_groups];
        for (image, samples) in images.iter().enumerate() {
            for sample in samples {
                let point = Point::new(image, sample);
                all.push(point);
                groups[sample.class].push(point);
            }
        }
        Self { all: SortedPoints::new(all), groups: groups.into_iter().map(SortedPoints::new).collect() }
    }

    /// Fit all curves. Image `i` counts `times[i]` times; the search for the background begins at `start`.
    fn fit(&self, times: &[u32], start: Option<&CappedLogistic>) -> Option<Fits> {
        let x_min = self.all.find_background(times, start);
        let all = CappedLogistic::fit(&bin(self.all.above(x_min), times, BINS), None)?;
        let group =
            |group: &SortedPoints| CappedLogistic::fit(&bin(group.above(x_min), times, BINS), Some(&all));
        Some(Fits { x_min, all, groups: self.groups.iter().map(group).collect() })
    }
}

/// The 2.5th and the 97.5th percentile, widened to include the estimate itself.
fn interval(mut resampled: Vec<f64>, estimate: f64) -> (f64, f64) {
    resampled.sort_by(f64::total_cmp);
    let at =
        |quantile: f64| resampled.get((quantile * (resampled.len() as f64 - 1.0)).round() as usize).copied();
    let (low, high) = (at(0.025).unwrap_or(estimate), at(0.975).unwrap_or(estimate));
    (low.min(estimate), high.max(estimate))
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::Score;

    use super::*;
    use crate::{Calibrator, CalibratorKind, GapAware, Proximity};

    /// Detections in `n` images, each with whether it is right. Class k has the completeness `completeness[k]`. A
    /// detection of score s is an object with probability `s^doubt`, and then well placed with probability
    /// `0.5 + 0.45·s`.
    fn simulate(n: u64, completeness: &[f64], doubt: f64) -> Vec<Vec<(Sample, bool)>> {
        let image = |image: u64| {
            let mut rng = Rng::new(Purpose::Resample, 7, 0, image);
            let mut detection = || {
                let (class, score) = (rng.below(completeness.len()), rng.unit());
                let (object, placed) = (rng.chance(score.powf(doubt)), rng.chance(0.5 + 0.45 * score));
                let annotated = object && rng.chance(completeness[class]);
                let outcome = match (annotated, placed) {
                    (false, _) => Outcome::Candidate,
                    (true, true) => Outcome::Right,
                    (true, false) => Outcome::Wrong,
                };
                (Sample { class, score: Score(score as f32), outcome }, object && placed)
            };
            (0..10).map(|_| detection()).collect()
        };
        (0..n).map(image).collect()
    }

    fn samples(images: &[Vec<(Sample, bool)>]) -> Vec<Vec<Sample>> {
        images.iter().map(|image| image.iter().map(|(sample, _)| *sample).collect()).collect()
    }

    #[test]
    fn completeness_is_estimated_from_detections() {
        for completeness in [0.3, 0.5, 0.7, 0.9] {
            let all = estimate_completeness(&samples(&simulate(600, &[completeness], 1.0)), 1, 0)
                .expect("there are enough")
                .all;
            assert!((all.completeness - completeness).abs() < 0.05, "{completeness}: {all:?}");
            assert!(all.low <= completeness && completeness <= all.high, "{completeness}: {all:?}");
            assert!(all.is_known(), "{completeness}: {all:?}");
        }
    }

    #[test]
    fn each_class_has_its_own_completeness_and_a_rare_one_that_of_all() {
        let mut images = samples(&simulate(1000, &[0.3, 0.8], 1.0));
        let rare = Sample { class: 2, score: Score(0.9), outcome: Outcome::Candidate };
        images[0].push(rare);
        let estimates = estimate_completeness(&images, 4, 0).expect("there are enough");
        let of_class = |class: usize| estimates.groups[class].map(|group| group.completeness);
        assert!(of_class(0).is_some_and(|completeness| (completeness - 0.3).abs() < 0.06), "{estimates:?}");
        assert!(of_class(1).is_some_and(|completeness| (completeness - 0.8).abs() < 0.06), "{estimates:?}");
        assert!(
            of_class(2).is_some_and(|completeness| (completeness - estimates.all.completeness).abs() < 0.1),
            "{estimates:?}"
        );
        assert_eq!(estimates.groups[3], None);
    }

    /// Fewer than half of this detector's top detections are objects.
    #[test]
    fn an_estimate_from_an_unsure_detector_is_not_reliable() {
        let mut images = samples(&simulate(600, &[0.5], 1.0));
        for sample in images.iter_mut().flatten() {
            sample.score.0 *= 0.4;
        }
        images.iter_mut().for_each(|image| image.retain(|sample| sample.score.0 < 0.15));
        let all = estimate_completeness(&images, 1, 0).expect("there are enough").all;
        assert!(!all.is_known(), "{all:?}");
    }

    #[test]
    fn too_few_detections_are_refused() {
        let few = samples(&simulate(3, &[0.5], 1.0));
        assert!(matches!(estimate_completeness(&few, 1, 0), Err(NoFit::TooFew { .. })));
        assert!(matches!(GapAware::fit(&few.concat()), Err(NoFit::TooFew { .. })));
        assert_eq!(estimate_completeness(&[], 1, 0), Err(NoFit::TooFew { near: 0, away: 0 }));
    }

    /// On candidates, the calibration error of Platt scaling, which is fitted without them, is many times that of
    /// the gap-aware calibrator.
    #[test]
    fn confidences_of_candidates_come_true() {
        let images = simulate(2000, &[0.5], 2.0);
        let flat: Vec<(Sample, bool)> = images.concat();
        let samples: Vec<Sample> = flat.iter().map(|(sample, _)| *sample).collect();
        let error = |kind: CalibratorKind, outcome: Option<Outcome>, proximity: Proximity| {
            let calibrator = Calibrator::fit(kind, false, &samples).expect("there are enough");
            let mut reliability = crate::Reliability::default();
            for (sample, right) in flat.iter().filter(|(of, _)| outcome.is_none_or(|o| of.outcome == o)) {
                reliability.add(calibrator.confidence(0, sample.score, proximity).0, *right);
            }
            reliability.ece().expect("there are some")
        };
        let gap_aware = error(CalibratorKind::Completeness, Some(Outcome::Candidate), Proximity::Away);
        let platt = error(CalibratorKind::Platt, Some(Outcome::Candidate), Proximity::Away);
        assert!(gap_aware < 0.03 && gap_aware * 10.0 < platt, "{gap_aware} and {platt}");
        assert!(error(CalibratorKind::Completeness, None, Proximity::Unknown) < 0.02);
    }

    #[test]
    fn the_same_detections_give_the_same_interval() {
        let images = samples(&simulate(100, &[0.5, 0.6], 1.0));
        assert_eq!(estimate_completeness(&images, 2, 3), estimate_completeness(&images, 2, 3));
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let flat = samples(&simulate(100, &[0.5, 0.6], 1.0)).concat();
        let calibrator =
            Calibrator::fit(CalibratorKind::Completeness, true, &flat).expect("there are enough");
        assert_eq!(calibrator.own_classes(), 2);
        let json = serde_json::to_string(&calibrator).expect("it can be written");
        assert_eq!(serde_json::from_str::<Calibrator>(&json).expect("it can be read"), calibrator);
        let toml = toml::to_string(&calibrator).expect("it can be written");
        assert_eq!(toml::from_str::<Calibrator>(&toml).expect("it can be read"), calibrator);
        let wrong = json.replacen("\"c\":0.", "\"c\":1.", 1);
        assert!(serde_json::from_str::<Calibrator>(&wrong).is_err());
    }
}
