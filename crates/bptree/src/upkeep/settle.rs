//! Ends a [doubt](crate::tree::doubt).

use crate::tree::rewrite::Doubtful;
use crate::upkeep::Store;
use crate::volume::pages::Patience;
use coreplane_engine::{Error, KeyRange, Result};
use coreplane_pmem::epoch;

impl Store {
    /// Ends all doubt about the keys of leaves that lie entirely in `doubt`: records that are still doubtful are
    /// dropped, or count from then on. Durable when it returns (`a_fence_of_a_settling_that_is_missing_is_found`).
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    pub(crate) fn settle(&self, doubt: &KeyRange, doubtful: Doubtful) -> Result<()> {
        self.check_writable()?;
        let mut from: Box<[u8]> = doubt.start.as_slice().into();
        let end = doubt.end.as_deref();
        let mut patience = Patience::default();
        loop {
            let guard = epoch::pin();
            let locked = self.lock_to_write(&from, 0)?;
            let (least, bound) = self.bounds(&guard, locked.page)?;
            let is_within = *least >= *doubt.start
                && end.is_none_or(|end| bound.as_deref().is_some_and(|bound| bound <= end));
            let next: Option<Box<[u8]>> = bound.map(Into::into);
            if next.as_deref().is_some_and(|next| *next <= *from) {
                return Err(self.not_a_leaf(locked.page));
            }
            let settled = if is_within && locked.leaf.doubt() > 0 {
                self.rewrite_settled(&guard, locked, &from, doubtful)
            } else {
                drop(locked);
                Ok(())
            };
            // The pages that it waits for could not come back.
            drop(guard);
            match settled {
                Err(Error::NoSpace { .. }) if self.pages.wait_for_more(&mut patience) => continue,
                settled => settled?,
            }
            match next {
                Some(next) if end.is_none_or(|end| *next < *end) => from = next,
                _ => return self.fence(),
            }
        }
    }
}

#[cfg(test)]
mod tests;
