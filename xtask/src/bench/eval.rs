//! `cargo xtask bench eval`: COCO's average precision of 250,000 detections on a data set of val2017's
//! size, from the two files to the numbers, by us and by pycocotools.
//!
//! Every measurement has a process of its own, so that no heap is warm; ours and the peer's alternate,
//! and the minimum of each is kept. The numbers of both must agree.

mod synthetic;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use lacuna_data::results::{Entry, Results};
use lacuna_data::{Dataset, coco};
use lacuna_eval::{AveragePrecision, ImageDetection, average_precision};
use serde_json::{Value, json};

use self::synthetic::Files;
use super::peer::{Peer, PeerOptions};

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    peer: PeerOptions,
    /// How often our runs and the peer's alternate.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
}

#[derive(clap::Args)]
pub(crate) struct Once {
    annotations: PathBuf,
    detections: PathBuf,
}

impl Once {
    /// Prints the times and numbers of one evaluation.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let start = Instant::now();
        let dataset = coco::read(&self.annotations)?;
        let found = read_results(&self.detections, &dataset)?;
        let load_s = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let ap = average_precision(&dataset, &found);
        let evaluate_s = start.elapsed().as_secs_f64();
        println!("{}", json!({"load_s": load_s, "evaluate_s": evaluate_s, "stats": stats(&ap)}));
        Ok(())
    }
}

fn read_results(path: &Path, dataset: &Dataset) -> anyhow::Result<Vec<ImageDetection>> {
    let results = Results::read(path, dataset)?;
    let found = |entry: &Entry| {
        let Entry { image, class, bbox, score, .. } = *entry;
        ImageDetection { image, class, bbox, score }
    };
    Ok(results.entries().iter().map(found).collect())
}

/// In pycocotools' order; −1 where there is nothing to find.
fn stats(ap: &AveragePrecision) -> [f64; 12] {
    let precisions = [ap.ap, ap.ap50, ap.ap75, ap.ap_small, ap.ap_medium, ap.ap_large];
    let recalls = [ap.ar_1, ap.ar_10, ap.ar_100, ap.ar_small, ap.ar_medium, ap.ar_large];
    let mut stats = precisions.into_iter().chain(recalls).map(|stat| stat.unwrap_or(-1.0));
    std::array::from_fn(|_| stats.next().expect("twelve"))
}

/// The minimum of each time over several measurements, and the statistics of the last.
struct Least {
    load_s: f64,
    evaluate_s: f64,
    total_s: f64,
    stats: Vec<f64>,
}

impl Least {
    fn none() -> Self {
        let [load_s, evaluate_s, total_s] = [f64::INFINITY; 3];
        Self { load_s, evaluate_s, total_s, stats: Vec::new() }
    }

    fn add(&mut self, measured: &Value) -> anyhow::Result<()> {
        let figure = |name: &str| measured[name].as_f64().with_context(|| format!("no {name} in {measured}"));
        let (load_s, evaluate_s) = (figure("load_s")?, figure("evaluate_s")?);
        self.load_s = self.load_s.min(load_s);
        self.evaluate_s = self.evaluate_s.min(evaluate_s);
        self.total_s = self.total_s.min(load_s + evaluate_s);
        self.stats = serde_json::from_value(measured["stats"].clone())?;
        Ok(())
    }
}

fn ours(files: &Files) -> anyhow::Result<Value> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "eval-once"]).arg(&files.annotations).arg(&files.detections);
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{command:?} failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn theirs(python: &Path, files: &Files) -> anyhow::Result<Value> {
    let request = json!({"annotations": files.annotations, "detections": files.detections});
    Peer::start(python, "pycocotools_eval.py")?.ask(&request)
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let files = synthetic::val2017_size()?;
    let (mut our, mut peer) = (Least::none(), Least::none());
    for _ in 0..options.repeats {
        our.add(&ours(&files)?)?;
        if let Some(python) = &options.peer.python {
            peer.add(&theirs(python, &files)?)?;
            let close = our.stats.iter().zip(&peer.stats).all(|(a, b)| (a - b).abs() < 1e-12);
            ensure!(close, "we say {:?}, pycocotools {:?}", our.stats, peer.stats);
        }
    }
    let report = if options.peer.json { report_json } else { report_table };
    report("load", our.load_s, peer.load_s);
    report("evaluate", our.evaluate_s, peer.evaluate_s);
    report("files_to_numbers", our.total_s, peer.total_s);
    Ok(())
}

/// A peer that was not asked has an infinite time, which JSON shows as null.
fn report_json(case: &str, ours: f64, peer: f64) {
    let ratio = peer.is_finite().then(|| ours / peer);
    println!("{}", json!({"case": case, "ours_s": ours, "peer_s": peer, "ratio": ratio}));
}

fn report_table(case: &str, ours: f64, peer: f64) {
    let peer = if peer.is_finite() {
        format!("  peer {peer:8.3} s  ratio {:.4} (1 / {:.0})", ours / peer, peer / ours)
    } else {
        String::new()
    };
    println!("{case:16} ours {ours:8.3} s{peer}");
}
