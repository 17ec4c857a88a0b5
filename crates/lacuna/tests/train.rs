//! `lacuna train` as users run it: to the end, killed and resumed, on data that is broken.

#![allow(clippy::unwrap_used)] // the allowance for tests does not reach their helpers

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

fn lacuna() -> Command {
    Command::new(env!("CARGO_BIN_EXE_lacuna"))
}

/// A tiny synthetic data set with half of its boxes hidden; generated once.
fn data() -> &'static Path {
    static DATA: OnceLock<TempDir> = OnceLock::new();
    DATA.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let synth =
            ["--images", "12", "--test", "3", "--size", "96x96", "--objects", "2-3", "--side-min", "18"];
        let made = lacuna().arg("synth").arg("--out").arg(&data).args(synth).output().unwrap();
        assert!(made.status.success(), "{}", text(&made.stderr));
        let annotations = data.join("annotations");
        let split = lacuna()
            .arg("sparsify")
            .arg(annotations.join("instances_train.json"))
            .args(["--kind", "split3", "--percent", "50", "--seed", "0", "--out"])
            .arg(data.join("sparse.json"))
            .arg("--hidden")
            .arg(data.join("hidden.json"))
            .output()
            .unwrap();
        assert!(split.status.success(), "{}", text(&split.stderr));
        folder
    })
    .path()
}

/// A run of a few seconds in which everything happens: detections are judged and become pseudo labels, the
/// calibrator is fitted, there are lines, evaluations and checkpoints.
const TINY: &str = r#"
[data]
hidden = "data/hidden.json"
[data.train]
path = "data/sparse.json"
images = "data/train"
[data.test]
path = "data/annotations/instances_test.json"

[detector]
kind = "fcos"
width = 32
head_depth = 1
post_process.score_min = 0.01
[detector.backbone]
depth = "resnet10"
width = 32
norm = "group"
frozen_stages = 0

[views]
short_side = [56, 72]
long_side_max = 96
test_short_side = 64
test_long_side_max = 96

[train]
seed = 5
iterations = 40
batch_size = 2
lr = 0.02
lr_milestones = [30]
warm_up_iterations = 5
gradient_norm_max = 10.0
log_every = 4
checkpoint_every = 7
evaluate_every = 15

[method]
name = "calibrated"
confidence_min = 0.2
refit_every = 6
window_images = 30
before_first_fit = "identity"
[method.teacher]
score_min = 0.02
momentum_max = 0.9
[method.overlap]
iou_low = 0.05
iou_high = 0.2
min_side = "off"
[method.focal_iou]
enabled = true
"#;

/// A folder with the configuration, beside the data.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tiny.toml"), config).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `lacuna train tiny.toml --out RUN …`, from the folder of the data.
    fn train(&self, run: &str, more: &[&str]) -> Command {
        let mut command = lacuna();
        command.current_dir(data()).arg("train").arg(self.path("tiny.toml"));
        command.arg("--out").arg(self.path(run)).args(more);
        command
    }

    fn run(&self, run: &str, more: &[&str]) -> Output {
        self.train(run, more).output().unwrap()
    }
}

/// Does something bad to a checkpoint.
type Damage = fn(&Path);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Everything a run leaves that must not depend on how often it was stopped.
fn results(run: &Path) -> Vec<(String, Vec<u8>)> {
    let files = [
        "config.toml",
        "metrics.jsonl",
        "results.csv",
        "checkpoints/last/model.toml",
        "checkpoints/last/model.safetensors",
        "checkpoints/last/student.safetensors",
        "checkpoints/last/momentum.safetensors",
        "checkpoints/last/state.json",
        "checkpoints/best/model.safetensors",
    ];
    // Without a teacher the model is the student.
    let is_there = |file: &&str| !file.ends_with("student.safetensors") || run.join(file).exists();
    files
        .into_iter()
        .filter(is_there)
        .map(|file| (file.to_owned(), fs::read(run.join(file)).unwrap()))
        .collect()
}

fn assert_same(a: &Path, b: &Path) {
    for ((name, a), (_, b)) in results(a).into_iter().zip(results(b)) {
        assert!(a == b, "{name} differs:\n{}\n{}", head(&a), head(&b));
    }
}

fn head(bytes: &[u8]) -> String {
    text(&bytes[..bytes.len().min(2000)])
}

fn lines(run: &Path) -> Vec<Value> {
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Numbers for the moments at which processes are killed: different in every run of the test.
fn moment(of: u64) -> Duration {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Duration::from_millis(u64::from(clock.subsec_nanos()) / 1000 % of)
}

#[test]
fn a_run_leaves_what_it_promises() {
    let place = Place::new(TINY);
    let output = place.run("run", &["--profile"]);
    succeeded(&output);
    let said = text(&output.stdout);
    assert!(said.contains("student: AP ") && said.contains("teacher: AP "), "{said}");
    assert!(said.contains("student backward") && said.contains("ms per iteration"), "{said}");
    let run = place.path("run");
    let records = lines(&run);
    let trained: Vec<&Value> = records.iter().filter(|line| line["event"] == "train").collect();
    assert_eq!(trained.len(), 10);
    let evaluated: Vec<_> =
        records.iter().filter(|line| line["event"] == "evaluation").map(|line| &line["iteration"]).collect();
    assert_eq!(evaluated, [15, 30, 40]);
    let last = records.last().unwrap();
    for key in ["loss", "ece_raw", "calibrator_w", "pseudo_labels_per_image", "student_ap", "teacher_ap50"] {
        assert!(last[key].is_number(), "{key} in {last}");
    }
    let judged: f64 = trained.iter().map(|line| line["judged"].as_f64().unwrap()).sum();
    let pseudo: f64 = trained.iter().map(|line| line["pseudo_labels_per_image"].as_f64().unwrap()).sum();
    assert!(judged > 10.0 && pseudo > 0.0, "{judged} {pseudo}");
    let rows = fs::read_to_string(run.join("results.csv")).unwrap();
    assert_eq!(rows.lines().count(), 4, "{rows}");

    // The model can be used, and says what it is sure of.
    let model = run.join("checkpoints/last");
    let detections = place.path("found.json");
    let drawn = place.path("drawn");
    let predicted = lacuna()
        .arg("predict")
        .args([&data().join("data/test"), Path::new("--model"), &model])
        .arg("--out")
        .arg(&detections)
        .arg("--draw")
        .arg(&drawn)
        .output()
        .unwrap();
    succeeded(&predicted);
    let found: Vec<Value> = serde_json::from_slice(&fs::read(detections).unwrap()).unwrap();
    assert!(!found.is_empty() && found.iter().all(|found| found["confidence"].is_number()));
    assert_eq!(fs::read_dir(drawn).unwrap().filter(|f| is_jpeg(&f.as_ref().unwrap().path())).count(), 3);
    let evaluated = lacuna()
        .arg("eval")
        .arg(data().join("data/annotations/instances_test.json"))
        .arg("--model")
        .arg(&model)
        .arg("--json")
        .output()
        .unwrap();
    succeeded(&evaluated);
    let evaluated: Value = serde_json::from_slice(&evaluated.stdout).unwrap();
    assert_eq!(evaluated["coco"]["AP"].as_f64(), last["teacher_ap"].as_f64(), "{evaluated}");
    assert_eq!(evaluated["images"], 3);
}

fn is_jpeg(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "jpg")
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let place = Place::new(TINY);
    succeeded(&place.run("a", &[]));
    succeeded(&place.run("b", &["--set", "train.workers=3"]));
    let (a, b) = (results(&place.path("a")), results(&place.path("b")));
    for ((name, a), (_, b)) in a.into_iter().zip(b).filter(|((name, _), _)| name != "config.toml") {
        assert!(a == b, "{name} differs");
    }
    succeeded(&place.run("c", &["--set", "train.seed=6"]));
    assert_ne!(results(&place.path("a"))[1], results(&place.path("c"))[1]);
}

/// A teacher that lets nothing through changes nothing: its student is the baseline's, to the last bit. So a difference
/// between two methods is the pseudo labels' and not that of other random numbers.
#[test]
fn without_pseudo_labels_the_student_is_the_baseline() {
    let place = Place::new(&TINY[..TINY.find("[method]").unwrap()]);
    let same = ["--set", "train.iterations=12", "--set", "train.evaluate_every=off"];
    let nothing = [
        "--set",
        "method.name=fixed",
        "--set",
        "method.threshold=1",
        "--set",
        "method.teacher.score_min=0.02",
    ];
    succeeded(&place.run("baseline", &[&same[..], &["--set", "method.name=supervised"]].concat()));
    succeeded(&place.run("taught", &[&same[..], &nothing[..]].concat()));
    let read = |file: &str| fs::read(place.path(file)).unwrap();
    let student = read("taught/checkpoints/last/student.safetensors");
    assert!(read("baseline/checkpoints/last/model.safetensors") == student);
    assert!(read("taught/checkpoints/last/model.safetensors") != student);
}

/// Whether the boxes of pseudo labels are learned makes a difference, once there are any.
#[test]
fn pseudo_boxes_are_learned_or_not() {
    let place = Place::new(TINY);
    let student = |run: &str, learned: &str| {
        let set = format!("method.teacher.pseudo_boxes={learned}");
        let shorter = [
            ["--set", "train.iterations=12"],
            ["--set", "train.evaluate_every=off"],
            ["--set", "method.confidence_min=0.01"],
            ["--set", &set],
        ]
        .concat();
        succeeded(&place.run(run, &shorter));
        let labels = |line: &Value| line["pseudo_labels_per_image"].as_f64().is_some_and(|count| count > 0.0);
        assert!(lines(&place.path(run)).iter().any(labels), "there are pseudo labels");
        fs::read(place.path(run).join("checkpoints/last/student.safetensors")).unwrap()
    };
    assert!(student("learned", "true") != student("not", "false"));
}

/// Killed at random moments, without a chance to say goodbye, until it ends by itself.
#[test]
fn a_run_that_is_killed_ends_as_if_it_had_not_been() {
    let place = Place::new(TINY);
    let whole = place.run("whole", &["--json"]);
    succeeded(&whole);
    // One that has come to its end is judged again, and says the same.
    let again = place.run("whole", &["--resume", "--json"]);
    succeeded(&again);
    let [whole, again] =
        [whole, again].map(|output| serde_json::from_slice::<Value>(&output.stdout).unwrap());
    assert!(whole["teacher"]["ap50"].is_number() && whole == again, "{whole} {again}");
    let (mut kills, mut first) = (0, true);
    loop {
        let more: &[&str] = if first { &[] } else { &["--resume"] };
        let mut process =
            place.train("killed", more).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        // Later ones get longer, so that the test ends on any machine.
        let wait = Duration::from_millis(100 * kills) + moment(1500);
        println!("kill {kills} after {wait:?}");
        sleep(wait);
        if process.try_wait().unwrap().is_some_and(|status| status.success()) {
            break;
        }
        let _ = process.kill();
        let status = process.wait().unwrap();
        kills += 1;
        assert!(status.success() || status.code().is_none(), "it failed by itself: {status}");
        if status.success() {
            break;
        }
        // Killed before it had made its folder, there is nothing to go on with.
        first = !place.path("killed/config.toml").exists();
    }
    assert_same(&place.path("whole"), &place.path("killed"));
}

#[cfg(unix)]
#[test]
fn a_run_that_is_interrupted_keeps_everything_and_says_how_to_go_on() {
    let place = Place::new(TINY);
    succeeded(&place.run("whole", &[]));
    for signal in ["INT", "TERM"] {
        let run = format!("stopped-{signal}");
        let process = place.train(&run, &[]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let metrics = place.path(&run).join("metrics.jsonl");
        let mut process = process;
        while fs::read_to_string(&metrics).map_or(0, |lines| lines.lines().count()) < 2 {
            assert!(process.try_wait().unwrap().is_none(), "it ended before it could be stopped");
            sleep(Duration::from_millis(5));
        }
        let pid = process.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        let output = process.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("error: stopped after iteration ") && said.contains("`--resume`"), "{said}");
        succeeded(&place.run(&run, &["--resume"]));
        assert_same(&place.path("whole"), &place.path(&run));
    }
}

#[test]
fn a_damaged_checkpoint_is_reported_and_the_one_before_is_used() {
    let place = Place::new(TINY);
    succeeded(&place.run("whole", &[]));
    let damages: [(&str, Damage); 3] = [
        ("a truncated file", |last| {
            let bytes = fs::read(last.join("student.safetensors")).unwrap();
            fs::write(last.join("student.safetensors"), &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("a flipped bit", |last| {
            let mut bytes = fs::read(last.join("momentum.safetensors")).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(last.join("momentum.safetensors"), bytes).unwrap();
        }),
        ("a missing file", |last| fs::remove_file(last.join("state.json")).unwrap()),
    ];
    for (what, damage) in damages {
        let run = what.replace(' ', "-");
        copy(&place.path("whole"), &place.path(&run));
        damage(&place.path(&run).join("checkpoints/last"));
        let output = place.run(&run, &["--resume"]);
        succeeded(&output);
        let said = text(&output.stderr);
        assert!(said.contains("checkpoints/last cannot be used: "), "{what}: {said}");
        assert!(said.contains("resuming after iteration 35"), "{what}: {said}");
        assert_same(&place.path("whole"), &place.path(&run));
    }
    // Both damaged: nothing to go on with, and nothing is lost.
    copy(&place.path("whole"), &place.path("both"));
    for name in ["last", "previous"] {
        fs::write(place.path("both/checkpoints").join(name).join("state.json"), "{").unwrap();
    }
    let output = place.run("both", &["--resume"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("hint: no checkpoint of the run can be used"),
        "{}",
        text(&output.stderr)
    );
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

#[test]
fn runs_are_not_overwritten_and_not_mixed() {
    let place = Place::new(TINY);
    let short =
        ["--set", "train.iterations=2", "--set", "train.evaluate_every=off", "--set", "data.test.path=off"];
    succeeded(&place.run("run", &short));
    let refused = |more: &[&str], message: &str, hint: &str| {
        let output = place.run("run", &[&short[..], more].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(message) && said.contains(hint), "{said}");
    };
    refused(&[], "exists already", "`--resume`");
    refused(&["--resume", "--set", "train.lr=0.5"], "was begun with another `train.lr`", "another `--out`");
    let images = data().join("data/train");
    let within = format!("data.train.images={}", place.path("run").display());
    refused(&["--force", "--set", &within], "which it is made from", "another name");
    assert!(images.exists());
    refused(
        &["--set", "train.lrr=0.5"],
        "--set train.lrr=0.5: there is no key `lrr` in `[train]`",
        "did you mean `lr`?",
    );
    // Nor is a configuration lost that lies in the run's folder.
    fs::copy(place.path("tiny.toml"), place.path("run/mine.toml")).unwrap();
    let mut onto_itself = lacuna();
    onto_itself.current_dir(data()).arg("train").arg(place.path("run/mine.toml")).args(short);
    let output = onto_itself.arg("--out").arg(place.path("run")).arg("--force").output().unwrap();
    assert!(text(&output.stderr).contains("which it is made from") && place.path("run/mine.toml").exists());
    // A model is gone on with only if its classes are these.
    let start = format!("start.model={}", place.path("run/checkpoints/last").display());
    let from = |run: &str| place.run(run, &[&short[..], &["--set", &start]].concat());
    succeeded(&from("same"));
    let model = place.path("run/checkpoints/last/model.toml");
    let config = fs::read_to_string(&model).unwrap();
    let category = config.lines().find(|line| line.starts_with("name = ")).unwrap();
    fs::write(&model, config.replace(category, "name = \"something else\"")).unwrap();
    let output = from("other");
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("are something else, "), "{said}");
    fs::write(&model, config).unwrap();
    // A folder of somebody else's is left as it is.
    fs::create_dir(place.path("photos")).unwrap();
    for more in [&[][..], &["--resume"], &["--force"]] {
        fs::write(place.path("photos/a.txt"), "mine").unwrap();
        assert_eq!(place.run("photos", &[&short[..], more].concat()).status.code(), Some(2), "{more:?}");
        assert_eq!(fs::read_dir(place.path("photos")).unwrap().count(), 1, "{more:?}");
    }
    // Other boxes under the same name are other data.
    let other = place.path("other.json");
    fs::copy(images.join("../annotations/instances_train.json"), &other).unwrap();
    let elsewhere = format!("data.train.path={}", other.display());
    refused(
        &["--resume", "--set", &elsewhere],
        "`data.train` has other images or boxes",
        "a resumed run keeps its data",
    );
    let output = place.run("nowhere", &["--resume"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("is not the folder of a run"), "{}", text(&output.stderr));
    succeeded(&place.run("run", &[&short[..], &["--resume"]].concat()));
    succeeded(&place.run("run", &[&short[..], &["--force"]].concat()));
}

#[test]
fn a_loss_that_is_not_finite_stops_the_run() {
    let place = Place::new(TINY);
    let annotations = data().join("data/annotations/instances_test.json");
    for norm in ["group", "batch"] {
        let norm_set = format!("detector.backbone.norm={norm}");
        let set = ["train.lr=1e30", "train.warm_up_iterations=0", "train.gradient_norm_max=off", &norm_set];
        let output = place.run(norm, &set.iter().flat_map(|set| ["--set", set]).collect::<Vec<_>>());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("is not finite") && said.contains("train_0000"), "{said}");
        assert!(said.contains("hint: lower `train.lr`"), "{said}");
        // What was before is kept, statistics of norms and all: a model that can be used.
        let model = place.path(norm).join("checkpoints/last");
        let evaluated = lacuna().arg("eval").arg(&annotations).arg("--model").arg(model).output().unwrap();
        succeeded(&evaluated);
    }
}

#[test]
fn a_bad_image_is_an_error_or_left_out() {
    let place = Place::new(TINY);
    let broken = place.path("data");
    copy(&data().join("data"), &broken);
    fs::write(broken.join("train/train_000003.jpg"), "no image").unwrap();
    let images = broken.join("train");
    let set = format!("data.train.images={}", images.display());
    let output = place.run("refused", &["--set", &set]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("train_000003.jpg"), "{said}");
    let output = place.run("skipped", &["--set", &set, "--set", "data.on_bad_image=skip"]);
    succeeded(&output);
    let said = text(&output.stderr);
    assert!(said.contains("warning: ") && said.contains("train_000003.jpg"), "{said}");
}

/// Resuming is exact with every detector, with and without a teacher: here from the checkpoint before the
/// last, which is gone.
#[test]
fn every_detector_is_resumed_exactly() {
    for (kind, more, method) in [
        ("retinanet", "head_depth = 1", "supervised"),
        ("fasterrcnn", "head_width = 32\nproposals = { per_level = 100, per_image = 50 }", "fixed"),
    ] {
        let start = TINY.find("[method]").unwrap();
        let config = TINY[..start]
            .replace("kind = \"fcos\"", &format!("kind = \"{kind}\""))
            .replace("head_depth = 1", more)
            .replace("norm = \"group\"", "norm = \"batch\"");
        let place = Place::new(&format!("{config}[method]\nname = \"{method}\"\n"));
        let short = ["--set", "train.iterations=9", "--set", "train.lr_milestones=[]"];
        succeeded(&place.run("whole", &short));
        copy(&place.path("whole"), &place.path("resumed"));
        fs::remove_dir_all(place.path("resumed/checkpoints/last")).unwrap();
        let output = place.run("resumed", &[&short[..], &["--resume"]].concat());
        succeeded(&output);
        assert!(text(&output.stderr).contains("resuming after iteration 7"), "{}", text(&output.stderr));
        for file in ["model.safetensors", "momentum.safetensors", "state.json"]
            .map(|f| format!("checkpoints/last/{f}"))
        {
            let [a, b] = ["whole", "resumed"].map(|run| fs::read(place.path(run).join(&file)).unwrap());
            assert!(a == b, "{kind} {method}: {file} differs");
        }
        assert_eq!(lines(&place.path("whole")), lines(&place.path("resumed")), "{kind} {method}");
    }
}

/// All methods with all detectors, from the same settings.
#[test]
fn every_method_trains_every_detector() {
    let methods =
        ["supervised", "fixed", "dynamic", "calibrated", "brl", "co-mining", "unbiased-teacher", "saod"];
    let detectors = [
        ("retinanet", "head_depth = 1"),
        ("fcos", "head_depth = 1"),
        (
            "fasterrcnn",
            "head_width = 32\ntraining_proposals = { per_level = 100, per_image = 50 }\n\
             proposals = { per_level = 100, per_image = 50 }",
        ),
    ];
    for (kind, more) in detectors {
        for (index, method) in methods.iter().enumerate() {
            if *method == if kind == "fasterrcnn" { "brl" } else { "saod" } {
                continue;
            }
            let start = TINY.find("[method]").unwrap();
            let mut config = TINY[..start]
                .replace("kind = \"fcos\"", &format!("kind = \"{kind}\""))
                .replace("head_depth = 1", more);
            config += &format!("[method]\nname = \"{method}\"\n");
            if ["fixed", "dynamic", "calibrated"].contains(method) {
                config += "[method.teacher]\nscore_min = 0.02\n[method.overlap]\niou_low = 0.05\n";
            }
            if index < 4 {
                config += &format!("[method.focal_iou]\nenabled = {}\n", index % 2 == 0);
            }
            if *method == "unbiased-teacher" {
                config += "burn_in = 2\n";
            }
            let place = Place::new(&config);
            let short = ["--set", "train.iterations=4", "--set", "train.evaluate_every=off"];
            let output = place.run("run", &short);
            succeeded(&output);
            let last = lines(&place.path("run")).pop().unwrap();
            assert!(last["loss"].as_f64().unwrap() > 0.0, "{kind} {method}: {last}");
            let has_teacher = !["supervised", "brl", "co-mining", "saod"].contains(method);
            assert_eq!(last["teacher_ap"].is_number(), has_teacher, "{kind} {method}: {last}");
        }
    }
}

/// The detectors that the other systems of the paper are tried with, and settings by which everything happens in a short
/// run.
const OTHER_SYSTEMS: [(&str, &str); 6] = [
    ("retinanet", "name = \"brl\""),
    ("fcos", "name = \"brl\""),
    ("fcos", "name = \"co-mining\"\nstart_iteration = 9\nthreshold = 0.02"),
    ("fcos", "name = \"unbiased-teacher\"\nburn_in = 5\nmomentum = 0.9\nthreshold = 0.02"),
    ("fasterrcnn", "name = \"unbiased-teacher\"\nburn_in = 5\nmomentum = 0.9\nthreshold = 0.02"),
    (
        "fasterrcnn",
        "name = \"saod\"\nmining_start = 9\nobjectness_min = 0.3\niou_max = 0.3\nthreshold = 0.01",
    ),
];

fn other_system(kind: &str, method: &str) -> String {
    let more = match kind {
        "fasterrcnn" => {
            "head_width = 128\ntraining_proposals = { per_level = 100, per_image = 50 }\n\
             proposals = { per_level = 100, per_image = 50 }\n\
             anchors.sizes = [[8.0], [16.0], [32.0], [64.0], [128.0]]"
        }
        "retinanet" => {
            "head_depth = 1\nanchors.sizes = [[16.0, 20.0, 25.0], [32.0, 40.0, 50.0], [64.0, 80.0, 101.0], \
             [128.0, 161.0, 203.0], [256.0, 322.0, 406.0]]"
        }
        _ => "head_depth = 1",
    };
    let start = TINY.find("[method]").unwrap();
    let config = TINY[..start].replace("kind = \"fcos\"", &format!("kind = \"{kind}\""));
    format!("{}[method]\n{method}\n", config.replace("head_depth = 1", more))
}

/// They say what they do, are taken up again where they were, and their models are of use.
#[test]
fn the_other_systems_are_resumed_exactly() {
    for (kind, method) in OTHER_SYSTEMS {
        let place = Place::new(&other_system(kind, method));
        // The run is taken up from the checkpoint of iteration 7: what begins after 9 begins later, and a teacher that
        // begins after 5 is not the student any more.
        let short =
            ["train.iterations=14", "train.log_every=2", "train.evaluate_every=off", "train.lr=0.005"];
        let short: Vec<&str> = short.iter().flat_map(|set| ["--set", set]).collect();
        succeeded(&place.run("whole", &short));
        copy(&place.path("whole"), &place.path("resumed"));
        fs::remove_dir_all(place.path("resumed/checkpoints/last")).unwrap();
        succeeded(&place.run("resumed", &[&short[..], &["--resume"]].concat()));
        assert_same(&place.path("whole"), &place.path("resumed"));

        let records = lines(&place.path("whole"));
        let any = |key: &str| records.iter().any(|line| line[key].as_f64().is_some_and(|value| value > 0.0));
        let is = |name: &str| method.contains(name);
        assert!(any("loss_classification"), "{kind} {method}");
        assert_eq!(any("pseudo_labels_per_image"), !is("brl"), "{kind} {method}: {records:?}");
        assert_eq!(any("loss_consistency"), is("saod"), "{kind} {method}: {records:?}");
        assert_eq!(
            records.last().unwrap()["teacher_ap"].is_number(),
            is("unbiased-teacher"),
            "{kind} {method}"
        );

        let model = place.path("whole/checkpoints/last");
        let out = place.path("detections.json");
        let mut predict = lacuna();
        predict
            .current_dir(data())
            .args(["predict", "data/test", "--model"])
            .arg(&model)
            .arg("--out")
            .arg(&out);
        succeeded(&predict.output().unwrap());
        let mut report = lacuna();
        succeeded(&report.current_dir(data()).arg("report").arg(place.path("whole")).output().unwrap());
        // It is not written over what it is made from.
        let onto = place.path("whole/metrics.jsonl");
        let mut report = lacuna();
        report
            .current_dir(data())
            .arg("report")
            .arg(place.path("whole"))
            .arg("--out")
            .arg(&onto)
            .arg("--force");
        assert_eq!(report.output().unwrap().status.code(), Some(2));
    }
}

/// They learn: after a short run on a few images they find there what a detector that knows nothing does not.
#[test]
fn the_other_systems_beat_chance() {
    // Of Unbiased Teacher's detectors one is enough: the run is long.
    let is_tried = |(kind, method): &(&str, &str)| !(*kind == "fasterrcnn" && method.contains("unbiased"));
    for (kind, method) in OTHER_SYSTEMS.into_iter().filter(is_tried) {
        let config = other_system(kind, method)
            .replace("annotations/instances_test.json", "annotations/instances_train.json")
            .replace(
                "co-mining\"\nstart_iteration = 9\nthreshold = 0.02",
                "co-mining\"\nstart_iteration = 100\nthreshold = 0.4",
            )
            .replace("burn_in = 5", "burn_in = 90")
            .replace("threshold = 0.02", "threshold = 0.5")
            .replace("threshold = 0.01", "threshold = 0.8");
        let place = Place::new(&config);
        let set = [
            "train.iterations=300",
            "train.lr_milestones=[240]",
            "train.lr=0.005",
            "train.checkpoint_every=1000",
            "train.evaluate_every=off",
            "data.hidden=off",
            "data.train.path=data/annotations/instances_train.json",
        ];
        let set: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
        succeeded(&place.run("run", &set));
        let last = lines(&place.path("run")).pop().unwrap();
        let ap50 = last["teacher_ap50"].as_f64().or(last["student_ap50"].as_f64()).unwrap();
        println!("{kind} {method}: {ap50}");
        assert!(ap50 > 0.2, "{kind} {method}: {ap50}");
        let mut complete = lacuna();
        complete.current_dir(data()).args(["complete", "data/sparse.json", "--images"]);
        complete.args([
            "data/train",
            "--method",
            "histogram",
            "--score-min",
            "0.02",
            "--hidden",
            "data/hidden.json",
        ]);
        complete.arg("--model").arg(place.path("run/checkpoints/last"));
        succeeded(&complete.arg("--out").arg(place.path("completed.json")).output().unwrap());
    }
}

/// Every calibrator is fitted, used, kept in checkpoints and taken up again.
#[test]
fn every_calibrator_is_resumed_exactly() {
    for (kind, per_class) in [("completeness", true), ("isotonic", false), ("bayesian", true)] {
        let place =
            Place::new(&format!("{TINY}[method.calibrator]\nkind = \"{kind}\"\nper_class = {per_class}\n"));
        let short = ["--set", "train.iterations=30", "--set", "method.window_images=100"];
        succeeded(&place.run("whole", &short));
        let model = fs::read_to_string(place.path("whole/checkpoints/last/model.toml")).unwrap();
        assert!(model.contains(&format!("kind = \"{kind}\"")), "{kind}: {model}");
        copy(&place.path("whole"), &place.path("resumed"));
        fs::remove_dir_all(place.path("resumed/checkpoints/last")).unwrap();
        succeeded(&place.run("resumed", &[&short[..], &["--resume"]].concat()));
        assert_same(&place.path("whole"), &place.path("resumed"));
        let last = lines(&place.path("whole")).pop().unwrap();
        assert_eq!(last["calibrator_completeness"].is_number(), kind == "completeness", "{last}");
        assert_eq!(last["scores"].as_array().map(Vec::len), Some(20), "{last}");
    }
}

/// The page has its charts and its pictures, and nothing from elsewhere.
#[test]
fn a_report_is_one_page_with_everything_in_it() {
    let place = Place::new(TINY);
    succeeded(&place.run("run", &[]));
    let run = place.path("run");
    let report =
        |more: &[&str]| lacuna().current_dir(data()).arg("report").arg(&run).args(more).output().unwrap();
    let output = report(&["--json"]);
    succeeded(&output);
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    for heading in ["Training curves", "Confidence and precision", "Configuration", "Calibrated Teacher"] {
        assert!(page.contains(heading), "{heading}");
    }
    assert!(page.matches("<svg").count() >= 8, "{} charts", page.matches("<svg").count());
    // Every line of the metrics is a point of the loss.
    assert_eq!(said["records"], 10, "{said}");
    let pictures = said["pictures"].as_u64().unwrap();
    assert_eq!(page.matches("data:image/jpeg;base64,").count() as u64, pictures);
    assert!(!page.contains("src=\"http") && !page.contains("<script"));

    // It is made again at will; another file is not replaced.
    succeeded(&report(&["--pictures", "0"]));
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(!page.contains("data:image/jpeg") && !page.contains("NaN"));
    let elsewhere = place.path("page.html");
    fs::write(&elsewhere, "mine").unwrap();
    let output = report(&["--out", elsewhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "mine");
    let output = lacuna().arg("report").arg(place.path("nothing")).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("is not a run of `lacuna train`"), "{said}");
}
