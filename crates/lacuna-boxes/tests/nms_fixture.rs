//! The same boxes kept as by torchvision (fixtures/nms/make.py).

use std::fs;
use std::path::PathBuf;

use lacuna_boxes::{Box2, nms};
use serde_json::Value;

#[test]
fn keeps_what_torchvision_keeps() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/nms/cases.json");
    let cases: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let list = |value: &Value| value.as_array().unwrap().clone();
    let numbers =
        |value: &Value| -> Vec<f32> { list(value).iter().map(|v| v.as_f64().unwrap() as f32).collect() };
    let indices =
        |value: &Value| -> Vec<usize> { list(value).iter().map(|v| v.as_u64().unwrap() as usize).collect() };

    for case in list(&cases) {
        let corners = list(&case["boxes"]);
        let boxes: Vec<Box2> = corners
            .iter()
            .map(|corners| <[f32; 4]>::try_from(numbers(corners)).unwrap())
            .map(|[x1, y1, x2, y2]| Box2::new(x1, y1, x2, y2))
            .collect();
        let (scores, classes) = (numbers(&case["scores"]), indices(&case["classes"]));
        for (threshold, kept) in case["kept"].as_object().unwrap() {
            let ours = nms(&boxes, &scores, &classes, threshold.parse().unwrap());
            assert_eq!(ours, indices(kept), "{} at {threshold}", case["name"]);
        }
    }
}
