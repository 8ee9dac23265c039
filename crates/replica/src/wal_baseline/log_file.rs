//! The log file that is written, and its syncs.

use super::frame::Frame;
use super::io_error;
use coreplane_engine::{DurableListener, Error, Result, Ticket};
use coreplane_pmem::media::lives_in_memory;
use parking_lot::{Condvar, Mutex};
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// So much of a log file is allocated ahead.
const AHEAD_BYTES: u64 = 64 << 20;

/// The name of a log file.
pub(super) fn log_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("log.{number:010}"))
}

/// How far the syncs are.
#[derive(Default)]
struct Syncs {
    file: Option<Arc<File>>,
    asked: u64,
    done: u64,
    count: u64,
    failure: Option<String>,
    is_over: bool,
}

/// What who writes, who syncs and who waits share.
#[derive(Default)]
pub(super) struct SyncState {
    syncs: Mutex<Syncs>,
    /// More is asked for.
    asked: Condvar,
    /// More is done.
    done: Condvar,
    listeners: Mutex<Vec<DurableListener>>,
}

impl SyncState {
    fn failure(syncs: &Syncs) -> Result<()> {
        syncs.failure.as_ref().map_or(Ok(()), |what| Err(Error::SyncFailed(what.clone())))
    }

    pub(super) fn wait(&self, ticket: Ticket) -> Result<()> {
        let mut syncs = self.syncs.lock();
        while syncs.done < ticket.position() && syncs.failure.is_none() {
            self.done.wait(&mut syncs);
        }
        Self::failure(&syncs)
    }

    pub(super) fn listen(&self, listener: DurableListener) {
        self.listeners.lock().push(listener);
    }

    pub(super) fn count(&self) -> u64 {
        self.syncs.lock().count
    }

    fn ended(&self, upto: u64, done: std::io::Result<()>) {
        let mut syncs = self.syncs.lock();
        syncs.count += 1;
        match done {
            Ok(()) => syncs.done = syncs.done.max(upto),
            Err(error) => syncs.failure = Some(error.to_string()),
        }
    }

    /// The thread that syncs.
    fn run(&self) {
        let mut syncs = self.syncs.lock();
        loop {
            if syncs.is_over {
                return;
            }
            if syncs.asked <= syncs.done || syncs.failure.is_some() {
                self.asked.wait(&mut syncs);
                continue;
            }
            let (upto, file) = (syncs.asked, syncs.file.clone());
            drop(syncs);
            let done = file.map_or(Ok(()), |file| file.sync_data());
            self.ended(upto, done);
            self.done.notify_all();
            self.listeners.lock().iter().for_each(|listener| listener());
            syncs = self.syncs.lock();
        }
    }
}

/// The log file that is written.
pub(super) struct LogFile {
    pub(super) number: u64,
    /// It lives in memory: a sync is no more than a call.
    pub(super) is_memory: bool,
    /// Bytes of all log files since the start.
    pub(super) written_in_all: u64,
    path: PathBuf,
    file: Arc<File>,
    len: u64,
    allocated: u64,
    buffer: Vec<u8>,
    generation: u64,
    sync: Arc<SyncState>,
    thread: Option<JoinHandle<()>>,
}

fn create(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    options.open(path).map_err(io_error("create", path))
}

/// Makes the names in a directory durable.
pub(super) fn sync_directory(directory: &Path) -> Result<()> {
    let opened = File::open(directory);
    opened.and_then(|it| it.sync_all()).map_err(io_error("sync", directory))
}

impl LogFile {
    /// Goes on with the file of this number, of which the first `len` bytes are frames.
    pub(super) fn open(directory: &Path, number: u64, len: u64) -> Result<Self> {
        let path = log_path(directory, number);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(io_error("open", &path))?;
        // What is behind the last whole frame is none, and what a killed process has left may not be synced.
        file.set_len(len).map_err(io_error("cut", &path))?;
        let sync = Arc::<SyncState>::default();
        let mut log = Self {
            number,
            is_memory: lives_in_memory(&file),
            written_in_all: 0,
            path,
            file: Arc::new(file),
            len,
            allocated: len,
            buffer: Vec::new(),
            generation: 0,
            sync,
            thread: None,
        };
        log.allocate()?;
        log.file.sync_all().map_err(io_error("sync", &log.path))?;
        sync_directory(directory)?;
        log.sync.syncs.lock().file = Some(Arc::clone(&log.file));
        if !log.is_memory {
            let sync = Arc::clone(&log.sync);
            let thread =
                std::thread::Builder::new().name("sync".to_owned()).spawn(move || sync.run());
            log.thread = Some(thread.map_err(io_error("start a thread for", &log.path))?);
        }
        Ok(log)
    }

    /// Begins another file, durably. What was added to the one before is durable then, too.
    pub(super) fn begin(&mut self, directory: &Path, number: u64) -> Result<()> {
        self.commit()?;
        // Nothing is allocated ahead in a file that is done: so it has frames alone.
        self.file.set_len(self.len).map_err(io_error("cut", &self.path))?;
        self.file.sync_all().map_err(io_error("sync", &self.path))?;
        self.sync_now()?;
        let path = log_path(directory, number);
        let file = create(&path)?;
        (self.number, self.path, self.file) = (number, path, Arc::new(file));
        (self.len, self.allocated) = (0, 0);
        self.allocate()?;
        self.file.sync_all().map_err(io_error("sync", &self.path))?;
        sync_directory(directory)?;
        self.sync.syncs.lock().file = Some(Arc::clone(&self.file));
        Ok(())
    }

    fn allocate(&mut self) -> Result<()> {
        let to = self.len() + AHEAD_BYTES;
        self.allocated = to;
        if self.is_memory {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, to) {
            Ok(()) => {}
            // Then a sync takes longer.
            Err(error) if error == rustix::io::Errno::OPNOTSUPP => {}
            Err(error) => return Err(io_error("allocate", &self.path)(error.into())),
        }
        Ok(())
    }

    /// Adds a frame; durable after a commit.
    pub(super) fn add(&mut self, frame: &Frame<'_>) {
        frame.encode(&mut self.buffer);
    }

    /// Bytes of the file.
    pub(super) fn len(&self) -> u64 {
        self.len + self.buffer.len() as u64
    }

    pub(super) fn sync_state(&self) -> Arc<SyncState> {
        Arc::clone(&self.sync)
    }

    /// Writes what was added: what to wait for.
    pub(super) fn commit(&mut self) -> Result<Ticket> {
        if !self.buffer.is_empty() {
            if self.len() > self.allocated {
                self.allocate()?;
            }
            let written = self.file.write_all_at(&self.buffer, self.len);
            written.map_err(io_error("write", &self.path))?;
            self.len += self.buffer.len() as u64;
            self.written_in_all += self.buffer.len() as u64;
            self.buffer.clear();
            self.generation += 1;
            if self.is_memory {
                self.sync.ended(self.generation, self.file.sync_data());
            }
        }
        let mut syncs = self.sync.syncs.lock();
        SyncState::failure(&syncs)?;
        if syncs.done == self.generation {
            return Ok(Ticket::DURABLE);
        }
        syncs.asked = self.generation;
        drop(syncs);
        self.sync.asked.notify_one();
        Ok(Ticket::new(0, self.generation))
    }

    /// Syncs what was committed, and waits for it.
    pub(super) fn sync_now(&self) -> Result<()> {
        self.sync.ended(self.generation, self.file.sync_data());
        SyncState::failure(&self.sync.syncs.lock())
    }

    pub(super) fn is_durable(&self, ticket: Ticket) -> Result<bool> {
        let syncs = self.sync.syncs.lock();
        SyncState::failure(&syncs)?;
        Ok(syncs.done >= ticket.position())
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        self.sync.syncs.lock().is_over = true;
        self.sync.asked.notify_one();
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ended = thread.join().is_ok();
        }
    }
}
