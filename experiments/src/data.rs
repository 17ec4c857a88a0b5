//! Where the data sets are, and the annotation files that experiments derive from them.
//!
//! Data sets are not part of the project. Tables name them relative to a data root, which the caller gives. Derived
//! files are kept in [`CACHE`], named by the check sum of what they are derived from.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use lacuna_boxes::iou;
use lacuna_data::output::{IfExists, write_file};
use lacuna_data::sparsify::sparsify;
use lacuna_data::{Dataset, coco};
use lacuna_train::config::RunConfig;
use lacuna_train::metrics::FOUND_IOU_MIN;

use crate::table::{Data, Hide};

/// Derived annotation files, runs and unfinished pages, relative to the project.
pub(crate) const CACHE: &str = "target/experiments";

/// The environment variable that names the data root.
pub(crate) const VARIABLE: &str = "LACUNA_DATA";

/// The root of the project.
pub(crate) fn project() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The folder that tables name data sets relative to.
#[derive(Clone, Debug)]
pub(crate) struct DataRoot(PathBuf);

impl DataRoot {
    /// The given folder, or the one that the environment names.
    pub(crate) fn find(given: Option<&Path>) -> anyhow::Result<Self> {
        let variable = std::env::var_os(VARIABLE).map(PathBuf::from);
        let Some(folder) = given.map(Path::to_owned).or(variable) else {
            bail!("no data root: give `--data DIR` or set {VARIABLE} to the folder that holds `bccd/`")
        };
        Ok(Self(std::path::absolute(folder)?))
    }

    /// Where a file is: derived files are in the project, all others under this root.
    pub(crate) fn locate(&self, path: &Path) -> PathBuf {
        if path.starts_with(CACHE) { path.to_owned() } else { self.0.join(path) }
    }

    /// The same run with its data where it is on this machine.
    pub(crate) fn locate_data(&self, mut config: RunConfig) -> RunConfig {
        let data = &mut config.data;
        let parts = [&mut data.train, &mut data.test];
        let paths = parts.into_iter().flat_map(|part| [&mut part.path, &mut part.images]);
        for path in paths.chain([&mut data.hidden]).flatten() {
            *path = self.locate(path);
        }
        config
    }

    /// Refuses a table whose data is not there.
    pub(crate) fn check(&self, data: &Data) -> anyhow::Result<()> {
        let Data { train, test, images, completed, .. } = data;
        let paths = [train, test, images].into_iter().chain(completed).map(|path| self.locate(path));
        match paths.into_iter().find(|path| !path.exists()) {
            Some(absent) => bail!("{} does not exist; the table needs it", absent.display()),
            None => Ok(()),
        }
    }

    /// The annotations that a run trains on and, if known, those that are missing from them.
    pub(crate) fn annotations(
        &self,
        data: &Data,
        hide: Option<Hide>,
        seed: u64,
    ) -> anyhow::Result<(PathBuf, Option<PathBuf>)> {
        let train = self.thinned(data)?;
        match (hide, &data.completed) {
            (Some(hide), _) => {
                let (kept, hidden) = self.split(&train, hide, seed)?;
                Ok((kept, Some(hidden)))
            }
            (None, Some(completed)) => {
                let missing = self.missing(&train, completed)?;
                Ok((train, Some(missing)))
            }
            (None, None) => Ok((train, None)),
        }
    }

    /// The file of the training images that the table wants.
    fn thinned(&self, data: &Data) -> anyhow::Result<PathBuf> {
        let Some(every) = data.every else { return Ok(data.train.clone()) };
        let (source, bytes) = self.read(&data.train)?;
        let path = cached(&format!("{:08x}-every-{every}.json", crc32fast::hash(&bytes)));
        if !path.exists() {
            let dataset = coco::parse(bytes, &source)?.with_images(|image| image.is_multiple_of(every));
            write_dataset(&path, &dataset)?;
        }
        Ok(path)
    }

    /// The files of a split: kept and hidden annotations.
    fn split(&self, train: &Path, hide: Hide, seed: u64) -> anyhow::Result<(PathBuf, PathBuf)> {
        let (source, bytes) = self.read(train)?;
        let stem = format!("{:08x}-{}-{seed}", crc32fast::hash(&bytes), hide.name());
        let (kept, hidden) = (cached(&format!("{stem}.json")), cached(&format!("{stem}-hidden.json")));
        if !kept.exists() || !hidden.exists() {
            let sparse = sparsify(&coco::parse(bytes, &source)?, hide.kind()?, seed);
            write_dataset(&hidden, &sparse.hidden)?;
            write_dataset(&kept, &sparse.kept)?;
        }
        Ok((kept, hidden))
    }

    /// The file of the annotations that only the completed data set has.
    fn missing(&self, train: &Path, completed: &Path) -> anyhow::Result<PathBuf> {
        let ((sparse, before), (complete, after)) = (self.read(train)?, self.read(completed)?);
        let sums = [&before, &after].map(|bytes| crc32fast::hash(bytes));
        let path = cached(&format!("{:08x}-{:08x}-missing.json", sums[0], sums[1]));
        if !path.exists() {
            let missing = missing_from(&coco::parse(before, &sparse)?, &coco::parse(after, &complete)?)?;
            write_dataset(&path, &missing)?;
        }
        Ok(path)
    }

    fn read(&self, path: &Path) -> anyhow::Result<(PathBuf, Vec<u8>)> {
        let source = self.locate(path);
        let bytes = fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?;
        Ok((source, bytes))
    }
}

fn cached(name: &str) -> PathBuf {
    Path::new(CACHE).join("data").join(name)
}

fn write_dataset(path: &Path, dataset: &Dataset) -> lacuna_data::Result<()> {
    write_file(path, IfExists::Replace, |out| coco::write(dataset, out))
}

/// The annotations of `complete` without a match of their class in `sparse`. Each annotation has at most one match; the
/// pairs with the highest IoU are matched first.
fn missing_from(sparse: &Dataset, complete: &Dataset) -> anyhow::Result<Dataset> {
    let in_sparse = |file_name: &str| sparse.images().iter().position(|image| image.file_name == file_name);
    let mut matched = vec![false; complete.annotations().len()];
    for (image, record) in complete.images().iter().enumerate() {
        let name = &record.file_name;
        let sparse_image =
            in_sparse(name).with_context(|| format!("{name} is in one of the two files only"))?;
        let mut pairs = Vec::new();
        for &one in complete.indices_of(image) {
            for &other in sparse.indices_of(sparse_image) {
                let (a, b) = (&complete.annotations()[one as usize], &sparse.annotations()[other as usize]);
                let same = complete.categories()[a.category].name == sparse.categories()[b.category].name;
                let overlap = iou(a.bbox.to_box(), b.bbox.to_box());
                if same && overlap >= FOUND_IOU_MIN {
                    pairs.push((overlap, one, other));
                }
            }
        }
        pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut taken = Vec::new();
        for (_, one, other) in pairs {
            if !matched[one as usize] && !taken.contains(&other) {
                matched[one as usize] = true;
                taken.push(other);
            }
        }
    }
    Ok(complete.filter(|at, _| !matched[at]))
}

#[cfg(test)]
mod tests {
    use lacuna_data::{Builder, Xywh};

    use super::*;

    fn dataset(boxes: &[f64]) -> Dataset {
        let mut builder = Builder::default();
        let (image, class) = (builder.image("1.jpg", 100, 100), builder.category("cell"));
        for &x in boxes {
            builder.annotation(image, class, Xywh { x, y: 0.0, width: 10.0, height: 10.0 }, false, ());
        }
        builder.finish()
    }

    /// A box that was moved a little has a match; a second one near the first has none.
    #[test]
    fn annotations_without_a_match_are_missing() {
        let missing =
            missing_from(&dataset(&[0.0, 50.0]), &dataset(&[1.0, 2.0, 50.0, 80.0])).expect("one image");
        let left: Vec<f64> = missing.annotations().iter().map(|annotation| annotation.bbox.x).collect();
        assert_eq!(left, [2.0, 80.0]);
    }

    #[test]
    fn derived_files_are_in_the_project_and_others_under_the_root() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = DataRoot::find(Some(folder.path())).expect("a folder is given");
        assert_eq!(root.locate(Path::new("bccd/train.json")), folder.path().join("bccd/train.json"));
        assert_eq!(root.locate(&cached("1.json")), Path::new("target/experiments/data/1.json"));
    }
}
