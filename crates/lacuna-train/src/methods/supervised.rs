//! Training on the annotations as if they were complete.

use lacuna_models::{Images, Losses, Target};
use lacuna_random::Rng;

use super::{Lesson, Taught, annotated, rngs, tracked};
use crate::config::Supervised;
use crate::learner::{Learner, Step};
use crate::phases::Phase;

impl Supervised {
    pub(crate) fn step(&self, learner: Learner, lesson: Lesson) -> Taught {
        let config = lesson.config;
        by_annotations(learner, lesson, |learner, images, targets, rngs| {
            learner.weighted_loss(images, targets, &self.focal_iou, config, rngs)
        })
    }
}

/// The student learns one view from the annotations alone, by a loss of the method's.
pub(super) fn by_annotations(
    learner: Learner,
    lesson: Lesson,
    loss: impl FnOnce(&Learner, &Images, &[Vec<Target>], &mut [Rng]) -> Losses,
) -> Taught {
    let Lesson { config, mut batch, ids, watch, .. } = lesson;
    let images = tracked(batch.views.remove(0));
    let (targets, mut rngs) = (annotated(&batch.objects), rngs(config, batch.at, ids));
    let losses = watch.time(Phase::Forward, || loss(&learner, &images, &targets, &mut rngs));
    let (learner, terms) = learner.descend(config, losses, watch);
    (learner, terms.map(|losses| Step { losses, images: ids.len(), ..Step::default() }))
}
