//! Pascal VOC: one XML file per image.
//!
//! VOC counts pixels from 1 and names the last pixel *inside* a box, so `xmin..xmax` of a file is
//! `xmin − 1 .. xmax` in the continuous coordinates used here (as detectron2 reads it). `pose`,
//! `truncated`, `difficult` and `occluded` are kept in the record under these names and written
//! back. VOC has no crowds: a crowd region is written as a difficult object with an `iscrowd`
//! element, which this reader knows and others pass over. A recovered box has the
//! element `recovered` after VOC's own elements, and `score` and `confidence` if they are known.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use roxmltree::{Document, Node, ParsingOptions};
use serde::{Deserialize, Serialize};

use crate::dataset::{Builder, Dataset, Image, RecoveredMark, Xywh};
use crate::decode::{self, ImageError, OnBadImage};
use crate::error::{Error, Result};
use crate::layout::{IMAGE_EXTENSIONS, files_of};
use crate::xml::{self, escape};

/// Where a VOC data set's files are.
#[derive(Clone, Debug)]
pub struct Folders {
    /// The folder of the XML files.
    pub annotations: PathBuf,
    /// The folder of the images.
    pub images: PathBuf,
    /// Folders of annotations that share the classes: other splits'.
    pub siblings: Vec<PathBuf>,
    /// The class names in order, a line each, where there is such a file.
    pub labels: Option<PathBuf>,
}

/// Read the images of these names (paths below the folder of annotations, without extension), or all.
///
/// Class numbers follow `labels` where it exists, else the names' alphabetical order over *all*
/// files, siblings' included, so that they are the same for every split. Images whose size is not in
/// their file are looked at; those that cannot be used are left out if `on_bad_image` says so.
pub fn read(
    folders: &Folders,
    names: Option<&[String]>,
    on_bad_image: OnBadImage,
) -> Result<(Dataset, Vec<ImageError>)> {
    let parse_file = |path: &PathBuf| parse(&fs::read_to_string(path).map_err(Error::read(path))?, path);
    let paths = files_of(&folders.annotations, &["xml"])?;
    let name_of = |path: &PathBuf| {
        let below = path.strip_prefix(&folders.annotations).unwrap_or(path);
        below.with_extension("").to_string_lossy().into_owned()
    };
    let all_names: Vec<String> = paths.iter().map(name_of).collect();
    let parsed: Vec<AnnotatedImage> = paths.par_iter().map(parse_file).collect::<Result<_>>()?;
    let mut siblings = Vec::new();
    for folder in &folders.siblings {
        let parsed: Vec<AnnotatedImage> =
            files_of(folder, &["xml"])?.par_iter().map(parse_file).collect::<Result<_>>()?;
        siblings.extend(parsed);
    }

    let mut builder = Builder::default();
    let labels = match &folders.labels {
        Some(path) => fs::read_to_string(path).map_err(Error::read(path))?,
        None => String::new(),
    };
    let listed = labels.lines().map(str::trim).filter(|l| !l.is_empty());
    let objects = parsed.iter().chain(&siblings).flat_map(|image| &image.objects);
    let found: BTreeSet<&str> = objects.map(|o| o.name.as_str()).collect();
    let mut classes: HashMap<String, usize> = HashMap::new();
    for name in listed.chain(found) {
        if !classes.contains_key(name) {
            classes.insert(name.into(), builder.category(name));
        }
    }

    let mut all: HashMap<&str, AnnotatedImage> = all_names.iter().map(String::as_str).zip(parsed).collect();
    let names = names.unwrap_or(&all_names);
    for (what, none) in [("images", names.is_empty()), ("categories", classes.is_empty())] {
        if none {
            return Err(Error::Empty { path: folders.annotations.clone(), what });
        }
    }
    let (mut skipped, mut n_images) = (Vec::new(), 0);
    for name in names {
        let image = all.remove(name.as_str()).ok_or_else(|| Error::Read {
            path: folders.annotations.join(format!("{name}.xml")),
            source: io::ErrorKind::NotFound.into(),
        })?;
        let file_name = image_file(&folders.images, &image.file_name, name);
        let size = match image.size {
            Some(size) => Ok(size),
            None => decode::read_size(&folders.images.join(&file_name)).map(|size| size.oriented),
        };
        let (width, height) = match size {
            Ok(size) => size,
            Err(bad) if on_bad_image == OnBadImage::Skip => {
                skipped.push(bad);
                continue;
            }
            Err(bad) => return Err(bad.into()),
        };
        n_images += 1;
        let index = builder.image(&file_name, width, height);
        for object in image.objects {
            builder.annotation(index, classes[&object.name], object.bbox, object.crowd, object.more);
        }
    }
    if n_images == 0 {
        return Err(Error::Empty { path: folders.annotations.clone(), what: "images" });
    }
    Ok((builder.finish(), skipped))
}

/// The image of an XML file: the one it names, or, when there is none of that name (tools rename
/// them), the one that is called as the XML file is.
fn image_file(images: &Path, named: &str, name: &str) -> String {
    let endings = IMAGE_EXTENSIONS.iter().flat_map(|e| [(*e).to_owned(), e.to_uppercase()]);
    let mut alike = endings.map(|ending| format!("{name}.{ending}"));
    match named {
        _ if !named.is_empty() && images.join(named).exists() => named.into(),
        "" => alike.find(|file| images.join(file).exists()).unwrap_or_else(|| format!("{name}.jpg")),
        _ => alike.find(|file| images.join(file).exists()).unwrap_or_else(|| named.into()),
    }
}

/// What one XML file says.
#[derive(Debug)]
pub struct AnnotatedImage {
    /// The name of the image's file.
    pub file_name: String,
    /// Absent in files of some tools, or 0.
    pub size: Option<(u32, u32)>,
    /// The annotated objects.
    pub objects: Vec<AnnotatedObject>,
}

/// An object of a VOC file.
#[derive(Debug)]
pub struct AnnotatedObject {
    /// The name of its class.
    pub name: String,
    /// The box, in pixels.
    pub bbox: Xywh,
    /// Whether it is a crowd region.
    pub crowd: bool,
    more: More,
}

/// What a record keeps besides.
#[derive(Debug, Serialize)]
struct More {
    #[serde(flatten)]
    attributes: Attributes,
    #[serde(flatten)]
    recovered: Option<RecoveredMark>,
}

/// What VOC says of an object besides its box and name.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Attributes {
    #[serde(skip_serializing_if = "Option::is_none")]
    pose: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    difficult: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    occluded: Option<u8>,
}

/// Parse an XML file; `path` is for messages.
pub fn parse(text: &str, path: &Path) -> Result<AnnotatedImage> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|e| Error::Syntax {
        path: path.into(),
        line: e.pos().row as usize,
        problem: format!("not XML: {e}"),
    })?;
    let line = |node: Node| document.text_pos_at(node.range().start).row as usize;
    let invalid =
        |node: Node, problem: String| Error::Invalid { path: path.into(), line: line(node), problem };
    let root = document.root_element();
    if !root.has_tag_name("annotation") {
        let found = root.tag_name().name();
        return Err(invalid(root, format!("not a VOC annotation: the outermost element is `{found}`")));
    }
    let number = |node: Node, name: &str| -> Result<f64> {
        let text = text_of(node, name).ok_or_else(|| invalid(node, format!("`{name}` is missing")))?;
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(value),
            _ => Err(invalid(node, format!("`{name}` is `{text}`, not a number"))),
        }
    };
    let size = match child(root, "size") {
        None => None,
        Some(size) => match (number(size, "width")?, number(size, "height")?) {
            (0.0, _) | (_, 0.0) => None,
            (w, h)
                if w.fract() == 0.0
                    && h.fract() == 0.0
                    && (1.0..=f64::from(u32::MAX)).contains(&w)
                    && (1.0..=f64::from(u32::MAX)).contains(&h) =>
            {
                Some((w as u32, h as u32))
            }
            (w, h) => return Err(invalid(size, format!("an image cannot be {w}×{h} pixels"))),
        },
    };
    let objects = root.children().filter(|n| n.has_tag_name("object"));
    let objects = objects.map(|object| {
        let name = text_of(object, "name").filter(|n| !n.is_empty());
        let name = name.ok_or_else(|| invalid(object, "an object has no `name`".into()))?.to_owned();
        let bndbox = child(object, "bndbox")
            .ok_or_else(|| invalid(object, format!("object `{name}` has no `bndbox`")))?;
        let (x1, y1) = (number(bndbox, "xmin")? - 1.0, number(bndbox, "ymin")? - 1.0);
        let (x2, y2) = (number(bndbox, "xmax")?, number(bndbox, "ymax")?);
        if x2 < x1 || y2 < y1 {
            return Err(invalid(bndbox, format!("object `{name}` has a box of negative size")));
        }
        let bbox = Xywh { x: x1, y: y1, width: x2 - x1, height: y2 - y1 };
        if !bbox.is_finite() {
            return Err(invalid(bndbox, format!("object `{name}` has a box beyond any image")));
        }
        let flag = |key: &str| text_of(object, key).and_then(|t| t.parse().ok());
        let attributes = Attributes {
            pose: text_of(object, "pose").map(str::to_owned),
            truncated: flag("truncated"),
            difficult: flag("difficult"),
            occluded: flag("occluded"),
        };
        let crowd = text_of(object, "iscrowd") == Some("1");
        let share = |key: &str| text_of(object, key).and_then(|t| t.parse().ok());
        let recovered = (text_of(object, "recovered") == Some("1"))
            .then(|| RecoveredMark::new(share("score"), share("confidence")));
        Ok(AnnotatedObject { name, bbox, crowd, more: More { attributes, recovered } })
    });
    Ok(AnnotatedImage {
        file_name: text_of(root, "filename").unwrap_or_default().into(),
        size,
        objects: objects.collect::<Result<_>>()?,
    })
}

/// The element of this name directly below `node` (VOC's `part`s have names and boxes of their own).
fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|n| n.has_tag_name(name))
}

fn text_of<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    Some(child(node, name)?.text().unwrap_or_default().trim())
}

/// Whether VOC's files can hold this name of a class or an image as it is: in the XML, where readers
/// take the white space off its ends, and in the lists, which have a line for each name.
pub fn can_hold(name: &str) -> bool {
    !name.is_empty() && name.trim() == name && !name.contains(['\r', '\n']) && xml::allowed(name) == name
}

/// Write the XML file of one image.
pub fn write(dataset: &Dataset, image: usize, file_name: &str, out: &mut impl Write) -> io::Result<()> {
    let Image { width, height, .. } = dataset.images()[image];
    writeln!(out, "<annotation>")?;
    writeln!(out, "  <folder>JPEGImages</folder>")?;
    writeln!(out, "  <filename>{}</filename>", escape(file_name))?;
    writeln!(out, "  <size><width>{width}</width><height>{height}</height><depth>3</depth></size>")?;
    writeln!(out, "  <segmented>0</segmented>")?;
    for annotation in dataset.annotations_of(image) {
        let Xywh { x, y, width, height } = annotation.bbox;
        let Attributes { pose, truncated, difficult, occluded } =
            dataset.fields_of(annotation).unwrap_or_default();
        writeln!(out, "  <object>")?;
        writeln!(out, "    <name>{}</name>", escape(&dataset.categories()[annotation.category].name))?;
        writeln!(out, "    <pose>{}</pose>", escape(pose.as_deref().unwrap_or("Unspecified")))?;
        writeln!(out, "    <truncated>{}</truncated>", truncated.unwrap_or(0))?;
        writeln!(out, "    <difficult>{}</difficult>", difficult.unwrap_or(0).max(annotation.crowd.into()))?;
        if let Some(occluded) = occluded {
            writeln!(out, "    <occluded>{occluded}</occluded>")?;
        }
        if annotation.crowd {
            writeln!(out, "    <iscrowd>1</iscrowd>")?;
        }
        writeln!(
            out,
            "    <bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox>",
            x + 1.0,
            y + 1.0,
            // Not below what the reader makes of the other corner, which is rounded.
            (x + width).max(x + 1.0 - 1.0),
            (y + height).max(y + 1.0 - 1.0)
        )?;
        if let Some(recovered) = dataset.recovered_mark(annotation) {
            write!(out, "    <recovered>1</recovered>")?;
            for (name, value) in [("score", recovered.score()), ("confidence", recovered.confidence())] {
                if let Some(value) = value {
                    write!(out, "<{name}>{value}</{name}>")?;
                }
            }
            writeln!(out)?;
        }
        writeln!(out, "  </object>")?;
    }
    writeln!(out, "</annotation>")
}
