//! What a run is told: the tables of its TOML file, with the paper's values where it says nothing.

mod file;

use std::path::PathBuf;

use lacuna_calib::CalibratorKind;
use lacuna_data::augment::{RecolorRange, ResizeRange};
use lacuna_data::batch::{Normalization, Recipe};
use lacuna_data::decode::OnBadImage;
use lacuna_data::off;
use lacuna_gaps::OverlapRule;
use lacuna_models::DetectorKind;
use lacuna_models::faster_rcnn::FasterRcnnConfig;
use lacuna_models::fcos::FcosConfig;
use lacuna_models::layers::NormKind;
use lacuna_models::postprocess::PostProcess;
use lacuna_models::resnet::{Depth, ResNetConfig};
use lacuna_models::retinanet::RetinaNetConfig;
use lacuna_models::{DetectorConfig, IouOf, LossNormalization};
use serde::{Deserialize, Serialize};

pub use file::{ConfigError, Source, SourceLocation};

use crate::model::{InputConfig, ResizeKind};

/// A run, whole: what `config.toml` in its folder says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunConfig {
    pub data: DataConfig,
    /// With as many classes as the data has; the file does not say how many.
    pub detector: DetectorConfig,
    pub start: StartConfig,
    pub views: ViewsConfig,
    pub train: TrainConfig,
    pub method: Method,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataConfig {
    pub on_bad_image: OnBadImage,
    /// Only these classes, by name; all if there is none here.
    pub classes: Vec<String>,
    /// What is trained on.
    pub train: PartConfig,
    /// What is evaluated on, if anything.
    pub test: PartConfig,
    /// The annotations that a simulated split took away from `train`: pseudo labels are compared with them.
    #[serde(with = "off")]
    pub hidden: Option<PathBuf>,
}

/// One part of a data set on disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartConfig {
    /// A COCO JSON file, a YOLO `data.yaml`, or the folder of a COCO, VOC or YOLO data set; from the
    /// current folder.
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
    /// A model that lacuna made, with the detector's shape and as many classes.
    #[serde(with = "off")]
    pub model: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewsConfig {
    /// The short side of a view in training is drawn from `[shortest, longest]`.
    pub short_side: [u32; 2],
    pub long_side_max: u32,
    pub test_short_side: u32,
    pub test_long_side_max: u32,
    pub normalize: Normalization,
}

impl ViewsConfig {
    pub fn range(&self) -> ResizeRange {
        let [low, high] = self.short_side;
        ResizeRange { short_side: (low, high), long_side_max: self.long_side_max }
    }

    /// What the model is shown when it is tested and used.
    pub fn input(&self) -> InputConfig {
        InputConfig {
            short_side: self.test_short_side,
            long_side_max: self.test_long_side_max,
            resize: ResizeKind::Antialiased,
            normalize: self.normalize,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainConfig {
    pub seed: u64,
    pub iterations: u64,
    pub batch_size: usize,
    pub lr: f32,
    /// The iterations from which on the learning rate is `lr_decay` times what it was.
    pub lr_milestones: Vec<u64>,
    pub lr_decay: f32,
    /// So many iterations lead linearly from `warm_up_start` times the learning rate to the whole of it.
    pub warm_up_iterations: u64,
    pub warm_up_start: f32,
    pub momentum: f32,
    pub weight_decay: f32,
    /// All gradients together are shortened to this length.
    #[serde(with = "off")]
    pub gradient_norm_max: Option<f32>,
    pub normalization: LossNormalization,
    /// The threads that make batches.
    pub workers: usize,
    /// Iterations between lines of `metrics.jsonl`.
    pub log_every: u64,
    pub checkpoint_every: u64,
    /// Iterations between evaluations; there is one at the end in any case.
    #[serde(with = "off")]
    pub evaluate_every: Option<u64>,
}

/// How the student is taught.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum Method {
    Supervised(Supervised),
    Fixed(Fixed),
    Dynamic(Dynamic),
    Calibrated(Calibrated),
    Brl(Brl),
    #[serde(rename = "co-mining")]
    CoMining(CoMining),
    #[serde(rename = "unbiased-teacher")]
    UnbiasedTeacher(UnbiasedTeacher),
    Saod(Saod),
}

/// By the annotations alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Supervised {
    pub strong_view: bool,
    pub focal_iou: FocalIou,
}

/// Also by the teacher's detections whose score is above a fixed threshold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fixed {
    pub strong_view: bool,
    /// τ_s, of raw scores.
    pub threshold: f32,
    pub teacher: TeacherConfig,
    pub overlap: OverlapRule,
    pub focal_iou: FocalIou,
}

/// Also by the teacher's detections whose score is above a threshold that grows:
/// `τ_s = τ0 + (1 − τ0)·ln(e − e⁻)/ln(e⁺ − e⁻)` from epoch `e⁻ + 1` on, τ0 before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dynamic {
    pub strong_view: bool,
    /// τ0, of raw scores.
    pub threshold_start: f32,
    /// e⁻.
    pub epoch_start: f64,
    /// e⁺; those of the run, if not given.
    #[serde(with = "off")]
    pub epoch_end: Option<f64>,
    pub teacher: TeacherConfig,
    pub overlap: OverlapRule,
    pub focal_iou: FocalIou,
}

/// Calibrated Teacher: also by the teacher's detections whose calibrated confidence is above a threshold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibrated {
    pub strong_view: bool,
    /// τ_s, of confidences.
    pub confidence_min: f32,
    /// T.
    pub refit_every: u64,
    /// L.
    pub window_images: usize,
    pub before_first_fit: BeforeFirstFit,
    pub calibrator: CalibratorConfig,
    pub teacher: TeacherConfig,
    pub overlap: OverlapRule,
    pub focal_iou: FocalIou,
}

/// Background recalibration loss (Zhang et al., 2020): by the annotations alone, with little trust in background that is
/// far from all of them. For RetinaNet and FCOS.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Brl {
    pub strong_view: bool,
    /// A negative sample with a smaller IoU with every annotation may be an object.
    pub iou_max: f32,
    /// What its loss counts.
    pub weight: f32,
    /// Where the probability that it is background is below this, it is pulled to be an object instead.
    pub turn: f32,
}

/// Co-mining (Wang et al., 2021): also by what the detector itself finds in another view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoMining {
    /// The first iteration with pseudo labels.
    pub start_iteration: u64,
    /// Of raw scores.
    pub threshold: f32,
    /// No pseudo label overlaps an annotation of its class more than this.
    pub iou_max: f32,
}

/// Unbiased Teacher (Liu et al., 2021): also by a teacher's detections, which teach classes alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnbiasedTeacher {
    /// So many iterations by the annotations alone.
    pub burn_in: u64,
    /// After an iteration the teacher is `m·teacher + (1 − m)·student`.
    pub momentum: f32,
    /// Of raw scores.
    pub threshold: f32,
    /// What the loss of pseudo labels counts.
    pub weight: f32,
    /// Faster R-CNN: γ of the focal loss by which proposals are classified.
    pub gamma: f32,
}

/// SAOD, published as SparseDet (Suri et al., 2023): two views at once, of which the second also learns what was found in
/// the first; regions that look like objects nobody annotated are not learned as background. For Faster R-CNN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saod {
    /// The first iteration in which regions are mined.
    pub mining_start: u64,
    /// Mined regions are objects more surely than this,
    pub objectness_min: f32,
    /// overlap no annotation more than this,
    pub iou_max: f32,
    /// nor a surer one more than this.
    pub nms_iou_max: f32,
    /// What the distance of their features in the two views counts.
    pub weight: f32,
    /// Of raw scores: what is found in the first view becomes a target of the second.
    pub threshold: f32,
}

/// What makes confidences of the teacher's scores (φ_c).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratorConfig {
    pub kind: CalibratorKind,
    /// A class with detections enough has one of its own, the others that of all.
    pub per_class: bool,
}

/// What the pseudo labels are before the first successful fit of the calibrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BeforeFirstFit {
    /// None.
    Nothing,
    /// As the paper's algorithm starts: every score is its own confidence.
    Identity,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TeacherConfig {
    /// The first iteration with pseudo labels; before it the teacher is only judged.
    pub start_iteration: u64,
    /// Detections with a raw score not above this are not looked at.
    pub score_min: f32,
    /// After iteration t the teacher is `m·teacher + (1 − m)·student` with `m = min(this, 1 − 1/(t + 1))`.
    pub momentum_max: f32,
    /// Whether the boxes of pseudo labels are learned, or their classes alone.
    pub pseudo_boxes: bool,
}

/// `FIoU(iou) = w0 + k·(−α·iou^γ·ln(1 − iou))`, the weight of a negative sample's classification loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FocalIou {
    pub enabled: bool,
    pub start_iteration: u64,
    pub w0: f32,
    pub k: f32,
    pub alpha: f32,
    pub gamma: f32,
    /// Which box of a negative sample is compared with annotations and pseudo labels.
    pub iou_of: IouOf,
    /// Faster R-CNN: whether the anchors of its proposal network are weighted.
    pub rpn: bool,
    /// Faster R-CNN: whether its proposals are weighted.
    pub proposals: bool,
}

impl FocalIou {
    fn new(enabled: bool) -> Self {
        Self {
            enabled,
            start_iteration: 0,
            w0: 0.5,
            k: 1.5,
            alpha: 0.25,
            gamma: 2.0,
            iou_of: IouOf::Prediction,
            rpn: false,
            proposals: true,
        }
    }
}

impl Default for TeacherConfig {
    fn default() -> Self {
        Self { start_iteration: 0, score_min: 0.4, momentum_max: 0.999, pseudo_boxes: true }
    }
}

impl Method {
    pub const NAMES: [&str; 8] =
        ["supervised", "fixed", "dynamic", "calibrated", "brl", "co-mining", "unbiased-teacher", "saod"];

    /// The method with this name, as its paper has it; BRL, too, has a strong view, as the others have.
    pub fn named(name: &str) -> Option<Self> {
        let (teacher, overlap) = (TeacherConfig::default(), OverlapRule::default());
        let focal_iou = FocalIou::new(false);
        Some(match name {
            "supervised" => Self::Supervised(Supervised { strong_view: true, focal_iou }),
            "fixed" => Self::Fixed(Fixed { strong_view: true, threshold: 0.7, teacher, overlap, focal_iou }),
            "dynamic" => Self::Dynamic(Dynamic {
                strong_view: true,
                threshold_start: 0.5,
                epoch_start: 18.0,
                epoch_end: None,
                teacher,
                overlap,
                focal_iou,
            }),
            "calibrated" => Self::Calibrated(Calibrated {
                strong_view: true,
                confidence_min: 0.7,
                refit_every: 500,
                window_images: 8000,
                before_first_fit: BeforeFirstFit::Nothing,
                calibrator: CalibratorConfig { kind: CalibratorKind::Platt, per_class: false },
                teacher,
                overlap,
                focal_iou,
            }),
            "brl" => Self::Brl(Brl { strong_view: true, iou_max: 0.1, weight: 0.1, turn: 0.5 }),
            "co-mining" => Self::CoMining(CoMining { start_iteration: 0, threshold: 0.6, iou_max: 0.4 }),
            "unbiased-teacher" => Self::UnbiasedTeacher(UnbiasedTeacher {
                burn_in: 2000,
                momentum: 0.9996,
                threshold: 0.7,
                weight: 4.0,
                gamma: 1.5,
            }),
            "saod" => Self::Saod(Saod {
                mining_start: 30_000,
                objectness_min: 0.8,
                iou_max: 0.2,
                nms_iou_max: 0.3,
                weight: 1.0,
                threshold: 0.9,
            }),
            _ => return None,
        })
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Supervised(_) => "supervised",
            Self::Fixed(_) => "fixed",
            Self::Dynamic(_) => "dynamic",
            Self::Calibrated(_) => "calibrated",
            Self::Brl(_) => "brl",
            Self::CoMining(_) => "co-mining",
            Self::UnbiasedTeacher(_) => "unbiased-teacher",
            Self::Saod(_) => "saod",
        }
    }

    /// The views of each image that an iteration is given.
    pub fn views(&self, range: ResizeRange) -> Vec<Recipe> {
        let (weak, strong) = (Recipe::Weak(range), Recipe::Strong(range));
        let of_student = |strong_view: bool| if strong_view { strong } else { weak };
        match self {
            Self::Supervised(Supervised { strong_view, .. }) | Self::Brl(Brl { strong_view, .. }) => {
                vec![of_student(*strong_view)]
            }
            Self::Fixed(Fixed { strong_view, .. })
            | Self::Dynamic(Dynamic { strong_view, .. })
            | Self::Calibrated(Calibrated { strong_view, .. }) => vec![weak, of_student(*strong_view)],
            Self::CoMining(_) => vec![weak, Recipe::Follower(RecolorRange::CO_MINING)],
            Self::UnbiasedTeacher(_) => vec![weak, Recipe::Follower(RecolorRange::UNBIASED_TEACHER)],
            Self::Saod(_) => vec![weak, Recipe::Follower(RecolorRange::SAOD)],
        }
    }

    /// Whether there is an average of the students.
    pub fn has_teacher(&self) -> bool {
        match self {
            Self::Supervised(_) | Self::Brl(_) | Self::CoMining(_) | Self::Saod(_) => false,
            Self::Fixed(_) | Self::Dynamic(_) | Self::Calibrated(_) | Self::UnbiasedTeacher(_) => true,
        }
    }

    /// How much of the teacher stays after this iteration, where there is one.
    pub fn momentum(&self, iteration: u64) -> f32 {
        match self {
            Self::UnbiasedTeacher(method) => method.momentum(iteration),
            _ => self.teaching().map_or(0.0, |(teacher, _)| teacher.momentum(iteration)),
        }
    }

    /// The first iteration that may have pseudo labels, where there ever are any.
    pub fn first_pseudo_labels(&self) -> Option<u64> {
        match self {
            Self::Supervised(_) | Self::Brl(_) => None,
            Self::CoMining(method) => Some(method.start_iteration),
            Self::UnbiasedTeacher(method) => Some(method.burn_in),
            Self::Saod(_) => Some(0),
            _ => self.teaching().map(|(teacher, _)| teacher.start_iteration),
        }
    }

    pub fn focal_iou(&self) -> Option<FocalIou> {
        match self {
            Self::Supervised(method) => Some(method.focal_iou),
            Self::Fixed(method) => Some(method.focal_iou),
            Self::Dynamic(method) => Some(method.focal_iou),
            Self::Calibrated(method) => Some(method.focal_iou),
            Self::Brl(_) | Self::CoMining(_) | Self::UnbiasedTeacher(_) | Self::Saod(_) => None,
        }
    }

    /// The settings of a teacher whose detections are compared with the annotations, where there is one.
    pub fn teaching(&self) -> Option<(TeacherConfig, OverlapRule)> {
        match self {
            Self::Fixed(method) => Some((method.teacher, method.overlap)),
            Self::Dynamic(method) => Some((method.teacher, method.overlap)),
            Self::Calibrated(method) => Some((method.teacher, method.overlap)),
            Self::Supervised(_)
            | Self::Brl(_)
            | Self::CoMining(_)
            | Self::UnbiasedTeacher(_)
            | Self::Saod(_) => None,
        }
    }

    /// The methods that a detector of this kind can be trained by.
    fn names_for(detector: &DetectorConfig) -> Vec<&'static str> {
        // BRL is about the anchors of one stage, SAOD about the proposals of two.
        let other = if matches!(detector, DetectorConfig::FasterRcnn(_)) { "brl" } else { "saod" };
        Self::NAMES.into_iter().filter(|name| *name != other).collect()
    }
}

/// A key, and what it must be.
type Broken = (String, String);

impl RunConfig {
    /// The paper's run with this detector, backbone and method; where its data is remains to be said. As
    /// many detections are kept as COCO's evaluation looks at, and low scores, too.
    fn new(kind: DetectorKind, depth: Depth, mut method: Method) -> Self {
        if let (Method::CoMining(method), DetectorKind::Fcos) = (&mut method, kind) {
            // As its authors have it.
            method.threshold = 0.5;
        }
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
                let two_views = matches!(method, Method::Saod(_));
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

    fn post_process(&self) -> PostProcess {
        match &self.detector {
            DetectorConfig::RetinaNet(config) => config.post_process,
            DetectorConfig::Fcos(config) => config.post_process,
            DetectorConfig::FasterRcnn(config) => config.post_process,
        }
    }

    /// What is wrong with the values, first of all: the key, and what it must be.
    fn check(&self) -> Result<(), Broken> {
        let require = |holds: bool, key: &str, rule: &str| {
            if holds { Ok(()) } else { Err((key.to_owned(), format!("must be {rule}"))) }
        };
        let share = |value: f32| (0.0..=1.0).contains(&value);
        let positive = |value: f32| value > 0.0 && value.is_finite();

        require(self.data.train.path.is_some(), "data.train.path", "given: the annotations to train on")?;

        self.detector
            .check()
            .map_err(|error| (format!("detector.{}", error.field), format!("must be {}", error.rule)))?;
        let StartConfig { backbone, model } = &self.start;
        require(
            backbone.is_none() || model.is_none(),
            "start.model",
            "\"off\" where `start.backbone` is not",
        )?;
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
        )?;

        let ViewsConfig { short_side: [low, high], long_side_max, .. } = self.views;
        let sides = 1..=16384;
        let ordered = sides.contains(&low) && low <= high && high <= long_side_max;
        require(ordered, "views.short_side", "two sizes, ascending, from 1 to `views.long_side_max`")?;
        require(sides.contains(&long_side_max), "views.long_side_max", "from 1 to 16384")?;
        let input = self.views.input();
        require(
            sides.contains(&input.short_side) && input.short_side <= input.long_side_max,
            "views.test_short_side",
            "from 1 to `views.test_long_side_max`",
        )?;
        require(sides.contains(&input.long_side_max), "views.test_long_side_max", "from 1 to 16384")?;

        let names = Method::names_for(&self.detector);
        let known = names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        require(
            names.contains(&self.method.name()),
            "method.name",
            &format!("one that this detector can be trained by: {known}"),
        )?;
        if let DetectorConfig::FasterRcnn(FasterRcnnConfig { two_views, .. }) = self.detector {
            let fits = two_views || !matches!(self.method, Method::Saod(_));
            require(fits, "detector.two_views", "true with SAOD")?;
        }
        self.train.check(&require)?;
        if let Some((TeacherConfig { score_min, momentum_max, .. }, overlap)) = self.method.teaching() {
            let floor = self.post_process().score_min;
            let above = (floor..1.0).contains(&score_min);
            require(above, "method.teacher.score_min", "from `detector.post_process.score_min` to below 1")?;
            require((0.0..1.0).contains(&momentum_max), "method.teacher.momentum_max", "from 0 to below 1")?;
            let OverlapRule { iou_low, iou_high, cross_class_iou, candidate_iou, containment, min_side } =
                overlap;
            require(share(iou_low) && iou_low > 0.0, "method.overlap.iou_low", "above 0, up to 1")?;
            require(
                share(iou_high) && iou_low <= iou_high,
                "method.overlap.iou_high",
                "from `iou_low` to 1",
            )?;
            require(
                cross_class_iou.is_none_or(share),
                "method.overlap.cross_class_iou",
                "from 0 to 1, or \"off\"",
            )?;
            require(
                candidate_iou.is_none_or(share),
                "method.overlap.candidate_iou",
                "from 0 to 1, or \"off\"",
            )?;
            require(containment.is_none_or(share), "method.overlap.containment", "from 0 to 1, or \"off\"")?;
            let sides = min_side.is_none_or(|side| side >= 0.0 && side.is_finite());
            require(sides, "method.overlap.min_side", "0 or more pixels, or \"off\"")?;
        }
        match &self.method {
            Method::Supervised(_) => {}
            Method::Fixed(method) => {
                let floor = method.teacher.score_min;
                let above = share(method.threshold) && method.threshold >= floor;
                require(above, "method.threshold", "from `method.teacher.score_min` to 1")?;
            }
            Method::Dynamic(method) => {
                let floor = method.teacher.score_min;
                let above = share(method.threshold_start) && method.threshold_start >= floor;
                require(above, "method.threshold_start", "from `method.teacher.score_min` to 1")?;
                let start = method.epoch_start;
                require(start >= 0.0 && start.is_finite(), "method.epoch_start", "0 or more")?;
                let end = method.epoch_end.is_none_or(|end| end > start + 1.0 && end.is_finite());
                require(end, "method.epoch_end", "more than 1 above `epoch_start`, or \"off\"")?;
            }
            Method::Calibrated(method) => {
                let below = (0.0..1.0).contains(&method.confidence_min);
                require(below, "method.confidence_min", "from 0 to below 1")?;
                require(method.refit_every > 0, "method.refit_every", "1 at least")?;
                require(method.window_images > 0, "method.window_images", "1 at least")?;
            }
            Method::Brl(method) => {
                for (key, value) in
                    [("iou_max", method.iou_max), ("weight", method.weight), ("turn", method.turn)]
                {
                    require(share(value), &format!("method.{key}"), "from 0 to 1")?;
                }
            }
            Method::CoMining(method) => {
                let floor = self.post_process().score_min;
                let above = (floor..1.0).contains(&method.threshold);
                require(above, "method.threshold", "from `detector.post_process.score_min` to below 1")?;
                require(share(method.iou_max), "method.iou_max", "from 0 to 1")?;
            }
            Method::UnbiasedTeacher(method) => {
                let floor = self.post_process().score_min;
                let above = (floor..1.0).contains(&method.threshold);
                require(above, "method.threshold", "from `detector.post_process.score_min` to below 1")?;
                require((0.0..1.0).contains(&method.momentum), "method.momentum", "from 0 to below 1")?;
                let weight = method.weight >= 0.0 && method.weight.is_finite();
                require(weight, "method.weight", "0 or more")?;
                require(method.gamma >= 0.0 && method.gamma.is_finite(), "method.gamma", "0 or more")?;
            }
            Method::Saod(method) => {
                for (key, value) in [
                    ("objectness_min", method.objectness_min),
                    ("iou_max", method.iou_max),
                    ("nms_iou_max", method.nms_iou_max),
                    ("threshold", method.threshold),
                ] {
                    require(share(value), &format!("method.{key}"), "from 0 to 1")?;
                }
                let weight = method.weight >= 0.0 && method.weight.is_finite();
                require(weight, "method.weight", "0 or more")?;
            }
        }
        let Some(FocalIou { w0, k, alpha, gamma, .. }) = self.method.focal_iou() else { return Ok(()) };
        for (key, value) in [("w0", w0), ("k", k), ("alpha", alpha)] {
            let holds = value >= 0.0 && value.is_finite();
            require(holds, &format!("method.focal_iou.{key}"), "0 or more")?;
        }
        require(positive(gamma), "method.focal_iou.gamma", "positive")
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

    fn check(&self, require: &dyn Fn(bool, &str, &str) -> Result<(), Broken>) -> Result<(), Broken> {
        let positive = |value: f32| value > 0.0 && value.is_finite();
        require(self.iterations > 0, "train.iterations", "1 at least")?;
        require((1..=4096).contains(&self.batch_size), "train.batch_size", "from 1 to 4096")?;
        require(positive(self.lr), "train.lr", "positive")?;
        let ascending = self.lr_milestones.is_sorted_by(|a, b| a < b);
        require(ascending, "train.lr_milestones", "ascending")?;
        require(positive(self.lr_decay) && self.lr_decay <= 1.0, "train.lr_decay", "above 0, up to 1")?;
        require((0.0..=1.0).contains(&self.warm_up_start), "train.warm_up_start", "from 0 to 1")?;
        require((0.0..1.0).contains(&self.momentum), "train.momentum", "from 0 to below 1")?;
        let decay = self.weight_decay >= 0.0 && self.weight_decay.is_finite();
        require(decay, "train.weight_decay", "0 or more")?;
        let norm = self.gradient_norm_max.is_none_or(positive);
        require(norm, "train.gradient_norm_max", "positive, or \"off\"")?;
        require((1..=256).contains(&self.workers), "train.workers", "from 1 to 256")?;
        require(self.log_every > 0, "train.log_every", "1 at least")?;
        require(self.checkpoint_every > 0, "train.checkpoint_every", "1 at least")?;
        let every = self.evaluate_every.is_none_or(|every| every > 0);
        require(every, "train.evaluate_every", "1 at least, or \"off\"")
    }
}
