//! A detection data set in memory.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use lacuna_boxes::Box2;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::error::{Error, Result};

/// Images, classes and boxes, whatever files they came from.
///
/// A data set is an index over COCO JSON text: each record holds the fields that lacuna works with,
/// and where its whole text is. Writing a record copies that text, so whatever else a file says
/// about an image or a box comes out as it went in. Records from other formats get such a text when
/// they are read.
///
/// All references hold: every annotation's image and category exist, ids are unique, sizes are not
/// negative and corners finite in f32, there is an image and a category. Records are never changed in
/// place, so text and fields cannot disagree.
#[derive(Clone, Debug)]
pub struct Dataset {
    images: Vec<Image>,
    categories: Vec<Category>,
    annotations: Vec<Annotation>,
    /// Indices of annotations ordered by image; those of image `i` are at
    /// `first_of_image[i]..first_of_image[i + 1]`.
    by_image: Vec<u32>,
    first_of_image: Vec<u32>,
    /// The keys of the file's outermost object in their order, the three lists among them.
    pub(crate) keys: Vec<Key>,
    pub(crate) source: Arc<Vec<u8>>,
}

/// Where a record's JSON text is in the data set's source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text {
    pub start: usize,
    pub len: u32,
}

impl Text {
    pub(crate) fn range(self) -> Range<usize> {
        self.start..self.start + self.len as usize
    }
}

/// A key of the outermost object of a COCO file.
#[derive(Clone, Debug)]
pub(crate) enum Key {
    Images,
    Annotations,
    Categories,
    Other { name: String, value: Range<usize> },
}

/// An image of a data set.
#[derive(Clone, Debug)]
pub struct Image {
    /// The id in files.
    pub id: u64,
    /// The path from the split's image folder.
    pub file_name: String,
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
    pub(crate) text: Text,
}

/// A class of objects. Its *index* in [`Dataset::categories`] is the class number that detectors
/// see, `0..n_classes`; its `id` is what files say (COCO's run from 1 to 90 with gaps). This list is
/// the one place where the two meet.
#[derive(Clone, Debug)]
pub struct Category {
    /// The id in files.
    pub id: u64,
    /// The name.
    pub name: String,
    pub(crate) text: Text,
}

/// An annotated box.
#[derive(Clone, Debug)]
pub struct Annotation {
    /// The id in files.
    pub id: u64,
    /// Index in [`Dataset::images`].
    pub image: usize,
    /// Index in [`Dataset::categories`].
    pub category: usize,
    /// The box, in pixels.
    pub bbox: Xywh,
    /// What the file says (of the mask, in COCO), else the box's. It decides between small and large.
    pub area: f64,
    /// COCO's `iscrowd`: a region of many objects that nobody separated. Never sampled, never
    /// deleted, never trained on as an object.
    pub crowd: bool,
    pub(crate) text: Text,
}

/// A box as files have it: upper left corner and size, in pixels, as exact as the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xywh {
    /// The left side.
    pub x: f64,
    /// The top side.
    pub y: f64,
    /// In pixels.
    pub width: f64,
    /// In pixels.
    pub height: f64,
}

impl Xywh {
    /// The box by its corners, in `f32`.
    pub fn to_box(self) -> Box2 {
        // Corners in f64 first: x + width in f32 would round twice.
        let (x2, y2) = (self.x + self.width, self.y + self.height);
        Box2::new(self.x as f32, self.y as f32, x2 as f32, y2 as f32)
    }

    /// Whether its corners are numbers, also in f32, as they are trained on.
    pub(crate) fn is_finite(self) -> bool {
        let Box2 { x1, y1, x2, y2 } = self.to_box();
        [x1, y1, x2, y2].iter().all(|corner| corner.is_finite())
    }

    /// Width times height.
    pub fn area(self) -> f64 {
        self.width * self.height
    }

    /// The corners (x1, y1, x2, y2) of the part inside an image of this size; `None` when there is none.
    pub(crate) fn corners_within(self, width: u32, height: u32) -> Option<[f64; 4]> {
        let (x1, x2) = (self.x.max(0.0), (self.x + self.width).min(width.into()));
        let (y1, y2) = (self.y.max(0.0), (self.y + self.height).min(height.into()));
        (x1 <= x2 && y1 <= y2).then_some([x1, y1, x2, y2])
    }
}

/// The mark of a recovered box: an annotation that a detector added and nobody drew. Given to
/// [`Builder::annotation`], it becomes `"recovered": true` with `score` and `confidence` in the record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecoveredMark {
    score: Option<f64>,
    confidence: Option<f64>,
}

impl RecoveredMark {
    /// A mark with these numbers; those outside `[0, 1]` are left out.
    pub fn new(score: Option<f64>, confidence: Option<f64>) -> Self {
        let in_range = |value: &f64| (0.0..=1.0).contains(value);
        Self { score: score.filter(in_range), confidence: confidence.filter(in_range) }
    }

    /// The detector's own score.
    pub fn score(self) -> Option<f64> {
        self.score
    }

    /// The calibrated probability that the box is right.
    pub fn confidence(self) -> Option<f64> {
        self.confidence
    }
}

impl Serialize for RecoveredMark {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("recovered", &true)?;
        for (name, value) in [("score", self.score), ("confidence", self.confidence)] {
            if let Some(value) = value {
                map.serialize_entry(name, &value)?;
            }
        }
        map.end()
    }
}

/// An annotation as it is trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Object {
    /// The class number.
    pub class: usize,
    /// Inside the image, never degenerate.
    pub bbox: Box2,
}

impl Dataset {
    /// The images in the order of the file.
    pub fn images(&self) -> &[Image] {
        &self.images
    }

    /// The classes in the order of the file.
    pub fn categories(&self) -> &[Category] {
        &self.categories
    }

    /// The annotations in the order of the file.
    pub fn annotations(&self) -> &[Annotation] {
        &self.annotations
    }

    /// The annotations of the image with this index, in the file's order.
    pub fn annotations_of(&self, image: usize) -> impl ExactSizeIterator<Item = &Annotation> {
        self.indices_of(image).iter().map(|&a| &self.annotations[a as usize])
    }

    /// The same as indices in [`annotations`](Self::annotations).
    pub fn indices_of(&self, image: usize) -> &[u32] {
        &self.by_image[self.first_of_image[image] as usize..self.first_of_image[image + 1] as usize]
    }

    /// What a detector learns from this image: every annotation that is not a crowd, clipped to the
    /// image, unless nothing is left of it.
    pub fn objects_of(&self, image: usize) -> Vec<Object> {
        self.trained_on(image, false)
    }

    /// The crowd regions of this image, clipped likewise: neither objects nor background.
    pub fn crowds_of(&self, image: usize) -> Vec<Object> {
        self.trained_on(image, true)
    }

    fn trained_on(&self, image: usize, crowd: bool) -> Vec<Object> {
        let Image { width, height, .. } = self.images[image];
        self.annotations_of(image)
            .filter(|a| a.crowd == crowd)
            .map(|a| Object { class: a.category, bbox: a.bbox.to_box().clip(width as f32, height as f32) })
            .filter(|o| !o.bbox.is_degenerate())
            .collect()
    }

    /// The data set with only the annotations for which `keep` says so (it is given their index).
    #[must_use]
    pub fn filter(&self, keep: impl Fn(usize, &Annotation) -> bool) -> Self {
        let kept = self.annotations.iter().enumerate().filter(|(i, a)| keep(*i, a));
        Parts {
            images: self.images.clone(),
            categories: self.categories.clone(),
            annotations: kept.map(|(_, a)| a.clone()).collect(),
            keys: self.keys.clone(),
            source: self.source.clone(),
        }
        .index()
    }

    /// The data set with only the images for which `keep` says so (it is given their index), and their
    /// annotations.
    ///
    /// # Panics
    /// When no image is kept: a data set has one.
    #[must_use]
    pub fn with_images(&self, keep: impl Fn(usize) -> bool) -> Self {
        let mut new_index = vec![None; self.images.len()];
        let mut images = Vec::new();
        for (old, image) in self.images.iter().enumerate().filter(|(old, _)| keep(*old)) {
            new_index[old] = Some(images.len());
            images.push(image.clone());
        }
        assert!(!images.is_empty(), "a data set without images");
        let kept = self.annotations.iter();
        let kept = kept.filter_map(|a| new_index[a.image].map(|image| Annotation { image, ..a.clone() }));
        Parts {
            annotations: kept.collect(),
            images,
            categories: self.categories.clone(),
            keys: self.keys.clone(),
            source: self.source.clone(),
        }
        .index()
    }

    /// The data set with only the classes of these names, in the file's order. All images stay.
    ///
    /// # Errors
    /// [`Error::UnknownClass`].
    ///
    /// # Panics
    /// When there is no name: a data set has a class.
    pub fn restrict_to(&self, names: &[String]) -> Result<Self> {
        assert!(!names.is_empty(), "a data set without classes");
        if let Some(unknown) = names.iter().find(|n| !self.categories.iter().any(|c| c.name == **n)) {
            let known = self.categories.iter().map(|c| c.name.clone()).collect();
            return Err(Error::UnknownClass { name: unknown.clone(), known });
        }
        let mut categories = Vec::new();
        let mut new_index = HashMap::new();
        for (old, category) in self.categories.iter().enumerate() {
            if names.contains(&category.name) {
                new_index.insert(old, categories.len());
                categories.push(category.clone());
            }
        }
        let kept = self
            .annotations
            .iter()
            .filter_map(|a| new_index.get(&a.category).map(|&category| Annotation { category, ..a.clone() }));
        Ok(Parts {
            images: self.images.clone(),
            annotations: kept.collect(),
            categories,
            keys: self.keys.clone(),
            source: self.source.clone(),
        }
        .index())
    }

    /// Fields of an annotation's record that lacuna has no use for itself; `None` when they are not
    /// of the kinds that `T` wants.
    pub(crate) fn fields_of<'a, T: Deserialize<'a>>(&'a self, annotation: &Annotation) -> Option<T> {
        serde_json::from_slice(&self.source[annotation.text.range()]).ok()
    }

    /// The mark of a recovered box; `None` for an annotation that is not marked as one.
    pub fn recovered_mark(&self, annotation: &Annotation) -> Option<RecoveredMark> {
        #[derive(Deserialize)]
        struct Record {
            recovered: bool,
            score: Option<Value>,
            confidence: Option<Value>,
        }
        let Record { recovered, score, confidence } = self.fields_of(annotation)?;
        let number = |value: Option<Value>| value.and_then(|value| value.as_f64());
        recovered.then(|| RecoveredMark::new(number(score), number(confidence)))
    }
}

/// A data set without its index of annotations by image.
pub(crate) struct Parts {
    pub images: Vec<Image>,
    pub categories: Vec<Category>,
    pub annotations: Vec<Annotation>,
    pub keys: Vec<Key>,
    pub source: Arc<Vec<u8>>,
}

impl Parts {
    /// Order the annotations by image (a counting sort: within an image the file's order stays).
    pub(crate) fn index(self) -> Dataset {
        let Self { images, categories, annotations, keys, source } = self;
        let mut first_of_image = vec![0u32; images.len() + 1];
        for a in &annotations {
            first_of_image[a.image + 1] += 1;
        }
        for i in 0..images.len() {
            first_of_image[i + 1] += first_of_image[i];
        }
        let mut next = first_of_image.clone();
        let mut by_image = vec![0; annotations.len()];
        for (index, a) in annotations.iter().enumerate() {
            by_image[next[a.image] as usize] = index as u32;
            next[a.image] += 1;
        }
        Dataset { images, categories, annotations, by_image, first_of_image, keys, source }
    }
}

/// Makes a data set from records that are not COCO's. Ids are given in order, from 1, or after the largest of
/// the data set that is extended.
pub struct Builder {
    parts: Parts,
    source: Vec<u8>,
    next_annotation: u64,
}

impl Default for Builder {
    fn default() -> Self {
        let keys = vec![Key::Images, Key::Annotations, Key::Categories];
        let parts = Parts {
            images: Vec::new(),
            categories: Vec::new(),
            annotations: Vec::new(),
            keys,
            source: Arc::default(),
        };
        Self { parts, source: Vec::new(), next_annotation: 1 }
    }
}

impl Builder {
    /// To add annotations to a data set; all that it has stays as it is.
    pub fn extending(dataset: &Dataset) -> Self {
        let Dataset { images, categories, annotations, keys, source, .. } = dataset.clone();
        let largest = annotations.iter().map(|annotation| annotation.id).max();
        let parts = Parts { images, categories, annotations, keys, source: Arc::default() };
        Self { parts, source: source.to_vec(), next_annotation: largest.map_or(1, |largest| largest + 1) }
    }

    /// Add a class; its index.
    pub fn category(&mut self, name: &str) -> usize {
        let id = self.parts.categories.len() as u64 + 1;
        let text = self.text(&CategoryRecord { id, name });
        self.parts.categories.push(Category { id, name: name.into(), text });
        self.parts.categories.len() - 1
    }

    /// Add an image; its index.
    ///
    /// # Panics
    /// When it has no extent.
    pub fn image(&mut self, file_name: &str, width: u32, height: u32) -> usize {
        assert!(width > 0 && height > 0, "{file_name} is {width}×{height} pixels");
        let id = self.parts.images.len() as u64 + 1;
        let text = self.text(&ImageRecord { id, file_name, width, height });
        self.parts.images.push(Image { id, file_name: file_name.into(), width, height, text });
        self.parts.images.len() - 1
    }

    /// Add an annotation. `more` is a struct of further fields for its record, or `()`.
    ///
    /// # Panics
    /// When there is no such image or category, or the box is not finite or has a negative size:
    /// readers check what they read.
    pub fn annotation(
        &mut self,
        image: usize,
        category: usize,
        bbox: Xywh,
        crowd: bool,
        more: impl Serialize,
    ) {
        self.annotation_of_area(image, category, (bbox, bbox.area()), crowd, more);
    }

    /// The same for a box that an area other than its own is known of: that of a mask.
    ///
    /// # Panics
    /// As [`annotation`](Self::annotation).
    pub fn annotation_of_area(
        &mut self,
        image: usize,
        category: usize,
        (bbox, area): (Xywh, f64),
        crowd: bool,
        more: impl Serialize,
    ) {
        let Xywh { x, y, width, height } = bbox;
        assert!(bbox.is_finite() && width >= 0.0 && height >= 0.0, "an annotation with {bbox:?}");
        let id = self.next_annotation;
        self.next_annotation += 1;
        let text = self.text(&AnnotationRecord {
            id,
            image_id: self.parts.images[image].id,
            category_id: self.parts.categories[category].id,
            bbox: [x, y, width, height],
            area,
            iscrowd: u8::from(crowd),
            more,
        });
        self.parts.annotations.push(Annotation { id, image, category, bbox, area, crowd, text });
    }

    fn text(&mut self, record: &impl Serialize) -> Text {
        let start = self.source.len();
        serde_json::to_writer(&mut self.source, record).expect("a record is written to memory");
        Text { start, len: (self.source.len() - start) as u32 }
    }

    /// # Panics
    /// When there is no image or no category.
    pub fn finish(mut self) -> Dataset {
        assert!(!self.parts.images.is_empty() && !self.parts.categories.is_empty(), "an empty data set");
        self.parts.source = Arc::new(self.source);
        self.parts.index()
    }
}

#[derive(Serialize)]
struct CategoryRecord<'a> {
    id: u64,
    name: &'a str,
}

#[derive(Serialize)]
struct ImageRecord<'a> {
    id: u64,
    file_name: &'a str,
    width: u32,
    height: u32,
}

#[derive(Serialize)]
struct AnnotationRecord<T> {
    id: u64,
    image_id: u64,
    category_id: u64,
    bbox: [f64; 4],
    area: f64,
    iscrowd: u8,
    #[serde(flatten)]
    more: T,
}
