//! `eval`, `calibrate`, `complete` and `inspect --detections` as users run them, on detections of a synthetic detector.

#![allow(clippy::unwrap_used)] // the allowance for tests does not reach their helpers

mod common;

use std::fs;
use std::path::Path;

use common::{bmp, lacuna};
use lacuna_random::{Purpose, Rng};
use serde_json::{Value, json};
use tempfile::TempDir;

const IMAGES: u64 = 150;
const SIDE: f64 = 200.0;

/// A folder with `full.json`, `sparse.json` (half of it), `hidden.json` (the other half) and `dets.json`: two classes,
/// four objects an image. The detector finds most of them, the surer the better, and as much that is not there.
fn workplace() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (mut images, mut full, mut sparse, mut hidden, mut found) = (vec![], vec![], vec![], vec![], vec![]);
    for image in 1..=IMAGES {
        let mut rng = Rng::new(Purpose::Synth, 11, 0, image);
        images
            .push(json!({ "id": image, "file_name": format!("{image}.bmp"), "width": SIDE, "height": SIDE }));
        for quarter in 0..4u64 {
            // Each in a quarter of its own, so that they do not overlap.
            let (column, row) = ((quarter % 2) as f64, (quarter / 2) as f64);
            let (x, y) = (100.0 * column + rng.range(2.0, 30.0), 100.0 * row + rng.range(2.0, 30.0));
            let (width, height) = (rng.range(30.0, 60.0), rng.range(30.0, 60.0));
            let id = 4 * image + quarter;
            let class = 1 + rng.below(2);
            let annotation = json!({
                "id": id, "image_id": image, "category_id": class, "bbox": [x, y, width, height],
                "area": width * height, "iscrowd": 0, "annotator": "Ada",
            });
            full.push(annotation.clone());
            if rng.chance(0.5) {
                sparse.push(annotation);
            } else {
                hidden.push(annotation);
            }
            let score = rng.range(0.12, 1.0);
            // A sure detection is an object more often, and sits better.
            let shift = if rng.chance(0.4 + 0.6 * score) { 0.02 } else { 0.11 };
            let bbox = [x + shift * width, y + shift * height, width, height];
            let at_an_object = rng.chance(score.sqrt());
            let elsewhere = [100.0 * column + 64.0, 100.0 * row + 64.0, 30.0, 30.0];
            found.push(json!({
                "image_id": image, "category_id": class, "bbox": if at_an_object { bbox } else { elsewhere },
                "score": score, "from": "a synthetic detector",
            }));
        }
    }
    let categories = json!([{ "id": 1, "name": "cup" }, { "id": 2, "name": "person" }]);
    let write = |name: &str, value: &Value| fs::write(folder.path().join(name), value.to_string()).unwrap();
    for (name, annotations) in [("full", full), ("sparse", sparse), ("hidden", hidden)] {
        let dataset = json!({ "images": images, "annotations": annotations, "categories": categories });
        write(&format!("{name}.json"), &dataset);
    }
    write("dets.json", &json!(found));
    folder
}

fn read(folder: &Path, name: &str) -> Value {
    serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap()
}

#[track_caller]
fn run(folder: &Path, arguments: &str) -> String {
    let output = lacuna(folder, arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{arguments}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn run_json(folder: &Path, arguments: &str) -> Value {
    serde_json::from_str(&run(folder, &format!("{arguments} --json"))).unwrap()
}

/// What is said about input that is refused, without a trace left.
#[track_caller]
fn refused(folder: &Path, arguments: &str) -> String {
    let names = || {
        let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let output = lacuna(folder, arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
    assert_eq!(names(), before, "{arguments}");
    said
}

#[test]
fn eval_says_what_pycocotools_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/coco-eval");
    let result = run_json(&folder, "eval annotations.json --detections detections.json");
    let names = ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"];
    let expected = read(&folder, "expected.json");
    for (place, name) in names.iter().enumerate() {
        let (ours, theirs) = (result["coco"][name].as_f64(), expected["stats"][place].as_f64());
        let close = ours.zip(theirs).is_some_and(|(a, b)| (a - b).abs() <= 1e-12);
        assert!(close, "{name}: {ours:?}, {theirs:?}");
    }
    for error in ["d_ece", "ace", "mce", "la_ece", "brier", "nll"] {
        assert!(result["calibration"][error].is_number(), "{error} of {result}");
    }
}

#[test]
fn eval_judges_proposals_for_what_was_hidden() {
    let folder = workplace();
    let arguments = "eval sparse.json --hidden hidden.json --detections dets.json";
    let result = run_json(folder.path(), arguments);
    // Both together are the truth.
    let whole = run_json(folder.path(), "eval full.json --detections dets.json");
    assert_eq!(result["coco"], whole["coco"]);
    assert_eq!(result["calibration"]["d_ece"], whole["calibration"]["d_ece"]);
    let thresholds = result["hidden"]["thresholds"].as_array().unwrap();
    assert_eq!(thresholds.len(), 19);
    let of = |key: &str| -> Vec<f64> { thresholds.iter().map(|t| t[key].as_f64().unwrap()).collect() };
    assert!(of("recall").is_sorted_by(|a, b| a >= b) && of("proposed").is_sorted_by(|a, b| a >= b));
    assert!(of("precision")[0] < of("precision")[18], "{result}");
    assert!(run(folder.path(), arguments).contains("proposals for the hidden boxes"));
}

#[test]
fn eval_draws_a_reliability_diagram() {
    let folder = workplace();
    let arguments = "eval full.json --detections dets.json --plot";
    run(folder.path(), &format!("{arguments} plot.svg"));
    let svg = fs::read_to_string(folder.path().join("plot.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("</svg>"));
    run(folder.path(), &format!("{arguments} plot.png"));
    assert!(fs::read(folder.path().join("plot.png")).unwrap().starts_with(b"\x89PNG"));
    assert!(refused(folder.path(), &format!("{arguments} plot.svg")).contains("exists already"));
    assert!(refused(folder.path(), &format!("{arguments} plot.gif")).contains(".svg or a .png"));
}

#[test]
fn calibrate_gives_every_detection_its_confidence() {
    let folder = workplace();
    let arguments = "calibrate sparse.json --detections dets.json --hidden hidden.json";
    let result = run_json(folder.path(), &format!("{arguments} --out with.json --save calibrator.json"));
    assert_eq!(result["method"], "completeness");
    let share = result["completeness"]["estimate"].as_f64().unwrap();
    assert!((share - 0.5).abs() < 0.1, "{result}");
    let (low, high) = (&result["completeness"]["low"], &result["completeness"]["high"]);
    assert!(low.as_f64() < Some(0.5) && high.as_f64() > Some(0.5), "{result}");
    assert!(result["completeness"]["classes"]["person"]["estimate"].is_number(), "{result}");
    let candidates = &result["candidates"];
    assert!(candidates["error_after"].as_f64() < candidates["error_before"].as_f64(), "{result}");

    let (before, after) = (read(folder.path(), "dets.json"), read(folder.path(), "with.json"));
    let (before, after) = (before.as_array().unwrap(), after.as_array().unwrap());
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(after) {
        assert!(after["confidence"].as_f64().is_some_and(|c| (0.0..=1.0).contains(&c)), "{after}");
        let mut without = after.clone();
        without.as_object_mut().unwrap().remove("confidence");
        assert_eq!(&without, before, "all else stays");
    }
    run(folder.path(), &format!("{arguments} --out scores.json --in-place-score"));
    for (with, scores) in after.iter().zip(read(folder.path(), "scores.json").as_array().unwrap()) {
        assert_eq!((&scores["score"], scores.get("confidence")), (&with["confidence"], None));
    }
    // A confidence that was there before becomes that of this calibrator, too.
    let again = arguments.replace("dets.json", "with.json");
    run(folder.path(), &format!("{again} --out again.json --in-place-score"));
    for entry in read(folder.path(), "again.json").as_array().unwrap() {
        assert_eq!(entry["score"], entry["confidence"]);
    }
    // Confidences are what `eval` judges, where there are any.
    let judged = run_json(folder.path(), "eval full.json --detections with.json --iou 0.75");
    assert_eq!(judged["calibration"]["of"], "confidence");
    let raw = run_json(folder.path(), "eval full.json --detections with.json --iou 0.75 --field score");
    assert!(
        judged["calibration"]["d_ece"].as_f64() < raw["calibration"]["d_ece"].as_f64(),
        "{judged}\n{raw}"
    );
    assert_eq!(judged["coco"], raw["coco"], "confidences have no part in average precision");
}

#[test]
fn every_method_calibrates() {
    let folder = workplace();
    for method in ["platt", "temperature", "isotonic", "beta", "histogram", "bayesian", "completeness"] {
        for per_class in ["", " --per-class"] {
            let arguments = "calibrate sparse.json --detections dets.json";
            let result = run_json(folder.path(), &format!("{arguments} --method {method}{per_class}"));
            let (before, after) = (result["error_before"].as_f64(), result["error_after"].as_f64());
            // A temperature cannot move all confidences one way.
            assert!(
                after.is_some() && (after < before || method == "temperature"),
                "{method}{per_class}: {result}"
            );
        }
    }
    let platt = "calibrate sparse.json --detections dets.json --method platt";
    let parameters = &run_json(folder.path(), platt)["parameters"];
    assert!(parameters["w"].as_f64() > Some(0.0) && parameters["b"].is_number(), "{parameters}");
}

#[test]
fn complete_adds_and_changes_nothing_else() {
    let folder = workplace();
    let arguments = "complete sparse.json --detections dets.json --hidden hidden.json";
    let result = run_json(
        folder.path(),
        &format!("{arguments} --out whole.json --precision 0.8 --recovered recovered.json"),
    );
    let (sparse, whole) = (read(folder.path(), "sparse.json"), read(folder.path(), "whole.json"));
    let (given, all) = (sparse["annotations"].as_array().unwrap(), whole["annotations"].as_array().unwrap());
    assert_eq!((&all[..given.len()], &whole["images"]), (&given[..], &sparse["images"]));
    let added = &all[given.len()..];
    assert_eq!(result["recovered"].as_u64(), Some(added.len() as u64));
    assert!(added.len() > 20, "{result}");
    for box_ in added {
        assert_eq!(box_["recovered"], true, "{box_}");
        assert!(box_["score"].is_number() && box_["confidence"].as_f64() >= result["threshold"].as_f64());
    }
    assert_eq!(read(folder.path(), "recovered.json").as_array().unwrap().len(), added.len());
    let (expected, found) = (result["expected_precision"].as_f64(), result["found_precision"].as_f64());
    assert!(expected >= Some(0.8), "{result}");
    assert!(expected.zip(found).is_some_and(|(a, b)| (a - b).abs() < 0.1), "{result}");
    assert!(result["found_recall"].as_f64() > Some(0.1), "{result}");

    // A lower precision lets more in; a higher confidence fewer.
    let more = run_json(folder.path(), &format!("{arguments} --out more.json --precision 0.6 --per-class"));
    assert!(more["recovered"].as_u64() > result["recovered"].as_u64(), "{more}");
    assert_eq!(more["threshold"], Value::Null);
    let fewer = run_json(folder.path(), &format!("{arguments} --out fewer.json --confidence 0.97"));
    assert!(fewer["recovered"].as_u64() < result["recovered"].as_u64(), "{fewer}");
}

#[test]
fn classes_choose_what_is_looked_for_and_given_boxes_stay() {
    let folder = workplace();
    let arguments =
        "complete sparse.json --detections dets.json --classes cup --confidence 0.5 --out cups.json";
    let result = run_json(folder.path(), arguments);
    let (sparse, cups) = (read(folder.path(), "sparse.json"), read(folder.path(), "cups.json"));
    let (given, all) = (sparse["annotations"].as_array().unwrap(), cups["annotations"].as_array().unwrap());
    assert_eq!((&all[..given.len()], &cups["categories"]), (&given[..], &sparse["categories"]));
    let recovered = &all[given.len()..];
    assert!(!recovered.is_empty() && recovered.iter().all(|found| found["category_id"] == 1), "{result}");
    let said = refused(folder.path(), &arguments.replace("cup --", "cups --").replace("cups.json", "x.json"));
    assert!(said.contains("did you mean `cup`?"), "{said}");
}

#[test]
fn what_was_hidden_must_not_be_given() {
    let folder = workplace();
    for command in ["eval full.json", "calibrate full.json", "complete full.json --out new.json"] {
        let said = refused(folder.path(), &format!("{command} --detections dets.json --hidden hidden.json"));
        assert!(said.contains("boxes are in the data set"), "{command}: {said}");
    }
}

#[test]
fn complete_takes_the_confidences_that_there_are() {
    let folder = workplace();
    run(folder.path(), "calibrate sparse.json --detections dets.json --out with.json --save c.json");
    let arguments = "complete sparse.json --precision 0.9";
    let fitted = run_json(folder.path(), &format!("{arguments} --detections dets.json --out a.json"));
    let given = run_json(
        folder.path(),
        &format!("{arguments} --detections with.json --keep-confidences --out b.json"),
    );
    let saved = run_json(
        folder.path(),
        &format!("{arguments} --detections dets.json --calibrator c.json --out c1.json"),
    );
    assert_eq!(given["confidences"], "the detections' own");
    // Both are of the calibrator that was fitted to all images; what is fitted here is not used on its own.
    assert_eq!((&given["recovered"], &given["threshold"]), (&saved["recovered"], &saved["threshold"]));
    assert!(fitted["recovered"].as_u64() > Some(20), "{fitted}");
}

#[test]
fn completed_data_sets_are_of_their_formats() {
    let folder = workplace();
    fs::create_dir(folder.path().join("images")).unwrap();
    for image in 1..=IMAGES {
        let path = folder.path().join(format!("images/{image}.bmp"));
        fs::write(path, bmp(SIDE as u32, SIDE as u32)).unwrap();
    }
    let arguments = "complete sparse.json --detections dets.json --images images";
    let coco = run_json(folder.path(), &format!("{arguments} --out whole.json"));
    let boxes = coco["given"].as_u64().unwrap() + coco["recovered"].as_u64().unwrap();
    for format in ["yolo", "voc"] {
        run(folder.path(), &format!("{arguments} --format {format} --out {format}"));
        let inspected = run_json(folder.path(), &format!("inspect {format}"));
        assert_eq!(inspected["splits"][0]["all"]["boxes"].as_u64(), Some(boxes), "{format}");
        let problems = inspected["splits"][0]["problems"].as_array().unwrap();
        assert!(problems.iter().all(|problem| problem["problem"] == "image_without_boxes"), "{format}");
    }
    run(folder.path(), &format!("{arguments} --format label-studio --out tasks.json"));
    let tasks = read(folder.path(), "tasks.json");
    let regions = |key: &str| -> usize {
        let of_task = |task: &Value| task[key][0]["result"].as_array().map_or(0, Vec::len);
        tasks.as_array().unwrap().iter().map(of_task).sum()
    };
    assert_eq!(tasks.as_array().unwrap().len() as u64, IMAGES);
    assert_eq!(regions("annotations") as u64, coco["given"].as_u64().unwrap());
    assert_eq!(regions("predictions") as u64, coco["recovered"].as_u64().unwrap());
    assert!(refused(folder.path(), &format!("{arguments} --format voc --out voc.json")).contains("folders"));
}

#[test]
fn inspect_tells_how_much_is_annotated() {
    let folder = workplace();
    let said = run(folder.path(), "inspect sparse.json --detections dets.json");
    assert!(said.contains("of the objects are annotated: roughly"), "{said}");
    assert!(said.contains("by class: "), "{said}");
    let result = run_json(folder.path(), "inspect sparse.json --detections dets.json");
    assert_eq!(result["splits"][0]["completeness"]["known"], true, "{result}");
}

#[test]
fn bad_input_is_named_and_leaves_nothing_behind() {
    let folder = workplace();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let good = r#"{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}"#;
    let with = |from: &str, to: &str| format!("[{good},\n{}]", good.replace(from, to));
    for (text, said) in [
        (String::new(), ""),
        (with("\"image_id\": 1", "\"image_id\": 4242"), "4242"),
        (with("\"category_id\": 1", "\"category_id\": 91"), "91"),
        (with("0.5", "1.5"), "1.5"),
        (with("0.5", "NaN"), "NaN"),
        (with("[1, 2, 3, 4]", "[1, 2, -3, 4]"), "bbox"),
        (with("\"bbox\": [1, 2, 3, 4]", "\"segmentation\": [[1, 2, 3, 4, 5, 6]]"), "segmentation"),
        (format!("[{good},\n{good}"), ""),
        ("{\"images\": [], \"annotations\": [], \"categories\": []}".into(), ""),
    ] {
        write("bad.json", &text);
        for command in [
            "eval sparse.json --detections bad.json",
            "calibrate sparse.json --detections bad.json --out new.json",
            "complete sparse.json --detections bad.json --out new.json",
            "inspect sparse.json --detections bad.json",
        ] {
            let refusal = refused(folder.path(), command);
            assert!(refusal.contains("error: bad.json"), "{text}: {refusal}");
            assert!(refusal.contains(said), "{text}: {refusal}");
        }
    }
    // Well formed, but too little to learn from.
    write("few.json", &format!("[{good}]"));
    let refusal = refused(folder.path(), "calibrate sparse.json --detections few.json --out new.json");
    assert!(refusal.contains("no calibrator can be fitted") && refusal.contains("hint: "), "{refusal}");
    write("none.json", "[]");
    let none = run_json(folder.path(), "eval sparse.json --detections none.json");
    assert_eq!((&none["coco"]["AP"], &none["calibration"]["detections"]), (&json!(0.0), &json!(0)));
    write(
        "calibrator.json",
        r#"{"classes": [], "calibrator": {"pooled": {"kind": "platt", "w": -1.0, "b": 0.0}}}"#,
    );
    let refusal = refused(
        folder.path(),
        "complete sparse.json --detections dets.json --calibrator calibrator.json --out new.json",
    );
    assert!(refusal.contains("is not a calibrator") && refusal.contains("`w` is -1"), "{refusal}");
    let twice = format!("[{good}, {good}]");
    write("twice.json", &twice);
    let output = lacuna(folder.path(), "eval sparse.json --detections twice.json");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("repeat another: 1"), "{said}");
    for (command, said) in [
        ("eval sparse.json", "--detections"),
        ("eval sparse.json --detections dets.json --iou 0", "`--iou`"),
        ("eval sparse.json --detections dets.json --field confidence", "lacuna calibrate"),
        ("complete sparse.json --out new.json", "--model"),
        ("complete sparse.json --detections dets.json --keep-confidences --out n.json", "lacuna calibrate"),
        ("complete sparse.json --detections dets.json --out sparse.json --force", "made from"),
        ("complete sparse.json --detections dets.json --format voc --out . --force", "made from"),
        (
            "complete sparse.json --detections dets.json --format voc --out voc --recovered voc/a.json",
            "one is inside the other",
        ),
        ("complete sparse.json --detections dets.json --out n.json --precision 2", "from 0 to 1"),
        ("calibrate sparse.json --detections dets.json --iou-low 0.9", "`--iou-low`"),
    ] {
        let refusal = refused(folder.path(), command);
        assert!(refusal.contains(said), "{command}: {refusal}");
    }
}
