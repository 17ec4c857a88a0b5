//! Configurations: what is refused, where, and what is proposed instead.

use std::path::Path;

use lacuna_train::config::{ConfigError, ConfigSource, RunConfig, SourceLocation};
use lacuna_train::methods::Method;

const SMALL: &str = r#"[data.train]
path = "train.json"

[detector]
kind = "fcos"

[detector.backbone]
depth = "resnet18"
norm = "group"
frozen_stages = 0

[train]
lr = 0.02

[method]
name = "calibrated"
"#;

fn parse_with(text: &str, overrides: &[&str]) -> Result<RunConfig, ConfigError> {
    let overrides: Vec<String> = overrides.iter().map(|&assignment| assignment.to_owned()).collect();
    RunConfig::parse(ConfigSource { path: Path::new("run.toml"), text, overrides: &overrides })
}

fn parse(text: &str) -> Result<RunConfig, ConfigError> {
    parse_with(text, &[])
}

/// The message and the hint.
fn refused(text: &str, overrides: &[&str]) -> String {
    let error = parse_with(text, overrides).expect_err("it is wrong");
    let hint = error.hint.as_ref().map_or(String::new(), |hint| format!(" | {hint}"));
    format!("{error}{hint}")
}

fn edited(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from));
    SMALL.replace(from, to)
}

#[test]
fn what_is_not_said_is_the_papers() {
    let config = parse(SMALL).expect("it is right");
    assert_eq!((config.train.iterations, config.train.batch_size, config.train.lr), (180_000, 16, 0.02));
    let Method::Calibrated(method) = &config.method else { panic!("{:?}", config.method) };
    assert_eq!((method.confidence_min, method.refit_every, method.window_images), (0.7, 500, 8000));
    assert_eq!((method.overlap.iou_low, method.overlap.iou_high), (0.6, 0.75));
    assert_eq!(method.teacher.score_min, 0.4);
    let focal_iou = config.method.focal_iou().expect("the method has it");
    assert!(!focal_iou.enabled);
    assert_eq!((focal_iou.w0, focal_iou.k, focal_iou.alpha, focal_iou.gamma), (0.5, 1.5, 0.25, 2.0));
}

#[test]
fn a_configuration_survives_being_written() {
    let config = parse(SMALL).expect("it is right");
    let text = config.to_toml();
    assert!(text.contains("lr = 0.02\n"), "as short as it was given: {text}");
    assert_eq!(parse(&text).expect("it was written by us"), config);
    assert_eq!(config.difference(&parse(&text).expect("as before")), None);
}

/// `docs/CONFIG.md` has every key of every detector and method, each in its section.
#[test]
fn every_key_is_documented() {
    fn leaves(table: &toml::Table, at: &str, into: &mut Vec<String>) {
        for (key, value) in table {
            let key = format!("{at}.{key}");
            match value {
                toml::Value::Table(table) => leaves(table, &key, into),
                _ => into.push(key),
            }
        }
    }
    let document = include_str!("../../../docs/CONFIG.md");
    for kind in ["retinanet", "fcos", "fasterrcnn"] {
        for method in
            Method::NAMES.iter().filter(|&&name| name != if kind == "fasterrcnn" { "brl" } else { "saod" })
        {
            let text = edited("\"fcos\"", &format!("\"{kind}\""))
                .replace("\"calibrated\"", &format!("\"{method}\""));
            let config: toml::Table = parse(&text).expect("it is right").to_toml().parse().expect("TOML");
            for (section, keys) in &config {
                let start = document.find(&format!("## `[{section}]`")).expect("it has a section");
                let of_section = &document[start..];
                let of_section =
                    &of_section[..of_section[3..].find("\n## ").map_or(of_section.len(), |end| end + 3)];
                let mut all = Vec::new();
                leaves(keys.as_table().expect("a section is a table"), section, &mut all);
                for key in all {
                    let last = key.rsplit('.').next().expect("there is one");
                    let named = [format!("`{last}`"), format!(".{last}`")];
                    assert!(
                        named.iter().any(|name| of_section.contains(name)),
                        "{key} is not in docs/CONFIG.md"
                    );
                }
            }
        }
    }
}

#[test]
fn unknown_keys_name_the_nearest_known_one() {
    assert_eq!(
        refused(&edited("lr = 0.02", "lrr = 0.02"), &[]),
        "run.toml:13: there is no key `lrr` in `[train]` | did you mean `lr`?"
    );
    assert_eq!(
        refused(&edited("[train]", "[training]"), &[]),
        "run.toml:12: there is no table `[training]` | did you mean `train`?"
    );
    assert_eq!(
        refused(SMALL, &["method.confidence=0.5"]),
        "override `method.confidence=0.5`: there is no key `confidence` in `[method]` | its keys are `before_first_fit`, \
         `calibrator`, `confidence_min`, `focal_iou`, `name`, `overlap`, `refit_every`, `strong_view`, `teacher`, \
         `window_images`"
    );
    assert_eq!(
        refused(&edited("\"calibrated\"", "\"calibrate\""), &[]),
        "run.toml:16: `method.name` is \"calibrate\", not one of \"supervised\", \"fixed\", \"dynamic\", \
         \"calibrated\", \"brl\", \"co-mining\", \"unbiased-teacher\", \"saod\" | did you mean `calibrated`?"
    );
    let wrong = refused(SMALL, &["method.calibrator.kind=plat"]);
    assert!(
        wrong.starts_with(
            "override `method.calibrator.kind=plat`: `method.calibrator.kind`: unknown variant `plat`"
        ),
        "{wrong}"
    );
    // A key of another method is not one of this method.
    let threshold = refused(SMALL, &["method.threshold=0.5"]);
    assert!(threshold.contains("there is no key `threshold`"), "{threshold}");
}

#[test]
fn values_are_checked_before_any_work() {
    for (assignment, problem) in [
        ("train.lr=-1", "`train.lr` must be positive"),
        ("train.lr=\"fast\"", "`train.lr`: invalid type: string \"fast\", expected f32"),
        ("train.batch_size=0", "`train.batch_size` must be from 1 to 4096"),
        ("train.lr_milestones=[3, 2]", "`train.lr_milestones` must be ascending"),
        ("method.overlap.iou_high=0.5", "`method.overlap.iou_high` must be from `iou_low` to 1"),
        ("method.overlap.containment=2", "`method.overlap.containment` must be from 0 to 1, or \"off\""),
        ("views.short_side=[800, 400]", "`views.short_side` must be two sizes, ascending, from 1 to"),
        ("detector.width=33", "`detector.width` must be a multiple of 32"),
        ("detector.backbone.norm=frozen", "`detector.backbone.norm` must be \"group\" or \"batch\""),
        ("method.overlap.iou_low=0", "`method.overlap.iou_low` must be above 0, up to 1"),
        ("method.confidence_min=1", "`method.confidence_min` must be from 0 to below 1"),
        (
            "method.teacher.score_min=0.01",
            "`method.teacher.score_min` must be from `detector.post_process.score_min` to below 1",
        ),
        ("train=3", "`train` is a table, not 3"),
        ("train.lr", "`train.lr` is not of the form `key=value`"),
    ] {
        let error = refused(SMALL, &[assignment]);
        let expected = format!("override `{assignment}`: {problem}");
        assert!(error.starts_with(&expected), "{error}");
    }
    let missing = refused(&edited("path = \"train.json\"", ""), &[]);
    assert!(missing.starts_with("run.toml:1: `data.train.path` must be given"), "{missing}");
    let missing = refused(&edited("name = \"calibrated\"", ""), &[]);
    assert!(missing.starts_with("run.toml:15: `method.name` is missing; it is one of"), "{missing}");
    let huge = refused(&edited("lr = 0.02", "seed = 18446744073709551615"), &[]);
    assert!(huge.starts_with("run.toml:13: "), "{huge}");
    let misspelt = refused(&edited("[detector]", "[detectr]"), &[]);
    assert_eq!(misspelt, "run.toml:4: there is no table `[detectr]` | did you mean `detector`?");
    let syntax = parse(&edited("lr = 0.02", "lr = 0.0.2")).expect_err("it is no TOML");
    assert_eq!(syntax.location, SourceLocation::Line { path: "run.toml".into(), line: 13 });
}

#[test]
fn a_value_can_be_set_and_switched_off() {
    let set = ["method.overlap.containment=off", "train.gradient_norm_max=5", "data.test.path=x/test.json"];
    let config = parse_with(SMALL, &set).expect("it is right");
    let (_, overlap) = config.method.teacher_settings().expect("it has a teacher");
    assert_eq!((overlap.containment, overlap.cross_class_iou), (None, Some(0.75)));
    assert_eq!(config.train.gradient_norm_max, Some(5.0));
    assert_eq!(config.data.test.path.as_deref(), Some(Path::new("x/test.json")));
}

#[test]
fn only_what_changes_results_tells_runs_apart() {
    let config = parse(SMALL).expect("it is right");
    let with = |set: &str| parse_with(SMALL, &[set]).expect("it is right");
    assert_eq!(config.difference(&with("train.workers=3")), None);
    assert_eq!(config.difference(&with("data.on_bad_image=skip")), None);
    assert_eq!(config.difference(&with("data.train.path=elsewhere.json")), None);
    assert_eq!(config.difference(&with("train.seed=1")), Some("train.seed".into()));
    assert_eq!(
        config.difference(&with("method.overlap.min_side=off")),
        Some("method.overlap.min_side".into())
    );
    assert_eq!(config.difference(&with("detector.width=64")), Some("detector.width".into()));
}

/// Every preset is right, and says everything: nothing in it is left to a default.
#[test]
fn presets_are_complete() {
    let mut paths: Vec<_> = ["../../configs", "../../configs/paper", "../lacuna/presets"]
        .map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).expect("there are presets"))
        .map(|entry| entry.expect("it can be listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    paths.sort();
    assert_eq!(paths.len(), 10, "{paths:?}");
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("it can be read");
        let config = RunConfig::parse(ConfigSource { path: &path, text: &text, overrides: &[] });
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        let keys = |text: &str| {
            let mut keys = Vec::new();
            collect("", &text.parse().expect("it is TOML"), &mut keys);
            keys.sort();
            keys
        };
        assert_eq!(keys(&text), keys(&config.to_toml()), "{}", path.display());
    }
}

fn collect(above: &str, table: &toml::Table, keys: &mut Vec<String>) {
    for (key, value) in table {
        match value {
            toml::Value::Table(table) => collect(&format!("{above}{key}."), table, keys),
            _ => keys.push(format!("{above}{key}")),
        }
    }
}

#[test]
fn a_method_that_a_detector_cannot_run_names_those_that_it_can() {
    let faster_rcnn = "[data.train]\npath = \"train.json\"\n[detector]\nkind = \"fasterrcnn\"\n\
                       [detector.backbone]\nnorm = \"group\"\nfrozen_stages = 0\n[method]\nname = \"saod\"\n";
    let config = parse(faster_rcnn).expect("they go together");
    assert!(config.to_toml().contains("two_views = true"));
    assert!(
        !parse(&faster_rcnn.replace("saod", "fixed")).expect("so do they").to_toml().contains("two_views")
    );
    let refused_brl = refused(&faster_rcnn.replace("saod", "brl"), &[]);
    assert!(
        refused_brl.contains("`method.name` must be one that this detector can be trained by"),
        "{refused_brl}"
    );
    assert!(refused_brl.contains("\"saod\"") && !refused_brl.contains("\"brl\""), "{refused_brl}");
    let refused_saod = refused(&faster_rcnn.replace("fasterrcnn", "fcos"), &[]);
    assert!(refused_saod.contains("\"brl\"") && !refused_saod.contains("\"saod\""), "{refused_saod}");
    let off = refused(faster_rcnn, &["detector.two_views=false"]);
    assert!(off.contains("`detector.two_views` must be true with SAOD"), "{off}");
}

#[test]
fn the_other_systems_have_their_own_settings() {
    let with = |method: &str| parse(&edited("name = \"calibrated\"", method));
    // Its authors have another threshold for FCOS.
    for (kind, threshold) in [("fcos", 0.5), ("retinanet", 0.6)] {
        let text = edited("name = \"calibrated\"", "name = \"co-mining\"").replace("fcos", kind);
        let Ok(RunConfig { method: Method::CoMining(method), .. }) = parse(&text) else { panic!("{text}") };
        assert_eq!((method.threshold, method.iou_max), (threshold, 0.4));
    }
    let Ok(RunConfig { method: Method::UnbiasedTeacher(method), .. }) = with("name = \"unbiased-teacher\"")
    else {
        panic!("it is Unbiased Teacher")
    };
    assert_eq!((method.momentum, method.threshold, method.weight, method.gamma), (0.9996, 0.7, 4.0, 1.5));
    let wrong = refused(&edited("name = \"calibrated\"", "name = \"brl\"\nweight = 2.0"), &[]);
    assert!(wrong.contains("`method.weight` must be from 0 to 1"), "{wrong}");
}
