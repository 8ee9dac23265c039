//! Free pages: who may take how many, and what to do when there are none.
//!
//! ```text
//!   free pages    1   2   3   4 …
//!   cleaner       ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
//!   deletes           ▓▓▓▓▓▓▓▓▓▓▓
//!   puts, index           ▓▓▓▓▓▓▓
//! ```
//!
//! The last page is left to the cleaner, so that it always gets on: what lives in a page fits the
//! rest of its open page and one more. The page before it is left to deletes, so that a store that
//! is full can be emptied, and puts leave it to them when it is open, too, until there is another;
//! as long as it is there, the cleaner can move the owners of large values
//! too, which do not count among what lives in a page. A batch that does not fit the open page
//! takes all its pages off the free ones before it appends anything, and gives back what it did
//! not need.
//!
//! A writer that finds too few pages cleans, under the cleaner's mutex and with its own log in
//! hand. It goes on as long as that gains *bytes*: pages freed, less pages taken for copies, less
//! what was filled of the open one. Other writers may take what it gained; it will gain more. It
//! gives up when no page promises anything, or when a long row of pages gave nothing.
//!
//! Pages that were freed wait for readers that may still look at them, or, emptied, for `relaxed`
//! writers ([`clean`](crate::clean)). A writer whose pages are on their way waits for them, and
//! gives up on a reader that holds its record for seconds.

use crate::clean::Cleaner;
use crate::counters::Count;
use crate::hash::Place;
use crate::index::{Leaf, Slot};
use crate::log::Log;
use crate::store::Store;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::spin::{self, Backoff};
use coreplane_record::Kind;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Where the room for a split comes from.
#[derive(Debug)]
pub(crate) enum Room<'a> {
    /// From the cleaner, if there is no free page; the log is the caller's.
    ByCleaning(&'a mut Log),
    /// A recovery cannot clean, since not all that lives is known yet. It reads by its own guard.
    AsItIs(&'a Guard),
}

/// Free pages that only the cleaner takes.
const CLEANERS: u32 = 1;

/// So many pages in a row may be cleaned without a gain.
const MISSES_MAX: u32 = 64;

/// So long a writer waits for readers and other writers.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a writer has got by cleaning.
#[derive(Debug, Default)]
struct Effort {
    /// Bytes gained, and the most that it ever was.
    gained: i64,
    best: i64,
    /// Pages cleaned since the best.
    misses: u32,
    backoff: Backoff,
    waiting_since: Option<Instant>,
}

impl Effort {
    /// False if nothing is gained any more.
    fn goes_on(&mut self, gained: i64) -> bool {
        self.gained += gained;
        self.misses += 1;
        if self.gained > self.best {
            self.best = self.gained;
            self.misses = 0;
        }
        self.waiting_since = None;
        self.backoff = Backoff::new();
        self.misses < MISSES_MAX
    }

    /// Waits a moment; false if it has lasted too long.
    fn waits(&mut self) -> bool {
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        self.backoff.wait();
        since.elapsed() < PATIENCE
    }
}

impl Store {
    /// Free pages that a writer of such records leaves.
    pub(crate) fn reserve(&self, kind: Kind) -> u32 {
        CLEANERS + u32::from(kind != Kind::Delete)
    }

    /// Room in the log, by cleaning if need be.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    #[inline]
    pub(crate) fn make_room(&self, log: &mut Log, len: usize, kind: Kind) -> Result<()> {
        if log.room_for(kind) >= len {
            return Ok(());
        }
        self.make_new_room(log, len, kind)
    }

    #[cold]
    fn make_new_room(&self, log: &mut Log, len: usize, kind: Kind) -> Result<()> {
        let reserve = self.reserve(kind);
        self.leave_to_deletes(log, len, kind)?;
        while !log.make_room(self, len, reserve)? {
            self.clean_for_space(log, reserve + 1, len as u64)?;
        }
        Ok(())
    }

    /// A put does not go into an open page that is left to deletes, before others are free for those.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn leave_to_deletes(&self, log: &mut Log, len: usize, kind: Kind) -> Result<()> {
        if log.is_reserved() && kind != Kind::Delete {
            self.clean_for_space(log, self.reserve(kind), len as u64)?;
            log.open_to_puts();
        }
        Ok(())
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
        kind: Kind,
    ) -> Result<()> {
        let reserve = self.reserve(kind);
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
    pub(crate) fn split(&self, leaf: Leaf, place: Place, mut room: Room<'_>) -> Result<()> {
        let recovering = match &room {
            Room::ByCleaning(_) => None,
            Room::AsItIs(guard) => Some(*guard),
        };
        let rehash = |slot: Slot| -> Result<u32> {
            let y_of = |guard: &Guard| Ok(self.place(self.record(guard, slot)?.key()).y);
            recovering.map_or_else(|| y_of(&epoch::pin()), y_of)
        };
        self.counters.add(Count::Splits, 1);
        let page = u64::from(self.geometry.page_size);
        let reserve = if recovering.is_none() { self.reserve(Kind::Put) } else { 0 };
        let mut supply = || self.supply_index_page(reserve);
        while !self.index.split(leaf, place.y, &mut supply, &rehash)? {
            match &mut room {
                Room::ByCleaning(log) => self.clean_for_space(log, reserve + 1, page)?,
                Room::AsItIs(_) => return Err(Error::NoSpace { needed: page, reclaimable: 0 }),
            }
        }
        Ok(())
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
            // Its open has read much, and checkpoints are given up by what is counted.
            self.take_census()?;
        }
        if self.lax.load(Ordering::Acquire) {
            log.settle(self)?;
        }
        let mut effort = Effort::default();
        loop {
            if self.pages.refresh_free() >= goal {
                return Ok(());
            }
            let goes_on = {
                let mut cleaner = spin::lock(&self.cleaner);
                match self.clean_towards(&mut cleaner, log, goal)? {
                    Step::Done => return Ok(()),
                    Step::Cleaned(gained) => effort.goes_on(gained),
                    Step::Wait => {
                        drop(cleaner);
                        effort.waits()
                    }
                    Step::Nothing => false,
                }
            };
            if !goes_on && !self.census_done.load(Ordering::Acquire) {
                // No page that was appraised promises anything.
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

    fn clean_towards(&self, cleaner: &mut Cleaner, log: &mut Log, goal: u32) -> Result<Step> {
        self.free_emptied(cleaner, Some(log.id()))?;
        let (free, coming) = self.pages.free_and_retired();
        let coming = coming + cleaner.emptied_len();
        if free >= goal {
            return Ok(Step::Done);
        }
        if coming > 0 && (free + coming >= goal || free < CLEANERS) {
            return Ok(Step::Wait);
        }
        let lacking = goal.saturating_sub(free + coming);
        // Before the census every page looks dead.
        let victim = match self.census_done.load(Ordering::Acquire) {
            true => self.pick_for_writer(cleaner, log, lacking)?,
            false => self.pick_appraised(cleaner)?,
        };
        match victim {
            Some(victim) => match self.clean_page(cleaner, victim) {
                Ok(gained) => Ok(Step::Cleaned(gained)),
                // A delete has taken the page that was there.
                Err(Error::NoSpace { .. }) if self.pages.free_and_retired().1 > 0 => Ok(Step::Wait),
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
    /// There are free pages enough.
    Done,
    /// A page was cleaned, which gained so many bytes.
    Cleaned(i64),
    /// Pages are on their way.
    Wait,
    /// Nothing promises a gain.
    Nothing,
}
