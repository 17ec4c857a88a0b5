//! How experiments judge detections.

use lacuna_gaps::OverlapRule;

/// The rule of `lacuna complete` without options.
pub(crate) fn overlap_rule() -> OverlapRule {
    OverlapRule { candidate_iou: Some(0.7), min_side: None, ..OverlapRule::default() }
}
