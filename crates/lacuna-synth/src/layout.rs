//! The layout of a scene: where each figure lies, and how much of each object is visible. Nothing is painted here.

use lacuna_boxes::{Box2, iou};
use lacuna_random::Rng;

use crate::outline::{DISC, Outline};
use crate::stamp::{Pose, Stamp};
use crate::surface::Surface;
use crate::{BOX_IOU_MAX, SceneObject, SynthConfig, VISIBLE_MIN, VISIBLE_SIDE_MIN};

/// An outline with its surface, somewhere in the picture.
pub(crate) struct Figure {
    pub outline: Outline,
    pub surface: Surface,
    pub pose: Pose,
    pub stamp: Stamp,
    pub role: Role,
}

/// The purpose of a figure in a scene.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    /// An object of this class.
    Object(usize),
    /// A distractor that has something of a class.
    LookAlike,
    /// Any other distractor.
    Clutter,
}

/// The figures of a scene, from the back to the front.
pub(crate) struct Layout {
    width: usize,
    height: usize,
    pub figures: Vec<Figure>,
    objects: Vec<Tracked>,
    /// The object (an index into `objects`) that is visible at each pixel.
    visible_at: Vec<Option<u16>>,
    /// The pixels that are kept clear around a look-alike.
    clear: Vec<bool>,
}

/// How much of an object is visible while further figures are laid over it.
#[derive(Clone)]
struct Tracked {
    class: usize,
    /// Its pixels, those outside the picture included.
    whole: u32,
    visible: u32,
    bbox: PixelBox,
}

/// The rectangle of some pixels; the end is not included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PixelBox {
    pub left: usize,
    pub top: usize,
    pub right: usize,
    pub bottom: usize,
}

/// The number of positions tried for an object, each a little smaller, before it is left out.
const OBJECT_TRIES: u32 = 25;
/// The same for a distractor.
const DISTRACTOR_TRIES: u32 = 4;

/// Lay out a scene of this size.
///
/// An object stays visible once it is placed, so the number of objects only grows. A layout with too few
/// of them is discarded, and the next attempt has smaller objects and less clutter. This ends: objects of
/// the smallest size without clutter always fit, which [`SynthConfig::check`] guarantees.
pub(crate) fn lay_out(config: &SynthConfig, width: u32, height: u32, rng: &mut Rng) -> Layout {
    let mut fullness = 1.0;
    loop {
        let layout = attempt(config, width as usize, height as usize, fullness, rng);
        if layout.objects.len() >= *config.objects.start() as usize {
            return layout;
        }
        fullness *= 0.8;
    }
}

fn attempt(config: &SynthConfig, width: usize, height: usize, fullness: f32, rng: &mut Rng) -> Layout {
    struct Planned {
        role: Role,
        side: f32,
        /// From the back to the front.
        depth: f64,
    }
    let side_max = (fullness * config.side_max * width.min(height) as f32).max(config.side_min);
    let mut planned = Vec::new();
    for _ in 0..rng.between(*config.objects.start(), *config.objects.end()) {
        let role = Role::Object(config.classes[rng.below(config.classes.len())]);
        let size = rng.unit();
        // Small ones lie mostly in front: behind, they would be hidden.
        let depth = 0.6 * (1.0 - size) + 0.4 * rng.unit();
        planned.push(Planned { role, side: log_between(config.side_min, side_max, size), depth });
    }
    let distractors = (fullness * config.clutter * rng.between(10, 24) as f32) as u32;
    for _ in 0..distractors {
        let side = log_between(config.side_min, 0.7 * side_max, rng.unit());
        let (role, depth) = if rng.chance(0.4) {
            // In front of all others: half covered, it might be the thing it resembles, and then it
            // would be an object without a label.
            (Role::LookAlike, rng.range(1.0, 2.0))
        } else {
            (Role::Clutter, rng.range(-1.0, 1.0))
        };
        planned.push(Planned { role, side, depth });
    }
    planned.sort_by(|a, b| a.depth.total_cmp(&b.depth));

    let mut layout = Layout::new(width, height);
    for Planned { role, mut side, .. } in planned {
        let tries = if let Role::Object(_) = role { OBJECT_TRIES } else { DISTRACTOR_TRIES };
        for _ in 0..tries {
            if layout.place(random_figure(role, side, width, height, rng)) {
                break;
            }
            side = (0.93 * side).max(config.side_min);
        }
    }
    layout
}

/// Interpolate on a logarithmic scale: `low` at 0, `high` at 1.
fn log_between(low: f32, high: f32, t: f64) -> f32 {
    (f64::from(low) * libm::pow(f64::from(high / low), t)) as f32
}

/// Draw a figure for this role, anywhere in the picture.
fn random_figure(role: Role, side: f32, width: usize, height: usize, rng: &mut Rng) -> Figure {
    let (outline, surface, pose) = match role {
        Role::Object(class) => {
            let (outline, surface) = Outline::of_class(class, rng);
            (outline, surface, random_pose(side, 0.0, width, height, rng))
        }
        Role::LookAlike => {
            let (outline, surface) = Outline::look_alike(rng);
            // Very small, or cut off by the border, it might be what it resembles.
            let side = side.max(22.0);
            (outline, surface, random_pose(side, 0.7 * side, width, height, rng))
        }
        Role::Clutter => match rng.below(3) {
            0 => (Outline::blob(rng), Surface::borrowed(rng), random_pose(side, 0.0, width, height, rng)),
            1 => {
                let side = side.max(30.0);
                let half_width = 2.0 * rng.range(0.5, 1.2) as f32 / side;
                (
                    Outline::scribble(rng, half_width),
                    Surface::Plain,
                    random_pose(side, 0.0, width, height, rng),
                )
            }
            _ => {
                let side = rng.range(0.3, 1.2) as f32 * width.min(height) as f32;
                let half_width = 2.0 * rng.range(0.5, 2.0) as f32 / side;
                (Outline::wire(rng, half_width), Surface::Plain, random_pose(side, 0.0, width, height, rng))
            }
        },
    };
    let stamp = Stamp::new(&outline, &pose, 1.0);
    Figure { outline, surface, pose, stamp, role }
}

/// A random pose with its center at least `inset` inside the picture.
fn random_pose(side: f32, inset: f32, width: usize, height: usize, rng: &mut Rng) -> Pose {
    let mut along = |size: usize| {
        let inset = f64::from(inset).min(0.5 * size as f64);
        rng.range(inset, size as f64 - inset) as f32
    };
    let center = [along(width), along(height)];
    let squeeze = rng.range(0.62, 1.0) as f32;
    Pose::new(center, 0.5 * side / squeeze.sqrt(), squeeze, rng)
}

impl Layout {
    fn new(width: usize, height: usize) -> Self {
        let (visible_at, clear) = (vec![None; width * height], vec![false; width * height]);
        Self { width, height, figures: Vec::new(), objects: Vec::new(), visible_at, clear }
    }

    /// Lay `figure` over the others and return true, unless it makes an object impossible to label or
    /// touches another look-alike.
    fn place(&mut self, figure: Figure) -> bool {
        let Some(objects) = self.objects_under(&figure) else { return false };
        if let Role::LookAlike = figure.role
            && !self.clear_around(&figure.pose)
        {
            return false;
        }
        let index = match figure.role {
            Role::Object(_) => Some(self.objects.len() as u16),
            Role::LookAlike | Role::Clutter => None,
        };
        figure
            .stamp
            .for_each_own(self.width, self.height, |x, y| self.visible_at[y * self.width + x] = index);
        self.objects = objects;
        self.figures.push(figure);
        true
    }

    /// Reserve the circle around a look-alike. False when it meets the circle of another one.
    fn clear_around(&mut self, pose: &Pose) -> bool {
        let circle = Stamp::new(&DISC, pose, 1.0);
        let mut is_free = true;
        circle.for_each_own(self.width, self.height, |x, y| is_free &= !self.clear[y * self.width + x]);
        if is_free {
            circle.for_each_own(self.width, self.height, |x, y| self.clear[y * self.width + x] = true);
        }
        is_free
    }

    /// The objects once `figure` covers them, itself included if it is an object; `None` when one of them
    /// could not be labeled.
    fn objects_under(&self, figure: &Figure) -> Option<Vec<Tracked>> {
        let mut objects = self.objects.clone();
        let (mut own, mut own_visible) = (PixelBox::NONE, 0);
        figure.stamp.for_each_own(self.width, self.height, |x, y| {
            own.include(x, y);
            own_visible += 1;
            if let Some(covered) = self.visible_at[y * self.width + x] {
                objects[covered as usize].visible -= 1;
            }
        });
        if let Role::Object(class) = figure.role {
            let whole = figure.stamp.pixel_count();
            objects.push(Tracked { class, whole, visible: own_visible, bbox: own });
        }
        if objects.iter().any(|object| object.visible_share() < VISIBLE_MIN) {
            return None;
        }
        for (index, before) in self.objects.iter().enumerate() {
            if objects[index].visible < before.visible {
                objects[index].bbox = self.bbox_beside(index as u16, &figure.stamp);
            }
        }
        let boxes: Vec<Box2> = objects.iter().map(|object| object.bbox.to_box()).collect();
        let is_large = |b: &Box2| b.width().min(b.height()) >= VISIBLE_SIDE_MIN as f32;
        let is_distinct = |i: usize| (0..i).all(|j| iou(boxes[i], boxes[j]) <= BOX_IOU_MAX);
        (boxes.iter().all(is_large) && (0..boxes.len()).all(is_distinct)).then_some(objects)
    }

    /// The rectangle of the visible pixels of an object that `stamp` does not cover.
    fn bbox_beside(&self, index: u16, stamp: &Stamp) -> PixelBox {
        let before = self.objects[index as usize].bbox;
        let mut bbox = PixelBox::NONE;
        for y in before.top..before.bottom {
            for x in before.left..before.right {
                if self.visible_at[y * self.width + x] == Some(index) && !stamp.covers(x, y) {
                    bbox.include(x, y);
                }
            }
        }
        bbox
    }

    /// The objects with their labels, from the back to the front.
    pub(crate) fn objects(&self) -> Vec<SceneObject> {
        let label = |object: &Tracked| SceneObject {
            class: object.class,
            bbox: object.bbox.to_box(),
            visible: object.visible_share(),
        };
        self.objects.iter().map(label).collect()
    }
}

impl Tracked {
    fn visible_share(&self) -> f32 {
        self.visible as f32 / self.whole.max(1) as f32
    }
}

impl PixelBox {
    /// The rectangle of no pixels.
    pub(crate) const NONE: Self = Self { left: usize::MAX, top: usize::MAX, right: 0, bottom: 0 };

    pub(crate) fn include(&mut self, x: usize, y: usize) {
        self.left = self.left.min(x);
        self.top = self.top.min(y);
        self.right = self.right.max(x + 1);
        self.bottom = self.bottom.max(y + 1);
    }

    pub(crate) fn to_box(self) -> Box2 {
        Box2::new(self.left as f32, self.top as f32, self.right as f32, self.bottom as f32)
    }
}
