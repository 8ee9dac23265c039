//! The scrub: reads data at rest, so that damage is found while another copy may still exist.
//!
//! A read verifies checksums only where it is asked to ([`Options::check_reads`](crate::Options)),
//! and a record that is neither read nor cleaned would never be verified. So in the background one
//! full page after the other is checked against its records' checksums, at the cost of a hundredth
//! of a core at most ([`scrub_rest`](coreplane_engine::scrub_rest)): a store of 100 GB takes half a
//! day in memory, and some days on a disk. Damage is counted (`damaged_pages` among the
//! statistics), reported by `verify`, and kept from the cleaner, so that it stays as it is until it
//! is repaired. A page that the medium has lost is found the same way, and without the signal that
//! a load from it would raise.
//!
//! **The index**, where it is in the pool, has no checksums. So with each page the records in it
//! are looked up in the index, and some groups of slots are checked against their records; misfits
//! are mended from the logs ([`reindex`](crate::clean::reindex)). An index in DRAM is built
//! anew at every open.
//!
//! What is left, from the flip of a bit in a slot to the next scrub: reads of that key report that
//! there is none, or an error, or, where the offset happens to become that of an older record of
//! the key, that record; `insert` and the like decide by it, and iterations end with an error. A
//! write that meets a slot without a record is refused with that error. No page is freed with the
//! record that the slot led to, and keys beside it are not touched, except those that lookups find
//! behind a slot that was given back. In a matrix a peer is asked.

use crate::clean::reindex::Reindexed;
use crate::store::Store;
use crate::table::counters::Count;
use crate::table::index::Position;
use crate::table::page::Kind;
use coreplane_engine::{Progress, Result, Scrub, ScrubReport, VerifyReport};
use coreplane_pmem::epoch;
use coreplane_pmem::spin;
use coreplane_record::Kind as RecordKind;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Groups of the index that are checked with a page.
const GROUPS_AT_A_TIME: usize = 64;

/// Records whose lines of the index are prefetched together.
const LANE: usize = 24;

/// The progress of the background scrub.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pages: Scrub,
    /// The next group of the index.
    position: Position,
    /// Pages with records that rightly have no slot: generation, and how many.
    unindexed: BTreeMap<u32, (u32, usize)>,
    /// A log is damaged, so the index cannot be mended: not tried again in this round of the index.
    is_undecided: bool,
}

impl Store {
    /// Checks the next full page, whether its records are found, and some groups of the index;
    /// mends the index if something does not fit.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn scrub_next(&self, round: &mut Round) -> Result<()> {
        let page = self.scrub_page(&mut round.pages);
        if !self.index.in_pool() || !self.census_done.load(Ordering::Acquire) {
            return Ok(());
        }
        let unindexed = page.map_or(Ok(None), |page| self.count_unindexed(page))?;
        if let Some((page, found)) = unindexed
            && round.unindexed.get(&page) != Some(&found)
        {
            match found {
                (_, 0) => drop(round.unindexed.remove(&page)),
                _ => self.doubt_index(),
            }
        }
        for _ in 0..GROUPS_AT_A_TIME {
            let (fits, next) = self.group_fits(round.position)?;
            if !fits {
                self.doubt_index();
            }
            round.is_undecided &= next.is_some();
            round.position = next.unwrap_or_default();
        }
        if self.is_index_doubted.load(Ordering::Acquire) && !round.is_undecided {
            let state = spin::lock(&self.cleaner_state);
            self.check_writable()?;
            let reindexed = self.reindex(&state)?;
            round.is_undecided = reindexed == Reindexed::Undecided;
            drop(state);
            if reindexed == Reindexed::NoRoom {
                // The next round finds its record again.
                return Ok(());
            }
            // The rest rightly has no slot: records of batches that were never committed, for
            // example.
            let left = unindexed.map_or(Ok(None), |(page, _)| self.count_unindexed(page))?;
            round.unindexed.extend(left.filter(|(_, (_, count))| *count > 0));
        }
        Ok(())
    }

    /// The number of records of a full page that no lookup finds, with the page and its generation.
    fn count_unindexed(&self, page: u32) -> Result<Option<(u32, (u32, usize))>> {
        let cell = self.pages.cell(page);
        let (generation, mut count, mut failure) = (cell.generation(), 0, Ok(()));
        let guard = epoch::pin();
        let mut lane = Vec::with_capacity(LANE);
        let mut ask = |lane: &mut Vec<_>| {
            for view in lane.drain(..) {
                match self.is_indexed(&guard, &view) {
                    Ok(is_indexed) => count += usize::from(!is_indexed),
                    Err(error) => failure = Err(error),
                }
            }
        };
        self.visit_page_in(&guard, page, &mut |seen| {
            if matches!(seen.view.header.kind, RecordKind::Put | RecordKind::Delete) {
                self.prefetch(seen.view.key());
                lane.push(seen.view);
            }
            if lane.len() == LANE {
                ask(&mut lane);
            }
        });
        ask(&mut lane);
        failure.map(|()| Some((page, (generation, count))))
    }

    /// Mends the index, cleans pages whose damage is dead, and reads everything; returns the damage
    /// that is left.
    ///
    /// # Errors
    /// As [`Store::verify`], and if the store is closed.
    pub(crate) fn scrub(&self, progress: &mut dyn FnMut(Progress)) -> Result<ScrubReport> {
        let before = self.counters.get(Count::RepairedSlots);
        {
            let mut state = spin::lock(&self.cleaner_state);
            self.check_writable()?;
            self.take_census()?;
            if self.index.in_pool() {
                self.reindex(&state)?;
            }
            self.clean_dead_damage(&mut state)?;
        }
        let damages = self.verify(progress)?.damages;
        let rewritten = self.counters.get(Count::RepairedSlots).saturating_sub(before) as u64;
        Ok(ScrubReport { rewritten, damages })
    }

    /// Checks the next full page; returns its number.
    fn scrub_page(&self, scrub: &mut Scrub) -> Option<u32> {
        let look = |page: u32| {
            let cell = self.pages.cell(page);
            let is_full = cell.kind() == Some(Kind::Log) && cell.length.load(Ordering::Acquire) > 0;
            is_full.then(|| {
                let generation = cell.generation();
                let mut report = VerifyReport::default();
                if !self.is_lost(page, &mut report) {
                    self.verify_page(page, &mut report);
                }
                (u64::from(generation), report.is_sound())
            })
        };
        let looked = scrub.step(self.pages.len(), look)?;
        self.counters.add(Count::ScrubbedPages, 1);
        if looked.is_new_damage {
            self.keep(looked.page);
            self.counters.add(Count::DamagedPages, 1);
        }
        Some(looked.page)
    }
}
