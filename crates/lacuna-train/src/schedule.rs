//! What changes from iteration to iteration by plan: the learning rate, the teacher's momentum, the
//! dynamic threshold.

use lacuna_models::ops::Sgd;

use crate::config::{Dynamic, TeacherConfig, TrainConfig};

impl TrainConfig {
    /// The step of this iteration, the first being 0.
    pub fn sgd(&self, iteration: u64) -> Sgd {
        let passed = self.lr_milestones.iter().filter(|&&milestone| iteration >= milestone).count();
        let warm_up = if iteration < self.warm_up_iterations {
            let share = iteration as f32 / self.warm_up_iterations as f32;
            self.warm_up_start + (1.0 - self.warm_up_start) * share
        } else {
            1.0
        };
        Sgd {
            learning_rate: self.lr * warm_up * self.lr_decay.powi(passed as i32),
            momentum: self.momentum,
            weight_decay: self.weight_decay,
        }
    }
}

impl TeacherConfig {
    /// How much of the teacher stays after this iteration: nothing after the first, which is 0.
    pub fn momentum(&self, iteration: u64) -> f32 {
        self.momentum_max.min(1.0 - 1.0 / (iteration as f32 + 1.0))
    }
}

impl Dynamic {
    /// `τ0 + (1 − τ0)·ln(e − e⁻)/ln(e⁺ − e⁻)` for `e > e⁻ + 1`, τ0 before. `e` counts epochs that began
    /// before, so it grows within an epoch.
    pub fn threshold(&self, epoch: f64, epochs_of_run: f64) -> f32 {
        let Self { threshold_start, epoch_start, .. } = *self;
        let epoch_end = self.epoch_end.unwrap_or(epochs_of_run);
        if epoch <= epoch_start + 1.0 || epoch_end <= epoch_start + 1.0 {
            return threshold_start;
        }
        let share = (epoch - epoch_start).ln() / (epoch_end - epoch_start).ln();
        threshold_start + (1.0 - threshold_start) * share.min(1.0) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Method;

    #[test]
    fn the_learning_rate_warms_up_and_falls_at_milestones() {
        let train = TrainConfig {
            lr: 0.01,
            lr_milestones: vec![1000, 2000],
            lr_decay: 0.1,
            warm_up_iterations: 100,
            warm_up_start: 0.1,
            ..TrainConfig::paper()
        };
        let rate = |iteration| train.sgd(iteration).learning_rate;
        for (iteration, expected) in
            [(0, 0.001), (50, 0.0055), (100, 0.01), (999, 0.01), (1000, 0.001), (2000, 0.0001)]
        {
            assert!((rate(iteration) - expected).abs() < 1e-8, "{iteration}: {}", rate(iteration));
        }
    }

    #[test]
    fn the_teacher_starts_as_the_student() {
        let teacher = TeacherConfig::default();
        assert_eq!(teacher.momentum(0), 0.0);
        assert_eq!(teacher.momentum(1), 0.5);
        assert_eq!(teacher.momentum(1_000_000), 0.999);
    }

    #[test]
    fn the_dynamic_threshold_grows_from_start_to_one() {
        let Some(Method::Dynamic(method)) = Method::named("dynamic") else { panic!("it is a method") };
        let method = Dynamic { threshold_start: 0.5, epoch_start: 2.0, epoch_end: None, ..method };
        assert_eq!(method.threshold(0.0, 12.0), 0.5);
        assert_eq!(method.threshold(3.0, 12.0), 0.5);
        let expected = 0.5 + 0.5 * 5f32.ln() / 10f32.ln();
        assert!((method.threshold(7.0, 12.0) - expected).abs() < 1e-6);
        assert!((method.threshold(12.0, 12.0) - 1.0).abs() < 1e-6);
        assert_eq!(method.threshold(20.0, 12.0), 1.0);
        // A run that ends before the threshold would grow.
        assert_eq!(method.threshold(2.9, 2.9), 0.5);
    }
}
