//! Builds a small RetinaNet with random weights, detects with it, and runs one loss and its backward pass:
//! `cargo run --release -p lacuna-models --example detect`.

use burn::Tensor;
use burn::module::Module;
use burn::tensor::{Device, TensorData};
use lacuna_boxes::{Affine, Box2};
use lacuna_models::layers::NormKind;
use lacuna_models::resnet::{Depth, ResNetConfig};
use lacuna_models::retinanet::RetinaNetConfig;
use lacuna_models::weights::named_gradients;
use lacuna_models::{DetectorConfig, Images, LossOptions, Target, ops};
use lacuna_random::{Purpose, Rng};

const SIDE: u32 = 128;

/// One synthetic image, already normalized: noise in place of `[1, SIDE, SIDE, 3]` pixels.
fn noise(device: &Device) -> Images {
    let mut rng = Rng::new(Purpose::Synth, 0, 0, 0);
    let shape = [1, SIDE as usize, SIDE as usize, 3];
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.normals().0 as f32).collect();
    Images {
        pixels: Tensor::from_data(TensorData::new(values, shape), device),
        second_view: None,               // SAOD's detectors alone have one
        sizes: vec![(SIDE, SIDE)],       // the image fills its view: no padding
        to_view: vec![Affine::IDENTITY], // and was not resized
    }
}

fn main() {
    // A ResNet-10 that is narrower than the paper's, with group norm because it starts from random weights.
    let backbone = ResNetConfig {
        width: 32,
        norm: NormKind::Group,
        frozen_stages: 0,
        ..ResNetConfig::new(Depth::ResNet10)
    };
    let mut config = RetinaNetConfig { width: 64, head_depth: 1, ..RetinaNetConfig::new(3, backbone) };
    // An untrained detector is sure of nothing; show what it finds anyway.
    config.post_process.score_min = 0.0;

    // Training needs a device that records the graph. Every random number comes from a named generator.
    let tracked = Device::flex().autodiff();
    let detector = DetectorConfig::RetinaNet(config).init(&tracked, &mut Rng::new(Purpose::Weights, 0, 0, 0));

    // Detection runs on the plain device: `valid` is the same detector without a graph.
    let detections = detector.valid().detect(&noise(&Device::flex()));
    println!("{} detections, the best: {:?}", detections[0].len(), detections[0].first());

    // One object of class 1, in the image's coordinates.
    let target = Target { bbox: Box2::new(20.0, 30.0, 70.0, 90.0), class: 1, learn_box: true };
    let mut rngs = [Rng::new(Purpose::Sampling, 0, 0, 0)];
    let losses = detector.loss(&noise(&tracked), &[vec![target]], &LossOptions::default(), &mut rngs);
    for (term, loss) in &losses.0 {
        println!("{term:?}: {}", ops::values(loss.clone())[0]);
    }
    let gradients = named_gradients(&detector, &losses.total().backward());
    println!("{} parameters have a gradient", gradients.len());
}
