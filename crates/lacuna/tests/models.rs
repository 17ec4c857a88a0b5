//! `lacuna import` and `lacuna predict` as their users see them.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;

use burn::tensor::Device;
use common::{bmp, lacuna};
use lacuna_models::DetectorConfig;
use lacuna_models::faster_rcnn::FasterRcnnConfig;
use lacuna_models::resnet::{Depth, ResNetConfig};
use lacuna_models::retinanet::RetinaNetConfig;
use lacuna_models::weights::to_safetensors;
use lacuna_random::{Purpose, Rng};
use serde_json::Value;
use tempfile::TempDir;

const ANNOTATIONS: &str = r#"{"images": [
{"id": 7, "file_name": "b.bmp", "width": 20, "height": 50},
{"id": 3, "file_name": "a.bmp", "width": 40, "height": 30},
{"id": 9, "file_name": "elsewhere.bmp", "width": 40, "height": 30}],
"annotations": [],
"categories": [{"id": 40, "name": "cat"}, {"id": 90, "name": "dog"}]}"#;

/// A folder with the weights of two untrained detectors, images of three sizes, and annotations.
fn workplace() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    fs::create_dir(folder.path().join("images")).unwrap();
    for (name, width, height) in [("a.bmp", 40, 30), ("b.bmp", 20, 50), ("c.bmp", 1, 1)] {
        write(&format!("images/{name}"), &bmp(width, height));
    }
    write("gt.json", ANNOTATIONS.as_bytes());
    let backbone = ResNetConfig::new(Depth::ResNet18);
    let retinanet = RetinaNetConfig { width: 32, head_depth: 1, ..RetinaNetConfig::new(2, backbone) };
    let faster_rcnn = FasterRcnnConfig { width: 32, head_width: 32, ..FasterRcnnConfig::new(2, backbone) };
    let models = [
        ("retinanet", DetectorConfig::RetinaNet(retinanet)),
        ("fasterrcnn", DetectorConfig::FasterRcnn(faster_rcnn)),
    ];
    for (name, config) in models {
        let detector = config.init(&Device::flex(), &mut Rng::new(Purpose::Weights, 0, 0, 0));
        write(&format!("{name}.safetensors"), &to_safetensors(&detector));
    }
    folder
}

fn run(folder: &Path, arguments: &str) -> String {
    let output = lacuna(folder, arguments);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(folder: &Path, arguments: &str, wanted: &str) {
    let output = lacuna(folder, arguments);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments}: {error}");
    assert!(output.stdout.is_empty(), "{arguments}");
    assert!(error.contains(wanted), "{arguments}: {error}");
    assert!(!folder.join("out").exists() && !folder.join("out.json").exists(), "{arguments} left something");
}

fn results(folder: &Path, name: &str) -> Vec<Value> {
    serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap()
}

const SIZES: &str = "--short-side 64 --long-side 96";

#[test]
fn a_checkpoint_becomes_a_model_that_predicts() {
    let place = workplace();
    let folder = place.path();
    let out = run(
        folder,
        &format!(
            "import fasterrcnn.safetensors --detector fasterrcnn --backbone resnet18 --n-classes 2 --out model {SIZES}"
        ),
    );
    assert!(out.starts_with("model: 2 classes, "), "{out}");

    let out = run(folder, "predict images --model model --out found.json");
    assert!(out.contains("detections in 3 images"), "{out}");
    let found = results(folder, "found.json");
    assert!(!found.is_empty(), "an untrained Faster R-CNN is sure of nothing, but above 0.05 of much");
    for entry in &found {
        let (id, name) = (entry["image_id"].as_u64().unwrap(), entry["file_name"].as_str().unwrap());
        assert_eq!(name, ["a.bmp", "b.bmp", "c.bmp"][id as usize - 1]);
        assert!([1, 2].contains(&entry["category_id"].as_u64().unwrap()), "label numbers");
        let (width, height) = [(40.0, 30.0), (20.0, 50.0), (1.0, 1.0)][id as usize - 1];
        let bbox: [f64; 4] = serde_json::from_value(entry["bbox"].clone()).unwrap();
        assert!(bbox[0] >= 0.0 && bbox[0] + bbox[2] <= width + 1e-3, "{entry}");
        assert!(bbox[1] >= 0.0 && bbox[1] + bbox[3] <= height + 1e-3, "{entry}");
        assert!(entry["score"].as_f64().unwrap() > 0.05);
    }

    // Ids of images and classes from annotations; of the folder only images that they know.
    run(folder, "predict images --model model --ids-from gt.json --categories gt.json --out named.json");
    let ids = |entries: &[Value], key: &str| {
        let mut ids: Vec<u64> = entries.iter().map(|entry| entry[key].as_u64().unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let named = results(folder, "named.json");
    assert_eq!(ids(&named, "image_id"), [3, 7]);
    assert!(ids(&named, "category_id").iter().all(|id| [40, 90].contains(id)));
    run(folder, "predict images/b.bmp --model model --ids-from gt.json --out one.json --score-min 0.0");
    assert_eq!(ids(&results(folder, "one.json"), "image_id"), [7]);
    let json: Value = serde_json::from_str(&run(
        folder,
        "predict images --model model --out high.json --score-min 0.999 --json",
    ))
    .unwrap();
    assert_eq!(json, serde_json::json!({"out": "high.json", "images": 3, "detections": 0}));

    // A model that has names finds them in whatever order a file has them.
    let named = |categories: &str| {
        format!(
            "import fasterrcnn.safetensors --detector fasterrcnn --backbone resnet18 --n-classes 2 {SIZES} \
             --categories gt.json --out {categories}"
        )
    };
    run(folder, &named("cats"));
    let turned = ANNOTATIONS.replace(
        r#"{"id": 40, "name": "cat"}, {"id": 90, "name": "dog"}"#,
        r#"{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}"#,
    );
    assert_ne!(turned, ANNOTATIONS);
    fs::write(folder.join("turned.json"), &turned).unwrap();
    run(folder, "predict images --model cats --out as-trained.json");
    run(folder, "predict images --model cats --categories turned.json --out turned-ids.json");
    let (trained, turned_ids) = (results(folder, "as-trained.json"), results(folder, "turned-ids.json"));
    for (trained, turned) in trained.iter().zip(&turned_ids) {
        let id = |entry: &Value| entry["category_id"].as_u64().unwrap();
        assert_eq!(id(turned), if id(trained) == 40 { 2 } else { 1 });
    }
    fs::write(folder.join("cows.json"), turned.replace("\"cat\"", "\"cow\"")).unwrap();
    refused(folder, "predict images --model cats --categories cows.json --out out.json", "no category `cat`");
    // No output replaces what it is made from.
    fs::copy(folder.join("fasterrcnn.safetensors"), folder.join("cats/weights.safetensors")).unwrap();
    let onto_itself = named("cats --force").replace("import fasterrcnn", "import cats/weights");
    refused(folder, &onto_itself, "would replace cats/weights.safetensors");

    // RetinaNet's labels count from 0.
    run(
        folder,
        &format!(
            "import retinanet.safetensors --detector retinanet --backbone resnet18 --n-classes 2 --out zero {SIZES}"
        ),
    );
    let config = fs::read_to_string(folder.join("zero/model.toml")).unwrap();
    assert!(config.contains("id = 0") && config.contains("id = 1") && !config.contains("id = 2"), "{config}");
    run(folder, "predict images --model zero --out zero.json");
}

#[test]
fn what_is_not_a_checkpoint_or_not_this_one_is_refused() {
    let place = workplace();
    let folder = place.path();
    let weights = fs::read(folder.join("retinanet.safetensors")).unwrap();
    fs::write(folder.join("half.safetensors"), &weights[..weights.len() / 2]).unwrap();
    fs::write(folder.join("text.pth"), "hello").unwrap();
    let import = |file: &str, rest: &str| format!("import {file} --detector {rest} --out out");
    for (file, rest, wanted) in [
        ("absent.pth", "fcos --n-classes 2", "error: cannot read absent.pth"),
        ("half.safetensors", "retinanet --n-classes 2", "error: half.safetensors is not a checkpoint"),
        ("text.pth", "retinanet --n-classes 2", "error: text.pth is not a checkpoint"),
        ("retinanet.safetensors", "fasterrcnn --n-classes 2", "which every Faster R-CNN has"),
        ("retinanet.safetensors", "retinanet --n-classes 3", "is of 2 classes, not 3"),
        ("fasterrcnn.safetensors", "fasterrcnn --n-classes 3", "is of 2 classes, not 3"),
        ("retinanet.safetensors", "retinanet --n-classes 2 --backbone resnet50", "missing: backbone.body."),
        ("retinanet.safetensors", "retinanet --n-classes 0", "`--n-classes` must be at least 1"),
        ("retinanet.safetensors", "retinanet --n-classes 2 --short-side 0", "the short side must be from 1"),
        ("retinanet.safetensors", "mask --n-classes 2", "possible values: retinanet"),
    ] {
        refused(folder, &import(file, rest), wanted);
    }
}

#[test]
fn what_cannot_be_predicted_is_refused() {
    let place = workplace();
    let folder = place.path();
    run(
        folder,
        &format!(
            "import retinanet.safetensors --detector retinanet --backbone resnet18 --n-classes 2 --out model {SIZES}"
        ),
    );
    fs::create_dir(folder.join("empty")).unwrap();
    fs::write(folder.join("broken.jpg"), "no picture").unwrap();
    let predict = |rest: &str| format!("predict {rest} --out out.json");
    for (rest, wanted) in [
        ("images --model empty", "error: empty is not a model"),
        ("empty --model model", "empty holds no image"),
        ("absent.jpg --model model", "absent.jpg"),
        ("broken.jpg --model model", "broken.jpg"),
        ("images --score-min nan --model model", "`--score-min` must be from 0 to 1"),
        ("images images/a.bmp --model model --ids-from gt.json", "which is named twice"),
        ("images/c.bmp --model model --ids-from gt.json", "images/c.bmp is not an image of gt.json"),
        ("empty --model model --ids-from gt.json", "empty holds none of the images of gt.json"),
    ] {
        refused(folder, &predict(rest), wanted);
    }
    for (rest, wanted) in [
        ("--ids-from gt.json --out gt.json", "would replace gt.json"),
        ("--out model/model.safetensors", "would replace model/model.safetensors"),
        ("--out images/a.bmp", "would replace images/a.bmp"),
    ] {
        refused(folder, &format!("predict images --model model {rest} --force"), wanted);
    }
    let out =
        run(folder, "predict broken.jpg images/a.bmp --model model --on-bad-image skip --out some.json");
    assert!(out.contains("in 1 images"), "{out}");

    // A model that was edited or damaged.
    let (config, weights) = (folder.join("model/model.toml"), folder.join("model/model.safetensors"));
    let text = fs::read_to_string(&config).unwrap();
    for (from, to, wanted) in [
        ("n_classes = 2", "n_classes = 3", "3 classes but 2 categories"),
        ("width = 32", "widht = 32", "widht"),
        ("width = 32", "width = 0", "`width`"),
        ("short_side = 64", "short_side = 0", "the short side must be from 1"),
        ("short_side = 64", "short_side = 4000000000", "the short side must be from 1"),
    ] {
        assert!(text.contains(from), "{text}");
        fs::write(&config, text.replace(from, to)).unwrap();
        refused(folder, &predict("images --model model"), wanted);
    }
    fs::write(&config, &text).unwrap();
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() - 100]).unwrap();
    refused(folder, &predict("images --model model"), "model.safetensors is not a checkpoint");
}
