//! The trace of a simulated space: writes the log, injects the faults, and makes syncs fail.

use super::cost::Cost;
use super::device::Device;
use super::fault::{Fate, Fault};
use super::log::{Event, Kind, Log};
use super::machine::Model;
use super::options::SimOptions;
use super::schedule;
use crate::SyncError;
use crate::media::Trace;
use crate::space::thread_number;
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Records the accesses to the spaces of one machine in one log. To it, the spaces lie one after
/// the other on one medium.
#[derive(Debug)]
pub(super) struct Recorder {
    rules: Rules,
    /// None: the log is not needed.
    state: Option<Mutex<State>>,
}

/// The trace of one space.
#[derive(Debug)]
pub(super) struct Port {
    recorder: Arc<Recorder>,
    /// The number of the space.
    number: usize,
    /// The offset of the space on the medium.
    start: u64,
}

/// The options that affect a running program.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) model: Model,
    pub(super) max_len: u64,
    pub(super) loads: bool,
    pub(super) non_temporal: bool,
    pub(super) fault: Option<Fault>,
    pub(super) failing_sync: Option<u64>,
    pub(super) unreadable: Option<Range<u64>>,
    pub(super) seed: u64,
    pub(super) spaces: usize,
}

impl Rules {
    pub(super) fn of_run(options: &SimOptions) -> Self {
        Self {
            model: options.model,
            max_len: if options.spaces > 1 { options.len } else { options.max_len },
            loads: options.early_reads,
            non_temporal: options.non_temporal && options.model == Model::X86,
            fault: options.fault.clone(),
            failing_sync: options.failing_sync,
            unreadable: options.unreadable.clone(),
            seed: options.seed,
            spaces: options.spaces,
        }
    }

    pub(super) fn of_recovery(options: &SimOptions) -> Self {
        Self {
            loads: false,
            fault: options.recovery_fault.clone(),
            failing_sync: None,
            ..Self::of_run(options)
        }
    }
}

#[derive(Debug)]
struct State {
    log: Log,
    /// The thread numbers seen, in the order of their first access; in each space a thread has
    /// another number in the log, so that its fence in one space does not cover another.
    threads: Vec<(usize, usize)>,
    stores: u64,
    flushes: u64,
    fences: u64,
    delayed: Vec<Delayed>,
    /// The devices that fences wait for, where they are not instructions: one for each space.
    devices: Vec<Device>,
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
        let state = recording.then(|| Mutex::new(State::new(&rules)));
        Self { rules, state }
    }

    /// Writes a mark into the log.
    pub(super) fn mark(&self, event: Event) {
        if let Some(state) = &self.state {
            state.lock().log.push(event);
        }
    }

    /// Calls `then` with the current log.
    pub(super) fn with_log<R>(&self, then: impl FnOnce(&Log) -> R) -> R {
        match &self.state {
            Some(state) => then(&state.lock().log),
            None => then(&Log::default()),
        }
    }

    /// Runs `operation` and counts the accesses of this thread.
    pub(super) fn cost_of<R>(&self, operation: impl FnOnce() -> R) -> (R, Cost) {
        let before = self.with_log(|log| log.events.len());
        let result = operation();
        let Some(state) = &self.state else {
            return (result, Cost::default());
        };
        let state = state.lock();
        let me = thread_number();
        let is_mine = |thread: u32| state.threads.get(thread as usize).is_some_and(|it| it.0 == me);
        (result, Cost::of(&state.log.events[before..], is_mine))
    }

    /// The process was killed.
    pub(super) fn killed(&self) {
        if let Some(state) = &self.state {
            state.lock().devices.iter_mut().for_each(Device::killed);
        }
    }

    /// Makes every sync fail from now on.
    pub(super) fn fail_syncs(&self) {
        if let Some(state) = &self.state {
            state.lock().devices.iter_mut().for_each(Device::fail);
        }
    }

    /// From now on a sync ends only when a thread waits for it.
    pub(super) fn stall_syncs(&self) {
        if let Some(state) = &self.state {
            state.lock().devices.iter_mut().for_each(Device::stall);
        }
    }

    /// Waits for the sync of `generation`; while it waits, the thread steps the device and lets other threads run.
    fn wait(&self, space: usize, generation: u64) -> Result<(), SyncError> {
        loop {
            let Some(state) = &self.state else { return Ok(()) };
            let mut state = state.lock();
            let State { log, devices, .. } = &mut *state;
            let Some(device) = devices.get_mut(space) else { return Ok(()) };
            if device.is_done(generation)? {
                return Ok(());
            }
            device.step(log);
            drop(state);
            schedule::point();
        }
    }

    /// A scheduling point, then a possible step of the devices, then the access itself.
    fn access(&self) -> Option<MutexGuard<'_, State>> {
        schedule::point();
        let mut state = self.state.as_ref()?.lock();
        let State { log, devices, .. } = &mut *state;
        devices.iter_mut().for_each(|device| device.accessed(log));
        Some(state)
    }
}

impl State {
    fn new(rules: &Rules) -> Self {
        let files = if rules.model == Model::File { rules.spaces } else { 0 };
        let device = |space| Device::new(space, rules.seed, rules.failing_sync);
        Self {
            log: Log::default(),
            threads: Vec::new(),
            stores: 0,
            flushes: 0,
            fences: 0,
            delayed: Vec::new(),
            devices: (0..files).map(device).collect(),
        }
    }

    fn thread(&mut self, space: usize) -> u32 {
        let number = (thread_number(), space);
        let at = self.threads.iter().position(|known| *known == number);
        at.unwrap_or_else(|| {
            self.threads.push(number);
            self.threads.len() - 1
        }) as u32
    }

    fn store(
        &mut self,
        rules: &Rules,
        (thread, offset): (u32, u64),
        bytes: &[u8],
        kind: Kind,
        durable: bool,
    ) {
        let number = self.stores;
        self.stores += 1;
        let len = bytes.len() as u64;
        let fate = rules.fault.as_ref().map_or(Fate::Usual, |it| it.fate(number, offset, len));
        let kind = if fate == Fate::Torn { Kind::Torn } else { kind };
        if matches!(fate, Fate::Usual | Fate::Torn) {
            self.log.push_store(thread, offset, bytes, kind, durable);
            self.release(Fate::AfterNextStore, thread);
        } else {
            let bytes = bytes.to_vec();
            self.delayed.push(Delayed { thread, offset, bytes, kind, durable, until: fate });
        }
    }

    fn flush(&mut self, rules: &Rules, (thread, space): (u32, usize), (offset, len): (u64, u64)) {
        let number = self.flushes;
        self.flushes += 1;
        if !rules.fault.as_ref().is_some_and(|it| it.drops_flush(number, offset, len)) {
            self.log.push(Event::Flush { thread, offset, len });
            if let Some(device) = self.devices.get_mut(space) {
                device.flushed();
            }
        }
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
}

impl Port {
    pub(super) fn new(recorder: Arc<Recorder>, number: usize, start: u64) -> Self {
        Self { recorder, number, start }
    }

    fn store_in(&self, state: &mut State, offset: u64, bytes: &[u8], kind: Kind, durable: bool) {
        let at = (state.thread(self.number), self.start + offset);
        state.store(&self.recorder.rules, at, bytes, kind, durable);
    }

    fn store_of_kind(&self, offset: u64, bytes: &[u8], kind: Kind, durable: bool) {
        if let Some(mut state) = self.recorder.access() {
            self.store_in(&mut state, offset, bytes, kind, durable);
        }
    }
}

impl Trace for Port {
    fn store(&self, offset: u64, bytes: &[u8], durable: bool) {
        self.store_of_kind(offset, bytes, Kind::Plain, durable);
    }

    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.store_of_kind(offset, bytes, Kind::NonTemporal, true);
    }

    fn swapped(&self, offset: u64, value: u64, durable: bool) {
        if let Some(state) = &self.recorder.state {
            self.store_in(&mut state.lock(), offset, &value.to_le_bytes(), Kind::Plain, durable);
        }
    }

    fn flush(&self, offset: u64, len: u64) {
        if let Some(mut state) = self.recorder.access() {
            let thread = state.thread(self.number);
            let by = (thread, self.number);
            state.flush(&self.recorder.rules, by, (self.start + offset, len));
        }
    }

    fn fence(&self) -> Result<(), SyncError> {
        let Some(mut state) = self.recorder.access() else {
            return Ok(());
        };
        let thread = state.thread(self.number);
        let number = state.fences;
        state.fences += 1;
        let is_dropped =
            self.recorder.rules.fault.as_ref().is_some_and(|it| it.drops_fence(number));
        let wait_for = state.devices.get(self.number).map(Device::covering);
        if !is_dropped {
            state.log.push(Event::Fence { thread, at_once: wait_for.is_none() });
        }
        drop(state);
        if let Some(generation) = wait_for.filter(|_| !is_dropped) {
            self.recorder.wait(self.number, generation)?;
        }
        if let Some(state) = &self.recorder.state {
            state.lock().release(Fate::AfterFence, thread);
        }
        Ok(())
    }

    /// For this space the fence happens now, later than the real one: so a fault may drop it alone,
    /// and the power may be cut between the two.
    fn fenced_elsewhere(&self) {
        let Some(mut state) = self.recorder.access() else {
            return;
        };
        let thread = state.thread(self.number);
        let number = state.fences;
        state.fences += 1;
        if !self.recorder.rules.fault.as_ref().is_some_and(|it| it.drops_fence(number)) {
            state.log.push(Event::Covered { thread });
        }
        state.release(Fate::AfterFence, thread);
    }

    fn fences_at_once(&self) -> bool {
        self.recorder.rules.model == Model::X86
    }

    fn sync_generation(&self) -> u64 {
        let Some(mut state) = self.recorder.access() else {
            return 0;
        };
        let State { log, devices, .. } = &mut *state;
        let device = devices.get(self.number);
        device.map_or(0, |device| device.draw(self.recorder.rules.fault.as_ref(), log))
    }

    fn sync_request(&self, generation: u64) {
        if let Some(mut state) = self.recorder.access() {
            let State { log, devices, .. } = &mut *state;
            if let Some(device) = devices.get_mut(self.number) {
                device.request(generation, log);
            }
        }
    }

    fn sync_is_done(&self, generation: u64) -> Result<bool, SyncError> {
        let fault = self.recorder.rules.fault.as_ref();
        self.recorder
            .access()
            .and_then(|it| {
                let device = it.devices.get(self.number)?;
                Some(device.is_said_to_be_done(generation, fault))
            })
            .unwrap_or(Ok(true))
    }

    fn appends_past_caches(&self) -> bool {
        self.recorder.rules.non_temporal
    }

    fn check_sync(&self) -> Result<(), SyncError> {
        let Some(state) = &self.recorder.state else {
            return Ok(());
        };
        let state = state.lock();
        let error = state.devices.get(self.number).and_then(Device::error).cloned();
        error.map_or(Ok(()), Err)
    }

    fn load(&self, offset: u64, len: u64, durable: bool) {
        let is_seen = durable && self.recorder.rules.loads;
        if !is_seen && self.fences_at_once() {
            return schedule::point();
        }
        if let Some(mut state) = self.recorder.access()
            && is_seen
        {
            let thread = state.thread(self.number);
            state.log.push(Event::Load { thread, offset: self.start + offset, len });
        }
    }

    fn unreadable(&self, offset: u64, len: u64) -> Option<u64> {
        let lost = self.recorder.rules.unreadable.as_ref()?;
        let first = lost.start.max(offset);
        (first < lost.end.min(offset + len)).then_some(first)
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        if len > self.recorder.rules.max_len {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.recorder.mark(Event::Grow { len });
        Ok(())
    }
}
