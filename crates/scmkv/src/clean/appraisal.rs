//! Appraisal: the gain of cleaning a page, from the index and that page alone.
//!
//! The live bytes of each page are known when the [`census`](crate::clean::census) has ended:
//! seconds after the open of a large store. A writer that finds no free page before that does not
//! wait for it. It *appraises* some pages, from the oldest on, by a lookup of each of their
//! records, and cleans the page that promises most. Only if a long row of pages promises nothing
//! does it need the census: it must not report that there is no space before that is known. An
//! index in DRAM, whose open takes longer anyway, is counted first.
//!
//! The census also sees which slots have lost their record, and keeps the pages that they point
//! into. So before the census no page is cleaned that could hold the record of such a slot, or have
//! lost it: a page that a recovery has ended, behind whose last record a slot may point; a page
//! with a record that is not sound; and a page with a record whose key leads neither to that record
//! nor to a later one.

use crate::clean::{Cleaner, CleanerState};
use crate::table::index::{Slot, Verdict};
use crate::table::overflow::overflow_offsets;
use crate::table::page;
use coreplane_engine::Result;
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{Kind, View};
use std::sync::atomic::Ordering;

/// The number of pages of which the best is cleaned.
const CANDIDATES: usize = 4;

/// The number of pages in a row without a promise after which no more are appraised.
const MISSES_MAX: usize = 64;

/// Records whose lines of the index are prefetched together.
const LANE: usize = 24;

/// A page that promises a gain.
#[derive(Debug)]
struct Appraisal {
    page: u32,
    generation: u32,
    gain: u64,
    /// Bytes that must be written elsewhere.
    copied: u64,
}

/// The pages that were appraised and not cleaned.
#[derive(Debug, Default)]
pub(crate) struct Appraisals {
    found: Vec<Appraisal>,
    /// All pages with a lower birth have been appraised.
    next_birth: u64,
}

impl Cleaner {
    /// The page to clean before the census has ended; none if the census is needed.
    ///
    /// # Errors
    /// If the page information table is damaged.
    pub(crate) fn pick_appraised(&self, state: &mut CleanerState) -> Result<Option<u32>> {
        let room = self.room_of_cleaner(state.log());
        let mut appraisals = self.appraisals.lock();
        let Appraisals { found, next_birth } = &mut *appraisals;
        found.retain(|it| {
            let cell = self.pages.cell(it.page);
            let is_there = cell.kind() == Some(page::Kind::Log);
            is_there && cell.generation() == it.generation && !cell.is_pinned()
        });
        let birth = |page: u32| self.pages.cell(page).birth.load(Ordering::Acquire);
        let mut pages: Vec<(u64, u32)> = self.log_pages().map(|page| (birth(page), page)).collect();
        pages.retain(|(birth, _)| birth >= next_birth);
        pages.sort_unstable();
        let mut misses = 0;
        for (birth, page) in pages {
            if found.len() >= CANDIDATES || misses >= MISSES_MAX {
                break;
            }
            *next_birth = birth + 1;
            misses += 1;
            if let Some(appraisal) = self.appraise(page)? {
                found.push(appraisal);
                misses = 0;
            }
        }
        let fits = found.iter().enumerate().filter(|(_, it)| it.copied <= room);
        let best = fits.max_by_key(|(_, it)| it.gain).map(|(at, _)| at);
        Ok(best.map(|at| found.swap_remove(at).page))
    }

    /// The appraisal of `page`; none if its gain is small, or it may not be cleaned yet.
    fn appraise(&self, page: u32) -> Result<Option<Appraisal>> {
        let cell = self.pages.cell(page);
        let length = u64::from(cell.length.load(Ordering::Acquire));
        let generation = cell.generation();
        let may_be_cleaned = length > 0 && !cell.is_pinned() && self.space.probe(page).is_ok();
        let is_cut = self.pages.element(page)?.is_cut;
        if !may_be_cleaned || is_cut {
            return Ok(None);
        }
        let guard = epoch::pin();
        let start = self.space.start_of(page);
        let mut at = start;
        let mut copied = 0;
        let mut lane = Vec::with_capacity(LANE);
        while at < start + length {
            let Some(view) = self.view(&guard, at) else { return Ok(None) };
            self.prefetch(view.key());
            lane.push(view);
            at += u64::from(view.len());
            if lane.len() == LANE || at >= start + length {
                for view in lane.drain(..) {
                    let Some(bytes) = self.copied_of(&guard, &view) else { return Ok(None) };
                    copied += bytes;
                }
            }
        }
        let gain = length.saturating_sub(copied);
        let is_enough = gain >= u64::from(self.geometry.page_size) / 64;
        Ok(is_enough.then_some(Appraisal { page, generation, gain, copied }))
    }

    /// The bytes that are written elsewhere if a record's page is cleaned; none if that must wait.
    fn copied_of(&self, guard: &Guard, view: &View<'_>) -> Option<u64> {
        self.check_record(view).ok()?;
        let len = u64::from(view.len());
        match view.header.kind {
            Kind::Lost | Kind::Node | Kind::Entry => Some(0),
            Kind::Commit => Some(len),
            Kind::Overflow => {
                let owner = self.owner_of(guard, view)?;
                Some(owner.map_or(0, |owner| len + owner))
            }
            Kind::Put | Kind::Delete => {
                let mut lives = false;
                let found = self.index.find(self.place(view.key()), |slot: Slot| {
                    lives = slot.offset() == view.offset;
                    if self.leads_to(guard, slot, view) { Verdict::Mine } else { Verdict::Other }
                });
                let is_found = matches!(found, Ok(Some(_))) || mutant!("scmkv.appraise.unindexed");
                is_found.then_some(if lives { len } else { 0 })
            }
        }
    }

    /// The length of the owner of an overflow record. `Some(None)` if the record of its key does
    /// not name it, `None` if there is no record of its key: the owner may have lost its slot.
    fn owner_of(&self, guard: &Guard, overflow: &View<'_>) -> Option<Option<u64>> {
        let mut len = None;
        let found = self.index.find(self.place(overflow.key()), &mut |slot| {
            let Ok(owner) = self.record(guard, slot) else { return Verdict::Other };
            if owner.key() != overflow.key() {
                return Verdict::Other;
            }
            let names =
                |owner: &View<'_>| overflow_offsets(owner).any(|offset| offset == overflow.offset);
            len = (owner.header.large && names(&owner)).then_some(u64::from(owner.len()));
            Verdict::Mine
        });
        let is_known = matches!(found, Ok(Some(_))) || mutant!("scmkv.appraise.ownerless");
        is_known.then_some(len)
    }
}
