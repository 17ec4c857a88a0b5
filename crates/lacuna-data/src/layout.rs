//! Data sets as people have them on disk: which format a path holds, which splits, and where the
//! images are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::{coco, voc, yolo};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Coco,
    Voc,
    Yolo,
}

/// The names that image files end in.
pub const IMAGE_EXTENSIONS: [&str; 5] = ["jpg", "jpeg", "png", "webp", "bmp"];

/// What Roboflow calls the annotation file that it puts beside the images.
const ROBOFLOW: &str = "_annotations.coco.json";

/// A data set on disk, nothing of it read yet.
#[derive(Debug)]
pub struct Layout {
    pub format: Format,
    path: PathBuf,
    splits: Vec<SplitFiles>,
}

#[derive(Debug)]
struct SplitFiles {
    name: String,
    files: Files,
}

#[derive(Debug)]
enum Files {
    Coco { annotations: PathBuf },
    Voc { folders: voc::Folders, list: Option<PathBuf> },
    Yolo { names: Vec<String>, root: PathBuf, places: Vec<PathBuf> },
}

/// A split that has been read.
#[derive(Debug)]
pub struct Split {
    pub name: String,
    pub dataset: Dataset,
    path: PathBuf,
    images: ImageFolder,
}

/// The folder of the images, or where it was looked for.
#[derive(Debug)]
enum ImageFolder {
    Found(PathBuf),
    NotFound { tried: Vec<PathBuf> },
}

impl Split {
    /// The folder that the images' `file_name`s start from.
    ///
    /// # Errors
    /// [`Error::NoImages`] when it was neither named nor found.
    pub fn images(&self) -> Result<&Path> {
        match &self.images {
            ImageFolder::Found(folder) => Ok(folder),
            ImageFolder::NotFound { tried } => {
                Err(Error::NoImages { path: self.path.clone(), tried: tried.clone() })
            }
        }
    }

    /// Take the images from this folder instead.
    pub fn set_images(&mut self, folder: PathBuf) {
        self.images = ImageFolder::Found(folder);
    }
}

impl Layout {
    /// Find out what is at `path`: a COCO JSON file, a `data.yaml`, or a folder.
    ///
    /// # Errors
    /// [`Error::UnknownLayout`], [`Error::Read`], or what is wrong with a `data.yaml`.
    pub fn detect(path: &Path) -> Result<Self> {
        let metadata = fs::metadata(path).map_err(Error::read(path))?;
        let (format, splits) = if metadata.is_file() {
            match extension(path).as_str() {
                "yaml" | "yml" => (Format::Yolo, yolo_splits(path)?),
                _ => (Format::Coco, vec![coco_split(path.into())]),
            }
        } else {
            folder_splits(path)?.ok_or_else(|| Error::UnknownLayout { path: path.into() })?
        };
        Ok(Self { format, path: path.into(), splits })
    }

    pub fn split_names(&self) -> Vec<String> {
        self.splits.iter().map(|s| s.name.clone()).collect()
    }

    /// Read the split of this name, or the only one.
    ///
    /// # Errors
    /// [`Error::UnknownSplit`], [`Error::ManySplits`], or what is wrong with the files.
    pub fn read(&self, split: Option<&str>) -> Result<Split> {
        let known = || self.split_names();
        let chosen = match (split, self.splits.as_slice()) {
            (None, [only]) => only,
            (None, _) => return Err(Error::ManySplits { path: self.path.clone(), known: known() }),
            (Some(name), splits) => splits.iter().find(|s| s.name == name).ok_or_else(|| {
                Error::UnknownSplit { path: self.path.clone(), split: name.into(), known: known() }
            })?,
        };
        let (dataset, path, images) = match &chosen.files {
            Files::Coco { annotations } => {
                let dataset = coco::read(annotations)?;
                let images = coco_images(annotations, &dataset);
                (dataset, annotations, images)
            }
            Files::Voc { folders, list } => {
                let stems = list.as_deref().map(listed_stems).transpose()?;
                let dataset = voc::read(folders, stems.as_deref())?;
                (dataset, &folders.annotations, ImageFolder::Found(folders.images.clone()))
            }
            Files::Yolo { names, root, places } => {
                (yolo::read(names, root, places)?, root, ImageFolder::Found(root.clone()))
            }
        };
        Ok(Split { name: chosen.name.clone(), dataset, path: path.clone(), images })
    }
}

/// The files below a folder that end in one of these, in the order of their names.
pub(crate) fn files_of(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for path in entries(&folder)? {
            if path.is_dir() {
                folders.push(path);
            } else if extensions.contains(&extension(&path).as_str()) {
                files.push(path);
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || -> io::Result<Vec<PathBuf>> { fs::read_dir(folder)?.map(|e| Ok(e?.path())).collect() };
    let mut paths = read().map_err(Error::read(folder))?;
    paths.sort_unstable();
    Ok(paths)
}

fn extension(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_lowercase()
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn folder_splits(folder: &Path) -> Result<Option<(Format, Vec<SplitFiles>)>> {
    let entries = entries(folder)?;
    let files =
        |ending: &'static str| entries.iter().filter(move |p| p.is_file() && extension(p) == ending).cloned();

    if folder.join("Annotations").is_dir() {
        return Ok(Some((Format::Voc, voc_splits(folder)?)));
    }
    let mut yamls: Vec<PathBuf> = files("yaml").chain(files("yml")).collect();
    yamls.sort_by_key(|p| stem(p) != "data");
    if let Some(yaml) = yamls.first() {
        return Ok(Some((Format::Yolo, yolo_splits(yaml)?)));
    }
    if folder.join("labels").is_dir() || folder.join("classes.txt").is_file() {
        return Ok(Some((Format::Yolo, yolo_splits_without_yaml(folder)?)));
    }

    let mut coco = Vec::new();
    let inner = folder.join("annotations");
    if inner.is_dir() {
        let all = files_of(&inner, &["json"])?;
        let instances = all.iter().filter(|p| stem(p).starts_with("instances_")).cloned();
        let instances: Vec<PathBuf> = instances.collect();
        coco.extend(if instances.is_empty() { all } else { instances });
    }
    for split in std::iter::once(folder.to_path_buf()).chain(entries.iter().filter(|p| p.is_dir()).cloned()) {
        let file = split.join(ROBOFLOW);
        if file.is_file() {
            coco.push(file);
        }
    }
    if coco.is_empty() {
        coco.extend(files("json"));
    }
    if !coco.is_empty() {
        return Ok(Some((Format::Coco, coco.into_iter().map(coco_split).collect())));
    }
    // Roboflow's VOC layout: images and XML files side by side, a folder per split.
    let mut voc = Vec::new();
    for split in std::iter::once(folder).chain(entries.iter().filter(|p| p.is_dir()).map(PathBuf::as_path)) {
        if self::entries(split)?.iter().any(|p| extension(p) == "xml") {
            let folders = voc::Folders { annotations: split.into(), images: split.into(), labels: None };
            let name = split.file_name().unwrap_or_default().to_string_lossy().into_owned();
            voc.push(SplitFiles { name, files: Files::Voc { folders, list: None } });
        }
    }
    Ok((!voc.is_empty()).then_some((Format::Voc, voc)))
}

fn coco_split(annotations: PathBuf) -> SplitFiles {
    let name = if annotations.file_name().is_some_and(|n| n == ROBOFLOW) {
        let folder = annotations.parent().and_then(Path::file_name);
        folder.unwrap_or_default().to_string_lossy().into_owned()
    } else {
        let stem = stem(&annotations);
        stem.strip_prefix("instances_").unwrap_or(&stem).into()
    };
    SplitFiles { name, files: Files::Coco { annotations } }
}

/// The folder of the images of a COCO file: the first likely one that has the first image.
fn coco_images(annotations: &Path, dataset: &Dataset) -> ImageFolder {
    let here = annotations.parent().unwrap_or(Path::new(""));
    let stem = stem(annotations);
    let split = stem.strip_prefix("instances_").unwrap_or(&stem);
    let mut tried = vec![here.join("images").join(split), here.join("images"), here.join(split), here.into()];
    if here.file_name().is_some_and(|n| n == "annotations") {
        let above = here.parent().unwrap_or(Path::new(""));
        tried.splice(
            0..0,
            [above.join(split), above.join("images").join(split), above.join("images"), above.into()],
        );
    }
    match tried.iter().find(|folder| folder.join(&dataset.images()[0].file_name).is_file()) {
        Some(folder) => ImageFolder::Found(folder.clone()),
        None => ImageFolder::NotFound { tried },
    }
}

fn voc_splits(root: &Path) -> Result<Vec<SplitFiles>> {
    let labels = root.join("labels.txt");
    let folders = voc::Folders {
        annotations: root.join("Annotations"),
        images: root.join("JPEGImages"),
        labels: labels.is_file().then_some(labels),
    };
    let sets = root.join("ImageSets").join("Main");
    let mut lists = Vec::new();
    if sets.is_dir() {
        for list in entries(&sets)? {
            // `aeroplane_train.txt` and its like say for each image whether the class is in it.
            let text = fs::read_to_string(&list).map_err(Error::read(&list))?;
            if extension(&list) == "txt" && text.lines().all(|l| l.split_whitespace().count() <= 1) {
                lists.push(list);
            }
        }
    }
    let has = |name: &str| lists.iter().any(|l| stem(l) == name);
    if has("train") && has("val") {
        // It is the two together.
        lists.retain(|l| stem(l) != "trainval");
    }
    if lists.is_empty() {
        return Ok(vec![SplitFiles { name: "all".into(), files: Files::Voc { folders, list: None } }]);
    }
    let split = |list: PathBuf| SplitFiles {
        name: stem(&list),
        files: Files::Voc { folders: folders.clone(), list: Some(list) },
    };
    Ok(lists.into_iter().map(split).collect())
}

fn listed_stems(list: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(list).map_err(Error::read(list))?;
    Ok(text.lines().map(|l| l.trim().to_owned()).filter(|l| !l.is_empty()).collect())
}

fn yolo_splits(yaml: &Path) -> Result<Vec<SplitFiles>> {
    let text = fs::read_to_string(yaml).map_err(Error::read(yaml))?;
    let description = yolo::parse_description(&text, yaml)?;
    let here = yaml.parent().unwrap_or(Path::new(""));
    let base = description.path.map(|p| here.join(p)).filter(|p| p.is_dir()).unwrap_or_else(|| here.into());
    let mut splits = Vec::new();
    for (name, places) in description.splits {
        let found: Vec<PathBuf> = places.iter().filter_map(|place| yolo_place(&base, here, place)).collect();
        if found.is_empty() {
            if matches!(name.as_str(), "train" | "val") {
                let problem = format!("`{name}: {}` names no folder of images", places[0].display());
                return Err(Error::Invalid { path: yaml.into(), line: line_of(&text, &name), problem });
            }
            // Files often name a test split that was never made, and have keys of their tool's own.
            continue;
        }
        let root = match found.as_slice() {
            [one] if one.is_dir() => one.clone(),
            _ => base.clone(),
        };
        splits.push(SplitFiles {
            name,
            files: Files::Yolo { names: description.names.clone(), root, places: found },
        });
    }
    if splits.is_empty() {
        return Err(Error::Empty { path: yaml.into(), what: "splits (`train`, `val` or `test`)" });
    }
    Ok(splits)
}

/// A split's folder as `data.yaml` names it. Roboflow's files say `../train/images` for what is
/// beside the file itself.
fn yolo_place(base: &Path, here: &Path, place: &Path) -> Option<PathBuf> {
    let beside = place.strip_prefix("..").unwrap_or(place);
    [base.join(place), here.join(place), here.join(beside)].into_iter().find(|p| p.exists())
}

fn line_of(text: &str, key: &str) -> usize {
    1 + text.lines().position(|l| l.trim_start().starts_with(key)).unwrap_or(0)
}

fn yolo_splits_without_yaml(folder: &Path) -> Result<Vec<SplitFiles>> {
    let names = [folder.join("classes.txt"), folder.join("labels").join("classes.txt")];
    let Some(list) = names.iter().find(|p| p.is_file()) else {
        return Err(Error::Read { path: names[0].clone(), source: io::ErrorKind::NotFound.into() });
    };
    let names = listed_stems(list)?;
    let images = if folder.join("images").is_dir() { folder.join("images") } else { folder.into() };
    let mut roots: Vec<PathBuf> = entries(&images)?.into_iter().filter(|p| p.is_dir()).collect();
    if roots.is_empty() || images == *folder {
        roots = vec![images];
    }
    let split = |root: PathBuf| SplitFiles {
        name: root.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        files: Files::Yolo { names: names.clone(), places: vec![root.clone()], root },
    };
    Ok(roots.into_iter().map(split).collect())
}
