//! Where a figure lies in the picture, and which pixels it covers.

use std::f32::consts::SQRT_2;

use lacuna_random::Rng;

use crate::outline::{Outline, Point, direction};

/// The map between an outline's unit circle and the picture: turned, scaled, and squeezed along
/// some axis as when seen at a slant.
#[derive(Clone, Copy)]
pub(crate) struct Pose {
    center: Point,
    /// Pixels per unit along the axis that is not squeezed.
    radius: f32,
    /// Length that is left along the squeezed axis, 0..=1.
    squeeze: f32,
    to_local: [[f32; 2]; 2],
}

impl Pose {
    pub(crate) fn new(center: Point, radius: f32, squeeze: f32, rng: &mut Rng) -> Self {
        let [turn_cos, turn_sin] = direction(rng);
        let [axis_cos, axis_sin] = direction(rng);
        // Into the frame of the squeezed axis, undo the scale, then turn.
        let (a, b) = (1.0 / radius, 1.0 / (radius * squeeze));
        let to_local = [
            [
                turn_cos * a * axis_cos + turn_sin * b * axis_sin,
                turn_cos * a * axis_sin - turn_sin * b * axis_cos,
            ],
            [
                turn_sin * a * axis_cos - turn_cos * b * axis_sin,
                turn_sin * a * axis_sin + turn_cos * b * axis_cos,
            ],
        ];
        Self { center, radius, squeeze, to_local }
    }

    /// The same pose elsewhere.
    pub(crate) fn moved(self, by: Point) -> Self {
        Self { center: [self.center[0] + by[0], self.center[1] + by[1]], ..self }
    }

    /// A point of the picture in the outline's coordinates.
    pub(crate) fn local(&self, [x, y]: Point) -> Point {
        self.local_vector([x - self.center[0], y - self.center[1]])
    }

    pub(crate) fn local_vector(&self, [x, y]: Point) -> Point {
        let [[a, b], [c, d]] = self.to_local;
        [a * x + b * y, c * x + d * y]
    }

    /// Pixels per unit where there are fewest.
    fn pixels_per_unit_min(&self) -> f32 {
        self.radius * self.squeeze
    }

    /// The size of a pixel in the outline's coordinates (geometric mean over the directions).
    pub(crate) fn pixel(&self) -> f32 {
        1.0 / (self.radius * self.squeeze.sqrt())
    }

    pub(crate) fn radius(&self) -> f32 {
        self.radius
    }
}

/// How much of each pixel a figure covers. It may reach beyond the picture.
pub(crate) struct Stamp {
    left: i32,
    top: i32,
    width: usize,
    height: usize,
    coverage: Vec<f32>,
}

/// Squares of this side are filled at once; those that the outline passes through are split.
const BLOCK: usize = 16;
/// Squares of this side are filled pixel by pixel.
const BLOCK_MIN: usize = 4;

impl Stamp {
    /// `edge` is the width of the transition from outside to inside: 1 pixel is antialiasing, more
    /// is a soft shadow.
    pub(crate) fn new(outline: &Outline, pose: &Pose, edge: f32) -> Self {
        let reach = pose.radius + 0.5 * edge + 1.0;
        let [x, y] = pose.center;
        let (left, top) = ((x - reach).floor() as i32, (y - reach).floor() as i32);
        let width = ((x + reach).ceil() as i32 - left) as usize;
        let height = ((y + reach).ceil() as i32 - top) as usize;
        let mut stamp = Self { left, top, width, height, coverage: vec![0.0; width * height] };
        // The distance in units times this is never more than the distance in pixels.
        let scale = pose.pixels_per_unit_min() / edge;
        let coverage_at =
            |x: f32, y: f32| 0.5 - scale * outline.distance(pose.local([left as f32 + x, top as f32 + y]));
        // How much coverage can change per pixel.
        let slope = 1.0 / edge;
        for y in (0..height).step_by(BLOCK) {
            for x in (0..width).step_by(BLOCK) {
                stamp.fill(x, y, BLOCK, slope, &coverage_at);
            }
        }
        stamp
    }

    /// Fill the block of side `side` at `(x, y)`. Most blocks lie wholly inside or outside. The coverage at
    /// their center shows which, because it changes by no more than `slope` per pixel.
    fn fill(&mut self, x: usize, y: usize, side: usize, slope: f32, coverage_at: &impl Fn(f32, f32) -> f32) {
        if x >= self.width || y >= self.height {
            return;
        }
        let half = side / 2;
        let at_center = coverage_at((x + half) as f32, (y + half) as f32);
        let change = half as f32 * SQRT_2 * slope;
        if at_center + change <= 0.0 {
            return;
        }
        let is_inside = at_center - change >= 1.0;
        if side > BLOCK_MIN && !is_inside {
            for (x, y) in [(x, y), (x + half, y), (x, y + half), (x + half, y + half)] {
                self.fill(x, y, half, slope, coverage_at);
            }
            return;
        }
        let (end_x, end_y) = ((x + side).min(self.width), (y + side).min(self.height));
        for y in y..end_y {
            for x in x..end_x {
                let covered = if is_inside { 1.0 } else { coverage_at(x as f32 + 0.5, y as f32 + 0.5) };
                self.coverage[y * self.width + x] = covered.clamp(0.0, 1.0);
            }
        }
    }

    /// The number of pixels that belong to the figure, those beyond the picture included.
    pub(crate) fn pixel_count(&self) -> u32 {
        self.coverage.iter().filter(|&&c| belongs(c)).count() as u32
    }

    /// Does this pixel belong to the figure?
    pub(crate) fn covers(&self, x: usize, y: usize) -> bool {
        let (x, y) = (x as i32 - self.left, y as i32 - self.top);
        let inside = (0..self.width as i32).contains(&x) && (0..self.height as i32).contains(&y);
        inside && belongs(self.coverage[y as usize * self.width + x as usize])
    }

    /// Calls `visit(x, y, coverage)` for each pixel of a picture of this size that the figure
    /// touches.
    pub(crate) fn for_each(&self, width: usize, height: usize, mut visit: impl FnMut(usize, usize, f32)) {
        // The part inside the picture, in the stamp's own rows and columns.
        let inside = |start: i32, len: usize, size: usize| {
            let end = (size as i32 - start).clamp(0, len as i32);
            (-start).clamp(0, end) as usize..end as usize
        };
        let columns = inside(self.left, self.width, width);
        for row in inside(self.top, self.height, height) {
            let y = (self.top + row as i32) as usize;
            let first_x = (self.left + columns.start as i32) as usize;
            let coverage = &self.coverage[row * self.width..][columns.clone()];
            for (x, &coverage) in (first_x..).zip(coverage) {
                if coverage > 0.0 {
                    visit(x, y, coverage);
                }
            }
        }
    }

    /// Like [`for_each`](Self::for_each), for the pixels that belong to the figure.
    pub(crate) fn for_each_own(&self, width: usize, height: usize, mut visit: impl FnMut(usize, usize)) {
        self.for_each(width, height, |x, y, coverage| {
            if belongs(coverage) {
                visit(x, y);
            }
        });
    }
}

/// A pixel belongs to a figure that covers at least half of it.
fn belongs(coverage: f32) -> bool {
    coverage >= 0.5
}
