//! Colors: RGB, each 0..1.

use lacuna_random::Rng;

pub(crate) type Color = [f32; 3];

/// Interpolate from `a` (at 0) to `b` (at 1).
pub(crate) fn mix(a: Color, b: Color, t: f32) -> Color {
    [0, 1, 2].map(|c| a[c] + (b[c] - a[c]) * t)
}

pub(crate) fn scale(color: Color, factor: f32) -> Color {
    color.map(|c| c * factor)
}

pub(crate) fn luma(color: Color) -> f32 {
    0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]
}

/// How different two colors look, roughly: 0 for the same, about 1 for black and white.
pub(crate) fn distance(a: Color, b: Color) -> f32 {
    let [r, g, b] = [0, 1, 2].map(|c| (a[c] - b[c]) * (a[c] - b[c]));
    (0.3 * r + 0.5 * g + 0.2 * b).sqrt()
}

/// A color of any hue, with saturation and value in these ranges.
pub(crate) fn random(rng: &mut Rng, saturation: (f64, f64), value: (f64, f64)) -> Color {
    let hue = rng.range(0.0, 6.0) as f32;
    let saturation = rng.range(saturation.0, saturation.1) as f32;
    let value = rng.range(value.0, value.1) as f32;
    // Each channel is a trapezoid over the circle of hues, two sixths apart.
    [5.0, 3.0, 1.0].map(|shift| {
        let k = (hue + shift) % 6.0;
        value * (1.0 - saturation * k.min(4.0 - k).clamp(0.0, 1.0))
    })
}
