//! The log file that is written, and its syncs.

use super::frame::Frame;
use super::io_error;
use coreplane_engine::{DurableListener, Error, Result, Ticket};
use coreplane_pmem::append_file::{AppendFile, Syncer};
use parking_lot::{Condvar, Mutex};
use std::io;
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
    file: Option<Syncer>,
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

impl Syncs {
    fn check(&self) -> Result<()> {
        self.failure.as_ref().map_or(Ok(()), |what| Err(Error::SyncFailed(what.clone())))
    }
}

impl SyncState {
    pub(super) fn wait(&self, ticket: Ticket) -> Result<()> {
        let mut syncs = self.syncs.lock();
        while syncs.done < ticket.position() && syncs.failure.is_none() {
            self.done.wait(&mut syncs);
        }
        syncs.check()
    }

    pub(super) fn listen(&self, listener: DurableListener) {
        self.listeners.lock().push(listener);
    }

    pub(super) fn count(&self) -> u64 {
        self.syncs.lock().count
    }

    fn ended(&self, upto: u64, done: io::Result<()>) {
        let mut syncs = self.syncs.lock();
        syncs.count += 1;
        match done {
            Ok(()) => syncs.done = syncs.done.max(upto),
            Err(error) => syncs.failure = Some(error.to_string()),
        }
        drop(syncs);
        self.done.notify_all();
        self.listeners.lock().iter().for_each(|listener| listener());
    }

    /// The thread that syncs.
    fn run(&self) {
        let mut syncs = self.syncs.lock();
        while !syncs.is_over {
            if syncs.asked <= syncs.done || syncs.failure.is_some() {
                self.asked.wait(&mut syncs);
                continue;
            }
            let (upto, file) = (syncs.asked, syncs.file.clone());
            drop(syncs);
            self.ended(upto, file.map_or(Ok(()), |file| file.sync()));
            syncs = self.syncs.lock();
        }
    }
}

/// The log file that is written.
pub(super) struct LogFile {
    pub(super) number: u64,
    /// Bytes of all log files since the start.
    pub(super) written_in_all: u64,
    path: PathBuf,
    file: AppendFile,
    buffer: Vec<u8>,
    generation: u64,
    sync: Arc<SyncState>,
    thread: Option<JoinHandle<()>>,
}

impl LogFile {
    /// Goes on with the file of this number, of which the first `len` bytes are frames. What is behind the last whole frame
    /// is none, and what a killed process has left is synced.
    pub(super) fn open(directory: &Path, number: u64, len: u64) -> Result<Self> {
        let path = log_path(directory, number);
        let file = AppendFile::open(&path, len, AHEAD_BYTES).map_err(io_error("open", &path))?;
        let sync = Arc::<SyncState>::default();
        sync.syncs.lock().file = Some(file.syncer());
        let mut thread = None;
        if !file.is_memory() {
            let (sync, builder) = (Arc::clone(&sync), std::thread::Builder::new());
            let begun = builder.name("sync".to_owned()).spawn(move || sync.run());
            thread = Some(begun.map_err(io_error("start a thread for", &path))?);
        }
        let (buffer, generation, written_in_all) = (Vec::new(), 0, 0);
        Ok(Self { number, written_in_all, path, file, buffer, generation, sync, thread })
    }

    /// Begins another file, durably. What was added to the one before is durable then, too.
    pub(super) fn begin(&mut self, directory: &Path, number: u64) -> Result<()> {
        self.commit()?;
        // Nothing is allocated ahead in a file that is done: so it has frames alone.
        self.file.finish().map_err(io_error("finish", &self.path))?;
        self.sync_now()?;
        let path = log_path(directory, number);
        self.file = AppendFile::open(&path, 0, AHEAD_BYTES).map_err(io_error("begin", &path))?;
        (self.number, self.path) = (number, path);
        self.sync.syncs.lock().file = Some(self.file.syncer());
        Ok(())
    }

    /// Adds a frame; durable after a commit.
    pub(super) fn add(&mut self, frame: &Frame<'_>) {
        frame.encode(&mut self.buffer);
    }

    /// Bytes of the file.
    pub(super) fn len(&self) -> u64 {
        self.file.len() + self.buffer.len() as u64
    }

    pub(super) fn is_memory(&self) -> bool {
        self.file.is_memory()
    }

    pub(super) fn sync_state(&self) -> Arc<SyncState> {
        Arc::clone(&self.sync)
    }

    /// Writes what was added: what to wait for.
    pub(super) fn commit(&mut self) -> Result<Ticket> {
        if !self.buffer.is_empty() {
            self.file.append(&self.buffer).map_err(io_error("write", &self.path))?;
            self.written_in_all += self.buffer.len() as u64;
            self.buffer.clear();
            self.generation += 1;
            if self.is_memory() {
                self.sync.ended(self.generation, self.file.syncer().sync());
            }
        }
        let mut syncs = self.sync.syncs.lock();
        syncs.check()?;
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
        self.sync.ended(self.generation, self.file.syncer().sync());
        self.sync.syncs.lock().check()
    }

    pub(super) fn is_durable(&self, ticket: Ticket) -> Result<bool> {
        let syncs = self.sync.syncs.lock();
        syncs.check()?;
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
