//! What annotations with gaps say of detections, and the boxes that are missing.
//!
//! Everything here works on the detections of any framework: boxes, classes and scores in, numbers and data sets out.
//! There are no tensors and no models.

mod calibrator_file;
mod complete;
mod fit;
mod hidden;
mod judge;
mod overlap;

pub use calibrator_file::{CalibratorFile, NotACalibrator};
pub use complete::{Candidate, candidates, completed, expected_precision, threshold_for};
pub use fit::FoldedCalibrator;
pub use hidden::read_hidden;
pub use judge::{JudgedDetection, judge, samples};
pub use overlap::{JudgedImage, OverlapRule, judge_image, outcomes};
