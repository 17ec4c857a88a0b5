//! Benchmarks, one module each.

mod annotations;
mod conv;
mod loader;
mod peer;
mod step;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

#[derive(clap::Subcommand)]
pub enum Bench {
    /// Annotation files of COCO's size, against pycocotools.
    Annotations(annotations::Options),
    /// One measurement of `annotations`, in a process of its own.
    #[command(hide = true)]
    AnnotationsOnce(annotations::Once),
    /// Convolutions and the other kernels, against PyTorch.
    Conv(conv::Options),
    /// Batches of views, against a PyTorch DataLoader.
    Loader(loader::Options),
    /// Training steps and predictions of whole detectors, against torchvision's.
    Step(step::Options),
    /// Our side of `step`, in a process of its own.
    #[command(hide = true)]
    StepServe(step::Serve),
}

impl Bench {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Annotations(options) => annotations::run(&options),
            Self::AnnotationsOnce(once) => once.run(),
            Self::Conv(options) => conv::run(&options),
            Self::Loader(options) => loader::run(&options),
            Self::Step(options) => step::run(&options),
            Self::StepServe(serve) => serve.run(),
        }
    }
}

/// The root of the repository.
fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Where data that benchmarks make for themselves is kept from one run to the next.
fn made_data() -> anyhow::Result<PathBuf> {
    let folder = workspace().join("target/bench-data");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}
