//! One iteration of training, a file for each method. What they share is here: the views they are given, targets, and
//! the student's loss.

mod brl;
mod co_mining;
mod pseudo_labels;
mod saod;
mod supervised;
mod unbiased_teacher;

use burn::Tensor;
use burn::tensor::{Device, TensorData};
use lacuna_boxes::Detection;
use lacuna_data::Object;
use lacuna_data::batch::{Batch, Position, View};
use lacuna_models::{Images, LossOptions, Losses, NegativeWeight, Target};
use lacuna_random::{Purpose, Rng};

use crate::NormStatistics;
use crate::config::{FocalIou, Method, RunConfig};
use crate::learner::{Learner, NotFinite, Step, Threshold};
use crate::phases::Stopwatch;

/// What an iteration is given.
pub struct Lesson<'a> {
    pub config: &'a RunConfig,
    pub batch: Batch,
    /// The images' own.
    pub ids: &'a [u64],
    pub epochs: Epochs,
    pub watch: &'a mut Stopwatch,
}

/// How long the epochs are, and how many there are.
#[derive(Clone, Copy, Debug)]
pub struct Epochs {
    /// Batches of each.
    pub batches: usize,
    pub of_run: f64,
}

impl Epochs {
    /// The epochs that a position is after the start, in parts of one.
    fn at(&self, position: Position) -> f64 {
        position.epoch as f64 + position.batch as f64 / self.batches as f64
    }
}

/// A learner after an iteration, and what that was. When the loss or its gradient is not finite, nothing has changed.
pub type Taught = (Learner, Result<Step, NotFinite>);

impl Learner {
    /// One iteration.
    pub fn step(self, lesson: Lesson) -> Taught {
        let statistics = NormStatistics::of(&self.student);
        let (mut learner, step) = self.step_of_method(lesson);
        if step.is_err() {
            learner.student = statistics.put_back(learner.student);
        }
        (learner, step)
    }

    fn step_of_method(self, lesson: Lesson) -> Taught {
        match &lesson.config.method {
            Method::Supervised(method) => method.step(self, lesson),
            Method::Fixed(method) => method.step(self, lesson),
            Method::Dynamic(method) => method.step(self, lesson),
            Method::Calibrated(method) => method.step(self, lesson),
            Method::Brl(method) => method.step(self, lesson),
            Method::CoMining(method) => method.step(self, lesson),
            Method::UnbiasedTeacher(method) => method.step(self, lesson),
            Method::Saod(method) => method.step(self, lesson),
        }
    }

    /// What detections have to be above to become pseudo labels, as things are now; `None` when none is let through.
    pub(crate) fn threshold(&self, config: &RunConfig, at: Position, epochs: Epochs) -> Option<Threshold> {
        match &config.method {
            Method::Supervised(_) | Method::Brl(_) => None,
            Method::Fixed(method) => method.threshold_at(self.iteration),
            Method::Dynamic(method) => method.threshold_at(self.iteration, epochs.at(at), epochs.of_run),
            Method::Calibrated(method) => method.threshold_at(self.iteration, self.calibrator()),
            Method::CoMining(method) => method.threshold_at(self.iteration),
            Method::UnbiasedTeacher(method) => method.threshold_at(self.iteration),
            Method::Saod(method) => Some(method.label_threshold()),
        }
    }

    /// What a view costs the student, with Focal IoU weight once that has begun.
    fn weighted_loss(
        &self,
        images: &Images,
        targets: &[Vec<Target>],
        focal_iou: &FocalIou,
        config: &RunConfig,
        rngs: &mut [Rng],
    ) -> Losses {
        let (weight, slope) = (|iou: f32| focal_iou.weight(iou), |iou: f32| focal_iou.slope(iou));
        let weighs = focal_iou.enabled && self.iteration >= focal_iou.start_iteration;
        let negative_weight = weighs.then_some(NegativeWeight {
            weight: &weight,
            slope: &slope,
            iou_of: focal_iou.iou_of,
            rpn: focal_iou.rpn,
            proposals: focal_iou.proposals,
        });
        self.student.loss(images, targets, &LossOptions { negative_weight, ..options(config) }, rngs)
    }
}

/// The run's, without anything that a method adds.
fn options(config: &RunConfig) -> LossOptions<'static> {
    LossOptions { normalization: config.train.normalization, ..LossOptions::default() }
}

/// For what a detector draws at random in this iteration; of each image.
fn rngs(config: &RunConfig, at: Position, ids: &[u64]) -> Vec<Rng> {
    ids.iter().map(|&id| Rng::new(Purpose::Sampling, config.train.seed, at.epoch, id)).collect()
}

/// A view as a detector takes it that learns from it.
fn tracked(view: View) -> Images {
    images(view, &Device::flex().autodiff())
}

/// A view as a detector takes it that only looks at it.
fn plain(view: View) -> Images {
    images(view, &Device::flex())
}

fn images(view: View, device: &Device) -> Images {
    let View { height, width, pixels, sizes, to_view } = view;
    let data = TensorData::new(pixels, [sizes.len(), height, width, 3]);
    Images { pixels: Tensor::from_data(data, device), second_view: None, sizes, to_view }
}

fn select(candidates: &[Detection], threshold: Option<&Threshold>) -> Vec<Detection> {
    let Some(threshold) = threshold else { return Vec::new() };
    candidates.iter().filter(|candidate| threshold.is_below(candidate)).copied().collect()
}

/// Detections that no annotation of their class overlaps more than `iou_max`.
fn new_to(found: &[Detection], annotations: &[Object], iou_max: f32) -> Vec<Detection> {
    let objects = || annotations.iter().map(|object| (object.bbox, object.class));
    found.iter().filter(|found| !found.is_one_of(objects(), iou_max)).copied().collect()
}

/// Annotations ∪ pseudo labels.
fn union(mut annotated: Vec<Vec<Target>>, pseudo_labeled: Vec<Vec<Target>>) -> Vec<Vec<Target>> {
    annotated.iter_mut().zip(pseudo_labeled).for_each(|(annotated, added)| annotated.extend(added));
    annotated
}

fn annotated(annotations: &[Vec<Object>]) -> Vec<Vec<Target>> {
    let target = |object: &Object| Target { bbox: object.bbox, class: object.class, learn_box: true };
    annotations.iter().map(|objects| objects.iter().map(target).collect()).collect()
}

/// Pseudo labels, whose boxes are to be learned (`learn_box`), or their classes alone.
fn pseudo_labeled(pseudo_labels: &[Vec<Detection>], learn_box: bool) -> Vec<Vec<Target>> {
    let target = |found: &Detection| Target { bbox: found.bbox, class: found.class, learn_box };
    pseudo_labels.iter().map(|found| found.iter().map(target).collect()).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use burn::module::Module;
    use lacuna_boxes::{Affine, Box2, Score, iou};
    use lacuna_calib::{Confidence, Curve, NoFit, Outcome, Platt, Sample};
    use lacuna_models::{Term, ops};

    use super::*;
    use crate::config::Source;
    use crate::learner::Refit;

    const EPOCHS: Epochs = Epochs { batches: 10, of_run: 30.0 };

    fn learner(method: &str) -> (Learner, RunConfig) {
        let text = format!(
            "[data.train]\npath = \"train.json\"\n[detector]\nkind = \"fcos\"\nwidth = 32\nhead_depth = 0\n\
             [detector.backbone]\ndepth = \"resnet10\"\nwidth = 32\nnorm = \"group\"\nfrozen_stages = 0\n\
             [method]\n{method}"
        );
        let source = Source { path: Path::new("test.toml"), text: &text, set: &[] };
        let config = RunConfig::parse(source).unwrap_or_else(|error| panic!("{error}"));
        let mut rng = Rng::new(Purpose::Weights, 0, 0, 0);
        let student = config.detector.init(&Device::flex().autodiff(), &mut rng);
        (Learner::new(student, &config), config)
    }

    fn threshold(method: &str, iteration: u64, epoch: u64) -> Option<Threshold> {
        let (mut learner, config) = learner(method);
        learner.iteration = iteration;
        learner.threshold(&config, Position { epoch, batch: 0 }, EPOCHS)
    }

    #[test]
    fn each_method_has_its_threshold() {
        assert_eq!(threshold("name = \"supervised\"", 5, 0), None);
        assert_eq!(threshold("name = \"fixed\"\nthreshold = 0.6", 0, 0), Some(Threshold::Score(Score(0.6))));
        let dynamic = "name = \"dynamic\"\nthreshold_start = 0.5\nepoch_start = 2";
        assert_eq!(threshold(dynamic, 0, 1), Some(Threshold::Score(Score(0.5))));
        let Some(Threshold::Score(Score(later))) = threshold(dynamic, 0, 20) else { panic!("it has one") };
        assert!((later - (0.5 + 0.5 * 18f32.ln() / 28f32.ln())).abs() < 1e-5, "{later}");
        assert_eq!(threshold("name = \"calibrated\"", 5, 0), None);
        let identity = "name = \"calibrated\"\nbefore_first_fit = \"identity\"";
        let expected = Threshold::Confidence(Confidence(0.7), Platt::IDENTITY.into());
        assert_eq!(threshold(identity, 5, 0), Some(expected.clone()));
        let late = format!("{identity}\nteacher.start_iteration = 6");
        assert_eq!((threshold(&late, 5, 0), threshold(&late, 6, 0)), (None, Some(expected)));
    }

    #[test]
    fn the_other_systems_have_their_thresholds_and_teachers() {
        assert_eq!(threshold("name = \"brl\"", 5, 0), None);
        let co_mining = "name = \"co-mining\"\nstart_iteration = 6";
        assert_eq!(threshold(co_mining, 5, 0), None);
        // The authors' for FCOS.
        assert_eq!(threshold(co_mining, 6, 0), Some(Threshold::Score(Score(0.5))));
        let unbiased = "name = \"unbiased-teacher\"\nburn_in = 6";
        assert_eq!(
            (threshold(unbiased, 5, 0), threshold(unbiased, 6, 0)),
            (None, Some(Threshold::Score(Score(0.7))))
        );
        let (learner, config) = learner(unbiased);
        assert!(learner.teacher.is_some());
        // It is the student until the burn-in ends.
        assert_eq!([0, 5, 6, 9000].map(|at| config.method.momentum(at)), [0.0, 0.0, 0.9996, 0.9996]);
        assert_eq!(config.method.first_pseudo_labels(), Some(6));
    }

    #[test]
    fn what_is_annotated_is_not_new() {
        let object = |x: f32, class: usize| Object { bbox: Box2::new(x, 0.0, x + 10.0, 10.0), class };
        let found = |x: f32, class: usize| Detection {
            bbox: Box2::new(x, 0.0, x + 10.0, 10.0),
            class,
            score: Score(0.9),
        };
        // IoUs of 60/140, 40/160 and, of the other class, 1.
        let all = [found(4.0, 0), found(6.0, 0), found(0.0, 1)];
        assert_eq!(new_to(&all, &[object(0.0, 0)], 0.4), all[1..]);
        assert_eq!(new_to(&all, &[], 0.4), all);
    }

    #[test]
    fn candidates_above_the_threshold_become_pseudo_labels() {
        let candidates = [0.5f32, 0.7, 0.8].map(|score| Detection {
            bbox: Box2::new(0.0, 0.0, 9.0, 9.0),
            class: 0,
            score: Score(score),
        });
        assert_eq!(select(&candidates, None), []);
        assert_eq!(select(&candidates, Some(&Threshold::Score(Score(0.7)))), [candidates[2]]);
        // A calibrator that is surer than the scores lets more through.
        let surer = Threshold::Confidence(Confidence(0.7), Platt { w: 1.0, b: 1.0 }.into());
        assert_eq!(select(&candidates, Some(&surer)), candidates);
        assert_eq!(surer.as_score().map(|score| score.0 < 0.5), Some(true));
    }

    #[test]
    fn the_calibrator_is_fitted_when_it_is_time_and_only_if_it_is_of_use() {
        let (mut learner, config) = learner("name = \"calibrated\"\nrefit_every = 10");
        let Method::Calibrated(method) = config.method else { panic!("it calibrates") };
        let calibration = learner.teacher.as_mut().and_then(|teacher| teacher.calibration.as_mut());
        let calibration = calibration.expect("the method calibrates");
        let judged = |pairs: &[(f32, bool)]| -> Vec<Sample> {
            let outcome = |right| if right { Outcome::Right } else { Outcome::Wrong };
            let observed =
                |&(score, right)| Sample { class: 0, score: Score(score), outcome: outcome(right) };
            pairs.iter().map(observed).collect()
        };
        let rising =
            judged(&[(0.4, false), (0.5, false), (0.6, true), (0.55, true), (0.7, false), (0.8, true)]);
        calibration.queue.push(rising);
        assert_eq!(calibration.refit(&method, 9), None);
        assert_eq!(calibration.refit(&method, 10), Some(Refit { fit: Ok(()), detections: 6 }));
        let fit = calibration.calibrator.clone().expect("it is time, and there is something to fit");
        assert!(matches!(fit.pooled(), Curve::Platt(platt) if platt.w > 0.0));
        let falling = [(0.9, false), (0.85, false), (0.8, false), (0.45, true), (0.42, true), (0.41, true)];
        (0..9).for_each(|_| calibration.queue.push(judged(&falling)));
        let again = calibration.refit(&method, 20).expect("it is time");
        assert_eq!(again.fit, Err(NoFit::Falling));
        assert_eq!(calibration.calibrator, Some(fit), "the old one stays");
    }

    /// Two views of two images, an object in each.
    fn batch() -> Batch {
        let mut rng = Rng::new(Purpose::Synth, 0, 0, 0);
        let mut view = || View {
            height: 64,
            width: 64,
            pixels: (0..2 * 64 * 64 * 3).map(|_| rng.normals().0 as f32).collect(),
            sizes: vec![(64, 64); 2],
            to_view: vec![Affine::IDENTITY; 2],
        };
        let views = vec![view(), view()];
        let object = |x: f32| vec![Object { bbox: Box2::new(x, 10.0, x + 30.0, 50.0), class: 0 }];
        let (at, objects) = (Position::default(), vec![object(4.0), object(20.0)]);
        Batch { at, next: at, images: vec![0, 1], objects, crowds: vec![Vec::new(); 2], views }
    }

    /// What a step of a method costs, term by term, and its pseudo labels.
    fn stepped(method: &str) -> (Vec<(Term, f32)>, Vec<Vec<Detection>>) {
        let (learner, config) = learner(method);
        let mut watch = Stopwatch::default();
        let lesson =
            Lesson { config: &config, batch: batch(), ids: &[1, 2], epochs: EPOCHS, watch: &mut watch };
        let step = learner.step(lesson).1.expect("a finite loss");
        (step.losses, step.pseudo_labels)
    }

    /// The same by its definition: a sum of losses of the views, times what they count.
    fn expected(parts: &[(Losses, f32)]) -> Vec<(Term, f32)> {
        let sum = parts.iter().map(|(losses, weight)| losses.clone().times(*weight)).reduce(Losses::plus);
        let terms = sum.expect("some part").0;
        terms.into_iter().map(|(term, loss)| (term, ops::values(loss)[0])).collect()
    }

    /// What a view costs the student of [`batch`]'s images.
    fn loss(
        (learner, config): &(Learner, RunConfig),
        view: &View,
        targets: &[Vec<Target>],
        counted: Option<&[Vec<Target>]>,
    ) -> Losses {
        let mut rngs = rngs(config, Position::default(), &[1, 2]);
        let options = LossOptions { counted, ..options(config) };
        learner.student.loss(&tracked(view.clone()), targets, &options, &mut rngs)
    }

    fn assert_near(found: &[(Term, f32)], expected: &[(Term, f32)]) {
        assert_eq!(found.len(), expected.len());
        for ((term, found), (of, expected)) in found.iter().zip(expected) {
            assert_eq!(term, of);
            assert!((found - expected).abs() <= 1e-5 * expected, "{term:?}: {found} {expected}");
        }
    }

    /// A student that knows nothing gives every place a score of some 0.07.
    const ALL_IS_FOUND: f32 = 0.05;

    #[test]
    fn each_branch_of_co_mining_learns_what_the_other_found() {
        let method = format!("name = \"co-mining\"\nthreshold = {ALL_IS_FOUND}");
        let (found, labels) = stepped(&method);
        let same = learner(&method);
        let Batch { views, objects, .. } = batch();
        let [of_first, of_second] = [0, 1].map(|n| -> Vec<Vec<Detection>> {
            let found = same.0.student.valid().detect_above(ALL_IS_FOUND, &plain(views[n].clone()));
            let is_new = |found: &&Detection, given: &[Object]| iou(found.bbox, given[0].bbox) <= 0.4;
            let images = found.iter().zip(&objects);
            images
                .map(|(all, given)| all.iter().filter(|one| is_new(one, given)).copied().collect())
                .collect()
        });
        assert!(of_first != of_second && of_first.iter().chain(&of_second).all(|labels| !labels.is_empty()));
        let branch = |n: usize, labels: &[Vec<Detection>]| {
            let targets = union(annotated(&objects), pseudo_labeled(labels, true));
            (loss(&same, &views[n], &targets, None), 1.0)
        };
        assert_near(&found, &expected(&[branch(0, &of_second), branch(1, &of_first)]));
        assert_eq!(labels, of_second);
    }

    #[test]
    fn pseudo_labels_of_unbiased_teacher_teach_classes_four_times() {
        let method = format!("name = \"unbiased-teacher\"\nburn_in = 0\nthreshold = {ALL_IS_FOUND}");
        let (found, _) = stepped(&method);
        let same = learner(&method);
        let Batch { views, objects, .. } = batch();
        // At first the teacher is the student.
        let labels = same.0.student.valid().detect_above(ALL_IS_FOUND, &plain(views[0].clone()));
        let (given, labels) = (annotated(&objects), pseudo_labeled(&labels, true));
        let counted = union(given.clone(), labels.clone());
        let taught = loss(&same, &views[1], &labels, Some(&counted)).only(&[Term::Classification]);
        let supervised = [0, 1].map(|n| (loss(&same, &views[n], &given, None), 0.5));
        let [first, second] = supervised.clone();
        assert_near(&found, &expected(&[first, second, (taught, 4.0)]));
        // During the burn-in there are none.
        let burning_in = method.replace("burn_in = 0", "burn_in = 1");
        assert_near(&stepped(&burning_in).0, &expected(&supervised));
    }
}
