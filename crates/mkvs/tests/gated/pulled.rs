//! A device that can be pulled out while it is in use (every call fails from then on), that stalls,
//! or that forgets what it was told.

use coreplane_engine::{
    Batch, Change, Doubt, DurableListener, Engine, Entry, Error, Expected, Found, Horizon, Limits,
    Mutation, Ordered, Outcome, Progress, Record, Result, Stats, Ticket, UnixMillis, VerifyReport,
    Visibility, WriteOptions, Written,
};
use coreplane_pmem::spin::{self, Backoff};
use parking_lot::{Mutex, MutexGuard};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is done to a device.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Every call fails.
    pub(crate) is_out: AtomicBool,
    /// Every call waits, before it begins or before it returns.
    pub(crate) is_stalled: AtomicBool,
    /// All devices fail at one moment: whoever cuts the power has the same one.
    pub(crate) is_dead: Arc<AtomicBool>,
    /// The calls of the device's own processor wait.
    pub(crate) is_lagging: AtomicBool,
    /// The calls of threads of this name wait.
    held: Mutex<Option<&'static str>>,
    /// How many calls there were, those that wait among them.
    calls: AtomicU64,
    /// Intents are not written down, and said to be.
    pub(crate) forgets_intents: AtomicBool,
    /// One call at a time: the simulator knows no other order of a thread that it does not schedule.
    turn: Option<Mutex<()>>,
}

impl Gate {
    /// One that lets one call through at a time.
    pub(crate) fn by_turns() -> Self {
        Self { turn: Some(Mutex::new(())), ..Self::default() }
    }

    /// From now on calls of threads of this name wait; none: of no thread.
    pub(crate) fn hold(&self, name: Option<&'static str>) {
        *self.held.lock() = name;
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// One whose device fails when the power is cut.
    pub(crate) fn powered_by(is_dead: Arc<AtomicBool>) -> Self {
        Self { is_dead, ..Self::default() }
    }

    fn holds_up(&self) -> bool {
        let held = *self.held.lock();
        if held.is_some() && held == std::thread::current().name() {
            return true;
        }
        let is_processor =
            || std::thread::current().name().is_some_and(|name| name.starts_with("coreplane-d"));
        self.is_stalled.load(Ordering::SeqCst)
            || self.is_lagging.load(Ordering::SeqCst) && is_processor()
    }
}

pub(crate) struct Pulled {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) gate: Arc<Gate>,
}

/// A call that was let in.
struct Let<'a> {
    gate: &'a Gate,
    engine: &'a dyn Engine,
    _turn: Option<MutexGuard<'a, ()>>,
}

impl Drop for Let<'_> {
    fn drop(&mut self) {
        let mut backoff = Backoff::new();
        while self.gate.is_stalled.load(Ordering::SeqCst) {
            backoff.wait();
        }
    }
}

impl<'a> Deref for Let<'a> {
    type Target = dyn Engine + 'a;

    fn deref(&self) -> &Self::Target {
        self.engine
    }
}

impl Pulled {
    fn there(&self) -> Result<Let<'_>> {
        self.gate.calls.fetch_add(1, Ordering::SeqCst);
        let mut backoff = Backoff::new();
        while self.gate.holds_up() {
            backoff.wait();
        }
        let turn = self.gate.turn.as_ref().map(spin::lock);
        let Gate { is_out, is_dead, .. } = &*self.gate;
        if is_out.load(Ordering::SeqCst) || is_dead.load(Ordering::SeqCst) {
            let source = std::io::Error::other("the device was pulled out");
            return Err(Error::Io { context: "a device".to_owned(), source });
        }
        Ok(Let { gate: &self.gate, engine: &*self.engine, _turn: turn })
    }

    fn forgets(&self, batch: &Batch) -> bool {
        let is_intent = |change: &Change| change.key().starts_with(b"\0coreplane matrix\0intent");
        self.gate.forgets_intents.load(Ordering::SeqCst) && batch.changes().iter().any(is_intent)
    }
}

impl Engine for Pulled {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn limits(&self) -> Limits {
        self.engine.limits()
    }

    fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        self.there()?.get_with(key, visibility, visit)
    }

    fn multi_get(
        &self,
        keys: &[&[u8]],
        visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        self.there()?.multi_get(keys, visibility, visit)
    }

    fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.there()?.put(key, value, options)
    }

    fn insert(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.there()?.insert(key, value, options)
    }

    fn update(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.there()?.update(key, value, options)
    }

    fn delete(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.there()?.delete(key, options)
    }

    fn compare_and_set(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<Outcome> {
        self.there()?.compare_and_set(key, expected, value, options)
    }

    fn modify(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome> {
        self.there()?.modify(key, options, decide)
    }

    fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        if self.forgets(batch) {
            return Ok(Written { sequence: 1, ticket: Ticket::DURABLE, replaced: false });
        }
        self.there()?.apply(batch, options)
    }

    fn iterate(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(Entry<'_>)) -> Result<u64> {
        self.there()?.iterate(cursor, count, visit)
    }

    fn advance_sequence(&self) -> Result<u64> {
        self.there()?.advance_sequence()
    }

    fn changes_since(&self, sequence: u64, visit: &mut dyn FnMut(Entry<'_>)) -> Result<()> {
        self.there()?.changes_since(sequence, visit)
    }

    fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        self.there()?.hold_tombstones(sequence)
    }

    fn tombstone_horizon(&self) -> u64 {
        self.engine.tombstone_horizon()
    }

    fn len(&self) -> Result<u64> {
        self.there()?.len()
    }

    fn clear(&self) -> Result<()> {
        self.there()?.clear()
    }

    fn sweep_expired(&self) -> Result<u64> {
        self.there()?.sweep_expired()
    }

    fn commit(&self, horizon: &Horizon) -> Result<bool> {
        self.there()?.commit(horizon)
    }

    fn now(&self) -> UnixMillis {
        self.engine.now()
    }

    fn is_durable(&self, horizon: &Horizon) -> Result<bool> {
        self.there()?.is_durable(horizon)
    }

    fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        self.there()?.wait_durable(horizon)
    }

    fn sync(&self) -> Result<()> {
        self.there()?.sync()
    }

    fn on_durable(&self, listener: DurableListener) {
        self.engine.on_durable(listener);
    }

    fn stats(&self) -> Stats {
        self.engine.stats()
    }

    fn check(&self, key: &[u8]) -> Result<bool> {
        self.there()?.check(key)
    }

    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.there()?.verify(progress)
    }

    fn doubts(&self) -> Result<Vec<Doubt>> {
        self.there()?.doubts()
    }

    fn settle(&self, doubt: &Doubt) -> Result<()> {
        self.there()?.settle(doubt)
    }

    fn close(&self) -> Result<()> {
        self.there()?.close()
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        self.engine.ordered()
    }
}
