//! Moving the live records of a page: copies, and the slots that are to point at them.

use crate::clean::commits::CommitCopy;
use crate::clean::overflow::OverflowCopy;
use crate::clean::{Cleaner, CleanerState};
use crate::table::counters::Count;
use crate::table::hash::Place;
use crate::table::index::{GroupLock, Probe, Slot};
use crate::table::log::{Appended, Order};
use crate::table::page;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind, View};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// A page that is being cleaned.
pub(crate) struct Moving<'g> {
    /// The birth of the oldest other log page.
    pub(super) oldest_other: u64,
    /// Where the part of the cleaner's log begins that is not durable yet.
    unfenced: Option<u64>,
    pub(crate) copies: Vec<Copy>,
    pub(crate) overflow: Vec<OverflowCopy<'g>>,
    pub(super) commits: Vec<CommitCopy>,
    /// Slots to flush before the page is freed. Not one by one: the next locked instruction would
    /// wait for it.
    pub(crate) slots: Vec<u64>,
}

/// How many records ahead the lines of the index are prefetched.
const AHEAD: usize = 24;

/// How many records ahead the records that a lookup will read are prefetched.
const NEAR: usize = 12;

/// A record that was copied and not yet published.
pub(crate) struct Copy {
    place: Place,
    old: u64,
    old_len: u32,
    slot: Slot,
    new: Appended,
    header: Header,
}

impl Moving<'_> {
    pub(crate) fn new(oldest_other: u64) -> Self {
        Self {
            oldest_other,
            unfenced: None,
            copies: Vec::new(),
            overflow: Vec::new(),
            commits: Vec::new(),
            slots: Vec::new(),
        }
    }
}

impl Cleaner {
    pub(crate) fn move_page<'g>(
        &'g self,
        state: &mut CleanerState,
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
                let view = self.view(guard, at).ok_or_else(|| Error::Corrupt {
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
                // A copy gets a new checksum: damage must not be copied.
                _ if !mutant!("scmkv.clean.checksum")
                    && self.is_dead_damage(generation, &view)? => {}
                Kind::Commit => self.clean_commit(state, &view, moving)?,
                Kind::Overflow => self.clean_overflow(state, guard, &view, moving)?,
                Kind::Put | Kind::Delete => {
                    self.clean_record(state, guard, (&view, place), moving)?;
                }
                // Lost records are not kept for ever, and nodes belong to another engine.
                Kind::Lost | Kind::Node | Kind::Entry => {}
            }
        }
        if !mutant!("scmkv.clean.publish_first") {
            self.commit_copies(state, moving)?;
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
        let moved = owned.try_for_each(|copies| self.move_owner(state, guard, copies, moving));
        if moved.is_err() {
            // The copies of the owner that failed are dead already.
            owned.flatten().for_each(|copy| self.add_live(copy.new, -i64::from(copy.old.len())));
        }
        moved?;
        if !mutant!("scmkv.clean.slot_flush") {
            moving.slots.iter().for_each(|at| self.index.flush_line(*at));
        }
        self.vouch(state, moving)?;
        if mutant!("scmkv.clean.fence") {
            return Ok(());
        }
        self.space.fence().map_err(page::sync_failed)
    }

    /// Appends an empty commit record, which shows that all records before it were durable.
    /// Otherwise damage in the last copies would be taken for the end of the log once the page that
    /// they came from is gone.
    fn vouch(&self, state: &mut CleanerState, moving: &mut Moving<'_>) -> Result<()> {
        let header = Header { kind: Kind::Commit, ..Header::put(0) };
        if state.log.room() < header.record_len(&[], 0) {
            return Ok(());
        }
        // It counts as long as its page exists: a page is not worth cleaning for it alone, or
        // cleaning would never end.
        let appended = self.append_copy(state, &header, &[], &[], moving)?;
        self.count_commit(state, appended);
        self.commit_copies(state, moving)
    }

    /// Gives up the copies that are not published. They are made durable all the same: a log must
    /// hold nothing that is not durable behind which other writers append.
    pub(crate) fn abandon(&self, state: &mut CleanerState, moving: &mut Moving<'_>) -> Result<()> {
        for Copy { new, .. } in moving.copies.drain(..) {
            self.add_live(new.offset, -i64::from(new.len));
        }
        for CommitCopy { appended, .. } in moving.commits.drain(..) {
            self.add_toll(appended.offset, -i64::from(appended.len));
        }
        for copy in moving.overflow.drain(..) {
            self.add_live(copy.new, -i64::from(copy.old.len()));
        }
        self.commit_copies(state, moving)
    }

    /// Makes the copies so far durable.
    pub(crate) fn commit_copies(
        &self,
        state: &mut CleanerState,
        moving: &mut Moving<'_>,
    ) -> Result<()> {
        let Some(first) = moving.unfenced.take() else { return Ok(()) };
        state.log.commit(self, first, Order::Strict)
    }

    /// Room for a copy of `len` bytes.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no page is free.
    pub(crate) fn room_for_copy(
        &self,
        state: &mut CleanerState,
        len: usize,
        moving: &mut Moving<'_>,
    ) -> Result<()> {
        if state.log.room() >= len {
            return Ok(());
        }
        self.commit_copies(state, moving)?;
        if !state.log.make_room(self, len, 0)? {
            return self.no_space(len as u64);
        }
        state.opened = state.opened.wrapping_add(1);
        Ok(())
    }

    /// Appends a copy to the cleaner's log, not durable yet. Room was made.
    pub(crate) fn append_copy(
        &self,
        state: &mut CleanerState,
        header: &Header,
        key: &[u8],
        value: &[u8],
        moving: &mut Moving<'_>,
    ) -> Result<Appended> {
        // Through the caches, and flushed together: otherwise each lock that follows would wait for
        // the medium.
        let appended = state.log.append(self, header, key, &[value], Order::Staged)?;
        moving.unfenced.get_or_insert(appended.offset);
        self.counters.add(Count::CleanerBytes, i64::from(appended.len));
        Ok(appended)
    }

    pub(crate) fn clean_record(
        &self,
        state: &mut CleanerState,
        guard: &Guard,
        (view, place): (&View<'_>, Place),
        moving: &mut Moving<'_>,
    ) -> Result<()> {
        loop {
            let held = self.index.lock(place);
            let slot = self.slot_of(guard, &held, (view, place))?;
            let Some((at, slot)) = slot else {
                // A process that was killed while it dropped the key's tombstone may have left that in the caches:
                // its slot may have been anywhere in the group.
                if !mutant!("scmkv.clean.slotless") {
                    moving.slots.extend(held.lines(place));
                }
                return Ok(());
            };
            if slot.offset() != view.offset {
                moving.slots.push(at);
                return Ok(());
            }
            // No copy is longer than its original: a tombstone has no expiry.
            if state.log.room() < view.len() as usize {
                drop(held);
                self.room_for_copy(state, view.len() as usize, moving)?;
                continue;
            }
            let mut header = Header { batched: false, ..view.header };
            let birth = self.pages.next_birth().to_le_bytes();
            let mut value = view.value();
            if header.kind == Kind::Put && self.is_expired(view)? {
                header = Header { kind: Kind::Delete, large: false, expires_at: None, ..header };
                value = &birth;
            } else if header.kind == Kind::Delete {
                let written_at = view.value_word(0).unwrap_or(u64::MAX);
                if self.may_drop(view, written_at, moving.oldest_other) {
                    moving.slots.push(at);
                    return self.drop_tombstone(&held, at, view);
                }
                state.kept_tombstone_bytes += u64::from(view.len());
            }
            let new = self.append_copy(state, &header, view.key(), value, moving)?;
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
    pub(super) fn slot_of(
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

    /// Lets the slot point at the copy, unless a writer has changed it meanwhile.
    pub(crate) fn publish_copy(
        &self,
        guard: &Guard,
        copy: &Copy,
        slots: &mut Vec<u64>,
    ) -> Result<()> {
        let (place, Appended { offset, len }) = (copy.place, copy.new);
        let old = || {
            self.view(guard, copy.old).ok_or_else(|| Error::Corrupt {
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
            // The writer that won flushes the slot with its next record, which may never come.
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
            // Before it leaves the records: who counts those first, misses none.
            self.counters.add(Count::Expired, 1);
            self.account(&held, slot, Some(&old()?), &copy.header);
            self.count_tombstone(&held, len);
        } else if held.is_counted() {
            self.add_live(copy.old, -i64::from(copy.old_len));
        }
        self.leave_to_census(&held, offset, len);
        Ok(())
    }
}
