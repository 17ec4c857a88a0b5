//! COCO annotation files.
//!
//! Polygons, which are most of a file, are passed over and never stored: the data set keeps the file's
//! text and copies from it.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::dataset::{Annotation, Category, Dataset, Image, Key, Parts, Text, Xywh};
use crate::document::{self, Document, Ids, Wanted, Whole, first_wrong_field};
use crate::error::{Error, Result};

type Fault = document::Fault<String>;

/// Read a COCO annotation file.
///
/// # Errors
/// The first thing in the file that no data set can have, with its line.
pub fn read(path: &Path) -> Result<Dataset> {
    parse(fs::read(path).map_err(Error::read(path))?, path)
}

/// [`read`] from memory; `path` is for messages.
pub fn parse(source: Vec<u8>, path: &Path) -> Result<Dataset> {
    let document = Document::new(path, &source)?;
    let lists = document.walk()?;

    let images = document.parse_list(&lists.images, "images", image)?;
    let categories = document.parse_list(&lists.categories, "categories", category)?;
    for (what, none) in [("images", images.is_empty()), ("categories", categories.is_empty())] {
        if none {
            return Err(Error::Empty { path: path.into(), what });
        }
    }
    let image_index = document.ids(images.iter().map(|i| i.id), &lists.images, "image")?;
    let category_index = document.ids(categories.iter().map(|c| c.id), &lists.categories, "category")?;
    let annotations = document.parse_list(&lists.annotations, "annotations", |raw, text| {
        annotation(raw, text, &image_index, &category_index)
    })?;
    document.ids(annotations.iter().map(|a| a.id), &lists.annotations, "annotation")?;

    let Lists { keys, .. } = lists;
    Ok(Parts { images, categories, annotations, keys, source: Arc::new(source) }.index())
}

/// Write a data set as COCO JSON, a record a line. Every record and every further key of the file
/// it came from is copied as it was.
pub fn write(dataset: &Dataset, out: &mut impl Write) -> io::Result<()> {
    let source = &dataset.source;
    let list = |out: &mut dyn Write, name: &str, texts: &mut dyn Iterator<Item = Text>| {
        write!(out, "\"{name}\": [")?;
        for (n, text) in texts.enumerate() {
            out.write_all(if n == 0 { b"\n" } else { b",\n" })?;
            out.write_all(&source[text.range()])?;
        }
        out.write_all(b"\n]")
    };
    for (n, key) in dataset.keys.iter().enumerate() {
        out.write_all(if n == 0 { b"{\n" } else { b",\n" })?;
        match key {
            Key::Images => list(out, "images", &mut dataset.images().iter().map(|i| i.text))?,
            Key::Annotations => list(out, "annotations", &mut dataset.annotations().iter().map(|a| a.text))?,
            Key::Categories => list(out, "categories", &mut dataset.categories().iter().map(|c| c.text))?,
            Key::Other { name, value } => {
                serde_json::to_writer(&mut *out, name)?;
                out.write_all(b": ")?;
                out.write_all(&source[value.clone()])?;
            }
        }
    }
    out.write_all(b"\n}\n")
}

/// Where the records of the three lists are, and every key in order.
struct Lists {
    keys: Vec<Key>,
    images: Vec<Text>,
    annotations: Vec<Text>,
    categories: Vec<Text>,
}

impl Document<'_> {
    /// The first pass: the keys of the outermost object and the bounds of every record.
    fn walk(&self) -> Result<Lists> {
        let mut at = self.start();
        match self.bytes.get(at) {
            Some(b'{') => at = self.skip_space(at + 1),
            Some(b'[') => return Err(self.not_coco("it is a list, as a file of detections is")),
            Some(b'"' | b'0'..=b'9' | b'-' | b't' | b'f' | b'n') => {
                let value = self.value::<&RawValue>(at)?;
                self.end_of_text(value.1)?;
                return Err(self.not_coco("it is a single value"));
            }
            _ => return Err(self.unexpected(at, "a JSON object")),
        }

        let (mut keys, mut images, mut annotations, mut categories) = (Vec::new(), None, None, None);
        if self.bytes.get(at) == Some(&b'}') {
            return Err(self.not_coco("it is an empty object"));
        }
        loop {
            let (name, after) = self.value::<Cow<str>>(at)?;
            at = self.expect(self.skip_space(after), b':', "`:`")?;
            at = self.skip_space(at);
            let list = match name.as_ref() {
                "images" => Some((Key::Images, &mut images)),
                "annotations" => Some((Key::Annotations, &mut annotations)),
                "categories" => Some((Key::Categories, &mut categories)),
                _ => None,
            };
            let after = match list {
                Some((_, Some(_))) => return Err(self.invalid(at, format!("`{name}` is there twice"))),
                Some((key, list)) => {
                    let (records, after) = self.list(at, &name)?;
                    *list = Some(records);
                    keys.push(key);
                    after
                }
                None => {
                    let (_, after) = self.value::<&RawValue>(at)?;
                    keys.push(Key::Other { name: name.into_owned(), value: at..after });
                    after
                }
            };
            match self.next_of_object(after)? {
                Some(next) => at = next,
                None => break,
            }
        }
        let missing = |name: &str| self.not_coco(&format!("it has no `{name}` list"));
        Ok(Lists {
            keys,
            images: images.ok_or_else(|| missing("images"))?,
            annotations: annotations.ok_or_else(|| missing("annotations"))?,
            categories: categories.ok_or_else(|| missing("categories"))?,
        })
    }

    /// After a value of the outermost object: the next key, or `None` at the object's end.
    fn next_of_object(&self, at: usize) -> Result<Option<usize>> {
        let at = self.skip_space(at);
        match self.bytes.get(at) {
            Some(b',') => Ok(Some(self.skip_space(at + 1))),
            Some(b'}') => self.end_of_text(at + 1).map(|()| None),
            _ => Err(self.unexpected(at, "`,` or `}`")),
        }
    }

    /// The bounds of each record of the list at `at`, and where the list ends.
    fn list(&self, at: usize, list: &str) -> Result<(Vec<Text>, usize)> {
        if self.bytes.get(at) != Some(&b'[') {
            let value = self.value::<&RawValue>(at)?.0;
            let found = if value.get() == "null" { "null" } else { "something else" };
            return Err(self.not_coco(&format!("its `{list}` is {found}, not a list")));
        }
        self.records(at, |n| format!("{list}[{n}]"))
    }

    fn parse_list<T: Send>(
        &self,
        texts: &[Text],
        list: &str,
        parse: impl Fn(&[u8], Text) -> std::result::Result<T, Fault> + Sync,
    ) -> Result<Vec<T>> {
        self.parse_all(texts, parse).map_err(|(n, fault)| match fault {
            Fault::Json(error) => match explain(&self.bytes[texts[n].range()], list) {
                Some(problem) => self.invalid(texts[n].start, problem),
                None => self.not_json(texts[n], &format!("{list}[{n}]"), &error),
            },
            Fault::Meaning(problem) => self.invalid(texts[n].start, problem),
        })
    }

    fn ids(&self, ids: impl Iterator<Item = u64>, texts: &[Text], what: &str) -> Result<Ids> {
        let ids = Ids::new(ids);
        match ids.repeated() {
            None => Ok(ids),
            Some((id, first, second)) => {
                let first = self.line(texts[first].start);
                let problem = format!("{what} id {id} is there twice (first in line {first})");
                Err(self.invalid(texts[second].start, problem))
            }
        }
    }

    fn not_coco(&self, reason: &str) -> Error {
        Error::NotCoco { path: self.path().into(), reason: reason.into() }
    }
}

fn image(record: &[u8], text: Text) -> std::result::Result<Image, Fault> {
    #[derive(Deserialize)]
    struct Record<'a> {
        id: Whole,
        #[serde(borrow)]
        file_name: Cow<'a, str>,
        width: Whole,
        height: Whole,
    }
    let Record { id, file_name, width, height } = serde_json::from_slice(record)?;
    let Whole(id) = id;
    let side = |name: &str, value: Whole| match u32::try_from(value.0) {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(Fault::Meaning(format!("image {id} has an impossible `{name}`"))),
    };
    let (width, height) = (side("width", width)?, side("height", height)?);
    if file_name.is_empty() {
        return Err(Fault::Meaning(format!("image {id} has an empty `file_name`")));
    }
    Ok(Image { id, file_name: file_name.into_owned(), width, height, text })
}

fn category(record: &[u8], text: Text) -> std::result::Result<Category, Fault> {
    #[derive(Deserialize)]
    struct Record<'a> {
        id: Whole,
        #[serde(borrow)]
        name: Cow<'a, str>,
    }
    let Record { id, name } = serde_json::from_slice(record)?;
    Ok(Category { id: id.0, name: name.into_owned(), text })
}

fn annotation(
    record: &[u8],
    text: Text,
    images: &Ids,
    categories: &Ids,
) -> std::result::Result<Annotation, Fault> {
    #[derive(Deserialize)]
    struct Record {
        id: Whole,
        image_id: Whole,
        category_id: Whole,
        bbox: [f64; 4],
        area: Option<f64>,
        iscrowd: Option<Flag>,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Flag {
        Number(f64),
        Bool(bool),
    }
    let Record { id, image_id, category_id, bbox, area, iscrowd } = serde_json::from_slice(record)?;
    let (Whole(id), Whole(image_id), Whole(category_id)) = (id, image_id, category_id);
    let fault = |problem: String| Fault::Meaning(format!("annotation {id} of image {image_id} {problem}"));

    let image = images.index(image_id).ok_or_else(|| {
        Fault::Meaning(format!("annotation {id} names image {image_id}, absent from `images`"))
    })?;
    let category = categories
        .index(category_id)
        .ok_or_else(|| fault(format!("names category {category_id}, absent from `categories`")))?;
    let [x, y, width, height] = bbox;
    let xywh = Xywh { x, y, width, height };
    if !xywh.is_finite() {
        return Err(fault(format!("has a `bbox` beyond any image: {bbox:?}")));
    }
    if width < 0.0 || height < 0.0 {
        return Err(fault(format!("has a `bbox` of negative size: {bbox:?}")));
    }
    let crowd = match iscrowd {
        None | Some(Flag::Number(0.0) | Flag::Bool(false)) => false,
        Some(Flag::Number(1.0) | Flag::Bool(true)) => true,
        Some(Flag::Number(n)) => return Err(fault(format!("has `iscrowd` {n}; it is 0 or 1"))),
    };
    let area = area.filter(|a| a.is_finite() && *a >= 0.0).unwrap_or_else(|| xywh.area());
    Ok(Annotation { id, image, category, bbox: xywh, area, crowd, text })
}

/// Why a record that is well-formed JSON could not be read, in the user's terms: the parser knows
/// neither the record's id nor the key. `None` when the record is not JSON at all.
fn explain(record: &[u8], list: &str) -> Option<String> {
    let record: Map<String, Value> = serde_json::from_slice(record).ok()?;
    let id = record.get("id").map_or("without `id`".into(), |id| format!("{id}"));
    let name = match list {
        "annotations" => match record.get("image_id") {
            Some(image) => format!("annotation {id} of image {image}"),
            None => format!("annotation {id}"),
        },
        "images" => format!("image {id}"),
        _ => format!("category {id}"),
    };
    let required: &[(&'static str, Wanted)] = match list {
        "annotations" => &[
            ("id", Wanted::Whole),
            ("image_id", Wanted::Whole),
            ("category_id", Wanted::Whole),
            ("bbox", Wanted::FourNumbers),
        ],
        "images" => &[
            ("id", Wanted::Whole),
            ("file_name", Wanted::Text),
            ("width", Wanted::Whole),
            ("height", Wanted::Whole),
        ],
        _ => &[("id", Wanted::Whole), ("name", Wanted::Text)],
    };
    let (_, problem) = first_wrong_field(&record, required);
    Some(format!("{name} {problem}"))
}
