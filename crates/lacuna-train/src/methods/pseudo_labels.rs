//! Algorithm 1 of the paper with its surroundings: a teacher's detections away from all annotations become pseudo
//! labels, by a threshold of their scores that is fixed or grows, or of their calibrated confidences.

use lacuna_boxes::{Detection, Score};
use lacuna_calib::{Calibrator, Confidence, Platt};

use super::{Lesson, Taught, annotated, plain, pseudo_labeled, rngs, select, tracked, union};
use crate::config::{BeforeFirstFit, Calibrated, Dynamic, Fixed, FocalIou, TeacherConfig};
use crate::learner::{Calibration, Learner, Step, Threshold};
use crate::phases::Phase;
use lacuna_gaps::{JudgedImage, OverlapRule, judge_image};

/// What the three methods have in common.
struct Teaching<'a> {
    teacher: &'a TeacherConfig,
    overlap: &'a OverlapRule,
    focal_iou: &'a FocalIou,
}

impl Fixed {
    pub(crate) fn step(&self, learner: Learner, lesson: Lesson) -> Taught {
        let Self { teacher, overlap, focal_iou, .. } = self;
        let threshold = self.threshold_at(learner.iteration);
        Teaching { teacher, overlap, focal_iou }.step(learner, threshold, lesson)
    }

    pub(crate) fn threshold_at(&self, iteration: u64) -> Option<Threshold> {
        self.teacher.has_begun(iteration).then_some(Threshold::Score(Score(self.threshold)))
    }
}

impl Dynamic {
    pub(crate) fn step(&self, learner: Learner, lesson: Lesson) -> Taught {
        let Self { teacher, overlap, focal_iou, .. } = self;
        let epoch = lesson.epochs.at(lesson.batch.at);
        let threshold = self.threshold_at(learner.iteration, epoch, lesson.epochs.of_run);
        Teaching { teacher, overlap, focal_iou }.step(learner, threshold, lesson)
    }

    pub(crate) fn threshold_at(&self, iteration: u64, epoch: f64, of_run: f64) -> Option<Threshold> {
        let threshold = || Threshold::Score(Score(self.threshold(epoch, of_run)));
        self.teacher.has_begun(iteration).then(threshold)
    }
}

impl Calibrated {
    /// As the others; then what was seen of the teacher joins the queue, to which the calibrator is fitted every so often.
    pub(crate) fn step(&self, learner: Learner, lesson: Lesson) -> Taught {
        let Self { teacher, overlap, focal_iou, .. } = self;
        let calibrator = learner.calibrator().cloned();
        let threshold = self.threshold_at(learner.iteration, calibrator.as_ref());
        let Lesson { config, batch, ids, epochs, watch } = lesson;
        let lesson = Lesson { config, batch, ids, epochs, watch: &mut *watch };
        let (mut learner, step) = Teaching { teacher, overlap, focal_iou }.step(learner, threshold, lesson);
        let step = step.map(|step| {
            let iteration = learner.iteration;
            let calibration = learner.teacher.as_mut().and_then(|teacher| teacher.calibration.as_mut());
            let refit = watch.time(Phase::Calibrate, || {
                let calibration: &mut Calibration = calibration?;
                step.splits.iter().for_each(|split| calibration.remember(self, split));
                calibration.refit(self, iteration)
            });
            Step { calibrator, refit, ..step }
        });
        (learner, step)
    }

    pub(crate) fn threshold_at(&self, iteration: u64, calibrator: Option<&Calibrator>) -> Option<Threshold> {
        let calibrator = match (calibrator, self.before_first_fit) {
            (Some(calibrator), _) => calibrator.clone(),
            (None, BeforeFirstFit::Identity) => Platt::IDENTITY.into(),
            (None, BeforeFirstFit::Nothing) => return None,
        };
        let threshold = || Threshold::Confidence(Confidence(self.confidence_min), calibrator);
        self.teacher.has_begun(iteration).then(threshold)
    }
}

impl TeacherConfig {
    fn has_begun(&self, iteration: u64) -> bool {
        iteration >= self.start_iteration
    }
}

impl Teaching<'_> {
    fn step(&self, learner: Learner, threshold: Option<Threshold>, lesson: Lesson) -> Taught {
        let Lesson { config, mut batch, ids, watch, .. } = lesson;
        let [weak, strong] = [batch.views.remove(0), batch.views.remove(0)];

        // The teacher looks at the weak view. What is near an annotation of its class is judged; the rest may be missing
        // boxes, and those that it is sure of become pseudo labels.
        let found = watch.time(Phase::Teacher, || -> Vec<Vec<Detection>> {
            let teacher = learner.teacher.as_ref().expect("the method has a teacher");
            teacher.detector.detect_above(self.teacher.score_min, &plain(weak))
        });
        let of_image = |image: usize| -> JudgedImage {
            judge_image(&found[image], &batch.objects[image], self.overlap, strong.to_view[image])
        };
        let splits: Vec<JudgedImage> = (0..found.len()).map(of_image).collect();
        let pseudo_labels: Vec<Vec<Detection>> =
            splits.iter().map(|split| select(&split.candidates, threshold.as_ref())).collect();

        // The student learns the strong view, from annotations and pseudo labels alike (or only the classes of the latter).
        let targets =
            union(annotated(&batch.objects), pseudo_labeled(&pseudo_labels, self.teacher.pseudo_boxes));
        let (images, mut rngs) = (tracked(strong), rngs(config, batch.at, ids));
        let losses = watch.time(Phase::Forward, || {
            learner.weighted_loss(&images, &targets, self.focal_iou, config, &mut rngs)
        });

        // The student steps, and the teacher follows.
        let (learner, terms) = learner.descend(config, losses, watch);
        let step = |losses| Step {
            losses,
            images: ids.len(),
            found,
            splits,
            pseudo_labels,
            threshold,
            ..Step::default()
        };
        (learner, terms.map(step))
    }
}
