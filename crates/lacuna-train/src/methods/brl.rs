//! BRL, background recalibration loss (Zhang et al., "Solving Missing-Annotation Object Detection with Background
//! Recalibration Loss", ICASSP 2020): the annotations alone, with a loss that distrusts background far from all of them.

use lacuna_models::{LossOptions, Recalibration};

use super::{Lesson, Taught, annotated, options, rngs, tracked};
use crate::config::Brl;
use crate::learner::{Learner, Step};
use crate::phases::Phase;

impl Brl {
    pub(crate) fn step(&self, learner: Learner, lesson: Lesson) -> Taught {
        let Lesson { config, mut batch, ids, watch, .. } = lesson;
        let images = tracked(batch.views.remove(0));
        let (targets, mut rngs) = (annotated(&batch.objects), rngs(config, batch.at, ids));
        let Self { iou_max, weight, turn, .. } = *self;
        let recalibration = Some(Recalibration { iou_max, weight, turn });
        let options = LossOptions { recalibration, ..options(config) };
        let losses = watch.time(Phase::Forward, || learner.loss(&images, &targets, &options, &mut rngs));
        let (learner, terms) = learner.descend(config, losses, watch);
        (learner, terms.map(|losses| Step { losses, images: ids.len(), ..Step::default() }))
    }
}
