//! A JSON file of records while it is read: what COCO's annotation and results files have in common.
//!
//! A file is read in two passes. The first finds where each record of a list begins and ends, looking
//! at nothing but quotes and braces, which a vector instruction finds at many bytes a step. The second
//! parses the records with serde_json, in parallel, and only the fields that lacuna works with; it is
//! what checks the text. What is skipped is skipped over twice and never stored: whoever reads keeps
//! the file's text and copies from it.

use std::fmt;
use std::path::Path;

use rayon::prelude::*;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::{Map, Value};

use crate::dataset::Text;
use crate::error::{Error, Result};

/// A file's text, which is UTF-8.
pub(crate) struct Document<'a> {
    path: &'a Path,
    pub bytes: &'a [u8],
}

impl<'a> Document<'a> {
    pub(crate) fn new(path: &'a Path, bytes: &'a [u8]) -> Result<Self> {
        let document = Self { path, bytes };
        match std::str::from_utf8(bytes) {
            Ok(_) => Ok(document),
            Err(error) => Err(document.syntax(error.valid_up_to(), "not JSON: the text is not UTF-8".into())),
        }
    }
}

impl Document<'_> {
    pub(crate) fn path(&self) -> &Path {
        self.path
    }

    /// Where the outermost value begins: after a byte order mark and white space.
    pub(crate) fn start(&self) -> usize {
        let byte_order_mark: &[u8] = b"\xef\xbb\xbf";
        self.skip_space(if self.bytes.starts_with(byte_order_mark) { byte_order_mark.len() } else { 0 })
    }

    /// The first pass: the bounds of each object of the list that opens at `at`, and where the list
    /// ends. `name` says what its n-th record is called.
    pub(crate) fn records(&self, at: usize, name: impl Fn(usize) -> String) -> Result<(Vec<Text>, usize)> {
        let mut texts = Vec::new();
        let mut at = self.skip_space(self.expect(at, b'[', "`[`")?);
        if self.bytes.get(at) == Some(&b']') {
            return Ok((texts, at + 1));
        }
        loop {
            match self.bytes.get(at) {
                Some(b'{') => {}
                Some(b'"' | b'0'..=b'9' | b'-' | b't' | b'f' | b'n' | b'[') => {
                    return Err(self.invalid(at, format!("{} is not an object", name(texts.len()))));
                }
                _ => return Err(self.unexpected(at, "an object")),
            }
            let end = object_end(self.bytes, at).ok_or_else(|| {
                let problem = format!("the file ends in the middle of {}", name(texts.len()));
                self.syntax(self.bytes.len(), problem)
            })?;
            let len = u32::try_from(end - at)
                .map_err(|_| self.invalid(at, format!("{} is longer than 4 GiB", name(texts.len()))))?;
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
    /// reported, whatever the threads did, with the index of its record.
    pub(crate) fn parse_all<T: Send, M>(
        &self,
        texts: &[Text],
        parse: impl Fn(&[u8], Text) -> std::result::Result<T, Fault<M>> + Sync,
    ) -> std::result::Result<Vec<T>, (usize, Fault<M>)> {
        let parse = |text: &Text| parse(&self.bytes[text.range()], *text);
        // Each record goes to its place at once, and `map_while` collects into the same memory: there is
        // never a second copy of a long list.
        let mut parsed = Vec::new();
        texts.par_iter().map(|text| parse(text).ok()).collect_into_vec(&mut parsed);
        let first_fault = parsed.iter().position(Option::is_none);
        match first_fault.and_then(|n| parse(&texts[n]).err().map(|fault| (n, fault))) {
            Some(fault) => Err(fault),
            None => Ok(parsed.into_iter().map_while(|record| record).collect()),
        }
    }

    /// The error for a record that is not JSON.
    pub(crate) fn not_json(&self, text: Text, name: &str, error: &serde_json::Error) -> Error {
        let at = text.start + offset_of(&self.bytes[text.range()], error.line(), error.column());
        self.syntax(at, format!("{name} is not JSON: {}", self.what_is_at(at, error)))
    }

    pub(crate) fn skip_space(&self, at: usize) -> usize {
        let rest = self.bytes.get(at..).unwrap_or_default();
        at + rest.iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n')).count()
    }

    pub(crate) fn expect(&self, at: usize, byte: u8, what: &str) -> Result<usize> {
        if self.bytes.get(at) == Some(&byte) { Ok(at + 1) } else { Err(self.unexpected(at, what)) }
    }

    pub(crate) fn end_of_text(&self, at: usize) -> Result<()> {
        let at = self.skip_space(at);
        if at == self.bytes.len() { Ok(()) } else { Err(self.unexpected(at, "the end of the file")) }
    }

    /// One value of any kind, and where it ends.
    pub(crate) fn value<'a, T: Deserialize<'a>>(&'a self, at: usize) -> Result<(T, usize)> {
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
        for word in ["NaN", "-Infinity", "Infinity"] {
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

    pub(crate) fn unexpected(&self, at: usize, wanted: &str) -> Error {
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

    pub(crate) fn invalid(&self, at: usize, problem: String) -> Error {
        Error::Invalid { path: self.path.into(), line: self.line(at), problem }
    }

    pub(crate) fn line(&self, at: usize) -> usize {
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

/// What is wrong with a record.
pub(crate) enum Fault<M> {
    /// It does not parse: bad JSON, or a field of the wrong kind ([`first_wrong_field`] finds out).
    Json(serde_json::Error),
    Meaning(M),
}

impl<M> From<serde_json::Error> for Fault<M> {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error)
    }
}

/// Ids in ascending order, each with the index of its record.
pub(crate) struct Ids(Vec<(u64, u32)>);

impl Ids {
    /// Of ids that are all different.
    pub(crate) fn new(ids: impl Iterator<Item = u64>) -> Self {
        let mut sorted: Vec<(u64, u32)> = ids.enumerate().map(|(n, id)| (id, n as u32)).collect();
        sorted.par_sort_unstable();
        Self(sorted)
    }

    pub(crate) fn index(&self, id: u64) -> Option<usize> {
        let found = self.0.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(self.0[found].1 as usize)
    }

    /// An id that is there twice, with the indices of its records; of several the one whose
    /// second record comes first.
    pub(crate) fn repeated(&self) -> Option<(u64, usize, usize)> {
        let twice = self.0.windows(2).filter(|w| w[0].0 == w[1].0).min_by_key(|w| w[1].1)?;
        Some((twice[0].0, twice[0].1 as usize, twice[1].1 as usize))
    }
}

/// Whether a float names one whole number: above 2^53 it no longer does.
fn is_whole(value: f64) -> bool {
    (0.0..=9_007_199_254_740_992.0).contains(&value) && value.fract() == 0.0
}

/// Ids beyond no other tool can read, and after the largest there must be others for new records.
const LARGEST: u64 = i64::MAX as u64;

/// A whole number, which some tools write as `7.0`.
pub(crate) struct Whole(pub u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct WholeVisitor;

        impl Visitor<'_> for WholeVisitor {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> std::result::Result<Whole, E> {
                if value <= LARGEST { Ok(Whole(value)) } else { Err(E::custom("not an id")) }
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> std::result::Result<Whole, E> {
                if is_whole(value) { Ok(Whole(value as u64)) } else { Err(E::custom("not a whole number")) }
            }
        }
        deserializer.deserialize_any(WholeVisitor)
    }
}

/// What a field must hold.
pub(crate) enum Wanted {
    Whole,
    Number,
    Text,
    FourNumbers,
}

impl Wanted {
    fn name(&self) -> &'static str {
        match self {
            Self::Whole => "a whole number, neither negative nor above 2^53",
            Self::Number => "a number",
            Self::Text => "a string",
            Self::FourNumbers => "four numbers: x, y, width, height",
        }
    }

    fn is(&self, value: &Value) -> bool {
        match self {
            Self::Whole => {
                value.as_u64().is_some_and(|n| n <= LARGEST) || value.as_f64().is_some_and(is_whole)
            }
            Self::Number => value.is_number(),
            Self::Text => value.is_string(),
            Self::FourNumbers => {
                let numbers = value.as_array();
                numbers.is_some_and(|numbers| numbers.len() == 4 && numbers.iter().all(Value::is_number))
            }
        }
    }
}

/// Why a record that is well-formed JSON could not be read, in the user's terms: the parser knows
/// no key. The key, and what is wrong; no key when none of these is to blame.
pub(crate) fn first_wrong_field(
    record: &Map<String, Value>,
    required: &[(&'static str, Wanted)],
) -> (Option<&'static str>, String) {
    for (key, wanted) in required {
        match record.get(*key) {
            None => return (Some(key), format!("has no `{key}`")),
            Some(value) if !wanted.is(value) => {
                let mut value = value.to_string();
                if value.len() > 60 {
                    value.truncate((0..=57).rev().find(|&n| value.is_char_boundary(n)).unwrap_or(0));
                    value.push_str("...");
                }
                return (Some(key), format!("has `{key}` {value}; it must be {}", wanted.name()));
            }
            Some(_) => {}
        }
    }
    (None, "has a field that cannot be read, or one that is there twice".into())
}
