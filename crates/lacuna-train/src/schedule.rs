//! The learning rate of each iteration: warm-up and milestones.

use lacuna_models::ops::Sgd;

use crate::config::TrainConfig;

impl TrainConfig {
    /// SGD's settings in this iteration, counted from 0.
    pub(crate) fn sgd(&self, iteration: u64) -> Sgd {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
