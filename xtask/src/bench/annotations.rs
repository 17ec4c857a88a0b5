//! `cargo xtask bench annotations`: a file of COCO train2017's size, read by us and by pycocotools.
//!
//! Every measurement has a process of its own, so that the peak of its memory is its own and no heap
//! is warm; ours and the peer's alternate, and the minimum of each is kept. Memory is the resident
//! peak, interpreter and libraries included.

mod synthetic;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use lacuna_data::output::{IfExists, write_file};
use lacuna_data::sparsify::{Percent, Sparse, SparsifyKind, sparsify};
use lacuna_data::{Dataset, coco};
use serde_json::{Value, json};

use super::peak_bytes;
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
    /// The annotation file.
    file: PathBuf,
    /// A folder to write both halves of a split to; without it the file is only read.
    #[arg(long)]
    split_to: Option<PathBuf>,
}

impl Once {
    /// Prints the times of reading and, if asked for, splitting.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let start = Instant::now();
        let dataset = coco::read(&self.file)?;
        let load_s = start.elapsed().as_secs_f64();
        let start = Instant::now();
        if let Some(folder) = &self.split_to {
            let half = Percent::new(50.0).context("50 is a percentage")?;
            let Sparse { kept, hidden } = sparsify(&dataset, SparsifyKind::Split1(half), 0);
            for (name, dataset) in [("kept.json", &kept), ("hidden.json", &hidden)] {
                write(&folder.join(name), dataset)?;
            }
        }
        let split_s = start.elapsed().as_secs_f64();
        println!("{}", json!({"load_s": load_s, "split_s": split_s, "peak_bytes": peak_bytes()?}));
        Ok(())
    }
}

fn write(path: &Path, dataset: &Dataset) -> lacuna_data::Result<()> {
    write_file(path, IfExists::Replace, |out| coco::write(dataset, out))
}

/// The minimum of each number over several measurements.
struct Least {
    load_s: f64,
    split_s: f64,
    peak_bytes: f64,
}

impl Least {
    fn none() -> Self {
        Self { load_s: f64::INFINITY, split_s: f64::INFINITY, peak_bytes: f64::INFINITY }
    }

    fn add(&mut self, measured: &Value) -> anyhow::Result<()> {
        for (name, least) in [
            ("load_s", &mut self.load_s),
            ("split_s", &mut self.split_s),
            ("peak_bytes", &mut self.peak_bytes),
        ] {
            let figure = measured[name].as_f64().with_context(|| format!("no {name} in {measured}"))?;
            *least = least.min(figure);
        }
        Ok(())
    }
}

fn ours(file: &Path, split_to: Option<&Path>) -> anyhow::Result<Value> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "annotations-once"]).arg(file).stderr(Stdio::inherit());
    if let Some(folder) = split_to {
        command.arg("--split-to").arg(folder);
    }
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?} failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn theirs(python: &Path, file: &Path, split_to: Option<&Path>) -> anyhow::Result<Value> {
    Peer::start(python, "pycocotools_annotations.py")?.ask(&json!({"file": file, "split_to": split_to}))
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let file = synthetic::train2017_size()?;
    let python = options.peer.python.as_deref();
    let (mut our_load, mut peer_load) = (Least::none(), Least::none());
    for _ in 0..options.repeats {
        our_load.add(&ours(&file, None)?)?;
        if let Some(python) = python {
            peer_load.add(&theirs(python, &file, None)?)?;
        }
    }

    // The peer takes a minute to write as much as it read, so it does so once.
    let folder = super::synthetic_data()?.join("split");
    fs::create_dir_all(&folder)?;
    let (mut our_split, mut peer_split) = (Least::none(), Least::none());
    for _ in 0..options.repeats {
        our_split.add(&ours(&file, Some(&folder))?)?;
    }
    if let Some(python) = python {
        peer_split.add(&theirs(python, &file, Some(&folder))?)?;
    }
    fs::remove_dir_all(&folder)?;

    let report = if options.peer.json { report_json } else { report_table };
    report("load", Unit::Seconds, our_load.load_s, peer_load.load_s);
    report("load_memory", Unit::Bytes, our_load.peak_bytes, peer_load.peak_bytes);
    report("sparsify_write", Unit::Seconds, our_split.split_s, peer_split.split_s);
    if !options.peer.json {
        println!("sparsifying and writing took {:.2} × our loading", our_split.split_s / our_load.load_s);
    }
    Ok(())
}

enum Unit {
    Seconds,
    Bytes,
}

/// A peer that was not asked has an infinite number, which JSON shows as null.
fn report_json(case: &str, unit: Unit, ours: f64, peer: f64) {
    let ratio = peer.is_finite().then(|| ours / peer);
    let line = match unit {
        Unit::Seconds => json!({"case": case, "ours_s": ours, "peer_s": peer, "ratio": ratio}),
        Unit::Bytes => json!({
            "case": case, "ours_s": null, "peer_s": null, "ours_bytes": ours, "peer_bytes": peer, "ratio": ratio,
        }),
    };
    println!("{line}");
}

fn report_table(case: &str, unit: Unit, ours: f64, peer: f64) {
    let show = |figure: f64| match unit {
        Unit::Seconds => format!("{figure:8.3} s"),
        Unit::Bytes => format!("{:7.0} MB", figure / 1e6),
    };
    let peer = if peer.is_finite() {
        format!("  peer {}  ratio {:.3}", show(peer), ours / peer)
    } else {
        String::new()
    };
    println!("{case:16} ours {}{peer}", show(ours));
}
