//! A model on disk: a folder with `model.toml` (the detector's shape, its input, its categories) and
//! `model.safetensors` (the weights, with torchvision's names).

use std::path::{Path, PathBuf};

use burn::Tensor;
use burn::module::Module;
use burn::tensor::{Device, TensorData};
use lacuna_boxes::{Affine, Detection};
use lacuna_calib::Calibrator;
use lacuna_data::augment::{RecolorRange, Resize, Resizer, bilinear};
use lacuna_data::batch::{Normalization, SIZE_DIVISOR};
use lacuna_data::decode::RgbImage;
use lacuna_data::output::{IfExists, NewFolder};
use lacuna_models::weights::{Checkpoint, WeightsError, to_safetensors};
use lacuna_models::{Detector, DetectorConfig, Images};
use lacuna_random::{Purpose, Rng};
use serde::{Deserialize, Serialize};

const CONFIG: &str = "model.toml";
pub(crate) const WEIGHTS: &str = "model.safetensors";

/// Why a model cannot be read or used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The folder does not hold a model.
    #[error("{path} is not a model: {why}")]
    NotAModel {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Its classes are not those of the data that it is to be trained on.
    #[error("the classes of {path} are {}, those of the data {}", model.join(", "), data.join(", "))]
    OtherClasses {
        /// The folder of the model.
        path: PathBuf,
        /// The model's classes.
        model: Vec<String>,
        /// The data's classes.
        data: Vec<String>,
    },
    /// Its weights are wrong.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

/// What `model.toml` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The shape of the detector.
    pub detector: DetectorConfig,
    /// How an image becomes its input.
    pub input: InputConfig,
    /// Turns its scores into confidences, if it was trained with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrator: Option<Calibrator>,
    /// One for each class of the detector, in order.
    pub categories: Vec<ModelCategory>,
}

impl ModelConfig {
    /// Reads the `model.toml` of a folder.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        let not_a_model = |why: String| ModelError::NotAModel { path: folder.to_owned(), why };
        let path = folder.join(CONFIG);
        let text =
            std::fs::read_to_string(&path).map_err(|error| not_a_model(format!("{CONFIG}: {error}")))?;
        let config: Self = toml::from_str(&text)
            .map_err(|error| not_a_model(format!("{CONFIG}: {}", error.to_string().trim_end())))?;
        config.detector.check().map_err(|error| not_a_model(format!("{CONFIG}: {error}")))?;
        config.input.check().map_err(|rule| not_a_model(format!("{CONFIG}: {rule}")))?;
        let (classes, categories) = (config.detector.n_classes(), config.categories.len());
        if classes != categories {
            return Err(not_a_model(format!("{CONFIG} has {classes} classes but {categories} categories")));
        }
        Ok(config)
    }

    /// Whether its classes have names, not only the numbers that its weights came with.
    pub fn has_names(&self) -> bool {
        self.categories.iter().any(|category| category.name != category.id.to_string())
    }
}

/// A class of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelCategory {
    /// Its id in results.
    pub id: u64,
    /// Its name.
    pub name: String,
}

/// How an image becomes the input of a detector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputConfig {
    /// The short side, unless the long side would exceed its maximum.
    pub short_side: u32,
    /// The long side, at most.
    pub long_side_max: u32,
    /// The way to resize.
    pub resize: ResizeKind,
    /// What the backbone's weights expect.
    pub normalize: Normalization,
}

/// A way to resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResizeKind {
    /// Sides rounded to the nearest pixel, antialiased: as in training here.
    Antialiased,
    /// Sides rounded down, bilinear between the four nearest pixels: as in torchvision's detectors.
    Torchvision,
}

impl InputConfig {
    /// What torchvision's detectors do by default.
    pub const TORCHVISION: Self = Self {
        short_side: 800,
        long_side_max: 1333,
        resize: ResizeKind::Torchvision,
        normalize: Normalization::Torchvision,
    };

    /// What is wrong with the sizes, if anything.
    pub fn check(&self) -> Result<(), &'static str> {
        let sizes = 1..=16384;
        let fits = sizes.contains(&self.short_side) && sizes.contains(&self.long_side_max);
        if fits && self.short_side <= self.long_side_max {
            return Ok(());
        }
        Err("the short side must be from 1 to 16384, and not longer than the long side")
    }

    /// One image as a batch on `device`. A detector of two views also gets it recolored: a draw of
    /// [`RecolorRange::SAOD`] that is the same for all images.
    pub fn images(&self, image: &RgbImage, two_views: bool, device: &Device) -> Images {
        let resize = Resize { short_side: self.short_side, long_side_max: self.long_side_max };
        let size = match self.resize {
            ResizeKind::Antialiased => resize.view_size(image.size()),
            ResizeKind::Torchvision => resize.view_size_of_torchvision(image.size()),
        };
        let resized = || Resizer::default().resize(image, size);
        let pixels = match self.resize {
            ResizeKind::Antialiased => self.tensor(resized().pixels(), size, device),
            ResizeKind::Torchvision => self.tensor(&bilinear(image, size), size, device),
        };
        let second_view = two_views.then(|| {
            let mut view = resized();
            let mut rng = Rng::new(Purpose::View { recipe: 1 }, 0, 0, 0);
            RecolorRange::SAOD.draw(size, &mut rng).apply(&mut view);
            self.tensor(view.pixels(), size, device)
        });
        let to_view = vec![Affine::resize(image.size(), size)];
        Images { pixels, second_view, sizes: vec![size], to_view }
    }

    /// Normalized, with zeros to the right and below.
    fn tensor<T: Copy + Into<f32>>(&self, levels: &[T], size: (u32, u32), device: &Device) -> Tensor<4> {
        let [width, height] = [size.0, size.1].map(|side| side.next_multiple_of(SIZE_DIVISOR) as usize);
        let row = 3 * size.0 as usize;
        let mut pixels = vec![0.0; height * width * 3];
        let rows = pixels.chunks_exact_mut(3 * width).map(|out| &mut out[..row]);
        rows.zip(levels.chunks_exact(row)).for_each(|(out, levels)| self.normalize.row(levels, out));
        Tensor::from_data(TensorData::new(pixels, [1, height, width, 3]), device)
    }
}

/// The files of a model's folder, with their bytes.
pub(crate) fn files(detector: &Detector, config: &ModelConfig) -> Vec<(&'static str, Vec<u8>)> {
    let text = toml::to_string(config).expect("every configuration can be written as TOML");
    vec![(CONFIG, text.into_bytes()), (WEIGHTS, to_safetensors(detector))]
}

/// A detector with everything that is needed to use it.
#[derive(Debug)]
pub struct Model {
    /// What `model.toml` says.
    pub config: ModelConfig,
    /// On a plain device.
    pub detector: Detector,
}

impl Model {
    /// The files of a model's folder.
    pub fn files(folder: &Path) -> [PathBuf; 2] {
        [CONFIG, WEIGHTS].map(|name| folder.join(name))
    }

    /// Reads the model of a folder.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        let config = ModelConfig::read(folder)?;
        Self::from_checkpoint(Checkpoint::read(&folder.join(WEIGHTS))?, config)
    }

    /// The model of this configuration with these weights.
    pub fn from_checkpoint(checkpoint: Checkpoint, config: ModelConfig) -> Result<Self, ModelError> {
        let detector = checkpoint.into_detector(&config.detector, &Device::flex())?;
        Ok(Self { config, detector })
    }

    /// The number of the detector's parameters.
    pub fn n_parameters(&self) -> usize {
        self.detector.num_params()
    }

    /// Writes the model as a folder.
    pub fn write(&self, folder: &Path, if_exists: IfExists) -> lacuna_data::Result<()> {
        let folder = NewFolder::create(folder, if_exists)?;
        for (name, bytes) in files(&self.detector, &self.config) {
            folder.file(Path::new(name), |out| std::io::Write::write_all(out, &bytes))?;
        }
        folder.finish()
    }

    /// The detections in an image, best first, in its coordinates.
    pub fn detect(&self, image: &RgbImage) -> Vec<Detection> {
        let images = self.config.input.images(image, self.detector.two_views(), &Device::flex());
        self.detector.detect(&images).remove(0)
    }
}
