//! The trait, method by method.

use super::state::{Cell, Plan};
use super::{ModelEngine, position_of};
use coreplane_engine::{
    Batch, ChangeRef, Completion, Damage, Deferred, Durability, DurableListener, Engine, Entry,
    Error, Expected, Found, Horizon, Limits, Mutation, Ordered, Outcome, Progress, Record,
    Repairable, Replicated, Result, Snapshots, Stats, Ticket, UnixMillis, VerifyReport, Visibility,
    WriteOptions, Written,
};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// True if a write with these options returns only when it is durable.
fn waits(options: &WriteOptions) -> bool {
    options.completion == Completion::Wait
        && matches!(
            options.durability.unwrap_or_default(),
            Durability::Strict | Durability::Group { .. }
        )
}

impl ModelEngine {
    /// The one path of every write to a single key. `decide` sees the live record.
    fn write_one(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<&Cell>, Ticket) -> Result<Plan>,
    ) -> Result<Outcome> {
        self.check_lengths(key, 0)?;
        let mut state = self.lock();
        state.check_writable()?;
        state.settle(key);
        let newer = state.cells.get(key).map(|cell| cell.sequence);
        if let (Some(given), Some(stored)) = (options.sequence, newer)
            && given <= stored
        {
            let grew = state.finish(waits(options));
            let ticket = state.ticket(key);
            drop(state);
            self.announce(grew);
            return Ok(Outcome::NotNewer(stored, ticket));
        }
        let plan = decide(state.live(key), state.ticket(key))?;
        let (value, expires_at) = match plan {
            Plan::Refuse(outcome) => {
                let grew = state.finish(waits(options));
                let ticket = state.ticket(key);
                drop(state);
                self.announce(grew);
                return Ok(outcome(ticket));
            }
            Plan::Put(value, expires_at) => (Some(value), expires_at),
            Plan::Delete => (None, None),
        };
        if let Some(value) = &value {
            self.check_lengths(key, value.len())?;
            state.check_space(key.len() + value.len(), state.bytes_of(key))?;
        }
        let stamp = state.stamp(options)?;
        let replaced = state.write(key, value, expires_at, stamp);
        let grew = state.finish(waits(options));
        let ticket = state.ticket(key);
        drop(state);
        self.announce(grew);
        Ok(Outcome::Written(Written { sequence: stamp.sequence, ticket, replaced }))
    }

    /// Copies the cell of `key`, after waiting for it if only durable writes may be seen.
    fn read_one(&self, key: &[u8], visibility: Visibility) -> Result<(Option<Cell>, Ticket)> {
        let mut state = self.lock();
        loop {
            state.settle(key);
            let ticket = state.ticket(key);
            if visibility == Visibility::Early || ticket.is_durable() {
                let cell = state.live(key).cloned();
                match cell {
                    Some(_) => state.stats.hits += 1,
                    None => state.stats.misses += 1,
                }
                return Ok((cell, ticket));
            }
            self.wait_position(&mut state, ticket.position())?;
        }
    }
}

impl Engine for ModelEngine {
    fn name(&self) -> &'static str {
        "model"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        let (cell, ticket) = self.read_one(key, visibility)?;
        let record = cell.as_ref().and_then(|cell| cell.record(ticket));
        let hit = record.is_some();
        record.into_iter().for_each(visit);
        self.interrupt(&self.interruption);
        Ok(Found { hit, ticket })
    }

    fn multi_get(
        &self,
        keys: &[&[u8]],
        visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        let mut state = self.lock();
        keys.iter().for_each(|key| state.settle(key));
        let mut horizon = Horizon::new();
        loop {
            horizon.clear();
            keys.iter().for_each(|key| horizon.include(state.ticket(key)));
            if visibility == Visibility::Early || horizon.is_empty() {
                break;
            }
            self.wait_position(&mut state, position_of(&horizon))?;
        }
        let cells: Vec<_> =
            keys.iter().map(|key| (state.live(key).cloned(), state.ticket(key))).collect();
        let hits = cells.iter().filter(|(cell, _)| cell.is_some()).count() as u64;
        state.stats.hits += hits;
        state.stats.misses += keys.len() as u64 - hits;
        drop(state);
        for (index, (cell, ticket)) in cells.iter().enumerate() {
            visit(index, cell.as_ref().and_then(|cell| cell.record(*ticket)));
        }
        self.interrupt(&self.interruption);
        self.count_read()?;
        Ok(horizon)
    }

    fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.check_lengths(key, value.len())?;
        self.write_one(key, options, &mut |_, _| Ok(Plan::Put(value.into(), options.expires_at)))
    }

    fn insert(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.check_lengths(key, value.len())?;
        self.write_one(key, options, &mut |live, _| {
            Ok(match live {
                Some(_) => Plan::Refuse(Outcome::Exists),
                None => Plan::Put(value.into(), options.expires_at),
            })
        })
    }

    fn update(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.check_lengths(key, value.len())?;
        self.write_one(key, options, &mut |live, _| {
            Ok(match live {
                Some(_) => Plan::Put(value.into(), options.expires_at),
                None => Plan::Refuse(Outcome::Missing),
            })
        })
    }

    fn delete(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.write_one(key, options, &mut |live, _| {
            Ok(match live {
                None if options.sequence.is_none() => Plan::Refuse(Outcome::Missing),
                _ => Plan::Delete,
            })
        })
    }

    fn compare_and_set(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<Outcome> {
        self.check_lengths(key, value.len())?;
        self.write_one(key, options, &mut |live, _| {
            let matches = match (expected, live) {
                (Expected::Absent, live) => live.is_none(),
                (_, None) => false,
                (Expected::Value(bytes), Some(cell)) => cell.value.as_deref() == Some(bytes),
                (Expected::Sequence(sequence), Some(cell)) => cell.sequence == sequence,
            };
            Ok(match matches {
                true => Plan::Put(value.into(), options.expires_at),
                false => Plan::Refuse(Outcome::Mismatch),
            })
        })
    }

    fn modify(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome> {
        self.write_one(key, options, &mut |live, ticket| {
            let mutation = decide(live.and_then(|cell| cell.record(ticket)));
            let old = live.and_then(|cell| cell.value.clone());
            Ok(match (mutation, old) {
                (Mutation::Put { value, expires_at }, _) => {
                    self.check_lengths(key, value.len())?;
                    Plan::Put(value.into(), expires_at)
                }
                (Mutation::Delete, Some(_)) => Plan::Delete,
                (Mutation::Expire(expires_at), Some(old)) => Plan::Put(old, expires_at),
                (Mutation::Keep, _) | (Mutation::Delete | Mutation::Expire(_), None) => {
                    Plan::Refuse(Outcome::Kept)
                }
            })
        })
    }

    fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        batch.check(&self.limits)?;
        let mut changes = BTreeMap::new();
        for change in batch.changes() {
            self.check_lengths(change.key(), change.value().map_or(0, <[u8]>::len))?;
            changes.insert(change.key(), change);
        }
        let mut state = self.lock();
        state.check_writable()?;
        let (mut more, mut less) = (0, 0);
        for (key, change) in &changes {
            state.settle(key);
            less += state.bytes_of(key);
            if let Some(value) = change.value() {
                more += key.len() + value.len();
            }
        }
        state.check_space(more, less)?;
        let stamp = state.stamp(options)?;
        let mut replaced = false;
        for (key, change) in changes {
            let (value, expires_at) = match change {
                ChangeRef::Put { value, expires_at, .. } => (Some(Arc::from(value)), expires_at),
                ChangeRef::Delete { .. } => (None, None),
            };
            // With a given sequence a change may come too late, and a delete is always noted.
            let given = options.sequence.is_some();
            let late = given && state.cells.get(key).is_some_and(|c| c.sequence >= stamp.sequence);
            let idle = !given && value.is_none() && state.live(key).is_none();
            if !late && !idle {
                replaced |= state.write(key, value, expires_at, stamp);
            }
        }
        state.stats.batches += 1;
        let grew = state.finish(waits(options));
        let ticket = match stamp.relaxed || stamp.position <= state.durable {
            true => Ticket::DURABLE,
            false => Ticket::new(0, stamp.position),
        };
        drop(state);
        self.announce(grew);
        Ok(Written { sequence: stamp.sequence, ticket, replaced })
    }

    fn iterate(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(Entry<'_>)) -> Result<u64> {
        let state = self.lock();
        // Such a cursor was not given out: it is the beginning.
        let cursor = if cursor.trailing_zeros() >= 38 { 0 } else { cursor };
        if let Some(bits) = self.places {
            let next = self.iterate_places(&state, bits, (cursor, count), visit);
            return self.count_read().map(|()| next);
        }
        let start = (cursor, Arc::from([].as_slice()));
        let mut shown = 0;
        let mut last = None;
        for (place, key) in state.order.range((Bound::Included(start), Bound::Unbounded)) {
            // All keys of one place are shown at one call, so that the place can be the cursor.
            if shown >= count.max(1) && last != Some(*place) {
                return self.count_read().map(|()| *place);
            }
            last = Some(*place);
            // An expired record is a step, too.
            shown += usize::from(state.cells.get(key).is_some_and(|cell| cell.value.is_some()));
            let Some(cell) = state.live(key) else { continue };
            let record = cell.record(state.ticket_of(cell));
            visit(Entry { key, record, sequence: cell.sequence });
        }
        self.count_read().map(|()| 0)
    }

    fn len(&self) -> Result<u64> {
        if self.is_miscounted.load(Ordering::Acquire) {
            return Err(Error::Corrupt { offset: 0, what: "the number of records".to_owned() });
        }
        Ok(self.lock().stats.records)
    }

    fn try_len(&self) -> Result<Option<u64>> {
        if self.is_counting.load(Ordering::Acquire) { Ok(None) } else { self.len().map(Some) }
    }

    fn clear(&self) -> Result<()> {
        let mut state = self.lock();
        state.check_writable()?;
        state.clear()?;
        let grew = state.harden();
        drop(state);
        self.announce(grew);
        Ok(())
    }

    fn clears_at_once(&self) -> bool {
        true
    }

    fn sweep_expired(&self) -> Result<u64> {
        let mut state = self.lock();
        state.check_writable()?;
        Ok(state.sweep_expired())
    }

    fn now(&self) -> UnixMillis {
        self.lock().now
    }

    fn sync(&self) -> Result<()> {
        self.interrupt(&self.sync_interruption);
        self.make_durable();
        let state = self.lock();
        state.is_durable_at(state.appended).map(drop)
    }

    fn stats(&self) -> Stats {
        let state = self.lock();
        let capacity = state.capacity.unwrap_or(0);
        let mut stats = state.stats.clone();
        stats.pool_bytes = capacity;
        stats.free_bytes = capacity.saturating_sub(stats.live_bytes);
        stats.dram_bytes = stats.live_bytes;
        stats
    }

    fn close(&self) -> Result<()> {
        let mut state = self.lock();
        let grew = state.harden();
        state.closed = true;
        let closed = state.is_durable_at(state.appended).map(drop);
        drop(state);
        self.announce(grew);
        closed
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        self.places.is_none().then_some(self as &dyn Ordered)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }
}

impl Deferred for ModelEngine {
    fn commit(&self, horizon: &Horizon) -> Result<bool> {
        self.is_durable(horizon)
    }

    fn settles_by_itself(&self) -> bool {
        self.is_settling.load(Ordering::Acquire)
    }

    fn visible_ticket(&self) -> Ticket {
        let state = self.lock();
        let early = state.cells.values().map(|cell| state.ticket_of(cell)).max();
        early.unwrap_or(Ticket::DURABLE)
    }

    fn is_durable(&self, horizon: &Horizon) -> Result<bool> {
        self.lock().is_durable_at(position_of(horizon))
    }

    fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        let mut state = self.lock();
        self.wait_position(&mut state, position_of(horizon))
    }

    fn leaderships(&self) -> u64 {
        self.leaderships.load(Ordering::SeqCst)
    }

    fn apply_within(
        &self,
        leadership: u64,
        batch: &Batch,
        options: &WriteOptions,
    ) -> Result<Written> {
        // A test ends a leadership between two calls, not within one.
        if leadership != self.leaderships() {
            return Err(Error::Busy);
        }
        self.apply(batch, options)
    }

    fn on_durable(&self, listener: DurableListener) {
        self.listeners.lock().push(listener);
    }
}

impl Replicated for ModelEngine {
    fn advance_sequence(&self) -> Result<u64> {
        Ok(self.lock().next_sequence())
    }

    fn changes_since(&self, sequence: u64, visit: &mut dyn FnMut(Entry<'_>)) -> Result<()> {
        let state = self.lock();
        if sequence < state.dropped {
            return Err(Error::HistoryGone { asked: sequence, horizon: state.dropped });
        }
        for (key, cell) in state.cells.iter().filter(|(_, cell)| cell.sequence > sequence) {
            let live = cell.is_live(state.now);
            let record = cell.record(state.ticket_of(cell)).filter(|_| live);
            visit(Entry { key, record, sequence: cell.sequence });
        }
        Ok(())
    }

    fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        self.lock().hold_tombstones(sequence);
        Ok(())
    }

    fn tombstone_horizon(&self) -> u64 {
        self.lock().dropped
    }
}

impl Repairable for ModelEngine {
    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        let state = self.lock();
        let total = state.cells.len() as u64;
        progress(Progress { stage: "checking records", done: 0, total });
        let damages = state.faults();
        progress(Progress { stage: "checking records", done: total, total });
        let damages = damages.into_iter().map(|what| Damage::new(0, what)).collect();
        Ok(VerifyReport { records: state.stats.records, bytes: state.stats.live_bytes, damages })
    }
}
