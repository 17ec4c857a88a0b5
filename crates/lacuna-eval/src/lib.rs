//! How good detections are: by COCO's rules ([`average_precision`]), by how well their confidences keep what
//! they promise ([`CalibrationError`]), and as proposals for objects that nobody annotated ([`recovered`],
//! [`recovered_above`]). Which detection is which object is decided in one place ([`match_detections`]).
//!
//! Plain numbers in, plain numbers out.

mod average_precision;
mod calibration;
mod found;
mod matching;
mod recovered;

pub use average_precision::{
    AveragePrecision, AveragePrecisionAt, average_precision, average_precision_at, average_precision_of_lists,
};
pub use calibration::{
    CalibrationError, ConfidenceBin, DEFAULT_BINS, JudgedConfidence, LA_ECE_BINS, outcomes,
};
pub use found::ImageDetection;
pub use matching::{Match, match_detections};
pub use recovered::{Recovery, RecoveryAbove, recovered, recovered_above};
