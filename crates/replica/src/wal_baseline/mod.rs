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
mod frame;
mod log_file;
mod recover;
mod state;

use crate::map::{MapSnapshot, ReplicaMap};
use coreplane_engine::{
    Batch, ChangeRef, Damage, DurableListener, Entry, Error, Found, KEY_LEN_MAX, Progress, Record,
    Result, Snapshot, Stats, Ticket, VerifyReport, Visibility,
};
use coreplane_mvcc::{Control, LogEntry, SnapshotRecord};
use coreplane_pmem::Medium;
use frame::Frame;
use log_file::LogFile;
use parking_lot::{Mutex, RwLock};
use state::{Pin, State};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
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

impl ReplicaMap for WalBaseline {
    fn name(&self) -> &'static str {
        "wal"
    }

    fn key_len_max(&self) -> usize {
        KEY_LEN_MAX
    }

    fn medium(&self) -> Medium {
        let is_memory = self.inner.lock().log.is_memory;
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

    fn control(&self) -> Control {
        let inner = self.inner.lock();
        let is_installing = inner.installing.is_some();
        Control { purged: inner.control.applied, is_installing, ..inner.control.clone() }
    }

    fn append(&self, timestamp: u64, header: &[u8], changes: &Batch) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_log()?;
        let next = inner.control.newest + 1;
        check_range("append an entry", timestamp, (next, next))?;
        if inner.is_control_new {
            inner.note_control();
        }
        inner.log.add(&Frame::Entry { timestamp, header, changes });
        inner.pending.push_back(Pending { header: header.to_vec(), changes: changes.clone() });
        inner.control.newest = timestamp;
        Ok(())
    }

    fn check_room(&self, changes: &Batch, _beside: u64) -> Result<()> {
        // The file system says how much there is when it is asked for.
        for change in changes.changes() {
            let len = change.key().len();
            if len > KEY_LEN_MAX {
                return Err(Error::KeyTooLong { len, max: KEY_LEN_MAX });
            }
        }
        Ok(())
    }

    fn room_at_once(&self) -> u64 {
        1 << 20
    }

    fn apply(&self, to: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_log()?;
        let Control { applied, newest, .. } = inner.control;
        check_range("apply a timestamp", to, (applied, newest))?;
        let state = self.state();
        let mut state = state.write();
        for timestamp in applied + 1..=to {
            let Some(Pending { header, changes }) = inner.pending.pop_front() else { break };
            changes.changes().for_each(|change| state.make(timestamp, change));
            (inner.control.applied, inner.control.applied_header) = (timestamp, header);
            inner.is_control_new = true;
        }
        Ok(())
    }

    fn roll_back(&self, to: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_log()?;
        check_range("roll back to a timestamp", to, (inner.control.applied, u64::MAX))?;
        if to < inner.control.newest {
            inner.log.add(&Frame::RollBack { to });
            inner.drop_pending(to);
        }
        Ok(())
    }

    fn set_vote(&self, term: u64, vote: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_writable()?;
        let (known, given) = (inner.control.term, inner.control.vote);
        check_range("a term", term, (known, u64::MAX))?;
        if term == known && given != 0 {
            check_range("a vote in the same term", vote, (given, given))?;
        }
        (inner.control.term, inner.control.vote) = (term, vote);
        inner.note_control();
        Ok(())
    }

    fn set_members(&self, members: &[u8]) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_writable()?;
        inner.control.members = members.to_vec();
        inner.note_control();
        Ok(())
    }

    fn commit(&self) -> Result<Ticket> {
        let mut inner = self.inner.lock();
        inner.check_writable()?;
        let ticket = inner.log.commit()?;
        if inner.installing.is_none() {
            inner.tend_checkpoint(&self.directory, &self.state())?;
        }
        Ok(ticket)
    }

    fn is_durable(&self, ticket: Ticket) -> Result<bool> {
        self.inner.lock().log.is_durable(ticket)
    }

    fn wait_durable(&self, ticket: Ticket) -> Result<()> {
        let sync = self.inner.lock().log.sync_state();
        sync.wait(ticket)
    }

    fn on_durable(&self, listener: DurableListener) {
        self.inner.lock().log.sync_state().listen(listener);
    }

    fn close(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.is_closed {
            return Ok(());
        }
        if inner.is_control_new {
            inner.note_control();
        }
        inner.log.commit()?;
        inner.log.sync_now()?;
        inner.is_closed = true;
        inner.wait_checkpoint()
    }

    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        let mut inner = self.inner.lock();
        if !inner.is_closed {
            inner.log.commit()?;
        }
        inner.wait_checkpoint()?;
        let mut report = VerifyReport::default();
        match recover::check(&self.directory) {
            Ok(bytes) => report.bytes = bytes,
            Err(Error::Corrupt { offset, what }) => {
                report.damages.push(Damage { offset, what });
            }
            Err(error) => return Err(error),
        }
        report.records = self.len();
        progress(Progress { stage: "reading the log", done: report.bytes, total: report.bytes });
        Ok(report)
    }

    fn stats(&self) -> Stats {
        let inner = self.inner.lock();
        let bytes = self.state().read().bytes();
        let mut stats = Stats::default();
        stats.log_bytes_written = inner.log.written_in_all;
        stats.cleaner_bytes_copied = inner.checkpoint_bytes;
        stats.fences = inner.log.sync_state().count();
        stats.records = self.len();
        stats.live_bytes = bytes;
        stats.pool_bytes = inner.log.len() + bytes;
        stats.dram_bytes = bytes;
        stats
    }

    fn entries(
        &self,
        range: RangeInclusive<u64>,
        visit: &mut dyn FnMut(LogEntry<'_>) -> bool,
    ) -> Result<()> {
        let inner = self.inner.lock();
        inner.check_log()?;
        let Control { applied, newest, .. } = inner.control;
        for timestamp in range {
            if timestamp <= applied {
                return Err(Error::HistoryGone { asked: timestamp, horizon: applied });
            }
            check_range("read an entry", timestamp, (applied + 1, newest))?;
            let Some(entry) = inner.pending.get((timestamp - applied - 1) as usize) else { break };
            // In the order of keys, each key once.
            let last: std::collections::BTreeMap<&[u8], ChangeRef<'_>> =
                entry.changes.changes().map(|change| (change.key(), change)).collect();
            let changes: Vec<ChangeRef<'_>> = last.into_values().collect();
            if !visit(LogEntry { timestamp, header: &entry.header, changes: &changes }) {
                break;
            }
        }
        Ok(())
    }

    fn header(&self, timestamp: u64) -> Result<Option<Vec<u8>>> {
        let inner = self.inner.lock();
        let Control { applied, applied_header, .. } = &inner.control;
        if inner.installing.is_some() {
            return Ok(None);
        }
        if timestamp == *applied && timestamp > 0 {
            return Ok(Some(applied_header.clone()));
        }
        let at = timestamp.checked_sub(applied + 1);
        Ok(at.and_then(|at| inner.pending.get(at as usize)).map(|entry| entry.header.clone()))
    }

    fn get_with(
        &self,
        key: &[u8],
        _visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        // What is applied is durable with a majority, and was committed here before.
        let hit = self.state().read().get(key, u64::MAX, visit);
        Ok(Found { hit, ticket: Ticket::DURABLE })
    }

    fn len(&self) -> u64 {
        self.state().read().len()
    }

    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        State::scan(&self.state(), u64::MAX, (start, end), reverse, visit);
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<dyn MapSnapshot>> {
        let inner = self.inner.lock();
        inner.check_log()?;
        let pin = State::pin(&self.state(), inner.control.applied);
        let Control { applied_header, members, .. } = inner.control.clone();
        Ok(Box::new(WalSnapshot { pin, header: applied_header, members }))
    }

    fn begin_install(&self, timestamp: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_writable()?;
        let from = inner.control.applied + u64::from(inner.installing.is_none());
        check_range("install a snapshot", timestamp, (from.max(1), u64::MAX - 1))?;
        inner.installing = Some((timestamp, Arc::default()));
        Ok(())
    }

    fn install(&self, records: &mut dyn Iterator<Item = SnapshotRecord<'_>>) -> Result<()> {
        let inner = self.inner.lock();
        let (newest, state) = inner.installing.as_ref().ok_or_else(not_begun)?;
        let mut state = state.write();
        for SnapshotRecord { key, value, timestamp, expires_at } in records {
            check_range("install a record", timestamp, (1, *newest))?;
            if state.get(key, u64::MAX, &mut |_| {}) {
                return Err(Error::Unusable("a key is in the snapshot twice".to_owned()));
            }
            state.make(timestamp, ChangeRef::Put { key, value, expires_at });
        }
        Ok(())
    }

    fn end_install(&self, header: &[u8], members: &[u8]) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_writable()?;
        let (timestamp, state) = inner.installing.clone().ok_or_else(not_begun)?;
        inner.wait_checkpoint()?;
        let control = Control {
            newest: timestamp,
            applied: timestamp,
            applied_header: header.to_vec(),
            members: members.to_vec(),
            ..inner.control.clone()
        };
        // An empty file first: the checkpoint makes all before it void.
        let number = inner.log.number + 1;
        inner.log.begin(&self.directory, number)?;
        let pin = State::pin(&state, timestamp);
        inner.checkpoint_bytes += checkpoint::write(&self.directory, number, &control, &pin)?;
        inner.control = control;
        inner.pending.clear();
        inner.installing = None;
        inner.is_control_new = false;
        *self.state.write() = state;
        Ok(())
    }
}

fn not_begun() -> Error {
    Error::Unusable("no snapshot was begun to be installed".to_owned())
}

/// What was applied at one moment.
struct WalSnapshot {
    pin: Pin,
    header: Vec<u8>,
    members: Vec<u8>,
}

impl MapSnapshot for WalSnapshot {
    fn timestamp(&self) -> u64 {
        self.pin.timestamp()
    }

    fn header(&self) -> &[u8] {
        &self.header
    }

    fn members(&self) -> &[u8] {
        &self.members
    }

    fn records(&self) -> &dyn Snapshot {
        &self.pin
    }
}
