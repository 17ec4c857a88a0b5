//! Made scenes with exact labels: a detection data set that needs no download.
//!
//! A scene is a cluttered picture of 5–15 objects of eight classes. Color says nothing about the
//! class; shape and surface do, and neither is enough alone: a ball and a target have the same
//! outline, and distractors (which belong to no class) wear the surfaces of the classes or have a
//! part of their outline. Objects cover each other, leave the picture, shrink to a dozen pixels.
//!
//! # Labels
//! A box is the smallest rectangle around the pixels of an object that can be seen. No object is ever in the
//! picture without a label: what would hide more than `1 -` [`VISIBLE_MIN`] of an object, or leave
//! less than [`VISIBLE_SIDE_MIN`] pixels of a side, or make two boxes nearly the same
//! ([`BOX_IOU_MAX`]), is put elsewhere or left out while the scene is laid out. A scene that ends up
//! with too few objects is laid out anew, with smaller ones.
//!
//! # The same bytes everywhere
//! A scene is a function of (configuration, index). Only operations that IEEE 754 defines exactly
//! (`+ − × ÷ √`, rounding, comparison) and the functions of `libm` are used: the standard library's
//! `sin`, `exp` and `powf` are those of the operating system and differ in the last bit.

mod backdrop;
mod camera;
mod canvas;
mod color;
mod folder;
mod layout;
mod noise;
mod outline;
mod paint;
mod stamp;
mod surface;
#[cfg(test)]
mod tests;

pub use folder::fill_folder;

use std::ops::RangeInclusive;

use lacuna_boxes::Box2;

use lacuna_random::{Purpose, Rng};

/// The names of the classes; [`Object::class`] is an index into them.
pub const CLASSES: [&str; 8] = ["ball", "target", "ring", "star", "cross", "crescent", "arrow", "tile"];

/// At least this share of an object's pixels can be seen.
pub const VISIBLE_MIN: f32 = 0.4;

/// The box of an object has no side shorter than this, in pixels.
pub const VISIBLE_SIDE_MIN: u32 = 8;

/// No two boxes of a scene overlap more than this. Two objects behind nearly the same box could not
/// be told apart by any detector that suppresses duplicates.
pub const BOX_IOU_MAX: f32 = 0.6;

/// What scenes look like. [`scene`] adds the index of the scene.
#[derive(Clone, Debug, PartialEq)]
pub struct SynthConfig {
    pub seed: u64,
    /// The width of each scene is drawn from these, in pixels.
    pub width: RangeInclusive<u32>,
    /// The height of each scene is drawn from these, in pixels.
    pub height: RangeInclusive<u32>,
    /// Which of [`CLASSES`] there are, each once.
    pub classes: Vec<usize>,
    /// Objects per scene; every one is labeled.
    pub objects: RangeInclusive<u32>,
    /// The diameter of the circle around the smallest objects, in pixels.
    pub side_min: f32,
    /// The diameter of the circle around the largest objects, as a share of the scene's shorter side.
    /// Diameters are drawn log-uniformly between the two.
    pub side_max: f32,
    /// How many distractors, as a multiple of the usual 10–24; 0 is none.
    pub clutter: f32,
}

impl Default for SynthConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            width: 256..=384,
            height: 208..=320,
            classes: (0..CLASSES.len()).collect(),
            objects: 5..=15,
            side_min: 14.0,
            side_max: 0.6,
            clutter: 1.0,
        }
    }
}

/// Why a [`SynthConfig`] describes no scene.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ConfigError {
    #[error("`{field}` is the empty range {from}..={to}")]
    EmptyRange { field: &'static str, from: u32, to: u32 },
    #[error("`{field}` is {value}, outside {low} to {high}")]
    OutOfRange { field: &'static str, value: f64, low: f64, high: f64 },
    #[error("`classes` names {class} twice, or there is no such class")]
    Class { class: usize },
    #[error("{objects} objects of at least {side_min} px have no room in {width}x{height} px")]
    NoRoom { objects: u32, side_min: f32, width: u32, height: u32 },
}

impl SynthConfig {
    /// Can every scene of this configuration be made?
    pub fn check(&self) -> Result<(), ConfigError> {
        let ranges = [
            ("width", &self.width, 64, 4096),
            ("height", &self.height, 64, 4096),
            ("objects", &self.objects, 0, 1000),
        ];
        for (field, range, low, high) in ranges {
            let (&from, &to) = (range.start(), range.end());
            if from > to {
                return Err(ConfigError::EmptyRange { field, from, to });
            }
            in_range(field, from.into(), low.into(), high.into())?;
            in_range(field, to.into(), low.into(), high.into())?;
        }
        let (&width, &height, &objects) = (self.width.start(), self.height.start(), self.objects.end());
        in_range("side_min", self.side_min.into(), 12.0, (0.5 * width.min(height) as f32).into())?;
        in_range("classes", self.classes.len() as f64, 1.0, CLASSES.len() as f64)?;
        for (place, &class) in self.classes.iter().enumerate() {
            if class >= CLASSES.len() || self.classes[..place].contains(&class) {
                return Err(ConfigError::Class { class });
            }
        }
        in_range("side_max", self.side_max.into(), 0.0, 1.0)?;
        in_range("clutter", self.clutter.into(), 0.0, 10.0)?;

        // Twice the side each way is room enough for a random layout to be found quickly.
        let room = 4.0 * self.side_min * self.side_min * objects as f32;
        if room > width as f32 * height as f32 {
            return Err(ConfigError::NoRoom { objects, side_min: self.side_min, width, height });
        }
        Ok(())
    }
}

fn in_range(field: &'static str, value: f64, low: f64, high: f64) -> Result<(), ConfigError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::OutOfRange { field, value, low, high })
}

/// A picture and what is in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    pub width: u32,
    pub height: u32,
    /// RGB, 8 bits each, row by row from the top.
    pub pixels: Vec<u8>,
    /// From the back to the front.
    pub objects: Vec<Object>,
}

/// An object of a scene.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Object {
    /// Index into [`CLASSES`].
    pub class: usize,
    /// The smallest rectangle around the visible pixels. A pixel is the object's when at least half of it is.
    pub bbox: Box2,
    /// The share of the object's pixels that can be seen: not covered, not outside the picture.
    pub visible: f32,
}

/// Scene number `index`: always the same for the same configuration, whatever else is rendered.
///
/// # Panics
/// When [`SynthConfig::check`] fails.
pub fn scene(config: &SynthConfig, index: u64) -> Scene {
    if let Err(error) = config.check() {
        panic!("{error}");
    }
    let mut rng = Rng::new(Purpose::Synth, config.seed, 0, index);
    let width = rng.between(*config.width.start(), *config.width.end());
    let height = rng.between(*config.height.start(), *config.height.end());
    let layout = layout::lay_out(config, width, height, &mut rng);
    let mut canvas = backdrop::backdrop(width as usize, height as usize, &mut rng);
    paint::paint(&mut canvas, &layout.figures, &mut rng);
    Scene { width, height, pixels: camera::expose(canvas, &mut rng), objects: layout.objects() }
}
