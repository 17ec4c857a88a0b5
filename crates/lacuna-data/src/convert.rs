//! From one format's layout to another's.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rayon::prelude::*;

use crate::dataset::{Category, Dataset};
use crate::error::{Error, Result};
use crate::layout::{Format, Split};
use crate::output::{IfExists, NewFolder};
use crate::{coco, voc, yolo};

/// How the images come into the new layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Images {
    Copy,
    /// A second name for the same bytes; a copy where the file system cannot.
    HardLink,
    /// Annotations only.
    Leave,
}

/// What was written, and what the new format has no place for.
#[derive(Debug, Default, PartialEq)]
pub struct Converted {
    pub images: usize,
    pub annotations: usize,
    /// YOLO has no crowd regions: these were left out.
    pub crowds_left_out: usize,
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
    images: Images,
    out: &Path,
    if_exists: IfExists,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Result<Converted> {
    let folder = NewFolder::create(out, if_exists)?;
    let writer = Writer { root: folder.path(), out, images, go_on };
    let mut converted = match format {
        Format::Coco => writer.coco(splits),
        Format::Voc => writer.voc(splits),
        Format::Yolo => writer.yolo(splits),
    }?;
    folder.finish()?;
    converted.images = splits.iter().map(|s| s.dataset.images().len()).sum();
    let annotations: usize = splits.iter().map(|s| s.dataset.annotations().len()).sum();
    converted.annotations = annotations - converted.crowds_left_out;
    Ok(converted)
}

struct Writer<'a> {
    /// The temporary folder.
    root: &'a Path,
    /// What it will be called.
    out: &'a Path,
    images: Images,
    go_on: &'a (dyn Fn() -> bool + Sync),
}

impl Writer<'_> {
    fn coco(&self, splits: &[Split]) -> Result<Converted> {
        for split in splits {
            self.each_image(split, |image| {
                let name = &split.dataset.images()[image].file_name;
                let stays_inside = Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
                if !stays_inside {
                    return Err(Error::NameOutside { name: name.clone() });
                }
                self.bring(split, image, &Path::new(&split.name).join(name))
            })?;
            let json = format!("annotations/instances_{}.json", split.name);
            self.file(json.as_ref(), |out| coco::write(&split.dataset, out))?;
        }
        Ok(Converted::default())
    }

    fn voc(&self, splits: &[Split]) -> Result<Converted> {
        let categories = common_categories(splits)?;
        let mut taken = HashMap::new();
        for split in splits {
            // All splits share a folder.
            let names = flat_names(&split.dataset, &mut taken)?;
            self.each_image(split, |image| {
                let name = &names[image];
                let xml = Path::new("Annotations").join(name).with_extension("xml");
                self.file(&xml, |out| voc::write(&split.dataset, image, name, out))?;
                self.bring(split, image, &Path::new("JPEGImages").join(name))
            })?;
            self.file(format!("ImageSets/Main/{}.txt", split.name).as_ref(), |out| {
                names.iter().try_for_each(|n| writeln!(out, "{}", Path::new(n).with_extension("").display()))
            })?;
        }
        self.file("labels.txt".as_ref(), |out| {
            categories.iter().try_for_each(|c| writeln!(out, "{}", c.name))
        })?;
        Ok(Converted::default())
    }

    fn yolo(&self, splits: &[Split]) -> Result<Converted> {
        let categories = common_categories(splits)?;
        let crowds = AtomicUsize::new(0);
        for split in splits {
            let names = flat_names(&split.dataset, &mut HashMap::new())?;
            self.each_image(split, |image| {
                let name = Path::new(&split.name).join(&names[image]);
                self.file(&Path::new("labels").join(&name).with_extension("txt"), |out| {
                    let left_out = yolo::write(&split.dataset, image, out)?;
                    crowds.fetch_add(left_out, Relaxed);
                    Ok(())
                })?;
                self.bring(split, image, &Path::new("images").join(&name))
            })?;
        }
        let splits: Vec<&str> = splits.iter().map(|s| s.name.as_str()).collect();
        self.file("data.yaml".as_ref(), |out| yolo::write_description(categories, &splits, out))?;
        Ok(Converted { crowds_left_out: crowds.into_inner(), ..Converted::default() })
    }

    fn each_image(&self, split: &Split, write: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
        (0..split.dataset.images().len()).into_par_iter().try_for_each(|image| {
            write(image)?;
            if (self.go_on)() { Ok(()) } else { Err(Error::Interrupted) }
        })
    }

    fn file(&self, name: &Path, fill: impl FnOnce(&mut BufWriter<fs::File>) -> io::Result<()>) -> Result<()> {
        let write = || -> io::Result<()> {
            let mut out = BufWriter::new(fs::File::create(self.place(name)?)?);
            fill(&mut out)?;
            out.flush()
        };
        write().map_err(self.failed(name))
    }

    /// Bring an image of a split to this place, as the caller asked.
    fn bring(&self, split: &Split, image: usize, name: &Path) -> Result<()> {
        if self.images == Images::Leave {
            return Ok(());
        }
        let original = split.images()?.join(&split.dataset.images()[image].file_name);
        let place = self.place(name).map_err(self.failed(name))?;
        if self.images == Images::HardLink && fs::hard_link(&original, &place).is_ok() {
            return Ok(());
        }
        let mut from = fs::File::open(&original).map_err(Error::read(&original))?;
        let copy = || io::copy(&mut from, &mut fs::File::create(place)?);
        copy().map(drop).map_err(self.failed(name))
    }

    /// Where a file of the new folder is for now; the folders above it are made.
    fn place(&self, name: &Path) -> io::Result<PathBuf> {
        let place = self.root.join(name);
        fs::create_dir_all(place.parent().unwrap_or(self.root))?;
        Ok(place)
    }

    /// The error for a file: it names the place where the user will look, not the temporary one.
    fn failed(&self, name: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = self.out.join(name);
        |source| Error::Write { path, source }
    }
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
fn flat_names(dataset: &Dataset, taken: &mut HashMap<PathBuf, String>) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for image in dataset.images() {
        let name = Path::new(&image.file_name).file_name().unwrap_or_default();
        let label = Path::new(name).with_extension("");
        if let Some(first) = taken.insert(label.clone(), image.file_name.clone()) {
            let name = label.display().to_string();
            return Err(Error::NameClash { first, second: image.file_name.clone(), name });
        }
        names.push(name.to_string_lossy().into_owned());
    }
    Ok(names)
}
