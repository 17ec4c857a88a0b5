use lacuna_random::{Purpose, Rng};

use crate::{Calibrator, CalibratorKind, NoFit, Sample};

/// Calibrators that have not seen the images that they are tested on.
pub struct CrossFit {
    fold_of: Vec<usize>,
    calibrators: Vec<Calibrator>,
}

impl CrossFit {
    /// Puts the images into so many folds at random, and fits a calibrator to all folds but each.
    ///
    /// # Errors
    /// When the detections of the other folds determine no calibrator: see [`NoFit`].
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
            let others = images.iter().zip(&fold_of).filter(|(_, of)| **of != fold);
            let others: Vec<Sample> = others.flat_map(|(image, _)| image).copied().collect();
            Calibrator::fit(kind, per_class, &others)
        };
        let calibrators = (0..folds).map(fit).collect::<Result<_, _>>()?;
        Ok(Self { fold_of, calibrators })
    }

    /// The one that was not fitted to this image.
    pub fn calibrator(&self, image: usize) -> &Calibrator {
        &self.calibrators[self.fold_of[image]]
    }
}
