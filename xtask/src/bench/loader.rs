//! `cargo xtask bench loader`: batches of a weak and a strong view, by our loader and by a PyTorch
//! DataLoader over Pillow and torchvision.
//!
//! Our epochs and the peer's alternate, and the minimum of each is kept. Both have two workers
//! and give every view the same size; the receiver does nothing else.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use lacuna_data::augment::ResizeRange;
use lacuna_data::batch::{Loader, LoaderConfig, Normalization, Order, Position, Recipe};
use lacuna_data::decode::OnBadImage;
use lacuna_data::output::{IfExists, NewFolder};
use lacuna_data::{Dataset, coco};
use lacuna_synth::{SynthConfig, fill_folder};
use serde_json::json;

use super::peer::{Peer, PeerOptions};

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    peer: PeerOptions,
    /// A folder of images; without it `coco_mini` in the folder that LACUNA_DATA names, or else synthetic scenes.
    #[arg(long, requires = "annotations")]
    images: Option<PathBuf>,
    /// Their COCO annotation file.
    #[arg(long, requires = "images")]
    annotations: Option<PathBuf>,
    /// How often our epoch and the peer's alternate.
    #[arg(long, default_value_t = 5)]
    repeats: usize,
}

const BATCH_SIZE: usize = 4;
const WORKERS: usize = 2;
/// Batches ahead of each worker; PyTorch's default.
const PREFETCH: usize = 2;
/// A fixed size, so that both sides have the same number of pixels; smaller than the images, so that every view is
/// resized.
const SHORT_SIDE: u32 = 224;
const LONG_SIDE_MAX: u32 = 320;

/// Where the images and their annotations are.
struct Source {
    name: &'static str,
    images: PathBuf,
    annotations: PathBuf,
}

impl Source {
    fn find(options: &Options) -> anyhow::Result<Self> {
        if let (Some(images), Some(annotations)) = (&options.images, &options.annotations) {
            return Ok(Self { name: "given", images: images.clone(), annotations: annotations.clone() });
        }
        let coco_mini = std::env::var_os("LACUNA_DATA").map(|root| PathBuf::from(root).join("coco_mini"));
        if let Some(coco_mini) = coco_mini.filter(|folder| folder.is_dir()) {
            let (images, annotations) = (coco_mini.join("images"), coco_mini.join("train.json"));
            return Ok(Self { name: "coco_mini", images, annotations });
        }
        eprintln!("synthetic scenes: LACUNA_DATA names no folder with `coco_mini`");
        let scenes = super::synthetic_data()?.join("scenes");
        if !scenes.is_dir() {
            eprintln!("writing scenes to {}, once", scenes.display());
            let folder = NewFolder::create(&scenes, IfExists::Refuse)?;
            fill_folder(&SynthConfig::default(), &[("train", 1000)], &folder, &|| true)?;
            folder.finish()?;
        }
        let (images, annotations) = (scenes.join("train"), scenes.join("annotations/instances_train.json"));
        Ok(Self { name: "synthetic", images, annotations })
    }
}

/// Seconds for one epoch, the start of the workers included.
fn time_epoch(dataset: &Arc<Dataset>, images: &Path, epoch: u64) -> anyhow::Result<f64> {
    let range = ResizeRange { short_side: (SHORT_SIDE, SHORT_SIDE), long_side_max: LONG_SIDE_MAX };
    let config = LoaderConfig {
        batch_size: BATCH_SIZE,
        recipes: vec![Recipe::Weak(range), Recipe::Strong(range)],
        normalize: Normalization::Torchvision,
        order: Order::Shuffled,
        seed: 0,
        workers: WORKERS,
        prefetch: PREFETCH,
        on_bad_image: OnBadImage::Error,
    };
    let start = Instant::now();
    let loader = Loader::new(dataset.clone(), images.into(), config, Position { epoch, batch: 0 });
    let n_batches = loader.n_batches();
    for batch in loader.take(n_batches) {
        batch?;
    }
    Ok(start.elapsed().as_secs_f64())
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let source = Source::find(options)?;
    let dataset = Arc::new(coco::read(&source.annotations)?);
    let python = options.peer.python.as_deref();
    let mut peer = python.map(|python| Peer::start(python, "torch_loader.py")).transpose()?;
    let request = json!({
        "images": source.images, "annotations": source.annotations, "batch_size": BATCH_SIZE,
        "workers": WORKERS, "prefetch": PREFETCH, "short_side": SHORT_SIDE, "long_side_max": LONG_SIDE_MAX,
    });

    let (mut ours, mut theirs) = (f64::INFINITY, f64::INFINITY);
    time_epoch(&dataset, &source.images, 0)?;
    for n in 0..options.repeats {
        if let Some(peer) = &mut peer {
            let seconds = peer.ask(&request)?["seconds"].as_f64();
            theirs = theirs.min(seconds.context("the peer's answer has no seconds")?);
        }
        ours = ours.min(time_epoch(&dataset, &source.images, 1 + n as u64)?);
    }

    let per_second = |seconds: f64| dataset.images().len() as f64 / seconds;
    let case = format!("loader {}", source.name);
    let peer_s = theirs.is_finite().then_some(theirs);
    if options.peer.json {
        let line = json!({
            "case": case, "ours_s": ours, "peer_s": peer_s, "ratio": peer_s.map(|peer| ours / peer),
            "ours_images_per_s": per_second(ours), "peer_images_per_s": peer_s.map(per_second),
        });
        println!("{line}");
    } else {
        let peer = peer_s.map_or(String::new(), |peer| {
            format!("  peer {peer:7.3} s, {:6.0} images/s  ratio {:.3}", per_second(peer), ours / peer)
        });
        println!("{case:16} ours {ours:7.3} s, {:6.0} images/s{peer}", per_second(ours));
    }
    Ok(())
}
