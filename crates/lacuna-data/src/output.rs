//! Outputs that are there whole or not at all: written under a temporary name beside their place,
//! then renamed. Single files are synced before, so that not even a power cut leaves a part; the
//! thousands of files of a folder are left to the system.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir};

use crate::error::{Error, Result};

/// Whether an output may take the place of something that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfExists {
    Refuse,
    Replace,
}

impl IfExists {
    /// Whether `path` can be written, as far as can be told before the work is done.
    ///
    /// # Errors
    /// [`Error::Exists`], or [`Error::Write`] when there is no folder to write into.
    pub fn check(self, path: &Path) -> Result<()> {
        if self == Self::Refuse && path.symlink_metadata().is_ok() {
            return Err(Error::Exists { path: path.into() });
        }
        fs::metadata(parent(path)).map_err(Error::write(path)).map(drop)
    }
}

/// Write a file. When `fill` fails, or the process ends before it is done, `path` is as it was
/// before.
///
/// # Errors
/// [`Error::Exists`], or [`Error::Write`] with this path.
pub fn write_file(
    path: &Path,
    if_exists: IfExists,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<()> {
    if_exists.check(path)?;
    if path.is_dir() {
        return Err(Error::Write { path: path.into(), source: io::ErrorKind::IsADirectory.into() });
    }
    let fill_and_rename = || -> io::Result<()> {
        let temporary = ordinary(0o666).tempfile_in(parent(path))?;
        let mut out = BufWriter::with_capacity(1 << 20, temporary.as_file());
        fill(&mut out)?;
        out.flush()?;
        drop(out);
        temporary.as_file().sync_all()?;
        let renamed = match if_exists {
            IfExists::Refuse => temporary.persist_noclobber(path),
            IfExists::Replace => temporary.persist(path),
        };
        renamed.map(drop).map_err(|e| e.error)
    };
    fill_and_rename().map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => Error::Exists { path: path.into() },
        _ => Error::Write { path: path.into(), source },
    })
}

/// A folder that is being filled. Dropped without [`finish`](Self::finish), it is deleted.
pub struct NewFolder {
    temporary: TempDir,
    path: PathBuf,
    if_exists: IfExists,
}

impl NewFolder {
    /// # Errors
    /// [`Error::Exists`], or [`Error::Write`] with this path.
    pub fn create(path: &Path, if_exists: IfExists) -> Result<Self> {
        if_exists.check(path)?;
        if path.is_file() {
            return Err(Error::Write { path: path.into(), source: io::ErrorKind::NotADirectory.into() });
        }
        let temporary = ordinary(0o777).tempdir_in(parent(path)).map_err(Error::write(path))?;
        Ok(Self { temporary, path: path.into(), if_exists })
    }

    /// Where to write for now.
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// Give the folder its name. What was there before is deleted only after that.
    ///
    /// # Errors
    /// [`Error::Exists`] or [`Error::Write`].
    pub fn finish(self) -> Result<()> {
        let Self { temporary, path, if_exists } = self;
        if_exists.check(&path)?;
        let swap = || -> io::Result<()> {
            // Set the old one aside under a temporary folder, which deletes it when dropped.
            let aside = Builder::new().prefix(".lacuna-old-").tempdir_in(parent(&path))?;
            let old = aside.path().join("old");
            let existed = path.exists();
            if existed {
                fs::rename(&path, &old)?;
            }
            if let Err(error) = fs::rename(temporary.path(), &path) {
                if existed {
                    fs::rename(&old, &path)?;
                }
                return Err(error);
            }
            // It is no longer where the temporary folder's owner would delete it.
            let _ = temporary.keep();
            Ok(())
        };
        swap().map_err(Error::write(&path))
    }
}

/// The folder that `path` is in.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Temporary files and folders, with the permissions of ordinary ones and not their owner's alone.
fn ordinary(mode: u32) -> Builder<'static, 'static> {
    let mut builder = Builder::new();
    builder.prefix(".lacuna-new-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    #[cfg(not(unix))]
    let _ = mode;
    builder
}
