//! BRL, background recalibration loss (Zhang et al., "Solving Missing-Annotation Object Detection with Background
//! Recalibration Loss", ICASSP 2020): the annotations alone, with a loss that distrusts background far from all of them.

use lacuna_models::{LossOptions, Recalibration};

use super::supervised::by_annotations;
use super::{Lesson, Taught, options};
use crate::config::Brl;
use crate::learner::Learner;

impl Brl {
    pub(crate) fn step(&self, learner: Learner, lesson: Lesson) -> Taught {
        let Self { iou_max, weight, turn, .. } = *self;
        let recalibration = Some(Recalibration { iou_max, weight, turn });
        let options = LossOptions { recalibration, ..options(lesson.config) };
        by_annotations(learner, lesson, |learner, images, targets, rngs| {
            learner.student.loss(images, targets, &options, rngs)
        })
    }
}
