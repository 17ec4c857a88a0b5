//! How much of a data set is annotated, from what a detector finds in it.

use std::collections::HashSet;

use lacuna_random::{Purpose, Rng};

use crate::ceiling::{Bin, Ceiling};
use crate::logistic::{logit, logit_of};
use crate::{NoFit, Outcome, Sample};

/// The share of the objects that are annotated (the completeness `c`), with the interval in which 95 of 100 estimates
/// from other images like these would be.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Annotated {
    pub share: f64,
    pub low: f64,
    pub high: f64,
    /// The probability that the surest 2 % of the detections are objects, with nothing assumed.
    pub sure: f64,
    /// How many detections it is estimated from, and how many images they are of.
    pub detections: usize,
    pub images: usize,
}

/// The share of all objects, and of each group's (classes, or sizes).
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    pub all: Annotated,
    /// `None` for a group in which nothing was detected.
    pub groups: Vec<Option<Annotated>>,
}

impl Annotated {
    /// From fewer images it cannot be told how much depends on the choice of them.
    pub const IMAGES: usize = 20;

    /// The least `sure` of a detector that can tell.
    pub const SURE: f64 = 0.8;

    /// Whether the detector is sure often enough to tell. One that never is cannot: that few of its detections
    /// are annotated may be because annotations are missing, or because it is wrong.
    pub fn is_known(&self) -> bool {
        self.sure >= Self::SURE && self.images >= Self::IMAGES && self.high - self.low <= 0.3
    }

    /// So many boxes are missing beside these that are given.
    pub fn missing(&self, given: usize) -> f64 {
        given as f64 * (1.0 - self.share) / self.share
    }
}

/// Fewer detections than this near annotations, or away from them, tell nothing.
pub const LEAST: usize = 20;

const BINS: usize = 128;
const FINE_BINS: usize = 512;
const RESAMPLES: u64 = 200;
const ROUNDS: usize = 4;

/// Detections that are objects more seldom than this say little about where the curve levels off, and there are so
/// many of them that its shape would be theirs: real ones bend.
const BACKGROUND: f64 = 0.2;

/// The `x` below which detections are objects more seldom than [`BACKGROUND`].
fn background_below(fit: &Ceiling) -> f64 {
    (logit(BACKGROUND) - fit.b) / fit.w
}

/// Estimates completeness from the detections of each image. `class` of an observation is its group,
/// `0..n_groups`.
///
/// The share is where the curve of [`Ceiling`] levels off, fitted to those above the background; its interval is from
/// estimates on images drawn with replacement, as many as there are. A group's is drawn towards that of all by as much
/// as it has few detections.
///
/// # Errors
/// [`NoFit::TooFew`].
pub fn estimate(images: &[Vec<Sample>], n_groups: usize, seed: u64) -> Result<Estimate, NoFit> {
    enough(images.iter().flatten())?;
    let binned = Binned::new(images, n_groups);
    let once = vec![1; images.len()];
    let whole = binned.fit(&once, None).ok_or(NoFit::NotConverged)?;
    let resampled: Vec<Fits> = (0..RESAMPLES)
        .filter_map(|at| {
            let mut rng = Rng::new(Purpose::Resample, seed, at, 0);
            let mut times = vec![0u32; images.len()];
            (0..images.len()).for_each(|_| times[rng.below(images.len())] += 1);
            binned.fit(&times, Some(&whole.all))
        })
        .collect();
    let annotated = |fit: Ceiling, around: Option<&Ceiling>, shares: Vec<f64>, grouped: &Grouped| {
        let (low, high) = interval(shares, fit.c);
        let points = grouped.above(whole.x_min);
        let curve = Ceiling::fit_without_assumption(&bins(points, &once, BINS), around);
        let sure = curve.map_or(0.0, |curve| curve.sure);
        let images = points.iter().map(|point| point.image).collect::<HashSet<u32>>().len();
        Annotated { share: fit.c, low, high, sure, detections: points.len(), images }
    };
    let all = annotated(whole.all, None, resampled.iter().map(|fits| fits.all.c).collect(), &binned.all);
    let group = |group: usize| {
        let shares = resampled.iter().filter_map(|fits| Some(fits.groups[group]?.c)).collect();
        Some(annotated(whole.groups[group]?, Some(&whole.all), shares, &binned.groups[group]))
    };
    Ok(Estimate { all, groups: (0..n_groups).map(group).collect() })
}

/// # Errors
/// [`NoFit::TooFew`].
pub(crate) fn enough<'a>(observed: impl Iterator<Item = &'a Sample>) -> Result<(), NoFit> {
    let (mut near, mut away) = (0, 0);
    for observed in observed {
        match observed.outcome {
            Outcome::Candidate => away += 1,
            Outcome::Right | Outcome::Wrong => near += 1,
        }
    }
    if near < LEAST || away < LEAST { Err(NoFit::TooFew { near, away }) } else { Ok(()) }
}

/// The curve of all these detections, or of a class's, drawn towards that of all.
pub(crate) fn ceiling(observed: &[Sample], around: Option<&Ceiling>) -> Option<Ceiling> {
    let grouped = Grouped::new(observed.iter().map(|observed| Point::new(0, observed)).collect());
    let x_min = around.map_or_else(|| grouped.background_below(&[1], None), background_below);
    Ceiling::fit(&bins(grouped.above(x_min), &[1], BINS), around)
}

struct Fits {
    /// Where the background ends.
    x_min: f64,
    all: Ceiling,
    groups: Vec<Option<Ceiling>>,
}

/// A detection.
#[derive(Clone, Copy)]
struct Point {
    image: u32,
    x: f64,
    annotated: bool,
}

impl Point {
    fn new(image: usize, observed: &Sample) -> Self {
        let x = logit_of(observed.score);
        Self { image: image as u32, x, annotated: observed.outcome != Outcome::Candidate }
    }
}

/// Detections, the least score first.
struct Grouped {
    points: Vec<Point>,
}

impl Grouped {
    fn new(mut points: Vec<Point>) -> Self {
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Self { points }
    }

    fn above(&self, x_min: f64) -> &[Point] {
        &self.points[self.points.partition_point(|point| point.x < x_min)..]
    }

    /// Where [`background_below`] says by the curve of what is above it; the search begins at `start`.
    fn background_below(&self, times: &[u32], start: Option<&Ceiling>) -> f64 {
        let mut last = start.copied();
        let mut x_min = last.as_ref().map_or(f64::NEG_INFINITY, background_below);
        for _ in 0..ROUNDS {
            let bins = bins(self.above(x_min), times, FINE_BINS);
            let fit = last.map_or_else(|| Ceiling::fit(&bins, None), |last| Ceiling::fit_from(&bins, &last));
            let Some(fit) = fit else { break };
            let next = background_below(&fit);
            let settled = last.is_some() && (next - x_min).abs() < 0.01;
            if settled || self.above(next).len() < 10 * LEAST {
                break;
            }
            (last, x_min) = (Some(fit), next);
        }
        x_min
    }
}

/// So many bins at most, of as many detections each, when image `i` is there `times[i]` times.
fn bins(points: &[Point], times: &[u32], n_bins: usize) -> Vec<Bin> {
    let bin = |points: &[Point]| {
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
    points.chunks(size).map(bin).filter(|bin| bin.count > 0.0).collect()
}

struct Binned {
    all: Grouped,
    groups: Vec<Grouped>,
}

impl Binned {
    fn new(images: &[Vec<Sample>], n_groups: usize) -> Self {
        let mut all = Vec::new();
        let mut groups = vec![Vec::new(); n_groups];
        for (image, observed) in images.iter().enumerate() {
            for observed in observed {
                let point = Point::new(image, observed);
                all.push(point);
                groups[observed.class].push(point);
            }
        }
        Self { all: Grouped::new(all), groups: groups.into_iter().map(Grouped::new).collect() }
    }

    /// When image `i` is there `times[i]` times; the search for the background begins at `start`.
    fn fit(&self, times: &[u32], start: Option<&Ceiling>) -> Option<Fits> {
        let x_min = self.all.background_below(times, start);
        let all = Ceiling::fit(&bins(self.all.above(x_min), times, BINS), None)?;
        let group = |group: &Grouped| Ceiling::fit(&bins(group.above(x_min), times, BINS), Some(&all));
        Some(Fits { x_min, all, groups: self.groups.iter().map(group).collect() })
    }
}

/// From the 2.5th to the 97.5th of a hundred. The estimate itself is in it.
fn interval(mut shares: Vec<f64>, estimate: f64) -> (f64, f64) {
    shares.sort_by(f64::total_cmp);
    let at = |quantile: f64| shares.get((quantile * (shares.len() as f64 - 1.0)).round() as usize).copied();
    let (low, high) = (at(0.025).unwrap_or(estimate), at(0.975).unwrap_or(estimate));
    (low.min(estimate), high.max(estimate))
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::Score;

    use super::*;
    use crate::{Calibrator, CalibratorKind, Completeness, Proximity};

    /// What a detector finds in images of which a share `shares[class]` is annotated, and whether each detection
    /// is right. Of those of score s, a share of s to the power `doubt` is an object, which is well placed the more
    /// often the surer it is.
    fn images(n: u64, shares: &[f64], doubt: f64) -> Vec<Vec<(Sample, bool)>> {
        let image = |image: u64| {
            let mut rng = Rng::new(Purpose::Resample, 7, 0, image);
            let mut detection = || {
                let (class, score) = (rng.below(shares.len()), rng.unit());
                let (object, placed) = (rng.chance(score.powf(doubt)), rng.chance(0.5 + 0.45 * score));
                let annotated = object && rng.chance(shares[class]);
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

    fn observed(images: &[Vec<(Sample, bool)>]) -> Vec<Vec<Sample>> {
        images.iter().map(|image| image.iter().map(|(observed, _)| *observed).collect()).collect()
    }

    #[test]
    fn the_share_that_is_annotated_is_found() {
        for share in [0.3, 0.5, 0.7, 0.9] {
            let all = estimate(&observed(&images(600, &[share], 1.0)), 1, 0).expect("there are enough").all;
            assert!((all.share - share).abs() < 0.05, "{share}: {all:?}");
            assert!(all.low <= share && share <= all.high && all.is_known(), "{share}: {all:?}");
        }
    }

    #[test]
    fn each_class_has_its_own_share_and_a_rare_one_that_of_all() {
        let mut images = observed(&images(1000, &[0.3, 0.8], 1.0));
        let rare = Sample { class: 2, score: Score(0.9), outcome: Outcome::Candidate };
        images[0].push(rare);
        let estimate = estimate(&images, 4, 0).expect("there are enough");
        let share = |class: usize| estimate.groups[class].map(|group| group.share);
        assert!(share(0).is_some_and(|share| (share - 0.3).abs() < 0.06), "{estimate:?}");
        assert!(share(1).is_some_and(|share| (share - 0.8).abs() < 0.06), "{estimate:?}");
        assert!(share(2).is_some_and(|share| (share - estimate.all.share).abs() < 0.1), "{estimate:?}");
        assert_eq!(estimate.groups[3], None);
    }

    /// Of the surest detections of this one fewer than half are objects.
    #[test]
    fn a_detector_that_is_never_sure_cannot_tell() {
        let mut images = observed(&images(600, &[0.5], 1.0));
        for observed in images.iter_mut().flatten() {
            observed.score.0 *= 0.4;
        }
        images.iter_mut().for_each(|image| image.retain(|observed| observed.score.0 < 0.15));
        let all = estimate(&images, 1, 0).expect("there are enough").all;
        assert!(!all.is_known(), "{all:?}");
    }

    #[test]
    fn too_few_tell_nothing() {
        let few = observed(&images(3, &[0.5], 1.0));
        assert!(matches!(estimate(&few, 1, 0), Err(NoFit::TooFew { .. })));
        assert!(matches!(Completeness::fit(&few.concat()), Err(NoFit::TooFew { .. })));
        assert_eq!(estimate(&[], 1, 0), Err(NoFit::TooFew { near: 0, away: 0 }));
    }

    /// The error of Platt's calibrator on candidates, which it never saw, is many times that of the one that knows
    /// about the gaps.
    #[test]
    fn confidences_of_candidates_come_true() {
        let images = images(2000, &[0.5], 2.0);
        let flat: Vec<(Sample, bool)> = images.concat();
        let observed: Vec<Sample> = flat.iter().map(|(observed, _)| *observed).collect();
        let error = |kind: CalibratorKind, outcome: Option<Outcome>, proximity: Proximity| {
            let calibrator = Calibrator::fit(kind, false, &observed).expect("there are enough");
            let mut reliability = crate::Reliability::default();
            for (observed, right) in flat.iter().filter(|(of, _)| outcome.is_none_or(|o| of.outcome == o)) {
                reliability.add(calibrator.confidence(0, observed.score, proximity).0, *right);
            }
            reliability.ece().expect("there are some")
        };
        let knows = error(CalibratorKind::Completeness, Some(Outcome::Candidate), Proximity::Away);
        let paper = error(CalibratorKind::Platt, Some(Outcome::Candidate), Proximity::Away);
        assert!(knows < 0.03 && knows * 10.0 < paper, "{knows} and {paper}");
        assert!(error(CalibratorKind::Completeness, None, Proximity::Unknown) < 0.02);
    }

    #[test]
    fn the_same_detections_give_the_same_interval() {
        let images = observed(&images(100, &[0.5, 0.6], 1.0));
        assert_eq!(estimate(&images, 2, 3), estimate(&images, 2, 3));
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let flat = observed(&images(100, &[0.5, 0.6], 1.0)).concat();
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
