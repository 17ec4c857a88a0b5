//! Evaluation of the learner on the test images of a run.

use burn::module::Module;
use lacuna_data::decode::OnBadImage;
use lacuna_eval::AveragePrecision;
use lacuna_models::Detector;

use super::{Observer, Run, TrainError};
use crate::data::DataPart;
use crate::evaluate::{average_precision, detect_all, match_classes};
use crate::metrics::{MetricsWindow, Record};
use crate::model::ModelConfig;
use crate::phases::Phase;

impl Run<'_> {
    pub(super) fn evaluation_is_due(&self) -> bool {
        let (iteration, train) = (self.learner.iteration, &self.config.train);
        let is_last = iteration == train.iterations;
        let in_turn = train.evaluate_every.is_some_and(|every| iteration.is_multiple_of(every));
        iteration > 0 && self.progress.evaluated < iteration && (is_last || in_turn)
    }

    /// Evaluates the learner, writes the result, and keeps the model if it is the best so far.
    pub(super) fn evaluate(&mut self) -> Result<(), TrainError> {
        let record = match self.measure() {
            Err(TrainError::Data(lacuna_data::Error::Interrupted)) => {
                self.write_checkpoint()?;
                return Err(self.interrupted());
            }
            record => record?,
        };
        self.logs.write_evaluation(&record)?;
        let ap = record.teacher.as_ref().or(record.student.as_ref()).and_then(|ap| ap.ap);
        if let Some(ap) = ap
            && self.progress.best.is_none_or(|best| ap > best)
        {
            self.timed(Phase::Checkpoint, |run| run.checkpoints.write_best(&run.learner, &run.model))?;
            self.progress.best = Some(ap);
        }
        self.progress.evaluated = self.learner.iteration;
        self.progress.since_evaluation = MetricsWindow::default();
        self.observer.evaluated(&record);
        self.last_evaluation = Some(record);
        Ok(())
    }

    /// The record of the iterations since the last evaluation, with the average precision of student and teacher.
    pub(super) fn measure(&mut self) -> Result<Record, TrainError> {
        let record = self.record(self.progress.since_evaluation.clone());
        let Self { config, data, model, learner, stopwatch, observer, .. } = self;
        let Some(part) = &data.test else { return Ok(record) };
        let mut test = |detector: &Detector| {
            stopwatch.time(Phase::Evaluate, || {
                test_detector(detector, model, part, config.data.on_bad_image, &mut **observer)
            })
        };
        let student = Some(test(&learner.student.valid())?);
        let teacher = learner.teacher.as_deref().map(test).transpose()?;
        Ok(Record { student, teacher, ..record })
    }
}

fn test_detector(
    detector: &Detector,
    model: &ModelConfig,
    DataPart { dataset, folder, .. }: &DataPart,
    on_bad_image: OnBadImage,
    observer: &mut dyn Observer,
) -> lacuna_data::Result<AveragePrecision> {
    let (mut images, of) = (0, dataset.images().len());
    let mut keep_going = || {
        images += 1;
        observer.evaluating(images, of);
        observer.keep_going()
    };
    let found = detect_all(detector, &model.input, (dataset, folder), on_bad_image, &mut keep_going)?;
    for skipped in &found.skipped {
        observer.warn(skipped.to_string());
    }
    let classes = match_classes(&model.categories, dataset);
    Ok(average_precision(dataset, &found.detections, &classes))
}
