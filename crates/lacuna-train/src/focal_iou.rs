//! Focal IoU weight: a negative sample that overlaps no annotation may be an object that nobody annotated,
//! and counts less.

use crate::config::FocalIou;

/// The largest IoU that has a weight of its own; that of 1 would be infinite.
const IOU_MAX: f32 = 1.0 - 1e-6;

impl FocalIou {
    /// `w0 + k·(−α·iou^γ·ln(1 − iou))`
    pub fn weight(&self, iou: f32) -> f32 {
        let iou = iou.clamp(0.0, IOU_MAX);
        self.w0 - self.k * self.alpha * iou.powf(self.gamma) * (1.0 - iou).ln()
    }

    /// The derivative of the weight by the IoU.
    pub fn slope(&self, iou: f32) -> f32 {
        if !(0.0..IOU_MAX).contains(&iou) || iou == 0.0 {
            return 0.0;
        }
        let by_power = self.gamma * iou.powf(self.gamma - 1.0) * (1.0 - iou).ln();
        let by_logarithm = -iou.powf(self.gamma) / (1.0 - iou);
        -self.k * self.alpha * (by_power + by_logarithm)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Method;

    #[test]
    fn the_weight_is_the_papers() {
        let focal_iou =
            Method::named("calibrated").and_then(|method| method.focal_iou()).expect("the method has it");
        assert_eq!(focal_iou.weight(0.0), 0.5);
        // 0.5 + 1.5·0.25·0.25·ln 2, and 0.5 + 1.5·0.25·0.81·ln 10.
        assert!((focal_iou.weight(0.5) - 0.564_98).abs() < 1e-5);
        assert!((focal_iou.weight(0.9) - 1.199_41).abs() < 1e-5);
        assert!(focal_iou.weight(1.0).is_finite() && focal_iou.weight(1.0) > focal_iou.weight(0.999));
    }

    #[test]
    fn the_slope_is_that_of_the_weight() {
        let focal_iou =
            Method::named("fixed").and_then(|method| method.focal_iou()).expect("the method has it");
        for iou in [0.05, 0.3, 0.6, 0.9] {
            let difference = (focal_iou.weight(iou + 1e-3) - focal_iou.weight(iou - 1e-3)) / 2e-3;
            assert!((focal_iou.slope(iou) - difference).abs() < 2e-3 * (1.0 + difference), "{iou}");
        }
    }
}
