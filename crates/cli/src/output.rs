//! The file that a command writes: a dump, a backup, an export.
//!
//! A file that is there already may be the last good backup, so the new one is written beside it, and takes its place
//! when it is whole and durable. Where there can be none beside it, only a file without content is written in its
//! place, and is durable at the end. A pool is not overwritten: its path was meant for `--pool`.

use crate::failure::{FAILED, Failure, REFUSED, at};
use coreplane_pmem::pool::sync_directory;
use coreplane_pmem::{Pool, PoolError};
use std::fs::File;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Bytes that are written at a time.
const PIECE: usize = 1 << 20;

/// The output of a command; nothing takes its place before [`Output::finish`].
pub(crate) struct Output {
    out: BufWriter<Target>,
}

enum Target {
    /// The standard output.
    Stream(StdoutLock<'static>),
    /// A pipe, a terminal, a file that is written in its place; with the path of a file that is made.
    InPlace(File, Option<PathBuf>),
    Beside(Beside),
}

/// A file beside the one that it is to be; removed unless it is that, or is whole. What a killed command has left is
/// used again.
struct Beside {
    file: File,
    beside: PathBuf,
    path: PathBuf,
    is_whole: bool,
}

impl Output {
    /// To the file at `path`, or to the standard output. The file is made or replaced at the end.
    pub(crate) fn to(path: Option<&Path>) -> Result<Self, Failure> {
        let target = match path {
            None => Target::Stream(io::stdout().lock()),
            Some(path) => Target::of(path)?,
        };
        Ok(Self { out: BufWriter::with_capacity(PIECE, target) })
    }

    /// Ends the output: a file is durable, in its place, when it returns.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        self.out.flush()?;
        match self.out.get_mut() {
            Target::Stream(_) => Ok(()),
            Target::InPlace(file, made) => {
                if file.metadata()?.is_file() {
                    // tidy-allow: persistence: the file is no pool; what was written to it is to be kept.
                    file.sync_all()?;
                }
                made.as_deref().map_or(Ok(()), keep_name)
            }
            Target::Beside(file) => file.settle(),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// True for the names of open files of this process, which are no places of files.
pub(crate) fn is_open_file(path: &Path) -> bool {
    let names = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"];
    names.iter().any(|name| path.starts_with(name))
}

impl Target {
    fn in_place(path: &Path, is_new: bool) -> Result<Self, Failure> {
        let file = File::create(path).map_err(at(path))?;
        Ok(Self::InPlace(file, is_new.then(|| path.to_owned())))
    }

    fn of(path: &Path) -> Result<Self, Failure> {
        let found = path.metadata().ok();
        if found.as_ref().is_some_and(std::fs::Metadata::is_file) {
            refuse_pool(path)?;
        }
        // A directory is an error.
        if found.as_ref().is_some_and(|found| !found.is_file()) || is_open_file(path) {
            return Self::in_place(path, false);
        }
        let path = &place(path).map_err(at(path))?;
        if found.is_some() {
            // A file that may not be written is not replaced.
            File::options().write(true).open(path).map_err(at(path))?;
        }
        match Beside::of(path) {
            Ok(file) => {
                if let Some(found) = found {
                    file.file.set_permissions(found.permissions()).map_err(at(&file.beside))?;
                }
                Ok(Self::Beside(file))
            }
            // There can be no file beside it, and none has content that would be lost.
            Err(error)
                if is_impossible(&error) && found.as_ref().is_none_or(|it| it.len() == 0) =>
            {
                Self::in_place(path, found.is_none())
            }
            Err(error) => {
                let (path, beside) = (path.display(), partial(path));
                let message = format!("{path} is not written: {}: {error}", beside.display());
                Err(Failure::new(FAILED, message))
            }
        }
    }
}

/// The path of the file that is meant, which may not exist yet: a link leads to another place.
fn place(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match path.read_link() {
            Ok(to) => place(&path.parent().unwrap_or(Path::new("")).join(to)),
            Err(_) => Ok(path.to_owned()),
        },
        found => found,
    }
}

/// True if a directory takes no file of the name that is tried.
fn is_impossible(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), InvalidFilename | PermissionDenied | ReadOnlyFilesystem)
}

/// The name beside `path`.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Makes the name of a file durable.
fn keep_name(path: &Path) -> Result<(), Failure> {
    let failed = |error| Failure::new(FAILED, format!("{}: {error}", path.display()));
    sync_directory(path).map_err(failed)
}

/// Refuses a file in which a pool is recognised, even a damaged one.
fn refuse_pool(path: &Path) -> Result<(), Failure> {
    match Pool::kind_at(path) {
        Err(PoolError::NotAPool(_)) => Ok(()),
        Err(PoolError::Io { source, .. }) => Err(at(path)(source)),
        Ok(_) | Err(_) => {
            let path = path.display();
            let message = format!("{path} is a pool, and is not overwritten: name it by --pool");
            Err(Failure::new(REFUSED, message))
        }
    }
}

impl Beside {
    fn of(path: &Path) -> io::Result<Self> {
        let beside = partial(path);
        let file = File::options().write(true).create(true).truncate(false).open(&beside)?;
        let is_taken = || io::Error::other("another command is writing it");
        file.try_lock().map_err(|_| is_taken())?;
        // Another command may just have put it in its place.
        if beside.metadata().map_err(|_| is_taken())?.ino() != file.metadata()?.ino() {
            return Err(is_taken());
        }
        file.set_len(0)?;
        Ok(Self { file, beside, path: path.to_owned(), is_whole: false })
    }

    fn settle(&mut self) -> Result<(), Failure> {
        // tidy-allow: persistence: the file is no pool; it must be whole before it replaces the one before it.
        self.file.sync_all().map_err(at(&self.beside))?;
        self.is_whole = true;
        let renamed = std::fs::rename(&self.beside, &self.path);
        let (path, beside) = (self.path.display(), self.beside.display());
        renamed.map_err(|error| {
            Failure::new(FAILED, format!("{path}: {error}; what was written is in {beside}"))
        })?;
        keep_name(&self.path)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if !self.is_whole {
            let _removed = std::fs::remove_file(&self.beside).is_ok();
        }
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stream(stream) => stream.write(bytes),
            Self::InPlace(file, _) | Self::Beside(Beside { file, .. }) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stream.flush(),
            Self::InPlace(file, _) | Self::Beside(Beside { file, .. }) => file.flush(),
        }
    }
}
