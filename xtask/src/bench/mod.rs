//! The benchmarks, one module each, and what they share.

mod annotations;
mod conv;
mod eval;
mod loader;
mod peer;
mod step;
mod synthetic;
mod train;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Annotation files of COCO's size, against pycocotools.
    Annotations(annotations::Options),
    /// One measurement of `annotations`, in a process of its own.
    #[command(hide = true)]
    AnnotationsOnce(annotations::Once),
    /// Convolutions and the other kernels, against PyTorch.
    Conv(conv::Options),
    /// Average precision of a results file, against pycocotools.
    Eval(eval::Options),
    /// One measurement of `eval`, in a process of its own.
    #[command(hide = true)]
    EvalOnce(eval::Once),
    /// Batches of views, against a PyTorch DataLoader.
    Loader(loader::Options),
    /// Training steps and predictions of whole detectors, against torchvision's.
    Step(step::Options),
    /// Our side of `step`, in a process of its own.
    #[command(hide = true)]
    StepServe(step::Serve),
    /// Iterations of Calibrated Teacher, against bare training steps; and memory.
    Train(train::Options),
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Annotations(options) => annotations::run(&options),
            Self::AnnotationsOnce(once) => once.run(),
            Self::Conv(options) => conv::run(&options),
            Self::Eval(options) => eval::run(&options),
            Self::EvalOnce(once) => once.run(),
            Self::Loader(options) => loader::run(&options),
            Self::Step(options) => step::run(&options),
            Self::StepServe(serve) => serve.run(),
            Self::Train(options) => train::run(&options),
        }
    }
}

/// The folder of the synthetic data that benchmarks write, which is kept from one run to the next.
fn synthetic_data() -> anyhow::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench-data");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// The resident memory of this process now.
fn resident_bytes() -> anyhow::Result<u64> {
    status_bytes("VmRSS:")
}

/// The peak of the resident memory of this process.
fn peak_bytes() -> anyhow::Result<u64> {
    status_bytes("VmHWM:")
}

fn status_bytes(name: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("memory is only measured on Linux")?;
    let line = status.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    let kilobytes: u64 = value.with_context(|| format!("no {name} in the status"))?.parse()?;
    Ok(1024 * kilobytes)
}
