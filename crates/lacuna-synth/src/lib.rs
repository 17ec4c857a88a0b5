//! Synthetic scenes with exact labels: a detection data set that needs no download.
//!
//! A scene is a cluttered picture with 5–15 objects of eight classes. Color says nothing about the class.
//! Shape and surface do, and neither is enough alone: a ball and a target have the same outline, and
//! distractors, which belong to no class, have the surface of one class or a part of its outline. Objects
//! cover each other, are cut off by the border, and shrink to a dozen pixels.
//!
//! # Labels
//! A box is the smallest rectangle around the visible pixels of an object. Every object in a picture is
//! labeled. A figure is moved or left out if it would
//!
//! - hide more than `1 -` [`VISIBLE_MIN`] of an object,
//! - leave an object with a side shorter than [`VISIBLE_SIDE_MIN`] pixels, or
//! - make two boxes overlap by more than [`BOX_IOU_MAX`].
//!
//! A scene that ends up with too few objects is laid out anew with smaller ones.
//!
//! # The same bytes everywhere
//! A scene is a function of its configuration and index. Only operations that IEEE 754 defines exactly
//! (`+ − × ÷ √`, rounding, comparison) and the functions of `libm` are used, because `sin`, `exp` and `powf`
//! of the standard library are the operating system's and differ in the last bit.

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

/// The names of the classes; [`SceneObject::class`] is an index into them.
pub const CLASSES: [&str; 8] = ["ball", "target", "ring", "star", "cross", "crescent", "arrow", "tile"];

/// At least this share of an object's pixels can be seen.
pub const VISIBLE_MIN: f32 = 0.4;

/// The box of an object has no side shorter than this, in pixels.
pub const VISIBLE_SIDE_MIN: u32 = 8;

/// No two boxes of a scene have a larger IoU. A detector that suppresses duplicates could not tell two
/// objects with nearly the same box apart.
pub const BOX_IOU_MAX: f32 = 0.6;

/// What scenes look like; together with an index it determines a scene ([`render_scene`]).
#[derive(Clone, Debug, PartialEq)]
pub struct SynthConfig {
    /// Different seeds give unrelated scenes.
    pub seed: u64,
    /// The width of each scene is drawn from these, in pixels.
    pub width: RangeInclusive<u32>,
    /// The height of each scene is drawn from these, in pixels.
    pub height: RangeInclusive<u32>,
    /// The classes that occur, as indices into [`CLASSES`], each once.
    pub classes: Vec<usize>,
    /// Objects per scene; every one is labeled.
    pub objects: RangeInclusive<u32>,
    /// The diameter of the circle around the smallest objects, in pixels.
    pub side_min: f32,
    /// The diameter of the circle around the largest objects, as a share of the scene's shorter side.
    /// Diameters are drawn log-uniformly between the two.
    pub side_max: f32,
    /// The number of distractors, as a multiple of the usual 10–24; 0 means none.
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

/// Why [`SynthConfig::check`] refuses a configuration.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum SynthConfigError {
    /// The start of a range is after its end.
    #[error("`{field}` is the empty range {from}..={to}")]
    EmptyRange {
        /// The field of [`SynthConfig`].
        field: &'static str,
        /// The start of the range.
        from: u32,
        /// The end of the range.
        to: u32,
    },
    /// A value is too small or too large.
    #[error("`{field}` is {value}, outside {low} to {high}")]
    OutOfRange {
        /// The field of [`SynthConfig`].
        field: &'static str,
        /// Its value.
        value: f64,
        /// The least value allowed.
        low: f64,
        /// The largest value allowed.
        high: f64,
    },
    /// A class is listed twice or does not exist.
    #[error("`classes` lists {class} twice, or there is no such class")]
    Class {
        /// The entry of `classes`.
        class: usize,
    },
    /// The smallest scene is too small for the most objects.
    #[error("{objects} objects of at least {side_min} px have no room in {width}x{height} px")]
    NoRoom {
        /// The most objects that a scene may have.
        objects: u32,
        /// The least diameter of an object.
        side_min: f32,
        /// The width of the smallest scene.
        width: u32,
        /// The height of the smallest scene.
        height: u32,
    },
}

impl SynthConfig {
    /// Check that every scene of this configuration can be rendered.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self) -> Result<(), SynthConfigError> {
        let ranges = [
            ("width", &self.width, 64, 4096),
            ("height", &self.height, 64, 4096),
            ("objects", &self.objects, 0, 1000),
        ];
        for (field, range, low, high) in ranges {
            let (&from, &to) = (range.start(), range.end());
            if from > to {
                return Err(SynthConfigError::EmptyRange { field, from, to });
            }
            in_range(field, from.into(), low.into(), high.into())?;
            in_range(field, to.into(), low.into(), high.into())?;
        }
        let (&width, &height, &objects) = (self.width.start(), self.height.start(), self.objects.end());
        in_range("side_min", self.side_min.into(), 12.0, (0.5 * width.min(height) as f32).into())?;
        in_range("classes", self.classes.len() as f64, 1.0, CLASSES.len() as f64)?;
        for (place, &class) in self.classes.iter().enumerate() {
            if class >= CLASSES.len() || self.classes[..place].contains(&class) {
                return Err(SynthConfigError::Class { class });
            }
        }
        in_range("side_max", self.side_max.into(), 0.0, 1.0)?;
        in_range("clutter", self.clutter.into(), 0.0, 10.0)?;

        // Twice the side each way is room enough for a random layout to be found quickly.
        let room = 4.0 * self.side_min * self.side_min * objects as f32;
        if room > width as f32 * height as f32 {
            return Err(SynthConfigError::NoRoom { objects, side_min: self.side_min, width, height });
        }
        Ok(())
    }
}

fn in_range(field: &'static str, value: f64, low: f64, high: f64) -> Result<(), SynthConfigError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(SynthConfigError::OutOfRange { field, value, low, high })
}

/// A picture and its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
    /// RGB, 8 bits each, row by row from the top.
    pub pixels: Vec<u8>,
    /// From the back to the front.
    pub objects: Vec<SceneObject>,
}

/// A labeled object of a scene.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SceneObject {
    /// Index into [`CLASSES`].
    pub class: usize,
    /// The smallest rectangle around the visible pixels. A pixel is the object's when at least half of it is.
    pub bbox: Box2,
    /// The share of the object's pixels that can be seen: not covered, not outside the picture.
    pub visible: f32,
}

/// Render scene number `index`. The result depends on the configuration and the index only.
///
/// # Panics
/// When [`SynthConfig::check`] fails.
pub fn render_scene(config: &SynthConfig, index: u64) -> Scene {
    if let Err(error) = config.check() {
        panic!("{error}");
    }
    let mut rng = Rng::new(Purpose::Synth, config.seed, 0, index);
    let width = rng.between(*config.width.start(), *config.width.end());
    let height = rng.between(*config.height.start(), *config.height.end());
    let layout = layout::lay_out(config, width, height, &mut rng);
    let mut canvas = backdrop::paint_backdrop(width as usize, height as usize, &mut rng);
    paint::paint(&mut canvas, &layout.figures, &mut rng);
    Scene { width, height, pixels: camera::expose(canvas, &mut rng), objects: layout.objects() }
}
