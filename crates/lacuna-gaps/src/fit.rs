//! A calibrator for the very images that it is fitted to.

use lacuna_calib::{Calibrator, CalibratorKind, CrossFit, NoFit, Sample};

/// Calibrators of one kind fitted to what was seen: `whole` to all of it, for use elsewhere; `folds` to all images
/// but those that they are used on, so that nothing is promised by what it was fitted to.
pub struct FoldedCalibrator {
    pub whole: Calibrator,
    pub folds: Result<CrossFit, NoFit>,
}

/// Images are put into so many folds.
const FOLDS: usize = 5;

impl FoldedCalibrator {
    /// # Errors
    /// When all images together determine no calibrator.
    pub fn new(kind: CalibratorKind, per_class: bool, observed: &[Vec<Sample>]) -> Result<Self, NoFit> {
        let whole = Calibrator::fit(kind, per_class, &observed.concat())?;
        let folds = CrossFit::new(kind, per_class, observed, FOLDS.min(observed.len()), 0);
        Ok(Self { whole, folds })
    }

    /// The one that was not fitted to this image; where too little is left without its fold, that of all.
    pub fn of_image(&self, image: usize) -> &Calibrator {
        self.folds.as_ref().map_or(&self.whole, |folds| folds.calibrator(image))
    }
}
