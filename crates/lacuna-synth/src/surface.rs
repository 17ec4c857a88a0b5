//! Surfaces: how the two colors of a figure are laid over it.

use lacuna_random::Rng;

use crate::outline::{Outline, Point};

/// A pattern in the coordinates of the outline (the unit circle).
#[derive(Clone, Copy)]
pub(crate) enum Surface {
    Plain,
    /// Shaded like a sphere, with a highlight.
    Sphere,
    /// Concentric.
    Bands {
        width: f32,
    },
    /// `2 * count` sectors of alternating color around the center.
    Sectors {
        count: u32,
    },
    /// A border along the outline.
    Rim {
        width: f32,
    },
    Spots {
        pitch: f32,
    },
    Chevrons {
        width: f32,
    },
    Checks {
        cell: f32,
    },
}

/// What a surface does at a point.
pub(crate) struct Finish {
    /// 0 is the first color, 1 the second.
    pub tone: f32,
    /// Brightness, 1 on the average.
    pub light: f32,
}

impl Surface {
    /// A surface for something that belongs to no class. Not that of a ball or a target: little is
    /// needed to take a rounded shape for one of them.
    pub(crate) fn borrowed(rng: &mut Rng) -> Self {
        match rng.below(7) {
            0 => Self::Sectors { count: rng.between(4, 5) },
            1 => Self::Rim { width: 0.12 },
            2 => Self::Spots { pitch: 0.38 },
            3 => Self::Chevrons { width: 0.25 },
            4 => Self::Checks { cell: 0.35 },
            _ => Self::Plain,
        }
    }

    /// Is there no pattern, and the second color at most that of a highlight?
    pub(crate) fn has_one_color(self) -> bool {
        matches!(self, Self::Plain | Self::Sphere)
    }

    /// The finish at `p` of a figure with this outline. `pixel` is the size of a pixel (patterns
    /// finer than that fade into their mean and do not alias), `sun` where the light comes from.
    pub(crate) fn at(self, p: Point, outline: &Outline, pixel: f32, sun: Point) -> Finish {
        let [x, y] = p;
        let slope = 1.0 + 0.18 * (x * sun[0] + y * sun[1]);
        let tone = match self {
            Self::Plain => 0.0,
            Self::Sphere => return sphere(p, sun),
            Self::Bands { width } => square_wave((x * x + y * y).sqrt() / width, pixel / width),
            Self::Sectors { count } => sectors(p, count, pixel),
            Self::Rim { width } => step(outline.distance(p) + width, pixel),
            Self::Spots { pitch } => spots(p, pitch, pixel),
            Self::Chevrons { width } => square_wave((x + 0.8 * y.abs()) / width, 1.3 * pixel / width),
            Self::Checks { cell } => {
                let [across, down] = [x, y].map(|v| square_wave(v / cell, pixel / cell));
                across + down - 2.0 * across * down
            }
        };
        Finish { tone, light: slope }
    }
}

/// 0 before 0 and 1 after it, with an edge one pixel wide.
fn step(x: f32, pixel: f32) -> f32 {
    (0.5 + x / pixel).clamp(0.0, 1.0)
}

/// 1 from 0 to 1, 0 from 1 to 2, and so on, with edges one pixel wide.
pub(crate) fn square_wave(x: f32, pixel: f32) -> f32 {
    let half = 0.5 * x;
    // The distance to the nearest edge, positive where the wave is up.
    let inside = 0.5 - (2.0 * (half - half.floor()) - 0.5).abs();
    let wrapped = if inside < -0.5 { -1.0 - inside } else { inside };
    step(wrapped, pixel)
}

/// A lit sphere with some light from all around, so that its dark side still has its color.
fn sphere([x, y]: Point, sun: Point) -> Finish {
    let z = (1.0 - x * x - y * y).max(0.0).sqrt();
    let lit = (0.6 * (x * sun[0] + y * sun[1]) + 0.8 * z).max(0.0);
    let lit_8 = lit * lit * lit * lit * lit * lit * lit * lit;
    Finish { tone: 0.8 * lit_8 * lit_8 * lit_8, light: 0.35 + 0.85 * lit }
}

fn sectors([x, y]: Point, count: u32, pixel: f32) -> f32 {
    let radius = (x * x + y * y).sqrt().max(1e-6);
    // sin(count * angle) is the imaginary part of a power of the unit vector: no arc functions.
    let (cos, sin) = (x / radius, y / radius);
    let (mut re, mut im) = (1.0, 0.0);
    for _ in 0..count {
        (re, im) = (re * cos - im * sin, re * sin + im * cos);
    }
    step(radius * im / count as f32, pixel)
}

/// Discs in rows, every other row shifted by half.
fn spots([x, y]: Point, pitch: f32, pixel: f32) -> f32 {
    let row = (y / pitch).floor();
    let shift = if row % 2.0 == 0.0 { 0.0 } else { 0.5 };
    let u = x / pitch + shift;
    let (dx, dy) = (u - u.floor() - 0.5, y / pitch - row - 0.5);
    step(0.32 - (dx * dx + dy * dy).sqrt(), pixel / pitch)
}
