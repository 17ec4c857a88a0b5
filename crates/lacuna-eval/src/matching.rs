//! Matching of detections with annotations: the one rule that all figures of this crate are based on.

use lacuna_data::{Annotation, Dataset, Object, Xywh};
use rayon::prelude::*;

use crate::ImageDetection;
use crate::image_detection::{best_first, to_xywh};

/// The result of matching a detection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DetectionMatch {
    /// It is matched with an object, at this IoU.
    Matched(f64),
    /// It is matched with nothing.
    Wrong,
    /// It lies in a crowd of its class: neither right nor wrong, and left out of all figures.
    Ignored,
}

/// Match the detections of each image with the annotations of that image; one [`DetectionMatch`] for each detection, in
/// the given order.
///
/// COCO's rule: by descending score (equal scores in the given order), each detection takes the free object of
/// its class with the largest IoU, if that is at least `iou_min`. A detection without an object is ignored if at
/// least `iou_min` of its area lies in a crowd of its class. All detections are matched, however many an image
/// has; only average precision is limited to the best 100 of each class.
///
/// # Panics
/// When an image is not of the data set.
pub fn match_detections(
    dataset: &Dataset,
    detections: &[ImageDetection],
    iou_min: f64,
) -> Vec<DetectionMatch> {
    let mut order: Vec<usize> = (0..detections.len()).collect();
    order.sort_by(|&a, &b| {
        let (a, b) = (&detections[a], &detections[b]);
        a.image.cmp(&b.image).then_with(|| best_first(a.score, b.score))
    });
    let of_image = |order: &[usize]| {
        let truth: Vec<Truth> = dataset.annotations_of(detections[order[0]].image).map(Truth::from).collect();
        match_in_order(order.iter().map(|&index| &detections[index]), &truth, iou_min)
    };
    let images: Vec<&[usize]> = order.chunk_by(|&a, &b| detections[a].image == detections[b].image).collect();
    let in_order: Vec<DetectionMatch> = images.into_par_iter().flat_map_iter(of_image).collect();

    let mut matches = vec![DetectionMatch::Wrong; detections.len()];
    for (index, matched) in order.into_iter().zip(in_order) {
        matches[index] = matched;
    }
    matches
}

/// Match the detections of one image, given by descending score.
pub(crate) fn match_in_order<'a>(
    best_first: impl ExactSizeIterator<Item = &'a ImageDetection>,
    truth: &[Truth],
    iou_min: f64,
) -> Vec<DetectionMatch> {
    let mut matches = vec![DetectionMatch::Wrong; best_first.len()];
    let overlaps = Overlaps::new(best_first, truth, iou_min);
    let standings: Vec<Standing> = truth.iter().map(Truth::standing).collect();
    overlaps.choose(iou_min, &standings, &mut Vec::new(), |detection, truth, iou| {
        matches[detection] = if standings[truth] == Standing::Object {
            DetectionMatch::Matched(iou)
        } else {
            DetectionMatch::Ignored
        };
    });
    matches
}

/// An annotation as matching needs it.
#[derive(Clone, Copy)]
pub(crate) struct Truth {
    class: usize,
    bbox: Xywh,
    crowd: bool,
}

impl Truth {
    fn standing(&self) -> Standing {
        if self.crowd { Standing::Crowd } else { Standing::Object }
    }

    /// The IoU or, with a crowd, the share of the detection that lies in it.
    ///
    /// The operations of pycocotools' `bbIou` in their order, so that an overlap at a threshold falls on the
    /// same side of it.
    fn overlap(&self, detection: Xywh) -> f64 {
        let (d, g) = (detection, self.bbox);
        let width = (d.width + d.x).min(g.width + g.x) - d.x.max(g.x);
        let height = (d.height + d.y).min(g.height + g.y) - d.y.max(g.y);
        if width <= 0.0 || height <= 0.0 {
            return 0.0;
        }
        let shared = width * height;
        shared / if self.crowd { d.area() } else { d.area() + g.area() - shared }
    }
}

impl From<&Annotation> for Truth {
    fn from(annotation: &Annotation) -> Self {
        Self { class: annotation.category, bbox: annotation.bbox, crowd: annotation.crowd }
    }
}

impl From<&Object> for Truth {
    fn from(object: &Object) -> Self {
        Self { class: object.class, bbox: to_xywh(object.bbox), crowd: false }
    }
}

/// What a match with an annotation means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The detection is right. Can be matched once.
    Object,
    /// The detection is left out: the object is not in the evaluated range of areas. Can be matched once.
    LeftOut,
    /// The detection is left out. Can be matched any number of times.
    Crowd,
}

/// For each detection of an image, by descending score, the annotations of its class that overlap it by at least
/// the lowest threshold.
pub(crate) struct Overlaps {
    /// (detection, annotation, overlap), ordered by the first two. Sparse, as most detections overlap nothing.
    pairs: Vec<(usize, usize, f64)>,
}

impl Overlaps {
    pub(crate) fn new<'a>(
        best_first: impl IntoIterator<Item = &'a ImageDetection>,
        truth: &[Truth],
        lowest_iou_min: f64,
    ) -> Self {
        let mut pairs = Vec::new();
        if !truth.is_empty() {
            for (index, detection) in best_first.into_iter().enumerate() {
                for (annotation, truth) in
                    truth.iter().enumerate().filter(|(_, t)| t.class == detection.class)
                {
                    let overlap = truth.overlap(detection.bbox);
                    if overlap >= lowest_iou_min {
                        pairs.push((index, annotation, overlap));
                    }
                }
            }
        }
        Self { pairs }
    }

    /// Each detection in turn takes the free object with the largest overlap of at least `iou_min` (the last of
    /// equals) or, without one, the free annotation that is left out likewise. `chosen` is called with the
    /// detection, the annotation and their overlap. `taken` is a buffer to reuse.
    pub(crate) fn choose(
        &self,
        iou_min: f64,
        standings: &[Standing],
        taken: &mut Vec<bool>,
        mut chosen: impl FnMut(usize, usize, f64),
    ) {
        taken.clear();
        taken.resize(standings.len(), false);
        for of_detection in self.pairs.chunk_by(|a, b| a.0 == b.0) {
            let mut best = None;
            for &(_, truth, overlap) in of_detection {
                let standing = standings[truth];
                if overlap < iou_min || taken[truth] && standing != Standing::Crowd {
                    continue;
                }
                let rank = (standing == Standing::Object, overlap);
                if best.is_none_or(|(best, _)| rank >= best) {
                    best = Some((rank, truth));
                }
            }
            if let Some(((_, overlap), truth)) = best {
                taken[truth] = true;
                chosen(of_detection[0].0, truth, overlap);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lacuna_data::Builder;
    use proptest::prelude::*;

    use super::DetectionMatch::{Ignored, Matched, Wrong};
    use super::*;

    /// A box of 10 pixels' height from `x` over `width`.
    fn bar(x: f64, width: f64) -> Xywh {
        Xywh { x, y: 0.0, width, height: 10.0 }
    }

    fn detection(image: usize, class: usize, score: f64, bbox: Xywh) -> ImageDetection {
        ImageDetection { image, class, bbox, score }
    }

    /// Two images and two classes with these annotations: image, class, box, and whether it is a crowd.
    fn dataset_with(annotations: &[(usize, usize, Xywh, bool)]) -> Dataset {
        let mut builder = Builder::default();
        for n in 0..2 {
            builder.category(&n.to_string());
            builder.image(&format!("{n}.jpg"), 100, 100);
        }
        for &(image, class, bbox, crowd) in annotations {
            builder.annotation(image, class, bbox, crowd, ());
        }
        builder.finish()
    }

    #[test]
    fn a_match_is_in_its_image_and_of_its_class() {
        let dataset = dataset_with(&[(1, 1, bar(0.0, 10.0), false)]);
        let detections = [(0, 1), (1, 0), (1, 1)].map(|(i, c)| detection(i, c, 0.5, bar(0.0, 10.0)));
        assert_eq!(match_detections(&dataset, &detections, 0.5), [Wrong, Wrong, Matched(1.0)]);
    }

    #[test]
    fn the_best_score_chooses_first_wherever_it_is_in_the_list() {
        let dataset = dataset_with(&[(0, 0, bar(0.0, 10.0), false)]);
        let detections = [detection(0, 0, 0.6, bar(0.0, 10.0)), detection(0, 0, 0.7, bar(0.0, 5.0))];
        assert_eq!(match_detections(&dataset, &detections, 0.5), [Wrong, Matched(0.5)]);
        assert_eq!(match_detections(&dataset, &detections, 0.51), [Matched(1.0), Wrong]);
    }

    #[test]
    fn of_equal_scores_the_first_chooses_first() {
        let dataset = dataset_with(&[(0, 0, bar(0.0, 10.0), false)]);
        let detections = [detection(0, 0, 0.6, bar(0.0, 8.0)), detection(0, 0, 0.6, bar(0.0, 10.0))];
        assert_eq!(match_detections(&dataset, &detections, 0.5), [Matched(0.8), Wrong]);
    }

    #[test]
    fn in_a_crowd_of_its_class_a_detection_is_ignored_unless_it_has_an_object() {
        let dataset = dataset_with(&[
            (0, 0, bar(0.0, 100.0), true),
            (0, 0, bar(0.0, 10.0), false),
            (0, 1, bar(0.0, 99.0), false),
        ]);
        let object = bar(0.0, 10.0);
        let detections = [
            detection(0, 0, 0.9, object),
            detection(0, 0, 0.8, object),
            detection(0, 0, 0.7, object),
            detection(0, 1, 0.7, object),
            detection(0, 0, 0.6, bar(95.0, 10.0)),
            detection(0, 0, 0.5, bar(96.0, 10.0)),
        ];
        let expected = [Matched(1.0), Ignored, Ignored, Wrong, Ignored, Wrong];
        assert_eq!(match_detections(&dataset, &detections, 0.5), expected);
    }

    #[test]
    fn a_box_without_an_extent_is_wrong() {
        let dataset = dataset_with(&[(0, 0, bar(0.0, 0.0), false), (0, 0, bar(0.0, 10.0), true)]);
        assert_eq!(match_detections(&dataset, &[detection(0, 0, 0.5, bar(0.0, 0.0))], 0.5), [Wrong]);
    }

    fn some_bar() -> impl Strategy<Value = Xywh> {
        (0u8..12, 1u8..12).prop_map(|(x, width)| bar(x.into(), width.into()))
    }

    prop_compose! {
        fn any_dataset()(annotations in prop::collection::vec(
            (0usize..2, 0usize..2, some_bar(), prop::bool::weighted(0.2)), 0..12
        )) -> Dataset {
            dataset_with(&annotations)
        }
    }

    fn any_detections() -> impl Strategy<Value = Vec<ImageDetection>> {
        let one = (0usize..2, 0usize..2, 0u8..6, some_bar());
        let one =
            one.prop_map(|(image, class, score, bbox)| detection(image, class, f64::from(score) / 5.0, bbox));
        prop::collection::vec(one, 0..20)
    }

    /// The rule as it reads, one detection after the other.
    fn naive(dataset: &Dataset, detections: &[ImageDetection], iou_min: f64) -> Vec<DetectionMatch> {
        let mut order: Vec<usize> = (0..detections.len()).collect();
        order.sort_by(|&a, &b| detections[b].score.total_cmp(&detections[a].score));
        let mut left: Vec<&Annotation> = dataset.annotations().iter().collect();
        let mut matches = vec![Wrong; detections.len()];
        for index in order {
            let ImageDetection { image, class, bbox, .. } = detections[index];
            let of = |a: &Annotation, crowd| (a.image, a.category, a.crowd) == (image, class, crowd);
            let overlap = |a: &Annotation| Truth::from(a).overlap(bbox);
            let objects = left.iter().enumerate().filter(|(_, a)| of(a, false) && overlap(a) >= iou_min);
            let best = objects.max_by(|a, b| overlap(a.1).total_cmp(&overlap(b.1))).map(|(place, _)| place);
            if let Some(place) = best {
                matches[index] = Matched(overlap(left.remove(place)));
            } else if left.iter().any(|a| of(a, true) && overlap(a) >= iou_min) {
                matches[index] = Ignored;
            }
        }
        matches
    }

    proptest! {
        #[test]
        fn matches_are_those_of_the_rule_as_it_reads(
            dataset in any_dataset(), detections in any_detections(), iou_min in 0.05f64..0.95
        ) {
            prop_assert_eq!(match_detections(&dataset, &detections, iou_min), naive(&dataset, &detections, iou_min));
        }
    }
}
