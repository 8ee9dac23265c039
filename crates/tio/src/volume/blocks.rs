//! The free blocks, and the reservations of extents.

use coreplane_pmem::{Claim, PageWriter, Pen, Space};

/// The free blocks.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    pub(super) free: Vec<u32>,
    /// Pages that are not reserved for an extent.
    pub(super) unpromised: u64,
}

/// Retired blocks are reclaimed when fewer blocks than this are free, and at least this many are retired.
const LOW: usize = 256;

impl Blocks {
    /// Reclaims pages that no reader holds any more.
    fn refill(&mut self, space: &Space) {
        let is_low = self.free.len() < LOW && space.retired_len() >= LOW;
        if self.free.is_empty() || is_low {
            let free = &mut self.free;
            space.reclaim_all(|page| free.push(page));
        }
    }

    /// A free page for names, all 0; none if no page is free now.
    pub(super) fn take_words(&mut self, space: &Space) -> Option<u32> {
        self.refill(space);
        while let Some(page) = self.free.pop() {
            if space.claim_words(page, Claim::Words) {
                return Some(page);
            }
        }
        None
    }

    /// A free block to write to.
    ///
    /// # Errors
    /// The pen, if no block is free now.
    pub(super) fn take(&mut self, space: &Space, mut pen: Pen) -> Result<PageWriter, Pen> {
        self.refill(space);
        while let Some(page) = self.free.pop() {
            match pen.begin(page) {
                Ok(writer) => return Ok(writer),
                Err(given_back) => pen = given_back,
            }
        }
        Err(pen)
    }
}
