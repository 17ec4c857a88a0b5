//! The configuration of a run: what all methods share. A method's own settings are in its file in `methods/`.

mod file;
pub(crate) mod rules;

use std::path::PathBuf;

use lacuna_data::augment::ResizeRange;
use lacuna_data::batch::Normalization;
use lacuna_data::decode::OnBadImage;
use lacuna_data::off;
use lacuna_models::faster_rcnn::FasterRcnnConfig;
use lacuna_models::fcos::FcosConfig;
use lacuna_models::layers::NormKind;
use lacuna_models::postprocess::PostProcess;
use lacuna_models::resnet::{Depth, ResNetConfig};
use lacuna_models::retinanet::RetinaNetConfig;
use lacuna_models::{DetectorConfig, DetectorKind, LossNormalization};
use serde::{Deserialize, Serialize};

pub use file::{ConfigError, ConfigSource, SourceLocation};

use crate::methods::Method;
use crate::model::{InputConfig, ResizeKind};
use rules::{Violation, is_not_negative, is_positive, is_share, is_share_below_one, require};

/// A run, whole: what `config.toml` in its folder says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunConfig {
    /// `[data]`
    pub data: DataConfig,
    /// `[detector]`, with as many classes as the data has; the file does not say how many.
    pub detector: DetectorConfig,
    /// `[start]`
    pub start: StartConfig,
    /// `[views]`
    pub views: ViewsConfig,
    /// `[train]`
    pub train: TrainConfig,
    /// `[method]`
    pub method: Method,
}

/// The data of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataConfig {
    /// Whether an image that cannot be read is an error.
    pub on_bad_image: OnBadImage,
    /// Only these classes, by name; all classes if empty.
    pub classes: Vec<String>,
    /// What is trained on.
    pub train: PartConfig,
    /// What is evaluated on, if anything.
    pub test: PartConfig,
    /// The annotations that `sparsify` hid from `train`; metrics compare pseudo labels with them.
    #[serde(with = "off")]
    pub hidden: Option<PathBuf>,
}

/// One part of a data set on disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartConfig {
    /// A COCO JSON file, a YOLO `data.yaml`, or the folder of a COCO, VOC or YOLO data set, relative to the working
    /// directory.
    #[serde(with = "off")]
    pub path: Option<PathBuf>,
    /// The split, where there are several.
    #[serde(with = "off")]
    pub split: Option<String>,
    /// The folder of the images, where it is not found beside the annotations.
    #[serde(with = "off")]
    pub images: Option<PathBuf>,
}

/// The weights that training starts from; random ones without.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StartConfig {
    /// An ImageNet classifier with the backbone's shape: `.safetensors` or `.pth`.
    #[serde(with = "off")]
    pub backbone: Option<PathBuf>,
    /// The folder of a lacuna model with the detector's shape and classes.
    #[serde(with = "off")]
    pub model: Option<PathBuf>,
}

/// The sizes and the normalization of views.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewsConfig {
    /// The short side of a view in training is drawn from `[shortest, longest]`.
    pub short_side: [u32; 2],
    /// The long side in training, at most.
    pub long_side_max: u32,
    /// The short side in evaluation and use.
    pub test_short_side: u32,
    /// The long side in evaluation and use, at most.
    pub test_long_side_max: u32,
    /// What the backbone's weights expect.
    pub normalize: Normalization,
}

/// Schedule, optimizer and outputs of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainConfig {
    /// The seed of every random number.
    pub seed: u64,
    /// Iterations of the run.
    pub iterations: u64,
    /// Images of a batch.
    pub batch_size: usize,
    /// The learning rate.
    pub lr: f32,
    /// At each of these iterations the learning rate is multiplied by `lr_decay`.
    pub lr_milestones: Vec<u64>,
    /// The factor at a milestone.
    pub lr_decay: f32,
    /// The learning rate grows linearly from `warm_up_start` times its value over this many iterations.
    pub warm_up_iterations: u64,
    /// The factor at iteration 0.
    pub warm_up_start: f32,
    /// Momentum of SGD.
    pub momentum: f32,
    /// Weight decay of SGD.
    pub weight_decay: f32,
    /// Gradients whose common norm is larger are scaled down to it.
    #[serde(with = "off")]
    pub gradient_norm_max: Option<f32>,
    /// What the sums of losses are divided by.
    pub normalization: LossNormalization,
    /// Threads that load batches.
    pub workers: usize,
    /// Iterations between lines of `metrics.jsonl`.
    pub log_every: u64,
    /// Iterations between checkpoints.
    pub checkpoint_every: u64,
    /// Iterations between evaluations; there is always one at the end.
    #[serde(with = "off")]
    pub evaluate_every: Option<u64>,
}

impl RunConfig {
    /// The paper's run with this detector, backbone and method; where its data is remains to be said. Up to 100
    /// detections above a score of 0.05 are kept, which is what COCO's evaluation wants.
    fn new(kind: DetectorKind, depth: Depth, method: Method) -> Self {
        let backbone = ResNetConfig::new(depth);
        let keep = |nms_iou_max| PostProcess { score_min: 0.05, nms_iou_max, detections_max: 100 };
        let detector = match kind {
            DetectorKind::RetinaNet => {
                let paper = RetinaNetConfig::new(1, backbone);
                DetectorConfig::RetinaNet(RetinaNetConfig { post_process: keep(0.5), ..paper })
            }
            DetectorKind::Fcos => {
                let paper = FcosConfig::new(1, backbone);
                DetectorConfig::Fcos(FcosConfig { post_process: keep(0.6), ..paper })
            }
            DetectorKind::FasterRcnn => {
                let paper = FasterRcnnConfig::new(1, backbone);
                let two_views = method.as_dyn().needs_two_views();
                DetectorConfig::FasterRcnn(FasterRcnnConfig { post_process: keep(0.5), two_views, ..paper })
            }
        };
        Self {
            data: DataConfig {
                on_bad_image: OnBadImage::Error,
                classes: Vec::new(),
                train: PartConfig::default(),
                test: PartConfig::default(),
                hidden: None,
            },
            detector,
            start: StartConfig::default(),
            views: ViewsConfig {
                short_side: [400, 1200],
                long_side_max: 1333,
                test_short_side: 800,
                test_long_side_max: 1333,
                normalize: Normalization::Torchvision,
            },
            train: TrainConfig::paper(),
            method,
        }
    }

    /// The first value that breaks a rule.
    fn check(&self) -> Result<(), Violation> {
        let path = &self.data.train.path;
        require(path.is_some(), "data.train.path", "given: the annotations to train on")?;
        self.detector.check().map_err(|error| Violation {
            key: format!("detector.{}", error.field),
            rule: error.rule.to_string(),
        })?;
        self.check_start()?;
        self.views.check()?;

        let kind = detector_kind(&self.detector);
        let names = Method::names_for(kind);
        let known = names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        let rule = format!("one that this detector can be trained by: {known}");
        require(self.method.as_dyn().trains(kind), "method.name", &rule)?;
        self.train.check()?;
        self.method.as_dyn().check(&self.detector)
    }

    fn check_start(&self) -> Result<(), Violation> {
        let StartConfig { backbone, model } = &self.start;
        let one = backbone.is_none() || model.is_none();
        require(one, "start.model", "\"off\" where `start.backbone` is not")?;
        let from_scratch = backbone.is_none() && model.is_none();
        let ResNetConfig { norm, frozen_stages, .. } = *self.detector.backbone();
        require(
            !from_scratch || norm != NormKind::Frozen,
            "detector.backbone.norm",
            "\"group\" or \"batch\" where nothing is said in `[start]`: statistics that were never \
             measured cannot be frozen",
        )?;
        require(
            !from_scratch || frozen_stages == 0,
            "detector.backbone.frozen_stages",
            "0 where nothing is said in `[start]`: random weights would never be trained",
        )
    }
}

fn detector_kind(detector: &DetectorConfig) -> DetectorKind {
    match detector {
        DetectorConfig::RetinaNet(_) => DetectorKind::RetinaNet,
        DetectorConfig::Fcos(_) => DetectorKind::Fcos,
        DetectorConfig::FasterRcnn(_) => DetectorKind::FasterRcnn,
    }
}

impl ViewsConfig {
    /// The sizes of views in training.
    pub(crate) fn range(&self) -> ResizeRange {
        let [low, high] = self.short_side;
        ResizeRange { short_side: (low, high), long_side_max: self.long_side_max }
    }

    /// How an image becomes the input of the model in evaluation and use.
    pub(crate) fn input(&self) -> InputConfig {
        InputConfig {
            short_side: self.test_short_side,
            long_side_max: self.test_long_side_max,
            resize: ResizeKind::Antialiased,
            normalize: self.normalize,
        }
    }

    fn check(&self) -> Result<(), Violation> {
        let Self { short_side: [low, high], long_side_max, test_short_side, test_long_side_max, .. } = *self;
        let sides = 1..=16384;
        let ordered = sides.contains(&low) && low <= high && high <= long_side_max;
        require(ordered, "views.short_side", "two sizes, ascending, from 1 to `views.long_side_max`")?;
        require(sides.contains(&long_side_max), "views.long_side_max", "from 1 to 16384")?;
        let fits = sides.contains(&test_short_side) && test_short_side <= test_long_side_max;
        require(fits, "views.test_short_side", "from 1 to `views.test_long_side_max`")?;
        require(sides.contains(&test_long_side_max), "views.test_long_side_max", "from 1 to 16384")
    }
}

impl TrainConfig {
    pub(crate) fn paper() -> Self {
        Self {
            seed: 0,
            iterations: 180_000,
            batch_size: 16,
            lr: 0.01,
            lr_milestones: vec![120_000, 160_000],
            lr_decay: 0.1,
            warm_up_iterations: 500,
            warm_up_start: 0.001,
            momentum: 0.9,
            weight_decay: 1e-4,
            gradient_norm_max: None,
            normalization: LossNormalization::Batch,
            workers: 1,
            log_every: 50,
            checkpoint_every: 1000,
            evaluate_every: Some(10_000),
        }
    }

    fn check(&self) -> Result<(), Violation> {
        require(self.iterations > 0, "train.iterations", "1 at least")?;
        require((1..=4096).contains(&self.batch_size), "train.batch_size", "from 1 to 4096")?;
        require(is_positive(self.lr), "train.lr", "positive")?;
        let ascending = self.lr_milestones.is_sorted_by(|a, b| a < b);
        require(ascending, "train.lr_milestones", "ascending")?;
        require(is_positive(self.lr_decay) && self.lr_decay <= 1.0, "train.lr_decay", "above 0, up to 1")?;
        require(is_share(self.warm_up_start), "train.warm_up_start", "from 0 to 1")?;
        require(is_share_below_one(self.momentum), "train.momentum", "from 0 to below 1")?;
        require(is_not_negative(self.weight_decay), "train.weight_decay", "0 or more")?;
        let norm = self.gradient_norm_max.is_none_or(is_positive);
        require(norm, "train.gradient_norm_max", "positive, or \"off\"")?;
        require((1..=256).contains(&self.workers), "train.workers", "from 1 to 256")?;
        require(self.log_every > 0, "train.log_every", "1 at least")?;
        require(self.checkpoint_every > 0, "train.checkpoint_every", "1 at least")?;
        let every = self.evaluate_every.is_none_or(|every| every > 0);
        require(every, "train.evaluate_every", "1 at least, or \"off\"")
    }
}
