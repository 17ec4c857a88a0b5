//! What is counted of a data set: boxes by class and by size, boxes per image.

use serde::Serialize;

use crate::{Annotation, Dataset};

/// COCO's sizes: an area below 32² pixels, below 96², and from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeClass {
    /// Below 32² pixels.
    Small,
    /// From 32² to below 96² pixels.
    Medium,
    /// From 96² pixels.
    Large,
}

impl SizeClass {
    /// In ascending order.
    pub const ALL: [Self; 3] = [Self::Small, Self::Medium, Self::Large];

    /// The size of an object with this area, in pixels.
    pub fn from_area(area: f64) -> Self {
        match area {
            area if area < 32.0 * 32.0 => Self::Small,
            area if area < 96.0 * 96.0 => Self::Medium,
            _ => Self::Large,
        }
    }

    /// `"small"`, `"medium"` or `"large"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
        }
    }
}

/// The counts of a whole data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    /// Of all classes; `images` counts every image, with boxes or without.
    pub all: Counts,
    /// Of each class, in the order of [`Dataset::categories`].
    pub classes: Vec<Counts>,
    /// How many boxes images have.
    pub boxes_per_image: BoxesPerImage,
}

/// What is counted of a class, or of all. Only boxes that are no crowd regions have a size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Without crowd regions.
    pub boxes: usize,
    /// Crowd regions.
    pub crowds: usize,
    /// Images with at least one of the boxes.
    pub images: usize,
    /// Boxes of [`SizeClass::Small`].
    pub small: usize,
    /// Boxes of [`SizeClass::Medium`].
    pub medium: usize,
    /// Boxes of [`SizeClass::Large`].
    pub large: usize,
}

/// The distribution of the number of boxes per image.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BoxesPerImage {
    /// The fewest.
    pub min: usize,
    /// Half of the images have at most this many.
    pub median: f64,
    /// The average.
    pub mean: f64,
    /// The most.
    pub max: usize,
}

impl Statistics {
    /// Counts a data set.
    pub fn new(dataset: &Dataset) -> Self {
        let mut classes = vec![Counts::default(); dataset.categories().len()];
        let mut all = Counts { images: dataset.images().len(), ..Counts::default() };
        let mut per_image = Vec::new();
        for image in 0..dataset.images().len() {
            let mut counted = Vec::new();
            for annotation in dataset.annotations_of(image) {
                let of_class = &mut classes[annotation.category];
                if !annotation.crowd && !counted.contains(&annotation.category) {
                    counted.push(annotation.category);
                    of_class.images += 1;
                }
                of_class.add(annotation);
                all.add(annotation);
            }
            per_image.push(dataset.annotations_of(image).filter(|a| !a.crowd).count());
        }
        Self { all, classes, boxes_per_image: BoxesPerImage::new(per_image) }
    }
}

impl Counts {
    fn add(&mut self, annotation: &Annotation) {
        if annotation.crowd {
            self.crowds += 1;
            return;
        }
        self.boxes += 1;
        match SizeClass::from_area(annotation.area) {
            SizeClass::Small => self.small += 1,
            SizeClass::Medium => self.medium += 1,
            SizeClass::Large => self.large += 1,
        }
    }
}

impl BoxesPerImage {
    fn new(mut counts: Vec<usize>) -> Self {
        counts.sort_unstable();
        let n = counts.len();
        let Some((&min, &max)) = counts.first().zip(counts.last()) else {
            return Self { min: 0, median: 0.0, mean: 0.0, max: 0 };
        };
        Self {
            min,
            median: (counts[(n - 1) / 2] + counts[n / 2]) as f64 / 2.0,
            mean: counts.iter().sum::<usize>() as f64 / n as f64,
            max,
        }
    }
}
