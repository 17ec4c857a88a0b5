//! COCO annotation files.
//!
//! A file is read in two passes. The first finds where each record of the three lists begins and
//! ends, looking at nothing but quotes and braces, which a vector instruction finds at many bytes a
//! step. The second parses the records with serde_json, in parallel, and only the fields that
//! lacuna works with; it is what checks the text. Polygons, which are most of a file, are skipped
//! over twice and never stored: the data set keeps the file's text and copies from it.

use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::dataset::{Annotation, Category, Dataset, Image, Key, Parts, Text, Xywh};
use crate::error::{Error, Result};

/// Read a COCO annotation file.
///
/// # Errors
/// The first thing in the file that no data set can have, with its line.
pub fn read(path: &Path) -> Result<Dataset> {
    parse(fs::read(path).map_err(Error::read(path))?, path)
}

/// [`read`] from memory; `path` is for messages.
pub fn parse(source: Vec<u8>, path: &Path) -> Result<Dataset> {
    let document = Document { path, bytes: &source };
    if let Err(error) = std::str::from_utf8(&source) {
        return Err(document.syntax(error.valid_up_to(), "not JSON: the text is not UTF-8".into()));
    }
    let lists = document.walk()?;

    let images = document.parse_all(&lists.images, "images", image)?;
    let categories = document.parse_all(&lists.categories, "categories", category)?;
    for (what, none) in [("images", images.is_empty()), ("categories", categories.is_empty())] {
        if none {
            return Err(Error::Empty { path: path.into(), what });
        }
    }
    let image_index = document.ids(images.iter().map(|i| (i.id, i.text)), "image")?;
    let category_index = document.ids(categories.iter().map(|c| (c.id, c.text)), "category")?;
    let annotations = document.parse_all(&lists.annotations, "annotations", |raw, text| {
        annotation(raw, text, &image_index, &category_index)
    })?;
    document.ids(annotations.iter().map(|a| (a.id, a.text)), "annotation")?;

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

/// A file's text while it is read.
struct Document<'a> {
    path: &'a Path,
    bytes: &'a [u8],
}

impl Document<'_> {
    /// The first pass: the keys of the outermost object and the bounds of every record.
    fn walk(&self) -> Result<Lists> {
        let byte_order_mark: &[u8] = b"\xef\xbb\xbf";
        let mut at = if self.bytes.starts_with(byte_order_mark) { byte_order_mark.len() } else { 0 };
        at = self.skip_space(at);
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
                    let (records, after) = self.records(at, &name)?;
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

    fn end_of_text(&self, at: usize) -> Result<()> {
        let at = self.skip_space(at);
        if at == self.bytes.len() { Ok(()) } else { Err(self.unexpected(at, "the end of the file")) }
    }

    /// The bounds of each object of the list at `at`, and where the list ends.
    fn records(&self, at: usize, list: &str) -> Result<(Vec<Text>, usize)> {
        if self.bytes.get(at) != Some(&b'[') {
            let value = self.value::<&RawValue>(at)?.0;
            let found = if value.get() == "null" { "null" } else { "something else" };
            return Err(self.not_coco(&format!("its `{list}` is {found}, not a list")));
        }
        let mut texts = Vec::new();
        let mut at = self.skip_space(at + 1);
        if self.bytes.get(at) == Some(&b']') {
            return Ok((texts, at + 1));
        }
        loop {
            match self.bytes.get(at) {
                Some(b'{') => {}
                Some(b'"' | b'0'..=b'9' | b'-' | b't' | b'f' | b'n' | b'[') => {
                    return Err(self.invalid(at, format!("{list}[{}] is not an object", texts.len())));
                }
                _ => return Err(self.unexpected(at, "an object")),
            }
            let end = object_end(self.bytes, at).ok_or_else(|| {
                self.syntax(
                    self.bytes.len(),
                    format!("the file ends in the middle of {list}[{}]", texts.len()),
                )
            })?;
            let len = u32::try_from(end - at)
                .map_err(|_| self.invalid(at, format!("{list}[{}] is longer than 4 GiB", texts.len())))?;
            texts.push(Text { start: at, len });
            at = self.skip_space(end);
            match self.bytes.get(at) {
                Some(b',') => at = self.skip_space(at + 1),
                Some(b']') => return Ok((texts, at + 1)),
                _ => return Err(self.unexpected(at, "`,` or `]`")),
            }
        }
    }

    /// The second pass over one list, in parallel. Of several faults the first in the file is
    /// reported, whatever the threads did.
    fn parse_all<T: Send>(
        &self,
        texts: &[Text],
        list: &str,
        parse: impl Fn(&[u8], Text) -> std::result::Result<T, Fault> + Sync,
    ) -> Result<Vec<T>> {
        let parse_one = |text: &Text| parse(&self.bytes[text.range()], *text);
        let parsed: std::result::Result<Vec<T>, Fault> = texts.par_iter().map(parse_one).collect();
        parsed.map_err(|some_fault| {
            let found = texts.iter().enumerate().find_map(|(n, t)| parse_one(t).err().map(|f| (n, t, f)));
            let (n, text, fault) = found.unwrap_or((0, &texts[0], some_fault));
            let record = &self.bytes[text.range()];
            match fault {
                Fault::Json(error) => match explain(record, list) {
                    Some(problem) => self.invalid(text.start, problem),
                    None => {
                        let at = text.start + offset_of(record, error.line(), error.column());
                        self.syntax(at, format!("{list}[{n}] is not JSON: {}", self.what_is_at(at, &error)))
                    }
                },
                Fault::Meaning(problem) => self.invalid(text.start, problem),
            }
        })
    }

    /// Ids in ascending order, each with its index.
    fn ids(&self, ids: impl Iterator<Item = (u64, Text)>, what: &str) -> Result<Ids> {
        let mut sorted: Vec<(u64, u32, usize)> =
            ids.enumerate().map(|(n, (id, text))| (id, n as u32, text.start)).collect();
        sorted.par_sort_unstable();
        if let Some(twice) = sorted.windows(2).filter(|w| w[0].0 == w[1].0).min_by_key(|w| w[1].1) {
            let (id, _, first) = twice[0];
            let problem = format!("{what} id {id} is there twice (first in line {})", self.line(first));
            return Err(self.invalid(twice[1].2, problem));
        }
        Ok(Ids(sorted.into_iter().map(|(id, index, _)| (id, index)).collect()))
    }

    fn skip_space(&self, at: usize) -> usize {
        let rest = self.bytes.get(at..).unwrap_or_default();
        at + rest.iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n')).count()
    }

    fn expect(&self, at: usize, byte: u8, what: &str) -> Result<usize> {
        if self.bytes.get(at) == Some(&byte) { Ok(at + 1) } else { Err(self.unexpected(at, what)) }
    }

    /// One value of any kind, and where it ends.
    fn value<'a, T: Deserialize<'a>>(&'a self, at: usize) -> Result<(T, usize)> {
        let rest = self.bytes.get(at..).unwrap_or_default();
        let mut values = serde_json::Deserializer::from_slice(rest).into_iter();
        match values.next() {
            Some(Ok(value)) => Ok((value, at + values.byte_offset())),
            Some(Err(error)) if !error.is_eof() => {
                let fault = at + offset_of(rest, error.line(), error.column());
                Err(self.syntax(fault, format!("not JSON: {}", self.what_is_at(fault, &error))))
            }
            _ => Err(self.syntax(self.bytes.len(), "the file ends too early".into())),
        }
    }

    fn what_is_at(&self, at: usize, error: &serde_json::Error) -> String {
        for word in ["NaN", "Infinity", "-Infinity"] {
            // The parser stops at the first or the second character of the word.
            if (at.saturating_sub(1)..=at)
                .any(|s| self.bytes.get(s..).is_some_and(|b| b.starts_with(word.as_bytes())))
            {
                return format!("`{word}` is not a number of JSON");
            }
        }
        let message = error.to_string();
        message.split(" at line ").next().unwrap_or_default().into()
    }

    fn unexpected(&self, at: usize, wanted: &str) -> Error {
        match self.bytes.get(at) {
            None => self.syntax(at, format!("the file ends where {wanted} should be")),
            Some(&byte) => {
                self.syntax(at, format!("not JSON: {wanted} should be here, not `{}`", byte.escape_ascii()))
            }
        }
    }

    fn syntax(&self, at: usize, problem: String) -> Error {
        Error::Syntax { path: self.path.into(), line: self.line(at), problem }
    }

    fn invalid(&self, at: usize, problem: String) -> Error {
        Error::Invalid { path: self.path.into(), line: self.line(at), problem }
    }

    fn not_coco(&self, reason: &str) -> Error {
        Error::NotCoco { path: self.path.into(), reason: reason.into() }
    }

    fn line(&self, at: usize) -> usize {
        1 + memchr::memchr_iter(b'\n', &self.bytes[..at.min(self.bytes.len())]).count()
    }
}

/// Where the object that begins at `start` ends, judged by its quotes and braces alone.
fn object_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut depth = 0usize;
    let mut at = start;
    loop {
        at += memchr::memchr3(b'"', b'{', b'}', &bytes[at..])?;
        match bytes[at] {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => at = string_end(bytes, at)?,
        }
        at += 1;
    }
}

/// The closing quote of the string that opens at `start`.
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

/// The byte at serde_json's (line, column) of a text.
fn offset_of(text: &[u8], line: usize, column: usize) -> usize {
    let before: usize =
        text.split_inclusive(|&b| b == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    before + column.saturating_sub(1)
}

/// Ids in ascending order, each with the index of its record.
struct Ids(Vec<(u64, u32)>);

impl Ids {
    fn index(&self, id: u64) -> Option<usize> {
        let found = self.0.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(self.0[found].1 as usize)
    }
}

/// What is wrong with a record.
enum Fault {
    /// It does not parse: bad JSON, or a field of the wrong kind ([`explain`] finds out).
    Json(serde_json::Error),
    Meaning(String),
}

impl From<serde_json::Error> for Fault {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error)
    }
}

/// Whether a float names one whole number: above 2^53 it no longer does.
fn is_whole(value: f64) -> bool {
    (0.0..=9_007_199_254_740_992.0).contains(&value) && value.fract() == 0.0
}

/// A whole number, which some tools write as `7.0`.
struct Whole(u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct WholeVisitor;

        impl Visitor<'_> for WholeVisitor {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_u64<E>(self, value: u64) -> std::result::Result<Whole, E> {
                Ok(Whole(value))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> std::result::Result<Whole, E> {
                if is_whole(value) { Ok(Whole(value as u64)) } else { Err(E::custom("not a whole number")) }
            }
        }
        deserializer.deserialize_any(WholeVisitor)
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
    // A number like 1e999 is infinite in JSON's own terms, too.
    if !bbox.iter().all(|v| v.is_finite()) {
        return Err(fault(format!("has a `bbox` that is not finite: {bbox:?}")));
    }
    if width < 0.0 || height < 0.0 {
        return Err(fault(format!("has a `bbox` of negative size: {bbox:?}")));
    }
    let crowd = match iscrowd {
        None | Some(Flag::Number(0.0) | Flag::Bool(false)) => false,
        Some(Flag::Number(1.0) | Flag::Bool(true)) => true,
        Some(Flag::Number(n)) => return Err(fault(format!("has `iscrowd` {n}; it is 0 or 1"))),
    };
    let bbox = Xywh { x, y, width, height };
    let area = area.filter(|a| a.is_finite() && *a >= 0.0).unwrap_or_else(|| bbox.area());
    Ok(Annotation { id, image, category, bbox, area, crowd, text })
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
    let required: &[(&str, Wanted)] = match list {
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
    for (key, wanted) in required {
        match record.get(*key) {
            None => return Some(format!("{name} has no `{key}`")),
            Some(value) if !wanted.is(value) => {
                let mut value = value.to_string();
                if value.len() > 60 {
                    value.truncate((0..=57).rev().find(|&n| value.is_char_boundary(n)).unwrap_or(0));
                    value.push_str("...");
                }
                return Some(format!("{name} has `{key}` {value}; it must be {}", wanted.name()));
            }
            Some(_) => {}
        }
    }
    Some(format!("{name} has a field that cannot be read, or one that is there twice"))
}

/// What a field must hold.
enum Wanted {
    Whole,
    Text,
    FourNumbers,
}

impl Wanted {
    fn name(&self) -> &'static str {
        match self {
            Self::Whole => "a whole number, neither negative nor above 2^53",
            Self::Text => "a string",
            Self::FourNumbers => "four numbers: x, y, width, height",
        }
    }

    fn is(&self, value: &Value) -> bool {
        match self {
            Self::Whole => value.as_u64().is_some() || value.as_f64().is_some_and(is_whole),
            Self::Text => value.is_string(),
            Self::FourNumbers => {
                let numbers = value.as_array();
                numbers.is_some_and(|numbers| numbers.len() == 4 && numbers.iter().all(Value::is_number))
            }
        }
    }
}
