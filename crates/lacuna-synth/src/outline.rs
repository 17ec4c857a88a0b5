//! Outlines, as signed distances: negative inside, positive outside.

use std::f32::consts::TAU;

use lacuna_random::Rng;

use crate::CLASSES;
use crate::surface::Surface;

/// `[x, y]`.
pub(crate) type Point = [f32; 2];

/// An outline inside the unit circle.
///
/// [`distance`](Self::distance) is 1-Lipschitz: it changes no faster than the point moves. A stamp can
/// therefore decide whole blocks of pixels from the distance at their center.
pub(crate) enum Outline {
    /// The unit disc without the disc of radius `hole` and without what lies right of `cut`.
    Round { hole: f32, cut: f32 },
    /// The unit disc without a disc that bites into it from the right.
    Crescent { bite_center: f32, bite_radius: f32 },
    /// A closed polygon, convex or not.
    Polygon(Vec<Edge>),
    /// Discs run together: center and radius of each.
    Discs(Vec<(Point, f32)>),
    /// Strokes of a pen.
    Line { strokes: Vec<Edge>, half_width: f32 },
}

/// A straight piece of an outline.
pub(crate) struct Edge {
    from: Point,
    along: Point,
    inverse_length_squared: f32,
}

impl Edge {
    fn new(from: Point, to: Point) -> Self {
        let along = [to[0] - from[0], to[1] - from[1]];
        Self { from, along, inverse_length_squared: 1.0 / (along[0] * along[0] + along[1] * along[1]) }
    }

    fn distance_squared(&self, p: Point) -> f32 {
        let [x, y] = [p[0] - self.from[0], p[1] - self.from[1]];
        let [along_x, along_y] = self.along;
        let t = ((x * along_x + y * along_y) * self.inverse_length_squared).clamp(0.0, 1.0);
        let away = [x - along_x * t, y - along_y * t];
        away[0] * away[0] + away[1] * away[1]
    }

    /// Does a ray from `p` to the right cross this edge?
    fn is_right_of(&self, p: Point) -> bool {
        let [x, y] = [p[0] - self.from[0], p[1] - self.from[1]];
        let [along_x, along_y] = self.along;
        // An edge that goes down is crossed when all three hold, one that goes up when none does.
        let (below_start, above_end, left) = (y >= 0.0, y < along_y, along_x * y > along_y * x);
        (below_start & above_end & left) | !(below_start | above_end | left)
    }
}

impl Outline {
    /// The signed distance from the outline to a point.
    pub(crate) fn distance(&self, [x, y]: Point) -> f32 {
        let radius = (x * x + y * y).sqrt();
        match self {
            Self::Round { hole, cut } => (radius - 1.0).max(hole - radius).max(x - cut),
            Self::Crescent { bite_center, bite_radius } => {
                (radius - 1.0).max(bite_radius - length([x - bite_center, y]))
            }
            Self::Polygon(edges) => {
                let inside = edges.iter().fold(false, |inside, edge| inside ^ edge.is_right_of([x, y]));
                let distance = distance_to_nearest(edges, [x, y]);
                if inside { -distance } else { distance }
            }
            Self::Discs(discs) => {
                discs.iter().fold(f32::INFINITY, |d, &([cx, cy], r)| d.min(length([x - cx, y - cy]) - r))
            }
            Self::Line { strokes, half_width } => distance_to_nearest(strokes, [x, y]) - half_width,
        }
    }

    /// The outline and the surface that make an object of this class (an index into
    /// [`CLASSES`]).
    pub(crate) fn of_class(class: usize, rng: &mut Rng) -> (Self, Surface) {
        let mut vary = |low: f64, high: f64| rng.range(low, high) as f32;
        match CLASSES[class] {
            "ball" => (DISC, Surface::Sphere),
            "target" => (DISC, Surface::Bands { width: vary(0.22, 0.34) }),
            "ring" => (Self::Round { hole: vary(0.45, 0.65), cut: 1.0 }, Surface::Sectors { count: 4 }),
            "star" => (star(vary(0.38, 0.5)), Surface::Sectors { count: 5 }),
            "cross" => {
                let arm = vary(0.26, 0.38);
                (cross(arm), Surface::Rim { width: 0.4 * arm })
            }
            "crescent" => {
                let bite_center = vary(0.45, 0.6);
                let surface = Surface::Spots { pitch: vary(0.34, 0.42) };
                (Self::Crescent { bite_center, bite_radius: vary(0.68, 0.8) }, surface)
            }
            "arrow" => (arrow(vary(0.2, 0.32)), Surface::Chevrons { width: vary(0.2, 0.3) }),
            "tile" => (square(), Surface::Checks { cell: 0.5 * SQUARE_HALF }),
            name => unreachable!("no outline is known for {name}"),
        }
    }

    /// A shape that belongs to no class but resembles a part of one: a piece of a ring or a disc, two arms
    /// of a cross, the shaft or the head of an arrow.
    pub(crate) fn look_alike(rng: &mut Rng) -> (Self, Surface) {
        let surface = Surface::borrowed(rng);
        match rng.below(7) {
            0 => {
                let surface = if rng.chance(0.5) { Surface::Sectors { count: 4 } } else { Surface::Plain };
                (Self::Round { hole: rng.range(0.5, 0.7) as f32, cut: rng.range(-0.2, 0.15) as f32 }, surface)
            }
            1 => {
                let surface = if rng.chance(0.5) { Surface::Sphere } else { Surface::Bands { width: 0.28 } };
                (Self::Round { hole: 0.0, cut: rng.range(-0.2, 0.1) as f32 }, surface)
            }
            2 => (regular(3), surface),
            3 => (regular(6), surface),
            4 => {
                // The corner where two arms meet.
                let w = rng.range(-0.3, -0.1) as f32;
                let corner = [(-0.7, -0.7), (0.7, -0.7), (0.7, w), (w, w), (w, 0.7), (-0.7, 0.7)];
                (polygon(&corner), surface)
            }
            5 => {
                let h = rng.range(0.14, 0.25) as f32;
                (polygon(&[(-0.96, -h), (0.96, -h), (0.96, h), (-0.96, h)]), surface)
            }
            _ => (polygon(&[(-0.9, -0.4), (0.9, -0.4), (0.45, 0.4), (-0.45, 0.4)]), surface),
        }
    }

    /// Discs run together at random.
    pub(crate) fn blob(rng: &mut Rng) -> Self {
        let discs = (0..rng.between(3, 6)).map(|_| {
            let radius = rng.range(0.2, 0.45) as f32;
            let [x, y] = direction(rng);
            let away = (1.0 - radius) * rng.range(0.4, 1.0) as f32;
            ([away * x, away * y], radius)
        });
        Self::Discs(discs.collect())
    }

    /// Four corners, one in each quarter.
    pub(crate) fn quadrilateral(rng: &mut Rng) -> Self {
        let mut reach = || rng.range(0.3, 0.7) as f32;
        let corners = [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)];
        polygon(&corners.map(|(x, y)| (x * reach(), y * reach())))
    }

    /// A straight or slightly bent line.
    pub(crate) fn wire(rng: &mut Rng, half_width: f32) -> Self {
        let middle = [0.0, rng.range(-0.2, 0.2) as f32];
        let strokes = vec![Edge::new([-0.95, 0.0], middle), Edge::new(middle, [0.95, 0.0])];
        Self::Line { strokes, half_width }
    }

    /// A zigzag that reads like a word from afar.
    pub(crate) fn scribble(rng: &mut Rng, half_width: f32) -> Self {
        let count = rng.between(6, 12);
        let step = 1.7 / count as f32;
        let mut point = |i: u32| {
            let height = rng.range(0.05, 0.3) as f32;
            let x = -0.85 + step * (i as f32 + rng.range(-0.4, 0.4) as f32);
            [x, if i.is_multiple_of(2) { -height } else { height }]
        };
        let points: Vec<Point> = (0..=count).map(&mut point).collect();
        let strokes = points.windows(2).map(|pair| Edge::new(pair[0], pair[1])).collect();
        Self::Line { strokes, half_width }
    }
}

/// The unit circle and all that is in it.
pub(crate) const DISC: Outline = Outline::Round { hole: 0.0, cut: 1.0 };

/// A random unit vector.
pub(crate) fn direction(rng: &mut Rng) -> Point {
    let angle = rng.range(0.0, TAU.into());
    [libm::cos(angle) as f32, libm::sin(angle) as f32]
}

fn polygon(corners: &[(f32, f32)]) -> Outline {
    let next = corners.iter().cycle().skip(1);
    Outline::Polygon(
        corners.iter().zip(next).map(|(&(ax, ay), &(bx, by))| Edge::new([ax, ay], [bx, by])).collect(),
    )
}

/// Corners at equal angles, with these radii in turn; the first at angle 0.
fn corners_around(count: usize, radii: &[f32]) -> Outline {
    let corner = |i: usize| {
        let angle = TAU * i as f32 / count as f32;
        let radius = radii[i % radii.len()];
        (radius * libm::cosf(angle), radius * libm::sinf(angle))
    };
    polygon(&(0..count).map(corner).collect::<Vec<_>>())
}

fn regular(count: usize) -> Outline {
    corners_around(count, &[1.0])
}

fn star(inner_radius: f32) -> Outline {
    corners_around(10, &[1.0, inner_radius])
}

const SQUARE_HALF: f32 = 0.7;

fn square() -> Outline {
    let h = SQUARE_HALF;
    polygon(&[(-h, -h), (h, -h), (h, h), (-h, h)])
}

fn cross(w: f32) -> Outline {
    let a = 0.92;
    let arms = [(a, -w), (a, w), (w, w), (w, a), (-w, a), (-w, w)];
    let opposite = arms.map(|(x, y)| (-x, -y));
    polygon(&[arms, opposite].concat())
}

fn arrow(w: f32) -> Outline {
    let (neck, barb) = (0.0, 0.72);
    polygon(&[(1.0, 0.0), (neck, barb), (neck, w), (-0.94, w), (-0.94, -w), (neck, -w), (neck, -barb)])
}

fn length([x, y]: Point) -> f32 {
    (x * x + y * y).sqrt()
}

/// The distance of `p` to the nearest of some edges.
fn distance_to_nearest(edges: &[Edge], p: Point) -> f32 {
    edges.iter().fold(f32::INFINITY, |d, edge| d.min(edge.distance_squared(p))).sqrt()
}
