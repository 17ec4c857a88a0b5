//! From one format's layout to another's.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rayon::prelude::*;

use crate::dataset::{Category, Dataset};
use crate::decode::{self, ImageSize};
use crate::error::{Error, Result};
use crate::layout::{Format, Split};
use crate::output::{IfExists, NewFolder};
use crate::{coco, voc, yolo};

/// How the images come into the new layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFiles {
    /// Copy them.
    Copy,
    /// A second name for the same bytes; a copy where the file system cannot.
    HardLink,
    /// Annotations only.
    Leave,
}

/// What was written, and what the new format has no place for.
#[derive(Debug, Default, PartialEq)]
pub struct Converted {
    /// Images written.
    pub images: usize,
    /// Annotations written.
    pub annotations: usize,
    /// YOLO has no crowd regions: these were left out.
    pub crowds_left_out: usize,
    /// YOLO's boxes lie in the image: these did not and were left out.
    pub boxes_left_out: usize,
}

/// Write splits into a new folder in the layout of `format`:
///
/// - COCO: `annotations/instances_SPLIT.json`, images in `SPLIT/`;
/// - VOC: `Annotations/*.xml`, `ImageSets/Main/SPLIT.txt`, `labels.txt`, images in `JPEGImages/`;
/// - YOLO: `data.yaml`, `labels/SPLIT/*.txt`, images in `images/SPLIT/`.
///
/// `go_on` is asked after each image; when it says no, [`Error::Interrupted`] is the result. Nothing
/// is left behind when it fails.
pub fn write_folder(
    splits: &[Split],
    format: Format,
    images: ImageFiles,
    out: &Path,
    if_exists: IfExists,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Result<Converted> {
    for split in splits {
        check_name(&split.name)?;
        let inputs: Vec<&Path> = std::iter::once(split.path()).chain(split.images().ok()).collect();
        if_exists.check_all(&[out], &inputs)?;
    }
    let folder = NewFolder::create(out, if_exists)?;
    let writer = Writer { folder: &folder, images, go_on };
    let mut converted = match format {
        Format::Coco => writer.coco(splits),
        Format::Voc => writer.voc(splits),
        Format::Yolo => writer.yolo(splits),
    }?;
    folder.finish()?;
    converted.images = splits.iter().map(|s| s.dataset.images().len()).sum();
    let annotations: usize = splits.iter().map(|s| s.dataset.annotations().len()).sum();
    converted.annotations = annotations - converted.crowds_left_out - converted.boxes_left_out;
    Ok(converted)
}

/// A split's name becomes the name of files and folders.
fn check_name(split: &str) -> Result<()> {
    let mut parts = Path::new(split).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(name)), None) if name == split => Ok(()),
        _ => Err(Error::NameOutside { name: split.into() }),
    }
}

struct Writer<'a> {
    folder: &'a NewFolder,
    images: ImageFiles,
    go_on: &'a (dyn Fn() -> bool + Sync),
}

impl Writer<'_> {
    fn coco(&self, splits: &[Split]) -> Result<Converted> {
        for split in splits {
            self.each_image(split, |image| {
                let name = &split.dataset.images()[image].file_name;
                let inside = |part: Component| matches!(part, Component::Normal(_) | Component::CurDir);
                if !Path::new(name).components().all(inside) {
                    return Err(Error::NameOutside { name: name.clone() });
                }
                self.bring(split, image, &Path::new(&split.name).join(name))
            })?;
            let json = format!("annotations/instances_{}.json", split.name);
            self.folder.file(json.as_ref(), |out| coco::write(&split.dataset, out))?;
        }
        Ok(Converted::default())
    }

    fn voc(&self, splits: &[Split]) -> Result<Converted> {
        let categories = common_categories(splits)?;
        categories.iter().try_for_each(|category| check_voc_name(&category.name))?;
        let mut taken = HashMap::new();
        for split in splits {
            // All splits share a folder.
            let names = flat_names(split, &mut taken)?;
            names.iter().try_for_each(|name| check_voc_name(name))?;
            self.each_image(split, |image| {
                let name = &names[image];
                let xml = Path::new("Annotations").join(name).with_extension("xml");
                self.folder.file(&xml, |out| voc::write(&split.dataset, image, name, out))?;
                self.bring(split, image, &Path::new("JPEGImages").join(name))
            })?;
            self.folder.file(format!("ImageSets/Main/{}.txt", split.name).as_ref(), |out| {
                names.iter().try_for_each(|n| writeln!(out, "{}", Path::new(n).with_extension("").display()))
            })?;
        }
        let labels = |out: &mut dyn Write| categories.iter().try_for_each(|c| writeln!(out, "{}", c.name));
        self.folder.file("labels.txt".as_ref(), |out| labels(out))?;
        Ok(Converted::default())
    }

    fn yolo(&self, splits: &[Split]) -> Result<Converted> {
        let categories = common_categories(splits)?;
        let (crowds, boxes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        for split in splits {
            let names = flat_names(split, &mut HashMap::new())?;
            self.each_image(split, |image| {
                let name = Path::new(&split.name).join(&names[image]);
                let turned = self.turned_by_readers(split, image)?;
                self.folder.file(&Path::new("labels").join(&name).with_extension("txt"), |out| {
                    let left_out = yolo::write(&split.dataset, image, turned, out)?;
                    crowds.fetch_add(left_out.crowds, Relaxed);
                    boxes.fetch_add(left_out.outside, Relaxed);
                    Ok(())
                })?;
                self.bring(split, image, &Path::new("images").join(&name))
            })?;
        }
        let splits: Vec<&str> = splits.iter().map(|s| s.name.as_str()).collect();
        self.folder.file("data.yaml".as_ref(), |out| yolo::write_description(categories, &splits, out))?;
        Ok(Converted {
            crowds_left_out: crowds.into_inner(),
            boxes_left_out: boxes.into_inner(),
            ..Converted::default()
        })
    }

    /// The image's size, when its boxes were drawn on the pixels as they are stored but YOLO's
    /// readers, who have no size to go by, will turn it as its EXIF orientation says.
    fn turned_by_readers(&self, split: &Split, image: usize) -> Result<Option<ImageSize>> {
        if self.images == ImageFiles::Leave {
            return Ok(None);
        }
        let image = &split.dataset.images()[image];
        let size = decode::read_size(&split.images()?.join(&image.file_name)).ok();
        let annotated = (image.width, image.height);
        Ok(size.filter(|size| size.stored == annotated && size.oriented != annotated))
    }

    fn each_image(&self, split: &Split, write: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
        (0..split.dataset.images().len()).into_par_iter().try_for_each(|image| {
            write(image)?;
            if (self.go_on)() { Ok(()) } else { Err(Error::Interrupted) }
        })
    }

    /// Bring an image of a split to this place, as the caller asked.
    fn bring(&self, split: &Split, image: usize, name: &Path) -> Result<()> {
        if self.images == ImageFiles::Leave {
            return Ok(());
        }
        let original = split.images()?.join(&split.dataset.images()[image].file_name);
        let place = self.folder.place(name).map_err(self.folder.failed(name))?;
        // A link to a symbolic link would lead nowhere from its new place.
        let link = || fs::hard_link(original.canonicalize()?, &place);
        if self.images == ImageFiles::HardLink && link().is_ok() {
            return Ok(());
        }
        let mut from = fs::File::open(&original).map_err(Error::read(&original))?;
        let copy = || io::copy(&mut from, &mut fs::File::create(place)?);
        copy().map(drop).map_err(self.folder.failed(name))
    }
}

fn check_voc_name(name: &str) -> Result<()> {
    if voc::can_hold(name) { Ok(()) } else { Err(Error::NotAVocName { name: name.into() }) }
}

/// The classes, which VOC and YOLO have once for all splits.
fn common_categories(splits: &[Split]) -> Result<&[Category]> {
    let names = |split: &Split| split.dataset.categories().iter().map(|c| c.name.clone()).collect::<Vec<_>>();
    match splits.iter().find(|s| names(s) != names(&splits[0])) {
        None => Ok(splits[0].dataset.categories()),
        Some(other) => {
            Err(Error::ClassesDiffer { first: splits[0].name.clone(), second: other.name.clone() })
        }
    }
}

/// Names without folders, for formats that pair an image with its labels by name. Two images whose
/// names differ in the ending alone would share a label file.
fn flat_names(split: &Split, taken: &mut HashMap<PathBuf, String>) -> Result<Vec<String>> {
    let dataset: &Dataset = &split.dataset;
    let mut names = Vec::new();
    for image in dataset.images() {
        let name = Path::new(&image.file_name).file_name().unwrap_or_default();
        let label = Path::new(name).with_extension("");
        let described = format!("{} ({})", image.file_name, split.name);
        if let Some(first) = taken.insert(label.clone(), described.clone()) {
            return Err(Error::NameClash { first, second: described, name: label.display().to_string() });
        }
        names.push(name.to_string_lossy().into_owned());
    }
    Ok(names)
}
