//! `cargo xtask bench step`: whole training steps and predictions, and the same work in PyTorch with
//! torchvision's detectors.
//!
//! A training step is the teacher's detections on one view, the student's loss on another, the backward
//! pass, SGD with momentum and weight decay, and the teacher's moving average. Each side of each case
//! has a process of its own, whose peak of resident memory is read at the end; runs alternate and the
//! minimum of each side is kept. The peer's figure is that of its faster memory format.

use std::io::{BufRead, Write};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};
use burn::Tensor;
use burn::module::Module;
use burn::tensor::{Device, TensorData};
use lacuna_boxes::{Affine, Box2};
use lacuna_models::faster_rcnn::FasterRcnnConfig;
use lacuna_models::fcos::FcosConfig;
use lacuna_models::fpn::ExtraLevels;
use lacuna_models::ops::Sgd;
use lacuna_models::resnet::{Depth, ResNetConfig};
use lacuna_models::retinanet::RetinaNetConfig;
use lacuna_models::{Detector, DetectorConfig, Images, LossOptions, Target};
use lacuna_random::{Purpose, Rng};
use lacuna_train::{Optimizer, update_teacher};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::peak_bytes;
use super::peer::{Peer, PeerOptions};

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    peer: PeerOptions,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// How often our runs and the peer's alternate.
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// One case, as both sides are asked for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) detector: String,
    backbone: String,
    size: usize,
    batch: usize,
    predict: bool,
    threads: usize,
}

const CLASSES: usize = 20;
const BOXES: usize = 8;

impl Case {
    fn all(threads: usize) -> Vec<Self> {
        let mut cases = Vec::new();
        let mut add = |detector: &str, backbone: &str, size, batch, predict| {
            let (detector, backbone) = (detector.to_owned(), backbone.to_owned());
            cases.push(Self { detector, backbone, size, batch, predict, threads });
        };
        for detector in ["retinanet", "fcos", "fasterrcnn"] {
            for predict in [false, true] {
                for backbone in ["resnet18", "resnet50"] {
                    add(detector, backbone, 256, 4, predict);
                }
                add(detector, "resnet50", 512, 2, predict);
            }
        }
        for size in [384, 544, 800] {
            add("retinanet", "resnet18", size, 1, false);
        }
        add("retinanet", "resnet18", 256, 1, false);
        cases
    }

    /// A training step on two threads.
    pub(crate) fn step(detector: &str, backbone: &str, size: usize, batch: usize) -> Self {
        let (detector, backbone) = (detector.to_owned(), backbone.to_owned());
        Self { detector, backbone, size, batch, predict: false, threads: 2 }
    }

    pub(crate) fn name(&self) -> String {
        let Self { detector, backbone, size, batch, predict, .. } = self;
        let what = if *predict { "predict" } else { "step" };
        format!("{what} {detector} {backbone} {size}x{size} batch {batch}")
    }

    pub(crate) fn config(&self) -> anyhow::Result<DetectorConfig> {
        let depth = match &*self.backbone {
            "resnet18" => Depth::ResNet18,
            "resnet50" => Depth::ResNet50,
            other => bail!("no backbone {other}"),
        };
        // As the peer: everything is trained but the frozen batch norm.
        let backbone = ResNetConfig { frozen_stages: 0, ..ResNetConfig::new(depth) };
        Ok(match &*self.detector {
            "retinanet" => {
                let paper = RetinaNetConfig::new(CLASSES, backbone);
                DetectorConfig::RetinaNet(RetinaNetConfig { extra_levels: ExtraLevels::P5, ..paper })
            }
            "fcos" => DetectorConfig::Fcos(FcosConfig::new(CLASSES, backbone)),
            "fasterrcnn" => DetectorConfig::FasterRcnn(FasterRcnnConfig::new(CLASSES, backbone)),
            other => bail!("no detector {other}"),
        })
    }
}

/// Our side: reads cases from stdin, runs each once and answers on stdout.
#[derive(clap::Args)]
pub(crate) struct Serve;

impl Serve {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut current: Option<(Case, Work)> = None;
        for line in std::io::stdin().lock().lines() {
            let case: Case = serde_json::from_str(&line?)?;
            if current.as_ref().is_none_or(|(current, _)| *current != case) {
                rayon::ThreadPoolBuilder::new().num_threads(case.threads).build_global().ok();
                let mut work = Work::new(&case)?;
                work.run();
                current = Some((case, work));
            }
            let (_, work) = current.as_mut().context("a case was set up")?;
            let start = Instant::now();
            work.run();
            let seconds = start.elapsed().as_secs_f64();
            println!("{}", json!({"seconds": seconds, "peak_bytes": peak_bytes()?}));
            std::io::stdout().flush()?;
        }
        Ok(())
    }
}

pub(crate) struct Work {
    predict: bool,
    student: Option<Detector>,
    teacher: Option<Detector>,
    optimizer: Optimizer,
    pixels: Vec<f32>,
    sizes: Vec<(u32, u32)>,
    targets: Vec<Vec<Target>>,
    rngs: Vec<Rng>,
}

impl Work {
    pub(crate) fn new(case: &Case) -> anyhow::Result<Self> {
        let mut rng = Rng::new(Purpose::Weights, 0, 0, 0);
        let config = case.config()?;
        let (student, teacher) = if case.predict {
            (None, config.init(&Device::flex(), &mut rng))
        } else {
            let student = config.init(&Device::flex().autodiff(), &mut rng);
            let teacher = student.valid();
            (Some(student), teacher)
        };
        let size = case.size as f32;
        let mut rng = Rng::new(Purpose::Sampling, 0, 0, 0);
        let pixels = (0..case.batch * case.size * case.size * 3).map(|_| rng.unit() as f32).collect();
        let mut target = || {
            let [x, y, width, height] = std::array::from_fn(|_| rng.unit() as f32);
            let (x, y) = (0.7 * size * x, 0.7 * size * y);
            let bbox = Box2::new(x, y, x + 0.25 * size * width + 8.0, y + 0.25 * size * height + 8.0);
            Target { bbox, class: rng.below(CLASSES), learn_box: true }
        };
        let targets = (0..case.batch).map(|_| (0..BOXES).map(|_| target()).collect()).collect();
        let sizes = vec![(case.size as u32, case.size as u32); case.batch];
        let optimizer = Optimizer::default();
        Ok(Self {
            predict: case.predict,
            student,
            teacher: Some(teacher),
            optimizer,
            pixels,
            sizes,
            targets,
            rngs: (0..case.batch as u64).map(|image| Rng::new(Purpose::Sampling, 1, 0, image)).collect(),
        })
    }

    fn images(&self, device: &Device) -> Images {
        let (width, height) = self.sizes[0];
        let shape = [self.sizes.len(), height as usize, width as usize, 3];
        let pixels = Tensor::from_data(TensorData::new(self.pixels.clone(), shape), device);
        Images {
            pixels,
            second_view: None,
            sizes: self.sizes.clone(),
            to_view: vec![Affine::IDENTITY; self.sizes.len()],
        }
    }

    pub(crate) fn run(&mut self) {
        let teacher = self.teacher.take().expect("between runs there is a teacher");
        std::hint::black_box(teacher.detect(&self.images(&Device::flex())));
        if self.predict {
            self.teacher = Some(teacher);
            return;
        }
        let student = self.student.take().expect("between runs there is a student");
        let images = self.images(&Device::flex().autodiff());
        let losses = student.loss(&images, &self.targets, &LossOptions::default(), &mut self.rngs);
        drop(images);
        let gradients = losses.total().backward();
        let sgd = Sgd { learning_rate: 1e-3, momentum: 0.9, weight_decay: 1e-4 };
        let (student, _) = self.optimizer.step(student, gradients, sgd);
        self.teacher = Some(update_teacher(teacher, &student, 0.999));
        self.student = Some(student);
    }
}

/// A process, its minimum time so far, and its peak of memory.
struct Side {
    process: Peer,
    channels_last: bool,
    seconds: f64,
    peak_bytes: u64,
}

impl Side {
    fn new(process: Peer, channels_last: bool) -> Self {
        Self { process, channels_last, seconds: f64::INFINITY, peak_bytes: 0 }
    }

    fn run(&mut self, case: &Case) -> anyhow::Result<()> {
        let mut request = serde_json::to_value(case)?;
        request["channels_last"] = json!(self.channels_last);
        request["frozen_bn"] = json!(true);
        let answer = self.process.ask(&request)?;
        let seconds = answer["seconds"].as_f64().context("an answer has no seconds")?;
        self.seconds = self.seconds.min(seconds);
        self.peak_bytes = answer["peak_bytes"].as_u64().context("an answer has no peak_bytes")?;
        Ok(())
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    for case in Case::all(options.threads).iter().filter(|case| case.name().contains(&options.only)) {
        let mut serve = Command::new(std::env::current_exe()?);
        serve.args(["bench", "step-serve"]);
        let mut ours = Side::new(Peer::spawn(serve)?, true);
        let mut theirs = Vec::new();
        if let Some(python) = &options.peer.python {
            for channels_last in [false, true] {
                theirs.push(Side::new(Peer::start(python, "torch_step.py")?, channels_last));
            }
        }
        for _ in 0..options.repeats {
            ours.run(case)?;
            theirs.iter_mut().try_for_each(|side| side.run(case))?;
        }
        let best = theirs.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        report(options.peer.json, case, &ours, best);
    }
    Ok(())
}

fn report(json: bool, case: &Case, ours: &Side, theirs: Option<&Side>) {
    let ratio = theirs.map(|theirs| ours.seconds / theirs.seconds);
    let memory_ratio = theirs.map(|theirs| ours.peak_bytes as f64 / theirs.peak_bytes as f64);
    if json {
        println!(
            "{}",
            json!({
                "case": case.name(), "threads": case.threads,
                "ours_s": ours.seconds, "peer_s": theirs.map(|side| side.seconds), "ratio": ratio,
                "ours_peak_bytes": ours.peak_bytes, "peer_peak_bytes": theirs.map(|side| side.peak_bytes),
                "memory_ratio": memory_ratio, "peer_channels_last": theirs.map(|side| side.channels_last),
                "images_per_second": case.batch as f64 / ours.seconds,
            })
        );
        return;
    }
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    print!("{:44} ours {:7.1} ms {:6.0} MB", case.name(), ours.seconds * 1e3, megabytes(ours.peak_bytes));
    if let (Some(theirs), Some(ratio), Some(memory_ratio)) = (theirs, ratio, memory_ratio) {
        let (seconds, memory) = (theirs.seconds * 1e3, megabytes(theirs.peak_bytes));
        print!("  peer {seconds:7.1} ms {memory:6.0} MB  ratio {ratio:.3}, of memory {memory_ratio:.3}");
    }
    println!();
}
