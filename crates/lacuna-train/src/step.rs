//! One iteration of training: Algorithm 1 of the paper with its surroundings.

use burn::Tensor;
use burn::module::Module;
use burn::tensor::{Device, TensorData};
use lacuna_boxes::{Detection, Score};
use lacuna_calib::{CalibrationQueue, Calibrator, Confidence, Kind, NoFit, Observed, Outcome, Place, Platt};
use lacuna_data::Object;
use lacuna_data::batch::{Batch, Position, View};
use lacuna_models::{Detector, Images, LossOptions, Losses, NegativeWeight, Target, Term, ops};
use lacuna_random::{Purpose, Rng};

use crate::config::{BeforeFirstFit, Calibrated, Method, RunConfig};
use crate::phases::{Phase, Stopwatch};
use crate::pseudo::{Split, split_by_overlap};
use crate::{Optimizer, update_teacher};

/// All that training changes.
pub struct Learner {
    /// On a tracked device.
    pub student: Detector,
    pub teacher: Option<Teacher>,
    pub optimizer: Optimizer,
    /// How many iterations are done.
    pub iteration: u64,
}

/// The average of the students so far, and what is known about its scores.
pub struct Teacher {
    /// On a plain device.
    pub detector: Detector,
    pub calibration: Option<Calibration>,
}

pub struct Calibration {
    /// `None` until the first successful fit.
    pub calibrator: Option<Calibrator>,
    pub queue: CalibrationQueue,
}

/// Which candidates become pseudo labels.
#[derive(Clone, Debug, PartialEq)]
pub enum Threshold {
    Score(Score),
    Confidence(Confidence, Calibrator),
}

impl Threshold {
    fn is_below(&self, candidate: &Detection) -> bool {
        match self {
            Self::Score(min) => candidate.score > *min,
            Self::Confidence(min, calibrator) => {
                calibrator.confidence(candidate.class, candidate.score, Place::Away) > *min
            }
        }
    }

    /// The raw score that it corresponds to, for all classes together.
    pub fn as_score(&self) -> Option<Score> {
        match self {
            Self::Score(min) => Some(*min),
            Self::Confidence(min, calibrator) => calibrator.pooled().score_of(*min, Place::Away),
        }
    }
}

/// What an iteration did.
#[derive(Debug)]
pub struct Step {
    pub losses: Vec<(Term, f32)>,
    /// The teacher's detections above its floor, of each image.
    pub found: Vec<Vec<Detection>>,
    /// Of each image.
    pub splits: Vec<Split>,
    pub pseudo_labels: Vec<Vec<Detection>>,
    /// What the candidates had to be above; `None` when none was let through.
    pub threshold: Option<Threshold>,
    /// The calibrator that there was, be it used or not.
    pub calibrator: Option<Calibrator>,
    /// What came of fitting the calibrator, if it was time.
    pub refit: Option<Refit>,
}

/// What came of a fit of the calibrator, and how many detections it was fitted to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refit {
    pub fit: Result<(), NoFit>,
    pub detections: usize,
}

/// An iteration from which there is no way on.
#[derive(Debug)]
pub struct NotFinite {
    /// The loss or its gradient.
    pub what: &'static str,
    pub losses: Vec<(Term, f32)>,
}

impl Learner {
    /// A student that has not learnt anything yet, and a teacher that is its image.
    pub fn new(student: Detector, config: &RunConfig) -> Self {
        let teacher = config.method.teaching().map(|_| Teacher {
            detector: student.valid(),
            calibration: match &config.method {
                Method::Calibrated(method) => {
                    Some(Calibration { calibrator: None, queue: CalibrationQueue::new(method.window_images) })
                }
                _ => None,
            },
        });
        Self { student, teacher, optimizer: Optimizer::new(config.train.gradient_norm_max), iteration: 0 }
    }

    /// One iteration. When the loss or its gradient is not finite, nothing has changed.
    ///
    /// `ids` are the images' own.
    pub fn step(
        self,
        config: &RunConfig,
        batch: Batch,
        ids: &[u64],
        epochs: Epochs,
        watch: &mut Stopwatch,
    ) -> (Self, Result<Step, NotFinite>) {
        let Batch { at, objects: annotations, mut views, .. } = batch;
        let student_view = views.pop().expect("a batch has a view for the student");

        // The teacher looks at the weak view. What is near an annotation of its class is judged; the rest
        // may be missing boxes, and those that the calibrated teacher is sure of become pseudo labels.
        let found = watch.time(Phase::Teacher, || self.detect(config, views.pop()));
        let splits = split(config, &found, &annotations, &student_view);
        let calibrator = self.calibrator().cloned();
        let threshold = self.threshold(config, at, epochs);
        let pseudo_labels: Vec<_> =
            splits.iter().map(|split| select(&split.candidates, threshold.as_ref())).collect();

        // The student learns the strong view, from annotations and pseudo labels alike.
        let targets = targets(&annotations, &pseudo_labels);
        let rngs = ids.iter().map(|&id| Rng::new(Purpose::Sampling, config.train.seed, at.epoch, id));
        let losses = watch.time(Phase::Forward, || {
            self.loss(config, student_view, &targets, &mut rngs.collect::<Vec<_>>())
        });
        let terms: Vec<(Term, f32)> =
            losses.0.iter().map(|(term, loss)| (*term, ops::values(loss.clone())[0])).collect();
        if terms.iter().any(|(_, loss)| !loss.is_finite()) {
            return (self, Err(NotFinite { what: "loss", losses: terms }));
        }
        let gradients = watch.time(Phase::Backward, || losses.total().backward());
        drop(losses);

        // The student steps, and the teacher follows.
        let Self { student, teacher, mut optimizer, iteration } = self;
        let sgd = config.train.sgd(iteration);
        let (student, stepped) = watch.time(Phase::Sgd, || optimizer.step(student, gradients, sgd));
        if !stepped {
            let unchanged = Self { student, teacher, optimizer, iteration };
            return (unchanged, Err(NotFinite { what: "gradient", losses: terms }));
        }
        let teacher = watch.time(Phase::Ema, || follow(config, teacher, &student, iteration));
        let mut learner = Self { student, teacher, optimizer, iteration: iteration + 1 };

        // What was seen of the teacher joins the queue, to which the calibrator is fitted every so often.
        let refit = watch.time(Phase::Calibrate, || {
            let calibration = learner.teacher.as_mut()?.calibration.as_mut()?;
            splits.iter().for_each(|split| calibration.remember(config, split));
            calibration.refit(config, learner.iteration)
        });
        let step = Step { losses: terms, found, splits, pseudo_labels, threshold, calibrator, refit };
        (learner, Ok(step))
    }

    /// What the student's view costs it.
    fn loss(&self, config: &RunConfig, view: View, targets: &[Vec<Target>], rngs: &mut [Rng]) -> Losses {
        let focal_iou = config.method.focal_iou();
        let (weight, slope) = (|iou: f32| focal_iou.weight(iou), |iou: f32| focal_iou.slope(iou));
        let weighs = focal_iou.enabled && self.iteration >= focal_iou.start_iteration;
        let negative_weight = weighs.then_some(NegativeWeight {
            weight: &weight,
            slope: &slope,
            iou_of: focal_iou.iou_of,
            rpn: focal_iou.rpn,
            proposals: focal_iou.proposals,
        });
        let options = LossOptions { normalization: config.train.normalization, negative_weight };
        self.student.loss(&images(view, &Device::flex().autodiff()), targets, &options, rngs)
    }

    /// The calibrator as it is now, if there is one.
    pub(crate) fn calibrator(&self) -> Option<&Calibrator> {
        self.teacher.as_ref()?.calibration.as_ref()?.calibrator.as_ref()
    }

    /// The teacher's detections in the weak view, above its floor.
    fn detect(&self, config: &RunConfig, weak: Option<View>) -> Vec<Vec<Detection>> {
        let (Some(teacher), Some((settings, _))) = (&self.teacher, config.method.teaching()) else {
            return Vec::new();
        };
        let weak = weak.expect("a batch has a view for the teacher");
        teacher.detector.detect_above(settings.score_min, &images(weak, &Device::flex()))
    }

    /// What candidates have to be above in this iteration; `None` when none is let through.
    pub(crate) fn threshold(&self, config: &RunConfig, at: Position, epochs: Epochs) -> Option<Threshold> {
        let (teacher, _) = config.method.teaching()?;
        if self.iteration < teacher.start_iteration {
            return None;
        }
        match &config.method {
            Method::Supervised(_) => None,
            Method::Fixed(method) => Some(Threshold::Score(Score(method.threshold))),
            Method::Dynamic(method) => {
                let epoch = at.epoch as f64 + at.batch as f64 / epochs.batches as f64;
                Some(Threshold::Score(Score(method.threshold(epoch, epochs.of_run))))
            }
            Method::Calibrated(Calibrated { confidence_min, before_first_fit, .. }) => {
                let calibrator = match (self.calibrator(), before_first_fit) {
                    (Some(calibrator), _) => calibrator.clone(),
                    (None, BeforeFirstFit::Identity) => Platt::IDENTITY.into(),
                    (None, BeforeFirstFit::Nothing) => return None,
                };
                Some(Threshold::Confidence(Confidence(*confidence_min), calibrator))
            }
        }
    }
}

impl Calibration {
    /// The detections of one more image: all of them for a calibrator that looks at all, else the judged.
    fn remember(&mut self, config: &RunConfig, split: &Split) {
        let Method::Calibrated(Calibrated { calibrator, .. }) = &config.method else { return };
        let of_use = |observed: &&Observed| {
            calibrator.kind == Kind::Completeness || observed.outcome != Outcome::Candidate
        };
        self.queue.push(split.observed.iter().filter(of_use).copied().collect());
    }

    /// Fits the calibrator to the queue if it is time. The old one stays when nothing can be fitted, or only
    /// one with confidences that fall as the score grows.
    fn refit(&mut self, config: &RunConfig, iteration: u64) -> Option<Refit> {
        let Method::Calibrated(Calibrated { refit_every, calibrator, .. }) = &config.method else {
            return None;
        };
        if !iteration.is_multiple_of(*refit_every) {
            return None;
        }
        let observed: Vec<Observed> = self.queue.observed().collect();
        let fit = Calibrator::fit(calibrator.kind, calibrator.per_class, &observed);
        let fit = fit.map(|fit| self.calibrator = Some(fit));
        Some(Refit { fit, detections: observed.len() })
    }
}

/// The teacher after the student's step.
fn follow(
    config: &RunConfig,
    teacher: Option<Teacher>,
    student: &Detector,
    iteration: u64,
) -> Option<Teacher> {
    let (settings, _) = config.method.teaching()?;
    let Teacher { detector, calibration } = teacher?;
    let detector = update_teacher(detector, student, settings.momentum(iteration));
    Some(Teacher { detector, calibration })
}

/// How long the epochs are, and how many there are.
#[derive(Clone, Copy, Debug)]
pub struct Epochs {
    /// Batches of each.
    pub batches: usize,
    pub of_run: f64,
}

/// A view as a detector takes it.
pub(crate) fn images(view: View, device: &Device) -> Images {
    let View { height, width, pixels, sizes, to_view } = view;
    let data = TensorData::new(pixels, [sizes.len(), height, width, 3]);
    Images { pixels: Tensor::from_data(data, device), sizes, to_view }
}

fn split(
    config: &RunConfig,
    found: &[Vec<Detection>],
    annotations: &[Vec<Object>],
    student_view: &View,
) -> Vec<Split> {
    let Some((_, overlap)) = config.method.teaching() else {
        return vec![Split::default(); annotations.len()];
    };
    let images = found.iter().zip(annotations).zip(&student_view.to_view);
    images.map(|((found, given), to_view)| split_by_overlap(found, given, &overlap, *to_view)).collect()
}

fn select(candidates: &[Detection], threshold: Option<&Threshold>) -> Vec<Detection> {
    let Some(threshold) = threshold else { return Vec::new() };
    candidates.iter().filter(|candidate| threshold.is_below(candidate)).copied().collect()
}

/// Annotations ∪ pseudo labels.
fn targets(annotations: &[Vec<Object>], pseudo_labels: &[Vec<Detection>]) -> Vec<Vec<Target>> {
    let of_image = |(annotations, pseudo_labels): (&Vec<Object>, &Vec<Detection>)| {
        let annotated = annotations.iter().map(|object| Target { bounds: object.bbox, class: object.class });
        let pseudo = pseudo_labels.iter().map(|found| Target { bounds: found.bounds, class: found.class });
        annotated.chain(pseudo).collect()
    };
    annotations.iter().zip(pseudo_labels).map(of_image).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lacuna_boxes::Box2;
    use lacuna_calib::Curve;

    use super::*;
    use crate::config::Source;

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
    fn candidates_above_the_threshold_become_pseudo_labels() {
        let candidates = [0.5f32, 0.7, 0.8].map(|score| Detection {
            bounds: Box2::new(0.0, 0.0, 9.0, 9.0),
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
        let calibration = learner.teacher.as_mut().and_then(|teacher| teacher.calibration.as_mut());
        let calibration = calibration.expect("the method calibrates");
        let judged = |pairs: &[(f32, bool)]| -> Vec<Observed> {
            let outcome = |right| if right { Outcome::Right } else { Outcome::Wrong };
            let observed =
                |&(score, right)| Observed { class: 0, score: Score(score), outcome: outcome(right) };
            pairs.iter().map(observed).collect()
        };
        let rising =
            judged(&[(0.4, false), (0.5, false), (0.6, true), (0.55, true), (0.7, false), (0.8, true)]);
        calibration.queue.push(rising);
        assert_eq!(calibration.refit(&config, 9), None);
        assert_eq!(calibration.refit(&config, 10), Some(Refit { fit: Ok(()), detections: 6 }));
        let fit = calibration.calibrator.clone().expect("it is time, and there is something to fit");
        assert!(matches!(fit.pooled(), Curve::Platt(platt) if platt.w > 0.0));
        let falling = [(0.9, false), (0.85, false), (0.8, false), (0.45, true), (0.42, true), (0.41, true)];
        (0..9).for_each(|_| calibration.queue.push(judged(&falling)));
        let again = calibration.refit(&config, 20).expect("it is time");
        assert_eq!(again.fit, Err(NoFit::Falling));
        assert_eq!(calibration.calibrator, Some(fit), "the old one stays");
    }
}
