//! `lacuna import`: a model from a torchvision checkpoint.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use lacuna_data::coco;
use lacuna_models::resnet::{Depth, ResNetConfig, Style};
use lacuna_models::weights::Checkpoint;
use lacuna_models::{DetectorConfig, DetectorKind};
use lacuna_train::model::{InputConfig, Model, ModelCategory, ModelConfig, ModelError};
use serde_json::json;

use crate::args::output::OutputArgs;
use crate::diagnostics::usage;
use crate::render::path_json;

/// Make a model from the weights of a torchvision detector
///
/// Input and post-processing are torchvision's defaults. Category ids are the checkpoint's label
/// numbers: from 0 for RetinaNet and FCOS, from 1 for Faster R-CNN, where 0 is background.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A .safetensors file, or what `torch.save(model.state_dict(), …)` wrote
    weights: PathBuf,

    /// The detector that the weights are of
    #[arg(long)]
    detector: DetectorArg,

    /// Its backbone
    #[arg(long, default_value = "resnet50")]
    backbone: BackboneArg,

    /// The number of classes, without background
    #[arg(long, value_name = "N")]
    n_classes: usize,

    /// The model, a folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// A COCO file that names the classes: as many categories in the same order, or by label number
    #[arg(long, value_name = "COCO_JSON")]
    categories: Option<PathBuf>,

    /// Which convolution of the backbone's bottlenecks has the stride
    #[arg(long, default_value = "pytorch")]
    style: StyleArg,

    /// The epsilon of the backbone's norms; 0 for torchvision's own COCO_V1 weights
    #[arg(long, value_name = "E", default_value_t = 1e-5)]
    norm_epsilon: f64,

    /// Images are resized to this short side
    #[arg(long, value_name = "PIXELS", default_value_t = InputConfig::TORCHVISION.short_side)]
    short_side: u32,

    /// and at most this long side
    #[arg(long, value_name = "PIXELS", default_value_t = InputConfig::TORCHVISION.long_side_max)]
    long_side: u32,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum DetectorArg {
    Retinanet,
    Fcos,
    Fasterrcnn,
}

#[derive(Clone, Copy, ValueEnum)]
enum BackboneArg {
    Resnet18,
    Resnet34,
    Resnet50,
    Resnet101,
}

#[derive(Clone, Copy, ValueEnum)]
enum StyleArg {
    /// On the 3×3 convolution: torchvision's
    Pytorch,
    /// On the first 1×1 convolution
    Caffe,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.n_classes == 0 {
        usage("`--n-classes` must be at least 1");
    }
    if !(args.norm_epsilon >= 0.0 && args.norm_epsilon.is_finite()) {
        usage("`--norm-epsilon` must be 0 or more");
    }
    let if_exists = args.output.if_exists();
    let inputs = [&args.weights].into_iter().chain(&args.categories).map(PathBuf::as_path);
    if_exists.check_all(&[&args.out], &inputs.collect::<Vec<_>>())?;
    let depth = match args.backbone {
        BackboneArg::Resnet18 => Depth::ResNet18,
        BackboneArg::Resnet34 => Depth::ResNet34,
        BackboneArg::Resnet50 => Depth::ResNet50,
        BackboneArg::Resnet101 => Depth::ResNet101,
    };
    let style = match args.style {
        StyleArg::Pytorch => Style::Pytorch,
        StyleArg::Caffe => Style::Caffe,
    };
    let kind = match args.detector {
        DetectorArg::Retinanet => DetectorKind::RetinaNet,
        DetectorArg::Fcos => DetectorKind::Fcos,
        DetectorArg::Fasterrcnn => DetectorKind::FasterRcnn,
    };
    let input = InputConfig {
        short_side: args.short_side,
        long_side_max: args.long_side,
        ..InputConfig::TORCHVISION
    };
    if let Err(rule) = input.check() {
        usage(&format!("`--short-side` and `--long-side`: {rule}"));
    }
    let backbone = ResNetConfig { style, norm_epsilon: args.norm_epsilon, ..ResNetConfig::new(depth) };
    let checkpoint = Checkpoint::read(&args.weights).map_err(ModelError::from)?;
    let detector = DetectorConfig::of_checkpoint(&checkpoint, kind, backbone, args.n_classes)
        .map_err(ModelError::from)?;
    let categories = match &args.categories {
        Some(path) => named_categories(path, &detector)?,
        None => label_numbers(&detector),
    };
    let model =
        Model::from_checkpoint(checkpoint, ModelConfig { detector, input, calibrator: None, categories })?;
    let parameters = model.n_parameters();
    model.write(&args.out, if_exists)?;

    let mut out = std::io::stdout().lock();
    if args.output.json {
        writeln!(
            out,
            "{}",
            json!({"out": path_json(&args.out), "n_classes": args.n_classes, "parameters": parameters})
        )?;
    } else {
        let millions = parameters as f64 / 1e6;
        writeln!(
            out,
            "{}: {} classes, {millions:.1} million parameters",
            args.out.display(),
            args.n_classes
        )?;
    }
    Ok(())
}

fn label_numbers(detector: &DetectorConfig) -> Vec<ModelCategory> {
    let labels = (detector.first_label()..).take(detector.n_classes());
    labels.map(|label| ModelCategory { id: label, name: label.to_string() }).collect()
}

/// The categories of a file: in its order if there are as many as classes, else where their ids are label
/// numbers (torchvision's COCO models have 91 labels for 80 categories).
pub(crate) fn named_categories(path: &Path, detector: &DetectorConfig) -> Result<Vec<ModelCategory>> {
    let dataset = coco::read(path)?;
    let categories = dataset.categories();
    let of_file =
        |category: &lacuna_data::Category| ModelCategory { id: category.id, name: category.name.clone() };
    if categories.len() == detector.n_classes() {
        return Ok(categories.iter().map(of_file).collect());
    }
    let mut all = label_numbers(detector);
    for category in categories {
        let Some(class) = all.iter_mut().find(|class| class.id == category.id) else {
            usage(&format!(
                "{} has {} categories, not {}, and `{}` has the id {}, which is no label number either",
                path.display(),
                categories.len(),
                detector.n_classes(),
                category.name,
                category.id
            ));
        };
        *class = of_file(category);
    }
    Ok(all)
}
