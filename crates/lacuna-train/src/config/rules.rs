//! Rules that settings must keep: what a check of a section or of a method is made of.

use lacuna_models::DetectorConfig;

/// A setting that breaks its rule: "`key` must be `rule`".
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) key: String,
    pub(crate) rule: String,
}

pub(crate) fn require(holds: bool, key: impl Into<String>, rule: &str) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { key: key.into(), rule: rule.to_owned() }) }
}

pub(crate) fn is_share(value: f32) -> bool {
    (0.0..=1.0).contains(&value)
}

pub(crate) fn is_share_below_one(value: f32) -> bool {
    (0.0..1.0).contains(&value)
}

pub(crate) fn is_positive(value: f32) -> bool {
    value > 0.0 && value.is_finite()
}

pub(crate) fn is_not_negative(value: f32) -> bool {
    value >= 0.0 && value.is_finite()
}

/// A threshold of raw scores must be one that the detector's own floor does not undercut.
pub(crate) fn require_above_floor(
    score_min: f32,
    key: &str,
    detector: &DetectorConfig,
) -> Result<(), Violation> {
    let floor = match detector {
        DetectorConfig::RetinaNet(config) => config.post_process.score_min,
        DetectorConfig::Fcos(config) => config.post_process.score_min,
        DetectorConfig::FasterRcnn(config) => config.post_process.score_min,
    };
    let rule = "from `detector.post_process.score_min` to below 1";
    require((floor..1.0).contains(&score_min), key, rule)
}
