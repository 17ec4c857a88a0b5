//! A report of a run that never was, with its figures as files: `cargo run -p lacuna-report --example report
//! -- DIR`.

use std::f64::consts::TAU;
use std::fs;
use std::path::PathBuf;

use lacuna_boxes::Box2;
use lacuna_data::decode::RgbImage;
use lacuna_data::draw::{Outline, draw};
use lacuna_report::{
    Bin, ClassCompletion, Curves, Figure, Picture, Report, RunResult, Scale, Series, TrainingStage,
    histograms, line_chart, reliability_diagram,
};

const RECORDS: u64 = 40;
const EVERY: u64 = 500;
const FITTED_FROM: u64 = 3;

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "report-example".into()));
    fs::create_dir_all(&folder)?;
    let report = example_report();
    fs::write(folder.join("report.html"), report.to_html())?;
    let late = &report.stages[2];
    let scores: Vec<(&str, &[f64])> =
        report.stages.iter().map(|s| (s.name.as_str(), s.scores.as_slice())).collect();
    let figures = [
        ("losses", line_chart("Losses", "loss", Scale::Log, &report.curves.losses)),
        ("reliability", reliability_diagram("Late", &[("before", &late.before), ("after", &late.after)])),
        ("scores", histograms("Scores", &scores)),
        ("empty", line_chart("Precision", "share", Scale::Percent, &[])),
    ];
    for (name, figure) in figures {
        save(&folder, name, &figure)?;
    }
    println!("{}", folder.join("report.html").display());
    Ok(())
}

fn save(folder: &std::path::Path, name: &str, figure: &Figure) -> std::io::Result<()> {
    fs::write(folder.join(format!("{name}.svg")), figure.to_svg())?;
    let mut jpeg = Vec::new();
    figure.to_image(2).write_jpeg(&mut jpeg)?;
    fs::write(folder.join(format!("{name}.jpg")), jpeg)
}

/// Something that looks like noise, from -1 to 1.
fn noise(n: u64, of: u64) -> f64 {
    let x = ((n * 7919 + of * 104_729) as f64 * 12.9898).sin() * 43758.5453;
    2.0 * (x - x.floor()) - 1.0
}

fn series(name: &str, value: impl Fn(u64, f64) -> f64) -> Series {
    let points = (1..=RECORDS).map(|n| ((n * EVERY) as f64, value(n, n as f64 / RECORDS as f64)));
    Series { name: name.into(), points: points.collect() }
}

fn example_report() -> Report {
    let fitted = |n: u64, value: f64| if n < FITTED_FROM { f64::NAN } else { value };
    let tested = |n: u64, value: f64| if n.is_multiple_of(4) { value } else { f64::NAN };
    let decay = |t: f64, from: f64, to: f64| to + (from - to) * (-5.0 * t).exp();
    let loss =
        |of: u64, from: f64, to: f64| move |n: u64, t: f64| decay(t, from, to) * (1.0 + 0.08 * noise(n, of));
    let average_precision = |name: &str, of: u64, to: f64| {
        let mut all = series(name, |n, t| tested(n, to * (1.0 - (-4.0 * t).exp()) + 0.006 * noise(n, of)));
        all.points.retain(|point| point.1.is_finite());
        all
    };
    let curves = Curves {
        losses: vec![
            series("total", loss(1, 3.1, 0.52)),
            series("classification", loss(2, 1.7, 0.21)),
            series("regression", loss(3, 1.4, 0.31)),
        ],
        average_precision: vec![
            average_precision("student", 4, 0.312),
            average_precision("teacher", 5, 0.334),
        ],
        boxes_per_image: vec![
            series("annotations", |n, _| 3.6 + 0.1 * noise(n, 6)),
            series("detections", |n, t| 9.0 * (1.0 - (-6.0 * t).exp()) + 0.5 * noise(n, 7)),
            series("candidates", |n, t| 5.2 * (1.0 - (-6.0 * t).exp()) + 0.3 * noise(n, 8)),
            series("pseudo labels", |n, t| {
                if n < FITTED_FROM { 0.0 } else { 2.4 * (1.0 - (-3.0 * t).exp()) + 0.15 * noise(n, 9) }
            }),
        ],
        pseudo_labels: vec![
            series("precision", |n, t| fitted(n, 0.66 + 0.18 * t + 0.02 * noise(n, 10))),
            series("recall", |n, t| fitted(n, 0.12 + 0.46 * (1.0 - (-3.0 * t).exp()) + 0.02 * noise(n, 11))),
        ],
        calibrator: vec![
            series("w", |n, t| fitted(n, 1.1 + 0.5 * t + 0.03 * noise(n, 12))),
            series("b", |n, t| fitted(n, 0.9 - 1.4 * t + 0.04 * noise(n, 13))),
        ],
        calibration_error: vec![
            series("before", |n, t| if n < 2 { f64::NAN } else { 0.21 - 0.09 * t + 0.015 * noise(n, 14) }),
            series("after", |n, _| fitted(n, 0.026 + 0.008 * noise(n, 15))),
        ],
        threshold: vec![series("threshold", |n, t| fitted(n, 0.52 + 0.16 * t + 0.01 * noise(n, 16)))],
    };

    let stages = [("Early", 0.30, 0.25, 1_500), ("Middle", 0.45, 0.15, 8_200), ("Late", 0.62, 0.10, 9_400)]
        .into_iter()
        .zip(0u64..)
        .map(|((name, middle, bias, count), n)| {
            stretch(name, (n * 6500 + 500, (n + 1) * 6500), middle, bias, count)
        })
        .collect();

    let pictures: Vec<Picture> = (0..8).map(picture).collect();
    Report {
        name: "street-half <2026-11> & \"friends\"".into(),
        method: "Calibrated Teacher + Focal IoU".into(),
        detector: "RetinaNet, ResNet-18".into(),
        iterations_done: RECORDS * EVERY,
        iterations: 24_000,
        results: vec![
            RunResult { model: "student".into(), ap: Some(0.312), ap50: Some(0.521), ap75: Some(0.334) },
            RunResult { model: "teacher".into(), ap: Some(0.334), ap50: Some(0.548), ap75: None },
        ],
        facts: vec![
            "The teacher’s AP is 2.2 points above the student’s.".into(),
            "Calibration brought the error of judged detections from 0.122 to 0.024.".into(),
            "81 % of the pseudo labels of the last records are right; they cover 57 % of the hidden boxes."
                .into(),
        ],
        curves,
        stages,
        most_confident: pictures[..4].to_vec(),
        least_confident: pictures[4..].to_vec(),
        completion: [
            ("person", 4210, 3655, 0.86),
            ("car & van", 1802, 1210, 0.83),
            ("<bicycle>", 77, 41, 0.74),
        ]
        .into_iter()
        .map(|(class, given, recovered, confidence)| ClassCompletion {
            class: class.into(),
            given,
            recovered,
            confidence: Some(confidence),
        })
        .collect(),
        config: Some(CONFIG.into()),
    }
}

fn stretch(name: &str, iterations: (u64, u64), middle: f64, bias: f64, count: u64) -> TrainingStage {
    let share = |score: f64| (-((score - middle) / 0.22).powi(2)).exp() + 0.25 * (1.0 - score);
    let bins = |from: f64, error: &dyn Fn(f64) -> f64| {
        let at = |i: u64| (i as f64 + 0.5) / 10.0;
        let all: f64 = (0..10).map(|i| share(at(i))).sum();
        (0..10)
            .map(|i| {
                let middle = at(i);
                let n = if middle < from { 0 } else { (count as f64 * share(middle) / all) as u64 };
                let precision = (middle + error(middle) + 0.02 * noise(i, iterations.0)).clamp(0.0, 1.0);
                Bin {
                    low: middle - 0.05,
                    high: middle + 0.05,
                    count: n,
                    right: (n as f64 * precision).round() as u64,
                    confidence: n as f64 * middle,
                }
            })
            .collect()
    };
    TrainingStage {
        name: name.into(),
        iterations,
        before: bins(0.4, &|score| bias * (score * TAU / 2.0).sin() + bias * 0.4),
        after: bins(0.1, &|_| 0.0),
        scores: (0..20).map(|i| (count as f64 * share((f64::from(i) + 0.5) / 20.0) / 8.0).round()).collect(),
    }
}

fn picture(n: u64) -> Picture {
    let (width, height) = (360, 260);
    let mut pixels = Vec::new();
    for y in 0..height {
        for x in 0..width {
            let tile = f64::from((x / 30 + y / 30) % 2) * 6.0;
            let shade =
                |c: u64| (120.0 + 50.0 * noise(n, c) + 40.0 * f64::from(y) / f64::from(height) + tile) as u8;
            pixels.extend([shade(1), shade(2), shade(3)]);
        }
    }
    let mut image = RgbImage::new(width, height, pixels);
    let outline = |k: u64, color: [u8; 3], label: String| {
        let [x, y] = [k * 5 + 1, k * 5 + 2].map(|of| (0.5 + 0.5 * noise(n, of)) as f32);
        let (x, y) = (x * 240.0, 30.0 + y * 130.0);
        Outline { bbox: Box2::new(x, y, x + 60.0 + 8.0 * k as f32, y + 80.0), color, label: Some(label) }
    };
    let confidence = if n < 4 { 0.97 - 0.01 * n as f64 } else { 0.70 + 0.01 * (n - 4) as f64 };
    let given = outline(1, [0, 200, 80], "car & van".into());
    let recovered = outline(2, [230, 40, 40], format!("person {confidence:.2}"));
    draw(&mut image, &[given, recovered]);
    let mut jpeg = Vec::new();
    image.write_jpeg(&mut jpeg).expect("a vector takes all that is written, and the sides are small");
    Picture { jpeg, caption: format!("street_{n:04}.jpg: 1 given, 1 recovered (person {confidence:.2})") }
}

const CONFIG: &str = "\
[data]
annotations = \"street/train_sparse.json\"
images = \"street/images\"

[model]
detector = \"retinanet\"
backbone = \"resnet18\"

[train]
iterations = 24000
batch_size = 8
lr = 0.01

[method]
kind = \"calibrated_teacher\"   # <the default>
confidence_min = 0.7
";
