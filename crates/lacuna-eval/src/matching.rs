//! Which detection is which object: the one rule for all that is counted in this crate.

use lacuna_data::{Annotation, Dataset, Object, Xywh};
use rayon::prelude::*;

use crate::ImageDetection;
use crate::found::{best_first, xywh};

/// What became of a detection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Match {
    /// It has an object for itself, with this IoU.
    Matched(f64),
    Wrong,
    /// It lies in a crowd of its class: neither right nor wrong, and left out of everything.
    Ignored,
}

/// Match the detections of each image with the data set's annotations of that image; one [`Match`] for each of
/// `found`, in its order.
///
/// COCO's rule: the best score chooses first (of equal ones, the first of the list), and takes the object of
/// its class that it overlaps most, at an IoU of at least `iou_min`, among those that are left. One that gets
/// none, and lies in a crowd of its class with at least `iou_min` of its own area, is ignored. However many
/// detections an image has, all are matched; average precision looks at the best 100 of each class.
///
/// # Panics
/// When an image is not of the data set.
pub fn match_detections(dataset: &Dataset, found: &[ImageDetection], iou_min: f64) -> Vec<Match> {
    let mut order: Vec<usize> = (0..found.len()).collect();
    order.sort_by(|&a, &b| {
        let (a, b) = (&found[a], &found[b]);
        a.image.cmp(&b.image).then_with(|| best_first(a.score, b.score))
    });
    let of_image = |order: &[usize]| {
        let truth: Vec<Truth> = dataset.annotations_of(found[order[0]].image).map(Truth::from).collect();
        matched_in_order(order.iter().map(|&index| &found[index]), &truth, iou_min)
    };
    let images: Vec<&[usize]> = order.chunk_by(|&a, &b| found[a].image == found[b].image).collect();
    let in_order: Vec<Match> = images.into_par_iter().flat_map_iter(of_image).collect();

    let mut matches = vec![Match::Wrong; found.len()];
    for (index, matched) in order.into_iter().zip(in_order) {
        matches[index] = matched;
    }
    matches
}

/// The same for one image, whose detections come the best first.
pub(crate) fn matched_in_order<'a>(
    best_first: impl ExactSizeIterator<Item = &'a ImageDetection>,
    truth: &[Truth],
    iou_min: f64,
) -> Vec<Match> {
    let mut matches = vec![Match::Wrong; best_first.len()];
    let overlaps = Overlaps::new(best_first, truth, iou_min);
    let standings: Vec<Standing> = truth.iter().map(Truth::standing).collect();
    overlaps.choose(iou_min, &standings, &mut Vec::new(), |detection, truth, iou| {
        matches[detection] =
            if standings[truth] == Standing::Object { Match::Matched(iou) } else { Match::Ignored };
    });
    matches
}

/// What an annotation says is there.
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

    /// IoU; with a crowd, the share of the detection that lies in it.
    ///
    /// The operations of pycocotools' `bbIou` in their order, so that an overlap at a threshold falls on the
    /// same side of it.
    fn overlap(&self, found: Xywh) -> f64 {
        let (d, g) = (found, self.bbox);
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
        Self { class: object.class, bbox: xywh(object.bbox), crowd: false }
    }
}

/// What it means to match an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// To be right. It can be taken once.
    Object,
    /// To be left out, once: an object that is not asked for, such as a large one among the small.
    LeftOut,
    /// To be left out, any number of times.
    Crowd,
}

/// For each detection of an image, the best first, the annotations of its class that overlap it enough for
/// the lowest of the thresholds.
pub(crate) struct Overlaps {
    /// Detection, annotation and their overlap, ordered by the first two: most detections overlap nothing.
    pairs: Vec<(usize, usize, f64)>,
}

impl Overlaps {
    pub fn new<'a>(
        best_first: impl IntoIterator<Item = &'a ImageDetection>,
        truth: &[Truth],
        lowest_iou_min: f64,
    ) -> Self {
        let mut pairs = Vec::new();
        if !truth.is_empty() {
            for (detection, found) in best_first.into_iter().enumerate() {
                for (index, truth) in truth.iter().enumerate().filter(|(_, t)| t.class == found.class) {
                    let overlap = truth.overlap(found.bbox);
                    if overlap >= lowest_iou_min {
                        pairs.push((detection, index, overlap));
                    }
                }
            }
        }
        Self { pairs }
    }

    /// Each detection in turn takes, of the objects that are left, the one that it overlaps most, at least at
    /// `iou_min` (the last of equals); if there is none, the same of what is to be left out. `chosen` is told the
    /// detection, the annotation and their overlap. `taken` is room to work in.
    pub fn choose(
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

    use super::Match::{Ignored, Matched, Wrong};
    use super::*;

    /// A box of 10 pixels' height from `x` over `width`.
    fn bar(x: f64, width: f64) -> Xywh {
        Xywh { x, y: 0.0, width, height: 10.0 }
    }

    fn found(image: usize, class: usize, score: f64, bbox: Xywh) -> ImageDetection {
        ImageDetection { image, class, bbox, score }
    }

    /// Two images and two classes with these annotations: image, class, box, and whether it is a crowd.
    fn dataset(annotations: &[(usize, usize, Xywh, bool)]) -> Dataset {
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
        let dataset = dataset(&[(1, 1, bar(0.0, 10.0), false)]);
        let found = [(0, 1), (1, 0), (1, 1)].map(|(i, c)| found(i, c, 0.5, bar(0.0, 10.0)));
        assert_eq!(match_detections(&dataset, &found, 0.5), [Wrong, Wrong, Matched(1.0)]);
    }

    #[test]
    fn the_best_score_chooses_first_wherever_it_is_in_the_list() {
        let dataset = dataset(&[(0, 0, bar(0.0, 10.0), false)]);
        let found = [found(0, 0, 0.6, bar(0.0, 10.0)), found(0, 0, 0.7, bar(0.0, 5.0))];
        assert_eq!(match_detections(&dataset, &found, 0.5), [Wrong, Matched(0.5)]);
        assert_eq!(match_detections(&dataset, &found, 0.51), [Matched(1.0), Wrong]);
    }

    #[test]
    fn of_equal_scores_the_first_chooses_first() {
        let dataset = dataset(&[(0, 0, bar(0.0, 10.0), false)]);
        let found = [found(0, 0, 0.6, bar(0.0, 8.0)), found(0, 0, 0.6, bar(0.0, 10.0))];
        assert_eq!(match_detections(&dataset, &found, 0.5), [Matched(0.8), Wrong]);
    }

    #[test]
    fn in_a_crowd_of_its_class_a_detection_is_ignored_unless_it_has_an_object() {
        let dataset = dataset(&[
            (0, 0, bar(0.0, 100.0), true),
            (0, 0, bar(0.0, 10.0), false),
            (0, 1, bar(0.0, 99.0), false),
        ]);
        let object = bar(0.0, 10.0);
        let found = [
            found(0, 0, 0.9, object),
            found(0, 0, 0.8, object),
            found(0, 0, 0.7, object),
            found(0, 1, 0.7, object),
            found(0, 0, 0.6, bar(95.0, 10.0)),
            found(0, 0, 0.5, bar(96.0, 10.0)),
        ];
        let expected = [Matched(1.0), Ignored, Ignored, Wrong, Ignored, Wrong];
        assert_eq!(match_detections(&dataset, &found, 0.5), expected);
    }

    #[test]
    fn a_box_without_an_extent_is_wrong() {
        let dataset = dataset(&[(0, 0, bar(0.0, 0.0), false), (0, 0, bar(0.0, 10.0), true)]);
        assert_eq!(match_detections(&dataset, &[found(0, 0, 0.5, bar(0.0, 0.0))], 0.5), [Wrong]);
    }

    fn some_bar() -> impl Strategy<Value = Xywh> {
        (0u8..12, 1u8..12).prop_map(|(x, width)| bar(x.into(), width.into()))
    }

    prop_compose! {
        fn some_dataset()(annotations in prop::collection::vec(
            (0usize..2, 0usize..2, some_bar(), prop::bool::weighted(0.2)), 0..12
        )) -> Dataset {
            dataset(&annotations)
        }
    }

    fn some_found() -> impl Strategy<Value = Vec<ImageDetection>> {
        let one = (0usize..2, 0usize..2, 0u8..6, some_bar());
        let one =
            one.prop_map(|(image, class, score, bbox)| found(image, class, f64::from(score) / 5.0, bbox));
        prop::collection::vec(one, 0..20)
    }

    /// The rule as it reads, one detection after the other.
    fn naive(dataset: &Dataset, found: &[ImageDetection], iou_min: f64) -> Vec<Match> {
        let mut order: Vec<usize> = (0..found.len()).collect();
        order.sort_by(|&a, &b| found[b].score.total_cmp(&found[a].score));
        let mut left: Vec<&Annotation> = dataset.annotations().iter().collect();
        let mut matches = vec![Wrong; found.len()];
        for index in order {
            let ImageDetection { image, class, bbox, .. } = found[index];
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
            dataset in some_dataset(), found in some_found(), iou_min in 0.05f64..0.95
        ) {
            prop_assert_eq!(match_detections(&dataset, &found, iou_min), naive(&dataset, &found, iou_min));
        }
    }
}
