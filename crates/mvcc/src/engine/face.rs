//! The interface of the engine to its callers.

use super::MapEngine;
use super::batch::BATCH_LEN_MAX;
use super::snapshot::Pinned;
use super::write::{Change, Plan};
use coreplane_engine::{
    Backing, Batch, DamagedKey, Deferred, DurableListener, Engine, Entry, Expected, Found, Horizon,
    Limits, Mutation, Ordered, Outcome, Progress, Record, Repairable, Replicated, Result, Snapshot,
    Snapshots, Stats, Ticket, UnixMillis, VerifyReport, Visibility, WriteOptions, Written,
};
use coreplane_record::{backing_of, lost};
use std::borrow::Cow;

/// The longest value: its pages are one chain.
pub(crate) const VALUE_LEN_MAX: usize = 512 << 20;

impl Engine for MapEngine {
    fn name(&self) -> &'static str {
        self.store.kind.name()
    }

    fn limits(&self) -> Limits {
        Limits {
            key_len_max: self.store.key_len_max(),
            value_len_max: VALUE_LEN_MAX,
            batch_len_max: BATCH_LEN_MAX,
            batch_bytes_max: usize::MAX,
        }
    }

    fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        self.store.get_with(key, visibility, visit)
    }

    fn multi_get(
        &self,
        keys: &[&[u8]],
        visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        self.store.multi_get(keys, visibility, visit)
    }

    fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let expires_at = options.expires_at;
        self.store.write(key, options, Change::Put { value, expires_at })
    }

    fn insert(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let expires_at = options.expires_at;
        let mut decide = |live: Option<&Record<'_>>| {
            Ok(match live {
                Some(_) => Plan::Refuse(Outcome::Exists),
                None => Plan::Put { value: Cow::Borrowed(value), expires_at },
            })
        };
        self.store.write(key, options, Change::Decide(&mut decide))
    }

    fn update(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let expires_at = options.expires_at;
        let mut decide = |live: Option<&Record<'_>>| {
            Ok(match live {
                None => Plan::Refuse(Outcome::Missing),
                Some(_) => Plan::Put { value: Cow::Borrowed(value), expires_at },
            })
        };
        self.store.write(key, options, Change::Decide(&mut decide))
    }

    fn delete(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.store.write(key, options, Change::Delete { always: options.sequence.is_some() })
    }

    fn compare_and_set(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<Outcome> {
        let expires_at = options.expires_at;
        let mut decide = |live: Option<&Record<'_>>| {
            let as_expected = match (expected, live) {
                (Expected::Absent, None) => true,
                (Expected::Sequence(sequence), Some(record)) => record.sequence == sequence,
                (Expected::Value(bytes), Some(record)) => record.value.equals(bytes),
                _ => false,
            };
            Ok(match as_expected {
                true => Plan::Put { value: Cow::Borrowed(value), expires_at },
                false => Plan::Refuse(Outcome::Mismatch),
            })
        };
        self.store.write(key, options, Change::Decide(&mut decide))
    }

    fn modify(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome> {
        let mut decided: Option<(Option<u64>, Mutation)> = None;
        let mut decide = |live: Option<&Record<'_>>| {
            // Decided once, even if the write is attempted again: unless the key was written in between.
            let seen = live.map(|record| record.sequence);
            let mutation = match decided.take() {
                Some((before, mutation)) if before == seen => mutation,
                _ => decide(live.copied()),
            };
            if let Mutation::Put { value, .. } = &mutation {
                self.store.check_lengths(key, value.len())?;
            }
            decided = Some((seen, mutation.clone()));
            Ok(match (mutation, live) {
                (Mutation::Put { value, expires_at }, _) => {
                    Plan::Put { value: Cow::Owned(value), expires_at }
                }
                (Mutation::Keep, _) | (_, None) => Plan::Refuse(Outcome::Kept),
                (Mutation::Delete, Some(_)) => Plan::Delete,
                (Mutation::Expire(expires_at), Some(record)) => {
                    Plan::Put { value: Cow::Owned(record.value.to_vec()), expires_at }
                }
            })
        };
        self.store.write(key, options, Change::Decide(&mut decide))
    }

    fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        self.store.apply(batch, options)
    }

    fn iterate(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(Entry<'_>)) -> Result<u64> {
        self.store.iterate(cursor, count, visit)
    }

    fn len(&self) -> Result<u64> {
        Ok(self.store.map.read().len())
    }

    fn clear(&self) -> Result<()> {
        self.store.clear()
    }

    fn clears_at_once(&self) -> bool {
        true
    }

    fn sweep_expired(&self) -> Result<u64> {
        self.store.sweep_expired()
    }

    fn now(&self) -> UnixMillis {
        self.store.volume.now()
    }

    fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    fn stats(&self) -> Stats {
        self.store.stats()
    }

    fn close(&self) -> Result<()> {
        let closed = self.store.close();
        self.stop_background();
        closed
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }
}

impl Deferred for MapEngine {
    fn commit(&self, horizon: &Horizon) -> Result<bool> {
        self.store.commit(horizon)
    }

    fn visible_ticket(&self) -> Ticket {
        self.store.visible_ticket()
    }

    fn is_durable(&self, horizon: &Horizon) -> Result<bool> {
        self.store.is_durable(horizon)
    }

    fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        self.store.wait_durable(horizon)
    }

    fn on_durable(&self, listener: DurableListener) {
        self.store.volume.space.on_synced(listener);
    }
}

impl Replicated for MapEngine {
    fn advance_sequence(&self) -> Result<u64> {
        let _map = self.store.writing()?;
        self.store.draw_version(None)
    }

    fn changes_since(&self, sequence: u64, visit: &mut dyn FnMut(Entry<'_>)) -> Result<()> {
        self.store.changes_since(sequence, visit)
    }

    fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        self.store.hold_tombstones(sequence)
    }

    fn tombstone_horizon(&self) -> u64 {
        self.store.map.read().tombstone_horizon()
    }
}

impl Repairable for MapEngine {
    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.store.verify(progress)
    }

    fn check(&self, key: &[u8]) -> Result<bool> {
        let found = self.store.find(key, (Visibility::Early, true), &mut |_| {})?;
        Ok(found.hit)
    }

    fn damaged_keys_since(&self, sequence: u64) -> Result<Vec<DamagedKey>> {
        self.store.damaged_keys_since(sequence)
    }

    fn check_medium(&self) -> Result<()> {
        let volume = &self.store.volume;
        volume.space.check_lost().map_err(|at| lost(&volume.pool, at))
    }

    fn grow(&self, size: u64) -> Result<()> {
        self.store.grow(size)
    }

    fn backing(&self) -> Backing {
        backing_of(&self.store.volume.pool)
    }
}

impl Ordered for MapEngine {
    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        self.store.scan_at((start, end), reverse, (limit, u64::MAX), visit)
    }
}

impl Snapshots for MapEngine {
    fn snapshot(&self) -> Result<Box<dyn Snapshot>> {
        Ok(Box::new(Pinned::now(&self.store)?))
    }
}
