//! Axis-aligned affine maps between an image and its views.

use crate::Box2;

/// An axis-aligned affine map, `x → x_scale·x + x_shift` and likewise for `y`: every resize, flip
/// and shift of an image. A box stays a box under it; there is no rotation.
///
/// A view's map leads *from the image to the view*. A view always has an extent, so its map can be
/// inverted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    // f64, so that a box carried to a view and back is the same f32 box to rounding.
    x_scale: f64,
    y_scale: f64,
    x_shift: f64,
    y_shift: f64,
}

impl Affine {
    /// The map that changes nothing.
    pub const IDENTITY: Self = Self { x_scale: 1.0, y_scale: 1.0, x_shift: 0.0, y_shift: 0.0 };

    /// Resizing an image of `from` pixels (width, height) to one of `to` pixels.
    ///
    /// # Panics
    /// When an extent is 0: there is no such image.
    pub fn resize(from: (u32, u32), to: (u32, u32)) -> Self {
        assert!(
            from.0 > 0 && from.1 > 0 && to.0 > 0 && to.1 > 0,
            "a resize from {from:?} to {to:?} has no inverse"
        );
        Self {
            x_scale: f64::from(to.0) / f64::from(from.0),
            y_scale: f64::from(to.1) / f64::from(from.1),
            ..Self::IDENTITY
        }
    }

    /// Mirroring an image of this width left to right.
    pub fn flip_horizontal(width: u32) -> Self {
        Self { x_scale: -1.0, x_shift: f64::from(width), ..Self::IDENTITY }
    }

    /// Moving by `(x, y)` pixels.
    pub fn shift(x: f64, y: f64) -> Self {
        Self { x_shift: x, y_shift: y, ..Self::IDENTITY }
    }

    /// The map that does `self` first, then `next`.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        Self {
            x_scale: next.x_scale * self.x_scale,
            y_scale: next.y_scale * self.y_scale,
            x_shift: next.x_scale * self.x_shift + next.x_shift,
            y_shift: next.y_scale * self.y_shift + next.y_shift,
        }
    }

    /// The map back.
    #[must_use]
    pub fn inverse(self) -> Self {
        Self {
            x_scale: 1.0 / self.x_scale,
            y_scale: 1.0 / self.y_scale,
            x_shift: -self.x_shift / self.x_scale,
            y_shift: -self.y_shift / self.y_scale,
        }
    }

    /// The image of a point.
    pub fn point(self, x: f32, y: f32) -> (f32, f32) {
        let x = self.x_scale * f64::from(x) + self.x_shift;
        let y = self.y_scale * f64::from(y) + self.y_shift;
        (x as f32, y as f32)
    }

    /// The image of a box; its corners stay ordered under a flip.
    pub fn apply(self, b: Box2) -> Box2 {
        let (x1, y1) = self.point(b.x1, b.y1);
        let (x2, y2) = self.point(b.x2, b.y2);
        let (x1, x2) = if self.x_scale < 0.0 { (x2, x1) } else { (x1, x2) };
        let (y1, y2) = if self.y_scale < 0.0 { (y2, y1) } else { (y1, y2) };
        Box2::new(x1, y1, x2, y2)
    }
}
