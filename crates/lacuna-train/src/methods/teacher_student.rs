//! The paper's Algorithm 1 with its surroundings (Wang et al., "Calibrated Teacher for Sparsely Annotated Object
//! Detection", AAAI 2023), which the methods `fixed`, `dynamic` and `calibrated` share. They differ in their threshold.

use lacuna_boxes::Detection;
use lacuna_data::augment::ResizeRange;
use lacuna_data::batch::Recipe;
use lacuna_gaps::{JudgedImage, OverlapRule, judge_image};
use lacuna_models::DetectorConfig;
use serde::{Deserialize, Serialize};

use super::inputs::{
    annotation_targets, plain_images, pseudo_label_targets, student_view, tracked_images, union,
};
use super::{FocalIou, Threshold};
use crate::config::rules::{Violation, is_share, is_share_below_one, require, require_above_floor};
use crate::learner::Learner;
use crate::phases::Phase;
use crate::step::{NotFinite, Step, StepContext};

/// Settings of the paper's teacher.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TeacherConfig {
    /// The first iteration with pseudo labels; before it the teacher is only judged.
    pub start_iteration: u64,
    /// The floor of raw scores: only detections above it are used.
    pub score_min: f32,
    /// After iteration t the teacher is `m·teacher + (1 − m)·student` with `m = min(this, 1 − 1/(t + 1))`.
    pub momentum_max: f32,
    /// Whether the boxes of pseudo labels are learned, or their classes alone.
    pub pseudo_boxes: bool,
}

impl Default for TeacherConfig {
    fn default() -> Self {
        Self { start_iteration: 0, score_min: 0.4, momentum_max: 0.999, pseudo_boxes: true }
    }
}

impl TeacherConfig {
    /// `m = min(momentum_max, 1 − 1/(t + 1))`: nothing of the teacher stays after iteration 0.
    pub(super) fn momentum(&self, iteration: u64) -> f32 {
        self.momentum_max.min(1.0 - 1.0 / (iteration as f32 + 1.0))
    }

    pub(super) fn has_started(&self, iteration: u64) -> bool {
        iteration >= self.start_iteration
    }
}

/// The settings that the three methods share.
pub(crate) struct TeacherStudent<'a> {
    pub(crate) strong_view: bool,
    pub(crate) teacher: &'a TeacherConfig,
    pub(crate) overlap: &'a OverlapRule,
    pub(crate) focal_iou: &'a FocalIou,
}

impl TeacherStudent<'_> {
    pub(super) fn views(&self, range: ResizeRange) -> Vec<Recipe> {
        vec![Recipe::Weak(range), student_view(self.strong_view, range)]
    }

    /// One iteration, with the threshold of the method.
    pub(super) fn step(
        &self,
        threshold: Option<Threshold>,
        learner: &mut Learner,
        context: &mut StepContext,
    ) -> Result<Step, NotFinite> {
        // 1. Two views of each image: a weak one for the teacher, a strong one for the student.
        let [weak, strong] = context.take_views();

        // 2. The teacher detects in the weak view; scores above the floor count.
        let detections = context.stopwatch.time(Phase::Teacher, || {
            learner.teacher().detect_above(self.teacher.score_min, &plain_images(weak))
        });

        // 3. A detection near an annotation of its class is judged; one away from all is a candidate for a missing box.
        let annotations = &context.batch.objects;
        let judge = |image: usize| -> JudgedImage {
            judge_image(&detections[image], &annotations[image], self.overlap, strong.to_view[image])
        };
        let judged: Vec<JudgedImage> = (0..detections.len()).map(judge).collect();

        // 4. Candidates above the threshold become pseudo labels.
        let pseudo_labels: Vec<Vec<Detection>> =
            judged.iter().map(|image| Threshold::select(threshold.as_ref(), &image.candidates)).collect();

        // 5. The student's loss on the strong view, with annotations ∪ pseudo labels and weighted negatives.
        let pseudo_targets = pseudo_label_targets(&pseudo_labels, self.teacher.pseudo_boxes);
        let targets = union(annotation_targets(annotations), pseudo_targets);
        let (images, options, mut rngs) = (tracked_images(strong), context.loss_options(), context.rngs());
        let losses = context.stopwatch.time(Phase::Forward, || {
            self.focal_iou.student_loss(learner, &images, &targets, &options, &mut rngs)
        });

        // 6. SGD step of the student, EMA step of the teacher. `calibrated` then refits its calibrator.
        let losses = learner.descend(losses, context)?;
        let images = detections.len();
        Ok(Step { losses, images, detections, judged, pseudo_labels, threshold, ..Step::default() })
    }

    pub(super) fn check(&self, detector: &DetectorConfig) -> Result<(), Violation> {
        let TeacherConfig { score_min, momentum_max, .. } = *self.teacher;
        require_above_floor(score_min, "method.teacher.score_min", detector)?;
        require(is_share_below_one(momentum_max), "method.teacher.momentum_max", "from 0 to below 1")?;

        let OverlapRule { iou_low, iou_high, cross_class_iou, candidate_iou, containment, min_side } =
            *self.overlap;
        require(is_share(iou_low) && iou_low > 0.0, "method.overlap.iou_low", "above 0, up to 1")?;
        let ordered = is_share(iou_high) && iou_low <= iou_high;
        require(ordered, "method.overlap.iou_high", "from `iou_low` to 1")?;
        for (key, value) in [
            ("cross_class_iou", cross_class_iou),
            ("candidate_iou", candidate_iou),
            ("containment", containment),
        ] {
            let holds = value.is_none_or(is_share);
            require(holds, format!("method.overlap.{key}"), "from 0 to 1, or \"off\"")?;
        }
        let side = min_side.is_none_or(|side| side >= 0.0 && side.is_finite());
        require(side, "method.overlap.min_side", "0 or more pixels, or \"off\"")?;
        self.focal_iou.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_teacher_starts_as_the_student() {
        let teacher = TeacherConfig::default();
        assert_eq!(teacher.momentum(0), 0.0);
        assert_eq!(teacher.momentum(1), 0.5);
        assert_eq!(teacher.momentum(1_000_000), 0.999);
    }
}
