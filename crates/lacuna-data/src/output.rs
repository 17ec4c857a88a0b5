//! Outputs that are there whole or not at all: written under a temporary name beside their place,
//! then renamed. Single files are synced before, so that not even a power cut leaves a part; the
//! thousands of files of a folder are left to the system.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile, TempDir};

use crate::error::{Error, Result};

/// Whether an output may take the place of something that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfExists {
    /// Keep what exists and fail.
    Refuse,
    /// Replace what exists.
    Replace,
}

impl IfExists {
    /// [`Replace`](Self::Replace) if `force` is set, else [`Refuse`](Self::Refuse).
    pub fn forced(force: bool) -> Self {
        if force { Self::Replace } else { Self::Refuse }
    }

    /// Check before the work is done that `path` can be written.
    ///
    /// # Errors
    /// [`Error::Exists`], or [`Error::Write`] when there is no folder to write into or something
    /// that is neither a file nor a folder has this name.
    pub fn check(self, path: &Path) -> Result<()> {
        if let Ok(there) = path.symlink_metadata() {
            let special = path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir());
            if special || (there.is_symlink() && path.is_dir()) {
                let source = io::Error::other("it is not an ordinary file or folder");
                return Err(Error::Write { path: path.into(), source });
            }
            if self == Self::Refuse {
                return Err(Error::Exists { path: path.into() });
            }
        }
        fs::metadata(parent(path)).map_err(Error::write(path)).map(drop)
    }

    /// [`check`](Self::check) all outputs of a command: none may replace an input or another output.
    ///
    /// # Errors
    /// As [`check`](Self::check), or [`Error::ReplacesInput`], or [`Error::OneOutput`].
    pub fn check_all(self, outputs: &[&Path], inputs: &[&Path]) -> Result<()> {
        for (at, &output) in outputs.iter().enumerate() {
            let is_one = |other: &&&Path| is_within(other, output) || is_within(output, other);
            if let Some(&other) = outputs[..at].iter().find(is_one) {
                return Err(Error::OneOutput { path: output.into(), other: other.into() });
            }
            self.check(output)?;
            if let Some(&input) = inputs.iter().find(|input| is_within(input, output)) {
                return Err(Error::ReplacesInput { path: output.into(), input: input.into() });
            }
        }
        Ok(())
    }
}

/// A file that is being written. Dropped without [`finish`](Self::finish), it is deleted.
pub struct NewFile {
    temporary: NamedTempFile,
    path: PathBuf,
    if_exists: IfExists,
}

impl NewFile {
    /// Write the whole content under a temporary name.
    ///
    /// # Errors
    /// [`Error::Exists`], or [`Error::Write`] with this path.
    pub fn write(
        path: &Path,
        if_exists: IfExists,
        fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> Result<Self> {
        if_exists.check(path)?;
        if path.is_dir() {
            return Err(Error::Write { path: path.into(), source: io::ErrorKind::IsADirectory.into() });
        }
        let fill_temporary = || -> io::Result<NamedTempFile> {
            let temporary = ordinary(0o666).tempfile_in(parent(path))?;
            let mut out = BufWriter::with_capacity(1 << 20, temporary.as_file());
            fill(&mut out)?;
            out.flush()?;
            drop(out);
            temporary.as_file().sync_all()?;
            Ok(temporary)
        };
        let temporary = fill_temporary().map_err(Error::write(path))?;
        Ok(Self { temporary, path: path.into(), if_exists })
    }

    /// Give the file its name.
    ///
    /// # Errors
    /// [`Error::Exists`] or [`Error::Write`].
    pub fn finish(self) -> Result<()> {
        let Self { temporary, path, if_exists } = self;
        let renamed = match if_exists {
            IfExists::Refuse => temporary.persist_noclobber(&path),
            IfExists::Replace => temporary.persist(&path),
        };
        renamed.map(drop).map_err(|e| match e.error.kind() {
            io::ErrorKind::AlreadyExists => Error::Exists { path },
            _ => Error::Write { path, source: e.error },
        })
    }
}

/// Write a file and give it its name. When that fails, or the process ends before it is done,
/// `path` is as it was before.
///
/// # Errors
/// [`Error::Exists`], or [`Error::Write`] with this path.
pub fn write_file(
    path: &Path,
    if_exists: IfExists,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<()> {
    NewFile::write(path, if_exists, fill)?.finish()
}

/// The file that marks a folder as made by lacuna. Only such a folder, or an empty one, is ever replaced, so
/// that no other files are lost.
const MARK: &str = ".lacuna";

/// A folder that is being filled. Dropped without [`finish`](Self::finish), it is deleted.
pub struct NewFolder {
    temporary: TempDir,
    path: PathBuf,
    if_exists: IfExists,
}

impl NewFolder {
    /// # Errors
    /// [`Error::Exists`], [`Error::NotOurs`], or [`Error::Write`] with this path.
    pub fn create(path: &Path, if_exists: IfExists) -> Result<Self> {
        if_exists.check(path)?;
        if path.is_file() {
            return Err(Error::Write { path: path.into(), source: io::ErrorKind::NotADirectory.into() });
        }
        if path.is_dir() && !path.join(MARK).exists() {
            let is_empty = fs::read_dir(path).map_err(Error::write(path))?.next().is_none();
            if !is_empty {
                return Err(Error::NotOurs { path: path.into() });
            }
        }
        let create = || -> io::Result<TempDir> {
            let temporary = ordinary(0o777).tempdir_in(parent(path))?;
            fs::write(temporary.path().join(MARK), "lacuna made this folder and may replace it.\n")?;
            Ok(temporary)
        };
        let temporary = create().map_err(Error::write(path))?;
        Ok(Self { temporary, path: path.into(), if_exists })
    }

    /// The temporary folder to write into.
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// The error for a file of this folder. It names the final path, not the temporary one.
    pub fn failed(&self, name: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
        let path = self.path.join(name);
        |source| Error::Write { path, source }
    }

    /// Write a file of this folder, and create the folders above it.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn file(&self, name: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
        let write = || -> io::Result<()> {
            let mut out = BufWriter::new(File::create(self.place(name)?)?);
            fill(&mut out)?;
            out.flush()
        };
        write().map_err(self.failed(name))
    }

    /// The temporary path of a file of this folder; the folders above it are created.
    pub(crate) fn place(&self, name: &Path) -> io::Result<PathBuf> {
        let place = self.path().join(name);
        fs::create_dir_all(place.parent().unwrap_or(self.path()))?;
        Ok(place)
    }

    /// Give the folder its name. What was there before is deleted only after that.
    ///
    /// # Errors
    /// [`Error::Exists`] or [`Error::Write`].
    pub fn finish(self) -> Result<()> {
        let Self { temporary, path, if_exists } = self;
        if_exists.check(&path)?;
        let swap = || -> io::Result<()> {
            if !path.exists() {
                fs::rename(temporary.path(), &path)?;
            } else {
                // Not a `TempDir`: if both renames fail, the old folder must outlive this function.
                let aside = Builder::new().prefix(".lacuna-old-").tempdir_in(parent(&path))?.keep();
                let old = aside.join("old");
                fs::rename(&path, &old)?;
                if let Err(error) = fs::rename(temporary.path(), &path) {
                    fs::rename(&old, &path).map_err(|_| {
                        io::Error::other(format!("{error}; what was there is now {}", old.display()))
                    })?;
                    fs::remove_dir(&aside)?;
                    return Err(error);
                }
                fs::remove_dir_all(&aside)?;
            }
            // It is no longer where the temporary folder's owner would delete it.
            let _ = temporary.keep();
            Ok(())
        };
        swap().map_err(Error::write(&path))
    }
}

/// Whether `path` is `place` or in it, be there something or not.
pub fn is_within(path: &Path, place: &Path) -> bool {
    matches!((resolved(path), resolved(place)), (Ok(path), Ok(place)) if path.starts_with(&place))
}

/// The one name that a place has, as far as it exists.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize().or_else(|_| {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(resolved(parent(path))?.join(name))
    })
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
