//! The trace of a simulated space: writes the log, makes the faults, refuses what must fail.

use super::cost::Cost;
use super::fault::{Fate, Fault};
use super::log::{Event, Kind, Log};
use super::machine::Model;
use super::options::SimOptions;
use super::schedule;
use crate::SyncError;
use crate::media::Trace;
use crate::space::thread_number;
use parking_lot::Mutex;
use std::io;

/// Records what happens to one space.
#[derive(Debug)]
pub(super) struct Recorder {
    rules: Rules,
    /// None: nobody will ask for the log.
    state: Option<Mutex<State>>,
}

/// The part of the options that matters to a running program.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) model: Model,
    pub(super) max_len: u64,
    pub(super) loads: bool,
    pub(super) non_temporal: bool,
    pub(super) fault: Option<Fault>,
    pub(super) failing_fence: Option<u64>,
}

impl Rules {
    pub(super) fn of_run(options: &SimOptions) -> Self {
        Self {
            model: options.model,
            max_len: options.max_len,
            loads: options.early_reads,
            non_temporal: options.non_temporal && options.model == Model::X86,
            fault: options.fault.clone(),
            failing_fence: options.failing_fence,
        }
    }

    pub(super) fn of_recovery(options: &SimOptions) -> Self {
        Self {
            loads: false,
            fault: options.recovery_fault.clone(),
            failing_fence: None,
            ..Self::of_run(options)
        }
    }
}

#[derive(Debug, Default)]
struct State {
    log: Log,
    /// The thread numbers seen, in the order of their first access.
    threads: Vec<usize>,
    stores: u64,
    flushes: u64,
    fences: u64,
    delayed: Vec<Delayed>,
    error: Option<SyncError>,
}

/// A store that a fault holds back.
#[derive(Debug)]
struct Delayed {
    thread: u32,
    offset: u64,
    bytes: Vec<u8>,
    kind: Kind,
    durable: bool,
    until: Fate,
}

impl Recorder {
    pub(super) fn new(rules: Rules, recording: bool) -> Self {
        Self { rules, state: recording.then(Mutex::default) }
    }

    /// Writes a mark into the log.
    pub(super) fn mark(&self, event: Event) {
        if let Some(state) = &self.state {
            state.lock().log.push(event);
        }
    }

    /// Calls `then` with the log as it is now.
    pub(super) fn with_log<R>(&self, then: impl FnOnce(&Log) -> R) -> R {
        match &self.state {
            Some(state) => then(&state.lock().log),
            None => then(&Log::default()),
        }
    }

    /// What `operation` costs this thread.
    pub(super) fn cost_of<R>(&self, operation: impl FnOnce() -> R) -> (R, Cost) {
        let before = self.with_log(|log| log.events.len());
        let result = operation();
        let Some(state) = &self.state else {
            return (result, Cost::default());
        };
        let mut state = state.lock();
        let thread = state.thread();
        (result, Cost::of(&state.log.events[before..], thread))
    }

    /// From now on every sync fails.
    pub(super) fn fail_syncs(&self) {
        if let Some(state) = &self.state {
            state.lock().fail();
        }
    }

    fn store_of_kind(&self, offset: u64, bytes: &[u8], kind: Kind, durable: bool) {
        let Some(state) = &self.state else {
            return;
        };
        let mut state = state.lock();
        let thread = state.thread();
        let number = state.stores;
        state.stores += 1;
        let fate = self
            .rules
            .fault
            .as_ref()
            .map_or(Fate::Usual, |fault| fault.fate(number, offset, bytes.len() as u64));
        let kind = if fate == Fate::Torn { Kind::Torn } else { kind };
        if matches!(fate, Fate::Usual | Fate::Torn) {
            state.log.push_store(thread, offset, bytes, kind, durable);
            state.release(Fate::AfterNextStore, thread);
        } else {
            let bytes = bytes.to_vec();
            state.delayed.push(Delayed { thread, offset, bytes, kind, durable, until: fate });
        }
    }
}

impl State {
    fn thread(&mut self) -> u32 {
        let number = thread_number();
        let at = self.threads.iter().position(|known| *known == number);
        at.unwrap_or_else(|| {
            self.threads.push(number);
            self.threads.len() - 1
        }) as u32
    }

    /// Makes the stores that were held back until now.
    fn release(&mut self, until: Fate, thread: u32) {
        let mut at = 0;
        while at < self.delayed.len() {
            if self.delayed[at].until == until && self.delayed[at].thread == thread {
                let late = self.delayed.remove(at);
                self.log.push_store(late.thread, late.offset, &late.bytes, late.kind, late.durable);
            } else {
                at += 1;
            }
        }
    }

    fn fail(&mut self) -> SyncError {
        let error = SyncError("the simulated medium failed".to_owned());
        self.error.get_or_insert(error).clone()
    }
}

impl Trace for Recorder {
    fn store(&self, offset: u64, bytes: &[u8], durable: bool) {
        schedule::point();
        self.store_of_kind(offset, bytes, Kind::Plain, durable);
    }

    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        schedule::point();
        self.store_of_kind(offset, bytes, Kind::NonTemporal, true);
    }

    fn swapped(&self, offset: u64, value: u64, durable: bool) {
        self.store_of_kind(offset, &value.to_le_bytes(), Kind::Plain, durable);
    }

    fn flush(&self, offset: u64, len: u64) {
        schedule::point();
        let Some(state) = &self.state else {
            return;
        };
        let mut state = state.lock();
        let thread = state.thread();
        let number = state.flushes;
        state.flushes += 1;
        if !self.rules.fault.as_ref().is_some_and(|it| it.drops_flush(number, offset, len)) {
            state.log.push(Event::Flush { thread, offset, len });
        }
    }

    fn fence(&self) -> Result<(), SyncError> {
        schedule::point();
        let Some(state) = &self.state else {
            return Ok(());
        };
        let mut state = state.lock();
        let thread = state.thread();
        let number = state.fences;
        state.fences += 1;
        let file = self.rules.model == Model::File;
        if file && (self.rules.failing_fence == Some(number) || state.error.is_some()) {
            state.log.push(Event::Fence { thread, failed: true });
            return Err(state.fail());
        }
        if !self.rules.fault.as_ref().is_some_and(|it| it.drops_fence(number)) {
            state.log.push(Event::Fence { thread, failed: false });
        }
        state.release(Fate::AfterFence, thread);
        Ok(())
    }

    fn fences_at_once(&self) -> bool {
        self.rules.model == Model::X86
    }

    fn appends_past_caches(&self) -> bool {
        self.rules.non_temporal
    }

    fn check_sync(&self) -> Result<(), SyncError> {
        self.state.as_ref().and_then(|state| state.lock().error.clone()).map_or(Ok(()), Err)
    }

    fn load(&self, offset: u64, len: u64, durable: bool) {
        schedule::point();
        if !durable || !self.rules.loads {
            return;
        }
        if let Some(state) = &self.state {
            let mut state = state.lock();
            let thread = state.thread();
            state.log.push(Event::Load { thread, offset, len });
        }
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        if len > self.rules.max_len {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.mark(Event::Grow { len });
        Ok(())
    }
}
