//! COCO's average precision and recall, as pycocotools computes them.

use std::array;

use lacuna_boxes::Detection;
use lacuna_data::{Annotation, Dataset};
use rayon::prelude::*;
use serde::Serialize;

use crate::ImageDetection;
use crate::image_detection::best_first;
use crate::matching::{Overlaps, Standing, Truth};

/// COCO's twelve figures, in `[0, 1]`, and the average precision of each class. `None` where there are no
/// objects (pycocotools: −1).
///
/// All figures are means over the classes. Unless one threshold is stated, they are also means over the IoU
/// thresholds 0.5, 0.55, …, 0.95. All but `ar_1` and `ar_10` consider the best 100 detections of each image and
/// class. Small objects have an area of at most 32² pixels, large ones of at least 96².
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AveragePrecision {
    /// Average precision.
    pub ap: Option<f64>,
    /// Average precision at an IoU of 0.5.
    pub ap50: Option<f64>,
    /// Average precision at an IoU of 0.75.
    pub ap75: Option<f64>,
    /// Average precision of small objects.
    pub ap_small: Option<f64>,
    /// Average precision of medium objects.
    pub ap_medium: Option<f64>,
    /// Average precision of large objects.
    pub ap_large: Option<f64>,
    /// Average recall of the best detection of each image and class.
    pub ar_1: Option<f64>,
    /// Average recall of the best 10 detections of each image and class.
    pub ar_10: Option<f64>,
    /// Average recall of the best 100 detections of each image and class.
    pub ar_100: Option<f64>,
    /// Average recall of small objects.
    pub ar_small: Option<f64>,
    /// Average recall of medium objects.
    pub ar_medium: Option<f64>,
    /// Average recall of large objects.
    pub ar_large: Option<f64>,
    /// `ap` of each class, in the order of [`Dataset::categories`].
    pub per_class: Vec<Option<f64>>,
    /// `ap50` of each class.
    pub per_class_50: Vec<Option<f64>>,
}

/// Average precision at one IoU threshold. `None` where there are no objects.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AveragePrecisionAt {
    /// The mean over the classes.
    pub ap: Option<f64>,
    /// Of each class, in the order of [`Dataset::categories`].
    pub per_class: Vec<Option<f64>>,
}

/// Compute COCO's figures as pycocotools does. Crowds and areas are those of the data set. Equal scores in one
/// image are ranked in the given order, those in different images by image id.
///
/// Differs from the reference: an annotation with the id 0 can be matched. pycocotools takes this id for "no
/// match".
///
/// # Panics
/// When an image or a class is not of the data set.
pub fn average_precision(dataset: &Dataset, detections: &[ImageDetection]) -> AveragePrecision {
    let classes = judge(dataset, detections, &coco_ious());
    let mean_over = |area: usize, figure: &dyn Fn(&[AtIou]) -> f64| {
        mean(classes.iter().filter_map(|class| class[area].as_deref()).map(figure))
    };
    let [ap, ap_small, ap_medium, ap_large] = array::from_fn(|area| mean_over(area, &mean_ap));
    let recall = |area: usize, limit: usize| {
        mean_over(area, &|at| at.iter().map(|at| at.recall[limit]).sum::<f64>() / at.len() as f64)
    };
    let [ar_1, ar_10, ar_100] = array::from_fn(|limit| recall(ALL, limit));
    let [ar_small, ar_medium, ar_large] = array::from_fn(|area| recall(area + 1, LIMITS.len() - 1));
    let per_class = |figure: &dyn Fn(&[AtIou]) -> f64| {
        classes.iter().map(|class| class[ALL].as_deref().map(figure)).collect()
    };
    AveragePrecision {
        ap,
        ap50: mean_over(ALL, &|at| at[0].ap),
        ap75: mean_over(ALL, &|at| at[5].ap),
        ap_small,
        ap_medium,
        ap_large,
        ar_1,
        ar_10,
        ar_100,
        ar_small,
        ar_medium,
        ar_large,
        per_class: per_class(&mean_ap),
        per_class_50: per_class(&|at| at[0].ap),
    }
}

/// [`average_precision`] of a model's output: `detections[i]` are those of `dataset.images()[i]`. A degenerate
/// box is always wrong.
///
/// # Panics
/// When there is not one list for each image, or a class is not of the data set.
pub fn average_precision_of_lists(dataset: &Dataset, detections: &[Vec<Detection>]) -> AveragePrecision {
    assert_eq!(detections.len(), dataset.images().len(), "lists of detections, and images");
    let of_image = |(image, detections): (usize, &Vec<Detection>)| {
        detections
            .iter()
            .map(|&detection| ImageDetection::from_detection(image, detection))
            .collect::<Vec<_>>()
    };
    average_precision(dataset, &detections.iter().enumerate().flat_map(of_image).collect::<Vec<_>>())
}

/// Average precision at one IoU threshold, as pycocotools computes it with that threshold alone in `iouThrs`.
///
/// # Panics
/// When an image or a class is not of the data set.
pub fn average_precision_at(
    dataset: &Dataset,
    detections: &[ImageDetection],
    iou_min: f64,
) -> AveragePrecisionAt {
    let classes = judge(dataset, detections, &[iou_min]);
    let per_class: Vec<Option<f64>> =
        classes.iter().map(|class| class[ALL].as_deref().map(mean_ap)).collect();
    AveragePrecisionAt { ap: mean(per_class.iter().copied().flatten()), per_class }
}

/// The thresholds 0.5, 0.55, …, 0.95, exactly as NumPy's `linspace` rounds them.
fn coco_ious() -> [f64; 10] {
    array::from_fn(|n| if n == 9 { 0.95 } else { 0.5 + n as f64 * ((0.95 - 0.5) / 9.0) })
}

/// The areas of all, small, medium and large objects, both ends included.
const AREAS: [[f64; 2]; 4] = [[0.0, 1e10], [0.0, 1024.0], [1024.0, 9216.0], [9216.0, 1e10]];
const ALL: usize = 0;
/// The numbers of best detections of each image and class that recall is computed for; precision uses the last.
const LIMITS: [usize; 3] = [1, 10, 100];

fn within(area: f64, [low, high]: [f64; 2]) -> bool {
    area >= low && area <= high
}

/// The figures of one class, area and IoU threshold.
struct AtIou {
    ap: f64,
    /// For each of [`LIMITS`].
    recall: [f64; LIMITS.len()],
}

fn mean_ap(at: &[AtIou]) -> f64 {
    at.iter().map(|at| at.ap).sum::<f64>() / at.len() as f64
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.fold((0.0, 0), |(sum, n), value| (sum + value, n + 1));
    (n > 0).then(|| sum / f64::from(n))
}

/// For each class and each range of areas, the figures at each threshold; `None` when the class has no object in
/// the range.
fn judge(
    dataset: &Dataset,
    detections: &[ImageDetection],
    ious: &[f64],
) -> Vec<[Option<Vec<AtIou>>; AREAS.len()]> {
    let n_classes = dataset.categories().len();
    assert!(
        detections.iter().all(|detection| detection.class < n_classes),
        "a class that the data set does not have"
    );
    // An IoU threshold of 1 allows for rounding, as in pycocotools.
    let ious: Vec<f64> = ious.iter().map(|iou| iou.min(1.0 - 1e-10)).collect();

    let mut by_id: Vec<usize> = (0..dataset.images().len()).collect();
    by_id.sort_unstable_by_key(|&image| dataset.images()[image].id);
    let mut rank = vec![0; by_id.len()];
    for (place, image) in by_id.into_iter().enumerate() {
        rank[image] = place;
    }
    // Ordered by class, then image id, then as given.
    let detections = sort_by_key(
        n_classes,
        sort_by_key(rank.len(), detections.iter().collect(), |d| rank[d.image]),
        |d| d.class,
    );
    let objects = dataset.annotations().iter().collect();
    let objects =
        sort_by_key(n_classes, sort_by_key(rank.len(), objects, |object| rank[object.image]), |object| {
            object.category
        });

    let of_class = |class: usize| {
        let detections = range(&detections, class, |detection| detection.class);
        let objects = range(&objects, class, |object| object.category);
        let images: Vec<&[&ImageDetection]> = detections.chunk_by(|a, b| a.image == b.image).collect();
        let judge = |detections: &&[&ImageDetection]| {
            let image = rank[detections[0].image];
            let mut detections = detections.to_vec();
            detections.sort_by(|a, b| best_first(a.score, b.score));
            judge_image(&detections, range(objects, image, |object| rank[object.image]), &ious)
        };
        let mut ranked: Vec<RankedDetection> = images.par_iter().flat_map_iter(judge).collect();
        ranked.sort_by(|a, b| best_first(a.score, b.score));
        array::from_fn(|area| {
            let objects = objects.iter().filter(|object| !object.crowd && within(object.area, AREAS[area]));
            let n_objects = objects.count();
            let at = |iou| accumulate(&ranked, area, iou, n_objects);
            (n_objects > 0).then(|| (0..ious.len()).into_par_iter().map(at).collect())
        })
    };
    (0..n_classes).into_par_iter().map(of_class).collect()
}

/// Sort by a key below `n_keys`; items with equal keys keep their order (a counting sort).
fn sort_by_key<T: Copy>(n_keys: usize, items: Vec<T>, key: impl Fn(T) -> usize) -> Vec<T> {
    let mut next = vec![0; n_keys + 1];
    for &item in &items {
        next[key(item) + 1] += 1;
    }
    for n in 0..n_keys {
        next[n + 1] += next[n];
    }
    let mut ordered = items.clone();
    for item in items {
        let place = &mut next[key(item)];
        ordered[*place] = item;
        *place += 1;
    }
    ordered
}

/// The items with this key in a list that is sorted by it.
fn range<T>(sorted: &[T], key: usize, key_of: impl Fn(&T) -> usize) -> &[T] {
    let start = sorted.partition_point(|item| key_of(item) < key);
    let rest = &sorted[start..];
    &rest[..rest.partition_point(|item| key_of(item) == key)]
}

/// A detection, judged for each range of areas and each IoU threshold.
struct RankedDetection {
    score: f64,
    /// The number of better detections of its image and class.
    better: u8,
    /// For each area, a bit for each IoU threshold.
    right: [u16; AREAS.len()],
    /// Neither right nor wrong.
    left_out: [u16; AREAS.len()],
}

/// Judge the detections of one class in one image, given by descending score, against the annotations of that
/// class.
///
/// Overlaps are computed once and matched for each range of areas and each threshold. Objects outside the range
/// are left out together with the detections that match them, and so are detections outside it that match
/// nothing.
fn judge_image(
    detections: &[&ImageDetection],
    objects: &[&Annotation],
    ious: &[f64],
) -> Vec<RankedDetection> {
    let detections = &detections[..detections.len().min(LIMITS[LIMITS.len() - 1])];
    let unmatched = |(better, detection): (usize, &&ImageDetection)| RankedDetection {
        score: detection.score,
        better: better as u8,
        right: [0; AREAS.len()],
        left_out: AREAS.map(|area| if within(detection.bbox.area(), area) { 0 } else { u16::MAX }),
    };
    let mut ranked: Vec<RankedDetection> = detections.iter().enumerate().map(unmatched).collect();

    let truth: Vec<Truth> = objects.iter().map(|&object| object.into()).collect();
    let lowest = ious.iter().copied().fold(1.0, f64::min);
    let overlaps = Overlaps::new(detections.iter().copied(), &truth, lowest);
    let mut taken = Vec::new();
    for (area, limits) in AREAS.into_iter().enumerate() {
        let standing = |object: &&Annotation| match object {
            Annotation { crowd: true, .. } => Standing::Crowd,
            Annotation { area, .. } if within(*area, limits) => Standing::Object,
            _ => Standing::LeftOut,
        };
        let standings: Vec<Standing> = objects.iter().map(standing).collect();
        for (bit, &iou_min) in ious.iter().enumerate() {
            overlaps.choose(iou_min, &standings, &mut taken, |detection, object, _| {
                let judged = &mut ranked[detection];
                let right = u16::from(standings[object] == Standing::Object);
                judged.right[area] |= right << bit;
                judged.left_out[area] = judged.left_out[area] & !(1 << bit) | (1 - right) << bit;
            });
        }
    }
    ranked
}

/// Average precision (the mean of the best precision at each of the recalls 0, 0.01, …, 1 or beyond) and recall.
fn accumulate(best_first: &[RankedDetection], area: usize, iou: usize, n_objects: usize) -> AtIou {
    // Precision at each right detection. Between two of them it only falls, so the best is at one of them.
    let mut precision: Vec<f64> = Vec::new();
    let mut counted = 0.0;
    let mut right = [0; LIMITS.len()];
    for detection in best_first {
        let [is_right, is_left_out] =
            [detection.right, detection.left_out].map(|bits| bits[area] >> iou & 1 == 1);
        if is_left_out {
            continue;
        }
        counted += 1.0;
        if is_right {
            for (right, limit) in right.iter_mut().zip(LIMITS) {
                *right += usize::from(usize::from(detection.better) < limit);
            }
            precision.push((precision.len() + 1) as f64 / (counted + f64::EPSILON));
        }
    }
    for n in (1..precision.len()).rev() {
        precision[n - 1] = precision[n - 1].max(precision[n]);
    }

    let recall = |right: usize| right as f64 / n_objects as f64;
    let mut sum = 0.0;
    let mut place = 0;
    for hundredths in 0..=100 {
        // NumPy's `linspace` again: 0.01 is rounded before it is multiplied.
        let at_least = if hundredths == 100 { 1.0 } else { f64::from(hundredths) * 0.01 };
        while place < precision.len() && recall(place + 1) < at_least {
            place += 1;
        }
        sum += precision.get(place).copied().unwrap_or(0.0);
    }
    AtIou { ap: sum / 101.0, recall: right.map(recall) }
}
