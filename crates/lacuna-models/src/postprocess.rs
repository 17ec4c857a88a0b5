//! From a head's numbers to detections.

use lacuna_boxes::{Box2, Detection, Score, nms};
use serde::{Deserialize, Serialize};

use crate::anchors::Anchors;
use crate::detector::{DetectorConfigError, require};
use crate::images::Images;

/// torchvision's post-processing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostProcess {
    /// Detections with a score not above this are dropped.
    pub score_min: f32,
    /// Of two detections of a class that overlap more than this, the lower one is dropped.
    pub nms_iou_max: f64,
    /// The best of each image that stay.
    pub detections_max: usize,
}

/// A class at a row of a head's output.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    row: usize,
    class: usize,
    score: f32,
}

impl PostProcess {
    pub(crate) fn check(&self) -> Result<(), DetectorConfigError> {
        require((0.0..1.0).contains(&self.score_min), "post_process.score_min", "from 0 to below 1")?;
        require((0.0..=1.0).contains(&self.nms_iou_max), "post_process.nms_iou_max", "from 0 to 1")?;
        require(self.detections_max > 0, "post_process.detections_max", "1 at least")
    }

    /// With a floor that is this high at least. Lower scores suppress nothing above them, so the detections
    /// above it stay the same.
    pub(crate) fn above(self, score_min: f32) -> Self {
        Self { score_min: self.score_min.max(score_min), ..self }
    }

    /// The detections of an image by a one-stage detector: `logits [rows, n_classes]`.
    ///
    /// `to_score(row, logit)` must be at most `score_min` for logits up to `logit_min`, which spares most
    /// of them. The `per_level` best of each level go on.
    pub(crate) fn dense(
        &self,
        (images, image): (&Images, usize),
        anchors: &Anchors,
        (logits, n_classes): (&[f32], usize),
        (logit_min, per_level): (f32, usize),
        to_score: impl Fn(usize, f32) -> f32,
        decode: impl Fn(usize, Box2) -> Box2,
    ) -> Vec<Detection> {
        let mut found = Vec::new();
        for level in anchors.levels() {
            let rows = anchors.rows_of_level(level.clone(), image);
            let first = rows.start;
            let mut candidates = Vec::new();
            for row in rows {
                for (class, &logit) in logits[row * n_classes..][..n_classes].iter().enumerate() {
                    if logit > logit_min {
                        let score = to_score(row, logit);
                        if score > self.score_min {
                            candidates.push(Candidate { row, class, score });
                        }
                    }
                }
            }
            keep_best(&mut candidates, per_level, |candidate| candidate.score);
            found.extend(candidates.into_iter().map(|Candidate { row, class, score }| {
                let bbox = images.clip(image, decode(row, anchors.boxes()[level.start + row - first]));
                Detection { bbox, class, score: Score(score) }
            }));
        }
        self.suppress(&found, (images, image))
    }

    /// Non-maximum suppression per class, and the way back from the view to the image.
    pub(crate) fn suppress(&self, found: &[Detection], (images, image): (&Images, usize)) -> Vec<Detection> {
        let boxes: Vec<_> = found.iter().map(|detection| detection.bbox).collect();
        let scores: Vec<_> = found.iter().map(|detection| detection.score.0).collect();
        let classes: Vec<_> = found.iter().map(|detection| detection.class).collect();
        let to_image = images.to_view[image].inverse();
        let kept = nms(&boxes, &scores, &classes, self.nms_iou_max);
        let best = kept.into_iter().take(self.detections_max).map(|index| found[index]);
        best.map(|detection| Detection { bbox: to_image.apply(detection.bbox), ..detection }).collect()
    }
}

/// The `count` best, best first; of equals the first.
pub(crate) fn keep_best<T: Copy>(items: &mut Vec<T>, count: usize, score: impl Fn(&T) -> f32) {
    let mut order: Vec<_> = items.iter().map(&score).enumerate().collect();
    let best_first = |a: &(usize, f32), b: &(usize, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if count < order.len() {
        order.select_nth_unstable_by(count, best_first);
        order.truncate(count);
    }
    order.sort_unstable_by(best_first);
    *items = order.into_iter().map(|(index, _)| items[index]).collect();
}

/// The logit of a probability, and a little less: what is not above it, is not above it after rounding.
pub(crate) fn logit_floor(probability: f32) -> f32 {
    let p = probability.clamp(0.0, 1.0);
    (p / (1.0 - p)).ln() - 1e-3
}
