//! The engine traits of a replica.

use super::Replica;
use super::core::Counts;
use super::write::Plan;
use coreplane_engine::{
    Batch, Clear, Deferred, DurableListener, Engine, Entry, Error, Expected, Found, Horizon,
    Limits, Mutation, Ordered, Outcome, Record, Result, Stats, Ticket, UnixMillis, Visibility,
    WriteOptions, Written,
};
use std::borrow::Cow;

impl Engine for Replica {
    fn name(&self) -> &'static str {
        self.map_name
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
        self.get_record(key, visibility, visit)
    }

    fn multi_get(
        &self,
        keys: &[&[u8]],
        visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        self.get_records(keys, visibility, visit)
    }

    fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let expires_at = options.expires_at;
        self.write((key, value.len()), options, &mut |_| Plan::Put {
            value: Cow::Borrowed(value),
            expires_at,
        })
    }

    fn insert(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let expires_at = options.expires_at;
        self.write((key, value.len()), options, &mut |live| match live {
            Some(_) => Plan::Refuse(Outcome::Exists),
            None => Plan::Put { value: Cow::Borrowed(value), expires_at },
        })
    }

    fn update(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let expires_at = options.expires_at;
        self.write((key, value.len()), options, &mut |live| match live {
            None => Plan::Refuse(Outcome::Missing),
            Some(_) => Plan::Put { value: Cow::Borrowed(value), expires_at },
        })
    }

    fn delete(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.write((key, 0), options, &mut |live| match live {
            None => Plan::Refuse(Outcome::Missing),
            Some(_) => Plan::Delete,
        })
    }

    fn compare_and_set(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<Outcome> {
        let expires_at = options.expires_at;
        self.write((key, value.len()), options, &mut |live| {
            let as_expected = match (expected, live) {
                (Expected::Absent, None) => true,
                (Expected::Sequence(sequence), Some(record)) => record.sequence == sequence,
                (Expected::Value(bytes), Some(record)) => record.value.equals(bytes),
                _ => false,
            };
            match as_expected {
                true => Plan::Put { value: Cow::Borrowed(value), expires_at },
                false => Plan::Refuse(Outcome::Mismatch),
            }
        })
    }

    fn modify(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome> {
        self.write((key, 0), options, &mut |live| match (decide(live), live) {
            (Mutation::Put { value, expires_at }, _) => {
                Plan::Put { value: Cow::Owned(value), expires_at }
            }
            (Mutation::Delete, Some(_)) => Plan::Delete,
            (Mutation::Expire(expires_at), Some(record)) => {
                Plan::Put { value: Cow::Owned(record.value.to_vec()), expires_at }
            }
            (Mutation::Keep | Mutation::Delete | Mutation::Expire(_), _) => {
                Plan::Refuse(Outcome::Kept)
            }
        })
    }

    fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        self.write_batch(batch, options, None)
    }

    fn iterate(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(Entry<'_>)) -> Result<u64> {
        self.iterate_from(cursor, count, visit)
    }

    fn len(&self) -> Result<u64> {
        self.count_records()
    }

    fn clear(&self) -> Result<()> {
        let mut clear = Clear::default();
        loop {
            match self.clear_some(&mut clear) {
                Ok(Some(ticket)) => return self.wait_done(&Horizon::from(ticket)),
                Ok(None) => self.persisted()?,
                Err(Error::Busy) => {
                    self.persisted()?;
                    self.wait_for_news()?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn sweep_expired(&self) -> Result<u64> {
        const STEP: usize = 1024;
        let (mut from, mut swept) = (Vec::new(), 0);
        loop {
            let (some, next) = self.sweep_some(&from, STEP)?;
            swept += some;
            match next {
                Some(key) => from = key,
                None => break,
            }
        }
        self.wait_done(&Horizon::from(self.visible_ticket()))?;
        Ok(swept)
    }

    fn now(&self) -> UnixMillis {
        Replica::now(self, &self.core.lock())
    }

    /// Acknowledged writes are durable with a majority. This makes them durable here, too, with everything proposed
    /// here.
    fn sync(&self) -> Result<()> {
        self.persisted()?;
        self.core.lock().node.with_map(|map| map.wait_durable(map.commit()?))?;
        self.persisted()
    }

    fn stats(&self) -> Stats {
        let core = self.core.lock();
        let status = core.node.status();
        let mut stats = core.node.with_map(|map| map.stats());
        let Counts { hits, misses, puts, deletes, batches, expired, user_bytes } = core.counts;
        (stats.hits, stats.misses) = (hits, misses);
        (stats.puts, stats.deletes, stats.batches) = (puts, deletes, batches);
        (stats.expired, stats.user_bytes_written) = (expired, user_bytes);
        stats.more.extend([
            ("raft_term", status.term),
            ("raft_newest", status.newest),
            ("raft_committed", status.committed),
            ("raft_applied", status.applied),
            ("raft_leaderships", core.open.leaderships()),
            ("raft_snapshots_installed", core.node.installed()),
            ("raft_entries_without_room", core.node.left_out()),
        ]);
        stats
    }

    fn close(&self) -> Result<()> {
        let mut core = self.core.lock();
        core.is_closed = true;
        self.changed.notify_all();
        core.node.with_map(|map| map.close())
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        Some(self)
    }
}

impl Ordered for Replica {
    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        self.scan_range((start, end), reverse, limit, visit)
    }
}

impl Deferred for Replica {
    fn commit(&self, horizon: &Horizon) -> Result<bool> {
        if !self.is_done(horizon)? {
            let _has_stopped = self.persisted().is_err();
        }
        self.is_done(horizon)
    }

    fn visible_ticket(&self) -> Ticket {
        let mut core = self.core.lock();
        // A state that was seen in a leadership that has ended since does not hold.
        core.visible_ticket().unwrap_or_else(|_| core.open.lost_ticket())
    }

    fn is_durable(&self, horizon: &Horizon) -> Result<bool> {
        self.is_done(horizon)
    }

    fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        self.wait_done(horizon)
    }

    fn on_durable(&self, listener: DurableListener) {
        self.listeners.write().push(listener);
    }

    fn settles_by_itself(&self) -> bool {
        true
    }

    fn clear_step(&self, clear: &mut Clear) -> Result<Option<Ticket>> {
        self.clear_some(clear)
    }

    fn apply_within(
        &self,
        leadership: u64,
        batch: &Batch,
        options: &WriteOptions,
    ) -> Result<Written> {
        self.write_batch(batch, options, Some(leadership))
    }

    fn leaderships(&self) -> u64 {
        self.core.lock().open.leaderships()
    }
}
