//! The reference engine with one fault built around it.

use crate::present::Present;
use crate::{CLAIMED, Fault};
use coreplane_conformance::model::{ManualClock, ModelEngine};
use coreplane_engine::{
    Batch, Completion, Deferred, DurableListener, Engine, Entry, Expected, Found, Horizon, Limits,
    Mutation, Ordered, Outcome, Progress, Record, Repairable, Replicated, Result, Snapshot,
    Snapshots, Stats, Ticket, UnixMillis, Value, VerifyReport, Visibility, WriteOptions, Written,
};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The engine. The state that it keeps beside the model serves its fault.
pub(crate) struct Broken {
    model: Arc<ModelEngine>,
    fault: Fault,
    clock: ManualClock,
    calls: AtomicU64,
    /// Puts that are being made.
    writing: AtomicU64,
    /// The values that keys had before the last put.
    previous: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    /// Writes of each key.
    writes: Mutex<HashMap<Vec<u8>, u64>>,
    /// Expiries that the model is not told of.
    expiries: Mutex<HashMap<Vec<u8>, UnixMillis>>,
}

thread_local! {
    static SEQUENCE_OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

impl Broken {
    pub(crate) fn around(fault: Fault, model: Arc<ModelEngine>, clock: ManualClock) -> Self {
        Self {
            model,
            fault,
            clock,
            calls: AtomicU64::new(0),
            writing: AtomicU64::new(0),
            previous: Mutex::default(),
            writes: Mutex::default(),
            expiries: Mutex::default(),
        }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// True at every `of`-th call.
    fn once_in(&self, of: u64) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) % of == of - 1
    }

    /// The options as the fault passes them on.
    fn options(&self, options: &WriteOptions) -> WriteOptions {
        let mut options = *options;
        match self.fault {
            Fault::GivenIgnored => options.sequence = None,
            Fault::ExpiryIgnored | Fault::ExpiredRevives => options.expires_at = None,
            Fault::WaitDoesNotWait | Fault::WaitReturnsTicket => {
                options.completion = Completion::Early;
            }
            // Nobody waits for relaxed writes.
            Fault::CloseTakesEarly | Fault::KillTakesEarly => options.durability = None,
            _ => {}
        }
        options
    }

    /// The outcome as the fault reports it.
    fn tell(&self, key: &[u8], outcome: Outcome) -> Outcome {
        let mut made = match (outcome, self.fault) {
            (Outcome::Written(made), _) => made,
            (Outcome::Exists(_), Fault::RefusalTicketLost) => {
                return Outcome::Exists(Ticket::DURABLE);
            }
            (Outcome::Mismatch(_), Fault::RefusalTicketLost) => {
                return Outcome::Mismatch(Ticket::DURABLE);
            }
            (Outcome::Missing(_), Fault::RefusalTicketLost) => {
                return Outcome::Missing(Ticket::DURABLE);
            }
            (other, _) => return other,
        };
        let mut writes = self.writes.lock().unwrap();
        let count = writes.entry(key.to_vec()).or_default();
        *count += 1;
        match self.fault {
            Fault::NeverReplaced => made.replaced = false,
            Fault::ReplacedOnceWritten => made.replaced = *count > 1,
            Fault::SequenceRepeats if *count % 7 == 6 => made.sequence -= 1,
            Fault::SequenceRestarts => made.sequence = *count,
            Fault::SequenceOfThread => {
                made.sequence = SEQUENCE_OF_THREAD.get() + 1;
                SEQUENCE_OF_THREAD.set(made.sequence);
            }
            Fault::EarlyTicketLost | Fault::WaitDoesNotWait => made.ticket = Ticket::DURABLE,
            _ => {}
        }
        Outcome::Written(made)
    }

    fn is_there(&self, key: &[u8]) -> bool {
        let found = self.model.get_with(key, Visibility::Early, &mut |_| ()).unwrap();
        // Other threads may come in between.
        std::thread::yield_now();
        found.hit
    }

    fn early(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = None;
        let mut keep = |record: Record<'_>| value = Some(record.value.to_vec());
        self.model.get_with(key, Visibility::Early, &mut keep).unwrap();
        value
    }

    /// The record as the fault shows it.
    fn show(&self, key: &[u8], record: Record<'_>, visit: &mut dyn FnMut(Record<'_>)) {
        let mut record = record;
        let value = record.value.to_vec();
        let stale = self.previous.lock().unwrap().get(key).cloned().unwrap_or_default();
        match self.fault {
            Fault::StaleGet if self.once_in(5) => record.value = Value::Whole(&stale),
            Fault::ShortValue if value.len() > 1000 => {
                record.value = Value::Whole(&value[..value.len() - 1]);
            }
            Fault::ReadTicketLost | Fault::DurableReadTooEarly => record.ticket = Ticket::DURABLE,
            _ => {}
        }
        visit(record);
    }
}

impl Engine for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn limits(&self) -> Limits {
        CLAIMED
    }

    fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        let expiry = self.expiries.lock().unwrap().get(key).copied();
        if self.is(Fault::ExpiredRevives) && expiry.is_some_and(|at| at <= self.clock.now()) {
            return Ok(Found { hit: false, ticket: Ticket::DURABLE });
        }
        if self.is(Fault::MissBesideWrite) && self.writing.load(Ordering::SeqCst) > 0 {
            return Ok(Found { hit: false, ticket: Ticket::DURABLE });
        }
        let takes_early = self.is(Fault::CloseTakesEarly) || self.is(Fault::KillTakesEarly);
        if takes_early && visibility == Visibility::Durable {
            self.model.make_durable();
        }
        let too_early = self.is(Fault::DurableReadTooEarly);
        let visibility = if too_early { Visibility::Early } else { visibility };
        let mut found =
            self.model.get_with(key, visibility, &mut |record| self.show(key, record, visit))?;
        if too_early || self.is(Fault::ReadTicketLost) {
            found.ticket = Ticket::DURABLE;
        }
        Ok(found)
    }

    fn multi_get(
        &self,
        keys: &[&[u8]],
        visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        let swap = self.is(Fault::MultiGetSwaps) && keys.len() > 1;
        self.model.multi_get(keys, visibility, &mut |index, record| {
            let index = if swap { keys.len() - 1 - index } else { index };
            match record {
                Some(mut record)
                    if self.is(Fault::StoryToldWrong) && record.value.equals(b"alice") =>
                {
                    record.value = Value::Whole(b"bob");
                    visit(index, Some(record));
                }
                record => visit(index, record),
            }
        })
    }

    fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        if let Some(at) = options.expires_at {
            self.expiries.lock().unwrap().insert(key.to_vec(), at);
        }
        if self.is(Fault::StaleGet)
            && let Some(old) = self.early(key)
        {
            self.previous.lock().unwrap().insert(key.to_vec(), old);
        }
        let options = self.options(options);
        if self.is(Fault::LostPut) && self.once_in(31) && self.is_there(key) {
            let (sequence, ticket) = (self.model.advance_sequence()?, Ticket::DURABLE);
            return Ok(Outcome::Written(Written { sequence, ticket, replaced: true }));
        }
        self.writing.fetch_add(1, Ordering::SeqCst);
        if self.is(Fault::MissBesideWrite) && self.once_in(31) {
            // On a busy machine no reader might run otherwise.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let outcome = self.model.put(key, value, &options);
        self.writing.fetch_sub(1, Ordering::SeqCst);
        if outcome.is_err() && self.is(Fault::FullDropsOne) {
            let _outcome = self.model.delete(b"key-00003", &WriteOptions::default())?;
        }
        let outcome = outcome?;
        match outcome {
            Outcome::NotNewer(stored, _)
                if self.is(Fault::EqualGivenAccepted) && options.sequence == Some(stored) =>
            {
                self.model.put(key, value, &WriteOptions { sequence: None, ..options })
            }
            outcome => Ok(self.tell(key, outcome)),
        }
    }

    fn insert(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let options = self.options(options);
        let overwrites = self.is(Fault::InsertOverwrites)
            || (self.is(Fault::InsertNotAtomic) && !self.is_there(key));
        let outcome = match overwrites {
            true => self.model.put(key, value, &options)?,
            false => self.model.insert(key, value, &options)?,
        };
        Ok(self.tell(key, outcome))
    }

    fn update(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let options = self.options(options);
        let outcome = match self.is(Fault::UpdateCreates) {
            true => self.model.put(key, value, &options)?,
            false => self.model.update(key, value, &options)?,
        };
        Ok(self.tell(key, outcome))
    }

    fn delete(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let options = self.options(options);
        if self.is(Fault::LostDelete) && self.is_there(key) {
            let (sequence, ticket) = (self.model.advance_sequence()?, Ticket::DURABLE);
            return Ok(Outcome::Written(Written { sequence, ticket, replaced: true }));
        }
        if self.is(Fault::NoTombstoneOfNothing) && !self.is_there(key) {
            return Ok(Outcome::Missing(Ticket::DURABLE));
        }
        let outcome = self.model.delete(key, &options)?;
        Ok(self.tell(key, outcome))
    }

    fn compare_and_set(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<Outcome> {
        let options = self.options(options);
        let old = self.early(key);
        let matches = match (self.fault, expected) {
            (Fault::CasIgnoresExpected, Expected::Value(_)) => old.is_some(),
            (Fault::CasComparesLength, Expected::Value(bytes)) => {
                old.is_some_and(|old| old.len() == bytes.len())
            }
            (Fault::CasIgnoresSequence, Expected::Sequence(_)) => old.is_some(),
            (Fault::CasNotAtomic, Expected::Value(bytes)) => {
                std::thread::sleep(std::time::Duration::from_micros(50));
                old.as_deref() == Some(bytes)
            }
            _ => false,
        };
        let outcome = match matches {
            true => self.model.put(key, value, &options)?,
            false => self.model.compare_and_set(key, expected, value, &options)?,
        };
        Ok(self.tell(key, outcome))
    }

    fn modify(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome> {
        let options = self.options(options);
        if self.is(Fault::ModifyNotAtomic) {
            let mut mutation = None;
            let show = &mut |record: Record<'_>| mutation = Some(decide(Some(record)));
            self.model.get_with(key, Visibility::Early, show)?;
            let mutation = mutation.unwrap_or_else(|| decide(None));
            if let Mutation::Put { value, expires_at } = mutation {
                return self.model.put(key, &value, &WriteOptions { expires_at, ..options });
            }
        }
        let keeps = self.is(Fault::ModifyKeepsExpiry);
        let outcome = self.model.modify(key, &options, &mut |record| match decide(record) {
            Mutation::Put { value, .. } if keeps => {
                let expires_at = record.and_then(|record| record.expires_at);
                Mutation::Put { value, expires_at }
            }
            other => other,
        })?;
        Ok(self.tell(key, outcome))
    }

    fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        let mut options = self.options(options);
        options.expires_at = None;
        let mut changes = batch.changes().collect::<Vec<_>>();
        match self.fault {
            Fault::BatchFirstWins => changes.reverse(),
            Fault::BatchNotAtomic | Fault::BatchPartOnError => {
                let mut last = None;
                for change in changes {
                    let mut one = Batch::new();
                    one.push(change);
                    last = Some(self.model.apply(&one, &options)?);
                    std::thread::yield_now();
                }
                if let Some(last) = last {
                    return Ok(last);
                }
                changes = Vec::new();
            }
            _ => {}
        }
        let mut passed = Batch::new();
        changes.into_iter().for_each(|change| {
            passed.push(change);
        });
        let made = self.model.apply(&passed, &options)?;
        let lost = self.is(Fault::EarlyTicketLost) || self.is(Fault::WaitDoesNotWait);
        Ok(if lost { Written { ticket: Ticket::DURABLE, ..made } } else { made })
    }

    fn iterate(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(Entry<'_>)) -> Result<u64> {
        if self.is(Fault::CursorIsIndex) {
            let mut place = 0;
            self.model.iterate(0, usize::MAX, &mut |entry| {
                if (cursor..cursor.saturating_add(count as u64)).contains(&place) {
                    visit(entry);
                }
                place += 1;
            })?;
            let next = cursor.saturating_add(count as u64);
            return Ok(if next < place { next } else { 0 });
        }
        let next = self.model.iterate(cursor, count, &mut |entry| {
            if !(self.is(Fault::CursorSkips) && entry.key.ends_with(b"7")) {
                visit(entry);
            }
        })?;
        let endless = self.is(Fault::CursorEndless) && cursor == u64::MAX;
        Ok(if endless { cursor } else { next })
    }

    fn len(&self) -> Result<u64> {
        let stats = self.model.stats();
        Ok(if self.is(Fault::LenCountsWrites) { stats.puts - stats.deletes } else { stats.records })
    }

    fn sweep_expired(&self) -> Result<u64> {
        self.model.sweep_expired()
    }

    fn clear(&self) -> Result<()> {
        let kept = self.early(b"key-00000");
        self.model.clear()?;
        if let Some(kept) = kept
            && self.is(Fault::ClearLeavesOne)
        {
            let _outcome = self.model.put(b"key-00000", &kept, &WriteOptions::default())?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.model.sync()
    }

    fn stats(&self) -> Stats {
        let mut stats = self.model.stats();
        if self.is(Fault::StatsFall) && self.once_in(9) {
            stats.misses = 0;
        }
        stats
    }

    fn close(&self) -> Result<()> {
        if self.is(Fault::CloseDoesNothing) { self.model.sync() } else { self.model.close() }
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }
}

impl Deferred for Broken {
    fn commit(&self, horizon: &Horizon) -> Result<bool> {
        self.model.commit(horizon)
    }

    fn is_durable(&self, horizon: &Horizon) -> Result<bool> {
        Ok(self.is(Fault::AlwaysDurable) || self.model.is_durable(horizon)?)
    }

    fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        self.model.wait_durable(horizon)
    }

    fn on_durable(&self, listener: DurableListener) {
        if !self.is(Fault::ListenersUnheard) {
            self.model.on_durable(listener);
        }
    }
}

impl Replicated for Broken {
    fn advance_sequence(&self) -> Result<u64> {
        let line = self.model.advance_sequence()?;
        Ok(if self.is(Fault::LineTooLow) { line.saturating_sub(2) } else { line })
    }

    fn changes_since(&self, sequence: u64, visit: &mut dyn FnMut(Entry<'_>)) -> Result<()> {
        let sequence = match self.fault {
            Fault::HistoryNeverGone => sequence.max(self.model.tombstone_horizon()),
            _ => sequence,
        };
        self.model.changes_since(sequence, &mut |entry| {
            if entry.record.is_some() || !self.is(Fault::TombstonesHidden) {
                visit(entry);
            }
        })
    }

    fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        let ignored = self.is(Fault::HoldIgnored);
        self.model.hold_tombstones(if ignored { u64::MAX } else { sequence })
    }

    fn tombstone_horizon(&self) -> u64 {
        self.model.tombstone_horizon()
    }
}

impl Repairable for Broken {
    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        let mut report = self.model.verify(progress)?;
        if self.is(Fault::VerifyMiscounts) {
            report.records = self.model.stats().puts;
        }
        Ok(report)
    }
}

impl Ordered for Broken {
    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let beyond = end.map(|end| [end, b"\0"].concat());
        let end = if self.is(Fault::ScanIncludesEnd) { beyond.as_deref() } else { end };
        self.model.scan(start, end, reverse, limit, visit)
    }
}

impl Snapshots for Broken {
    fn snapshot(&self) -> Result<Box<dyn Snapshot>> {
        if self.is(Fault::SnapshotMoves) {
            return Ok(Box::new(Present::of(&self.model)));
        }
        self.model.snapshot()
    }
}
