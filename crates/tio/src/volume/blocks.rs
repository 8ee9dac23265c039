//! Blocks that are free, and what is promised of them.

use coreplane_pmem::{Claim, PageWriter, Pen, Space};

/// Blocks that are free.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    pub(super) free: Vec<u32>,
    /// Pages that no extent was promised.
    pub(super) unpromised: u64,
}

/// Of fewer free blocks those are looked for that have been given back, and of as many that were.
const LOW: usize = 256;

impl Blocks {
    /// Pages whose bytes nobody reads any more are free again.
    fn refill(&mut self, space: &Space) {
        let is_low = self.free.len() < LOW && space.retired_len() >= LOW;
        if self.free.is_empty() || is_low {
            let free = &mut self.free;
            space.reclaim_all(|page| free.push(page));
        }
    }

    /// A free page for names, all of them 0; none if none is free now.
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
    /// The pen, if none is free now.
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
