//! Closing, growing, clearing, sweeping, verifying.

use super::durable::Writing;
use super::patience::Patience;
use super::read::Seen;
use super::{Count, Store};
use crate::map::{Group, Purpose, Slice, Space};
use coreplane_engine::{
    Completion, Damage, Error, Horizon, Progress, Result, Stats, Ticket, UnixMillis, VerifyReport,
    WriteOptions,
};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::{Claim, mutant};
use coreplane_record::{Header, Kind, pool_error, sync_failed};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// The most expired records that are removed between two looks.
const SWEPT: usize = 64;

/// A part of a sweep.
pub(super) struct Swept {
    /// Expired records that were removed.
    pub(super) count: u64,
    /// The key from which to go on; none at the end.
    pub(super) next: Option<Vec<u8>>,
}

impl Store {
    /// Leaves a clean store behind. Writes fail from then on.
    pub(crate) fn close(&self) -> Result<()> {
        let was_closed = self.volume.closed.swap(true, Ordering::SeqCst);
        if was_closed {
            let is_clean = self.volume.root().flags & crate::volume::root::Root::CLEAN != 0;
            let failed = || Error::Unusable("closing has failed, or goes on".to_owned());
            return is_clean.then_some(()).ok_or_else(failed);
        }
        {
            let mut map = self.writing()?;
            map.seal()?;
            map.stream_mut().close_all()?;
            self.commit_all(&mut map)?;
            if !self.volume.space.fences_at_once() {
                map.stream_mut().cover(true);
            }
        }
        self.volume.space.fence().map_err(sync_failed)?;
        self.volume.change_root(|root| root.flags |= crate::volume::root::Root::CLEAN).map(drop)
    }

    /// Counts the live bytes that an open has found, in steps between which other threads get the map, until all are
    /// counted or the store is closed.
    pub(crate) fn count_all(&self) {
        if self.make_whole().is_err() {
            // Writers get the error.
            return;
        }
        while !self.volume.closed.load(Ordering::Acquire) && self.map.write().count_some() {
            std::thread::yield_now();
        }
    }

    /// Grows the pool. Readers and writers go on meanwhile: a page that is not offered yet has no life.
    pub(crate) fn grow(&self, size: u64) -> Result<()> {
        let _growing = self.growing.lock();
        // Deferred work of an open would take the new pages for old ones.
        self.make_whole()?;
        self.check_writable()?;
        let volume = &self.volume;
        let before = volume.space.pages();
        volume.pool.grow(size).map_err(pool_error)?;
        volume.table.claim(before..volume.space.pages(), Claim::Words)?;
        volume.space.fence().map_err(sync_failed)?;
        self.map.write().stream_mut().pages.offer(volume.table.data_pages(before));
        Ok(())
    }

    /// Removes every record, durably when it returns.
    pub(super) fn clear(&self) -> Result<()> {
        let _holding = self.holding.lock();
        let len = Header { kind: Kind::Commit, ..Header::put(0) }.record_len(&[], 8);
        let group = Group { lengths: &[len], ..Group::EMPTY };
        let request = |map: &mut Writing<'_>, guard: &Guard| {
            self.space_for(map, guard, group, Purpose::Clear)
        };
        let ticket = self.with_space(request, |map, guard| {
            // Records that are not visible yet are cleared, too.
            self.commit_all(map)?;
            let version = self.draw_version(None)?;
            self.drop_history(version)?;
            map.clear(guard, version)?;
            if !mutant!("mvcc.clear.early") {
                let ticket = self.end_group(map, len, &WriteOptions::default())?;
                self.cleared.store(ticket.position(), Ordering::Release);
            }
            Ok(Ticket::new(0, self.visible.load(Ordering::Acquire).max(1)))
        })?;
        if self.volume.space.fences_at_once() {
            return Ok(());
        }
        self.wait_durable(&Horizon::from(ticket))
    }

    /// Makes the root state that changes up to a clear with this version are not known: it leaves no tombstones.
    ///
    /// # Errors
    /// If that cannot be made durable.
    fn drop_history(&self, version: u64) -> Result<()> {
        if mutant!("mvcc.clear.history") {
            return Ok(());
        }
        let known = |held: u64| if held > 0 { held.max(version + 1) } else { 0 };
        self.volume.change_root(|root| root.held = known(root.held)).map(drop)
    }

    /// Removes expired records; returns their number.
    pub(super) fn sweep_expired(&self) -> Result<u64> {
        let (mut from, mut count) = (Vec::new(), 0);
        loop {
            let swept = self.sweep_some(&from, &|| false)?;
            count += swept.count;
            match swept.next {
                Some(next) => from = next,
                None => return Ok(count),
            }
        }
    }

    /// Removes expired records from this key on, those of some keys at least; looks for no more of them when `is_over`.
    /// Notes the least expiry that lies ahead. Damaged records are for `verify`.
    pub(super) fn sweep_some(&self, from: &[u8], is_over: &dyn Fn() -> bool) -> Result<Swept> {
        self.check_writable()?;
        let (mut keys, mut soonest, due) = (Vec::new(), None::<UnixMillis>, Cell::new(0));
        let goes_on = || due.get() < SWEPT && !is_over();
        let next = self.walk_over(from.to_vec(), &goes_on, &mut |_, met| {
            let view = match met.view {
                Ok(view) if view.header.kind == Kind::Put => view,
                _ => return Ok(ControlFlow::Continue(())),
            };
            if !met.is_live {
                keys.push(met.key.to_vec());
                due.set(keys.len());
            } else if let Some(at) = view.header.expires_at {
                soonest = Some(soonest.map_or(at, |it| it.min(at)));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        self.expiries.note(soonest);
        let (mut count, mut last) = (0, None);
        for key in &keys {
            match self.remove_expired(key) {
                Ok(Some(ticket)) => (count, last) = (count + 1, Some(ticket)),
                Ok(None) | Err(Error::Corrupt { .. } | Error::ChecksumMismatch { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // It covers the tombstones before it.
        if let Some(ticket) = last {
            self.wait_durable(&Horizon::from(ticket))?;
        }
        Ok(Swept { count, next })
    }

    /// Replaces an expired record by a tombstone with its sequence; none if there is none any more. Durable with the
    /// ticket.
    fn remove_expired(&self, key: &[u8]) -> Result<Option<Ticket>> {
        let mut patience = Patience::default();
        loop {
            let mut map = self.writing()?;
            // A store that was closed meanwhile ends well, and has to stay so.
            self.check_writable()?;
            let guard = epoch::pin();
            let standing = match self.look(&mut map, &guard, key)? {
                Ok(standing) => standing,
                Err(at) => {
                    drop(map);
                    self.make_known(at)?;
                    continue;
                }
            };
            let Some(view) = standing.view.filter(|it| it.header.kind == Kind::Put) else {
                return Ok(None);
            };
            if standing.is_live || standing.sure.is_err() {
                // The clock may have been set back.
                self.expiries.note(view.header.expires_at);
                return Ok(None);
            }
            let header =
                Header { kind: Kind::Delete, sequence: Some(view.sequence()), ..Header::put(0) };
            let len = self.len_of(&map, &header, key, 8);
            let lengths = if len > 0 { &[len][..] } else { &[] };
            let group = Group { lengths, keys: &[key], apart: 0 };
            let space = self.space_for(&mut map, &guard, group, Purpose::Delete)?;
            if space != Space::Found {
                drop(map);
                patience.wait(self, space)?;
                continue;
            }
            let version = self.draw_version(None)?;
            let header = Header { version, ..header };
            if len == 0 {
                self.remove(&mut map, &guard, &header, key)?;
            } else {
                let new = self.append(&mut map, &guard, header, key, &[])?;
                map.link(&guard, key, new)?;
            }
            // While the map is locked, so that no one finds it in neither count.
            self.add(Count::Expired, 1);
            map.tidy()?;
            let early = WriteOptions { completion: Completion::Early, ..WriteOptions::default() };
            return Ok(Some(self.end_group(&mut map, len, &early)?));
        }
    }

    fn make_known(&self, at: UnixMillis) -> Result<()> {
        self.uncover(&Seen::Expired(at))
    }

    /// Keeps every tombstone with a sequence above `sequence`, after a restart too. The root states from which sequence
    /// on the changes are known; tombstones that were dropped before stay dropped.
    pub(super) fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        let _holding = self.holding.lock();
        let before = self.volume.root().held.checked_sub(1).unwrap_or(u64::MAX);
        // None that is held from now on is dropped before the root states so.
        let horizon = match sequence < before {
            true => self.hold_in_map(sequence)?,
            false => self.map.read().tombstone_horizon(),
        };
        let known = if mutant!("mvcc.held.horizon") { sequence } else { sequence.max(horizon) };
        let held = if sequence == u64::MAX { 0 } else { known + 1 };
        self.volume.change_root(|root| root.held = held)?;
        // None that was held is dropped before the root states that.
        self.hold_in_map(sequence).map(drop)
    }

    /// Has the map keep the tombstones above `sequence`; returns the sequence from which on none was dropped.
    fn hold_in_map(&self, sequence: u64) -> Result<u64> {
        loop {
            let mut map = self.writing()?;
            // Hidden tombstones cannot be read.
            self.commit_all(&mut map)?;
            if !map.hold_tombstones(sequence) {
                return Ok(map.tombstone_horizon());
            }
            drop(map);
            std::thread::yield_now();
        }
    }

    /// The counts and sizes of the store.
    pub(crate) fn stats(&self) -> Stats {
        let space = &self.volume.space;
        // If that fails, there are no numbers of pages.
        let _is_whole = self.make_whole().is_ok();
        let map = self.map.read();
        let (stream, mut stats) = (map.stream(), Stats::default());
        (stats.flushes, stats.fences) = space.flushes_and_fences();
        stats.hits = self.get(Count::Hits);
        stats.misses = self.get(Count::Misses);
        stats.puts = self.get(Count::Puts);
        stats.deletes = self.get(Count::Deletes);
        stats.batches = self.get(Count::Batches);
        stats.expired = self.get(Count::Expired);
        stats.user_bytes_written = self.get(Count::UserBytes);
        stats.log_bytes_written = stream.bytes_appended;
        (stats.cleaner_pages_freed, stats.cleaner_bytes_copied) = map.cleaned();
        stats.records = map.len();
        stats.live_bytes = stream.pages.live();
        stats.pool_bytes = space.len();
        stats.free_bytes =
            u64::from(stream.pages.total_and_free().1) * u64::from(space.page_size());
        stats.dram_bytes = map.dram_bytes() + space.dram_bytes();
        stats.more = vec![("commits", stream.commits)];
        stats
    }

    /// Reads all records and verifies their checksums, some at a time: writers get the map in between.
    pub(crate) fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.sync()?;
        let mut damages = Vec::new();
        if let Err(error) = self.volume.pool.check() {
            damages.push(damage_of(&pool_error(error)));
        }
        let (mut after, mut records, mut bytes) = (None, 0, 0);
        loop {
            let map = self.exposed()?;
            let guard = epoch::pin();
            let (stage, total) = ("checking records", map.len());
            progress(Progress { stage, done: records.min(total), total });
            let damaged = &mut |error: Error, key: Option<&[u8]>| {
                let damage = damage_of(&error);
                damages.push(key.map_or(damage.clone(), |key| damage.of(key)));
            };
            let mut slice = Slice { after, left: SLICE, is_last: false, records, bytes, damaged };
            map.verify(&guard, &mut slice);
            let is_last = slice.is_last;
            (after, records, bytes) = (slice.after.take(), slice.records, slice.bytes);
            if is_last {
                progress(Progress { stage, done: total, total });
                return Ok(VerifyReport { records, bytes, damages }.merged());
            }
        }
    }
}

/// Keys that are verified while writers wait.
const SLICE: usize = 1024;

fn damage_of(error: &Error) -> Damage {
    Damage::new(offset_of(error), error.to_string())
}

/// The offset of the damage; 0 if it has none.
pub(super) fn offset_of(error: &Error) -> u64 {
    match error {
        Error::ChecksumMismatch { offset, .. } | Error::Corrupt { offset, .. } => *offset,
        _ => 0,
    }
}
