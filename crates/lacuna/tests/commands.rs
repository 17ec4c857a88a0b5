//! The program as its users see it: what it prints, where, its exit code, and what it leaves behind.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use common::{bmp, lacuna};
use serde_json::Value;
use tempfile::TempDir;

const SMALL: &str = r#"{"info": {"by": "hand"}, "images": [
{"id": 7, "file_name": "a.png", "width": 40, "height": 30, "taken": "today"},
{"id": 3, "file_name": "b.png", "width": 20, "height": 50}],
"annotations": [
{"id": 1, "image_id": 7, "category_id": 4, "bbox": [1, 2, 3, 4], "iscrowd": 0, "who": "me"},
{"id": 2, "image_id": 7, "category_id": 4, "bbox": [5, 5, 30, 20]},
{"id": 3, "image_id": 7, "category_id": 9, "bbox": [9, 9, 0, 9]},
{"id": 4, "image_id": 7, "category_id": 9, "bbox": [0, 0, 40, 30], "iscrowd": 1}],
"categories": [{"id": 4, "name": "cat"}, {"id": 9, "name": "dog"}]}"#;

/// A folder to work in, with `gt.json` and the images it names.
fn workplace() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gt.json"), SMALL).unwrap();
    // The smallest PNG there is would do but for its size; BMP under another name is read as well.
    for (name, width, height) in [("a.png", 40u32, 30u32), ("b.png", 20, 50)] {
        fs::write(folder.path().join(name), bmp(width, height)).unwrap();
    }
    folder
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Run what must succeed; what it printed on stdout.
fn run(folder: &Path, arguments: &str) -> String {
    let output = lacuna(folder, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments}: {}", stderr(&output));
    stdout(&output).into()
}

/// Run what must be refused: exit code 2, nothing on stdout, no file more or less than before. What
/// it printed on stderr.
fn refused(folder: &Path, arguments: &str) -> String {
    let before = names(folder);
    let output = lacuna(folder, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments}: {}", stderr(&output));
    assert_eq!(stdout(&output), "", "{arguments}");
    assert_eq!(names(folder), before, "{arguments} left something behind");
    stderr(&output).into()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn inspect_counts_and_names_every_problem() {
    let folder = workplace();
    let wanted = "\
gt: images 2, boxes 3, crowd regions 1, classes 2
boxes per image: 0 to 3, median 1.5, mean 1.5

class  id  boxes  images  small  medium  large  crowds
cat     4      2       1      2       0      0       0
dog     9      1       1      1       0      0       1
all            3       2      3       0      0       1

boxes of zero size: 1
  annotation 3 of image 7 has a box of zero size
images without boxes: 1
  image 3 (b.png) has no boxes
";
    assert_eq!(run(folder.path(), "inspect gt.json"), wanted);
    let result: Value =
        serde_json::from_str(&run(folder.path(), "inspect gt.json --json --classes dog")).unwrap();
    let split = &result["splits"][0];
    assert_eq!((&split["all"]["boxes"], &split["all"]["crowds"]), (&1.into(), &1.into()));
    assert_eq!(split["problems"][0]["problem"], "zero_size_box");
    assert_eq!(split["problems"][0]["annotation"], 3);
    assert_eq!(split["classes"].as_array().unwrap().len(), 1);
}

#[test]
fn inspect_looks_at_images_when_asked() {
    let folder = workplace();
    assert!(!run(folder.path(), "inspect gt.json --check-images --decode").contains("cannot be used"));
    fs::write(folder.path().join("b.png"), bmp(50, 21)).unwrap();
    let printed = run(folder.path(), "inspect gt.json --check-images");
    assert!(printed.contains("images that cannot be used: 1\n  image 3 (b.png)"), "{printed}");
    assert!(printed.contains("50×21") && printed.contains("20×50"), "{printed}");
    let cut = &bmp(20, 50)[..100];
    fs::write(folder.path().join("b.png"), cut).unwrap();
    // The header alone does not show it.
    assert!(!run(folder.path(), "inspect gt.json --check-images").contains("cannot be used"));
    assert!(run(folder.path(), "inspect gt.json --decode").contains("images that cannot be used: 1"));
    fs::remove_file(folder.path().join("a.png")).unwrap();
    fs::remove_file(folder.path().join("b.png")).unwrap();
    let error = refused(folder.path(), "inspect gt.json --check-images");
    assert!(error.contains("the folder of the images of gt.json was not found"), "{error}");
    assert!(error.contains("hint: name it with `--images DIR`"), "{error}");
    fs::create_dir(folder.path().join("empty")).unwrap();
    let printed = run(folder.path(), "inspect gt.json --check-images --images empty");
    assert!(printed.contains("image 7 (a.png) does not exist"), "{printed}");
}

#[test]
fn inspect_goes_on_without_an_image_unless_told() {
    let folder = workplace();
    run(folder.path(), "convert gt.json --out yolo --to yolo");
    // YOLO needs the size of an image.
    fs::write(folder.path().join("yolo/images/gt/a.png"), "no image").unwrap();
    let printed = run(folder.path(), "inspect yolo");
    assert!(printed.contains("a.png"), "{printed}");
    let error = refused(folder.path(), "inspect yolo --on-bad-image error");
    assert!(error.contains("a.png"), "{error}");
}

#[test]
fn sparsify_hides_boxes_and_keeps_the_rest_of_the_file() {
    let folder = workplace();
    let output = lacuna(
        folder.path(),
        "sparsify gt.json --kind extreme --seed 3 --out sparse.json --hidden hidden.json",
    );
    assert_eq!(stdout(&output), "sparse.json: 2 of 4 annotations\nhidden.json: the other 2\n");
    assert_eq!(
        stderr(&output),
        "note: boxes of zero size: 1, images without boxes: 1 (`lacuna inspect` lists them)\n"
    );
    let original: Value = serde_json::from_str(SMALL).unwrap();
    let (kept, hidden) = (json(&folder.path().join("sparse.json")), json(&folder.path().join("hidden.json")));
    for key in ["info", "images", "categories"] {
        assert_eq!((&kept[key], &hidden[key]), (&original[key], &original[key]));
    }
    let mut all: Vec<Value> = kept["annotations"].as_array().unwrap().clone();
    all.extend(hidden["annotations"].as_array().unwrap().clone());
    all.sort_by_key(|a| a["id"].as_u64());
    assert_eq!(Value::Array(all), original["annotations"]);

    let result = run(folder.path(), "sparsify gt.json --kind split1 --percent 50 --out s.json --json");
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!((&result["kept"], &result["hidden"]), (&2.into(), &2.into()));
}

#[test]
fn the_same_seed_gives_the_same_file() {
    let folder = workplace();
    for out in ["one", "two"] {
        run(folder.path(), &format!("sparsify gt.json --kind split3 --percent 40 --seed 9 --out {out}.json"));
        run(folder.path(), &format!("synth --out {out} --images 3 --test 1 --seed 4 --size 210x180"));
    }
    assert_eq!(
        fs::read(folder.path().join("one.json")).unwrap(),
        fs::read(folder.path().join("two.json")).unwrap()
    );
    for file in [
        "annotations/instances_train.json",
        "annotations/instances_test.json",
        "train/train_000003.jpg",
        "test/test_000001.jpg",
    ] {
        let read = |out: &str| fs::read(folder.path().join(out).join(file)).unwrap();
        assert_eq!(read("one"), read("two"), "{file}");
    }
    let printed = run(folder.path(), "inspect one --split train --decode");
    assert!(printed.starts_with("train: images 3,"), "{printed}");
    assert!(!printed.contains("cannot be used"), "{printed}");
}

#[test]
fn convert_goes_through_all_formats() {
    let folder = workplace();
    run(folder.path(), "convert gt.json --out voc --to voc");
    run(folder.path(), "convert voc --out coco --to coco");
    let output = lacuna(folder.path(), "convert coco --out yolo --to yolo --link");
    assert_eq!(stdout(&output), "yolo: 2 images, 3 annotations (gt)\n");
    assert!(stderr(&output).contains("note: crowd regions left out, because YOLO has none: 1"));
    run(folder.path(), "convert yolo/data.yaml --out back.json --split gt");
    let back = json(&folder.path().join("back.json"));
    assert_eq!(back["annotations"].as_array().unwrap().len(), 3);
    run(folder.path(), "convert gt.json --out only-dogs.json --classes dog");
    assert_eq!(json(&folder.path().join("only-dogs.json"))["annotations"].as_array().unwrap().len(), 2);
    run(folder.path(), "convert gt.json --out same.json");
    assert_eq!(json(&folder.path().join("same.json")), serde_json::from_str::<Value>(SMALL).unwrap());
}

#[test]
fn bad_input_is_refused_and_nothing_is_written() {
    let folder = workplace();
    let place = folder.path();
    for (name, text) in [
        ("empty.json", ""),
        ("text.json", "hello"),
        ("cut.json", &SMALL[..400]),
        ("list.json", "[]"),
        ("nothing.json", r#"{"images": [], "annotations": [], "categories": []}"#),
        ("nan.json", &SMALL.replace("[5, 5, 30, 20]", "[5, NaN, 30, 20]")),
        ("twice.json", &SMALL.replace(r#""id": 2"#, r#""id": 1"#)),
    ] {
        fs::write(place.join(name), text).unwrap();
    }
    let commands = [
        "inspect FILE",
        "sparsify FILE --kind hard --out out.json --hidden hidden.json",
        "convert FILE --out out.json",
        "convert FILE --out out --to voc",
        "convert FILE --out out --to yolo --no-images",
    ];
    let files = [
        ("missing.json", "cannot read missing.json"),
        ("empty.json", "empty.json:1: the file ends where a JSON object should be"),
        ("text.json", "text.json:1: not JSON"),
        ("cut.json", "cut.json:7: the file ends in the middle of annotations[2]"),
        ("list.json", "list.json is not a COCO annotation file"),
        ("nothing.json", "nothing.json: the data set is empty: it has no images"),
        ("nan.json", "nan.json:6: annotations[1] is not JSON: `NaN` is not a number of JSON"),
        ("twice.json", "twice.json:6: annotation id 1 is there twice (first in line 5)"),
    ];
    for command in commands {
        for (file, wanted) in files {
            let error = refused(place, &command.replace("FILE", file));
            assert!(error.starts_with(&format!("error: {wanted}")), "{command} {file}: {error}");
        }
    }
}

#[test]
fn an_instruction_set_may_be_named() {
    let folder = workplace();
    let named = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lacuna"));
        command.current_dir(&folder).args(["inspect", "gt.json"]).env("LACUNA_INSTRUCTIONS", name);
        command.output().unwrap()
    };
    assert_eq!(named("portable").status.code(), Some(0));
    let refused = named("mmx");
    assert_eq!(refused.status.code(), Some(2));
    let says = stderr(&refused);
    assert!(says.starts_with("error: LACUNA_INSTRUCTIONS is \"mmx\"; this processor has "), "{says}");
    assert!(says.contains("portable"), "{says}");
}

#[test]
fn bad_usage_is_refused() {
    let folder = workplace();
    let says = |arguments: &str, wanted: &str| {
        let error = refused(folder.path(), arguments);
        assert!(error.contains(wanted), "{arguments}: {error}");
    };
    for percent in ["-1", "100.5", "nan", "many"] {
        says(
            &format!("sparsify gt.json --kind split1 --percent {percent} --out out.json"),
            "error: invalid value",
        );
    }
    says("sparsify gt.json --kind split1 --out out.json", "this kind needs `--percent P`");
    says(
        "sparsify gt.json --kind easy --percent 3 --out out.json",
        "only split1, split2 and split3 take `--percent`",
    );
    says(
        "sparsify gt.json --kind easy --out x.json --hidden x.json",
        "are the same, or one is inside the other",
    );
    says("sparsify gt.json --kind sometimes --out x.json", "possible values: split1");
    says(
        "sparsify gt.json --kind easy --out gt.json",
        "error: gt.json exists already\nhint: choose another name",
    );
    says("sparsify gt.json --kind easy --out no/such/x.json", "error: cannot write no/such/x.json");
    says("sparsify gt.json --kind easy --out gt.json/x.json", "error: cannot write gt.json/x.json");
    says("inspect gt.json --classes cat,horse", "error: there is no class `horse` in the data set");
    says("inspect gt.json --classes catt", "hint: did you mean `cat`?");
    says("inspect gt.json --split val", "error: gt.json has no split `val`\nhint: its splits are `gt`");
    says("convert gt.json --out out", "a folder needs `--to coco`, `--to voc` or `--to yolo`");
    says("convert gt.json --out out.json --to voc", "a .json file is in COCO's format");
    says("convert gt.json --out . --to voc", "error: . exists already");
    says(
        "convert gt.json --out . --to voc --force",
        "error: the output . would replace gt.json, which it is made from",
    );
    says(
        "sparsify gt.json --kind easy --out ./gt.json --force",
        "the output ./gt.json would replace gt.json, which it is made from",
    );
    says(
        "sparsify gt.json --kind easy --out x.json --hidden ./x.json",
        "are the same, or one is inside the other",
    );
    run(folder.path(), "convert gt.json --out coco --to coco --no-images");
    says(
        "sparsify coco --kind easy --out coco/annotations/instances_gt.json --force",
        "would replace coco/annotations/instances_gt.json, which it is made from",
    );
    says("convert gt.json --out x.json --link", "`--link` and `--no-images` need a folder");
    says("convert gt.json --out gt.json --force", "would replace gt.json, which it is made from");
    says("synth --out gt.json --images 3", "error: gt.json exists already");
    says("synth --out made --images 0", "0 is not in 1..");
    says("synth --out made --images 3 --size big", "a size is written WIDTHxHEIGHT");
    says("synth --out made --images 3 --size 20x20", "`width` is");
    says("nonsense", "unrecognized subcommand");
    fs::create_dir(folder.path().join("folder")).unwrap();
    says("inspect folder", "error: folder holds no data set in a known layout\nhint: known layouts:");
}

#[test]
fn force_replaces_outputs() {
    let folder = workplace();
    fs::write(folder.path().join("out.json"), "old").unwrap();
    run(folder.path(), "sparsify gt.json --kind easy --out out.json --force");
    assert!(json(&folder.path().join("out.json"))["images"].is_array());
    run(folder.path(), "synth --out made --images 2 --size 210x180");
    run(folder.path(), "synth --out made --images 1 --size 210x180 --force");
    assert!(!folder.path().join("made/train/train_000002.jpg").exists());
}

/// Start work that takes long, and send it this signal as soon as it has begun to write. Its exit
/// code.
#[cfg(unix)]
fn interrupted(folder: &Path, signal: &str) -> Option<i32> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lacuna"))
        .current_dir(folder)
        .args(["synth", "--out", "made", "--images", "100000"])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let has_begun =
        |n: &String| n.starts_with(".lacuna-new-") && folder.join(n).join("train/train_000001.jpg").exists();
    while !names(folder).iter().any(has_begun) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it began");
        std::thread::yield_now();
    }
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    child.wait().unwrap().code()
}

#[cfg(unix)]
#[test]
fn an_interrupted_command_takes_away_what_it_began() {
    let folder = workplace();
    let before = names(folder.path());
    for signal in ["-INT", "-TERM"] {
        assert_eq!(interrupted(folder.path(), signal), Some(1));
        assert_eq!(names(folder.path()), before);
    }
    // Nobody can clean up after this one, but what is there has not the output's name.
    assert_eq!(interrupted(folder.path(), "-KILL"), None);
    assert!(!folder.path().join("made").exists());
}

/// The whole story, but for the learning.
#[test]
fn demo_tells_the_story() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run(folder.path(), "demo --out story --iterations 2 --seed 3 --json");
    let told: Value = serde_json::from_str(&printed).unwrap();
    for key in ["/baseline/ap", "/baseline/ap50", "/calibrated/ap", "/calibrated/ap50", "/recovered/recall"] {
        assert!(told.pointer(key).is_some_and(Value::is_number), "{key} in {told}");
    }
    for key in ["/recovered/precision", "/ece/before", "/ece/after", "/ece_candidates/completeness"] {
        assert!(told.pointer(key).is_some(), "{key} in {told}");
    }
    let story = folder.path().join("story");
    let annotations = |name: &str| json(&story.join(name))["annotations"].as_array().unwrap().len();
    let [given, hidden, all] = ["train_sparse", "train_hidden", "train"]
        .map(|name| annotations(&format!("annotations/instances_{name}.json")));
    assert_eq!((given + hidden, told["train"]["hidden"].as_u64()), (all, Some(hidden as u64)));
    let recovered = told["recovered"]["boxes"].as_u64().unwrap() as usize;
    assert_eq!(annotations("completed.json"), given + recovered);
    assert!(story.join("pictures").is_dir());
    let page = fs::read_to_string(story.join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("Calibrated Teacher"), "a page with charts");
    for run in ["supervised", "calibrated"] {
        for file in ["config.toml", "metrics.jsonl", "results.csv", "checkpoints/last/model.safetensors"] {
            assert!(story.join(run).join(file).is_file(), "{run}/{file}");
        }
    }
}

#[test]
fn a_reader_that_stops_early_is_no_error() {
    let folder = workplace();
    let mut child = Command::new(env!("CARGO_BIN_EXE_lacuna"))
        .current_dir(folder.path())
        .args(["inspect", "gt.json"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}
