//! What the tests of methods share: a small learner, a batch, and a loss by its definition.

use std::path::Path;

use burn::tensor::Device;
use lacuna_boxes::{Affine, Box2};
use lacuna_data::Object;
use lacuna_data::batch::{Batch, Position, View};
use lacuna_models::{LossOptions, Losses, Target, Term, ops};
use lacuna_random::{Purpose, Rng};

use super::Threshold;
use super::inputs::tracked_images;
use crate::config::{ConfigSource, RunConfig};
use crate::learner::Learner;
use crate::phases::Stopwatch;
use crate::step::{EpochProgress, NotFinite, Step, StepContext};

/// A student that has learned nothing gives every place a score of about 0.07, which is above this.
pub(super) const LOW_THRESHOLD: f32 = 0.05;

const IMAGE_IDS: [u64; 2] = [1, 2];

fn epoch(epoch: u64) -> EpochProgress {
    EpochProgress::new(Position { epoch, batch: 0 }, 10, 300)
}

/// A small FCOS before its first iteration, with the method of these TOML lines.
pub(crate) fn learner(method: &str) -> (Learner, RunConfig) {
    learner_with(method, &[])
}

/// The same with other values of its configuration.
pub(crate) fn learner_with(method: &str, overrides: &[String]) -> (Learner, RunConfig) {
    let text = format!(
        "[data.train]\npath = \"train.json\"\n[detector]\nkind = \"fcos\"\nwidth = 32\nhead_depth = 0\n\
         [detector.backbone]\ndepth = \"resnet10\"\nwidth = 32\nnorm = \"group\"\nfrozen_stages = 0\n\
         [method]\n{method}"
    );
    let source = ConfigSource { path: Path::new("test.toml"), text: &text, overrides };
    let config = RunConfig::parse(source).unwrap_or_else(|error| panic!("{error}"));
    let mut rng = Rng::new(Purpose::Weights, 0, 0, 0);
    let student = config.detector.init(&Device::flex().autodiff(), &mut rng);
    (Learner::new(student, &config), config)
}

/// The threshold after so many iterations, in this epoch of 30.
pub(super) fn threshold(method: &str, iteration: u64, at_epoch: u64) -> Option<Threshold> {
    let (mut learner, config) = learner(method);
    learner.iteration = iteration;
    config.method.as_dyn().threshold(&learner, epoch(at_epoch))
}

/// Two views of two images, an object in each.
pub(crate) fn batch() -> Batch {
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

/// The first step of a method on [`batch`].
pub(super) fn take_step(method: &str) -> Step {
    let (mut learner, config) = learner(method);
    step_on(&mut learner, &config, batch()).expect("a finite loss")
}

/// A step on a batch of the images of [`batch`].
pub(crate) fn step_on(learner: &mut Learner, config: &RunConfig, batch: Batch) -> Result<Step, NotFinite> {
    let (image_ids, stopwatch) = (&IMAGE_IDS, &mut Stopwatch::default());
    learner.step(StepContext { config, batch, image_ids, epoch: epoch(0), stopwatch })
}

/// The student's loss on a view of [`batch`]'s images.
pub(super) fn student_loss(
    (learner, config): &(Learner, RunConfig),
    view: &View,
    targets: &[Vec<Target>],
    counted: Option<&[Vec<Target>]>,
) -> Losses {
    let mut rngs = IMAGE_IDS.map(|id| Rng::new(Purpose::Sampling, config.train.seed, 0, id));
    let normalization = config.train.normalization;
    let options = LossOptions { counted, normalization, ..LossOptions::default() };
    learner.student.loss(&tracked_images(view.clone()), targets, &options, &mut rngs)
}

/// The terms of a sum of losses, each times its weight.
pub(super) fn weighted_sum(parts: &[(Losses, f32)]) -> Vec<(Term, f32)> {
    let sum = parts.iter().map(|(losses, weight)| losses.clone().times(*weight)).reduce(Losses::plus);
    let terms = sum.expect("some part").0;
    terms.into_iter().map(|(term, loss)| (term, ops::values(loss)[0])).collect()
}

pub(super) fn assert_near(actual: &[(Term, f32)], expected: &[(Term, f32)]) {
    assert_eq!(actual.len(), expected.len());
    for ((term, actual), (same, expected)) in actual.iter().zip(expected) {
        assert_eq!(term, same);
        assert!((actual - expected).abs() <= 1e-5 * expected, "{term:?}: {actual} {expected}");
    }
}
