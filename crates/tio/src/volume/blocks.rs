//! Blocks that are free, and what is promised of them.

use coreplane_pmem::spin::Backoff;
use coreplane_pmem::{Claim, Pen, Space};

/// Blocks that are free.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    pub(super) free: Vec<u32>,
    /// Pages that no extent was promised.
    pub(super) unpromised: u64,
}

impl Blocks {
    /// Pages whose bytes nobody reads any more are free again.
    fn refill(&mut self, space: &Space) -> bool {
        let free = &mut self.free;
        space.reclaim_all(|page| free.push(page));
        !free.is_empty()
    }

    /// A free page for names, all of them 0.
    pub(super) fn take_words(&mut self, space: &Space) -> Option<u32> {
        if self.free.is_empty() && !self.refill(space) {
            return None;
        }
        let page = self.free.pop()?;
        space.claim_words(page, Claim::Words).then_some(page)
    }

    /// A free block to write to. Waits a little for readers who have not let go of any.
    ///
    /// # Errors
    /// The pen, if none is free.
    pub(super) fn take(
        &mut self,
        space: &Space,
        pen: Pen,
    ) -> Result<coreplane_pmem::PageWriter, Pen> {
        let mut backoff = Backoff::new();
        while self.free.is_empty() && !self.refill(space) {
            if space.retired_len() == 0 || backoff.is_long() {
                return Err(pen);
            }
            backoff.wait();
        }
        match self.free.pop() {
            Some(page) => pen.begin(page),
            None => Err(pen),
        }
    }
}
