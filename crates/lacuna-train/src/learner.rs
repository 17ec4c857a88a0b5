//! The learner: everything that training changes.

use burn::module::Module;
use lacuna_calib::Calibrator;
use lacuna_models::{Detector, Losses, Term, ops};

use crate::config::RunConfig;
use crate::methods::calibrated::Calibration;
use crate::optim::{InPlace, NormStatistics, Optimizer, update_teacher};
use crate::phases::Phase;
use crate::step::{NotFinite, Step, StepContext};

/// Everything that training changes.
pub(crate) struct Learner {
    /// On a device that tracks gradients.
    pub(crate) student: InPlace<Detector>,
    /// The EMA of the student, on a plain device, for a method that has one.
    pub(crate) teacher: Option<InPlace<Detector>>,
    /// The calibrator of the teacher's scores, for a method that has one.
    pub(crate) calibration: Option<Calibration>,
    pub(crate) optimizer: Optimizer,
    /// How many iterations are done.
    pub(crate) iteration: u64,
}

impl Learner {
    /// A learner before its first iteration; the teacher is a copy of the student.
    pub(crate) fn new(student: Detector, config: &RunConfig) -> Self {
        let method = config.method.as_dyn();
        Self {
            teacher: method.has_teacher().then(|| InPlace::new(student.valid())),
            student: InPlace::new(student),
            calibration: method.calibration(),
            optimizer: Optimizer::new(config.train.gradient_norm_max),
            iteration: 0,
        }
    }

    /// One iteration of the method. After an error the learner is as it was before.
    pub(crate) fn step(&mut self, mut context: StepContext) -> Result<Step, NotFinite> {
        let statistics = NormStatistics::save(&*self.student);
        let step = context.config.method.as_dyn().step(self, &mut context);
        if step.is_err() {
            // A forward pass changes the statistics of batch norm.
            self.student.update(|student| (statistics.restore(student), ()));
        }
        step
    }

    /// Backward pass, SGD step of the student, EMA step of the teacher. Returns the terms of the loss. If the loss or
    /// its gradient is not finite, no weight changes.
    pub(crate) fn descend(
        &mut self,
        losses: Losses,
        context: &mut StepContext,
    ) -> Result<Vec<(Term, f32)>, NotFinite> {
        let StepContext { config, stopwatch, .. } = context;
        let terms: Vec<(Term, f32)> =
            losses.0.iter().map(|(term, loss)| (*term, ops::values(loss.clone())[0])).collect();
        if terms.iter().any(|(_, loss)| !loss.is_finite()) {
            return Err(NotFinite { what: "loss", losses: terms });
        }
        let gradients = stopwatch.time(Phase::Backward, || losses.total().backward());
        // Its graph holds the parameters, which SGD changes in their memory.
        drop(losses);

        let sgd = config.train.sgd(self.iteration);
        let Self { student, teacher, optimizer, .. } = self;
        let is_finite =
            stopwatch.time(Phase::Sgd, || student.update(|student| optimizer.step(student, gradients, sgd)));
        if !is_finite {
            return Err(NotFinite { what: "gradient", losses: terms });
        }
        let momentum = config.method.as_dyn().ema_momentum(self.iteration);
        if let (Some(teacher), Some(momentum)) = (teacher, momentum) {
            stopwatch.time(Phase::Ema, || {
                teacher.update(|teacher| (update_teacher(teacher, &**student, momentum), ()));
            });
        }
        self.iteration += 1;
        Ok(terms)
    }

    /// The teacher of a method that has one.
    pub(crate) fn teacher(&self) -> &Detector {
        self.teacher.as_deref().expect("the method has a teacher")
    }

    /// The calibrator as it is now; `None` before the first fit.
    pub(crate) fn calibrator(&self) -> Option<&Calibrator> {
        self.calibration.as_ref()?.calibrator.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use lacuna_models::weights::to_safetensors;

    use super::*;
    use crate::methods::testing::{batch, learner_with, step_on};

    #[test]
    fn a_step_that_is_not_finite_changes_nothing() {
        let method = "name = \"fixed\"\n[method.teacher]\nmomentum_max = 0.5";
        let (mut learner, config) = learner_with(method, &["detector.backbone.norm=batch".to_owned()]);
        step_on(&mut learner, &config, batch()).expect("a finite loss");

        let weights = |learner: &Learner| {
            let velocities = learner.optimizer.velocities_of(learner.student.valid());
            [&learner.student.valid(), learner.teacher(), &velocities].map(to_safetensors)
        };
        let before = weights(&learner);
        let mut broken = batch();
        broken.views[1].pixels[0] = f32::NAN;
        step_on(&mut learner, &config, broken).expect_err("an image with NaN");
        assert!(weights(&learner) == before, "weights, statistics or momentum have changed");
        assert_eq!(learner.iteration, 1);

        // The same step can still be taken.
        step_on(&mut learner, &config, batch()).expect("a finite loss");
        assert!(weights(&learner) != before);
    }
}
