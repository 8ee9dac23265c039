//! Free pages: why some demands leave some of them alone ([`demand`](crate::table::demand)), and what to do when there
//! are none.
//!
//! The last pages are left to the cleaner, so that it always gets on: the live records of a page fit
//! the rest of its open page and one more. A crash may leave both that page and the one of the
//! copies partly in use: then the second page is needed to clean the two. (Two such crashes in a row,
//! or one in a pool of fewer than 256 pages, may leave a full store that takes no write, and no
//! delete, until the pool has grown. One page is too much of a small pool to keep it for that.)
//!
//! The page before these is left to deletes, so that a store that is full can be emptied; as long as
//! it is there, the cleaner can move the owners of large values too, which do not count among the
//! live records of a page. Some more are left to overwrites, so that a store that is full of records
//! can take new values for all of them, again and again. A demand that may not take a page does not
//! append to it while it is open, either, until there is another. A batch that does not fit the open
//! page takes all its pages off the free queue before it appends anything, and gives back the pages
//! that it did not need.
//!
//! **Pages are short** before there is none. From then on a writer pays for what it appends: it
//! cleans one page, and may append about as many bytes as that has gained, a little more if there
//! are more free pages and less if there are fewer, so that their number stays where it is. However
//! full the store is, no writer waits for much more than one page to be cleaned. The rest of the
//! open page is *withheld* meanwhile, so that a write checks only one word more while pages are not
//! short.
//!
//! A writer that finds too few pages all the same cleans, holding the cleaner's mutex and its own
//! log. It goes on as long as that gains *bytes*: pages freed, less pages taken for copies, less
//! the bytes filled of the open page. Other writers may take the pages that it gained; it will gain
//! more. It gives up when no page promises a gain, or when a long row of pages gave none.
//!
//! Freed pages wait for readers that may still use them; emptied pages wait for `relaxed` writers
//! ([`clean`](crate::clean)). A writer whose pages are on their way waits for them, and gives up on
//! a reader that holds its record for seconds.

use crate::clean::{Cleaner, CleanerState};
use crate::table::counters::Count;
use crate::table::demand::Demand;
use crate::table::hash::Place;
use crate::table::index::{Leaf, Slot};
use crate::table::log::Log;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_pmem::spin::{self, Patience};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The source of pages for a split.
#[derive(Debug)]
pub(crate) enum SplitPages<'a> {
    /// From the cleaner, if there is no free page; the log is the caller's.
    ByCleaning(&'a mut Log),
    /// Those that are free, except for so many. A recovery cannot clean, since not all live records
    /// are known yet, nor can who mends the index. They read under their own guard.
    AsItIs(&'a Guard, u32),
}

/// The bytes that a writer may append without payment while another one is cleaning.
const CREDIT: usize = 64 << 10;

/// Bytes of a damaged key in which a flipped bit is looked for.
const KEY_TRIED: usize = 256;

/// How many pages in a row may be cleaned without a gain.
const MISSES_MAX: u32 = 64;

/// How long a writer waits for readers and other writers.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of a writer's cleaning.
#[derive(Debug)]
struct Effort {
    /// Bytes gained, and the most that it ever was.
    gained: i64,
    best: i64,
    /// Pages cleaned since the best.
    misses: u32,
    /// The wait since something was gained.
    patience: Patience,
}

impl Default for Effort {
    fn default() -> Self {
        Self { gained: 0, best: 0, misses: 0, patience: Patience::new(PATIENCE) }
    }
}

impl Effort {
    /// False if nothing more is gained.
    fn goes_on(&mut self, gained: i64) -> bool {
        self.gained += gained;
        self.misses += 1;
        if self.gained > self.best {
            self.best = self.gained;
            self.misses = 0;
        }
        self.patience = Patience::new(PATIENCE);
        self.misses < MISSES_MAX
    }
}

impl Cleaner {
    /// Room in the log, by cleaning if need be.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    #[inline]
    pub(crate) fn make_room(&self, log: &mut Log, len: usize, demand: Demand) -> Result<()> {
        if log.room_for(demand) >= len {
            return Ok(());
        }
        self.make_new_room(log, len, demand)
    }

    #[cold]
    fn make_new_room(&self, log: &mut Log, len: usize, demand: Demand) -> Result<()> {
        let reserve = self.reserve(demand);
        if !log.is_open_to(demand) {
            self.clean_for_space(log, reserve, len as u64)?;
            log.open_to(demand);
        }
        loop {
            if log.room() >= len && log.room_for(demand) < len {
                self.pay(log, len)?;
            } else if log.make_room(self, len, reserve)? {
                return Ok(());
            } else {
                self.clean_for_space(log, reserve + 1, len as u64)?;
            }
        }
    }

    /// True if one more insert may go to the caller's open page, or to the pages set aside for it.
    pub(crate) fn has_room_for_inserts(&self, log: &Log) -> bool {
        log.is_open_to(Demand::Insert) && self.pages.refresh_free() >= self.reserve(Demand::Insert)
    }

    /// Pays for at least `len` more bytes of the open page. If pages are short, a page is cleaned
    /// for that.
    ///
    /// # Errors
    /// If the medium fails.
    fn pay(&self, log: &mut Log, len: usize) -> Result<()> {
        let (free, coming) = self.pages.free_and_retired();
        let (least, ample) = (self.reserve(Demand::Insert), self.pages_ample());
        let last = self.reserve(Demand::Overwrite);
        // Before the census the gain of a page is unknown, and pages are appraised as needed.
        let is_counted = self.census_done.load(Ordering::Acquire);
        if free + coming >= ample || !is_counted {
            log.withhold(0);
            return Ok(());
        }
        let gained = match self.cleaner_state.try_lock() {
            Some(mut state) => self.clean_one_for(&mut state, log)?,
            // Near the last pages a credit would be more than is gained, and a writer that then
            // finds no page would clean for hundreds of milliseconds at a time.
            None if free > least => Some(CREDIT as i64),
            None => self.clean_one_for(&mut spin::lock(&self.cleaner_state), log)?,
        };
        let paid = |gained: u64| {
            // As many bytes as were gained are paid for at the number of free pages that is to be kept. If a page
            // gains little, that number is only just above the last pages: free bytes are not dead, and the fewer
            // bytes are dead, the less the next page gains.
            let is_dear = gained < u64::from(self.geometry.page_size) / 16;
            let (from, to) = if is_dear { (last, last + 4) } else { (least, ample) };
            let more = u64::from((free + coming).saturating_sub(from));
            gained / 2 + gained * more / u64::from(to - from)
        };
        match gained.and_then(|gained| u64::try_from(gained).ok()) {
            Some(gained) if gained > 0 => log.release(len.max(paid(gained) as usize)),
            // Nothing is to be gained: the free pages may be used up.
            _ => log.withhold(0),
        }
        Ok(())
    }

    /// Cleans a page for a writer; returns the bytes gained, none if no page promises any. A
    /// damaged page is no error of this writer.
    fn clean_one_for(&self, state: &mut CleanerState, log: &mut Log) -> Result<Option<i64>> {
        if self.non_strict.load(Ordering::Acquire) {
            log.settle(self)?;
        }
        self.free_emptied(state, Some(log.id()))?;
        let worth = u64::from(self.geometry.page_size) / 256;
        match self.clean_one(state, worth) {
            Err(Error::NoSpace { .. } | Error::ChecksumMismatch { .. } | Error::Corrupt { .. }) => {
                Ok(None)
            }
            gained => gained,
        }
    }

    /// Sets pages aside for a batch of `len` bytes, by cleaning if need be.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn set_pages_aside(
        &self,
        log: &mut Log,
        pages: u32,
        len: usize,
        demand: Demand,
    ) -> Result<()> {
        let reserve = self.reserve(demand);
        while !log.set_aside(self, pages, reserve) {
            let lacking = pages - log.aside().min(pages);
            self.clean_for_space(log, reserve + lacking, len as u64)?;
        }
        Ok(())
    }

    /// Splits the segment of `leaf`.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn split(&self, leaf: Leaf, place: Place, mut room: SplitPages<'_>) -> Result<()> {
        let (pinned, reserve) = match &room {
            SplitPages::ByCleaning(_) => (None, self.reserve(Demand::Insert)),
            SplitPages::AsItIs(guard, reserve) => (Some(*guard), *reserve),
        };
        let rehash = |slot: Slot, is_its: &dyn Fn(Place) -> bool| -> Result<Place> {
            let place_of = |guard: &Guard| self.place_of_slot(guard, slot, is_its);
            pinned.map_or_else(|| place_of(&epoch::pin()), place_of)
        };
        self.counters.add(Count::Splits, 1);
        let page = u64::from(self.geometry.page_size);
        let mut supply = || self.supply_index_page(reserve);
        while !self.index.split(leaf, place.y, &mut supply, &rehash)? {
            match &mut room {
                SplitPages::ByCleaning(log) => self.clean_for_space(log, reserve + 1, page)?,
                SplitPages::AsItIs(..) => {
                    return Err(Error::NoSpace { needed: page, reclaimable: 0 });
                }
            }
        }
        Ok(())
    }

    /// The place of the key of a slot, which `is_its` accepts if it is the place from which the slot was made. Of a
    /// key with one flipped bit it is the place of the key as it was. A key with more damage goes where its bytes
    /// lead: the split must not fail for it.
    fn place_of_slot(
        &self,
        guard: &Guard,
        slot: Slot,
        is_its: &dyn Fn(Place) -> bool,
    ) -> Result<Place> {
        let view = self.record(guard, slot)?;
        let place = self.place(view.key());
        if is_its(place) || mutant!("scmkv.split.unchecked") {
            return Ok(place);
        }
        self.doubt_index();
        let is_key = self.check_record(&view).is_err();
        let mut key = view.key().to_vec();
        let tried = if is_key { key.len().min(KEY_TRIED) } else { 0 };
        for bit in 0..8 * tried {
            key[bit / 8] ^= 1 << (bit % 8);
            let place = self.place(&key);
            if is_its(place) && self.had_key(&view, &key) {
                return Ok(place);
            }
            key[bit / 8] ^= 1 << (bit % 8);
        }
        Ok(place)
    }

    /// An index page, for a split.
    fn supply_index_page(&self, reserve: u32) -> Result<Option<u64>> {
        if let Some(arena) = &self.arena {
            return arena.supply();
        }
        let page = self.pages.open_index(reserve)?;
        Ok(page.map(|page| self.space.start_of(page)))
    }

    /// Cleans until `goal` pages are free. `log` is the caller's.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if nothing is left to clean.
    #[cold]
    fn clean_for_space(&self, log: &mut Log, goal: u32, needed: u64) -> Result<()> {
        self.wake();
        if !self.index.in_pool() {
            // Its open has read much, and whether a checkpoint is given up depends on the counts.
            self.take_census()?;
        }
        if self.non_strict.load(Ordering::Acquire) {
            log.settle(self)?;
        }
        let mut effort = Effort::default();
        loop {
            if self.pages.refresh_free() >= goal {
                return Ok(());
            }
            let goes_on = {
                let mut state = spin::lock(&self.cleaner_state);
                match self.clean_towards(&mut state, log, goal)? {
                    Step::Done => return Ok(()),
                    Step::Cleaned(gained) => effort.goes_on(gained),
                    Step::Wait => {
                        drop(state);
                        effort.patience.wait()
                    }
                    Step::Nothing => false,
                }
            };
            if !goes_on && !self.census_done.load(Ordering::Acquire) {
                // No appraised page promises a gain.
                self.take_census()?;
                if self.closed.load(Ordering::Acquire) {
                    return Err(Error::Closed);
                }
                effort = Effort::default();
            } else if !goes_on && self.give_up_checkpoint()? {
                effort = Effort::default();
            } else if !goes_on {
                return self.no_space(needed);
            }
        }
    }

    fn clean_towards(&self, state: &mut CleanerState, log: &mut Log, goal: u32) -> Result<Step> {
        self.free_emptied(state, Some(log.id()))?;
        let (free, coming) = self.pages.free_and_retired();
        let coming = coming + state.emptied_len();
        if free >= goal {
            return Ok(Step::Done);
        }
        if coming > 0 && (free + coming >= goal || free < self.cleaners()) {
            return Ok(Step::Wait);
        }
        let lacking = goal.saturating_sub(free + coming);
        // Before the census every page looks dead.
        let victim = match self.census_done.load(Ordering::Acquire) {
            true => self.pick_for_writer(state, log, lacking)?,
            false => self.pick_appraised(state)?,
        };
        match victim {
            Some(victim) => match self.clean_page(state, victim) {
                Ok(gained) => Ok(Step::Cleaned(gained)),
                // A delete has taken the page that was free.
                Err(Error::NoSpace { .. }) if self.pages.free_and_retired().1 > 0 => Ok(Step::Wait),
                // A damaged page is no error of this writer, and is not picked again.
                Err(Error::ChecksumMismatch { .. } | Error::Corrupt { .. })
                    if !mutant!("scmkv.clean.others_damage") =>
                {
                    Ok(Step::Cleaned(0))
                }
                Err(error) => Err(error),
            },
            None => Ok(Step::Nothing),
        }
    }

    /// # Errors
    /// The error for a store that has no page left.
    pub(crate) fn no_space<T>(&self, needed: u64) -> Result<T> {
        Err(Error::NoSpace { needed, reclaimable: self.reclaimable() })
    }
}

enum Step {
    /// Enough pages are free.
    Done,
    /// A page was cleaned, with this gain in bytes.
    Cleaned(i64),
    /// Pages are on their way.
    Wait,
    /// No page promises a gain.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_begins_the_patience_anew() {
        let mut effort = Effort { patience: Patience::new(Duration::ZERO), ..Effort::default() };
        assert!(!effort.patience.wait());
        assert!(effort.goes_on(1));
        assert!(effort.patience.wait());
    }
}
