//! Appending an entry.
//!
//! ```text
//!   large values, in pages of their own ─▶ the next timestamp? ─▶ pages ─▶ changes, by key ─▶ closing record
//! ```
//!
//! Nothing is appended until the pages are there, so that an error leaves nothing behind. Of several changes of a key
//! in one entry the last counts, and the others are not kept; so their order means nothing, and they are written in
//! the order of keys.

use super::{LogMap, check_range, log_of, no_log};
use crate::control::ENTRY_HEADER_MAX;
use crate::engine::MapKind;
use crate::engine::durable::Writing;
use crate::engine::patience::Patience;
use crate::engine::write::Prepared;
use crate::map::{Group, Part, Purpose, Space};
use crate::volume::overflow::NAME;
use coreplane_engine::{Batch, ChangeRef, Error, Result};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind};
use std::sync::atomic::Ordering;

/// The most changes of an entry.
const CHANGES_MAX: usize = 1 << 20;

/// More than the bytes of a change beside its key and value, and of an entry beside its changes.
const BESIDE_CHANGE: u64 = 96;
const BESIDE_ENTRY: u64 = 512;

/// More than the pages of the nodes of a tree that a change writes anew.
const WAY: u64 = 24;

/// Pages that a leader leaves to followers, whose records are packed differently.
const FOR_FOLLOWERS: usize = 2;

/// How often a search for room goes on that has dropped versions which dropped snapshots have seen, or, for a leader,
/// cleaned pages: the caller serves others. A follower cleans all that it needs, since it asks for the same entries
/// again only when they are sent again.
const ROUNDS: u32 = 3;

/// The most bytes that the end of a page takes.
const PAGE_END: usize = 16;

/// An entry that is to be appended.
#[derive(Debug, Clone, Copy)]
pub struct LogAppend<'b> {
    /// The timestamp behind the newest one.
    pub timestamp: u64,
    /// Bytes that only its writer interprets.
    pub header: &'b [u8],
    /// Its changes, of which the last of each key counts.
    pub changes: &'b Batch,
}

/// A change, and its value if it was written to pages of its own.
struct Change<'b> {
    change: ChangeRef<'b>,
    prepared: Option<Prepared>,
}

/// The space that entries need which are not appended yet.
#[derive(Default)]
struct Need<'c> {
    lengths: Vec<usize>,
    keys: Vec<&'c [u8]>,
    /// Pages of large values.
    chains: u32,
    has_puts: bool,
}

impl Change<'_> {
    fn header(&self, version: u64) -> Header {
        let (kind, expires_at) = match self.change {
            ChangeRef::Put { expires_at, .. } => (Kind::Put, expires_at),
            ChangeRef::Delete { .. } => (Kind::Delete, None),
        };
        let batched = !mutant!("mvcc.log.loose");
        Header { kind, large: self.prepared.is_some(), expires_at, batched, ..Header::put(version) }
    }

    fn len(&self) -> usize {
        let value = match self.prepared {
            Some(_) => NAME,
            None => self.change.value().map_or(8, <[u8]>::len),
        };
        self.header(0).record_len(self.change.key(), value)
    }
}

impl LogMap {
    /// Appends an entry: it is pending, and durable after a [`LogMap::commit`].
    ///
    /// The header has at most [`ENTRY_HEADER_MAX`] bytes. A caller that `uses_reserve` takes pages that others leave:
    /// a replica that has to take an entry for which its leader had room.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `timestamp` is not the one behind the newest; [`Error::ValueTooLong`],
    /// [`Error::KeyTooLong`], [`Error::BatchTooLarge`]; [`Error::NoSpace`], which applying or rolling back pending
    /// entries, and appending deletes alone, can resolve; [`Error::Installing`]; if the medium fails. An error leaves
    /// nothing behind.
    pub fn append(
        &self,
        timestamp: u64,
        header: &[u8],
        changes: &Batch,
        uses_reserve: bool,
    ) -> Result<()> {
        self.append_entries(&[LogAppend { timestamp, header, changes }], uses_reserve)
    }

    /// Appends entries, one after the other. Their large values share one fence, while separate appends need one
    /// each.
    ///
    /// # Errors
    /// As [`LogMap::append`]; the entries before the one with the error were appended, unless there was no room for a
    /// large value of any.
    pub fn append_entries(&self, entries: &[LogAppend<'_>], uses_reserve: bool) -> Result<()> {
        let Some(first) = entries.first() else { return Ok(()) };
        self.check_next(&mut self.store.map.write(), first.timestamp)?;
        let all = entries.iter().map(|entry| self.changes_of(entry));
        let mut all: Vec<Vec<Change<'_>>> = all.collect::<Result<_>>()?;
        let appended = self.write_all_large(&mut all, uses_reserve).and_then(|()| {
            entries.iter().zip(&mut all).try_for_each(|(entry, changes)| {
                self.append_all((entry.timestamp, entry.header), changes, uses_reserve)
            })
        });
        all.iter_mut().flatten().for_each(|it| self.store.drop_prepared(&mut it.prepared));
        appended
    }

    /// The changes of an entry in the order of keys, each key once.
    fn changes_of<'b>(&self, entry: &LogAppend<'b>) -> Result<Vec<Change<'b>>> {
        let LogAppend { header, changes, .. } = entry;
        if header.len() > ENTRY_HEADER_MAX {
            return Err(Error::ValueTooLong { len: header.len(), max: ENTRY_HEADER_MAX });
        }
        if changes.len() > CHANGES_MAX {
            return Err(Error::BatchTooLarge { len: changes.len(), max: CHANGES_MAX });
        }
        let mut all = Vec::with_capacity(changes.len());
        for change in changes.changes() {
            self.store.check_lengths(change.key(), change.value().map_or(0, <[u8]>::len))?;
            all.push(Change { change, prepared: None });
        }
        // Of equal keys the last one stays last.
        all.sort_by(|one, other| one.change.key().cmp(other.change.key()));
        all.dedup_by(|later, earlier| {
            let is_same = later.change.key() == earlier.change.key();
            if is_same {
                earlier.change = later.change;
            }
            is_same
        });
        Ok(all)
    }

    /// Writes the large values of entries to pages of their own, durably.
    fn write_all_large(&self, all: &mut [Vec<Change<'_>>], uses_reserve: bool) -> Result<()> {
        let store = &self.store;
        let mut is_any = false;
        for it in all.iter_mut().flatten() {
            if let Some(value) = it.change.value()
                && value.len() > store.inline_max(it.change.key())
            {
                it.prepared = Some(store.write_large(value, purpose_of(uses_reserve))?);
                is_any = true;
            }
        }
        if is_any { store.fence_large() } else { Ok(()) }
    }

    /// Fails unless there is room for an entry of these changes without the [reserve](LogMap::append), or, for
    /// deletes alone, beside the pages that are kept for those; and also for so many bytes of records `beside`, which
    /// were asked for before and are not appended yet. Called before an entry is proposed that other nodes have to
    /// take.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::Busy`] if pages have to be cleaned first, or versions dropped that a dropped
    /// snapshot has seen, of which each call does a part, or if a sync has to end; the errors of [`LogMap::append`]
    /// for changes that no entry can have.
    pub fn check_room(&self, changes: &Batch, beside: u64) -> Result<()> {
        let mut need = Need::default();
        self.add_need(&mut need, changes)?;
        let (mut left, most) = (beside as usize, self.store.inline_max(&[]));
        while left > 0 {
            need.lengths.push(left.min(most));
            left -= left.min(most);
        }
        if !need.has_puts {
            // Followers ask for deletes as entries that begin pages. Puts leave them more pages than that.
            need.lengths.extend([self.page_max(); FOR_FOLLOWERS]);
        }
        let purpose = purpose_of(!need.has_puts);
        self.look_for_room(&need, purpose, (&mut Patience::default(), false))
    }

    /// True if there is so much room that neither [`LogMap::check_room`] nor [`LogMap::room_for_entries`] need be
    /// called for so many entries, with so many changes and bytes of keys and values.
    pub fn has_ample_room(&self, (entries, changes, bytes): (u64, u64, u64)) -> bool {
        let page_size = u64::from(self.store.volume.space.page_size());
        let map = self.store.map.read();
        let (total, free) = map.stream().pages.total_and_free();
        let bytes = bytes + changes * BESIDE_CHANGE + entries * BESIDE_ENTRY;
        let ways = match self.kind() {
            // A value that does not fit beside its key has a page of its own, however short it is.
            MapKind::List => changes,
            MapKind::CowTree => (changes + map.log().map_or(0, |log| log.pending_keys())) * WAY,
        };
        let reserve = map.reserve(Purpose::Insert).max(total / 8);
        // Half of a page may stay empty before each record.
        u64::from(free) >= u64::from(reserve) + 2 * bytes.div_ceil(page_size) + entries + ways
    }

    /// How many of these entries, from the first on, there is room for with the [reserve](LogMap::append): called
    /// with the entries that a leader has sent. It cleans pages, waits for syncs, and some milliseconds for readers.
    /// Entries without changes take the pages that are kept for clears; those before the first change always count as
    /// if there were room.
    ///
    /// # Errors
    /// As [`LogMap::check_room`], except for lack of space.
    pub fn room_for_entries(&self, entries: &[Batch]) -> Result<usize> {
        let least = entries.iter().take_while(|changes| changes.is_empty()).count();
        let (mut count, mut patience) = (entries.len(), Patience::brief());
        while let Some(first) = entries.get(..count).filter(|_| count > least) {
            // A control record for applied entries comes before them.
            let mut need = Need { lengths: vec![self.store.inline_max(&[])], ..Need::default() };
            for changes in first {
                let begin = need.lengths.len();
                self.add_need(&mut need, changes)?;
                self.keep_together(&mut need, begin);
            }
            let purpose = if need.has_puts { purpose_of(true) } else { Purpose::Delete };
            match self.look_for_room(&need, purpose, (&mut patience, true)) {
                Ok(()) => break,
                Err(Error::NoSpace { .. } | Error::Busy) => count /= 2,
                Err(error) => return Err(error),
            }
        }
        Ok(count.max(least))
    }

    /// The records of an entry begin a page of their own if they do not fit the rest of the open one.
    fn keep_together(&self, need: &mut Need<'_>, begin: usize) {
        let page = self.page_max();
        let len: usize = need.lengths.iter().skip(begin).sum();
        if len <= page {
            need.lengths.truncate(begin);
            need.lengths.push(len);
        } else {
            need.lengths.insert(begin, page);
        }
    }

    /// Bytes of records that fit a page.
    fn page_max(&self) -> usize {
        self.store.volume.space.page_size() as usize - PAGE_END
    }

    /// Adds the space that an entry of these changes needs.
    fn add_need<'c>(&self, need: &mut Need<'c>, changes: &'c Batch) -> Result<()> {
        let store = &self.store;
        for change in changes.changes() {
            let (key, value_len) = (change.key(), change.value().map_or(0, <[u8]>::len));
            store.check_lengths(key, value_len)?;
            need.has_puts |= change.value().is_some();
            if value_len > store.inline_max(key) {
                need.chains += store.volume.chain_pages(value_len);
            }
            let len = Change { change, prepared: None }.len().min(store.inline_max(&[]));
            need.lengths.push(len);
            need.keys.push(key);
        }
        let closing = store.map.read().log().ok_or_else(no_log)?.closing_len(ENTRY_HEADER_MAX);
        need.lengths.push(closing);
        Ok(())
    }

    fn look_for_room(
        &self,
        need: &Need<'_>,
        purpose: Purpose,
        (patience, waits): (&mut Patience, bool),
    ) -> Result<()> {
        let store = &self.store;
        let group = Group { lengths: &need.lengths, keys: &need.keys, apart: need.chains };
        let mut rounds = 0;
        loop {
            let mut map = store.map.write();
            // A closed stream gets no page.
            store.check_writable()?;
            let guard = epoch::pin();
            let space = store.space_for(&mut map, &guard, group, purpose)?;
            let is_bounded = !waits || map.is_release_due();
            drop((map, guard));
            match space {
                Space::Found => return Ok(()),
                // The append waits for the syncs.
                Space::Coming(1..) if !waits => return Ok(()),
                Space::Coming(1..) | Space::Wait(1..) if mutant!("mvcc.log.unawaited") => {
                    return Ok(());
                }
                Space::Wait(1..) if !waits && mutant!("mvcc.log.hope") => return Ok(()),
                Space::Wait(1..) if !waits => return Err(Error::Busy),
                Space::Again(_) if is_bounded && rounds == ROUNDS => return Err(Error::Busy),
                Space::Again(_) if is_bounded => rounds += 1,
                space => patience.wait(store, space)?,
            }
        }
    }

    /// The most bytes of records that are asked for one by one ([`LogMap::check_room`]) before they are appended.
    pub fn room_at_once(&self) -> u64 {
        let space = &self.store.volume.space;
        (space.len() / 128).clamp(u64::from(space.page_size()), 1 << 20)
    }

    fn check_next(&self, map: &mut Writing<'_>, timestamp: u64) -> Result<()> {
        self.store.check_writable()?;
        let control = log_of(map)?.control();
        if control.is_installing {
            return Err(Error::Installing);
        }
        let next = control.newest + 1;
        check_range("append an entry", timestamp, (next, next))
    }

    fn append_all(
        &self,
        (timestamp, header): (u64, &[u8]),
        all: &mut [Change<'_>],
        uses_reserve: bool,
    ) -> Result<()> {
        let store = &self.store;
        let closing = store.map.read().log().ok_or_else(no_log)?.closing_len(header.len());
        let lengths = all.iter().map(Change::len).chain([closing]);
        let lengths: Vec<usize> = lengths.collect();
        let keys: Vec<&[u8]> = all.iter().map(|it| it.change.key()).collect();
        let has_puts = all.iter().any(|it| it.change.value().is_some());
        let purpose = match has_puts {
            true => purpose_of(uses_reserve),
            // Without such an entry nothing is committed: the first entry of a leader, or a change of members.
            false if all.is_empty() && uses_reserve => Purpose::Clear,
            false => Purpose::Delete,
        };
        let request = |map: &mut Writing<'_>, guard: &Guard| {
            self.check_next(map, timestamp)?;
            self.room_for(map, guard, (&lengths, &keys), purpose)
        };
        store.with_space(request, |map, guard| {
            let appended = self.append_group(map, guard, (timestamp, header), (all, &keys));
            // The next record would end an incomplete group. There were enough pages: the medium has failed.
            self.stop_if_failed(map, appended)
        })
    }

    fn append_group(
        &self,
        map: &mut Writing<'_>,
        guard: &Guard,
        (timestamp, header): (u64, &[u8]),
        (all, keys): (&mut [Change<'_>], &[&[u8]]),
    ) -> Result<()> {
        let mut parts = Vec::with_capacity(all.len());
        for it in all {
            let (kind, key) = (it.header(timestamp), it.change.key());
            let name = it.prepared.take();
            let value = it.change.value().unwrap_or_default();
            let body = name.as_ref().map_or(value, |it| &it.name);
            let new = self.store.append(map, guard, kind, key, body)?;
            if let Some(it) = name {
                map.stream_mut().adopt_chain(&it.pages);
            }
            self.store.count(kind.kind, key.len() + value.len());
            parts.push(Part { offset: new.offset, len: new.len, is_large: kind.large });
        }
        self.appended.fetch_add(parts.len(), Ordering::Relaxed);
        log_of(map)?.close_entry(timestamp, header, parts, keys)
    }
}

fn purpose_of(uses_reserve: bool) -> Purpose {
    if uses_reserve { Purpose::Overwrite } else { Purpose::Insert }
}
