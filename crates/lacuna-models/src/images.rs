//! What a detector is given: a batch of views, and the targets in them.

use burn::Tensor;
use lacuna_boxes::{Affine, Box2};

/// A batch of views.
#[derive(Clone, Debug)]
pub struct Images {
    /// `[N, H, W, 3]`, normalized; zero to the right of and below each view.
    pub pixels: Tensor<4>,
    /// SAOD's second view: the same geometry in other colors. Only a detector with `two_views` reads it.
    pub second_view: Option<Tensor<4>>,
    /// Width and height of each view in `pixels`.
    pub sizes: Vec<(u32, u32)>,
    /// The map from each image to its view. Boxes outside a detector are in the image's coordinates.
    pub to_view: Vec<Affine>,
}

impl Images {
    pub(crate) fn check(&self) {
        let [batch, ..] = self.pixels.dims();
        let (sizes, maps) = (self.sizes.len(), self.to_view.len());
        assert!(sizes == batch && maps == batch, "{batch} images with {sizes} sizes and {maps} maps");
    }

    /// Height and width with the padding.
    pub(crate) fn padded(&self) -> (usize, usize) {
        let [_, height, width, _] = self.pixels.dims();
        (height, width)
    }

    /// The part of a box inside view `image`.
    pub(crate) fn clip(&self, image: usize, bbox: Box2) -> Box2 {
        let (width, height) = self.sizes[image];
        bbox.clip(width as f32, height as f32)
    }

    /// Each image's targets in the coordinates of its view. Degenerate boxes are left out.
    pub(crate) fn targets_in_views(&self, targets: &[Vec<Target>], n_classes: usize) -> Vec<Objects> {
        assert_eq!(targets.len(), self.sizes.len(), "targets for {} views", self.sizes.len());
        for (image, targets) in targets.iter().enumerate() {
            for Target { class, .. } in targets {
                assert!(*class < n_classes, "a target of image {image} is of class {class}, of {n_classes}");
            }
        }
        let in_view = |(image, targets): (usize, &Vec<Target>)| {
            let mut objects = Objects::default();
            for &Target { bbox, class, learn_box } in targets {
                let bbox = self.to_view[image].apply(bbox);
                if !bbox.is_degenerate() && bbox.area().is_finite() {
                    objects.boxes.push(bbox);
                    objects.classes.push(class);
                    objects.learn_box.push(learn_box);
                }
            }
            objects
        };
        targets.iter().enumerate().map(in_view).collect()
    }
}

/// An object that the detector learns to find, in the image's coordinates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Its box.
    pub bbox: Box2,
    /// Its class, from 0.
    pub class: usize,
    /// Whether the box is learned, or the class alone. A sample that matches such a target learns no other target's box
    /// either.
    pub learn_box: bool,
}

/// The targets of one view, in its coordinates.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) boxes: Vec<Box2>,
    pub(crate) classes: Vec<usize>,
    pub(crate) learn_box: Vec<bool>,
}
