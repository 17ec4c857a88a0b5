//! Tests of what holds for every detector: what it trains on, what it leaves alone, how it is written and read.

#![allow(clippy::unwrap_used)] // the allowance for tests does not reach their helpers

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::faster_rcnn::{
    FasterRcnnConfig, Mining, Proposal, Proposals, RoiOutput, RpnValues, Samples, TwoViewLoss, TwoViews,
};
use crate::fcos::{FcosConfig, objects_at};
use crate::fpn::ExtraLevels;
use crate::layers::{Mode, NormKind};
use crate::one_stage::OneStage;
use crate::resnet::{Depth, ResNetConfig, Style};
use crate::retinanet::RetinaNetConfig;
use crate::weights::{Checkpoint, WeightsError, named_gradients, to_safetensors};
use crate::{
    Detector, DetectorConfig, DetectorKind, Images, IouOf, LossOptions, Losses, NegativeWeight,
    Recalibration, Target, Term, ops,
};
use burn::Tensor;
use burn::module::Module;
use burn::tensor::{Device, TensorData};
use lacuna_boxes::{Affine, Box2, iou};
use lacuna_random::{Purpose, Rng};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

const SIDE: u32 = 96;

/// The three detectors, light.
fn configs(n_classes: usize, backbone: ResNetConfig) -> [DetectorConfig; 3] {
    let retinanet = RetinaNetConfig::new(n_classes, backbone);
    let fcos = FcosConfig::new(n_classes, backbone);
    let faster_rcnn = FasterRcnnConfig::new(n_classes, backbone);
    [
        DetectorConfig::RetinaNet(RetinaNetConfig { width: 32, head_depth: 1, ..retinanet }),
        DetectorConfig::Fcos(FcosConfig { width: 32, head_depth: 1, ..fcos }),
        DetectorConfig::FasterRcnn(FasterRcnnConfig { width: 32, head_width: 64, ..faster_rcnn }),
    ]
}

fn resnet18() -> ResNetConfig {
    ResNetConfig::new(Depth::ResNet18)
}

fn new_detector(config: &DetectorConfig, device: &Device) -> Detector {
    config.init(device, &mut Rng::new(Purpose::Weights, 1, 0, 0))
}

fn random_images(batch: usize, device: &Device) -> Images {
    let mut rng = Rng::new(Purpose::Synth, 0, 0, 0);
    let shape = [batch, SIDE as usize, SIDE as usize, 3];
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.normals().0 as f32).collect();
    let pixels = Tensor::from_data(TensorData::new(values, shape), device);
    Images {
        pixels,
        second_view: None,
        sizes: vec![(SIDE, SIDE); batch],
        to_view: vec![Affine::IDENTITY; batch],
    }
}

fn target(x1: f32, y1: f32, x2: f32, y2: f32) -> Target {
    Target { bbox: Box2::new(x1, y1, x2, y2), class: 0, learn_box: true }
}

fn loss(detector: &Detector, images: &Images, targets: &[Vec<Target>], options: &LossOptions) -> Losses {
    let rngs = (0..targets.len() as u64).map(|image| Rng::new(Purpose::Sampling, 0, 0, image));
    detector.loss(images, targets, options, &mut rngs.collect::<Vec<_>>())
}

fn value(losses: &Losses, term: Term) -> f32 {
    let (_, value) = losses.0.iter().find(|(other, _)| *other == term).expect("the detector has this term");
    ops::values(value.clone())[0]
}

#[test]
fn every_kind_of_image_trains() {
    let device = Device::flex().autodiff();
    let inside = vec![target(20.0, 20.0, 60.0, 70.0)];
    let at_the_border = vec![target(0.0, 40.0, 50.0, 96.0), target(80.0, 0.0, 96.0, 96.0)];
    let tiny = vec![target(10.0, 10.0, 10.5, 10.5)];
    let degenerate = vec![target(30.0, 30.0, 30.0, 50.0)];
    let cases = [
        vec![inside, Vec::new()],
        vec![Vec::new(), Vec::new()],
        vec![at_the_border, tiny],
        vec![degenerate, Vec::new()],
    ];
    for config in configs(1, resnet18()) {
        let detector = new_detector(&config, &device);
        for targets in &cases {
            let losses = loss(&detector, &random_images(2, &device), targets, &LossOptions::default());
            for (term, value) in &losses.0 {
                assert!(ops::values(value.clone())[0].is_finite(), "{term:?} of {targets:?}");
            }
            let gradients = named_gradients(&detector, &losses.total().backward());
            assert!(gradients.len() > 20, "{} parameters have a gradient", gradients.len());
            for (name, gradient) in gradients {
                assert!(gradient.iter().all(|g| g.is_finite()), "the gradient of {name} for {targets:?}");
            }
        }
    }
}

#[test]
fn frozen_stages_and_norms_get_no_gradient() {
    let device = Device::flex().autodiff();
    let targets = [vec![target(20.0, 20.0, 60.0, 70.0)]];
    for (frozen_stages, first_trained) in
        [(0, "conv1"), (1, "layer1"), (2, "layer2"), (3, "layer3"), (4, "layer4"), (5, "")]
    {
        for config in configs(2, ResNetConfig { frozen_stages, ..resnet18() }) {
            let detector = new_detector(&config, &device);
            let losses = loss(&detector, &random_images(1, &device), &targets, &LossOptions::default());
            let gradients = named_gradients(&detector, &losses.total().backward());
            let body = |name: &String| name.strip_prefix("backbone.body.").map(str::to_owned);
            let trained: Vec<String> = gradients.keys().filter_map(body).collect();
            assert!(trained.iter().all(|name| !name.contains("bn") && !name.contains("downsample.1")));
            match trained.first() {
                Some(first) => {
                    assert!(first.starts_with(first_trained) && !first_trained.is_empty(), "{first}");
                }
                None => assert_eq!(frozen_stages, 5),
            }
        }
    }
}

/// An object whose place is not known teaches its class as any other, and nothing about its place. In one stage the places
/// of others, which no sample shares with it, are learned as if it were not there; in two it takes its share of the samples.
#[test]
fn places_are_learned_only_where_they_are_known() {
    let device = Device::flex().autodiff();
    let images = random_images(2, &device);
    let (one, other) = (target(8.0, 8.0, 40.0, 44.0), target(52.0, 50.0, 90.0, 92.0));
    let unplaced = |target: Target| Target { learn_box: false, ..target };
    for config in configs(2, resnet18()) {
        let detector = new_detector(&config, &device);
        let costs = |targets: &[Vec<Target>]| loss(&detector, &images, targets, &LossOptions::default());
        let known = costs(&[vec![one, other], Vec::new()]);
        let unknown = costs(&[vec![unplaced(one), unplaced(other)], Vec::new()]);
        for (term, _) in &known.0 {
            let is_of_places = matches!(term, Term::Regression | Term::ProposalRegression | Term::Centerness);
            assert!(value(&known, *term) > 0.0, "{term:?} of {config:?}");
            let wanted = if is_of_places { 0.0 } else { value(&known, *term) };
            assert_eq!(value(&unknown, *term), wanted, "{term:?} of {config:?}");
        }
        if !matches!(config, DetectorConfig::FasterRcnn(_)) {
            let (alone, among) =
                (costs(&[vec![one], Vec::new()]), costs(&[vec![one, unplaced(other)], Vec::new()]));
            assert_eq!(value(&among, Term::Regression), value(&alone, Term::Regression), "{config:?}");
            assert_eq!(
                value(&among, Term::Classification),
                value(&known, Term::Classification),
                "{config:?}"
            );
        }
    }
}

#[test]
fn negatives_are_weighted_where_the_method_says() {
    let device = Device::flex().autodiff();
    let images = random_images(2, &device);
    let targets = [vec![target(20.0, 20.0, 60.0, 70.0)], Vec::new()];
    let weigh = |detector: &Detector, weight: &(dyn Fn(f32) -> f32 + Sync), rpn, proposals, iou_of| {
        let negative_weight = Some(NegativeWeight { weight, slope: &|_| 0.0, iou_of, rpn, proposals });
        loss(detector, &images, &targets, &LossOptions { negative_weight, ..LossOptions::default() })
    };
    for config in configs(2, resnet18()) {
        let detector = new_detector(&config, &device);
        let plain = loss(&detector, &images, &targets, &LossOptions::default());
        for iou_of in [IouOf::Prediction, IouOf::Sample, IouOf::Gradient] {
            let one = weigh(&detector, &|_| 1.0, true, true, iou_of);
            let none = weigh(&detector, &|_| 0.0, true, true, iou_of);
            let double = weigh(&detector, &|_| 2.0, true, true, iou_of);
            let off = weigh(&detector, &|_| 2.0, false, false, iou_of);
            let is_two_stage = matches!(config, DetectorConfig::FasterRcnn(_));
            let terms = if is_two_stage {
                vec![Term::Objectness, Term::Classification]
            } else {
                vec![Term::Classification]
            };
            for term in terms {
                let [plain, one, none, double, off] =
                    [&plain, &one, &none, &double, &off].map(|l| value(l, term));
                assert_eq!(plain, one, "{term:?}");
                // The loss is that of positives plus the weight times that of negatives.
                assert!(none < plain, "{term:?}: {none} {plain}");
                assert!(
                    (double - plain - (plain - none)).abs() < 1e-4 * double,
                    "{term:?}: {none} {plain} {double}"
                );
                // Two stages are weighted only where it is asked for; one has nothing to ask.
                assert_eq!(off, if is_two_stage { plain } else { double });
            }
        }
        // The regression loss knows no negatives.
        let none = weigh(&detector, &|_| 0.0, true, true, IouOf::Prediction);
        assert_eq!(value(&plain, Term::Regression), value(&none, Term::Regression));
    }
}

#[test]
fn a_negative_is_weighted_by_its_best_overlap() {
    let device = Device::flex().autodiff();
    let images = random_images(1, &device);
    let targets = [vec![target(16.0, 16.0, 48.0, 48.0), target(50.0, 50.0, 90.0, 90.0)]];
    let largest = std::sync::Mutex::new((0.0f32, 0.0f32));
    let weight = |iou: f32| {
        let mut seen = largest.lock().unwrap();
        *seen = (seen.0.max(iou), seen.1.max(-iou));
        1.0
    };
    let negative_weight = NegativeWeight {
        weight: &weight,
        slope: &|_| 0.0,
        iou_of: IouOf::Sample,
        rpn: false,
        proposals: false,
    };
    let options = LossOptions { negative_weight: Some(negative_weight), ..LossOptions::default() };
    let retinanet = new_detector(&configs(2, resnet18())[0], &device);
    drop(loss(&retinanet, &images, &targets, &options).total().backward());
    let (largest, below_zero) = *largest.lock().unwrap();
    // Anchors of an IoU of 0.4 and more are not negatives.
    assert!(largest > 0.3 && largest < 0.4 && below_zero == 0.0, "{largest} {below_zero}");
}

/// The weight's gradient flows into the predicted boxes when it is asked for: when the layer that predicts
/// them makes all wider, the classification loss changes by as much as its gradient says.
#[test]
fn the_gradient_of_a_weight_reaches_the_prediction() {
    let device = Device::flex().autodiff();
    let images = random_images(1, &device);
    let targets = [vec![target(16.0, 16.0, 48.0, 48.0), target(40.0, 50.0, 90.0, 90.0)]];
    let (weight, slope) = (|iou: f32| 0.5 + 40.0 * iou * iou, |iou: f32| 80.0 * iou);
    let classification = |detector: &Detector, iou_of: IouOf| {
        let negative_weight =
            Some(NegativeWeight { weight: &weight, slope: &slope, iou_of, rpn: false, proposals: true });
        let options = LossOptions { negative_weight, ..LossOptions::default() };
        let losses = loss(detector, &images, &targets, &options);
        losses.0.into_iter().find(|(term, _)| *term == Term::Classification).unwrap().1
    };
    // Where nothing is likely to be an object, negatives have next to no loss; and a box without extent
    // overlaps nothing.
    let likely = ("head.classification_head.cls_logits.bias", 4.0);
    let boxes = "head.regression_head.bbox_reg.bias";
    let cases = [
        (boxes, vec![likely]),
        (boxes, vec![likely, (boxes, 2.0)]),
        ("roi_heads.box_predictor.bbox_pred.bias", vec![]),
    ];
    for (config, (layer, before)) in configs(2, resnet18()).iter().zip(cases) {
        let at = |shift: f32| {
            let shifts: Vec<_> = before.iter().copied().chain([(layer, shift)]).collect();
            with_biases_shifted(config, &shifts, &device)
        };
        let detector = at(0.0);
        let gradient = |iou_of| {
            let gradients = classification(&detector, iou_of).backward();
            named_gradients(&detector, &gradients)
                .get(layer)
                .map(|g| g.iter().skip(2).step_by(4).sum::<f32>())
        };
        assert!(gradient(IouOf::Prediction).is_none_or(|gradient| gradient == 0.0), "{layer}");
        let by_weight = gradient(IouOf::Gradient).expect("it reaches the layer");
        let step = 5e-3;
        let [above, below] =
            [step, -step].map(|shift| ops::values(classification(&at(shift), IouOf::Gradient))[0]);
        let difference = (above - below) / (2.0 * step);
        assert!(
            by_weight != 0.0 && (by_weight - difference).abs() < 0.05 * by_weight.abs(),
            "{layer}: {by_weight} {difference}"
        );
    }
}

/// The detector with every fourth number of some biases moved, the third of a box's four being its width or
/// its right side; or all numbers, by whole ones.
fn with_biases_shifted(config: &DetectorConfig, shifts: &[(&str, f32)], device: &Device) -> Detector {
    let bytes = to_safetensors(&new_detector(config, device));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let shifted: BTreeMap<String, Vec<u8>> = file
        .iter()
        .map(|(name, tensor)| {
            let values = tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            let shift = |index: usize| {
                let of_this = shifts.iter().filter(|(other, _)| *other == name).map(|(_, shift)| *shift);
                of_this.filter(|shift| shift.fract() == 0.0 || index % 4 == 2).sum::<f32>()
            };
            let moved = values.enumerate().map(|(index, value)| value + shift(index));
            (name.to_owned(), moved.flat_map(f32::to_le_bytes).collect())
        })
        .collect();
    let tensors = file.iter().map(|(name, tensor)| {
        (name.to_owned(), TensorView::new(Dtype::F32, tensor.shape().to_vec(), &shifted[name]).unwrap())
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shifted.safetensors");
    std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    Checkpoint::read(&path).unwrap().into_detector(config, device).unwrap()
}

#[test]
fn no_proposal_is_no_loss() {
    let device = Device::flex().autodiff();
    let detector = new_detector(&configs(2, resnet18())[2], &device);
    let Detector::FasterRcnn(faster_rcnn) = &detector else { unreachable!("the third is") };
    let features = faster_rcnn.features(&random_images(1, &device), Mode::Training);
    let output = faster_rcnn.classify(&features, &[]);
    assert_eq!((output.logits.dims(), output.deltas.dims()), ([0, 3], [0, 12]));
    let loss = ops::known_gradient(output.logits, 0.0, Vec::new());
    drop((loss + features[0].clone().sum()).backward());
}

#[test]
#[should_panic(expected = "a target of image 1 is of class 2, of 2")]
fn a_class_beyond_the_last_is_named() {
    let device = Device::flex().autodiff();
    let detector = new_detector(&configs(2, resnet18())[2], &device);
    let beyond = Target { class: 2, ..target(1.0, 1.0, 9.0, 9.0) };
    loss(&detector, &random_images(2, &device), &[Vec::new(), vec![beyond]], &LossOptions::default());
}

#[test]
fn boxes_are_those_of_the_image() {
    // An image of 48 × 48 shown at twice its size and mirrored: a box is half as large as the view's.
    let plain = Device::flex();
    for config in configs(2, ResNetConfig { norm: NormKind::Group, ..resnet18() }) {
        let config = match config {
            DetectorConfig::RetinaNet(mut config) => {
                config.post_process.score_min = 0.0;
                DetectorConfig::RetinaNet(config)
            }
            DetectorConfig::Fcos(mut config) => {
                config.post_process.score_min = 0.0;
                DetectorConfig::Fcos(config)
            }
            other => other,
        };
        let detector = new_detector(&config, &plain);
        let of_view = random_images(1, &plain);
        let half = Affine::resize((48, 48), (SIDE, SIDE)).then(Affine::flip_horizontal(SIDE));
        let of_image = Images { to_view: vec![half], ..of_view.clone() };
        let all = detector.detect(&of_image).remove(0);
        let middle = all[all.len() / 2].score;
        let better: Vec<_> = all.into_iter().filter(|detection| detection.score > middle).collect();
        assert!(!better.is_empty());
        assert_eq!(detector.detect_above(middle.0, &of_image), [better]);
        let (view, image) = (detector.detect(&of_view).remove(0), detector.detect(&of_image).remove(0));
        assert!(!view.is_empty());
        assert_eq!(view.len(), image.len());
        for (view, image) in view.iter().zip(&image) {
            assert_eq!(half.inverse().apply(view.bbox), image.bbox);
            assert_eq!((view.class, view.score), (image.class, image.score));
            assert!(image.bbox.x1 >= 0.0 && image.bbox.x2 <= 48.0);
        }
    }
}

#[test]
fn batch_norm_learns_its_statistics_and_a_frozen_stage_does_not() {
    let device = Device::flex().autodiff();
    let backbone = ResNetConfig { norm: NormKind::Batch, frozen_stages: 1, ..resnet18() };
    let config = &configs(2, backbone)[0];
    let detector = new_detector(config, &device);
    let stored_bytes = |detector: &Detector, name: &str| {
        let bytes = to_safetensors(detector);
        SafeTensors::deserialize(&bytes).unwrap().tensor(name).unwrap().data().to_vec()
    };
    let names = ["backbone.body.bn1.running_mean", "backbone.body.layer1.0.bn1.running_mean"];
    let before = names.map(|name| stored_bytes(&detector, name));
    let images_of_student = random_images(2, &device);
    let losses = loss(&detector, &images_of_student, &[Vec::new(), Vec::new()], &LossOptions::default());
    let gradients = named_gradients(&detector, &losses.total().backward());
    let after = names.map(|name| stored_bytes(&detector, name));
    assert!(before[0] == after[0] && before[1] != after[1]);
    assert!(gradients.contains_key("backbone.body.layer1.0.bn1.weight"));
    assert!(!gradients.contains_key("backbone.body.bn1.weight"));
    // Inference changes nothing, and depends on nothing else in the batch.
    let teacher = detector.valid();
    let both = random_images(2, &Device::flex());
    let one = Images {
        pixels: both.pixels.clone().narrow(0, 0, 1),
        second_view: None,
        sizes: both.sizes[..1].to_vec(),
        to_view: both.to_view[..1].to_vec(),
    };
    assert_eq!(teacher.detect(&both)[0], teacher.detect(&one)[0]);
    assert_eq!(after[1], stored_bytes(&teacher, names[1]));
}

// Checkpoints

fn shapes(bytes: &[u8]) -> BTreeMap<String, Vec<usize>> {
    let file = SafeTensors::deserialize(bytes).unwrap();
    file.iter().map(|(name, tensor)| (name.to_owned(), tensor.shape().to_vec())).collect()
}

/// torchvision's own `*_resnet50_fpn`, except for counters that no one uses.
#[test]
fn names_and_shapes_are_torchvisions() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/torchvision/names.json");
    let names: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let backbone = ResNetConfig::new(Depth::ResNet50);
    let retinanet = RetinaNetConfig::new(91, backbone);
    let models = [
        (
            "retinanet_resnet50_fpn",
            DetectorConfig::RetinaNet(RetinaNetConfig { extra_levels: ExtraLevels::P5, ..retinanet }),
        ),
        ("fcos_resnet50_fpn", DetectorConfig::Fcos(FcosConfig::new(91, backbone))),
        ("fasterrcnn_resnet50_fpn", DetectorConfig::FasterRcnn(FasterRcnnConfig::new(90, backbone))),
    ];
    for (name, config) in models {
        let mut expected: BTreeMap<String, Vec<usize>> =
            serde_json::from_value(names["models"][name].clone()).unwrap();
        expected.retain(|name, _| !name.ends_with("num_batches_tracked"));
        assert_eq!(shapes(&to_safetensors(&new_detector(&config, &Device::flex()))), expected, "{name}");
    }
}

fn written(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn what_is_written_reads_back_and_tells_its_own_shape() {
    let folder = tempfile::tempdir().unwrap();
    let kinds = [DetectorKind::RetinaNet, DetectorKind::Fcos, DetectorKind::FasterRcnn];
    for (config, kind) in configs(3, resnet18()).into_iter().zip(kinds) {
        let bytes = to_safetensors(&new_detector(&config, &Device::flex()));
        let path = written(folder.path(), "model.safetensors", &bytes);
        let checkpoint = Checkpoint::read(&path).unwrap();
        assert_eq!(DetectorConfig::of_checkpoint(&checkpoint, kind, resnet18(), 3).unwrap(), config);
        let again = checkpoint.into_detector(&config, &Device::flex()).unwrap();
        assert!(to_safetensors(&again) == bytes);
    }
}

#[test]
fn checkpoints_that_do_not_fit_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let config = &configs(3, resnet18())[0];
    let bytes = to_safetensors(&new_detector(config, &Device::flex()));
    let read = |name: &str, bytes: &[u8]| Checkpoint::read(&written(folder.path(), name, bytes));

    assert!(matches!(
        Checkpoint::read(&folder.path().join("absent.pth")),
        Err(WeightsError::Unreadable { .. })
    ));
    for name in ["a.safetensors", "a.pth"] {
        let (half, text) = (&bytes[..bytes.len() / 2], b"not a checkpoint at all".as_slice());
        for content in [half, text, b""] {
            let error = read(name, content).unwrap_err();
            assert!(matches!(error, WeightsError::NotACheckpoint { .. }), "{error}");
        }
    }

    // Of another architecture, or with other classes.
    let checkpoint = || read("b.safetensors", &bytes).unwrap();
    let refusal = |kind, n_classes| {
        DetectorConfig::of_checkpoint(&checkpoint(), kind, resnet18(), n_classes).unwrap_err()
    };
    assert!(matches!(refusal(DetectorKind::FasterRcnn, 3), WeightsError::OtherArchitecture { .. }));
    let error = refusal(DetectorKind::RetinaNet, 80);
    assert!(error.to_string().contains("is of 3 classes, not 80"), "{error}");
    let deeper = ResNetConfig::new(Depth::ResNet34);
    let error = checkpoint().into_detector(&configs(3, deeper)[0], &Device::flex()).unwrap_err();
    assert!(error.to_string().contains("missing: backbone.body.layer1.2.conv1.weight"), "{error}");

    // One tensor wrong at a time.
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let name = "backbone.fpn.inner_blocks.0.0.bias";
    let with = |removed: &str, inserted: Option<(&str, usize, Dtype, Vec<u8>)>| {
        let mut tensors: BTreeMap<String, TensorView> =
            file.iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect();
        tensors.remove(removed);
        if let Some((name, len, dtype, bytes)) = &inserted {
            tensors.insert((*name).to_owned(), TensorView::new(*dtype, vec![*len], bytes).unwrap());
        }
        let bytes = safetensors::serialize(tensors, None).unwrap();
        read("c.safetensors", &bytes).and_then(|checkpoint| checkpoint.into_detector(config, &Device::flex()))
    };
    let floats = |value: f32, len: usize| value.to_le_bytes().repeat(len);
    let refused = |removed, inserted| with(removed, inserted).unwrap_err().to_string();

    let error = refused(name, None);
    assert!(error.contains(&format!("missing: {name}")), "{error}");
    let error = refused("", Some(("other", 16, Dtype::F32, floats(1.0, 16))));
    assert!(error.contains("unexpected: other"), "{error}");
    let error = refused(name, Some((name, 16, Dtype::F32, floats(1.0, 16))));
    assert!(error.contains(&format!("shape: {name} is [16], the model's [32]")), "{error}");
    let error = refused(name, Some((name, 32, Dtype::F32, floats(f32::NAN, 32))));
    assert!(error.contains(&format!("`{name}` has a value that is not finite")), "{error}");
    let error = refused(name, Some((name, 32, Dtype::I32, floats(1.0, 32))));
    assert!(error.contains(&format!("`{name}` holds I32")), "{error}");
    let variance = "backbone.body.bn1.running_var";
    let error = refused(variance, Some((variance, 64, Dtype::F32, floats(-1.0, 64))));
    assert!(error.contains(&format!("a variance in `{variance}` is not positive")), "{error}");
    // f16 is read.
    let halves = half::f16::from_f32(0.5).to_le_bytes().repeat(32);
    let bytes = to_safetensors(&with(name, Some((name, 32, Dtype::F16, halves))).unwrap());
    let read_back = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read_back.tensor(name).unwrap().data(), floats(0.5, 32));
}

/// A file as training scripts write it: weights under `model`, wrapped once more by a parallel module, of
/// 16 bits and with names that torchvision has changed since, beside a state of a generator
/// (`fixtures/torchvision/wrapped.py`).
#[test]
fn a_training_scripts_file_is_read() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/torchvision/wrapped.pth");
    let checkpoint = Checkpoint::read(&path).unwrap();
    for (name, shape) in [
        ("backbone.fpn.inner_blocks.0.0.weight", vec![4, 3, 1, 1]),
        ("rpn.head.conv.0.0.bias", vec![4]),
        ("head.regression_head.conv.1.0.weight", vec![2, 3]),
    ] {
        assert_eq!(checkpoint.shape(name), Some(&*shape), "{name}");
    }
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for part in [10, bytes.len() / 2, bytes.len() - 30] {
        let path = written(folder.path(), "part.pth", &bytes[..part]);
        assert!(matches!(Checkpoint::read(&path), Err(WeightsError::NotACheckpoint { .. })), "{part} bytes");
    }
}

/// The ImageNet weights that the project is measured with, where `LACUNA_WEIGHTS` names their folder.
#[test]
fn imagenet_weights_fill_the_backbone() {
    let Some(folder) = std::env::var_os("LACUNA_WEIGHTS") else {
        eprintln!("skipped: LACUNA_WEIGHTS is not set");
        return;
    };
    let path = PathBuf::from(folder).join("resnet50-caffe-imagenet.safetensors");
    let backbone = ResNetConfig { style: Style::Caffe, ..ResNetConfig::new(Depth::ResNet50) };
    let config = &configs(2, backbone)[0];
    let detector = new_detector(config, &Device::flex());
    let filled = Checkpoint::read(&path).unwrap().into_backbone_of(detector).unwrap();
    let bytes = to_safetensors(&filled);
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let variance = tensors.tensor("backbone.body.bn1.running_var").unwrap();
    assert!(variance.data().as_chunks::<4>().0.iter().all(|&bytes| f32::from_le_bytes(bytes) > 0.0));
    // Not as a ResNet-18.
    let other = &configs(2, resnet18())[0];
    let other = other.init(&Device::flex(), &mut Rng::new(Purpose::Weights, 1, 0, 0));
    let error = Checkpoint::read(&path).unwrap().into_backbone_of(other).unwrap_err();
    assert!(matches!(error, WeightsError::Mismatch(_)), "{error}");
}

/// The classification loss of BRL by its definition, in doubles: of every sample its logits, whether it is an object of
/// class 0, and its best IoU with the only target.
fn recalibrated(samples: &[(Vec<f32>, bool, f32)], normalizer: f64) -> f64 {
    let mut sum = 0.0;
    for (logits, positive, iou) in samples {
        for (class, &logit) in logits.iter().enumerate() {
            let p = 1.0 / (1.0 + f64::from(-logit).exp());
            let background = -(1.0 - 0.25) * p * p * (1.0 - p).ln();
            sum += if *positive && class == 0 {
                -0.25 * (1.0 - p) * (1.0 - p) * p.ln()
            } else if *positive || *iou >= 0.1 {
                background
            } else if 1.0 - p >= 0.5 {
                0.1 * background
            } else {
                0.1 * -(1.0 - 0.25) * (1.0 - p) * (1.0 - p) * p.ln()
            };
        }
    }
    sum / normalizer
}

const BRL: Recalibration = Recalibration { iou_max: 0.1, weight: 0.1, turn: 0.5 };

#[test]
fn background_is_recalibrated_as_brl_defines_it() {
    let device = Device::flex().autodiff();
    let images = random_images(1, &device);
    let object = target(20.0, 20.0, 60.0, 70.0);
    let options = LossOptions { recalibration: Some(BRL), ..LossOptions::default() };
    let bias = "head.classification_head.cls_logits.bias";
    for config in &configs(2, resnet18())[..2] {
        // Nothing looks like an object, some things nearly, and most things do.
        for shift in [0.0, 4.0, 5.0] {
            let detector = with_biases_shifted(config, &[(bias, shift)], &device);
            let rows = |logits: Tensor<2>| -> Vec<Vec<f32>> {
                ops::values(logits).as_chunks::<2>().0.iter().map(|row| row.to_vec()).collect()
            };
            let (samples, positives): (Vec<(Vec<f32>, bool, f32)>, usize) = match &detector {
                Detector::RetinaNet(retinanet) => {
                    let output = retinanet.forward(&images, Mode::Training);
                    let anchors = output.samples.boxes();
                    let ious: Vec<f32> = anchors.iter().map(|anchor| iou(*anchor, object.bbox)).collect();
                    let best = ious.iter().copied().fold(0.0, f32::max);
                    let state = |iou: f32| (iou >= 0.5 || iou == best, iou >= 0.4);
                    let samples = rows(output.logits).into_iter().zip(&ious);
                    let samples = samples.filter(|(_, iou)| state(**iou).0 || !state(**iou).1);
                    let samples: Vec<_> = samples.map(|(logits, &iou)| (logits, state(iou).0, iou)).collect();
                    let positives = samples.iter().filter(|sample| sample.1).count();
                    (samples, positives)
                }
                Detector::Fcos(fcos) => {
                    let output = fcos.forward(&images, Mode::Training);
                    let matches = objects_at(&output.samples, &[object.bbox], 1.5);
                    let squares = output.samples.boxes().iter().zip(&matches);
                    let samples = rows(output.logits).into_iter().zip(squares);
                    let samples = samples.map(|(logits, (square, matched))| {
                        let ((x, y), half) = (square.center(), 2.0 * square.width());
                        let anchor = Box2::new(x - half, y - half, x + half, y + half);
                        (logits, matched.is_some(), iou(anchor, object.bbox))
                    });
                    (samples.collect(), matches.iter().flatten().count())
                }
                Detector::FasterRcnn(_) => unreachable!("the first two are others"),
            };
            assert!(positives > 0 && samples.iter().any(|sample| !sample.1 && sample.2 > 0.1));
            let expected = recalibrated(&samples, positives as f64);
            let losses = loss(&detector, &images, &[vec![object]], &options);
            let found = f64::from(value(&losses, Term::Classification));
            assert!((found - expected).abs() < 1e-4 * expected, "{shift}: {found} {expected}");

            // And its gradient is its slope, by every fourth bias where there are so many.
            let classification_at = |step: f32| {
                let moved = with_biases_shifted(config, &[(bias, shift), (bias, step)], &device);
                f64::from(value(&loss(&moved, &images, &[vec![object]], &options), Term::Classification))
            };
            let classification = losses.0.into_iter().find(|(term, _)| *term == Term::Classification);
            let gradients = named_gradients(&detector, &classification.unwrap().1.backward());
            let gradient: f64 = gradients[bias].iter().skip(2).step_by(4).map(|g| f64::from(*g)).sum();
            let difference = (classification_at(0.01) - classification_at(-0.01)) / 0.02;
            assert!(
                (gradient - difference).abs() <= 0.02 * gradient.abs(),
                "{shift}: {gradient} {difference}"
            );
        }
    }
}

/// Nothing to learn, divided by the positives of what is counted in its place.
#[test]
fn classification_is_divided_by_what_is_counted() {
    let device = Device::flex().autodiff();
    let images = random_images(2, &device);
    let object = target(20.0, 20.0, 60.0, 70.0);
    let (objects, nothing) = ([vec![object], vec![object]], [Vec::new(), Vec::new()]);
    for config in &configs(2, resnet18())[..2] {
        let detector = new_detector(config, &device);
        let classification_loss = |targets: &[Vec<Target>], counted| {
            let options = LossOptions { counted, ..LossOptions::default() };
            value(&loss(&detector, &images, targets, &options), Term::Classification)
        };
        assert_eq!(classification_loss(&objects, Some(&objects)), classification_loss(&objects, None));
        let positives = classification_loss(&nothing, None) / classification_loss(&nothing, Some(&objects));
        let expected = match &detector {
            Detector::Fcos(fcos) => {
                let locations = fcos.forward(&images, Mode::Training).samples;
                2 * objects_at(&locations, &[object.bbox], 1.5).iter().flatten().count()
            }
            // Nothing counts as one of each image; so the ratio is that of one image's positives.
            _ => {
                let one_each =
                    classification_loss(&objects, Some(&nothing)) / classification_loss(&objects, None);
                one_each.round() as usize
            }
        };
        assert!(
            expected > 1 && (positives - expected as f32).abs() < 1e-3 * positives,
            "{positives} {expected}"
        );
    }
}

#[test]
fn proposals_can_be_classified_by_focal_loss() {
    let device = Device::flex().autodiff();
    let (images, targets) = (random_images(1, &device), [vec![target(20.0, 20.0, 60.0, 70.0)]]);
    let detector = new_detector(&configs(2, resnet18())[2], &device);
    let classification_with = |proposal_gamma| {
        let options = LossOptions { proposal_gamma, ..LossOptions::default() };
        value(&loss(&detector, &images, &targets, &options), Term::Classification)
    };
    assert_eq!(classification_with(None), classification_with(Some(0.0)));
    assert!(
        classification_with(Some(1.5)) < classification_with(None) && classification_with(Some(1.5)) > 0.0
    );
}

/// Few enough to look at all.
const FEW: Proposals = Proposals { per_level: 40, per_image: 100 };

/// The three detectors, with samples of all that there is: nothing is drawn at random.
fn without_chance(n_classes: usize) -> [DetectorConfig; 3] {
    configs(n_classes, resnet18()).map(|config| match config {
        DetectorConfig::FasterRcnn(config) => DetectorConfig::FasterRcnn(FasterRcnnConfig {
            training_proposals: FEW,
            anchor_samples: Samples { count: 1_000_000, positive_share: 0.5 },
            proposal_samples: Samples { count: 1_000_000, positive_share: 0.5 },
            ..config
        }),
        other => other,
    })
}

#[test]
fn sets_of_targets_cost_in_one_pass_what_each_costs_in_its_own() {
    let device = Device::flex().autodiff();
    let images = random_images(2, &device);
    let one = [vec![target(20.0, 20.0, 60.0, 70.0)], vec![target(5.0, 40.0, 50.0, 90.0)]];
    let other = [vec![target(30.0, 4.0, 90.0, 50.0), target(2.0, 2.0, 40.0, 40.0)], Vec::new()];
    let focal = LossOptions { proposal_gamma: Some(1.5), ..LossOptions::default() };
    for config in without_chance(1) {
        let detector = new_detector(&config, &device);
        let mut rngs: Vec<Rng> = (0..2).map(|image| Rng::new(Purpose::Sampling, 0, 0, image)).collect();
        let sets = [(&one[..], LossOptions::default()), (&other[..], focal)];
        let together = detector.losses(&images, sets, &mut rngs);
        let each = [
            loss(&detector, &images, &one, &LossOptions::default()),
            loss(&detector, &images, &other, &focal),
        ];
        for (together, alone) in together.iter().zip(&each) {
            assert_eq!(together.0.len(), alone.0.len());
            for &(term, _) in &alone.0 {
                assert_eq!(value(together, term), value(alone, term), "{term:?}");
            }
        }
        // And the gradient of their sum is the sum of theirs.
        let [one, other] = together;
        let of_both = named_gradients(&detector, &one.plus(other).total().backward());
        let [of_one, of_other] = each.map(|losses| named_gradients(&detector, &losses.total().backward()));
        let largest = |gradient: &[f32]| gradient.iter().fold(0f32, |most, g| most.max(g.abs()));
        // A bias before a norm has a gradient of zero, of which rounding makes something.
        let rounding = 1e-7 * of_both.values().map(|gradient| largest(gradient)).fold(0.0, f32::max);
        for (name, gradient) in of_both {
            let tolerance = 1e-4 * largest(&gradient) + rounding;
            for ((both, one), other) in gradient.iter().zip(&of_one[&name]).zip(&of_other[&name]) {
                assert!((both - one - other).abs() <= tolerance, "{name}: {both} {one} {other}");
            }
        }
    }
}

/// Samples are drawn for one set after another: the first has those of a pass of its own.
#[test]
fn the_first_set_of_targets_draws_as_if_it_were_alone() {
    let device = Device::flex().autodiff();
    let DetectorConfig::FasterRcnn(config) = configs(1, resnet18())[2].clone() else { unreachable!("it is") };
    let samples = Samples { count: 20, positive_share: 0.5 };
    let config = FasterRcnnConfig { anchor_samples: samples, proposal_samples: samples, ..config };
    let (detector, images) =
        (new_detector(&DetectorConfig::FasterRcnn(config), &device), random_images(2, &device));
    let targets = [vec![target(20.0, 20.0, 60.0, 70.0)], vec![target(5.0, 40.0, 50.0, 90.0)]];
    let options = LossOptions::default();
    let mut rngs: Vec<Rng> = (0..2).map(|image| Rng::new(Purpose::Sampling, 0, 0, image)).collect();
    let [first, second] = detector.losses(&images, [(&targets[..], options); 2], &mut rngs);
    let alone = loss(&detector, &images, &targets, &options);
    assert_eq!(value(&first, Term::Objectness), value(&alone, Term::Objectness));
    assert_eq!(value(&first, Term::Classification), value(&alone, Term::Classification));
    assert_ne!(value(&second, Term::Objectness), value(&alone, Term::Objectness));
}

/// A Faster R-CNN of two views, and a batch of them.
fn two_views([.., config]: [DetectorConfig; 3], device: &Device) -> (Detector, Images) {
    let DetectorConfig::FasterRcnn(config) = config else { unreachable!("it is the last") };
    let config = DetectorConfig::FasterRcnn(FasterRcnnConfig { two_views: true, ..config });
    let first = random_images(2, device);
    let second_view = Some(first.pixels.clone().mul_scalar(0.5));
    (new_detector(&config, device), Images { second_view, ..first })
}

#[test]
fn two_views_are_learned_together() {
    let device = Device::flex().autodiff();
    let (detector, images) = two_views(configs(2, resnet18()), &device);
    let Detector::FasterRcnn(faster_rcnn) = &detector else { unreachable!("it is") };
    let targets = [vec![target(20.0, 20.0, 60.0, 70.0)], Vec::new()];
    let run = |mining: Option<Mining>, score_min: f32| {
        let mut rngs: Vec<Rng> = (0..2).map(|image| Rng::new(Purpose::Sampling, 0, 0, image)).collect();
        let options = LossOptions::default();
        faster_rcnn.two_view_loss(&images, &targets, &TwoViews { score_min, mining }, &options, &mut rngs)
    };
    let has = |losses: &Losses, term: Term| losses.0.iter().any(|(own, _)| *own == term);
    let TwoViewLoss { losses, detections: found, .. } = run(None, 0.99);
    assert!(!has(&losses, Term::Consistency) && found.iter().all(Vec::is_empty));
    // An untrained detector is as sure of everything as of nothing: all is found, and all is mined.
    let TwoViewLoss { detections: found, pseudo_labels: added, .. } = run(None, 0.1);
    assert!(added[0].len() <= found[0].len() && !added[1].is_empty() && added[1] == found[1]);
    let mining = Mining { objectness_min: 0.0, iou_max: 0.2, nms_iou_max: 0.3, weight: 1.0 };
    let losses = run(Some(mining), 0.99).losses;
    assert!(value(&losses, Term::Consistency) > 0.0);
    // Nothing else is left to learn from than the one target.
    assert!(value(&losses, Term::Classification) != value(&run(None, 0.99).losses, Term::Classification));
    let twice = run(Some(Mining { weight: 2.0, ..mining }), 0.99).losses;
    let (once, twice) = (value(&losses, Term::Consistency), value(&twice, Term::Consistency));
    assert!((twice - 2.0 * once).abs() < 1e-5 * twice, "{once} {twice}");
    let gradients = named_gradients(&detector, &losses.total().backward());
    assert!(gradients.values().flatten().all(|g| g.is_finite()));
    assert!(gradients.contains_key("rpn.head.cls_logits.weight"));
    // And both are looked at where it detects.
    let plain = Images {
        pixels: Tensor::from_data(images.pixels.to_data(), &Device::flex()),
        second_view: images.second_view.map(|pixels| Tensor::from_data(pixels.to_data(), &Device::flex())),
        ..images
    };
    let other = Images { second_view: Some(plain.pixels.clone()), ..plain.clone() };
    assert_ne!(detector.valid().detect(&plain), detector.valid().detect(&other));
}

/// The losses of both views' box heads by the definition, and their mean: cross entropy of every proposal, smooth L1 of
/// those that overlap a target by half, both divided by the number of proposals.
#[test]
fn the_loss_of_two_views_is_the_mean_of_both() {
    let device = Device::flex().autodiff();
    let (detector, images) = two_views(without_chance(2), &device);
    let Detector::FasterRcnn(faster_rcnn) = &detector else { unreachable!("it is") };
    let targets = [vec![target(20.0, 20.0, 60.0, 70.0)], vec![target(4.0, 30.0, 50.0, 80.0)]];
    let options = TwoViews { score_min: 0.35, mining: None };
    let mut rngs: Vec<Rng> = (0..2).map(|image| Rng::new(Purpose::Sampling, 0, 0, image)).collect();
    let TwoViewLoss { losses, pseudo_labels: added, .. } =
        faster_rcnn.two_view_loss(&images, &targets, &options, &LossOptions::default(), &mut rngs);
    assert!(added.iter().any(|added| !added.is_empty()));

    let second = Images { pixels: images.second_view.clone().unwrap(), ..images.clone() };
    let views = [&images, &second].map(|images| faster_rcnn.features(images, Mode::Training));
    let both: Vec<Tensor<4>> =
        views[0].iter().zip(&views[1]).map(|(a, b)| Tensor::cat(vec![a.clone(), b.clone()], 3)).collect();
    let rpn = faster_rcnn.rpn(&images, &both);
    let proposed = faster_rcnn.propose(&images, &rpn.anchors, &RpnValues::read(&rpn), FEW);

    let found = |image: usize| {
        added[image].iter().map(|found| Target { bbox: found.bbox, class: found.class, learn_box: true })
    };
    let labeled: Vec<Vec<Target>> =
        (0..2).map(|image| targets[image].iter().copied().chain(found(image)).collect()).collect();
    let (mut classification, mut regression) = (0.0, 0.0);
    for (features, targets) in views.iter().zip([&targets[..], &labeled]) {
        let mut proposals = Vec::new();
        for (image, (proposed, targets)) in proposed.iter().zip(targets).enumerate() {
            let boxes = proposed.iter().map(|one| one.bbox).chain(targets.iter().map(|one| one.bbox));
            proposals.extend(boxes.map(|bbox| Proposal { image, bbox }));
        }
        let RoiOutput { logits, deltas, order } = faster_rcnn.classify(features, &proposals);
        let (logits, deltas) = (ops::values(logits), ops::values(deltas));
        for (row, &index) in order.iter().enumerate() {
            let Proposal { image, bbox } = proposals[index];
            let overlap = |target: &&Target| iou(bbox, target.bbox);
            let best = targets[image].iter().max_by(|a, b| overlap(a).total_cmp(&overlap(b)));
            let best = best.filter(|target| overlap(target) >= 0.5);
            let class = best.map_or(0, |target| target.class + 1);
            let logits: Vec<f64> = logits[3 * row..][..3].iter().map(|&x| x.into()).collect();
            let sum: f64 = logits.iter().map(|x| x.exp()).sum();
            classification += (sum.ln() - logits[class]) / proposals.len() as f64;
            let Some(Target { bbox: object, .. }) = best else { continue };
            let ((x, y), (object_x, object_y)) = (bbox.center(), object.center());
            let wanted = [
                10.0 * (object_x - x) / bbox.width(),
                10.0 * (object_y - y) / bbox.height(),
                5.0 * (object.width() / bbox.width()).ln(),
                5.0 * (object.height() / bbox.height()).ln(),
            ];
            for (delta, wanted) in deltas[4 * (3 * row + class)..][..4].iter().zip(wanted) {
                let off = f64::from((delta - wanted).abs());
                let loss = if off < 1.0 / 9.0 { 4.5 * off * off } else { off - 1.0 / 18.0 };
                regression += loss / proposals.len() as f64;
            }
        }
    }
    for (term, sum) in [(Term::Classification, classification), (Term::Regression, regression)] {
        let (found, wanted) = (f64::from(value(&losses, term)), sum / 2.0);
        assert!(wanted > 0.0 && (found - wanted).abs() <= 1e-4 * wanted, "{term:?}: {found} {wanted}");
    }
}
