//! The pages of the pool: which are free, and the births that they are given.
//!
//! None of this is kept on the medium. A page itself tells its use ([`Head`](crate::leaf)), and after a crash every
//! page that no leaf needs is free. A *birth* is a number that no other page, and no other use of the page, has
//! ever had; it is in the seed of every checksum in the page, so that remains of an earlier use are never taken for
//! a record. Births are drawn from a base in the pool's root, which is raised durably before it is reached.
//!
//! A page is *blanked* before it is reused: its first word is struck out, durably, before anything else in it is
//! overwritten. Otherwise a crash in the middle of that could leave an old head without the superseded mark behind
//! it, and a dead leaf would come to life. Several pages are blanked together, with one fence.
//!
//! The page that was given back last is used first: it is in the caches, and recovery need not read the dead leaves
//! that would otherwise lie in all free pages.

use coreplane_engine::{Error, Result};
use coreplane_pmem::{PageWriter, Space, spin};
use coreplane_record::{Kind, sync_failed};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Pages that only operations that give pages back may take: two new leaves, and one for each large value on its
/// way.
pub(crate) const RESERVE: u32 = 4;

/// The purpose of a request for pages; each leaves some pages to the ones before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Demand {
    /// An operation that gives pages back may take the last pages.
    Reserve,
    /// A record in the place of another one.
    #[default]
    Overwrite,
    /// One more record. A store that is full of them still has room to overwrite all.
    Insert,
}

impl Demand {
    /// The demand of a record whose key already has another one, or has none.
    pub(crate) fn of(kind: Kind, is_overwrite: bool) -> Self {
        match kind {
            Kind::Put if is_overwrite => Self::Overwrite,
            Kind::Put => Self::Insert,
            _ => Self::Reserve,
        }
    }

    /// The same, unless the request `may` take the last pages.
    pub(crate) fn or_reserve(self, may: bool) -> Self {
        if may { Self::Reserve } else { self }
    }
}

/// Pages that are blanked with one fence.
const BLANKED: usize = 16;

/// Pages that are given back before the free ones among them are collected: that is a system call, which interrupts
/// the other threads, one of which may be waiting for these pages.
const GATHERED: usize = 256;

/// Pages that are not in use.
#[derive(Debug, Default)]
struct Free {
    /// Given back, each with the generation of the sync that must have ended before they may be overwritten.
    waiting: VecDeque<(u64, u32)>,
    /// Their old content is still in them. The last is used first.
    used: Vec<u32>,
    /// The number of pages that are being blanked, and soon are in `blank`.
    blanking: usize,
    blank: Vec<u32>,
}

impl Free {
    fn len(&self) -> usize {
        self.used.len() + self.blanking + self.blank.len()
    }
}

/// A reader that stays longer than this is not waited for.
const READERS_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Pages {
    space: Arc<Space>,
    free: Mutex<Free>,
    /// Pages of the pool, without those of a growth that were not offered yet.
    count: AtomicU32,
    /// Held by the thread that blanks pages. Locked before `free`.
    blanking: Mutex<()>,
    next_birth: AtomicU64,
    /// Births up to here may be given out: the root states that durably.
    births_end: AtomicU64,
    /// Pages of the reserve beyond the usual ones, for a bound; used where there are long keys.
    for_bounds: AtomicU32,
    /// The number of waits for readers that have begun.
    #[cfg(test)]
    pub(crate) waits: AtomicU32,
}

/// Looks for pages that other writers are about to give back, some microseconds apart: together they last about as long
/// as a leaf takes to be rewritten.
const LOOKS_MAX: u32 = 16;

/// Tries without a gain after which there is no space.
const MISSES_MAX: u32 = 4;

/// The count of tries without a gain.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    most: u32,
    misses: u32,
    /// Readers were waited for, and did not go.
    is_over: bool,
}

impl Patience {
    /// Prepares for another try with a new reason. Readers that did not leave are not waited for again.
    pub(crate) fn renew(&mut self) {
        *self = Self { is_over: self.is_over, ..Self::default() };
    }
}

impl Pages {
    pub(crate) fn new(space: &Arc<Space>) -> Self {
        Self {
            space: Arc::clone(space),
            free: Mutex::default(),
            count: AtomicU32::new(space.pages()),
            blanking: Mutex::default(),
            next_birth: AtomicU64::new(1),
            births_end: AtomicU64::new(1),
            for_bounds: AtomicU32::new(0),
            #[cfg(test)]
            waits: AtomicU32::new(0),
        }
    }

    /// The number of pages that a request with this demand leaves.
    pub(crate) fn reserve(&self, demand: Demand) -> u32 {
        match demand {
            Demand::Reserve => 0,
            Demand::Overwrite => RESERVE,
            Demand::Insert => RESERVE + self.count() / 64,
        }
    }

    /// The number of pages of the pool, without those of a growth that were not offered yet.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// The number of pages that are free, or will be when no reader holds them any more.
    pub(crate) fn spare_len(&self) -> u32 {
        let free = spin::lock(&self.free);
        (free.len() + free.waiting.len() + self.space.retired_len()) as u32
    }

    /// Adds unused pages, behind all that were used already.
    pub(crate) fn offer(&self, pages: impl DoubleEndedIterator<Item = u32>) {
        self.count.store(self.space.pages(), Ordering::Relaxed);
        spin::lock(&self.free).used.splice(0..0, pages.rev());
    }

    /// The number of free pages, after pages that no reader can hold any more have been collected.
    pub(crate) fn free_len(&self) -> u32 {
        let mut free = spin::lock(&self.free);
        self.reclaim(&mut free);
        free.len() as u32
    }

    /// Gives back a page that nothing leads to any more; false if a writer holds it. It is reused when no reader
    /// can hold it, and when everything flushed until now is durable: should that be lost, the content of the page
    /// counts again.
    pub(crate) fn give_back(&self, page: u32) -> bool {
        if self.space.fences_at_once() {
            return self.space.retire(page);
        }
        let generation = self.space.sync_generation();
        spin::lock(&self.free).waiting.push_back((generation, page));
        true
    }

    fn reclaim(&self, free: &mut Free) {
        while let Some((generation, page)) = free.waiting.front()
            && matches!(self.space.sync_is_done(*generation), Ok(true))
        {
            // No thread appends to a page that nothing leads to. If one did, the page would be lost until the next
            // open.
            let is_retired = self.space.retire(*page);
            debug_assert!(is_retired, "page {page} has a writer");
            free.waiting.pop_front();
        }
        self.space.reclaim_all(|page| free.used.push(page));
    }

    /// A split may need this many pages for the bound that it makes. They are kept with the reserve, so that a
    /// delete can split. A put that needs as many for its own bound leaves them.
    pub(crate) fn keep_for_bounds(&self, pages: u32) {
        self.for_bounds.store(pages, Ordering::Relaxed);
    }

    /// True if pages are kept for bounds.
    pub(crate) fn keeps_for_bounds(&self) -> bool {
        self.for_bounds.load(Ordering::Relaxed) > 0
    }

    /// # Errors
    /// [`Error::NoSpace`] if [`Pages::take`] would return it.
    pub(crate) fn check_free(&self, count: usize, reserve: u32) -> Result<()> {
        let free = self.free_len() as usize;
        if free < count + reserve as usize { Err(self.no_space(count)) } else { Ok(()) }
    }

    /// The number of pages that [`Pages::take`] gives at once besides `reserve`; at most `most`.
    pub(crate) fn at_hand(&self, reserve: u32, most: u32) -> u32 {
        let reserve =
            if reserve > 0 { reserve + self.for_bounds.load(Ordering::Relaxed) } else { 0 };
        let mut free = spin::lock(&self.free);
        if free.len() < (reserve + most) as usize {
            self.reclaim(&mut free);
        }
        (free.len() as u32).saturating_sub(reserve).min(most)
    }

    fn no_space(&self, count: usize) -> Error {
        Error::NoSpace { needed: count as u64 * u64::from(self.space.page_size()), reclaimable: 0 }
    }

    /// Takes `count` pages, if `reserve` are left (0: none need be). They are free, and blank.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    pub(crate) fn take(&self, count: usize, reserve: u32) -> Result<Vec<u32>> {
        let for_bounds = self.for_bounds.load(Ordering::Relaxed);
        let reserve = if reserve > 0 { reserve + for_bounds } else { 0 };
        let mut blanking = None;
        let mut free = spin::lock(&self.free);
        loop {
            let is_short = free.len() < count + reserve as usize;
            let are_many = || free.waiting.len() + self.space.retired_len() >= GATHERED;
            if is_short || free.blank.len() < count && blanking.is_none() && are_many() {
                self.reclaim(&mut free);
            }
            if free.len() < count + reserve as usize {
                return Err(self.no_space(count));
            }
            if free.blank.len() >= count {
                let left = free.blank.len() - count;
                let mut taken = free.blank.split_off(left);
                taken.reverse();
                return Ok(taken);
            }
            if blanking.is_some() {
                free = self.blank_used(free, count)?;
            } else {
                drop(free);
                blanking = Some(spin::lock(&self.blanking));
                free = spin::lock(&self.free);
            }
        }
    }

    /// Blanks pages, so that there are `count` blank ones unless others take some meanwhile: on a file this waits for
    /// a sync, and nobody else is to wait for the lock of the free pages. The caller has that of the blanking.
    fn blank_used<'p>(
        &'p self,
        mut free: MutexGuard<'p, Free>,
        count: usize,
    ) -> Result<MutexGuard<'p, Free>> {
        let missing = count - free.blank.len();
        let from = free.used.len().saturating_sub(missing.max(BLANKED));
        let pages = free.used.split_off(from);
        free.blanking = pages.len();
        drop(free);
        let blanked = self.blank(&pages);
        let mut free = spin::lock(&self.free);
        free.blanking = 0;
        match blanked {
            Ok(()) => free.blank.extend(pages),
            Err(error) => {
                // Except for a page that another writer holds.
                let is_free = |page: &u32| self.space.watermarks(*page).is_none();
                free.used.extend(pages.into_iter().filter(is_free));
                return Err(error);
            }
        }
        Ok(free)
    }

    /// Puts back a page that was taken and is not needed; no writer has claimed it since.
    pub(crate) fn leave(&self, page: u32) {
        spin::lock(&self.free).blank.push(page);
    }

    fn blank(&self, pages: &[u32]) -> Result<()> {
        // Their lines arrive together; and nothing is flushed before the last is claimed, since a locked
        // instruction waits for earlier flushes.
        pages.iter().for_each(|page| self.space.prefetch_to_write(self.space.start_of(*page)));
        let mut writers = Vec::with_capacity(pages.len());
        let mut blanked = pages.iter().try_for_each(|page| {
            let in_use = || Error::Unusable(format!("free page {page} is in use"));
            let mut writer = self.space.claim_log(*page).ok_or_else(in_use)?;
            let is_struck_out = writer.append(&[&[0; 8]]).is_some();
            writers.push(writer);
            is_struck_out.then_some(()).ok_or_else(in_use)
        });
        if blanked.is_ok() {
            let start = |writer: &PageWriter| self.space.start_of(writer.page());
            writers.iter().for_each(|writer| writer.flush_from(start(writer)));
            blanked = self.space.fence().map_err(sync_failed);
        }
        // The pages are free again in any case.
        writers.into_iter().for_each(PageWriter::abandon);
        blanked
    }

    /// As [`Pages::wait_for_retired`], for a caller that tries repeatedly: true as long as more pages are free than
    /// at its earlier tries. Pages that it takes and gives back itself are no gain.
    pub(crate) fn wait_for_more(&self, patience: &mut Patience) -> bool {
        // Pages may have come back while the caller looked for others: then there is no need to wait.
        if self.is_more(patience) {
            return true;
        }
        if patience.is_over || !self.wait_for_retired(patience) {
            return false;
        }
        patience.misses += 1;
        self.is_more(patience) || patience.misses < MISSES_MAX
    }

    /// Makes an attempt that takes pages, again and again as long as pages come back
    /// ([`Pages::wait_for_more`]). Not to be called with a guard or a lock.
    ///
    /// # Errors
    /// As the last attempt.
    pub(crate) fn in_time<T>(
        &self,
        patience: &mut Patience,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        loop {
            match attempt() {
                Err(Error::NoSpace { .. }) if self.wait_for_more(patience) => {}
                made => return made,
            }
        }
    }

    fn is_more(&self, patience: &mut Patience) -> bool {
        let free = self.free_len();
        let is_more = free > patience.most;
        if is_more {
            *patience = Patience { most: free, misses: 0, is_over: patience.is_over };
        }
        is_more
    }

    /// Pages that must be free for a request that was refused for lack of so many bytes, and leaves `reserve`.
    pub(crate) fn goal(&self, needed: u64, reserve: u32) -> u32 {
        let kept = if reserve > 0 { self.for_bounds.load(Ordering::Relaxed) } else { 0 };
        let count = needed.div_ceil(u64::from(self.space.page_size()));
        (count as u32).saturating_add(reserve + kept)
    }

    /// Looks again for a moment, as long as other threads are in the tree: a writer gives a page back for each one
    /// that it has taken. True if `goal` pages are free. Not to be called with a guard or a lock.
    pub(crate) fn wait_for_writers(&self, goal: u32) -> bool {
        // Where a fence is a sync pages come back behind one, which takes longer.
        let looks = if self.space.fences_at_once() { LOOKS_MAX } else { 1 };
        for look in 0..looks {
            if self.free_len() >= goal {
                return true;
            }
            // Each such question interrupts the others.
            if look % 4 == 0 && !self.space.is_read() {
                break;
            }
            spin::leave();
        }
        false
    }

    /// Waits until a page returns that was given back, but may still be read; false if there is none, or its
    /// readers do not leave. Not to be called with a guard or a lock.
    fn wait_for_retired(&self, patience: &mut Patience) -> bool {
        let (before, waiting) = {
            let free = spin::lock(&self.free);
            (free.len(), free.waiting.back().map(|(generation, _)| *generation))
        };
        if waiting.is_some_and(|generation| self.space.sync_wait(generation).is_err()) {
            return false;
        }
        let mut readers = spin::Patience::new(READERS_MAX);
        #[cfg(test)]
        self.waits.fetch_add(1, Ordering::Relaxed);
        loop {
            if self.free_len() as usize > before {
                return true;
            }
            if self.space.retired_len() == 0 {
                return false;
            }
            if !readers.wait() {
                patience.is_over = true;
                return false;
            }
        }
    }

    /// From here on births are `from` and above, below `end`.
    pub(crate) fn allow_births(&self, from: u64, end: u64) {
        self.next_birth.fetch_max(from, Ordering::AcqRel);
        self.births_end.fetch_max(end, Ordering::AcqRel);
    }

    /// A birth; none if the root must be raised first.
    pub(crate) fn birth(&self) -> Option<u64> {
        let end = self.births_end.load(Ordering::Acquire);
        let draw = |next: u64| (next < end).then_some(next + 1);
        self.next_birth.fetch_update(Ordering::AcqRel, Ordering::Acquire, draw).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_pmem::media::sim::{Sim, SimOptions};
    use std::sync::atomic::AtomicBool;

    #[test]
    fn pages_that_could_not_be_blanked_are_free_all_the_same() {
        let sim = Sim::new(&SimOptions::default()).expect("memory");
        let pages = Pages::new(sim.space());
        pages.offer(1..7);
        let somebody = sim.space().claim_log(3).expect("a free page");
        assert!(matches!(pages.take(1, 0), Err(Error::Unusable(_))), "page 3 is in use");
        let mut taken = pages.take(5, 0).expect("the others");
        taken.sort_unstable();
        assert_eq!(taken, [1, 2, 4, 5, 6]);
        drop(somebody);
    }

    /// A search gets a page that another writer gives back while it looks; it does not look for ever.
    #[test]
    fn a_page_that_another_writer_gives_back_is_seen() {
        let sim = Sim::new(&SimOptions::default()).expect("memory");
        let pages = Pages::new(sim.space());
        assert!(!pages.wait_for_writers(1), "there are no pages");
        let (is_over, begun) = (AtomicBool::new(false), std::time::Instant::now());
        let is_late = || begun.elapsed().as_secs() > 60;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _in_the_tree = coreplane_pmem::epoch::pin();
                while !is_over.load(Ordering::SeqCst) && !is_late() {
                    pages.offer(1..2);
                    assert_eq!(pages.take(1, 0).expect("the page"), [1]);
                }
            });
            while !pages.wait_for_writers(1) {
                assert!(!is_late(), "it is never seen");
            }
            is_over.store(true, Ordering::SeqCst);
        });
        pages.offer(1..7);
        let free = pages.free_len();
        assert!(pages.wait_for_writers(free) && !pages.wait_for_writers(free + 1));
        let page = u64::from(sim.space().page_size());
        assert_eq!([1, page, 2 * page].map(|needed| pages.goal(needed, 4)), [5, 5, 6]);
    }
}
