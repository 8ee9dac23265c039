//! The log being written, and its syncs.

use super::frame::Frame;
use super::storage::{Storage, SyncCall, Tail};
use coreplane_engine::{DurableListener, Error, Result, Ticket};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The progress of the syncs.
#[derive(Default)]
struct Syncs {
    call: Option<SyncCall>,
    asked: u64,
    done: u64,
    count: u64,
    failure: Option<String>,
    is_over: bool,
}

/// The state that the writer, the syncing thread and waiting threads share.
#[derive(Default)]
pub(super) struct SyncState {
    syncs: Mutex<Syncs>,
    /// More syncs are requested.
    asked: Condvar,
    /// More is durable.
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

    /// Records a failure: no write becomes durable from now on.
    fn fail(&self, error: &Error) {
        self.syncs.lock().failure.get_or_insert_with(|| error.to_string());
    }

    fn ended(&self, upto: u64, done: std::result::Result<(), String>) {
        let mut syncs = self.syncs.lock();
        syncs.count += 1;
        match done {
            Ok(()) => syncs.done = syncs.done.max(upto),
            Err(error) => syncs.failure = Some(error),
        }
        drop(syncs);
        self.done.notify_all();
        self.listeners.lock().iter().for_each(|listener| listener());
    }

    /// The body of the syncing thread.
    fn run(&self) {
        let mut syncs = self.syncs.lock();
        while !syncs.is_over {
            if syncs.asked <= syncs.done || syncs.failure.is_some() {
                self.asked.wait(&mut syncs);
                continue;
            }
            let (upto, call) = (syncs.asked, syncs.call.clone());
            drop(syncs);
            self.ended(upto, call.map_or(Ok(()), |call| call()));
            syncs = self.syncs.lock();
        }
    }
}

/// The log being written.
pub(super) struct Log {
    pub(super) number: u64,
    /// Bytes of all logs since the start.
    pub(super) written_in_all: u64,
    tail: Box<dyn Tail>,
    buffer: Vec<u8>,
    generation: u64,
    sync: Arc<SyncState>,
    thread: Option<JoinHandle<()>>,
}

impl Log {
    /// Continues the log of this number, whose first `len` bytes are frames. Bytes behind the last whole frame are
    /// void, and everything that a killed process has left is durable.
    pub(super) fn open(storage: &dyn Storage, number: u64, len: u64) -> Result<Self> {
        let tail = storage.open_log(number, len)?;
        let sync = Arc::<SyncState>::default();
        sync.syncs.lock().call = Some(tail.syncer());
        let mut thread = None;
        if !tail.is_synced_at_once() {
            let (sync, builder) = (Arc::clone(&sync), std::thread::Builder::new());
            let begun = builder.name("sync".to_owned()).spawn(move || sync.run());
            let context = || "start a thread that syncs".to_owned();
            thread = Some(begun.map_err(|source| Error::Io { context: context(), source })?);
        }
        let (buffer, generation, written_in_all) = (Vec::new(), 0, 0);
        Ok(Self { number, written_in_all, tail, buffer, generation, sync, thread })
    }

    /// Begins another log, durably. Frames added to the previous one are durable then, too.
    pub(super) fn begin(&mut self, storage: &dyn Storage, number: u64) -> Result<()> {
        self.commit()?;
        self.tail.finish()?;
        // Frames behind the end of the previous log would be lost.
        let begun = self.sync_now().and_then(|()| storage.open_log(number, 0));
        self.tail = begun.inspect_err(|error| self.sync.fail(error))?;
        self.number = number;
        self.sync.syncs.lock().call = Some(self.tail.syncer());
        Ok(())
    }

    /// Adds a frame; durable after a commit.
    pub(super) fn add(&mut self, frame: &Frame<'_>) {
        frame.encode(&mut self.buffer, self.tail.seed());
    }

    /// Bytes of the log.
    pub(super) fn len(&self) -> u64 {
        self.tail.len() + self.added()
    }

    /// Bytes added since the last commit.
    pub(super) fn added(&self) -> u64 {
        self.buffer.len() as u64
    }

    pub(super) fn sync_state(&self) -> Arc<SyncState> {
        Arc::clone(&self.sync)
    }

    /// Writes the added frames: the ticket to wait for.
    pub(super) fn commit(&mut self) -> Result<Ticket> {
        if !self.buffer.is_empty() {
            self.tail.append(&self.buffer)?;
            self.written_in_all += self.buffer.len() as u64;
            self.buffer.clear();
            self.generation += 1;
            if self.tail.is_synced_at_once() {
                self.sync_now()?;
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

    /// Syncs the committed frames, and waits for that.
    pub(super) fn sync_now(&self) -> Result<()> {
        let call = self.sync.syncs.lock().call.clone();
        self.sync.ended(self.generation, call.map_or(Ok(()), |call| call()));
        self.sync.syncs.lock().check()
    }

    pub(super) fn is_durable(&self, ticket: Ticket) -> Result<bool> {
        let syncs = self.sync.syncs.lock();
        syncs.check()?;
        Ok(syncs.done >= ticket.position())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.sync.syncs.lock().is_over = true;
        self.sync.asked.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread returns no result.
            let _ended = thread.join().is_ok();
        }
    }
}
