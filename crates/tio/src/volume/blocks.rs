//! The free blocks, and the reservations of extents.

use super::Volume;
use coreplane_pmem::{Claim, PageWriter, Pen, Pool, mutant};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// The free blocks.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    pub(super) free: Vec<u32>,
    /// Pages that are not reserved for an extent.
    pub(super) unpromised: u64,
    /// Pages that the medium cannot read: a load ends the process. They are free again when they are healed.
    pub(super) bad: HashSet<u32>,
}

/// Bytes of a page of the system.
const SYSTEM_PAGE: u32 = 4096;

/// Retired blocks are reclaimed when fewer blocks than this are free, and at least this many are retired.
const LOW: usize = 256;

/// True if the file of the pool is shorter than the pool, or if this cannot be determined.
fn is_cut_short(pool: &Pool) -> bool {
    !mutant!("tio.heal.length")
        && pool.file_state().is_some_and(|state| !state.is_ok_and(|it| it.len >= it.expected))
}

impl Blocks {
    /// Reclaims pages that no reader holds any more.
    fn refill(&mut self, pool: &Pool) {
        let is_low = self.free.len() < LOW && pool.space().retired_len() >= LOW;
        if self.free.is_empty() || is_low {
            self.reclaim(pool);
        }
    }

    /// Takes back the retired pages that no reader holds.
    pub(super) fn reclaim(&mut self, pool: &Pool) {
        let (free, bad) = (&mut self.free, &self.bad);
        let mut unreadable = Vec::new();
        pool.space().reclaim_all(|page| match bad.contains(&page) {
            true => unreadable.push(page),
            false => free.push(page),
        });
        self.heal(pool, &unreadable);
    }

    /// Heals unreadable pages that are not in use, as far as the medium can. A page that shares one of the system with
    /// others stays as it is: they would be filled with it, and one of them may have names. In a file that was
    /// truncated none is healed: it would get its length back, which would hide the loss.
    fn heal(&mut self, pool: &Pool, unreadable: &[u32]) {
        let space = pool.space();
        if unreadable.is_empty() || space.page_size() < SYSTEM_PAGE || is_cut_short(pool) {
            return;
        }
        for page in unreadable.iter().filter(|page| space.heal(**page).is_ok()) {
            self.bad.remove(page);
            self.free.push(*page);
        }
    }

    /// A free page for names, all 0; none if no page is free now.
    pub(super) fn take_words(&mut self, pool: &Pool) -> Option<u32> {
        self.refill(pool);
        while let Some(page) = self.free.pop() {
            if pool.space().claim_words(page, Claim::Words) {
                return Some(page);
            }
        }
        None
    }

    /// A free block to write to.
    ///
    /// # Errors
    /// The pen, if no block is free now.
    pub(super) fn take(&mut self, pool: &Pool, mut pen: Pen) -> Result<PageWriter, Pen> {
        self.refill(pool);
        while let Some(page) = self.free.pop() {
            match pen.begin(page) {
                Ok(writer) => return Ok(writer),
                Err(given_back) => pen = given_back,
            }
        }
        Err(pen)
    }
}

impl Volume {
    /// Notes that a page cannot be read. It is in use, or retired and held by this thread's guard.
    pub(crate) fn note_bad(&self, page: u32) {
        coreplane_pmem::spin::lock(&self.blocks).bad.insert(page);
        self.has_bad.store(true, Ordering::Release);
    }

    /// True if it is known that a page cannot be read.
    pub(super) fn is_bad(&self, page: u32) -> bool {
        self.has_bad.load(Ordering::Acquire)
            && coreplane_pmem::spin::lock(&self.blocks).bad.contains(&page)
    }

    /// Heals the map pages that the open could not read, when the directory does not have them any more: a healed page
    /// is zeroes, which is a map page without names.
    pub(crate) fn heal_maps(&mut self) {
        let maps = std::mem::take(&mut self.bad_maps);
        self.blocks.lock().heal(&self.pool, &maps);
    }
}
