//! The cleaner: gives back what dead records occupy.
//!
//! It [picks](crate::clean::victim) a full page, copies what lives in it to a log of its own, so that
//! what has once outlived its page keeps company with its like (hot and cold records part), and
//! frees the page. Order:
//!
//! 1. copy the live records, each under the lock of its group, one flush and fence for all;
//! 2. group by group, under the lock: if the slot still points at the old record, let it point at
//!    the copy; if it has moved on, a writer won, and the copy is dead at birth;
//! 3. flush the slot of *every* record met, dead ones too, and fence: a writer flushes a slot with
//!    its next record and fences it then, which may never come, and a slot that falls back must not
//!    point into a page that is used again;
//! 4. free the page durably, once all that replaced its records is durable: a `relaxed` writer's
//!    record may not be yet, and until then the page is *emptied* and stays.
//!
//! How pages are made free for a writer, and what is left to the cleaner itself:
//! [`reserve`](crate::clean::reserve). Large values: [`overflow`](crate::write::overflow).
//!
//! **Tombstones.** A tombstone may go once no page can hold an older record of its key. Records
//! are copied only while they live; so a page that was opened after the tombstone was written
//! cannot hold one. Each tombstone carries the number of page openings at its time (its *birth*),
//! and is dropped when all pages but the one being cleaned were opened later. That is why a copy
//! is appended under the lock of its group, in a page that was open before: a delete that comes
//! between copy and publication is then younger than the page of the copy that lost. An expired
//! record becomes a tombstone first. So that tombstones cannot pile up behind a cold page, the
//! oldest page is cleaned, whatever lives in it, when they hold more than a part of the store.
//!
//! **Commit records** of batches: [`commits`].

use crate::store::Store;
use crate::table::counters::Count;
use crate::table::hash::Place;
use crate::table::index::{GroupLock, Probe, Slot};
use crate::table::log::{Appended, Log, Order};
use crate::table::page;
use crate::write::overflow::OverflowCopy;
use commits::CommitCopy;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind, View};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

pub(crate) mod appraisal;
pub(crate) mod census;
mod commits;
pub(crate) mod dead_damage;
pub(crate) mod reindex;
pub(crate) mod reserve;
#[cfg(test)]
mod tests;
pub(crate) mod unindexed;
pub(crate) mod victim;

/// The cleaner's own state; whoever holds its mutex cleans.
#[derive(Debug)]
pub(crate) struct Cleaner {
    log: Log,
    /// Bytes of tombstones that were met and kept since the oldest page was last cleaned.
    pub(crate) kept_tombstone_bytes: u64,
    /// Pages that the log has taken.
    opened: u32,
    /// Pages in which nothing lives any more.
    emptied: Vec<Emptied>,
    commits: Vec<CommitCopy>,
}

/// A page that is freed as soon as the logs whose bit is set have settled.
#[derive(Debug, Clone, Copy)]
struct Emptied {
    page: u32,
    unsettled: u64,
}

/// A page that is being cleaned.
pub(crate) struct Moving<'g> {
    /// The birth of the oldest other log page.
    oldest_other: u64,
    /// Where the cleaner's log begins that is not durable yet.
    unfenced: Option<u64>,
    copies: Vec<Copy>,
    pub(crate) overflow: Vec<OverflowCopy<'g>>,
    commits: Vec<CommitCopy>,
    /// Slots to flush before the page is freed. Not one by one: the next locked instruction would wait for it.
    slots: Vec<u64>,
}

/// So many records ahead the lines of the index are asked for.
const AHEAD: usize = 24;

/// And so many ahead the records that a lookup will come to.
const NEAR: usize = 12;

/// A record that was copied and not yet published.
struct Copy {
    place: Place,
    old: u64,
    old_len: u32,
    slot: Slot,
    new: Appended,
    header: Header,
}

impl Cleaner {
    pub(crate) fn new(log: u16) -> Self {
        Self {
            log: Log::new(log),
            kept_tombstone_bytes: 0,
            opened: 0,
            emptied: Vec::new(),
            commits: Vec::new(),
        }
    }

    pub(crate) fn log(&mut self) -> &mut Log {
        &mut self.log
    }

    /// True if a page waits to be freed.
    pub(crate) fn has_emptied(&self, page: u32) -> bool {
        self.emptied.iter().any(|emptied| emptied.page == page)
    }

    /// Pages that wait to be freed.
    pub(crate) fn emptied_len(&self) -> u32 {
        self.emptied.len() as u32
    }
}

impl Store {
    /// Cleans the page that promises most: the bytes gained. None if no page gains `gain_min` bytes.
    pub(crate) fn clean_one(&self, cleaner: &mut Cleaner, gain_min: u64) -> Result<Option<i64>> {
        self.free_emptied(cleaner, None)?;
        self.pages.refresh_free();
        let mut victim = None;
        if cleaner.kept_tombstone_bytes > self.tombstone_budget() {
            cleaner.kept_tombstone_bytes = 0;
            victim = self.oldest(cleaner, None)?;
        }
        let Some(victim) = victim.or_else(|| self.pick(cleaner, gain_min)) else {
            return Ok(None);
        };
        let gained = self.clean_page(cleaner, victim)?;
        self.free_emptied(cleaner, None)?;
        Ok(Some(gained))
    }

    /// Moves what lives in `victim` and empties it; the bytes gained, below 0 if it took more
    /// than it gave.
    pub(crate) fn clean_page(&self, cleaner: &mut Cleaner, victim: u32) -> Result<i64> {
        self.clear_doubt(cleaner)?;
        let (opened, room) = (cleaner.opened, cleaner.log.room());
        let mut commits = {
            let guard = epoch::pin();
            let mut moving = Moving {
                oldest_other: self.oldest_birth_but(victim),
                unfenced: None,
                copies: Vec::new(),
                overflow: Vec::new(),
                commits: Vec::new(),
                slots: Vec::new(),
            };
            if let Err(error) = self.move_page(cleaner, &guard, victim, &mut moving) {
                self.abandon(cleaner, &mut moving)?;
                if matches!(error, Error::ChecksumMismatch { .. } | Error::Corrupt { .. }) {
                    // It stays as it is, for `verify` to name, and is not picked again, unless it is
                    // the index that is damaged.
                    self.keep(victim);
                    self.doubt_index();
                }
                return Err(error);
            }
            moving.commits
        };
        if !self.may_be_freed(cleaner, victim)? {
            cleaner.commits.append(&mut commits);
            return Ok(0);
        }
        // Commit records that lay here have been copied again.
        cleaner.commits.retain(|commit| self.space.page_of(commit.appended.offset) != victim);
        cleaner.commits.append(&mut commits);
        self.pages.cell(victim).pin();
        let waits = self.non_strict.load(Ordering::Acquire) && !mutant!("scmkv.clean.unsettled");
        let unsettled = if waits { u64::MAX } else { 0 };
        cleaner.emptied.push(Emptied { page: victim, unsettled });
        self.free_emptied(cleaner, None)?;
        self.counters.add(Count::CleanerPages, 1);
        let page = i64::from(self.geometry.page_size);
        let pages = 1 - i64::from(cleaner.opened.wrapping_sub(opened));
        Ok(pages * page + cleaner.log.room() as i64 - room as i64)
    }

    fn move_page<'g>(
        &'g self,
        cleaner: &mut Cleaner,
        guard: &'g Guard,
        victim: u32,
        moving: &mut Moving<'g>,
    ) -> Result<()> {
        let start = self.space.start_of(victim);
        let length = self.pages.cell(victim).length.load(Ordering::Acquire);
        let generation = self.pages.cell(victim).generation();
        let mut at = start;
        let mut ahead: VecDeque<(View<'_>, Place)> = VecDeque::with_capacity(AHEAD);
        loop {
            while ahead.len() < AHEAD && at < start + u64::from(length) {
                let view = self.reader().view(guard, at).ok_or_else(|| Error::Corrupt {
                    offset: at,
                    what: "a full page has no record here".to_owned(),
                })?;
                let place = self.place(view.key());
                self.index.prefetch_to_write(place);
                ahead.push_back((view, place));
                at += u64::from(view.len());
            }
            if let Some((_, place)) = ahead.get(AHEAD - NEAR) {
                self.prefetch_replaced_at(*place);
            }
            let Some((view, place)) = ahead.pop_front() else { break };
            match view.header.kind {
                // A copy is sealed anew: damage must not be copied.
                _ if !mutant!("scmkv.clean.checksum")
                    && self.is_dead_damage(generation, &view)? => {}
                Kind::Commit => self.clean_commit(cleaner, &view, moving)?,
                Kind::Overflow => self.clean_overflow(cleaner, guard, &view, moving)?,
                Kind::Put | Kind::Delete => {
                    self.clean_record(cleaner, guard, (&view, place), moving)?;
                }
                // What was lost is not kept for ever.
                Kind::Lost => {}
            }
        }
        if !mutant!("scmkv.clean.publish_first") {
            self.commit_copies(cleaner, moving)?;
        }
        while let Some(copy) = moving.copies.pop() {
            if let Some(at) = moving.copies.len().checked_sub(NEAR) {
                self.index.prefetch_to_write(moving.copies[at].place);
            }
            self.publish_copy(guard, &copy, &mut moving.slots)?;
        }
        let mut overflow = std::mem::take(&mut moving.overflow);
        overflow.sort_by_key(|copy| copy.old.key());
        let mut owned = overflow.chunk_by(|a, b| a.old.key() == b.old.key());
        let moved = owned.try_for_each(|copies| self.move_owner(cleaner, guard, copies, moving));
        if moved.is_err() {
            // Those of the owner that failed are dead already.
            owned.flatten().for_each(|copy| self.add_live(copy.new, -i64::from(copy.old.len())));
        }
        moved?;
        if !mutant!("scmkv.clean.slot_flush") {
            moving.slots.iter().for_each(|at| self.index.flush_line(*at));
        }
        self.vouch(cleaner, moving)?;
        if mutant!("scmkv.clean.fence") {
            return Ok(());
        }
        self.space.fence().map_err(page::sync_failed)
    }

    /// Appends a commit record of nothing, which says that all before it was durable: so that
    /// damage in the last copies is not taken for the end of the log once the page that they came
    /// from is gone.
    fn vouch(&self, cleaner: &mut Cleaner, moving: &mut Moving<'_>) -> Result<()> {
        let header = Header { kind: Kind::Commit, ..Header::put(0) };
        if cleaner.log.room() < header.record_len(&[], 0) {
            return Ok(());
        }
        // It counts for as long as its page does: a page is not worth cleaning for it alone, or
        // cleaning would never end.
        let appended = self.append_copy(cleaner, &header, &[], &[], moving)?;
        self.count_commit(cleaner, appended);
        self.commit_copies(cleaner, moving)
    }

    /// Gives up what was copied and not published. It is made durable all the same: nothing that
    /// is not may stay in a log behind which others append.
    fn abandon(&self, cleaner: &mut Cleaner, moving: &mut Moving<'_>) -> Result<()> {
        for Copy { new, .. } in moving.copies.drain(..) {
            self.add_live(new.offset, -i64::from(new.len));
        }
        for CommitCopy { appended, .. } in moving.commits.drain(..) {
            self.add_toll(appended.offset, -i64::from(appended.len));
        }
        for copy in moving.overflow.drain(..) {
            self.add_live(copy.new, -i64::from(copy.old.len()));
        }
        self.commit_copies(cleaner, moving)
    }

    /// Makes durable what was copied so far.
    pub(crate) fn commit_copies(
        &self,
        cleaner: &mut Cleaner,
        moving: &mut Moving<'_>,
    ) -> Result<()> {
        let Some(first) = moving.unfenced.take() else { return Ok(()) };
        cleaner.log.commit(self, first, Order::Strict)
    }

    /// Room for a copy of `len` bytes.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no page is free.
    pub(crate) fn room_for_copy(
        &self,
        cleaner: &mut Cleaner,
        len: usize,
        moving: &mut Moving<'_>,
    ) -> Result<()> {
        if cleaner.log.room() >= len {
            return Ok(());
        }
        self.commit_copies(cleaner, moving)?;
        if !cleaner.log.make_room(self, len, 0)? {
            return self.no_space(len as u64);
        }
        cleaner.opened = cleaner.opened.wrapping_add(1);
        Ok(())
    }

    /// Appends a copy to the cleaner's log, not durable yet. Room was made.
    pub(crate) fn append_copy(
        &self,
        cleaner: &mut Cleaner,
        header: &Header,
        key: &[u8],
        value: &[u8],
        moving: &mut Moving<'_>,
    ) -> Result<Appended> {
        // Through the caches, and flushed together: else each lock that follows would wait for the medium.
        let appended = cleaner.log.append(self, header, key, &[value], Order::Staged)?;
        moving.unfenced.get_or_insert(appended.offset);
        self.counters.add(Count::CleanerBytes, i64::from(appended.len));
        Ok(appended)
    }

    fn clean_record(
        &self,
        cleaner: &mut Cleaner,
        guard: &Guard,
        (view, place): (&View<'_>, Place),
        moving: &mut Moving<'_>,
    ) -> Result<()> {
        loop {
            let held = self.index.lock(place);
            let slot = self.slot_of(guard, &held, (view, place))?;
            let Some((at, slot)) = slot else { return Ok(()) };
            if slot.offset() != view.offset {
                moving.slots.push(at);
                return Ok(());
            }
            // No copy is longer than what it is a copy of: a tombstone has no expiry.
            if cleaner.log.room() < view.len() as usize {
                drop(held);
                self.room_for_copy(cleaner, view.len() as usize, moving)?;
                continue;
            }
            let mut header = Header { batched: false, ..view.header };
            let birth = self.pages.next_birth().to_le_bytes();
            let mut value = view.value();
            if header.kind == Kind::Put && self.is_expired(view)? {
                header = Header { kind: Kind::Delete, large: false, expires_at: None, ..header };
                value = &birth;
                self.counters.add(Count::Expired, 1);
            } else if header.kind == Kind::Delete {
                let written_at = view.value_word(0).unwrap_or(u64::MAX);
                if self.may_drop(view, written_at, moving.oldest_other) {
                    moving.slots.push(at);
                    return self.drop_tombstone(&held, at, view);
                }
                cleaner.kept_tombstone_bytes += u64::from(view.len());
            }
            let new = self.append_copy(cleaner, &header, view.key(), value, moving)?;
            let (old, old_len) = (view.offset, view.len());
            moving.copies.push(Copy { place, old, old_len, slot, new, header });
            return Ok(());
        }
    }

    fn may_drop(&self, view: &View<'_>, written_at: u64, oldest_other: u64) -> bool {
        (written_at <= oldest_other || mutant!("scmkv.clean.tombstone"))
            && (view.sequence() <= self.held_tombstones.load(Ordering::Acquire)
                || mutant!("scmkv.clean.held_tombstone"))
    }

    fn drop_tombstone(&self, held: &GroupLock<'_>, at: u64, view: &View<'_>) -> Result<()> {
        self.dropped_tombstones.fetch_max(view.sequence(), Ordering::AcqRel);
        held.remove(at)?;
        self.drop_live(held, view);
        Ok(())
    }

    /// The slot of the key of `view`, under its lock.
    fn slot_of(
        &self,
        guard: &Guard,
        held: &GroupLock<'_>,
        (view, place): (&View<'_>, Place),
    ) -> Result<Option<(u64, Slot)>> {
        let probe = held.probe(place, &mut |slot| {
            Ok(slot.offset() == view.offset || self.record(guard, slot)?.key() == view.key())
        })?;
        Ok(match probe {
            Probe::Found { at, slot } => Some((at, slot)),
            Probe::Vacant { .. } | Probe::Full => None,
        })
    }

    /// Lets the slot point at the copy, if no writer came between.
    fn publish_copy(&self, guard: &Guard, copy: &Copy, slots: &mut Vec<u64>) -> Result<()> {
        let (place, Appended { offset, len }) = (copy.place, copy.new);
        let old = || {
            self.reader().view(guard, copy.old).ok_or_else(|| Error::Corrupt {
                offset: copy.old,
                what: "a record that was copied is not there any more".to_owned(),
            })
        };
        let held = self.index.lock(place);
        let is_old = |slot: Slot| {
            Ok(slot.offset() == copy.old
                || mutant!("scmkv.clean.overwrite_racing_slot")
                    && self.record(guard, slot)?.key() == old()?.key())
        };
        let Probe::Found { at, slot } = held.probe(place, &mut { is_old })? else {
            // The writer that won flushes the slot with its next record, perhaps never.
            if let Some((at, _)) = self.slot_of(guard, &held, (&old()?, place))? {
                slots.push(at);
            }
            self.add_live(offset, -i64::from(len));
            return Ok(());
        };
        let delete = copy.header.kind == Kind::Delete;
        let expires = copy.header.expires_at.is_some();
        slots.push(at);
        held.publish(at, Slot::new(held.signature(place), offset, delete, expires))?;
        if delete && !copy.slot.is_tombstone() {
            self.account(&held, slot, Some(&old()?), &copy.header);
            self.count_tombstone(&held, len);
        } else if held.is_counted() {
            self.add_live(copy.old, -i64::from(copy.old_len));
        }
        self.leave_to_census(&held, offset, len);
        Ok(())
    }

    /// Frees the emptied pages for which no log has anything unsettled any more. Logs that are
    /// not in use are settled for it; `own` is the number of one that the caller holds and has
    /// settled.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn free_emptied(&self, cleaner: &mut Cleaner, own: Option<u16>) -> Result<()> {
        if cleaner.emptied.is_empty() {
            return Ok(());
        }
        let waited_for = cleaner.emptied.iter().fold(0, |logs, emptied| logs | emptied.unsettled);
        // Bits of logs that there are not.
        let mut settled = u64::MAX.checked_shl(self.logs.len() as u32).unwrap_or(0);
        for (number, log) in self.logs.iter().enumerate() {
            let bit = 1 << number;
            if own == Some(number as u16) {
                settled |= bit;
            } else if waited_for & bit != 0
                && let Some(mut log) = log.try_lock()
            {
                if log.is_unsettled() {
                    log.settle(self)?;
                }
                settled |= bit;
            }
        }
        let mut freed = false;
        for mut emptied in std::mem::take(&mut cleaner.emptied) {
            emptied.unsettled &= !settled;
            if emptied.unsettled == 0 {
                self.pages.cell(emptied.page).unpin();
                self.pages.free(emptied.page)?;
                freed = true;
            } else {
                cleaner.emptied.push(emptied);
            }
        }
        if freed {
            self.forget_commits(cleaner);
        }
        Ok(())
    }
}
