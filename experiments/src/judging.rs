//! How experiments judge detections: the rule of the command line, and candidates against the hidden boxes.

use lacuna_data::Dataset;
use lacuna_gaps::{JudgedDetection, OverlapRule};

/// The rule of `lacuna complete` without options.
pub(crate) fn overlap_rule() -> OverlapRule {
    OverlapRule { candidate_iou: Some(0.7), min_side: None, ..OverlapRule::default() }
}

/// The candidates with a score above `score_min`, and whether each is a hidden object at an IoU above `iou_high`.
pub(crate) fn labeled_candidates<'a>(
    judged: &'a [Vec<JudgedDetection>],
    hidden: &Dataset,
    score_min: f32,
) -> Vec<(&'a JudgedDetection, bool)> {
    let mut labeled = Vec::new();
    for (image, detections) in judged.iter().enumerate() {
        let objects = hidden.objects_of(image);
        let candidates =
            detections.iter().filter(|judged| judged.is_candidate() && judged.detection.score.0 > score_min);
        labeled.extend(
            candidates.map(|candidate| (candidate, candidate.is_one_of(&objects, overlap_rule().iou_high))),
        );
    }
    labeled
}
