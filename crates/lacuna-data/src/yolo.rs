//! YOLO: one text file per image, a line per box, `class cx cy width height` in shares of the image's
//! size; or `class x1 y1 x2 y2 …`, a polygon, whose box is taken and whose outline is kept.
//!
//! The sizes are not in the text files, so reading a YOLO data set reads the header of every image.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use saphyr::{LoadableYamlNode, Yaml};
use saphyr_parser::{Event, Parser, ScanError};
use serde::Serialize;
use serde_json::json;

use crate::dataset::{Builder, Category, Dataset, Image, Xywh};
use crate::decode::{self, ImageError, ImageSize, OnBadImage};
use crate::error::{Error, Result};
use crate::layout::{IMAGE_EXTENSIONS, files_of};

/// What `data.yaml` says.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// The names of the classes.
    pub names: Vec<String>,
    /// Labels have key points behind the box (`kpt_shape`).
    pub key_points: bool,
    /// The folder that the splits' paths start from, when it is named.
    pub path: Option<PathBuf>,
    /// Split names, each with its folders of images or lists of images.
    pub splits: Vec<(String, Vec<PathBuf>)>,
}

/// Keys of a `data.yaml` that do not name a split. Any other may: lacuna writes splits under the
/// names they had.
const NOT_SPLITS: [&str; 6] = ["path", "names", "nc", "download", "kpt_shape", "flip_idx"];

/// What a `data.yaml` says is three deep at most.
const DEPTH_MAX: usize = 64;

/// Parse a `data.yaml`; `path` is for messages.
pub fn parse_description(text: &str, path: &Path) -> Result<Description> {
    let syntax = |line: usize, problem: String| Error::Syntax { path: path.into(), line, problem };
    let not_yaml = |e: ScanError| syntax(e.marker().line(), format!("not YAML: {}", e.info()));
    if let Some(line) = too_deep(text).map_err(not_yaml)? {
        return Err(syntax(line, format!("lists and maps are nested more than {DEPTH_MAX} deep")));
    }
    let documents = Yaml::load_from_str(text).map_err(not_yaml)?;
    let invalid_at = |key: &str, problem: String| {
        let line = 1 + text.lines().position(|l| l.trim_start().starts_with(key)).unwrap_or(0);
        Error::Invalid { path: path.into(), line, problem }
    };
    let invalid = |problem: String| invalid_at("names", problem);
    let root = documents.first().ok_or_else(|| invalid("the file is empty".into()))?;
    let scalar = |value: &Yaml| match value.as_str() {
        Some(text) => Some(text.to_owned()),
        // A class may be called 1, or `no`.
        None => value
            .as_integer()
            .map(|n| n.to_string())
            .or_else(|| value.as_floating_point().map(|n| n.to_string()))
            .or_else(|| value.as_bool().map(|b| b.to_string())),
    };
    let names = root.as_mapping_get("names").ok_or_else(|| invalid("there is no `names`".into()))?;
    let names: Vec<String> = if let Some(list) = names.as_vec() {
        list.iter()
            .map(scalar)
            .collect::<Option<_>>()
            .ok_or_else(|| invalid("a name is not a text".into()))?
    } else if let Some(map) = names.as_mapping() {
        let mut numbered: Vec<(i64, String)> = map
            .iter()
            .map(|(number, name)| Some((number.as_integer()?, scalar(name)?)))
            .collect::<Option<_>>()
            .ok_or_else(|| invalid("`names` must map class numbers to names".into()))?;
        numbered.sort_unstable();
        if let Some((gap, _)) = numbered.iter().enumerate().find(|(at, (number, _))| *number != *at as i64) {
            return Err(invalid(format!(
                "`names` must number the classes from 0 without gaps; {gap} is missing"
            )));
        }
        numbered.into_iter().map(|(_, name)| name).collect()
    } else {
        return Err(invalid("`names` is neither a list nor a map".into()));
    };
    if names.is_empty() {
        return Err(Error::Empty { path: path.into(), what: "categories" });
    }
    if let Some(count) = root.as_mapping_get("nc").and_then(Yaml::as_integer)
        && count != names.len() as i64
    {
        return Err(invalid_at("nc", format!("`nc` is {count}, but there are {} `names`", names.len())));
    }
    let mut splits = Vec::new();
    for (key, value) in root.as_mapping().into_iter().flatten() {
        let Some(name) = key.as_str().filter(|name| !NOT_SPLITS.contains(name)) else { continue };
        let places: Vec<PathBuf> = match (value.as_str(), value.as_vec()) {
            (Some(one), _) if !one.is_empty() => vec![one.into()],
            (_, Some(several)) => several.iter().filter_map(Yaml::as_str).map(PathBuf::from).collect(),
            _ => Vec::new(),
        };
        if !places.is_empty() {
            splits.push((name.to_owned(), places));
        }
    }
    let root_path = root.as_mapping_get("path").and_then(Yaml::as_str).filter(|p| !p.is_empty());
    let key_points = root.as_mapping_get("kpt_shape").is_some();
    Ok(Description { names, key_points, path: root_path.map(PathBuf::from), splits })
}

/// The first line at which lists and maps are nested deeper than [`DEPTH_MAX`]: the loader recurses, and
/// would overflow the stack.
fn too_deep(text: &str) -> std::result::Result<Option<usize>, ScanError> {
    let mut depth = 0;
    for event in Parser::new_from_str(text) {
        match event? {
            (Event::SequenceStart(..) | Event::MappingStart(..), span) => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Ok(Some(span.start.line()));
                }
            }
            (Event::SequenceEnd | Event::MappingEnd, _) => depth -= 1,
            _ => {}
        }
    }
    Ok(None)
}

/// Where the files of a split are.
#[derive(Clone, Debug)]
pub struct Places {
    /// The folder that the images' names in the data set start from.
    pub root: PathBuf,
    /// Folders of images, searched through, or text files that list images.
    pub images: Vec<PathBuf>,
}

/// Read the images of a split, without those that cannot be used if `on_bad_image` says so.
pub fn read(
    names: &[String],
    key_points: bool,
    places: &Places,
    on_bad_image: OnBadImage,
) -> Result<(Dataset, Vec<ImageError>)> {
    let Places { root, images: places } = places;
    let mut images = Vec::new();
    for place in places {
        if place.is_file() {
            let folder = place.parent().unwrap_or(root);
            let listed = fs::read_to_string(place).map_err(Error::read(place))?;
            let listed = listed.lines().map(str::trim).filter(|l| !l.is_empty());
            images.extend(listed.map(|l| folder.join(l.strip_prefix("./").unwrap_or(l))));
        } else {
            images.extend(files_of(place, &IMAGE_EXTENSIONS)?);
        }
    }
    let read_one = |image: &PathBuf| {
        let size = match decode::read_size(image) {
            Ok(size) => size.oriented,
            Err(bad) if on_bad_image == OnBadImage::Skip => return Ok(Err(bad)),
            Err(bad) => return Err(bad.into()),
        };
        let path = label_file(image);
        let labels = match fs::read_to_string(&path) {
            Ok(text) => parse(&text, names.len(), key_points, &path)?,
            // An image without a label file is one without objects.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(Error::read(&path)(e)),
        };
        Ok(Ok((size, labels)))
    };
    type Labeled = ((u32, u32), Vec<Label>);
    let read: Vec<std::result::Result<Labeled, ImageError>> =
        images.par_iter().map(read_one).collect::<Result<_>>()?;
    if read.iter().all(std::result::Result::is_err) {
        return Err(Error::Empty { path: root.clone(), what: "images" });
    }

    let mut builder = Builder::default();
    for name in names {
        builder.category(name);
    }
    let mut skipped = Vec::new();
    for (path, read) in images.iter().zip(read) {
        let ((width, height), labels) = match read {
            Ok(labeled) => labeled,
            Err(bad) => {
                skipped.push(bad);
                continue;
            }
        };
        let file_name = path.strip_prefix(root).unwrap_or(path).to_string_lossy();
        let image = builder.image(&file_name, width, height);
        for label in labels {
            let (bbox, outline) = label.in_pixels(f64::from(width), f64::from(height));
            let segmentation = (!outline.is_empty()).then_some([outline]);
            builder.annotation(image, label.class, bbox, false, Outline { segmentation });
        }
    }
    Ok((builder.finish(), skipped))
}

/// A polygon as COCO's records have it.
#[derive(Serialize)]
struct Outline {
    #[serde(skip_serializing_if = "Option::is_none")]
    segmentation: Option<[Vec<f64>; 1]>,
}

/// Where an image's labels are: the last folder `images` on its path is `labels` there; beside the
/// image when there is no such folder.
fn label_file(image: &Path) -> PathBuf {
    let parts: Vec<_> = image.components().collect();
    let folder = parts.iter().rposition(|part| part.as_os_str() == "images");
    let elsewhere = folder.map(|at| {
        let mut path: PathBuf = parts[..at].iter().collect();
        path.push("labels");
        path.extend(&parts[at + 1..]);
        path.with_extension("txt")
    });
    let beside = image.with_extension("txt");
    match elsewhere {
        Some(path) if path.exists() || !beside.exists() => path,
        _ => beside,
    }
}

/// A line of a label file.
#[derive(Debug, PartialEq)]
pub struct Label {
    /// The class number.
    pub class: usize,
    /// Corner points in shares of the image's size: two for a box (its diagonal), else a polygon.
    points: Vec<(f64, f64)>,
}

impl Label {
    /// The box, and the polygon's coordinates where there is one.
    fn in_pixels(&self, width: f64, height: f64) -> (Xywh, Vec<f64>) {
        let bounds = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
        };
        let (x1, x2) = bounds(&mut self.points.iter().map(|p| p.0 * width));
        let (y1, y2) = bounds(&mut self.points.iter().map(|p| p.1 * height));
        let outline = match self.points.len() {
            2 => Vec::new(),
            _ => self.points.iter().flat_map(|&(x, y)| [x * width, y * height]).collect(),
        };
        (Xywh { x: x1, y: y1, width: x2 - x1, height: y2 - y1 }, outline)
    }
}

/// Parse a label file; `path` is for messages. With `key_points`, what is behind a box is theirs and
/// not a polygon's.
pub fn parse(text: &str, n_classes: usize, key_points: bool, path: &Path) -> Result<Vec<Label>> {
    let mut labels = Vec::new();
    for (n, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let invalid = |problem: String| Error::Invalid { path: path.into(), line: n + 1, problem };
        let mut values = Vec::new();
        for word in line.split_whitespace() {
            match word.parse::<f64>() {
                Ok(value) if value.is_finite() => values.push(value),
                _ => return Err(invalid(format!("`{word}` is not a finite number"))),
            }
        }
        let (&class, place) = match values.split_first() {
            Some(parts) => parts,
            None => continue,
        };
        if class.fract() != 0.0 || class < 0.0 || class >= n_classes as f64 {
            return Err(invalid(format!(
                "class {class} is not one of the {n_classes} classes, 0 to {}",
                n_classes - 1
            )));
        }
        let place = if key_points { &place[..place.len().min(4)] } else { place };
        // Values far outside the image are pixels, or not YOLO at all.
        if let Some(far) = place.iter().find(|v| !(-1.0..=2.0).contains(*v)) {
            return Err(invalid(format!(
                "{far} is not a share of the image's size; coordinates go from 0 to 1"
            )));
        }
        let points = match *place {
            [_, _, width, height] if width < 0.0 || height < 0.0 => {
                return Err(invalid(format!("a box of negative size: {width} by {height}")));
            }
            [cx, cy, width, height] => {
                vec![(cx - width / 2.0, cy - height / 2.0), (cx + width / 2.0, cy + height / 2.0)]
            }
            _ if place.len() >= 6 && place.len() % 2 == 0 => {
                place.chunks_exact(2).map(|p| (p[0], p[1])).collect()
            }
            _ => {
                let found = values.len();
                return Err(invalid(format!(
                    "{found} numbers; a box is `class cx cy width height`, a polygon has three points or more"
                )));
            }
        };
        labels.push(Label { class: class as usize, points });
    }
    Ok(labels)
}

/// What a file has no place for.
#[derive(Debug, Default, PartialEq)]
pub struct LeftOut {
    /// Crowd regions.
    pub crowds: usize,
    /// Boxes of which nothing lies in the image.
    pub outside: usize,
}

/// Write the label file of one image. YOLO's boxes lie in the image: they are clipped to it.
/// `turned` is the image's size when its readers will turn it and the boxes do not know.
pub fn write(
    dataset: &Dataset,
    image: usize,
    turned: Option<ImageSize>,
    out: &mut impl Write,
) -> io::Result<LeftOut> {
    let Image { width, height, .. } = dataset.images()[image];
    let (width, height) = turned.map_or((width, height), |size| size.oriented);
    let (image_width, image_height) = (f64::from(width), f64::from(height));
    let mut left_out = LeftOut::default();
    for annotation in dataset.annotations_of(image) {
        if annotation.crowd {
            left_out.crowds += 1;
            continue;
        }
        let bbox = turned.map_or(annotation.bbox, |size| size.turned(annotation.bbox));
        let Some([x1, y1, x2, y2]) = bbox.corners_within(width, height) else {
            left_out.outside += 1;
            continue;
        };
        writeln!(
            out,
            "{} {} {} {} {}",
            annotation.category,
            (x1 + x2) / 2.0 / image_width,
            (y1 + y2) / 2.0 / image_height,
            (x2 - x1) / image_width,
            (y2 - y1) / image_height
        )?;
    }
    Ok(left_out)
}

/// The keys that YOLO's tools look for, `train`, `val` and `test`, where the splits' names say which
/// is which (`train2017`, `valid`), else the names themselves.
fn keys(splits: &[&str]) -> Vec<String> {
    let known = |split: &str| match split.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "train" => Some("train"),
        "val" | "valid" | "validation" => Some("val"),
        "test" => Some("test"),
        _ => None,
    };
    let own_name = |split: &str| match NOT_SPLITS.contains(&split) || known(split).is_some() {
        true => format!("split_{split}"),
        false => split.into(),
    };
    let key = |&split: &&str| match known(split) {
        // Only the first of `val` and `valid` can be `val`.
        Some(key) if splits.iter().find(|s| known(s) == Some(key)) == Some(&split) => key.into(),
        _ => own_name(split),
    };
    splits.iter().map(key).collect()
}

/// Write the `data.yaml` of a data set with these splits, each in `images/SPLIT`.
pub fn write_description(categories: &[Category], splits: &[&str], out: &mut impl Write) -> io::Result<()> {
    for (key, split) in keys(splits).into_iter().zip(splits) {
        // A JSON string is a quoted YAML string, too.
        writeln!(out, "{}: {}", json!(key), json!(format!("images/{split}")))?;
    }
    writeln!(out, "nc: {}\nnames:", categories.len())?;
    for (class, category) in categories.iter().enumerate() {
        writeln!(out, "  {class}: {}", json!(category.name))?;
    }
    Ok(())
}
