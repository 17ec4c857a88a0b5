//! Colors, light and shadow of the figures.

use lacuna_random::Rng;

use crate::canvas::Canvas;
use crate::color::{self, Color, distance, luma, mix, scale};
use crate::layout::Figure;
use crate::noise::fractal;
use crate::outline::{Point, direction};
use crate::stamp::Stamp;
use crate::surface::Surface;

/// Where the light of a scene comes from and how hard it is.
struct Sun {
    direction: Point,
    /// How dark shadows are, 0..1.
    shadow: f32,
    /// The width of a shadow's edge in pixels.
    softness: f32,
}

/// Paint the figures in their order over the canvas.
pub(crate) fn paint(canvas: &mut Canvas, figures: &[Figure], rng: &mut Rng) {
    let shadow = if rng.chance(0.7) { rng.range(0.15, 0.6) as f32 } else { 0.0 };
    let sun = Sun { direction: direction(rng), shadow, softness: rng.range(2.0, 8.0) as f32 };
    let dirt = fractal(rng, canvas.width, canvas.height, 12.0, 3);
    for figure in figures {
        cast_shadow(canvas, figure, &sun, rng);
        paint_figure(canvas, figure, &sun, &dirt, rng);
    }
}

fn cast_shadow(canvas: &mut Canvas, figure: &Figure, sun: &Sun, rng: &mut Rng) {
    let height = rng.range(0.5, 4.0) as f32 + 0.03 * figure.pose.radius();
    if sun.shadow == 0.0 {
        return;
    }
    let away = [-height * sun.direction[0], -height * sun.direction[1]];
    let shadow = Stamp::new(&figure.outline, &figure.pose.moved(away), sun.softness);
    let light = 1.0 - sun.shadow;
    shadow.for_each(canvas.width, canvas.height, |x, y, coverage| {
        let pixel = &mut canvas.pixels[y * canvas.width + x];
        *pixel = mix(*pixel, scale(*pixel, light), coverage);
    });
}

fn paint_figure(canvas: &mut Canvas, figure: &Figure, sun: &Sun, dirt: &[f32], rng: &mut Rng) {
    let behind = canvas.mean_under(&figure.stamp);
    // A small figure has nothing but its contrast.
    let contrast_min = if figure.pose.radius() < 16.0 { 0.26 } else { 0.14 };
    let [first, second] = tones(figure.surface, behind, rng.range(contrast_min, 0.4) as f32, rng);
    let dirtiness = rng.range(0.0, 0.35) as f32;
    let pixel = figure.pose.pixel();
    let sun = unit(figure.pose.local_vector(sun.direction));
    let width = canvas.width;
    canvas.blend(&figure.stamp, |x, y| {
        let p = figure.pose.local([x as f32 + 0.5, y as f32 + 0.5]);
        let finish = figure.surface.at(p, &figure.outline, pixel, sun);
        let dirt = 1.0 + dirtiness * (dirt[y * width + x] - 0.5);
        scale(mix(first, second, finish.tone), finish.light * dirt)
    });
}

/// Two colors of a figure, of any hue. The second stands out from the first; the first, and the mean
/// of both (which is all that is seen of a small figure), from what is behind, by `contrast`.
fn tones(surface: Surface, behind: Color, contrast: f32, rng: &mut Rng) -> [Color; 2] {
    let mut best = ([[0.0; 3]; 2], -1.0);
    // Where nothing satisfies everything at once, take the best of some.
    for _ in 0..16 {
        let first = random_tone(rng);
        let from_behind = distance(first, behind) / contrast;
        let (second, margin) = if surface.has_one_color() {
            (HIGHLIGHT, from_behind)
        } else {
            let second = random_tone(rng);
            let mean_from_behind = distance(mix(first, second, 0.5), behind) / contrast;
            let between = (luma(first) - luma(second)).abs() / TONES_APART;
            (second, from_behind.min(mean_from_behind).min(between))
        };
        if margin > best.1 {
            best = ([first, second], margin);
        }
        if margin >= 1.0 {
            break;
        }
    }
    best.0
}

const HIGHLIGHT: Color = [1.0; 3];

/// The least difference in brightness of the two colors of a pattern.
const TONES_APART: f32 = 0.28;

fn random_tone(rng: &mut Rng) -> Color {
    color::random(rng, (0.0, 1.0), (0.12, 1.0))
}

fn unit([x, y]: Point) -> Point {
    let length = (x * x + y * y).sqrt();
    [x / length, y / length]
}
