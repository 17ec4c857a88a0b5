use hotcoco::{AccumulatedEval, COCO, COCOeval, IouType};
use lacuna_boxes::{Box2, Detection};
use lacuna_data::Dataset;
use serde::Serialize;

/// COCO's twelve numbers, in `[0, 1]`, and the average precision of each class. `None` where there is no
/// object to find: pycocotools says −1.
///
/// `ap` is the mean over the classes and over the IoU thresholds 0.5, 0.55, …, 0.95; `ap50` and `ap75` are
/// at one threshold. `ar_n` is the mean recall of the `n` best detections of each image and class; the rest
/// is of the best 100. Small is an area of at most 32² pixels, large one of at least 96².
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AveragePrecision {
    pub ap: Option<f64>,
    pub ap50: Option<f64>,
    pub ap75: Option<f64>,
    pub ap_small: Option<f64>,
    pub ap_medium: Option<f64>,
    pub ap_large: Option<f64>,
    pub ar_1: Option<f64>,
    pub ar_10: Option<f64>,
    pub ar_100: Option<f64>,
    pub ar_small: Option<f64>,
    pub ar_medium: Option<f64>,
    pub ar_large: Option<f64>,
    /// `ap` of each class, in the order of [`Dataset::categories`].
    pub per_class: Vec<Option<f64>>,
    /// `ap50` of each class.
    pub per_class_50: Vec<Option<f64>>,
}

/// Judge `detections[i]`, those of `dataset.images()[i]`, as pycocotools judges boxes. Crowds and areas are
/// the data set's.
///
/// Differs from the reference: an annotation with the id 0 can be found. pycocotools takes its id for "no
/// match". A degenerate detection is a false one wherever its corners are.
///
/// # Panics
/// When there is not one list for each image, a class is not of the data set, or a score is not a number.
pub fn average_precision(dataset: &Dataset, detections: &[Vec<Detection>]) -> AveragePrecision {
    assert_eq!(detections.len(), dataset.images().len(), "lists of detections, and images");
    let truth = COCO::from_dataset(ground_truth(dataset));
    let found = truth.load_res_anns(results(dataset, detections)).expect("scores are numbers");
    let mut evaluation = COCOeval::new(truth, found, IouType::Bbox);
    evaluation.evaluate().expect("only masks can be refused");
    evaluation.accumulate();
    // `summarize` would print them.
    evaluation.summarize_lines();

    let stats = evaluation.stats().expect("the lines were made from them");
    let stats: [f64; 12] = stats.try_into().expect("boxes have twelve");
    let curves = evaluation.accumulated().expect("they were accumulated");
    let [ap, ap50, ap75, ap_small, ap_medium, ap_large, rest @ ..] = stats.map(known);
    let [ar_1, ar_10, ar_100, ar_small, ar_medium, ar_large] = rest;
    AveragePrecision {
        ap,
        ap50,
        ap75,
        ap_small,
        ap_medium,
        ap_large,
        ar_1,
        ar_10,
        ar_100,
        ar_small,
        ar_medium,
        ar_large,
        per_class: per_class(dataset, curves, curves.shape.t),
        per_class_50: per_class(dataset, curves, 1),
    }
}

/// hotcoco's and pycocotools' mark for "nothing to find" is −1.
fn known(value: f64) -> Option<f64> {
    (value >= 0.0).then_some(value)
}

/// The mean precision of each class over the first `thresholds` of IoU (the very first is 0.5).
fn per_class(dataset: &Dataset, curves: &AccumulatedEval, thresholds: usize) -> Vec<Option<f64>> {
    // The first area range is "all"; the last number of detections is 100.
    let (all, most) = (0, curves.shape.m - 1);
    let of_class = |id: u64| {
        let class = curves.cat_ids.iter().position(|&c| c == id)?;
        let points = (0..thresholds).flat_map(|t| (0..curves.shape.r).map(move |r| (t, r)));
        let mut sum = 0.0;
        for (t, r) in points {
            sum += known(curves.precision[curves.precision_idx(t, r, class, all, most)])?;
        }
        Some(sum / (thresholds * curves.shape.r) as f64)
    };
    dataset.categories().iter().map(|c| of_class(c.id)).collect()
}

/// Ids are the data set's own: equal scores are judged in the order of the images' ids.
fn ground_truth(dataset: &Dataset) -> hotcoco::Dataset {
    let images = dataset.images().iter().map(|i| hotcoco::Image { id: i.id, ..Default::default() });
    // hotcoco complains on stderr of a class without a name. It has no use for one here.
    let categories = dataset.categories().iter().map(|c| hotcoco::Category {
        id: c.id,
        name: c.id.to_string(),
        ..Default::default()
    });
    let annotations = dataset.annotations().iter().map(|a| hotcoco::Annotation {
        id: a.id,
        image_id: dataset.images()[a.image].id,
        category_id: dataset.categories()[a.category].id,
        bbox: Some([a.bbox.x, a.bbox.y, a.bbox.width, a.bbox.height]),
        area: Some(a.area),
        iscrowd: a.crowd,
        ..Default::default()
    });
    hotcoco::Dataset {
        images: images.collect(),
        annotations: annotations.collect(),
        categories: categories.collect(),
        ..Default::default()
    }
}

fn results(dataset: &Dataset, detections: &[Vec<Detection>]) -> Vec<hotcoco::Annotation> {
    let of_image = |(image, detections): (&lacuna_data::Image, &Vec<Detection>)| -> Vec<_> {
        let result = |d: &Detection| hotcoco::Annotation {
            image_id: image.id,
            category_id: dataset.categories()[d.class].id,
            bbox: Some(xywh(d.bounds)),
            score: Some(f64::from(d.score.0)),
            ..Default::default()
        };
        detections.iter().map(result).collect()
    };
    dataset.images().iter().zip(detections).flat_map(of_image).collect()
}

/// As COCO has boxes. A degenerate one becomes a point: a negative area would be outside all ranges, and
/// then no error either.
fn xywh(bounds: Box2) -> [f64; 4] {
    if bounds.is_degenerate() {
        return [0.0; 4];
    }
    let [x1, y1, x2, y2] = [bounds.x1, bounds.y1, bounds.x2, bounds.y2].map(f64::from);
    [x1, y1, x2 - x1, y2 - y1]
}
