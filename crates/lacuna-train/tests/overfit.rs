//! Each detector memorizes sixteen synthetic images, from scratch.

use std::sync::{Mutex, PoisonError};

use burn::Tensor;
use burn::module::Module;
use burn::tensor::{Device, TensorData};
use lacuna_boxes::{Affine, Box2, Detection, iou};
use lacuna_data::batch::Normalization;
use lacuna_models::anchors::AnchorConfig;
use lacuna_models::faster_rcnn::{FasterRcnnConfig, Proposals, Samples};
use lacuna_models::fcos::FcosConfig;
use lacuna_models::layers::NormKind;
use lacuna_models::ops::Sgd;
use lacuna_models::resnet::{Depth, ResNetConfig};
use lacuna_models::retinanet::RetinaNetConfig;
use lacuna_models::{DetectorConfig, Images, LossOptions, Target};
use lacuna_random::{Purpose, Rng};
use lacuna_synth::{CLASSES, SceneObject, SynthConfig, render_scene};
use lacuna_train::Optimizer;

const SIDE: u32 = 96;
const IMAGES: usize = 16;
const BATCH: usize = 4;

/// Tests that share the processor's cores and caches step by step take longer than one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Example {
    pixels: Vec<f32>,
    targets: Vec<Target>,
}

fn synthetic_examples() -> Vec<Example> {
    let config = SynthConfig {
        seed: 3,
        width: SIDE..=SIDE,
        height: SIDE..=SIDE,
        classes: (0..CLASSES.len()).collect(),
        objects: 1..=3,
        side_min: 24.0,
        side_max: 0.5,
        clutter: 0.3,
    };
    let of_scene = |index| {
        let scene = render_scene(&config, index);
        let mut pixels = vec![0.0; scene.pixels.len()];
        Normalization::Torchvision.row(&scene.pixels, &mut pixels);
        let target =
            |object: &SceneObject| Target { bbox: object.bbox, class: object.class, learn_box: true };
        let targets = scene.objects.iter().map(target);
        Example { pixels, targets: targets.collect() }
    };
    (0..IMAGES as u64).map(of_scene).collect()
}

fn images(examples: &[&Example], device: &Device) -> Images {
    let pixels = examples.iter().flat_map(|example| example.pixels.clone()).collect();
    let shape = [examples.len(), SIDE as usize, SIDE as usize, 3];
    Images {
        pixels: Tensor::from_data(TensorData::new(pixels, shape), device),
        second_view: None,
        sizes: vec![(SIDE, SIDE); examples.len()],
        to_view: vec![Affine::IDENTITY; examples.len()],
    }
}

/// The area under the precision–recall curve at an IoU of 0.5, averaged over the classes that occur.
fn ap50(detections: &[Vec<Detection>], examples: &[Example]) -> f32 {
    let of_class = |class: usize| -> Option<f32> {
        let objects: Vec<Vec<Box2>> = examples
            .iter()
            .map(|example| example.targets.iter().filter(|t| t.class == class).map(|t| t.bbox).collect())
            .collect();
        let total = objects.iter().map(Vec::len).sum::<usize>();
        let mut found: Vec<(usize, &Detection)> = detections
            .iter()
            .enumerate()
            .flat_map(|(image, found)| found.iter().filter(|d| d.class == class).map(move |d| (image, d)))
            .collect();
        found.sort_by(|a, b| b.1.score.0.total_cmp(&a.1.score.0));
        let mut taken: Vec<Vec<bool>> = objects.iter().map(|objects| vec![false; objects.len()]).collect();
        let (mut right, mut curve) = (0, Vec::new());
        for (index, (image, detection)) in found.iter().enumerate() {
            let free = (0..objects[*image].len()).find(|&object| {
                !taken[*image][object] && iou(objects[*image][object], detection.bbox) >= 0.5
            });
            if let Some(object) = free {
                taken[*image][object] = true;
                right += 1;
            }
            curve.push((right as f32 / total as f32, right as f32 / (index + 1) as f32));
        }
        let mut area = 0.0;
        for step in 0..=100 {
            let recall = step as f32 / 100.0;
            let reached = curve.iter().filter(|(r, _)| *r >= recall).map(|(_, precision)| *precision);
            area += reached.fold(0.0, f32::max) / 101.0;
        }
        (total > 0).then_some(area)
    };
    let areas: Vec<f32> = (0..CLASSES.len()).filter_map(of_class).collect();
    areas.iter().sum::<f32>() / areas.len() as f32
}

fn backbone() -> ResNetConfig {
    ResNetConfig { norm: NormKind::Group, frozen_stages: 0, ..ResNetConfig::new(Depth::ResNet18) }
}

/// Half the sizes of the papers: the images are small.
fn small(anchors: AnchorConfig) -> AnchorConfig {
    let half = |sizes: Vec<f32>| sizes.into_iter().map(|size| size / 2.0).collect();
    AnchorConfig { sizes: anchors.sizes.into_iter().map(half).collect(), ..anchors }
}

fn learns(config: &DetectorConfig, steps: usize, learning_rate: f32) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let examples = synthetic_examples();
    let device = Device::flex().autodiff();
    let mut student = config.init(&device, &mut Rng::new(Purpose::Weights, 0, 0, 0));
    let mut optimizer = Optimizer::new(Some(5.0));
    for step in 0..steps {
        let mut rng = Rng::new(Purpose::Sampling, 0, 0, step as u64);
        let batch: Vec<&Example> =
            rng.choose(IMAGES, BATCH).into_iter().map(|image| &examples[image]).collect();
        let targets: Vec<_> = batch.iter().map(|example| example.targets.clone()).collect();
        let mut rngs: Vec<Rng> =
            (0..BATCH as u64).map(|image| Rng::new(Purpose::Sampling, 1, step as u64, image)).collect();
        let losses = student.loss(&images(&batch, &device), &targets, &LossOptions::default(), &mut rngs);
        let gradients = losses.total().backward();
        let warm_up = ((step + 1) as f32 / 20.0).min(1.0);
        let decay = if step * 4 >= steps * 3 { 0.1 } else { 1.0 };
        let sgd = Sgd { learning_rate: learning_rate * warm_up * decay, momentum: 0.9, weight_decay: 1e-4 };
        (student, _) = optimizer.step(student, gradients, sgd);
    }
    let teacher = student.valid();
    let all: Vec<&Example> = examples.iter().collect();
    let ap = ap50(&teacher.detect(&images(&all, &Device::flex())), &examples);
    assert!(ap > 0.9, "AP50 is {ap}");
}

#[test]
fn retinanet() {
    let config = RetinaNetConfig::new(CLASSES.len(), backbone());
    let anchors = small(config.anchors.clone());
    let config = RetinaNetConfig { width: 128, head_depth: 1, anchors, ..config };
    learns(&DetectorConfig::RetinaNet(config), 200, 0.02);
}

#[test]
fn fcos() {
    let config = FcosConfig { width: 64, head_depth: 2, ..FcosConfig::new(CLASSES.len(), backbone()) };
    learns(&DetectorConfig::Fcos(config), 130, 0.02);
}

#[test]
fn faster_rcnn() {
    let config = FasterRcnnConfig::new(CLASSES.len(), backbone());
    let anchors = small(config.anchors.clone());
    let proposals = Proposals { per_level: 200, per_image: 100 };
    let config = FasterRcnnConfig {
        width: 64,
        head_width: 128,
        anchors,
        proposals,
        training_proposals: proposals,
        anchor_samples: Samples { count: 64, positive_share: 0.5 },
        proposal_samples: Samples { count: 64, positive_share: 0.25 },
        ..config
    };
    learns(&DetectorConfig::FasterRcnn(config), 160, 0.02);
}
