//! Data sets as people have them on disk: which format a path holds, which splits, and where the
//! images are.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::dataset::Dataset;
use crate::decode::{ImageError, OnBadImage};
use crate::error::{Error, Result};
use crate::{coco, voc, yolo};

/// The formats of annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// COCO: one JSON file per split.
    Coco,
    /// Pascal VOC: one XML file per image.
    Voc,
    /// YOLO: one text file per image.
    Yolo,
}

/// The names that image files end in.
pub(crate) const IMAGE_EXTENSIONS: [&str; 5] = ["jpg", "jpeg", "png", "webp", "bmp"];

/// What Roboflow calls the annotation file that it puts beside the images.
const ROBOFLOW: &str = "_annotations.coco.json";

/// A data set on disk, nothing of it read yet.
#[derive(Debug)]
pub struct Layout {
    /// The format of the annotations.
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
    Yolo { yaml: YoloClasses, places: yolo::Places },
}

/// What a YOLO split shares with the others.
#[derive(Clone, Debug)]
struct YoloClasses {
    names: Vec<String>,
    key_points: bool,
}

/// How a split is to be read.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions<'a> {
    /// Where the images are, if not beside the annotations.
    pub images: Option<&'a Path>,
    /// What to do about an image that cannot be used. Images are opened only if the annotations do not state
    /// their size (YOLO, some VOC).
    pub on_bad_image: OnBadImage,
}

impl Default for ReadOptions<'_> {
    fn default() -> Self {
        Self { images: None, on_bad_image: OnBadImage::Error }
    }
}

/// A split that has been read.
#[derive(Debug)]
pub struct Split {
    /// The name of the split.
    pub name: String,
    /// Its images, classes and boxes.
    pub dataset: Dataset,
    /// Images that are not in the data set because they cannot be used.
    pub skipped: Vec<ImageError>,
    path: PathBuf,
    images: ImageFolder,
}

/// The folder of the images, or where it was searched for.
#[derive(Debug)]
enum ImageFolder {
    Found(PathBuf),
    NotFound { tried: Vec<PathBuf> },
}

impl Split {
    /// The file or folder that the annotations are from.
    pub fn path(&self) -> &Path {
        &self.path
    }

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
}

impl Layout {
    /// Find out what is at `path`: a COCO JSON file, a `data.yaml`, or a folder.
    ///
    /// # Errors
    /// [`Error::UnknownLayout`], [`Error::RepeatedSplit`], [`Error::Read`], or what is wrong with a
    /// `data.yaml`.
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
        let mut names = HashSet::new();
        if let Some(twice) = splits.iter().find(|s| !names.insert(s.name.as_str())) {
            return Err(Error::RepeatedSplit { path: path.into(), split: twice.name.clone() });
        }
        Ok(Self { format, path: path.into(), splits })
    }

    /// The names of the splits.
    pub fn split_names(&self) -> Vec<String> {
        self.splits.iter().map(|s| s.name.clone()).collect()
    }

    /// Read the split of this name, or the only one.
    ///
    /// # Errors
    /// [`Error::UnknownSplit`], [`Error::ManySplits`], or what is wrong with the files.
    pub fn read(&self, split: Option<&str>, options: ReadOptions) -> Result<Split> {
        let known = || self.split_names();
        let chosen = match (split, self.splits.as_slice()) {
            (None, [only]) => only,
            (None, _) => return Err(Error::ManySplits { path: self.path.clone(), known: known() }),
            (Some(name), splits) => splits.iter().find(|s| s.name == name).ok_or_else(|| {
                Error::UnknownSplit { path: self.path.clone(), split: name.into(), known: known() }
            })?,
        };
        let ReadOptions { images, on_bad_image } = options;
        let named = images.map(|folder| ImageFolder::Found(folder.into()));
        let (path, images, (dataset, skipped)) = match &chosen.files {
            Files::Coco { annotations } => {
                let dataset = coco::read(annotations)?;
                let images = named.unwrap_or_else(|| coco_images(annotations, &dataset));
                (annotations.clone(), images, (dataset, Vec::new()))
            }
            Files::Voc { folders, list } => {
                let mut folders = folders.clone();
                if let Some(named) = images {
                    folders.images = named.into();
                }
                let listed = list.as_deref().map(lines_of).transpose()?;
                let read = voc::read(&folders, listed.as_deref(), on_bad_image)?;
                (folders.annotations, ImageFolder::Found(folders.images), read)
            }
            Files::Yolo { yaml, places } => {
                let read = yolo::read(&yaml.names, yaml.key_points, places, on_bad_image)?;
                let images = named.unwrap_or_else(|| ImageFolder::Found(places.root.clone()));
                (places.root.clone(), images, read)
            }
        };
        Ok(Split { name: chosen.name.clone(), dataset, skipped, path, images })
    }
}

/// The image files in a folder and the folders below it, as paths from it, in the order of their names.
///
/// # Errors
/// [`Error::Read`] with the folder.
pub fn image_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = files_of(folder, &IMAGE_EXTENSIONS)?;
    Ok(files.into_iter().map(|file| file.strip_prefix(folder).map(Path::to_owned).unwrap_or(file)).collect())
}

/// The files below a folder that end in one of these, in the order of their names.
pub(crate) fn files_of(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    // Symbolic links can lead round in a circle.
    let mut seen = HashSet::new();
    while let Some(folder) = folders.pop() {
        if !seen.insert(folder.canonicalize().map_err(Error::read(&folder))?) {
            continue;
        }
        for path in list_folder(&folder)? {
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

fn list_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || -> io::Result<Vec<PathBuf>> { fs::read_dir(folder)?.map(|e| Ok(e?.path())).collect() };
    let mut paths = read().map_err(Error::read(folder))?;
    paths.sort_unstable();
    Ok(paths)
}

fn extension(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_lowercase()
}

fn file_stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The name of a folder, also when it is called `.`.
fn folder_name(folder: &Path) -> String {
    let resolved = folder.canonicalize().unwrap_or_else(|_| folder.into());
    resolved.file_name().map_or_else(|| "all".into(), |name| name.to_string_lossy().into_owned())
}

/// The lines of a list, each once.
fn lines_of(list: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(list).map_err(Error::read(list))?;
    let mut seen = HashSet::new();
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && seen.insert(l.to_owned()));
    Ok(lines.map(str::to_owned).collect())
}

/// The first layout that a folder has the signs of. Annotation files come before label folders:
/// COCO's own folder often has YOLO's labels beside it.
fn folder_splits(folder: &Path) -> Result<Option<(Format, Vec<SplitFiles>)>> {
    if folder.join("Annotations").is_dir() && !files_of(&folder.join("Annotations"), &["xml"])?.is_empty() {
        return Ok(Some((Format::Voc, voc_splits(folder)?)));
    }
    let entries = list_folder(folder)?;
    let files = |endings: &'static [&str]| {
        entries.iter().filter(move |p| p.is_file() && endings.contains(&extension(p).as_str())).cloned()
    };
    let folders =
        || std::iter::once(folder).chain(entries.iter().filter(|p| p.is_dir()).map(PathBuf::as_path));
    let coco = |files: Vec<PathBuf>| {
        (!files.is_empty()).then(|| (Format::Coco, files.into_iter().map(coco_split).collect()))
    };

    let mut annotations = Vec::new();
    if folder.join("annotations").is_dir() {
        let all = list_folder(&folder.join("annotations"))?.into_iter().filter(|p| extension(p) == "json");
        let (instances, others): (Vec<_>, Vec<_>) = all.partition(|p| file_stem(p).starts_with("instances_"));
        annotations.extend(if instances.is_empty() { others } else { instances });
    }
    annotations.extend(folders().map(|split| split.join(ROBOFLOW)).filter(|file| file.is_file()));
    if let Some(found) = coco(annotations) {
        return Ok(Some(found));
    }

    let mut yamls: Vec<PathBuf> = files(&["yaml", "yml"]).filter(|p| names_classes(p)).collect();
    yamls.sort_by_key(|p| file_stem(p) != "data");
    if let Some(yaml) = yamls.first() {
        return Ok(Some((Format::Yolo, yolo_splits(yaml)?)));
    }
    if folder.join("labels").is_dir() || folder.join("classes.txt").is_file() {
        return Ok(Some((Format::Yolo, yolo_splits_without_yaml(folder)?)));
    }
    if let Some(found) = coco(files(&["json"]).collect()) {
        return Ok(Some(found));
    }

    // Roboflow's VOC layout: images and XML files side by side, a folder per split.
    let has_xml = |folder: &&Path| list_folder(folder).is_ok_and(|e| e.iter().any(|p| extension(p) == "xml"));
    let with_xml: Vec<PathBuf> = folders().filter(has_xml).map(Path::to_path_buf).collect();
    let voc = with_xml.iter().map(|split| {
        let siblings = with_xml.iter().filter(|other| *other != split).cloned().collect();
        let folders =
            voc::Folders { annotations: split.clone(), images: split.clone(), siblings, labels: None };
        SplitFiles { name: folder_name(split), files: Files::Voc { folders, list: None } }
    });
    let voc: Vec<SplitFiles> = voc.collect();
    Ok((!voc.is_empty()).then_some((Format::Voc, voc)))
}

fn coco_split(annotations: PathBuf) -> SplitFiles {
    let name = if annotations.file_name().is_some_and(|n| n == ROBOFLOW) {
        folder_name(annotations.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))
    } else {
        let stem = file_stem(&annotations);
        stem.strip_prefix("instances_").unwrap_or(&stem).into()
    };
    SplitFiles { name, files: Files::Coco { annotations } }
}

/// The folder of the images of a COCO file: of the likely ones, the one that has most of a few
/// images.
fn coco_images(annotations: &Path, dataset: &Dataset) -> ImageFolder {
    let absolute = std::path::absolute(annotations).unwrap_or_else(|_| annotations.into());
    let here = absolute.parent().unwrap_or(Path::new("/"));
    let stem = file_stem(annotations);
    let split = stem.strip_prefix("instances_").unwrap_or(&stem);
    // `train_sparse` is an annotation of the images of `train`.
    let parts = std::iter::successors(Some(split), |s| s.rfind(['_', '-']).map(|at| &s[..at]));
    let mut tried = Vec::new();
    let mut look_in = |folder: &Path| {
        for part in parts.clone() {
            tried.extend([folder.join(part), folder.join("images").join(part)]);
        }
        tried.extend([folder.join("images"), folder.into()]);
    };
    if here.file_name().is_some_and(|n| n == "annotations") {
        look_in(here.parent().unwrap_or(Path::new("/")));
    }
    look_in(here);

    const LOOK_AT: usize = 16;
    let step = dataset.images().len().div_ceil(LOOK_AT);
    let some: Vec<&str> = dataset.images().iter().step_by(step).map(|i| i.file_name.as_str()).collect();
    let found = |folder: &Path| some.iter().filter(|name| folder.join(name).is_file()).count();
    let mut best: Option<(usize, &PathBuf)> = None;
    for folder in &tried {
        let n = found(folder);
        if n > best.map_or(0, |(most, _)| most) {
            best = Some((n, folder));
        }
    }
    match best {
        Some((_, folder)) => ImageFolder::Found(folder.clone()),
        None => ImageFolder::NotFound { tried },
    }
}

fn voc_splits(root: &Path) -> Result<Vec<SplitFiles>> {
    let labels = root.join("labels.txt");
    let folders = voc::Folders {
        annotations: root.join("Annotations"),
        images: root.join("JPEGImages"),
        siblings: Vec::new(),
        labels: labels.is_file().then_some(labels),
    };
    let sets = root.join("ImageSets").join("Main");
    let mut lists = Vec::new();
    if sets.is_dir() {
        for list in list_folder(&sets)?.into_iter().filter(|p| extension(p) == "txt") {
            if !tells_of_a_class(&lines_of(&list)?, &folders.annotations) {
                lists.push(list);
            }
        }
    }
    let has = |name: &str| lists.iter().any(|l| file_stem(l) == name);
    if has("train") && has("val") {
        // It is the two together.
        lists.retain(|l| file_stem(l) != "trainval");
    }
    if lists.is_empty() {
        return Ok(vec![SplitFiles { name: "all".into(), files: Files::Voc { folders, list: None } }]);
    }
    let split = |list: PathBuf| SplitFiles {
        name: file_stem(&list),
        files: Files::Voc { folders: folders.clone(), list: Some(list) },
    };
    Ok(lists.into_iter().map(split).collect())
}

/// `aeroplane_train.txt` and its like say for each image whether the class is in it: -1, 0 or 1. A
/// name can end so, too; then there is a file of that name.
fn tells_of_a_class(lines: &[String], annotations: &Path) -> bool {
    let says = |line: &String| {
        let last = line.rsplit_once(char::is_whitespace).map(|(_, last)| last);
        matches!(last, Some("-1" | "0" | "1")) && !annotations.join(format!("{line}.xml")).exists()
    };
    !lines.is_empty() && lines.iter().all(says)
}

/// Whether a YAML file is a YOLO data set's, and not some tool's configuration.
fn names_classes(yaml: &Path) -> bool {
    fs::read_to_string(yaml).is_ok_and(|text| text.lines().any(|line| line.starts_with("names")))
}

fn yolo_splits(yaml: &Path) -> Result<Vec<SplitFiles>> {
    let text = fs::read_to_string(yaml).map_err(Error::read(yaml))?;
    let yolo::Description { names, key_points, path, splits: described } =
        yolo::parse_description(&text, yaml)?;
    let here = yaml.parent().unwrap_or(Path::new(""));
    let base = path.map(|p| here.join(p)).filter(|p| p.is_dir()).unwrap_or_else(|| here.into());
    let mut splits = Vec::new();
    // Files often name a split that does not exist, and tools add keys of their own.
    let mut nowhere = None;
    for (name, places) in described {
        let images: Vec<PathBuf> = places.iter().filter_map(|place| yolo_place(&base, here, place)).collect();
        if images.is_empty() {
            nowhere = nowhere.or(Some((name, places)));
            continue;
        }
        let root = match images.as_slice() {
            [one] if one.is_dir() => one.clone(),
            _ => base.clone(),
        };
        let yaml = YoloClasses { names: names.clone(), key_points };
        splits.push(SplitFiles { name, files: Files::Yolo { yaml, places: yolo::Places { root, images } } });
    }
    match (splits.is_empty(), nowhere) {
        (false, _) => Ok(splits),
        (true, None) => Err(Error::Empty { path: yaml.into(), what: "splits (`train`, `val` or `test`)" }),
        (true, Some((name, places))) => {
            let line = 1 + text.lines().position(|l| l.trim_start().starts_with(&name)).unwrap_or(0);
            let problem = format!("`{name}: {}` names no folder of images", places[0].display());
            Err(Error::Invalid { path: yaml.into(), line, problem })
        }
    }
}

/// A split's folder as `data.yaml` names it. Roboflow's files say `../train/images` for what is
/// beside the file itself.
fn yolo_place(base: &Path, here: &Path, place: &Path) -> Option<PathBuf> {
    let beside = place.strip_prefix("..").unwrap_or(place);
    [base.join(place), here.join(place), here.join(beside)].into_iter().find(|p| p.exists())
}

fn yolo_splits_without_yaml(folder: &Path) -> Result<Vec<SplitFiles>> {
    let lists = [folder.join("classes.txt"), folder.join("labels").join("classes.txt")];
    let Some(list) = lists.iter().find(|p| p.is_file()) else {
        return Err(Error::NoClasses { path: folder.into() });
    };
    let yaml = YoloClasses { names: lines_of(list)?, key_points: false };
    if yaml.names.is_empty() {
        return Err(Error::Empty { path: list.clone(), what: "categories" });
    }
    let images = if folder.join("images").is_dir() { folder.join("images") } else { folder.into() };
    let mut roots: Vec<PathBuf> = list_folder(&images)?.into_iter().filter(|p| p.is_dir()).collect();
    if roots.is_empty() || images == *folder {
        roots = vec![images];
    }
    let split = |root: PathBuf| SplitFiles {
        name: folder_name(&root),
        files: Files::Yolo { yaml: yaml.clone(), places: yolo::Places { images: vec![root.clone()], root } },
    };
    Ok(roots.into_iter().map(split).collect())
}
