//! Checkpoints: reads and writes parameters under torchvision's names.
//!
//! Modules have PyTorch's field names, so that the path of a parameter is its name in a checkpoint
//! (`Names` has the exceptions). Layouts change here and nowhere else: PyTorch's convolution weights
//! are `[K, C, k, k]`, ours `[k, k, C, K]`, and so on (`Layout`).

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use burn::Tensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, TensorData};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, View};

use crate::anchors::AnchorConfig;
use crate::detector::{Detector, DetectorConfig, DetectorConfigError, DetectorKind};
use crate::faster_rcnn::{FasterRcnnConfig, ROI_SIZE};
use crate::fcos::FcosConfig;
use crate::fpn::ExtraLevels;
use crate::ops;
use crate::resnet::ResNetConfig;
use crate::retinanet::RetinaNetConfig;

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Each message describes its variant.
pub enum WeightsError {
    #[error("cannot read {path}: {source}")]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a checkpoint: {why}")]
    NotACheckpoint { path: PathBuf, why: String },
    #[error("{path}: tensor `{name}` holds {kind}, not floating-point numbers")]
    Kind { path: PathBuf, name: String, kind: String },
    #[error("{path}: tensor `{name}` has a value that is not finite")]
    NotFinite { path: PathBuf, name: String },
    #[error("{path} has no tensor `{name}`, which every {detector} has")]
    OtherArchitecture { path: PathBuf, name: String, detector: &'static str },
    #[error("{path} has a tensor `{name}`, which no {detector} has")]
    Unlike { path: PathBuf, name: String, detector: &'static str },
    #[error("{path}: a variance in `{name}` is not positive, so that the norm divides by 0 or has no root")]
    Variance { path: PathBuf, name: String },
    #[error("{path} is of {found} classes, not {asked}: `{name}` has {rows} rows")]
    Classes { path: PathBuf, name: String, rows: usize, found: String, asked: usize },
    #[error("{path} is of a detector that cannot be: {source}")]
    Config { path: PathBuf, source: DetectorConfigError },
    #[error("{path} does not fit the model:{0}", path = .0.path)]
    Mismatch(Box<Mismatch>),
}

impl WeightsError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotACheckpoint { .. } => {
                "weights are read from `.safetensors` files and from what `torch.save(model.state_dict(), …)` writes"
            }
            Self::OtherArchitecture { .. } | Self::Unlike { .. } | Self::Mismatch(_) => {
                "the detector and the backbone must be those that the checkpoint was made with"
            }
            Self::Classes { .. } => "classes count objects only: background is not one of them",
            Self::Unreadable { .. } | Self::Kind { .. } | Self::NotFinite { .. } | Self::Config { .. } | Self::Variance { .. } => return None,
        }
        .to_owned())
    }
}

/// How a checkpoint differs from what a model needs.
#[derive(Debug)]
pub struct Mismatch {
    /// The checkpoint.
    pub path: String,
    /// What the model needs and the checkpoint lacks.
    pub missing: Vec<String>,
    /// What the checkpoint has and the model does not know.
    pub unexpected: Vec<String>,
    /// Name, the model's shape, the checkpoint's.
    pub shapes: Vec<(String, Vec<usize>, Vec<usize>)>,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        for (what, names) in [("missing", &self.missing), ("unexpected", &self.unexpected)] {
            for name in names {
                write!(f, "\n  {what}: {name}")?;
            }
        }
        for (name, model, checkpoint) in &self.shapes {
            write!(f, "\n  shape: {name} is {checkpoint:?}, the model's {model:?}")?;
        }
        Ok(())
    }
}

/// The tensors of a checkpoint by PyTorch's names, in its layouts.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    tensors: BTreeMap<String, Stored>,
}

#[derive(Clone, Debug)]
struct Stored {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Checkpoint {
    /// A safetensors file, or one that PyTorch saved, known by its first bytes; numbers of 16, 32 or 64
    /// bits. Of a training script's file only the weights are read.
    pub fn read(path: &Path) -> Result<Self, WeightsError> {
        let unreadable = |source| WeightsError::Unreadable { path: path.to_owned(), source };
        let mut start = Vec::new();
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(9).read_to_end(&mut start).map_err(unreadable)?;
        // A safetensors file is the length of its header and the header, which is JSON.
        let stored = if start.get(8) == Some(&b'{') { read_safetensors(path) } else { read_pytorch(path) }?;
        // FCOS has a tensor of its own, and never had other names.
        let is_fcos = stored.keys().any(|name| name.contains("bbox_ctrness"));
        let mut tensors = BTreeMap::new();
        for (name, tensor) in stored {
            let renamed = if is_fcos { None } else { modern(&name) };
            let modern = renamed.unwrap_or_else(|| name.clone());
            if tensors.insert(modern.clone(), tensor).is_some() {
                return Err(not_a_checkpoint(
                    path,
                    format!("two of its tensors are `{modern}`, one named `{name}`"),
                ));
            }
        }
        Ok(Self { path: path.to_owned(), tensors })
    }

    /// The shape of a tensor, in PyTorch's layout.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|stored| &*stored.shape)
    }

    /// Fills the parameters below `prefix` (or all, if it is empty) of `detector` from this checkpoint, in
    /// which they have no such prefix.
    fn fill(self, detector: Detector, prefix: &str, ignored: &[&str]) -> Result<Detector, WeightsError> {
        let path = self.path;
        let mut filler = Filler {
            names: Names::for_detector(&detector),
            prefix: prefix.to_owned(),
            tensors: self.tensors,
            mismatch: Mismatch {
                path: path.display().to_string(),
                missing: Vec::new(),
                unexpected: Vec::new(),
                shapes: Vec::new(),
            },
            not_finite: None,
        };
        let detector = detector.map(&mut filler);
        let Filler { tensors, mut mismatch, not_finite, .. } = filler;
        let known = |name: &String| ignored.iter().any(|ignored| name.starts_with(ignored));
        mismatch.unexpected = tensors.into_keys().filter(|name| !known(name)).collect();
        if !(mismatch.missing.is_empty() && mismatch.unexpected.is_empty() && mismatch.shapes.is_empty()) {
            return Err(WeightsError::Mismatch(Box::new(mismatch)));
        }
        match not_finite {
            Some(name) => Err(WeightsError::NotFinite { path, name }),
            None => Ok(detector),
        }
    }

    /// The detector with this shape and these weights.
    pub fn into_detector(self, config: &DetectorConfig, device: &Device) -> Result<Detector, WeightsError> {
        config.check().map_err(|source| WeightsError::Config { path: self.path.clone(), source })?;
        // What a norm divides by is the root of this.
        let epsilon = config.backbone().norm_epsilon;
        let variances = self.tensors.iter().filter(|(name, _)| name.ends_with("running_var"));
        for (name, Stored { values, .. }) in variances {
            if values.iter().any(|&variance| f64::from(variance) + epsilon <= 0.0) {
                return Err(WeightsError::Variance { path: self.path, name: name.clone() });
            }
        }
        self.into_weights_of(config.empty(device))
    }

    /// `detector` with these weights in place of its own.
    pub fn into_weights_of(self, detector: Detector) -> Result<Detector, WeightsError> {
        self.fill(detector, "", &[])
    }

    /// `detector` with its backbone's body from an ImageNet classifier.
    pub fn into_backbone_of(self, detector: Detector) -> Result<Detector, WeightsError> {
        self.fill(detector, "backbone.body.", &["fc."])
    }
}

impl DetectorConfig {
    /// The shape of the torchvision detector that a checkpoint is of: widths and depths as its tensors
    /// say, everything else torchvision's.
    pub fn of_checkpoint(
        checkpoint: &Checkpoint,
        kind: DetectorKind,
        backbone: ResNetConfig,
        n_classes: usize,
    ) -> Result<Self, WeightsError> {
        let detector = match kind {
            DetectorKind::RetinaNet => "RetinaNet",
            DetectorKind::Fcos => "FCOS",
            DetectorKind::FasterRcnn => "Faster R-CNN",
        };
        let path = || checkpoint.path.clone();
        let shape = |name: &str| {
            let missing =
                || WeightsError::OtherArchitecture { path: path(), name: name.to_owned(), detector };
            checkpoint.shape(name).filter(|shape| !shape.is_empty()).ok_or_else(missing)
        };
        // The rows that predict classes are so many per class, and in a row of its own, if any, background.
        let check_classes = |name: &str, per_class: usize, background: usize| {
            let rows = shape(name)?[0];
            if rows == per_class * (n_classes + background) {
                return Ok(());
            }
            let found = match (rows.is_multiple_of(per_class), rows / per_class) {
                (true, classes) if classes > background => (classes - background).to_string(),
                _ => "an unknown number of".to_owned(),
            };
            Err(WeightsError::Classes { path: path(), name: name.to_owned(), rows, found, asked: n_classes })
        };
        let unlike = |name: &str| WeightsError::Unlike { path: path(), name: name.to_owned(), detector };
        const OF_FCOS: &str = "head.regression_head.bbox_ctrness.weight";
        match kind {
            DetectorKind::RetinaNet if checkpoint.shape(OF_FCOS).is_some() => return Err(unlike(OF_FCOS)),
            DetectorKind::Fcos => drop(shape(OF_FCOS)?),
            _ => {}
        }
        let width = shape("backbone.fpn.layer_blocks.0.0.weight")?[0];
        let extra_levels = || {
            let p6 = shape("backbone.fpn.extra_blocks.p6.weight")?;
            Ok(if p6.get(1) == Some(&width) { ExtraLevels::P5 } else { ExtraLevels::C5 })
        };
        let layers =
            |name: fn(usize) -> String| (0..).take_while(|&i| checkpoint.shape(&name(i)).is_some()).count();
        Ok(match kind {
            DetectorKind::RetinaNet => {
                let anchors = AnchorConfig::retinanet().per_location();
                check_classes("head.classification_head.cls_logits.weight", anchors, 0)?;
                Self::RetinaNet(RetinaNetConfig {
                    width,
                    head_depth: layers(|i| format!("head.classification_head.conv.{i}.0.weight")),
                    extra_levels: extra_levels()?,
                    ..RetinaNetConfig::new(n_classes, backbone)
                })
            }
            DetectorKind::Fcos => {
                check_classes("head.classification_head.cls_logits.weight", 1, 0)?;
                Self::Fcos(FcosConfig {
                    width,
                    head_depth: layers(|i| format!("head.classification_head.conv.{}.weight", 3 * i)),
                    extra_levels: extra_levels()?,
                    ..FcosConfig::new(n_classes, backbone)
                })
            }
            DetectorKind::FasterRcnn => {
                check_classes("roi_heads.box_predictor.cls_score.weight", 1, 1)?;
                Self::FasterRcnn(FasterRcnnConfig {
                    width,
                    head_width: shape("roi_heads.box_head.fc6.weight")?[0],
                    ..FasterRcnnConfig::new(n_classes, backbone)
                })
            }
        })
    }
}

/// The bytes of a `.safetensors` file that loads into torchvision's model of the same shape.
pub fn to_safetensors(detector: &Detector) -> Vec<u8> {
    let mut collector = Collector::new(detector, None);
    detector.visit(&mut collector);
    let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
    safetensors::serialize(collector.tensors, metadata).expect("names are unique and sizes agree")
}

/// The gradients of a detector's trained parameters, with the names and layouts of a checkpoint: for
/// looking at what a loss does.
pub fn named_gradients(detector: &Detector, gradients: &Gradients) -> BTreeMap<String, Vec<f32>> {
    let mut collector = Collector::new(detector, Some(gradients));
    detector.visit(&mut collector);
    collector.tensors.into_iter().map(|(name, stored)| (name, stored.values)).collect()
}

fn not_a_checkpoint(path: &Path, why: impl std::fmt::Display) -> WeightsError {
    WeightsError::NotACheckpoint { path: path.to_owned(), why: why.to_string() }
}

fn read_safetensors(path: &Path) -> Result<BTreeMap<String, Stored>, WeightsError> {
    let unreadable = |source| WeightsError::Unreadable { path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(unreadable)?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| not_a_checkpoint(path, error))?;
    let prefix = wrapping(file.names().into_iter());
    let wanted = file.iter().filter_map(|(name, tensor)| Some((parameter(name, &prefix)?, tensor)));
    wanted
        .map(|(name, tensor)| {
            let values = match tensor.dtype() {
                Dtype::F16 => floats(tensor.data(), |bytes| f16::from_le_bytes(bytes).to_f32()),
                Dtype::BF16 => floats(tensor.data(), |bytes| bf16::from_le_bytes(bytes).to_f32()),
                Dtype::F32 => floats(tensor.data(), f32::from_le_bytes),
                Dtype::F64 => floats(tensor.data(), |bytes| f64::from_le_bytes(bytes) as f32),
                other => return Err(wrong_kind(path, name, &other)),
            };
            Ok((name.to_owned(), Stored { shape: tensor.shape().to_vec(), values }))
        })
        .collect()
}

fn read_pytorch(path: &Path) -> Result<BTreeMap<String, Stored>, WeightsError> {
    use pytorch_reader::DType;
    let reader = pytorch_reader::PytorchReader::new(path).map_err(|error| not_a_checkpoint(path, error))?;
    let tensors = reader.into_tensors();
    let prefix = wrapping(tensors.keys().map(String::as_str));
    let wanted = tensors.iter().filter_map(|(name, tensor)| Some((parameter(name, &prefix)?, tensor)));
    wanted
        .map(|(name, tensor)| {
            let bytes =
                tensor.read().map_err(|error| not_a_checkpoint(path, format!("`{name}`: {error}")))?;
            let values = match tensor.dtype() {
                DType::F16 => floats(&bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
                DType::BF16 => floats(&bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
                DType::F32 => floats(&bytes, f32::from_le_bytes),
                DType::F64 => floats(&bytes, |bytes| f64::from_le_bytes(bytes) as f32),
                other => return Err(wrong_kind(path, name, &other)),
            };
            Ok((name.to_owned(), Stored { shape: tensor.shape().to_vec(), values }))
        })
        .collect()
}

fn wrong_kind(path: &Path, name: &str, kind: &dyn std::fmt::Debug) -> WeightsError {
    WeightsError::Kind { path: path.to_owned(), name: name.to_owned(), kind: format!("{kind:?}") }
}

fn floats<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks::<N>().0.iter().map(|&bytes| value(bytes)).collect()
}

/// What training scripts put before the names of weights, which they save beside other things.
fn wrapping<'a>(names: impl Iterator<Item = &'a str> + Clone) -> String {
    let mut prefix = String::new();
    let has = |prefix: &str, next: &str| {
        names.clone().any(|name| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(next)))
    };
    while let Some(next) = ["model.", "state_dict.", "module."].into_iter().find(|next| has(&prefix, next)) {
        prefix.push_str(next);
    }
    prefix
}

/// The name of a weight without the wrapping. Batch norm's counter of batches is none: no one uses it.
fn parameter<'a>(name: &'a str, wrapping: &str) -> Option<&'a str> {
    name.strip_prefix(wrapping).filter(|name| !name.ends_with("num_batches_tracked"))
}

/// The name that torchvision gives today to what it called `name` before.
fn modern(name: &str) -> Option<String> {
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["backbone", "fpn", blocks @ ("inner_blocks" | "layer_blocks"), level, leaf] => {
            Some(format!("backbone.fpn.{blocks}.{level}.0.{leaf}"))
        }
        ["rpn", "head", "conv", leaf] => Some(format!("rpn.head.conv.0.0.{leaf}")),
        // RetinaNet's heads were one list of convolution and ReLU in turn.
        ["head", head, "conv", place, leaf] => {
            let place: usize = place.parse().ok().filter(|place| place % 2 == 0)?;
            Some(format!("head.{head}.conv.{}.0.{leaf}", place / 2))
        }
        _ => None,
    }
}

/// The name of a parameter, kept up to date on the way through a module.
struct Names {
    path: Vec<String>,
    /// FCOS's heads are one list of convolution, norm and ReLU in turn; ours are pairs.
    fcos: bool,
}

impl Names {
    fn for_detector(detector: &Detector) -> Self {
        Self { path: Vec::new(), fcos: matches!(detector, Detector::Fcos(_)) }
    }

    fn enter(&mut self, name: &str, container: &str) {
        // A variant is not a part of the name.
        self.path.push(if container.starts_with("Enum:") { String::new() } else { name.to_owned() });
    }

    fn exit(&mut self) {
        self.path.pop();
    }

    fn name(&self) -> String {
        let parts: Vec<&str> = self.path.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        match parts[..] {
            ["head", head, "conv", pair, part, leaf] if self.fcos => {
                let number = |digits: &str| digits.parse::<usize>().expect("the place in a list");
                format!("head.{head}.conv.{}.{leaf}", 3 * number(pair) + number(part))
            }
            _ => parts.join("."),
        }
    }
}

/// What a parameter is, which decides how PyTorch lays it out.
enum Layout {
    /// `[k, k, C, K]` of ours is `[K, C, k, k]`.
    Conv,
    /// `[inputs, outputs]` of ours is `[outputs, inputs]`.
    Linear,
    /// As [`Layout::Linear`], the inputs being pixels of a region: ours come as `[y, x, C]`, PyTorch's
    /// as `[C, y, x]`.
    Regions,
    /// The same in both.
    Vector,
}

impl Layout {
    fn for_parameter(name: &str, rank: usize) -> Self {
        match rank {
            4 => Self::Conv,
            2 if name == "roi_heads.box_head.fc6.weight" => Self::Regions,
            2 => Self::Linear,
            _ => Self::Vector,
        }
    }

    /// PyTorch's shape of ours.
    fn shape(&self, ours: &[usize]) -> Vec<usize> {
        match (self, ours) {
            (Self::Conv, &[height, width, inputs, outputs]) => vec![outputs, inputs, height, width],
            (Self::Linear | Self::Regions, &[inputs, outputs]) => vec![outputs, inputs],
            _ => ours.to_vec(),
        }
    }

    /// A matrix product's shape: our tensor as `[pixels, channels, outputs]`, PyTorch's as
    /// `[outputs, channels, pixels]`.
    fn matrix(&self, ours: &[usize]) -> [usize; 3] {
        match (self, ours) {
            (Self::Conv, &[height, width, inputs, outputs]) => [height * width, inputs, outputs],
            (Self::Linear, &[inputs, outputs]) => [1, inputs, outputs],
            (Self::Regions, &[inputs, outputs]) => {
                [ROI_SIZE * ROI_SIZE, inputs / (ROI_SIZE * ROI_SIZE), outputs]
            }
            _ => [1, 1, ours.iter().product()],
        }
    }

    fn pytorchs_values(&self, ours: &[usize], values: &[f32]) -> Vec<f32> {
        let [pixels, channels, outputs] = self.matrix(ours);
        reversed(values, [pixels, channels, outputs])
    }

    fn our_values(&self, ours: &[usize], values: &[f32]) -> Vec<f32> {
        let [pixels, channels, outputs] = self.matrix(ours);
        reversed(values, [outputs, channels, pixels])
    }
}

/// `[a, b, c]` → `[c, b, a]`.
fn reversed(values: &[f32], [a, b, c]: [usize; 3]) -> Vec<f32> {
    let mut result = Vec::with_capacity(values.len());
    for z in 0..c {
        for y in 0..b {
            result.extend((0..a).map(|x| values[(x * b + y) * c + z]));
        }
    }
    result
}

/// Takes each parameter's values out of a checkpoint.
struct Filler {
    names: Names,
    prefix: String,
    tensors: BTreeMap<String, Stored>,
    mismatch: Mismatch,
    not_finite: Option<String>,
}

impl ModuleMapper for Filler {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.names.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.names.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let full = self.names.name();
        let Some(name) = full.strip_prefix(&self.prefix) else { return param };
        let Some(Stored { shape, values }) = self.tensors.remove(name) else {
            self.mismatch.missing.push(name.to_owned());
            return param;
        };
        // The shape alone: a configuration may ask for more than there is memory for.
        let ours: [usize; D] = param.lazy_shape().dims();
        let layout = Layout::for_parameter(&full, D);
        let wanted = layout.shape(&ours);
        if wanted != shape {
            self.mismatch.shapes.push((name.to_owned(), wanted, shape));
            return param;
        }
        if values.iter().any(|value| !value.is_finite()) && self.not_finite.is_none() {
            self.not_finite = Some(name.to_owned());
        }
        let values = layout.our_values(&ours, &values);
        let (id, new) = (param.id, Tensor::from_data(TensorData::new(values, ours), &param.lazy_device()));
        param.transform_for_load(new, id)
    }
}

/// Collects parameters, or the gradients of those that have one, in PyTorch's layouts.
struct Collector<'a> {
    names: Names,
    gradients: Option<&'a Gradients>,
    tensors: Vec<(String, Stored)>,
}

impl<'a> Collector<'a> {
    fn new(detector: &Detector, gradients: Option<&'a Gradients>) -> Self {
        Self { names: Names::for_detector(detector), gradients, tensors: Vec::new() }
    }
}

impl ModuleVisitor for Collector<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.names.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.names.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = match self.gradients {
            None => param.val(),
            Some(gradients) => match param.val().grad(gradients) {
                Some(gradient) => gradient,
                None => return,
            },
        };
        let (name, ours) = (self.names.name(), param.dims());
        let layout = Layout::for_parameter(&name, D);
        let values = layout.pytorchs_values(&ours, &ops::values(value));
        self.tensors.push((name, Stored { shape: layout.shape(&ours), values }));
    }
}

impl View for Stored {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        self.values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>().into()
    }

    fn data_len(&self) -> usize {
        4 * self.values.len()
    }
}
