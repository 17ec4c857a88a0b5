//! Training on the annotations as if they were complete.

use super::{Lesson, Taught, annotated, rngs, tracked};
use crate::config::Supervised;
use crate::learner::{Learner, Step};
use crate::phases::Phase;

impl Supervised {
    pub(crate) fn step(&self, learner: Learner, lesson: Lesson) -> Taught {
        let Lesson { config, mut batch, ids, watch, .. } = lesson;
        let images = tracked(batch.views.remove(0));
        let (targets, mut rngs) = (annotated(&batch.objects), rngs(config, batch.at, ids));
        let losses = watch.time(Phase::Forward, || {
            learner.weighted_loss(&images, &targets, &self.focal_iou, config, &mut rngs)
        });
        let (learner, terms) = learner.descend(config, losses, watch);
        (learner, terms.map(|losses| Step { losses, images: ids.len(), ..Step::default() }))
    }
}
