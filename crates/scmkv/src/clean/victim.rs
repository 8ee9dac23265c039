//! Which page to clean.
//!
//! The paper's cost-benefit rule: of the pages with dead bytes the one with the greatest
//! `(1 - u) * age / (1 + u)`, where `u` is the live part of the page. That includes the bytes that must be
//! written elsewhere when the page is cleaned: the owners of its overflow records
//! ([`overflow`](crate::write::overflow)) are the page's *toll*.
//!
//! Not every page may be cleaned: not one that is being filled, and not one that is *pinned*,
//! because it holds overflow records that have no owner yet, or because its live records have been
//! moved already and it waits until the records that replaced them are durable.
//!
//! Tombstones live until no page is older than they are. So when the cleaner has copied more of
//! them than a part of the store, or when no other page promises a gain, it takes the *oldest*
//! page, however much of it lives. If that is the open page of an idle thread, it is sealed. So are the open
//! pages of idle threads when a writer needs the dead bytes in them.
//!
//! A writer that waits for pages takes a page that gains an eighth of a page at least, as long as there is one.
//! And the age is one hour at most.

use crate::clean::{Cleaner, CleanerState};
use crate::table::counters::Count;
#[cfg(test)]
use crate::table::counters::comparisons;
use crate::table::log::{Appended, Log};
use crate::table::page::{self, Cell};
use coreplane_engine::Result;
use coreplane_pmem::mutant;
use std::sync::atomic::Ordering;

/// Seconds after which a page becomes no older. What has lived for an hour will live: a greater age says nothing more
/// about it, and would outweigh any number of dead bytes.
const AGE_MAX: u32 = 3600;

/// What one pass over the pages shows.
#[derive(Debug, Default)]
struct Promises {
    /// Dead bytes in full pages, as far as counted.
    reclaimable: u64,
    /// The page that promises most, and what it promises: among all, and among the worthy ones.
    best: Option<(u32, f64)>,
    worthy: Option<(u32, f64)>,
}

impl Promises {
    /// The page that promises most among the worthy ones, or among all if there is none.
    fn page(&self) -> Option<u32> {
        self.worthy.or(self.best).map(|(page, _)| page)
    }
}

impl Cleaner {
    /// No slot names a commit record: it counts as toll of its page, not as live bytes.
    pub(crate) fn count_commit(&self, state: &mut CleanerState, appended: Appended) {
        state.log().forget_live(appended.len);
        self.add_toll(appended.offset, i64::from(appended.len));
    }

    pub(crate) fn add_toll(&self, offset: u64, bytes: i64) {
        let cell = self.pages.cell(self.space.page_of(offset));
        cell.toll.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Dead bytes in full pages, as far as counted.
    pub(crate) fn reclaimable(&self) -> u64 {
        (0..self.pages.len()).filter_map(|page| self.gain(page)).sum()
    }

    /// Bytes of live records, as far as counted.
    pub(crate) fn live_bytes(&self) -> u64 {
        // Pages that are being filled at this moment are left out: this does not wait for their
        // logs.
        let logs = self.logs.iter().filter_map(|log| log.try_lock());
        let filling: i64 = logs.map(|log| log.live_bytes()).sum();
        let copied = self.cleaner_state.try_lock().map_or(0, |mut state| state.log().live_bytes());
        let counted: i64 =
            self.log_pages().map(|page| self.pages.cell(page).live.load(Ordering::Relaxed)).sum();
        (counted + filling + copied).max(0) as u64
    }

    /// Bytes of tombstones that are worth cleaning a page without dead records.
    pub(crate) fn tombstone_budget(&self) -> u64 {
        self.pool_bytes() / 32
    }

    /// The bytes that cleaning a page gains; none if it may not be cleaned.
    fn gain(&self, page: u32) -> Option<u64> {
        #[cfg(test)]
        comparisons::note();
        let cell = self.pages.cell(page);
        if cell.kind() != Some(page::Kind::Log) {
            return None;
        }
        // In this order: the pins of a page are set while it is open.
        let length = cell.length.load(Ordering::Acquire);
        if length == 0 || cell.is_pinned() {
            return None;
        }
        Some(match copied_bytes(cell) {
            0 if !mutant!("scmkv.clean.whole") => u64::from(self.geometry.page_size),
            copied => (u64::from(length) + self.unused(length)).saturating_sub(copied),
        })
    }

    /// Bytes of a sealed page of this length that were never written, if it was sealed early: a
    /// store that is opened, written to a little and closed again has many such pages. The unused
    /// rest of any other page is not worth the copying; that of a page without live records comes with it.
    fn unused(&self, length: u32) -> u64 {
        let unused = u64::from(self.geometry.page_size.saturating_sub(length));
        if unused >= u64::from(self.geometry.page_size) / 8 { unused } else { 0 }
    }

    /// Dead bytes in the page that a log is filling.
    fn dead_in_open(&self, log: &Log) -> u64 {
        log.tail().map_or(0, |(page, tail)| {
            let cell = self.pages.cell(page);
            let live = log.live_bytes() + cell.live.load(Ordering::Relaxed);
            let toll = cell.toll.load(Ordering::Relaxed);
            u64::from(tail).saturating_sub((live + toll).max(0) as u64)
        })
    }

    /// The page that promises most, if any gains `gain_min` bytes.
    pub(crate) fn pick(&self, state: &mut CleanerState, gain_min: u64) -> Option<u32> {
        self.promises(state, gain_min).worthy.map(|(page, _)| page)
    }

    /// What the pages promise, with those that gain `gain_min` bytes as the worthy ones.
    fn promises(&self, state: &mut CleanerState, gain_min: u64) -> Promises {
        let now = self.clock_seconds();
        let room = self.room_of_cleaner(state.log());
        let mut promises = Promises::default();
        for page in 0..self.pages.len() {
            let Some(gain) = self.gain(page) else { continue };
            promises.reclaimable += gain;
            let cell = self.pages.cell(page);
            if gain == 0 || copied_bytes(cell) > room {
                continue;
            }
            let promise = self.promise_of(cell, gain, now);
            for (best, least) in [(&mut promises.best, 1), (&mut promises.worthy, gain_min)] {
                if gain >= least && best.is_none_or(|(_, other)| promise >= other) {
                    *best = Some((page, promise));
                }
            }
        }
        promises
    }

    /// What cleaning a page promises, by the cost-benefit rule.
    fn promise_of(&self, cell: &Cell, gain: u64, now: u32) -> f64 {
        let length = cell.length.load(Ordering::Acquire);
        let age = now.saturating_sub(cell.sealed_at.load(Ordering::Relaxed));
        let age = if mutant!("scmkv.clean.age") { age } else { age.min(AGE_MAX) };
        let bytes = f64::from(length) + self.unused(length) as f64;
        let dead_part = (gain as f64 / bytes).min(1.0);
        dead_part * f64::from(age + 1) / (2.0 - dead_part)
    }

    /// Bytes that the cleaner can surely copy: with more free pages than are left to it, any page.
    pub(crate) fn room_of_cleaner(&self, log: &Log) -> u64 {
        let room = log.room() as u64;
        match self.pages.free_len() {
            0 => room,
            free if free <= self.cleaners() => room.max(u64::from(self.geometry.page_size)),
            _ => u64::MAX,
        }
    }

    /// What the pages promise to a writer that waits: those that gain an eighth of a page are the worthy ones. An old
    /// page with few dead bytes promises more than a young one with many, and that writer gets little by it.
    fn promises_to_writer(&self, state: &mut CleanerState) -> Promises {
        let worthy = u64::from(self.geometry.page_size) / 8;
        self.promises(state, if mutant!("scmkv.clean.worthy") { 1 } else { worthy })
    }

    /// The bytes that cleaning the open page of a log gains once it is sealed.
    fn gain_in_open(&self, log: &Log) -> u64 {
        match (self.dead_in_open(log), log.tail().map_or(0, |(_, tail)| tail)) {
            (0, _) => 0,
            (dead, tail) if dead == u64::from(tail) => u64::from(self.geometry.page_size),
            (dead, tail) => dead + self.unused(tail),
        }
    }

    /// Seals the open pages with dead bytes of logs that are not in use, if cleaning them gains at least `gain_min`
    /// bytes together; true if it did.
    ///
    /// # Errors
    /// If the medium fails.
    fn seal_dead(&self, gain_min: u64) -> Result<bool> {
        let idle = || self.logs.iter().filter_map(|log| log.try_lock());
        let gain = |log: &Log| self.gain_in_open(log);
        if mutant!("scmkv.clean.idle") || idle().map(|log| gain(&log)).sum::<u64>() < gain_min {
            return Ok(false);
        }
        for mut log in idle().filter(|log| gain(log) > 0) {
            log.seal(self)?;
        }
        Ok(true)
    }

    /// The page that promises most for a writer that lacks `pages` pages; none if all dead bytes
    /// together make fewer pages.
    pub(crate) fn pick_for_writer(
        &self,
        state: &mut CleanerState,
        own: &mut Log,
        pages: u32,
    ) -> Result<Option<u32>> {
        if state.kept_tombstone_bytes > self.tombstone_budget() {
            state.kept_tombstone_bytes = 0;
            if let Some(page) = self.oldest(state, Some(own))? {
                return Ok(Some(page));
            }
        }
        let lacking = u64::from(pages) * u64::from(self.geometry.page_size);
        let filling = self.gain_in_open(own) + self.dead_in_open(state.log());
        let promises = self.promises_to_writer(state);
        let promised = promises.reclaimable + filling + state.log().room() as u64;
        if promised >= lacking {
            if let Some(page) = promises.page() {
                return Ok(Some(page));
            }
            // The dead bytes are in the pages that these two logs are filling.
            if filling > 0 {
                own.seal(self)?;
                state.log().seal(self)?;
                if let Some(page) = self.promises_to_writer(state).page() {
                    return Ok(Some(page));
                }
            }
        }
        // The others are in the pages that logs which are not in use have open.
        if self.seal_dead(lacking.saturating_sub(promised).max(1))?
            && let Some(page) = self.promises_to_writer(state).page()
        {
            return Ok(Some(page));
        }
        if self.counters.get(Count::TombstoneBytes) > self.tombstone_budget() as i64 {
            return self.oldest(state, Some(own));
        }
        Ok(None)
    }

    /// The oldest page that can be cleaned. A page that an idle log has open is sealed for that.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn oldest(
        &self,
        state: &mut CleanerState,
        own: Option<&mut Log>,
    ) -> Result<Option<u32>> {
        let birth = |page: &u32| self.pages.cell(*page).birth.load(Ordering::Acquire);
        let oldest =
            self.log_pages().filter(|page| !self.pages.cell(*page).is_pinned()).min_by_key(birth);
        if let Some(page) = oldest {
            self.seal_idle(page, state, own)?;
        }
        let room = self.room_of_cleaner(state.log());
        let can_be_cleaned =
            |page: &u32| self.gain(*page).is_some() && copied_bytes(self.pages.cell(*page)) <= room;
        Ok(self.log_pages().filter(can_be_cleaned).min_by_key(birth))
    }

    /// Seals `page` if it is the open page of a log that is not in use.
    fn seal_idle(&self, page: u32, state: &mut CleanerState, own: Option<&mut Log>) -> Result<()> {
        if self.pages.cell(page).length.load(Ordering::Acquire) > 0 {
            return Ok(());
        }
        let fills = |log: &Log| log.tail().is_some_and(|(open, _)| open == page);
        if fills(state.log()) {
            return state.log().seal(self);
        }
        if let Some(own) = own
            && fills(own)
        {
            return own.seal(self);
        }
        for log in &self.logs {
            if let Some(mut log) = log.try_lock()
                && fills(&log)
            {
                return log.seal(self);
            }
        }
        Ok(())
    }

    /// The birth of the oldest log page that is not `victim`.
    pub(crate) fn oldest_birth_but(&self, victim: u32) -> u64 {
        self.log_pages()
            .filter(|page| *page != victim)
            .map(|page| self.pages.cell(page).birth.load(Ordering::Acquire))
            .min()
            .unwrap_or(u64::MAX)
    }
}

/// Bytes that must be written elsewhere when a page is cleaned.
fn copied_bytes(cell: &Cell) -> u64 {
    let live = cell.live.load(Ordering::Relaxed).max(0);
    let toll = cell.toll.load(Ordering::Relaxed).max(0);
    (live + toll) as u64
}
