//! What annotations with gaps say of detections, and the boxes that are missing.
//!
//! Everything here works on the detections of any framework: boxes, classes and scores in, numbers and data sets out.
//! There are no tensors and no models.
//!
//! 1. [`judge`] compares detections with the annotations: right, wrong, or a candidate for a missing box.
//! 2. [`FoldedCalibrator`] turns scores into confidences, and [`DatasetCompleteness`] says how much is annotated.
//! 3. [`Completion`] chooses the candidates that become recovered boxes; [`completed`] adds them to the data set.
//!
//! Where a simulated split hid boxes, [`read_hidden`] and its neighbors measure the result.

mod calibrate;
mod calibrator_file;
mod complete;
mod completeness;
mod hidden;
mod judge;
mod overlap;
mod reliability;

pub use calibrate::{CalibrationErrors, FitOptions, FoldedCalibrator};
pub use calibrator_file::{CalibratorFile, NotACalibrator};
pub use complete::{
    Acceptance, Candidate, Completion, candidates, candidates_with_confidences, completed, expected_precision,
};
pub use completeness::DatasetCompleteness;
pub use hidden::{
    ensure_hidden, given_and_hidden, read_hidden, recovery_above_thresholds, recovery_by_class,
};
pub use judge::{JudgedDetection, judge, samples};
pub use overlap::{JudgedImage, OverlapRule, judge_image};
pub use reliability::{Truth, candidate_truths, judged_truths, reliability};
