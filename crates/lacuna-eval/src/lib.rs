//! Evaluation of detections:
//!
//! - average precision by COCO's rules: [`average_precision`],
//! - the calibration error of confidences: [`CalibrationError`],
//! - how many hidden objects are recovered: [`recovery`], [`recovery_above`].
//!
//! One rule decides which detection is which object: [`match_detections`]. Plain numbers in, plain numbers out.

mod average_precision;
mod calibration;
mod image_detection;
mod matching;
mod recovery;

pub use average_precision::{
    AveragePrecision, AveragePrecisionAt, average_precision, average_precision_at, average_precision_of_lists,
};
pub use calibration::{
    CalibrationError, ConfidenceBin, DEFAULT_BINS, JudgedConfidence, LA_ECE_BINS, judge_confidences,
};
pub use image_detection::ImageDetection;
pub use matching::{DetectionMatch, match_detections};
pub use recovery::{Recovery, RecoveryAbove, recovery, recovery_above};
