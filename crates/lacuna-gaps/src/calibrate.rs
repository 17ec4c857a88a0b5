//! Confidences for detections of any framework, from annotations that may have gaps.

use lacuna_calib::{Calibrator, CalibratorKind, CrossFit, NoFit, Reliability, Sample};
use lacuna_data::Dataset;

use crate::judge::{JudgedDetection, samples};
use crate::reliability::{Truth, candidate_truths, judged_truths, reliability};

/// How a calibrator is fitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FitOptions {
    /// What makes confidences of scores.
    pub kind: CalibratorKind,
    /// Whether each class with enough detections gets a calibrator of its own.
    pub per_class: bool,
    /// Detections with a raw score not above this have no part.
    pub score_min: f32,
}

/// Calibrators of one kind, fitted to judged detections.
pub struct FoldedCalibrator {
    /// Fitted to all images, for use on others.
    pub whole: Calibrator,
    /// Each fitted to all images but those that it is used on, so that no confidence rests on the detection's own
    /// outcome. An error where a part of the images is too little to fit to.
    pub folds: Result<CrossFit, NoFit>,
}

/// How many folds the images are put into.
const FOLDS: usize = 5;

impl FoldedCalibrator {
    /// Fits to judged detections.
    ///
    /// # Errors
    /// When all images together determine no calibrator.
    pub fn fit(judged: &[Vec<JudgedDetection>], options: FitOptions) -> Result<Self, NoFit> {
        let FitOptions { kind, per_class, score_min } = options;
        let images: Vec<Vec<Sample>> = samples(judged, score_min);
        let whole = Calibrator::fit(kind, per_class, &images.concat())?;
        let folds = CrossFit::new(kind, per_class, &images, FOLDS.min(images.len()), 0);
        Ok(Self { whole, folds })
    }

    /// The one that was not fitted to this image; where too little is left without its fold, that of all.
    pub fn of_image(&self, image: usize) -> &Calibrator {
        self.folds.as_ref().map_or(&self.whole, |folds| folds.calibrator(image))
    }

    /// The errors of judged detections.
    pub fn judged_errors(&self, judged: &[Vec<JudgedDetection>], score_min: f32) -> CalibrationErrors {
        self.errors(&judged_truths(judged, score_min))
    }

    /// The errors of candidates, by the objects that a simulated split hid.
    pub fn candidate_errors(
        &self,
        judged: &[Vec<JudgedDetection>],
        score_min: f32,
        hidden: &Dataset,
        iou_min: f32,
    ) -> CalibrationErrors {
        self.errors(&candidate_truths(judged, score_min, hidden, iou_min))
    }

    fn errors(&self, truths: &[Truth]) -> CalibrationErrors {
        CalibrationErrors {
            before: reliability(truths, |judged| judged.detection.score.0),
            after: self.folds.as_ref().ok().map(|folds| {
                reliability(truths, |judged| judged.confidence(folds.calibrator(judged.image)).0)
            }),
        }
    }
}

/// How well scores and confidences match the truth.
pub struct CalibrationErrors {
    /// By raw scores.
    pub before: Reliability,
    /// By confidences of calibrators that were not fitted to the image; `None` without folds.
    pub after: Option<Reliability>,
}

impl CalibrationErrors {
    /// The calibration error of confidences, where it is known.
    pub fn ece_after(&self) -> Option<f64> {
        self.after.as_ref()?.ece()
    }
}
