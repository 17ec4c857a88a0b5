//! Focal IoU: the weight of a negative sample's classification loss. A negative far from all targets may be an object
//! that nobody annotated, so it counts less.

use lacuna_models::{Images, IouOf, LossOptions, Losses, NegativeWeight, Target};
use lacuna_random::Rng;
use serde::{Deserialize, Serialize};

use crate::config::rules::{Violation, is_not_negative, is_positive, require};
use crate::learner::Learner;

/// The largest IoU that has a weight of its own; that of 1 would be infinite.
const IOU_MAX: f32 = 1.0 - 1e-6;

/// Settings of `FIoU(iou) = w0 + k·(−α·iou^γ·ln(1 − iou))`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FocalIou {
    /// Whether negatives are weighted at all.
    pub enabled: bool,
    /// The first iteration in which they are.
    pub start_iteration: u64,
    /// The weight of a negative that overlaps nothing.
    pub w0: f32,
    /// k, the factor of the focal part.
    pub k: f32,
    /// α of the focal part.
    pub alpha: f32,
    /// γ of the focal part.
    pub gamma: f32,
    /// Which box of a negative sample is compared with annotations and pseudo labels.
    pub iou_of: IouOf,
    /// Faster R-CNN: whether the anchors of its proposal network are weighted.
    pub rpn: bool,
    /// Faster R-CNN: whether its proposals are weighted.
    pub proposals: bool,
}

impl Default for FocalIou {
    /// The paper's, not enabled.
    fn default() -> Self {
        Self {
            enabled: false,
            start_iteration: 0,
            w0: 0.5,
            k: 1.5,
            alpha: 0.25,
            gamma: 2.0,
            iou_of: IouOf::Prediction,
            rpn: false,
            proposals: true,
        }
    }
}

impl FocalIou {
    pub(crate) fn check(&self) -> Result<(), Violation> {
        for (key, value) in [("w0", self.w0), ("k", self.k), ("alpha", self.alpha)] {
            require(is_not_negative(value), format!("method.focal_iou.{key}"), "0 or more")?;
        }
        require(is_positive(self.gamma), "method.focal_iou.gamma", "positive")
    }

    /// `w0 + k·(−α·iou^γ·ln(1 − iou))`
    fn weight(&self, iou: f32) -> f32 {
        let iou = iou.clamp(0.0, IOU_MAX);
        self.w0 - self.k * self.alpha * iou.powf(self.gamma) * (1.0 - iou).ln()
    }

    /// The derivative of the weight by the IoU.
    fn slope(&self, iou: f32) -> f32 {
        if !(0.0..IOU_MAX).contains(&iou) || iou == 0.0 {
            return 0.0;
        }
        let by_power = self.gamma * iou.powf(self.gamma - 1.0) * (1.0 - iou).ln();
        let by_logarithm = -iou.powf(self.gamma) / (1.0 - iou);
        -self.k * self.alpha * (by_power + by_logarithm)
    }

    /// The student's loss, with weighted negatives from `start_iteration` on.
    ///
    /// Differs from the reference: there ignored and padding anchors are weighted, too.
    pub(crate) fn student_loss(
        &self,
        learner: &Learner,
        images: &Images,
        targets: &[Vec<Target>],
        options: &LossOptions,
        rngs: &mut [Rng],
    ) -> Losses {
        let (weight, slope) = (|iou: f32| self.weight(iou), |iou: f32| self.slope(iou));
        let weighs = self.enabled && learner.iteration >= self.start_iteration;
        let negative_weight = weighs.then_some(NegativeWeight {
            weight: &weight,
            slope: &slope,
            iou_of: self.iou_of,
            rpn: self.rpn,
            proposals: self.proposals,
        });
        learner.student.loss(images, targets, &LossOptions { negative_weight, ..*options }, rngs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weight_is_the_papers() {
        let focal_iou = FocalIou::default();
        assert_eq!(focal_iou.weight(0.0), 0.5);
        // 0.5 + 1.5·0.25·0.25·ln 2, and 0.5 + 1.5·0.25·0.81·ln 10.
        assert!((focal_iou.weight(0.5) - 0.564_98).abs() < 1e-5);
        assert!((focal_iou.weight(0.9) - 1.199_41).abs() < 1e-5);
        assert!(focal_iou.weight(1.0).is_finite() && focal_iou.weight(1.0) > focal_iou.weight(0.999));
    }

    #[test]
    fn the_slope_is_that_of_the_weight() {
        let focal_iou = FocalIou::default();
        for iou in [0.05, 0.3, 0.6, 0.9] {
            let difference = (focal_iou.weight(iou + 1e-3) - focal_iou.weight(iou - 1e-3)) / 2e-3;
            assert!((focal_iou.slope(iou) - difference).abs() < 2e-3 * (1.0 + difference), "{iou}");
        }
    }
}
