//! The backdrop behind all figures: gradients, clouds, stripes, blotches, bricks or patches.

use lacuna_random::Rng;

use crate::canvas::Canvas;
use crate::color::{self, Color, mix, scale};
use crate::noise::fractal;
use crate::outline::{Outline, direction};
use crate::stamp::{Pose, Stamp};
use crate::surface::square_wave;

/// Paint a backdrop of one kind, or of two that meet along a wavy line, with a fine grain.
pub(crate) fn paint_backdrop(width: usize, height: usize, rng: &mut Rng) -> Canvas {
    let mut canvas = backdrop_of_one_kind(width, height, rng);
    if rng.chance(0.4) {
        let other = backdrop_of_one_kind(width, height, rng);
        let waves = fractal(rng, width, height, 60.0, 2);
        let across = ramp(width, height, rng);
        let sharpness = rng.range(4.0, 60.0) as f32;
        canvas = Canvas::from_fn(width, height, |x, y| {
            let i = y * width + x;
            let t = across(x, y) + 0.3 * (waves[i] - 0.5);
            mix(canvas.pixels[i], other.pixels[i], (0.5 + sharpness * (t - 0.5)).clamp(0.0, 1.0))
        });
    }
    let cell = rng.range(1.5, 6.0) as f32;
    let grain = fractal(rng, width, height, cell, 2);
    let strength = rng.range(0.0, 0.3) as f32;
    for (pixel, grain) in canvas.pixels.iter_mut().zip(grain) {
        *pixel = scale(*pixel, 1.0 + strength * (grain - 0.5));
    }
    canvas
}

fn backdrop_of_one_kind(width: usize, height: usize, rng: &mut Rng) -> Canvas {
    let [a, b, c] = palette(rng);
    let cell = rng.range(25.0, 150.0) as f32;
    let noise = fractal(rng, width, height, cell, 4);
    let at = |x: usize, y: usize| noise[y * width + x];
    match rng.below(6) {
        // A gradient through three colors, slightly disturbed.
        0 => {
            let across = ramp(width, height, rng);
            Canvas::from_fn(width, height, |x, y| {
                let t = 2.0 * (across(x, y) + 0.25 * (at(x, y) - 0.5)).clamp(0.0, 1.0);
                if t < 1.0 { mix(a, b, t) } else { mix(b, c, t - 1.0) }
            })
        }
        // Clouds of two colors with a haze of the third.
        1 => {
            let haze = fractal(rng, width, height, 2.0 * cell, 2);
            Canvas::from_fn(width, height, |x, y| mix(mix(a, b, at(x, y)), c, 0.7 * haze[y * width + x]))
        }
        // Stripes, straight or wavy.
        2 => {
            let [dx, dy] = direction(rng);
            let period = rng.range(5.0, 40.0) as f32;
            let waviness = rng.range(0.0, 3.0) as f32;
            let softness = rng.range(0.2, 1.0) as f32;
            Canvas::from_fn(width, height, |x, y| {
                let along = (x as f32 * dx + y as f32 * dy) / period;
                mix(mix(a, b, square_wave(along + waviness * at(x, y), softness)), c, 0.3 * at(x, y))
            })
        }
        // Blotches: the noise cut at two heights.
        3 => {
            let (low, high) = (rng.range(0.3, 0.5) as f32, rng.range(0.55, 0.7) as f32);
            let sharpness = rng.range(5.0, 40.0) as f32;
            let above = |level: f32, value: f32| (0.5 + sharpness * (value - level)).clamp(0.0, 1.0);
            Canvas::from_fn(width, height, |x, y| {
                mix(mix(a, b, above(low, at(x, y))), c, above(high, at(x, y)))
            })
        }
        // Bricks, each of its own shade, with joints.
        4 => {
            let (long, short) = (rng.range(18.0, 50.0) as f32, rng.range(9.0, 25.0) as f32);
            let joint = rng.range(0.0, 2.5) as f32;
            let shades: Vec<f32> = (0..256).map(|_| rng.unit() as f32).collect();
            Canvas::from_fn(width, height, |x, y| {
                let row = (y as f32 / short) as usize;
                let shift = if row.is_multiple_of(2) { 0.0 } else { 0.5 };
                let u = x as f32 / long + shift;
                let (du, dv) = ((u - u.floor()) * long, y as f32 - row as f32 * short);
                let shade = shades[(row * 37 + u as usize) % shades.len()];
                let brick = mix(mix(a, b, shade), c, 0.3 * at(x, y));
                if du < joint || dv < joint { scale(brick, 0.6) } else { brick }
            })
        }
        // Patches over each other.
        _ => {
            let mut canvas = Canvas::from_fn(width, height, |x, y| mix(a, b, at(x, y)));
            for _ in 0..rng.between(15, 40) {
                patch(&mut canvas, [a, b, c], rng);
            }
            canvas
        }
    }
}

fn patch(canvas: &mut Canvas, [a, b, c]: [Color; 3], rng: &mut Rng) {
    let center = [rng.range(0.0, canvas.width as f64) as f32, rng.range(0.0, canvas.height as f64) as f32];
    let (radius, squeeze) = (rng.range(10.0, 70.0) as f32, rng.range(0.4, 1.0) as f32);
    let pose = Pose::new(center, radius, squeeze, rng);
    let outline = if rng.chance(0.5) { Outline::blob(rng) } else { Outline::quadrilateral(rng) };
    let color = mix(mix(a, b, rng.unit() as f32), c, rng.unit() as f32);
    let edge = if rng.chance(0.3) { 8.0 } else { 1.0 };
    canvas.blend(&Stamp::new(&outline, &pose, edge), |_, _| color);
}

/// Three colors, mostly muted, that need not go together.
fn palette(rng: &mut Rng) -> [Color; 3] {
    let saturation = (0.0, rng.range(0.15, 0.75));
    let bright = rng.range(0.45, 0.95);
    [0, 1, 2].map(|_| color::random(rng, saturation, (0.35 * bright, bright)))
}

/// 0..1 across the picture in a random direction.
fn ramp(width: usize, height: usize, rng: &mut Rng) -> impl Fn(usize, usize) -> f32 + use<> {
    let [dx, dy] = direction(rng);
    let (width, height) = (width as f32, height as f32);
    let reach = (dx.abs() * width + dy.abs() * height).max(1.0);
    move |x, y| 0.5 + ((x as f32 - 0.5 * width) * dx + (y as f32 - 0.5 * height) * dy) / reach
}
