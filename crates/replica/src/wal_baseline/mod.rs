//! The thesis's baseline (2.3): a write-ahead log on a block device, and the state in DRAM.
//!
//! # The problem
//!
//! What a map that is its own log gains can be told only beside a replica that is the same in all else. So here is the
//! classic one behind the same trait: the node, its consensus, its network and its server do not know the difference.
//!
//! # The picture
//!
//! ```text
//!   append, set_vote … ─▶ buffer ── commit: one write, one fdatasync ─▶ log.7      ┐ what a start reads
//!   apply ─▶ state (DRAM) ── in the background, when the log is long ─▶ checkpoint.7┘
//! ```
//!
//! A commit writes all frames since the last one with one `write`, and has them synced by a thread of its own, so that
//! entries are on their way to the followers meanwhile. On a file system that lives in memory it syncs at once: a thread
//! would cost more. Log files are allocated in steps of 64 MiB ahead, or a sync would wait for the file system's journal.
//!
//! # Checkpoints
//!
//! When a log file is longer than the state and than 64 MiB, the next one is begun: its first frames are the control and
//! the pending entries. A thread writes the state of that moment to a checkpoint with the same number, which replaces
//! those before it and their log files when it is durable. The state keeps the versions that a snapshot sees, so that
//! writes go on.
//!
//! # A start
//!
//! reads the newest checkpoint, and the log files from that number on. In the last of them a frame that is not whole ends
//! the log: it was never synced, or it is damaged, which a log of this kind cannot tell. What is left is synced before
//! anything rests on it.

mod checkpoint;
mod face;
mod frame;
mod log_file;
mod recover;
mod state;

use coreplane_engine::{Batch, Error, Result};
use coreplane_mvcc::{Control, LogAppend};
use coreplane_pmem::append_file::sync_directory;
use coreplane_pmem::mutant;
use frame::Frame;
use log_file::LogFile;
use parking_lot::{Mutex, RwLock};
use state::State;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// How it is tuned.
#[derive(Debug, Clone)]
pub struct WalOptions {
    /// Bytes of a log file before a checkpoint is written, at least; by default 64 MiB.
    pub checkpoint_bytes: u64,
}

impl Default for WalOptions {
    fn default() -> Self {
        Self { checkpoint_bytes: 64 << 20 }
    }
}

/// An entry that is pending.
#[derive(Debug, Clone)]
struct Pending {
    header: Vec<u8>,
    changes: Batch,
}

/// What is behind the lock.
struct Inner {
    control: Control,
    /// From the entry behind the applied one on.
    pending: VecDeque<Pending>,
    log: LogFile,
    /// What is applied is not in the log yet.
    is_control_new: bool,
    /// A snapshot that is being installed: its timestamp, and what has come of it.
    installing: Option<(u64, Arc<RwLock<State>>)>,
    checkpoint: Option<JoinHandle<Result<u64>>>,
    checkpoint_bytes: u64,
    checkpoint_bytes_min: u64,
    is_closed: bool,
}

/// A log on files of a directory, and the map that it makes, in DRAM.
///
/// Dropping it without closing it is a crash: nothing that was committed is lost.
pub struct WalBaseline {
    inner: Mutex<Inner>,
    state: RwLock<Arc<RwLock<State>>>,
    directory: PathBuf,
    /// Nobody else opens the directory while this is locked.
    _lock: File,
}

impl std::fmt::Debug for WalBaseline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WalBaseline").field("directory", &self.directory).finish_non_exhaustive()
    }
}

fn io_error(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let context = format!("{what} {}", path.display());
    move |source| Error::Io { context, source }
}

fn corrupt(path: &Path, offset: u64, what: &str) -> Error {
    Error::Corrupt { offset, what: format!("{}: {what}", path.display()) }
}

fn check_range(what: &'static str, given: u64, (from, to): (u64, u64)) -> Result<()> {
    if given < from || given > to {
        return Err(Error::OutOfRange { what, given, from, to });
    }
    Ok(())
}

impl WalBaseline {
    /// Opens the log in `directory`, or begins one there if there is no such directory.
    ///
    /// # Errors
    /// [`Error::Unusable`] if somebody else has it open; [`Error::Corrupt`]; [`Error::Io`].
    pub fn open(directory: &Path, options: &WalOptions) -> Result<Self> {
        std::fs::create_dir_all(directory).map_err(io_error("create", directory))?;
        let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_directory(parent.unwrap_or(Path::new("."))).map_err(io_error("sync", directory))?;
        let path = directory.join("lock");
        let lock = File::create(&path).map_err(io_error("create", &path))?;
        lock.try_lock()
            .map_err(|_| Error::Unusable(format!("{} is in use", directory.display())))?;
        let found = recover::recover(directory)?;
        let inner = Inner {
            control: found.control,
            pending: found.pending,
            log: found.log,
            is_control_new: false,
            installing: None,
            checkpoint: None,
            checkpoint_bytes: 0,
            checkpoint_bytes_min: options.checkpoint_bytes,
            is_closed: false,
        };
        Ok(Self {
            inner: Mutex::new(inner),
            state: RwLock::new(Arc::new(RwLock::new(found.state))),
            directory: directory.to_owned(),
            _lock: lock,
        })
    }

    fn state(&self) -> Arc<RwLock<State>> {
        Arc::clone(&self.state.read())
    }
}

impl Inner {
    fn check_writable(&self) -> Result<()> {
        match self.is_closed {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    fn check_log(&self) -> Result<()> {
        self.check_writable()?;
        match self.installing {
            Some(_) => Err(Error::Installing),
            None => Ok(()),
        }
    }

    fn append(&mut self, entry: LogAppend<'_>) -> Result<()> {
        let LogAppend { timestamp, header, changes } = entry;
        let next = self.control.newest + 1;
        check_range("append an entry", timestamp, (next, next))?;
        if self.is_control_new {
            self.note_control();
        }
        self.log.add(&Frame::Entry { timestamp, header, changes });
        self.pending.push_back(Pending { header: header.to_vec(), changes: changes.clone() });
        self.control.newest = timestamp;
        Ok(())
    }

    fn drop_pending(&mut self, to: u64) {
        self.pending.truncate((to - self.control.applied) as usize);
        self.control.newest = self.control.newest.min(to);
    }

    fn note_control(&mut self) {
        self.log.add(&Frame::Control(&self.control));
        self.is_control_new = false;
    }

    /// Begins the next log file with all that a start needs beside the checkpoint of the same number; durable when it
    /// returns, since that checkpoint makes the file before void.
    fn begin_log_file(&mut self, directory: &Path) -> Result<u64> {
        let number = self.log.number + 1;
        self.log.begin(directory, number)?;
        self.note_control();
        for (timestamp, Pending { header, changes }) in
            (self.control.applied + 1..).zip(&self.pending)
        {
            self.log.add(&Frame::Entry { timestamp, header, changes });
        }
        if mutant!("replica.wal.begun") {
            return Ok(number);
        }
        self.log.commit()?;
        self.log.sync_now()?;
        Ok(number)
    }

    /// Sees to a checkpoint, if the log is long.
    fn tend_checkpoint(&mut self, directory: &Path, state: &Arc<RwLock<State>>) -> Result<()> {
        if let Some(thread) = self.checkpoint.take_if(|it| it.is_finished()) {
            self.checkpoint_bytes += join(thread)?;
        }
        let len_max = self.checkpoint_bytes_min.max(state.read().bytes());
        if self.checkpoint.is_some() || self.log.len() < len_max {
            return Ok(());
        }
        let number = self.begin_log_file(directory)?;
        let pin = State::pin(state, self.control.applied);
        let (control, directory) = (self.control.clone(), directory.to_owned());
        let write = move || checkpoint::write(&directory, number, &control, &pin);
        let thread = std::thread::Builder::new().name("checkpoint".to_owned()).spawn(write);
        let failed = |source| Error::Io { context: "start a thread".to_owned(), source };
        self.checkpoint = Some(thread.map_err(failed)?);
        Ok(())
    }

    fn wait_checkpoint(&mut self) -> Result<()> {
        if let Some(thread) = self.checkpoint.take() {
            self.checkpoint_bytes += join(thread)?;
        }
        Ok(())
    }
}

fn join(thread: JoinHandle<Result<u64>>) -> Result<u64> {
    thread.join().map_err(|_| Error::Unusable("a checkpoint has panicked".to_owned()))?
}

impl Drop for WalBaseline {
    fn drop(&mut self) {
        // Nobody else opens the directory before its thread has ended. What it has failed at a start repairs.
        let _ended = self.inner.get_mut().wait_checkpoint().is_ok();
    }
}
