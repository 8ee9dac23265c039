//! A device that can be pulled out while it is in use: every call fails from then on. Or it is held:
//! reads, or writes of one key, that have come to it wait until it is let go.

use coreplane_engine::{
    Batch, DurableListener, Engine, Entry, Error, Expected, Found, Horizon, Limits, Mutation,
    Ordered, Outcome, Progress, Record, Result, Stats, UnixMillis, VerifyReport, Visibility,
    WriteOptions, Written,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is done to a device.
#[derive(Default)]
pub(crate) struct Switch {
    pub(crate) is_out: AtomicBool,
    pub(crate) holds_reads: AtomicBool,
    pub(crate) holds_writes: AtomicBool,
    /// Every scan meets a damaged record.
    pub(crate) scans_damaged: AtomicBool,
    /// Gets that have come so far, and those that are held now.
    pub(crate) reads: AtomicU64,
    pub(crate) held_reads: AtomicU64,
    /// Puts that are held now.
    pub(crate) held_writes: AtomicU64,
}

fn wait_while(holds: &AtomicBool, held: &AtomicU64) {
    held.fetch_add(1, Ordering::SeqCst);
    while holds.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    held.fetch_sub(1, Ordering::SeqCst);
}

pub(crate) struct Pulled {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) switch: Arc<Switch>,
}

impl Pulled {
    fn there(&self) -> Result<&dyn Engine> {
        if self.switch.is_out.load(Ordering::SeqCst) {
            let source = std::io::Error::other("the device was pulled out");
            return Err(Error::Io { context: "a device".to_owned(), source });
        }
        Ok(&*self.engine)
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
        self.switch.reads.fetch_add(1, Ordering::SeqCst);
        wait_while(&self.switch.holds_reads, &self.switch.held_reads);
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
        wait_while(&self.switch.holds_writes, &self.switch.held_writes);
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

    fn close(&self) -> Result<()> {
        self.there()?.close()
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        self.engine.ordered().map(|_| self as &dyn Ordered)
    }
}

impl Ordered for Pulled {
    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        if self.switch.scans_damaged.load(Ordering::SeqCst) {
            let offset = 0;
            return Err(Error::ChecksumMismatch { offset, stored: 1, computed: 2 });
        }
        match self.there()?.ordered() {
            Some(ordered) => ordered.scan(start, end, reverse, limit, visit),
            None => Err(Error::Unsupported { engine: self.name(), operation: "scan" }),
        }
    }
}
