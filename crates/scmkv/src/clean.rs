//! The cleaner: gives back what dead records occupy.
//!
//! It picks a full page by the paper's cost-benefit rule, copies what lives in it to a log of its
//! own, so that what has once outlived its page keeps company with its like (hot and cold records
//! part), and frees the page. Order:
//!
//! 1. copy the live records, one flush and fence for all of them;
//! 2. group by group, under the lock: if the slot still points at the old record, let it point at
//!    the copy; if it has moved on, a writer won, and the copy is dead at birth;
//! 3. flush the slot of *every* record met, dead ones too, and fence: a writer's flush of a slot
//!    counts only at that writer's next fence, which may never come, and a slot that falls back
//!    must not point into a page that is used again;
//! 4. free the page durably.
//!
//! Writers leave the last pages to the cleaner ([`Store::reserve`]): what lives in a page fits
//! the rest of its open page and one more, so that it always gets on, and as long as any page has
//! dead bytes it gains some.
//!
//! **Tombstones.** A tombstone may go once no page can hold an older record of its key. Records
//! are copied only while they live; so a page that was opened after the tombstone was written
//! cannot hold one. Each tombstone carries the number of page openings at its time (its *birth*),
//! and is dropped when all pages but the one being cleaned were opened later. An expired record
//! becomes a tombstone first. So that tombstones cannot pile up behind a cold page, the oldest
//! page is cleaned, whatever lives in it, when they hold more than a part of the store.

use crate::batch::Run;
use crate::counters::Count;
use crate::get::fragment_offsets;
use crate::index::{GroupLock, Probe, Slot};
use crate::log::{Log, Order};
use crate::page::{self, Element};
use crate::record::{Header, Kind, View};
use crate::store::Store;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::{self, Guard};
use std::sync::atomic::Ordering;

/// The cleaner's own state; whoever holds its mutex cleans.
#[derive(Debug)]
pub(crate) struct Cleaner {
    log: Log,
    /// Bytes of tombstones that were met and kept since the oldest page was last cleaned.
    kept_tombstone_bytes: u64,
}

/// A record that was copied and not yet published.
struct Copy {
    old: u64,
    slot: Slot,
    new: u64,
    header: Header,
    len: u32,
}

impl Cleaner {
    pub(crate) fn new(log: u16) -> Self {
        Self { log: Log::new(log), kept_tombstone_bytes: 0 }
    }

    pub(crate) fn log(&mut self) -> &mut Log {
        &mut self.log
    }
}

impl Store {
    /// Free pages that writers leave to the cleaner.
    pub(crate) fn reserve(&self) -> u32 {
        2
    }

    /// An index page, for a split.
    pub(crate) fn supply_index_page(&self) -> Result<Option<u64>> {
        if let Some(arena) = &self.arena {
            return arena.supply();
        }
        let recovering = self.recovering.load(Ordering::Acquire);
        let page = self.pages.open_index(if recovering { 0 } else { self.reserve() })?;
        Ok(page.map(|page| self.space.start_of(page)))
    }

    /// Dead bytes in full pages, as far as counted.
    pub(crate) fn reclaimable(&self) -> u64 {
        (0..self.pages.len()).filter_map(|page| self.dead_bytes(page)).sum()
    }

    /// Bytes of live records, as far as counted.
    pub(crate) fn live_bytes(&self) -> u64 {
        // Of pages that are being filled this very moment nothing is said: nobody waits for that.
        let logs = self.logs.iter().filter_map(|log| log.try_lock());
        let filling: i64 = logs.map(|log| log.live_bytes()).sum();
        let copied = self.cleaner.try_lock().map_or(0, |cleaner| cleaner.log.live_bytes());
        let counted: i64 = (0..self.pages.len())
            .map(|page| self.pages.cell(page))
            .filter(|cell| cell.kind() == Some(page::Kind::Log))
            .map(|cell| cell.live.load(Ordering::Relaxed))
            .sum();
        (counted + filling + copied).max(0) as u64
    }

    /// Dead bytes of a full log page; none for other pages.
    fn dead_bytes(&self, page: u32) -> Option<u64> {
        let cell = self.pages.cell(page);
        if cell.kind() != Some(page::Kind::Log) {
            return None;
        }
        let length = cell.length.load(Ordering::Acquire);
        let live = cell.live.load(Ordering::Relaxed).max(0);
        (length > 0).then(|| u64::from(length).saturating_sub(live as u64))
    }

    /// Cleans until a writer may go on.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if nothing is left to clean.
    pub(crate) fn clean_for_space(&self, needed: u64) -> Result<()> {
        self.wake();
        let mut cleaner = self.cleaner.lock();
        if self.pages.refresh_free() > self.reserve() {
            return Ok(());
        }
        let mut gained = false;
        // Pages freed wait for readers; several may be needed until one is free.
        for _ in 0..64 {
            match self.clean_one(&mut cleaner, 1)? {
                true => gained = true,
                false => break,
            }
            if self.pages.refresh_free() > self.reserve() {
                return Ok(());
            }
        }
        if gained || self.space.retired_len() > 0 {
            drop(cleaner);
            std::thread::yield_now();
            return Ok(());
        }
        drop(cleaner);
        self.no_space(needed)
    }

    /// Cleans the page that promises most; false if none has `dead_min` dead bytes.
    pub(crate) fn clean_one(&self, cleaner: &mut Cleaner, dead_min: u64) -> Result<bool> {
        let Some(victim) = self.pick(cleaner, dead_min) else { return Ok(false) };
        self.clean_page(cleaner, victim)?;
        Ok(true)
    }

    /// Cost-benefit: (1 - u) * age / (1 + u), by the live part u of a page.
    fn pick(&self, cleaner: &mut Cleaner, dead_min: u64) -> Option<u32> {
        let candidates =
            || (0..self.pages.len()).filter_map(|page| Some((page, self.dead_bytes(page)?)));
        let budget = self.pool_bytes() / 32;
        if cleaner.kept_tombstone_bytes > budget {
            cleaner.kept_tombstone_bytes = 0;
            let birth = |page: u32| self.pages.cell(page).birth.load(Ordering::Acquire);
            return candidates().map(|(page, _)| page).min_by_key(|page| birth(*page));
        }
        let now = self.clock_seconds();
        candidates()
            .filter(|(_, dead)| *dead >= dead_min.max(1))
            .map(|(page, dead)| {
                let cell = self.pages.cell(page);
                let length = f64::from(cell.length.load(Ordering::Acquire));
                let age = f64::from(now.saturating_sub(cell.sealed_at.load(Ordering::Relaxed)) + 1);
                let dead_part = dead as f64 / length;
                (page, dead_part * age / (2.0 - dead_part))
            })
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(page, _)| page)
    }

    pub(crate) fn pool_bytes(&self) -> u64 {
        self.space.len()
    }

    /// Moves what lives in `victim` and frees it.
    fn clean_page(&self, cleaner: &mut Cleaner, victim: u32) -> Result<()> {
        let oldest_other = self.oldest_birth_but(victim);
        let start = self.space.start_of(victim);
        let length = u64::from(self.pages.cell(victim).length.load(Ordering::Acquire));
        let guard = epoch::pin();
        let mut copies = Vec::new();
        let mut first_new = None;
        let mut at = start;
        while at < start + length {
            let view = self.reader().view(&guard, at).ok_or_else(|| Error::Corrupt {
                offset: at,
                what: "a full page has no record here".to_owned(),
            })?;
            self.clean_record(cleaner, &guard, &view, oldest_other, &mut copies, &mut first_new)?;
            at += u64::from(view.len());
        }
        if let Some(first) = first_new {
            cleaner.log.commit(self, first, Order::Strict)?;
        }
        for copy in &copies {
            self.publish_copy(&guard, copy)?;
        }
        self.space.fence().map_err(page::sync_failed)?;
        drop(guard);
        self.pages.free(victim)?;
        self.counters.add(Count::CleanerPages, 1);
        Ok(())
    }

    /// The birth of the oldest log page that is not `victim`.
    fn oldest_birth_but(&self, victim: u32) -> u64 {
        (0..self.pages.len())
            .filter(|page| *page != victim)
            .map(|page| self.pages.cell(page))
            .filter(|cell| cell.kind() == Some(page::Kind::Log))
            .map(|cell| cell.birth.load(Ordering::Acquire))
            .min()
            .unwrap_or(u64::MAX)
    }

    fn clean_record(
        &self,
        cleaner: &mut Cleaner,
        guard: &Guard,
        view: &View<'_>,
        oldest_other: u64,
        copies: &mut Vec<Copy>,
        first_new: &mut Option<u64>,
    ) -> Result<()> {
        match view.header.kind {
            Kind::Commit => self.clean_commit(cleaner, view, first_new),
            Kind::Fragment => {
                // What follows in the log must not be durable before what precedes it.
                if let Some(first) = first_new.take() {
                    cleaner.log.commit(self, first, Order::Strict)?;
                }
                self.clean_fragment(cleaner, guard, view)
            }
            Kind::Put | Kind::Delete => {
                let place = self.place(view.key());
                let held = self.index.lock(place);
                let Some((at, slot)) = self.slot_of(guard, &held, view)? else { return Ok(()) };
                held.flush(at);
                if slot.offset() != view.offset {
                    return Ok(());
                }
                let mut header = Header { batched: false, ..view.header };
                let birth = self.pages.next_birth().to_le_bytes();
                let mut value = view.value();
                if header.kind == Kind::Put && self.is_expired(view)? {
                    header =
                        Header { kind: Kind::Delete, large: false, expires_at: None, ..header };
                    value = &birth;
                    self.counters.add(Count::Expired, 1);
                } else if header.kind == Kind::Delete {
                    let written_at = view.value_word(0).unwrap_or(u64::MAX);
                    if self.may_drop(view, written_at, oldest_other) {
                        self.dropped_tombstones.fetch_max(view.sequence(), Ordering::AcqRel);
                        return held.remove(at);
                    }
                    cleaner.kept_tombstone_bytes += u64::from(view.len());
                }
                drop(held);
                let (new, len) = self.copy(cleaner, &header, view.key(), &[value], first_new)?;
                copies.push(Copy { old: view.offset, slot, new, header, len });
                Ok(())
            }
        }
    }

    fn may_drop(&self, view: &View<'_>, written_at: u64, oldest_other: u64) -> bool {
        written_at <= oldest_other
            && view.sequence() <= self.held_tombstones.load(Ordering::Acquire)
    }

    /// The slot of the key of `view`, under its lock.
    fn slot_of(
        &self,
        guard: &Guard,
        held: &GroupLock<'_>,
        view: &View<'_>,
    ) -> Result<Option<(u64, Slot)>> {
        let probe = held.probe(self.place(view.key()), &mut |slot| {
            Ok(slot.offset() == view.offset || self.record(guard, slot)?.key() == view.key())
        })?;
        Ok(match probe {
            Probe::Found { at, slot } => Some((at, slot)),
            Probe::Vacant { .. } | Probe::Full => None,
        })
    }

    /// Appends a copy to the cleaner's log, not durable yet.
    fn copy(
        &self,
        cleaner: &mut Cleaner,
        header: &Header,
        key: &[u8],
        value: &[&[u8]],
        first_new: &mut Option<u64>,
    ) -> Result<(u64, u32)> {
        let value_len = value.iter().map(|part| part.len()).sum();
        let len = header.record_len(key, value_len);
        if cleaner.log.room() < len {
            if let Some(first) = first_new.take() {
                cleaner.log.commit(self, first, Order::Strict)?;
            }
            if !cleaner.log.make_room(self, len, 0)? {
                return self.no_space(len as u64);
            }
        }
        let appended = cleaner.log.append(self, header, key, value, Order::Strict)?;
        first_new.get_or_insert(appended.offset);
        self.counters.add(Count::CleanerBytes, i64::from(appended.len));
        Ok((appended.offset, appended.len))
    }

    /// Lets the slot point at the copy, if no writer came between.
    fn publish_copy(&self, guard: &Guard, copy: &Copy) -> Result<()> {
        let view = self.reader().view(guard, copy.new).ok_or_else(|| Error::Corrupt {
            offset: copy.new,
            what: "a copy is not where it was written".to_owned(),
        })?;
        let place = self.place(view.key());
        let held = self.index.lock(place);
        let probe = held.probe(place, &mut |slot| Ok(slot.offset() == copy.old))?;
        let Probe::Found { at, slot } = probe else {
            self.add_live(copy.new, -i64::from(copy.len));
            return Ok(());
        };
        let delete = copy.header.kind == Kind::Delete;
        let expires = copy.header.expires_at.is_some();
        held.publish(at, Slot::new(held.signature(place), copy.new, delete, expires))?;
        if let Some(old) = self.reader().view(guard, copy.old) {
            if delete && !copy.slot.is_tombstone() {
                self.account(&held, slot, Some(&old), &copy.header);
            } else if held.is_counted() {
                self.add_live(copy.old, -i64::from(old.len()));
            }
        }
        self.leave_to_census(&held, copy.new, copy.len);
        Ok(())
    }

    /// A commit record lives while another page may hold batched records of it.
    fn clean_commit(
        &self,
        cleaner: &mut Cleaner,
        view: &View<'_>,
        first_new: &mut Option<u64>,
    ) -> Result<()> {
        let here = self.space.page_of(view.offset);
        let needed = Run::decode_all(view.value()).any(|run| {
            let page = self.space.page_of(run.start);
            page != here
                && page < self.pages.len()
                && self.pages.cell(page).kind() == Some(page::Kind::Log)
                && self.pages.cell(page).generation() == run.generation
        });
        if needed {
            let (_, len) = self.copy(cleaner, &view.header, &[], &[view.value()], first_new)?;
            cleaner.log.forget_live(len);
        }
        Ok(())
    }

    /// A fragment lives while the record of its key names it. It is copied, and then a record
    /// that names the copy takes the place of the old one.
    fn clean_fragment(
        &self,
        cleaner: &mut Cleaner,
        guard: &Guard,
        fragment: &View<'_>,
    ) -> Result<()> {
        let place = self.place(fragment.key());
        let owner = |slot: Slot| -> Result<Option<View<'_>>> {
            let view = self.record(guard, slot)?;
            Ok((view.key() == fragment.key()).then_some(view))
        };
        {
            let held = self.index.lock(place);
            let probe = held.probe(place, &mut |slot| Ok(owner(slot)?.is_some()))?;
            let Probe::Found { at, slot } = probe else { return Ok(()) };
            held.flush(at);
            let names = owner(slot)?.is_some_and(|view| {
                view.header.large && fragment_offsets(&view).any(|it| it == fragment.offset)
            });
            if !names {
                return Ok(());
            }
        }
        let (copy, len) = self.copy_durably(cleaner, &fragment.header, fragment)?;
        let room = self.geometry.record_max();
        if !cleaner.log.make_room(self, room, 0)? {
            return self.no_space(room as u64);
        }
        let mut held = self.index.lock(place);
        let probe = held.probe(place, &mut |slot| Ok(owner(slot)?.is_some()))?;
        let moved = match probe {
            Probe::Found { at, slot } => {
                self.rename_fragment(cleaner, guard, &mut held, (at, slot), fragment.offset, copy)?
            }
            Probe::Vacant { .. } | Probe::Full => false,
        };
        if !moved || !held.is_counted() {
            self.add_live(copy, -i64::from(len));
        }
        if moved && held.is_counted() {
            self.add_live(fragment.offset, -i64::from(fragment.len()));
        }
        Ok(())
    }

    fn copy_durably(
        &self,
        cleaner: &mut Cleaner,
        header: &Header,
        view: &View<'_>,
    ) -> Result<(u64, u32)> {
        let mut first = None;
        let copied = self.copy(cleaner, header, view.key(), &[view.value()], &mut first)?;
        if let Some(first) = first {
            cleaner.log.commit(self, first, Order::Strict)?;
        }
        Ok(copied)
    }

    /// Writes the record of a large value anew, `from` replaced by `to` among its fragments.
    fn rename_fragment(
        &self,
        cleaner: &mut Cleaner,
        guard: &Guard,
        held: &mut GroupLock<'_>,
        (at, slot): (u64, Slot),
        from: u64,
        to: u64,
    ) -> Result<bool> {
        let old = self.record(guard, slot)?;
        if !old.header.large || !fragment_offsets(&old).any(|offset| offset == from) {
            return Ok(false);
        }
        let mut list = old.value().get(..8).unwrap_or_default().to_vec();
        for offset in fragment_offsets(&old) {
            let named = if offset == from { to } else { offset };
            list.extend_from_slice(&named.to_le_bytes());
        }
        // A later version: whoever reads the log must prefer this list to the old one. What
        // callers see as the sequence stays.
        let version = held.next_version(self.version_base().max(old.header.version));
        let sequence = Some(old.sequence());
        let header = Header { batched: false, version, sequence, ..old.header };
        let appended = cleaner.log.append(self, &header, old.key(), &[&list], Order::Strict)?;
        cleaner.log.commit(self, appended.offset, Order::Strict)?;
        let new = Slot::new(slot.signature(), appended.offset, false, slot.expires());
        held.publish(at, new)?;
        if held.is_counted() {
            self.add_live(old.offset, -i64::from(old.len()));
        } else {
            self.add_live(appended.offset, -i64::from(appended.len));
        }
        Ok(true)
    }

    /// True if `element` is a log page.
    pub(crate) fn is_log(element: &Element) -> bool {
        element.kind == page::Kind::Log
    }
}
