//! The detectors, images and targets of `fixtures/torchvision`, which are made from names by the rule in
//! its README.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::Tensor;
use burn::tensor::{Device, TensorData};
use lacuna_boxes::{Affine, Box2};
use lacuna_models::faster_rcnn::{FasterRcnnConfig, Proposals, Samples};
use lacuna_models::fcos::FcosConfig;
use lacuna_models::fpn::ExtraLevels;
use lacuna_models::resnet::{Depth, ResNetConfig};
use lacuna_models::retinanet::RetinaNetConfig;
use lacuna_models::weights::Checkpoint;
use lacuna_models::{Detector, DetectorConfig, Images, LossNormalization, LossOptions, Losses, Target};
use lacuna_random::{Purpose, Rng};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;

pub(crate) fn fixture(name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/torchvision").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

/// Part of a name, dimensions if they matter, center, spread: the first that fits.
const RULES: [(&str, Option<usize>, f64, f64); 17] = [
    ("running_var", None, 1.0, 0.5),
    ("running_mean", None, 0.0, 0.1),
    ("bn2.weight", Some(1), 0.2, 0.1),
    ("weight", Some(1), 1.0, 0.1),
    ("classification_head.cls_logits.bias", Some(1), -12.5, 0.5),
    ("bbox_ctrness.bias", Some(1), 2.5, 0.05),
    ("bias", Some(1), 0.0, 0.05),
    ("inner_blocks", None, 0.0, 0.25),
    ("layer_blocks", None, 0.0, 0.4),
    ("classification_head.conv", None, 0.0, 0.75),
    ("regression_head.conv", None, 0.0, 0.4),
    ("classification_head.cls_logits", None, 0.0, 5.5),
    ("bbox_reg", None, 0.0, 12.0),
    ("bbox_ctrness", None, 0.0, 1.0),
    ("rpn.head.cls_logits", None, 0.0, 0.5),
    ("bbox_pred", None, 0.0, 0.3),
    ("weight", None, 0.0, 1.0),
];

/// Numbers in [−1, 1) that depend on the name alone.
fn units(name: &str, count: usize) -> impl Iterator<Item = f64> {
    let hash = name
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    (1..=count as u64).map(move |i| {
        let z = hash.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let z = z ^ (z >> 31);
        (z >> 40) as f64 / f64::from(1 << 23) - 1.0
    })
}

fn parameter(name: &str, shape: &[usize]) -> Vec<f32> {
    let fits = |&&(part, dims, ..): &&(&str, Option<usize>, f64, f64)| {
        name.contains(part) && dims.is_none_or(|dims| dims == shape.len())
    };
    let &(_, _, center, spread) = RULES.iter().find(fits).unwrap();
    let fan_in: usize = shape[1..].iter().product();
    let spread = if shape.len() >= 2 { spread * (6.0 / fan_in as f64).sqrt() } else { spread };
    units(name, shape.iter().product()).map(|unit| (center + spread * unit) as f32).collect()
}

/// A checkpoint file of torchvision's names, shapes and layouts, filled.
pub(crate) fn checkpoint(shapes: &BTreeMap<String, Vec<usize>>, folder: &Path) -> PathBuf {
    let bytes: Vec<(&String, &Vec<usize>, Vec<u8>)> = shapes
        .iter()
        .map(|(name, shape)| {
            (name, shape, parameter(name, shape).into_iter().flat_map(f32::to_le_bytes).collect())
        })
        .collect();
    let views = bytes
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap()));
    let path = folder.join("filled.safetensors");
    std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    path
}

/// The configuration that `make.py` builds.
pub(crate) fn config(detector: &str, backbone: &str, n_classes: usize) -> DetectorConfig {
    let depth = if backbone == "resnet18" { Depth::ResNet18 } else { Depth::ResNet50 };
    let backbone = ResNetConfig { frozen_stages: 0, ..ResNetConfig::new(depth) };
    match detector {
        "retinanet" => {
            let config = RetinaNetConfig::new(n_classes, backbone);
            DetectorConfig::RetinaNet(RetinaNetConfig { extra_levels: ExtraLevels::P5, ..config })
        }
        "fcos" => DetectorConfig::Fcos(FcosConfig::new(n_classes, backbone)),
        _ => {
            let proposals = Proposals { per_level: 200, per_image: 40 };
            let all = |positive_share| Samples { count: 1_000_000, positive_share };
            DetectorConfig::FasterRcnn(FasterRcnnConfig {
                training_proposals: proposals,
                proposals,
                anchor_samples: all(0.5),
                proposal_samples: all(0.25),
                ..FasterRcnnConfig::new(n_classes, backbone)
            })
        }
    }
}

/// The detector of `config`, filled by way of a checkpoint.
pub(crate) fn filled(config: &DetectorConfig, device: &Device) -> Detector {
    let folder = tempfile::tempdir().unwrap();
    let empty = config.init(&Device::flex(), &mut Rng::new(Purpose::Weights, 0, 0, 0));
    let bytes = lacuna_models::weights::to_safetensors(&empty);
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let shapes = file.iter().map(|(name, tensor)| (name.to_owned(), tensor.shape().to_vec())).collect();
    Checkpoint::read(&checkpoint(&shapes, folder.path())).unwrap().into_detector(config, device).unwrap()
}

/// The two images, normalized and padded.
pub(crate) fn images(device: &Device) -> Images {
    let scene = fixture("scene.json");
    let names = scene["images"].as_array().unwrap();
    let sizes: Vec<[usize; 2]> = serde_json::from_value(scene["sizes"].clone()).unwrap();
    let (height, width) = (96, 128);
    let mut pixels = vec![0.0; names.len() * height * width * 3];
    let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    for (image, (name, [h, w])) in names.iter().zip(&sizes).enumerate() {
        let values: Vec<f32> =
            units(name.as_str().unwrap(), 3 * h * w).map(|unit| ((unit + 1.0) / 2.0) as f32).collect();
        assert_eq!(values[..8], floats(&scene["pixels"][image]));
        for c in 0..3 {
            for y in 0..*h {
                for x in 0..*w {
                    let value = (values[(c * h + y) * w + x] - mean[c]) / std[c];
                    pixels[((image * height + y) * width + x) * 3 + c] = value;
                }
            }
        }
    }
    Images {
        pixels: Tensor::from_data(TensorData::new(pixels, [names.len(), height, width, 3]), device),
        second_view: None,
        sizes: sizes.iter().map(|&[h, w]| (w as u32, h as u32)).collect(),
        to_view: vec![Affine::IDENTITY; names.len()],
    }
}

pub(crate) fn boxes(value: &Value) -> Vec<Box2> {
    let boxes: Vec<[f32; 4]> = serde_json::from_value(value.clone()).unwrap();
    boxes.into_iter().map(|[x1, y1, x2, y2]| Box2::new(x1, y1, x2, y2)).collect()
}

pub(crate) fn targets(case: &str) -> Vec<Vec<Target>> {
    let of_image = |value: &Value| {
        let classes: Vec<usize> = serde_json::from_value(value["labels"].clone()).unwrap();
        boxes(&value["boxes"])
            .into_iter()
            .zip(classes)
            .map(|(bbox, class)| Target { bbox, class, learn_box: true })
            .collect()
    };
    fixture("scene.json")["cases"][case].as_array().unwrap().iter().map(of_image).collect()
}

/// `expected` is a sample of a tensor: shape, largest magnitude, values at multiples of a stride.
pub(crate) fn assert_sample(what: &str, actual: &[f32], expected: &Value, tolerance: f32) {
    let shape: Vec<usize> = serde_json::from_value(expected["shape"].clone()).unwrap();
    assert_eq!(actual.len(), shape.iter().product::<usize>(), "{what}: {shape:?}");
    let largest = expected["max_abs"].as_f64().unwrap() as f32;
    let stride = expected["stride"].as_u64().unwrap() as usize;
    let mut worst = 0.0f32;
    for (index, expected) in floats(&expected["values"]).into_iter().enumerate() {
        worst = worst.max((actual[index * stride] - expected).abs() / largest);
    }
    assert!(worst <= tolerance, "{what}: differs by {worst:e} of the largest value");
}

/// The loss of a case's targets, as torchvision has it.
pub(crate) fn loss(detector: &Detector, case: &str) -> Losses {
    let batch = images(&Device::flex().autodiff());
    // torchvision divides RetinaNet's losses per image, the others' by batch.
    let per_image = matches!(detector, Detector::RetinaNet(_));
    let normalization = if per_image { LossNormalization::Image } else { LossNormalization::Batch };
    let options = LossOptions { normalization, ..LossOptions::default() };
    let mut rngs = [0, 1].map(|image| Rng::new(Purpose::Sampling, 0, 0, image));
    detector.loss(&batch, &targets(case), &options, &mut rngs)
}
