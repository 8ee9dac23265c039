//! The thesis's baseline (2.3): a write-ahead log, and the state in DRAM.
//!
//! # The problem
//!
//! The gain of a map that is its own log shows only in comparison with a replica that is the same in all else. So
//! here is the classic design behind the same trait: the node, its consensus, its network and its server cannot tell
//! the difference.
//!
//! # The picture
//!
//! ```text
//!   append, set_vote … ─▶ buffer ── commit: one append, one sync ─▶ log 7              ┐ what a start reads
//!   apply ─▶ state (DRAM) ── in the background, when the log is long ─▶ checkpoint 7  ─┘
//! ```
//!
//! A commit appends all frames since the last one at once. There are two kinds of `storage`:
//!
//! - files of a directory, on a block device: one `write`, and one `fdatasync` by a thread of its own, so that
//!   entries are sent to the followers meanwhile. On a file system in memory the commit syncs by itself: a thread
//!   would cost more.
//! - pages of a pool, on the same medium as a map that is its own log: stores, flushes and one fence. Where a fence
//!   is a sync, the thread makes it.
//!
//! # Checkpoints
//!
//! When a log is longer than the state and than 64 MiB, the next one is begun: its first frames are the control
//! record and the pending entries. A thread writes the state of that moment to a checkpoint with the same number,
//! which replaces earlier checkpoints and their logs once it is durable. The state keeps the versions that a snapshot
//! sees, so that writes go on. In a pool a checkpoint is also written when the next one would otherwise have no room
//! (`room`).
//!
//! # A start
//!
//! A start reads the newest checkpoint, and the logs from its number on. In the last of them an incomplete frame ends
//! the log: it was never synced, or it is damaged, and a log of this kind cannot tell which. The rest is synced
//! before anything depends on it.
//!
//! # Rooms
//!
//! From the bottom to the top: `frame`, `state`, `storage` with its two kinds (`directory`; `pages` with its
//! `page_header` and its `index`), the `log` being written, `checkpoint`, `recover`, `room`, and `face`, which
//! implements the trait of a node's map.

mod checkpoint;
mod directory;
mod face;
mod frame;
mod index;
mod log;
mod page_header;
mod pages;
mod recover;
mod room;
mod state;
mod storage;

use coreplane_engine::{Batch, Error, Result};
use coreplane_mvcc::{Control, LogAppend};
use coreplane_pmem::{MediaChoice, Space, mutant};
use directory::Directory;
use frame::Frame;
use log::Log;
use pages::Pages;
use parking_lot::{Mutex, RwLock};
use state::State;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use storage::Storage;

/// Options of a baseline.
#[derive(Debug, Clone)]
pub struct WalOptions {
    /// Bytes of a log before a checkpoint is written, at least; by default 64 MiB.
    pub checkpoint_bytes: u64,
    /// A thread writes the checkpoints. If not, a commit writes them: for simulations.
    pub has_thread: bool,
}

impl Default for WalOptions {
    fn default() -> Self {
        Self { checkpoint_bytes: 64 << 20, has_thread: true }
    }
}

/// A pending entry.
#[derive(Debug, Clone)]
struct Pending {
    header: Vec<u8>,
    changes: Batch,
    /// Its approximate bytes.
    len: u64,
}

impl Pending {
    fn new(header: &[u8], changes: Batch) -> Self {
        let len = room::len_of(header.len(), &changes);
        Self { header: header.to_vec(), changes, len }
    }
}

/// The state behind the lock.
struct Inner {
    control: Control,
    /// The entries behind the applied one.
    pending: VecDeque<Pending>,
    /// Their approximate bytes.
    pending_bytes: u64,
    log: Log,
    /// The control record has changed, and is not in the log yet.
    is_control_new: bool,
    /// A snapshot that is being installed: its timestamp, and its records so far.
    installing: Option<(u64, Arc<RwLock<State>>)>,
    checkpoint: Option<Running>,
    checkpoint_bytes: u64,
    options: WalOptions,
    is_closed: bool,
}

/// A checkpoint that is being written.
struct Running {
    thread: JoinHandle<Result<u64>>,
    /// Bytes that it may still need.
    need: u64,
}

/// A log in files of a directory, or in pages of a pool, and the map that it makes, in DRAM.
///
/// Dropping it without closing it is a crash: committed entries survive.
pub struct WalBaseline {
    inner: Mutex<Inner>,
    state: RwLock<Arc<RwLock<State>>>,
    storage: Arc<dyn Storage>,
}

impl std::fmt::Debug for WalBaseline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WalBaseline").field("storage", &self.storage.name()).finish_non_exhaustive()
    }
}

fn corrupt(name: &str, offset: u64, what: &str) -> Error {
    Error::Corrupt { offset, what: format!("{name}: {what}") }
}

fn check_range(what: &'static str, given: u64, (from, to): (u64, u64)) -> Result<()> {
    if given < from || given > to {
        return Err(Error::OutOfRange { what, given, from, to });
    }
    Ok(())
}

impl WalBaseline {
    /// The kind of a pool with such a log, as its header states it.
    pub const KIND: &'static str = "wal";

    /// The default size of a page of a pool, in bytes.
    pub const PAGE_SIZE: u32 = 64 << 10;

    /// True if there is a directory with a log at `path`.
    #[must_use]
    pub fn is_at(path: &Path) -> bool {
        directory::is_at(path)
    }

    /// Opens the log in the directory at `path`, or begins one there if there is no such directory.
    ///
    /// # Errors
    /// [`Error::Unusable`] if it is open elsewhere; [`Error::Corrupt`]; [`Error::Io`].
    pub fn open(path: &Path, options: &WalOptions) -> Result<Self> {
        Self::on(Arc::new(Directory::open(path)?), options)
    }

    /// Begins a log in a new pool of `size` bytes, with pages of so many, at `path`, where no file may exist yet.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Unusable`], [`Error::Io`].
    pub fn create_pool(
        path: &Path,
        (size, page_size): (u64, u32),
        media: MediaChoice,
        options: &WalOptions,
    ) -> Result<Self> {
        Self::on(Arc::new(Pages::create(path, size, page_size, media)?), options)
    }

    /// Opens the log in the pool at `path`.
    ///
    /// # Errors
    /// [`Error::Locked`] if it is open elsewhere; [`Error::Unusable`] if it holds something else; [`Error::Corrupt`];
    /// [`Error::Io`].
    pub fn open_pool(path: &Path, media: MediaChoice, options: &WalOptions) -> Result<Self> {
        Self::on(Arc::new(Pages::open(path, media)?), options)
    }

    /// Begins a log in the simulator's memory.
    ///
    /// # Errors
    /// As [`WalBaseline::create_pool`].
    pub fn simulated_create(space: Arc<Space>, options: &WalOptions) -> Result<Self> {
        Self::on(Arc::new(Pages::simulated_create(space)?), options)
    }

    /// Opens the log in the simulator's memory.
    ///
    /// # Errors
    /// As [`WalBaseline::open_pool`].
    pub fn simulated_open(space: Arc<Space>, options: &WalOptions) -> Result<Self> {
        Self::on(Arc::new(Pages::simulated_open(space)?), options)
    }

    fn on(storage: Arc<dyn Storage>, options: &WalOptions) -> Result<Self> {
        let found = recover::recover(storage.as_ref())?;
        let inner = Inner {
            control: found.control,
            pending_bytes: found.pending.iter().map(|it| it.len).sum(),
            pending: found.pending,
            log: found.log,
            is_control_new: false,
            installing: None,
            checkpoint: None,
            checkpoint_bytes: 0,
            options: options.clone(),
            is_closed: false,
        };
        let state = RwLock::new(Arc::new(RwLock::new(found.state)));
        Ok(Self { inner: Mutex::new(inner), state, storage })
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
        let pending = Pending::new(header, changes.clone());
        self.pending_bytes += pending.len;
        self.pending.push_back(pending);
        self.control.newest = timestamp;
        Ok(())
    }

    fn drop_pending(&mut self, to: u64) {
        let dropped = self.pending.drain((to - self.control.applied) as usize..);
        self.pending_bytes -= dropped.map(|it| it.len).sum::<u64>();
        self.control.newest = self.control.newest.min(to);
    }

    fn note_control(&mut self) {
        self.log.add(&Frame::Control(&self.control));
        self.is_control_new = false;
    }

    /// Begins the next log with everything that a start needs beside the checkpoint of the same number; durable when
    /// it returns, since that checkpoint makes the previous log void.
    fn begin_log(&mut self, storage: &dyn Storage) -> Result<u64> {
        let number = self.log.number + 1;
        self.log.begin(storage, number)?;
        self.note_control();
        for (timestamp, Pending { header, changes, .. }) in
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

    /// Writes a checkpoint, if the log is long or there is little room.
    fn tend_checkpoint(
        &mut self,
        storage: &Arc<dyn Storage>,
        state: &Arc<RwLock<State>>,
    ) -> Result<()> {
        if let Some(running) = self.checkpoint.take_if(|it| it.thread.is_finished()) {
            self.checkpoint_bytes += join(running)?;
        }
        let len_max = self.options.checkpoint_bytes.max(state.read().bytes());
        if self.checkpoint.is_some()
            || self.log.len() < len_max && !self.is_room_scarce(storage.as_ref(), state)
        {
            return Ok(());
        }
        if !self.options.has_thread {
            return self.write_checkpoint(storage, state);
        }
        let need = self.checkpoint_need(state);
        let number = self.begin_log(storage.as_ref())?;
        let pin = State::pin(state, self.control.applied);
        let (control, storage) = (self.control.clone(), Arc::clone(storage));
        let write = move || checkpoint::write(storage.as_ref(), number, &control, &pin);
        let thread = std::thread::Builder::new().name("checkpoint".to_owned()).spawn(write);
        let failed = |source| Error::Io { context: "start a thread".to_owned(), source };
        self.checkpoint = Some(Running { thread: thread.map_err(failed)?, need });
        Ok(())
    }

    /// Writes a checkpoint now.
    fn write_checkpoint(
        &mut self,
        storage: &Arc<dyn Storage>,
        state: &Arc<RwLock<State>>,
    ) -> Result<()> {
        self.wait_checkpoint()?;
        let number = self.begin_log(storage.as_ref())?;
        let pin = State::pin(state, self.control.applied);
        self.checkpoint_bytes += checkpoint::write(storage.as_ref(), number, &self.control, &pin)?;
        Ok(())
    }

    fn wait_checkpoint(&mut self) -> Result<()> {
        if let Some(running) = self.checkpoint.take() {
            self.checkpoint_bytes += join(running)?;
        }
        Ok(())
    }
}

fn join(running: Running) -> Result<u64> {
    let joined = running.thread.join();
    joined.map_err(|_| Error::Unusable("a checkpoint has panicked".to_owned()))?
}

impl Drop for WalBaseline {
    fn drop(&mut self) {
        // No other opening succeeds before its thread has ended. The next start repairs its failures.
        let _ended = self.inner.get_mut().wait_checkpoint().is_ok();
    }
}
