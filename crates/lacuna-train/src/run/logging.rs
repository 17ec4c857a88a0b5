//! The numbers of a run: sums over its steps, warnings about them, and their lines.

use std::collections::HashMap;

use lacuna_data::Object;

use super::{Run, TrainError};
use crate::metrics::{MetricsWindow, Record};
use crate::step::{EpochProgress, Step};

impl Run<'_> {
    /// Adds a step to the sums, warns if they look wrong, and writes their line when it is due.
    pub(super) fn log_step(
        &mut self,
        step: &Step,
        annotations: usize,
        image_ids: &[u64],
    ) -> Result<(), TrainError> {
        let Self { config, data, learner, progress, observer, .. } = self;
        let hidden_in = |hidden: &HashMap<u64, Vec<Object>>| -> Vec<Vec<Object>> {
            image_ids.iter().map(|id| hidden.get(id).cloned().unwrap_or_default()).collect()
        };
        let hidden = data.hidden.as_ref().map(hidden_in);
        for window in [&mut progress.since_line, &mut progress.since_evaluation] {
            window.add(step, annotations, hidden.as_deref());
        }
        let iteration = learner.iteration;
        let line_is_due = iteration.is_multiple_of(config.train.log_every);
        if let Some(first) = config.method.as_dyn().first_pseudo_labels() {
            let mut warnings = progress.warnings.after_step(iteration, first, step);
            if line_is_due {
                warnings.extend(progress.warnings.after_window(iteration, &progress.since_line));
            }
            warnings.into_iter().for_each(|warning| observer.warn(warning));
        }
        if line_is_due {
            let record = self.record(self.progress.since_line.clone());
            self.logs.write_iterations(&record)?;
        }
        Ok(())
    }

    /// The numbers of a line, without an evaluation.
    pub(super) fn record(&self, window: MetricsWindow) -> Record {
        let Self { config, learner, progress, batches_per_epoch, .. } = self;
        let (method, iteration) = (config.method.as_dyn(), learner.iteration);
        let epoch = EpochProgress::new(progress.position, *batches_per_epoch, config.train.iterations);
        Record {
            iteration,
            epoch: iteration as f64 / *batches_per_epoch as f64,
            lr: config.train.sgd(iteration.saturating_sub(1)).learning_rate,
            has_pseudo_labels: method.first_pseudo_labels().is_some(),
            window,
            calibrator: learner.calibrator().cloned(),
            threshold: method.threshold(learner, epoch),
            student: None,
            teacher: None,
        }
    }
}
