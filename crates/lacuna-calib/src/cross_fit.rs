//! Cross-fitting: calibrators for images that they were not fitted to.

use lacuna_random::{Purpose, Rng};

use crate::{Calibrator, CalibratorKind, NoFit, Sample};

/// Out-of-fold calibrators: one for each fold of images, fitted to all other folds.
pub struct CrossFit {
    fold_of: Vec<usize>,
    calibrators: Vec<Calibrator>,
}

impl CrossFit {
    /// Put the images into `folds` folds at random, and fit a calibrator for each to the other folds.
    ///
    /// # Errors
    /// When the samples of the other folds determine no calibrator: see [`NoFit`].
    pub fn new(
        kind: CalibratorKind,
        per_class: bool,
        images: &[Vec<Sample>],
        folds: usize,
        seed: u64,
    ) -> Result<Self, NoFit> {
        let mut fold_of: Vec<usize> = (0..images.len()).map(|image| image % folds).collect();
        Rng::new(Purpose::Resample, seed, u64::MAX, 0).shuffle(&mut fold_of);
        let fit = |fold: usize| {
            let others = images.iter().zip(&fold_of).filter(|(_, other)| **other != fold);
            let others: Vec<Sample> = others.flat_map(|(image, _)| image).copied().collect();
            Calibrator::fit(kind, per_class, &others)
        };
        let calibrators = (0..folds).map(fit).collect::<Result<_, _>>()?;
        Ok(Self { fold_of, calibrators })
    }

    /// The calibrator that was not fitted to this image.
    pub fn calibrator(&self, image: usize) -> &Calibrator {
        &self.calibrators[self.fold_of[image]]
    }
}
