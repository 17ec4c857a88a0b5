//! SAOD (Suri et al., "SparseDet: Improving Sparsely Annotated Object Detection with Pseudo-positive Mining", ICCV 2023).
//!
//! Differs from the reference: its second view also has a part of one annotated box blackened; and where a detector is
//! used, its colors are drawn anew for each image, ours are the same for all.

use lacuna_boxes::Score;
use lacuna_models::faster_rcnn::{Mining, TwoViewLoss, TwoViews};
use lacuna_models::{Detector, Images};

use super::{Lesson, Taught, annotated, options, rngs, tracked};
use crate::config::Saod;
use crate::learner::{Learner, Step, Threshold};
use crate::phases::Phase;

impl Saod {
    pub(crate) fn step(&self, learner: Learner, lesson: Lesson) -> Taught {
        let Lesson { config, mut batch, ids, watch, .. } = lesson;
        let [first, second] = [batch.views.remove(0), batch.views.remove(0)].map(tracked);
        let images = Images { second_view: Some(second.pixels), ..first };
        let Self { objectness_min, iou_max, nms_iou_max, weight, threshold, mining_start } = *self;
        let mining = Mining { objectness_min, iou_max, nms_iou_max, weight };
        let mining = (learner.iteration >= mining_start).then_some(mining);
        let two_views = TwoViews { score_min: threshold, mining };

        let (targets, mut rngs) = (annotated(&batch.objects), rngs(config, batch.at, ids));
        let Detector::FasterRcnn(student) = &learner.student else {
            unreachable!("SAOD trains Faster R-CNN alone")
        };
        let TwoViewLoss { losses, detections: found, pseudo_labels } = watch.time(Phase::Forward, || {
            student.two_view_loss(&images, &targets, &two_views, &options(config), &mut rngs)
        });
        let (learner, terms) = learner.descend(config, losses, watch);
        let threshold = Some(self.label_threshold());
        let step =
            |losses| Step { losses, images: ids.len(), found, pseudo_labels, threshold, ..Step::default() };
        (learner, terms.map(step))
    }

    pub(crate) fn label_threshold(&self) -> Threshold {
        Threshold::Score(Score(self.threshold))
    }
}
