//! The log and its checkpoints as files of a directory: written by `write`, durable by `fdatasync`.
//!
//! Log files are allocated ahead in steps; otherwise a sync would wait for the file system's journal.

use super::frame::frames_len;
use super::storage::{Draft, Part, Room, Storage, Stored, SyncCall, Tail};
use coreplane_engine::{Error, Result};
use coreplane_pmem::Medium;
use coreplane_pmem::append_file::{AppendFile, DraftFile, sync_directory};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The file by which other processes are kept out, and the checkpoint that is being written.
const LOCK: &str = "lock";
const DRAFT: &str = "checkpoint.draft";
/// The part of a log file that is allocated ahead.
const AHEAD_BYTES: u64 = 64 << 20;
/// Bytes per read.
const READ_BYTES: u64 = 1 << 20;

fn io_error(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let context = format!("{what} {}", path.display());
    move |source| Error::Io { context, source }
}

/// The part in the file of this name.
fn part_of(name: &str) -> Option<Part> {
    match name.split_once('.')? {
        ("checkpoint", number) => number.parse().ok().map(Part::Checkpoint),
        ("log", number) => number.parse().ok().map(Part::Log),
        _ => None,
    }
}

/// True if there is a directory with a log.
pub(super) fn is_at(path: &Path) -> bool {
    let names = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| name.to_str().and_then(part_of).is_some())
}

/// Fails if the directory contains anything that is no part of a log: it may be a matrix, or of somebody else.
fn check_contents(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path).map_err(io_error("read", path))? {
        let name = entry.map_err(io_error("read", path))?.file_name();
        let is_own = |name: &str| name == LOCK || name == DRAFT || part_of(name).is_some();
        // The root of a file system of its own has a directory of that name.
        if !name.to_str().is_some_and(|name| is_own(name) || name == "lost+found") {
            let name = name.display();
            let what = format!("{} is no write-ahead log: it contains {name}", path.display());
            return Err(Error::Unusable(what));
        }
    }
    Ok(())
}

/// A directory of logs and checkpoints.
pub(super) struct Directory {
    path: PathBuf,
    /// The file system is in memory.
    is_memory: AtomicBool,
    /// Keeps every other process from opening the directory.
    _lock: File,
}

impl Directory {
    /// Opens the directory, or creates it.
    pub(super) fn open(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).map_err(io_error("create", path))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_directory(parent.unwrap_or(Path::new("."))).map_err(io_error("sync", path))?;
        check_contents(path)?;
        let locked = path.join(LOCK);
        let lock = OpenOptions::new().write(true).create(true).truncate(false).open(&locked);
        let lock = lock.map_err(io_error("create", &locked))?;
        lock.try_lock().map_err(|_| Error::Unusable(format!("{} is in use", path.display())))?;
        Ok(Self { path: path.to_owned(), is_memory: AtomicBool::new(false), _lock: lock })
    }

    fn path_of(&self, part: Part) -> PathBuf {
        match part {
            Part::Checkpoint(number) => self.path.join(format!("checkpoint.{number:010}")),
            Part::Log(number) => self.path.join(format!("log.{number:010}")),
        }
    }
}

impl Storage for Directory {
    fn name(&self) -> &'static str {
        "wal"
    }

    fn medium(&self) -> Medium {
        let is_memory = self.is_memory.load(Ordering::Relaxed);
        let (name, loses) = match is_memory {
            true => ("wal in memory", "everything"),
            false => ("wal", "nothing that was acknowledged"),
        };
        Medium {
            name: name.to_owned(),
            power_safe: !is_memory,
            power_cut_loses: loses.to_owned(),
            persists_by: "fdatasync".to_owned(),
        }
    }

    fn parts(&self) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(io_error("read", &self.path))? {
            let name = entry.map_err(io_error("read", &self.path))?.file_name();
            parts.extend(name.to_str().and_then(part_of));
        }
        parts.sort_unstable();
        Ok(parts)
    }

    fn name_of(&self, part: Part) -> String {
        self.path_of(part).display().to_string()
    }

    fn read(&self, part: Part) -> Result<Stored> {
        let path = self.path_of(part);
        let bytes = match part {
            Part::Checkpoint(_) => fs::read(&path),
            Part::Log(_) => read_log(&path),
        };
        let bytes = bytes.map_err(io_error("read", &path))?;
        Ok(Stored { bytes, seeds: Vec::new(), is_clean: true })
    }

    fn open_log(&self, number: u64, len: u64) -> Result<Box<dyn Tail>> {
        let path = self.path_of(Part::Log(number));
        let file = AppendFile::open(&path, len, AHEAD_BYTES).map_err(io_error("open", &path))?;
        self.is_memory.store(file.is_memory(), Ordering::Relaxed);
        Ok(Box::new(FileTail { file, path }))
    }

    fn begin_checkpoint(&self, number: u64) -> Result<Box<dyn Draft>> {
        let path = self.path_of(Part::Checkpoint(number));
        let file = DraftFile::create(&path).map_err(io_error("create", &path))?;
        Ok(Box::new(FileDraft { file, path }))
    }

    fn remove_before(&self, number: u64) -> Result<()> {
        for part in self.parts()?.into_iter().filter(|part| part.number() < number) {
            let path = self.path_of(part);
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
        Ok(())
    }

    fn room(&self) -> Option<Room> {
        None
    }
}

/// The bytes of a log file, up to its first part that is not allocated or not written yet.
fn read_log(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let (mut bytes, mut whole) = (Vec::new(), 0);
    loop {
        let before = bytes.len();
        file.by_ref().take(READ_BYTES).read_to_end(&mut bytes)?;
        whole += frames_len(bytes.get(whole..).unwrap_or_default());
        let is_end = bytes.get(whole..).is_some_and(|rest| rest.starts_with(&[0; 4]));
        if bytes.len() == before || is_end {
            return Ok(bytes);
        }
    }
}

/// The log file being written.
struct FileTail {
    file: AppendFile,
    path: PathBuf,
}

impl Tail for FileTail {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.append(bytes).map_err(io_error("write", &self.path))
    }

    fn seed(&self) -> u32 {
        0
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn syncer(&self) -> SyncCall {
        let syncer = self.file.syncer();
        Arc::new(move || syncer.sync().map_err(|error| error.to_string()))
    }

    fn is_synced_at_once(&self) -> bool {
        self.file.is_memory()
    }

    fn finish(&mut self) -> Result<()> {
        // A finished file has nothing allocated ahead: so it contains only frames.
        self.file.finish().map_err(io_error("finish", &self.path))
    }
}

struct FileDraft {
    file: DraftFile,
    path: PathBuf,
}

impl Draft for FileDraft {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.append(bytes).map_err(io_error("write", &self.path))
    }

    fn seed(&self) -> u32 {
        0
    }

    fn publish(self: Box<Self>) -> Result<()> {
        self.file.publish().map_err(io_error("write", &self.path))
    }
}
