//! Pascal VOC: one XML file per image.
//!
//! VOC counts pixels from 1 and names the last pixel *inside* a box, so `xmin..xmax` of a file is
//! `xmin − 1 .. xmax` in the continuous coordinates used here (as detectron2 reads it). `pose`,
//! `truncated`, `difficult` and `occluded` are kept in the record under these names and written
//! back. VOC has no crowds: a crowd region is written as a difficult object with an `iscrowd`
//! element, which this reader knows and others pass over.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use roxmltree::{Document, Node};
use serde::{Deserialize, Serialize};

use crate::dataset::{Builder, Dataset, Image, Xywh};
use crate::decode;
use crate::error::{Error, Result};
use crate::layout::{IMAGE_EXTENSIONS, files_of};

/// Where a VOC data set's files are.
#[derive(Clone, Debug)]
pub struct Folders {
    pub annotations: PathBuf,
    pub images: PathBuf,
    /// The class names in order, a line each, where there is such a file.
    pub labels: Option<PathBuf>,
}

/// Read the images of these names (file names without extension), or all.
///
/// Class numbers follow `labels` where it exists, else the names' alphabetical order over *all*
/// files, so that they are the same for every split.
pub fn read(folders: &Folders, stems: Option<&[String]>) -> Result<Dataset> {
    let paths = files_of(&folders.annotations, &["xml"])?;
    let parse_file = |path: &PathBuf| {
        let text = fs::read_to_string(path).map_err(Error::read(path))?;
        Ok((stem_of(path), parse(&text, path)?))
    };
    let mut all: HashMap<String, AnnotatedImage> = paths.par_iter().map(parse_file).collect::<Result<_>>()?;

    let mut builder = Builder::default();
    let labels = match &folders.labels {
        Some(path) => fs::read_to_string(path).map_err(Error::read(path))?,
        None => String::new(),
    };
    let listed = labels.lines().map(str::trim).filter(|l| !l.is_empty());
    let found: BTreeSet<&str> =
        all.values().flat_map(|i| i.objects.iter().map(|o| o.name.as_str())).collect();
    let mut classes: HashMap<String, usize> = HashMap::new();
    for name in listed.chain(found) {
        if !classes.contains_key(name) {
            classes.insert(name.into(), builder.category(name));
        }
    }

    let stems: Vec<String> = match stems {
        Some(stems) => stems.into(),
        None => paths.iter().map(|p| stem_of(p)).collect(),
    };
    for what in [("images", stems.is_empty()), ("categories", classes.is_empty())] {
        if what.1 {
            return Err(Error::Empty { path: folders.annotations.clone(), what: what.0 });
        }
    }
    for stem in stems {
        let path = folders.annotations.join(format!("{stem}.xml"));
        let image = all
            .remove(&stem)
            .ok_or_else(|| Error::Read { path: path.clone(), source: io::ErrorKind::NotFound.into() })?;
        let file_name = image_file(&folders.images, &image.file_name, &stem);
        let (width, height) = match image.size {
            Some(size) => size,
            None => decode::read_size(&folders.images.join(&file_name))?.oriented,
        };
        let index = builder.image(&file_name, width, height);
        for object in image.objects {
            builder.annotation(index, classes[&object.name], object.bbox, object.crowd, object.attributes);
        }
    }
    Ok(builder.finish())
}

/// The name an XML file gives, or, when there is no such file (tools rename them), the image beside
/// it in name.
fn image_file(images: &Path, named: &str, stem: &str) -> String {
    let alike = || {
        let mut names = IMAGE_EXTENSIONS.iter().map(|extension| format!("{stem}.{extension}"));
        names.find(|name| images.join(name).exists())
    };
    match named {
        "" => alike().unwrap_or_else(|| format!("{stem}.jpg")),
        _ if images.join(named).exists() => named.into(),
        _ => alike().unwrap_or_else(|| named.into()),
    }
}

fn stem_of(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// What one XML file says.
#[derive(Debug)]
pub struct AnnotatedImage {
    pub file_name: String,
    /// Absent in files of some tools, or 0.
    pub size: Option<(u32, u32)>,
    pub objects: Vec<AnnotatedObject>,
}

#[derive(Debug)]
pub struct AnnotatedObject {
    pub name: String,
    pub bbox: Xywh,
    pub crowd: bool,
    attributes: Attributes,
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
    let document = Document::parse(text).map_err(|e| Error::Syntax {
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
                    && (1.0..=1e9).contains(&w)
                    && (1.0..=1e9).contains(&h) =>
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
        let flag = |key: &str| text_of(object, key).and_then(|t| t.parse().ok());
        let attributes = Attributes {
            pose: text_of(object, "pose").map(str::to_owned),
            truncated: flag("truncated"),
            difficult: flag("difficult"),
            occluded: flag("occluded"),
        };
        let crowd = text_of(object, "iscrowd") == Some("1");
        Ok(AnnotatedObject {
            name,
            bbox: Xywh { x: x1, y: y1, width: x2 - x1, height: y2 - y1 },
            crowd,
            attributes,
        })
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
            x + width,
            y + height
        )?;
        writeln!(out, "  </object>")?;
    }
    writeln!(out, "</annotation>")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
