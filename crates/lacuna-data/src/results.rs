//! COCO results files: the detections of any framework.
//!
//! A file is one JSON list of objects with `image_id`, `category_id`, `bbox` (x, y, width, height) and
//! `score`; lacuna adds `confidence`, the calibrated score. Whatever else an entry says
//! is copied when the list is written again.

use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use lacuna_boxes::{Detection, Score};
use rayon::prelude::*;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::dataset::{Dataset, Text, Xywh};
use crate::document::{self, Document, Ids, Wanted, Whole, first_wrong_field};
use crate::error::{DetectionFault, Error, Result};

type Fault = document::Fault<DetectionFault>;

/// The detections of a results file, each of an image and a class of one data set.
///
/// An index over the file's text, as a [`Dataset`] is: in memory there are the text and 88 bytes an
/// entry.
#[derive(Clone, Debug)]
pub struct Results {
    entries: Vec<Entry>,
    /// Where each entry's JSON text is in the source.
    texts: Vec<Text>,
    n_images: usize,
    source: Vec<u8>,
}

/// One detection, as exact as the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    /// Index in [`Dataset::images`].
    pub image: usize,
    /// Index in [`Dataset::categories`].
    pub class: usize,
    /// Finite, also as corners in f32; neither side is negative, but one may be 0.
    pub bbox: Xywh,
    /// In `[0, 1]`.
    pub score: f64,
    /// In `[0, 1]`.
    pub confidence: Option<f64>,
}

/// What becomes of an entry when it is written again; `None` leaves a field as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rewrite {
    /// The new score, in `[0, 1]`.
    pub score: Option<f64>,
    /// The new confidence, in `[0, 1]`.
    pub confidence: Option<f64>,
}

impl Results {
    /// Read the detections on the images of a data set.
    ///
    /// # Errors
    /// The first thing in the file that is no detection on this data set, with its line.
    pub fn read(path: &Path, dataset: &Dataset) -> Result<Self> {
        Self::parse(fs::read(path).map_err(Error::read(path))?, path, dataset)
    }

    /// [`read`](Self::read) from memory; `path` is for messages.
    pub fn parse(source: Vec<u8>, path: &Path, dataset: &Dataset) -> Result<Self> {
        let document = Document::new(path, &source)?;
        let mut texts = walk(&document)?;
        texts.shrink_to_fit();
        let images = Ids::new(dataset.images().iter().map(|image| image.id));
        let categories = Ids::new(dataset.categories().iter().map(|category| category.id));
        let entries = document
            .parse_all(&texts, |record, _| entry(record, &images, &categories))
            .map_err(|(n, fault)| refuse(&document, n, texts[n], fault))?;
        Ok(Self { entries, texts, n_images: dataset.images().len(), source })
    }

    /// The detections in the file's order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The detections of each image of the data set, the best first and of equal score in the file's
    /// order, each with its index in [`entries`](Self::entries).
    pub fn detections(&self) -> Vec<Vec<(usize, Detection)>> {
        let mut counts = vec![0; self.n_images];
        self.entries.iter().for_each(|entry| counts[entry.image] += 1);
        let mut of_images: Vec<Vec<_>> = counts.into_iter().map(Vec::with_capacity).collect();
        for (index, entry) in self.entries.iter().enumerate() {
            let &Entry { image, class, bbox, score, .. } = entry;
            let score = Score(score as f32);
            of_images[image].push((index, Detection { bbox: bbox.to_box(), class, score }));
        }
        // Scores that differ in the file may be one in f32: the file's decide.
        let score = |&(index, _): &(usize, Detection)| self.entries[index].score;
        of_images.par_iter_mut().for_each(|of_image| of_image.sort_by(|a, b| score(b).total_cmp(&score(a))));
        of_images
    }

    /// Entries that say again what an earlier one says: the same image, class, box and score. For each
    /// the index of the first of them and its own, in the file's order.
    pub fn duplicates(&self) -> Vec<(usize, usize)> {
        let key = |index: usize| {
            let Entry { image, class, bbox: Xywh { x, y, width, height }, score, .. } = self.entries[index];
            // 0 and −0 are one number.
            (image, class, [x, y, width, height, score].map(|value| (value + 0.0).to_bits()))
        };
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        order.par_sort_unstable_by_key(|&index| (key(index), index));
        let alike = order.chunk_by(|&a, &b| key(a) == key(b));
        let mut repeated: Vec<(usize, usize)> =
            alike.flat_map(|group| group[1..].iter().map(|&index| (group[0], index))).collect();
        repeated.sort_unstable_by_key(|&(_, index)| index);
        repeated
    }

    /// Write the list again, an entry a line. `rewrite` is asked for each entry, by its index; a field
    /// that it sets is replaced where it is, or added at the entry's end. All else is copied as it was.
    /// Numbers are written in the shortest form that reads back as the same f64.
    ///
    /// # Panics
    /// When a number that `rewrite` gives is not in `[0, 1]`.
    pub fn write(&self, out: &mut impl Write, rewrite: impl Fn(usize) -> Rewrite) -> io::Result<()> {
        out.write_all(b"[")?;
        for (index, text) in self.texts.iter().enumerate() {
            out.write_all(if index == 0 { b"\n" } else { b",\n" })?;
            write_entry(&self.source[text.range()], rewrite(index), out)?;
        }
        out.write_all(b"\n]\n")
    }
}

/// The first pass: the bounds of every entry.
fn walk(document: &Document) -> Result<Vec<Text>> {
    let not_results = |reason: &'static str| Err(Error::NotResults { path: document.path().into(), reason });
    let start = document.start();
    match document.bytes.get(start) {
        Some(b'[') => {}
        Some(b'{') if is_annotation_file(&document.bytes[start..]) => {
            return not_results("it is an annotation file");
        }
        Some(b'{') => return not_results("it is an object"),
        Some(b'"' | b'0'..=b'9' | b'-' | b't' | b'f' | b'n') => {
            let (_, end) = document.value::<&RawValue>(start)?;
            document.end_of_text(end)?;
            return not_results("it is a single value");
        }
        None => return not_results("it is empty"),
        Some(_) => return Err(document.unexpected(start, "a JSON list")),
    }
    let (texts, end) = document.records(start, |n| format!("detection {n}"))?;
    document.end_of_text(end)?;
    Ok(texts)
}

/// Whether the text is an object with the lists of an annotation file.
fn is_annotation_file(text: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Keys {
        #[serde(rename = "images")]
        _images: IgnoredAny,
        #[serde(rename = "annotations")]
        _annotations: IgnoredAny,
    }
    serde_json::from_slice::<Keys>(text).is_ok()
}

fn entry(record: &[u8], images: &Ids, categories: &Ids) -> std::result::Result<Entry, Fault> {
    #[derive(Deserialize)]
    struct Record {
        image_id: Whole,
        category_id: Whole,
        bbox: Option<[f64; 4]>,
        score: f64,
        confidence: Option<f64>,
    }
    let Record { image_id, category_id, bbox, score, confidence } = serde_json::from_slice(record)?;
    let (Whole(image_id), Whole(category_id)) = (image_id, category_id);
    let image =
        images.index(image_id).ok_or(Fault::Meaning(DetectionFault::UnknownImage { image: image_id }))?;
    let class = categories
        .index(category_id)
        .ok_or(Fault::Meaning(DetectionFault::UnknownCategory { category: category_id }))?;
    let bbox = bbox.ok_or_else(|| Fault::Meaning(DetectionFault::NoBox { instead: instead(record) }))?;
    let [x, y, width, height] = bbox;
    let xywh = Xywh { x, y, width, height };
    if !xywh.is_finite() {
        return Err(Fault::Meaning(DetectionFault::HugeBox { bbox }));
    }
    if width < 0.0 || height < 0.0 {
        return Err(Fault::Meaning(DetectionFault::NegativeBox { bbox }));
    }
    for (field, value) in [("score", Some(score)), ("confidence", confidence)] {
        if let Some(value) = value.filter(|value| !(0.0..=1.0).contains(value)) {
            return Err(Fault::Meaning(DetectionFault::OutOfRange { field, value }));
        }
    }
    Ok(Entry { image, class, bbox: xywh, score, confidence })
}

/// What an entry without a box has in its place.
fn instead(record: &[u8]) -> Option<&'static str> {
    let record: Map<String, Value> = serde_json::from_slice(record).ok()?;
    ["segmentation", "keypoints"].into_iter().find(|key| record.contains_key(*key))
}

/// The error for a detection, in the user's terms.
fn refuse(document: &Document, detection: usize, text: Text, fault: Fault) -> Error {
    let fault = match fault {
        Fault::Meaning(fault) => fault,
        Fault::Json(error) => {
            let record = serde_json::from_slice::<Map<String, Value>>(&document.bytes[text.range()]);
            let Ok(record) = record else {
                return document.not_json(text, &format!("detection {detection}"), &error);
            };
            let mut wanted = vec![
                ("image_id", Wanted::Whole),
                ("category_id", Wanted::Whole),
                ("bbox", Wanted::FourNumbers),
                ("score", Wanted::Number),
            ];
            if record.get("confidence").is_some_and(|confidence| !confidence.is_null()) {
                wanted.push(("confidence", Wanted::Number));
            }
            let (field, problem) = first_wrong_field(&record, &wanted);
            DetectionFault::Field { field, problem }
        }
    };
    Error::Detection { path: document.path().into(), line: document.line(text.start), detection, fault }
}

/// Write an entry with some of its fields set.
fn write_entry(record: &[u8], rewrite: Rewrite, out: &mut impl Write) -> io::Result<()> {
    if rewrite == Rewrite::default() {
        return out.write_all(record);
    }
    let spans = ValueSpans::find(record);
    let mut replaced: Vec<(Range<usize>, f64)> = Vec::new();
    let mut added = Vec::new();
    for (name, place, value) in
        [("score", spans.score, rewrite.score), ("confidence", spans.confidence, rewrite.confidence)]
    {
        let Some(value) = value else { continue };
        assert!((0.0..=1.0).contains(&value), "a {name} of {value}");
        match place {
            Some(place) => replaced.push((place, value)),
            None => added.push((name, value)),
        }
    }
    replaced.sort_by_key(|(place, _)| place.start);
    let mut copied = 0;
    for (place, value) in replaced {
        out.write_all(&record[copied..place.start])?;
        serde_json::to_writer(&mut *out, &value)?;
        copied = place.end;
    }
    // What is added comes after the last value, before the space that may precede the brace.
    let end = record[..record.len() - 1].trim_ascii_end().len();
    out.write_all(&record[copied..end])?;
    for (name, value) in added {
        write!(out, ", \"{name}\": ")?;
        serde_json::to_writer(&mut *out, &value)?;
    }
    out.write_all(&record[end..])
}

/// The byte ranges of the values that can be rewritten.
struct ValueSpans {
    score: Option<Range<usize>>,
    confidence: Option<Range<usize>>,
}

impl ValueSpans {
    /// # Panics
    /// When the record is not one that [`entry`] reads.
    fn find(record: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Record<'a> {
            #[serde(borrow, default, deserialize_with = "present")]
            score: Option<&'a RawValue>,
            #[serde(borrow, default, deserialize_with = "present")]
            confidence: Option<&'a RawValue>,
        }
        // As an option alone, a field that is there and null would be none.
        fn present<'de, D: Deserializer<'de>>(
            value: D,
        ) -> std::result::Result<Option<&'de RawValue>, D::Error> {
            Deserialize::deserialize(value).map(Some)
        }
        let Record { score, confidence } = serde_json::from_slice(record).expect("it was read before");
        // The values are borrowed from the record, so that their addresses say where in it they are.
        let place = |value: &RawValue| {
            let start = value.get().as_ptr().addr() - record.as_ptr().addr();
            start..start + value.get().len()
        };
        Self { score: score.map(place), confidence: confidence.map(place) }
    }
}
