//! Ordinary files that are written from front to back by `write`, and made durable by `fdatasync`.
//!
//! Pools do not use them: they are for baselines that are compared with pools, and for files that are written once as
//! a whole.

use crate::media::file::memory_filesystem;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that is appended to by one owner.
#[derive(Debug)]
pub struct AppendFile {
    file: Arc<File>,
    len: u64,
    allocated: u64,
    ahead: u64,
    is_memory: bool,
}

/// Syncs a file that another owner appends to.
#[derive(Debug, Clone)]
pub struct Syncer(Arc<File>);

impl Syncer {
    /// Makes all earlier appends durable (`fdatasync`).
    ///
    /// # Errors
    /// If it fails; it is then unknown which bytes are durable.
    pub fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

impl AppendFile {
    /// Opens the file at `path`, or creates it, and truncates it to `len` bytes, which are durable when this returns,
    /// as is its name. Space is allocated in steps of `ahead` bytes, since otherwise each sync would wait for the
    /// file system's journal; no space is allocated ahead on a file system in memory.
    ///
    /// # Errors
    /// If the file system fails, or is full.
    pub fn open(path: &Path, len: u64, ahead: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(len)?;
        let is_memory = memory_filesystem(&file).is_some();
        let mut opened = Self { file: Arc::new(file), len, allocated: len, ahead, is_memory };
        opened.allocate(len)?;
        opened.file.sync_all()?;
        sync_directory(path.parent().unwrap_or(path))?;
        Ok(opened)
    }

    fn allocate(&mut self, to: u64) -> io::Result<()> {
        self.allocated = to + self.ahead;
        if self.is_memory {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, self.allocated) {
            // Where this is not supported, a sync takes longer.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Appends bytes; durable after a sync.
    ///
    /// # Errors
    /// If the file system fails, or is full: then none of the bytes count.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let to = self.len + bytes.len() as u64;
        if to > self.allocated {
            self.allocate(to)?;
        }
        self.file.write_all_at(bytes, self.len)?;
        self.len = to;
        Ok(())
    }

    /// Syncs the file, from any thread.
    pub fn syncer(&self) -> Syncer {
        Syncer(Arc::clone(&self.file))
    }

    /// Bytes that were appended.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if the file system lives in memory: a sync does nothing, and a power cut loses it.
    pub fn is_memory(&self) -> bool {
        self.is_memory
    }

    /// Releases the space allocated ahead; all appended bytes are durable when this returns.
    ///
    /// # Errors
    /// If the file system fails.
    pub fn finish(&mut self) -> io::Result<()> {
        self.file.set_len(self.len)?;
        self.file.sync_all()
    }
}

/// Makes the names in a directory durable.
///
/// # Errors
/// If the file system fails.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// A file that appears as a whole, or not at all.
#[derive(Debug)]
pub struct DraftFile {
    file: File,
    draft: PathBuf,
    path: PathBuf,
}

impl DraftFile {
    /// Begins a file that will be published at `path`.
    ///
    /// # Errors
    /// If the file system fails.
    pub fn create(path: &Path) -> io::Result<Self> {
        let draft = path.with_extension("draft");
        Ok(Self { file: File::create(&draft)?, draft, path: path.to_owned() })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// If the file system fails, or is full.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Moves the file to its place, where all of it is durable when this returns.
    ///
    /// # Errors
    /// If the file system fails: then the file may be there as a whole, or not.
    pub fn publish(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.draft, &self.path)?;
        sync_directory(self.path.parent().unwrap_or(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_appended_is_there() {
        for directory in [Path::new("/dev/shm"), &std::env::temp_dir()] {
            let directory = tempfile::tempdir_in(directory).unwrap();
            let path = directory.path().join("file");
            let mut file = AppendFile::open(&path, 0, 8192).unwrap();
            file.append(b"one").unwrap();
            file.append(&[7; 10_000]).unwrap();
            file.syncer().sync().unwrap();
            assert_eq!(file.len(), 10_003);
            let bytes = fs::read(&path).unwrap();
            assert!(bytes.starts_with(b"one\x07") && bytes.iter().skip(10_003).all(|it| *it == 0));
            assert_eq!(bytes.len() > 10_003, !file.is_memory());
            file.finish().unwrap();
            assert_eq!(fs::read(&path).unwrap().len(), 10_003);
            drop(file);
            let mut file = AppendFile::open(&path, 3, 10).unwrap();
            file.append(b"two").unwrap();
            file.finish().unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"onetwo");
        }
    }

    #[test]
    fn a_draft_takes_the_place_of_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file.1");
        fs::write(&path, b"old").unwrap();
        let mut draft = DraftFile::create(&path).unwrap();
        draft.append(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        draft.publish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
