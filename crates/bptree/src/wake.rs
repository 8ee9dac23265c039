//! Leaves that are asleep: after an open with a checkpoint nothing is known of a leaf but where it
//! is and where its records end. Whoever is led to one reads it first.

use crate::store::Store;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch;
use std::sync::atomic::Ordering;

impl Store {
    /// Reads the leaf in `page`, if nobody has since the open.
    ///
    /// # Errors
    /// If it is damaged.
    #[cold]
    pub(crate) fn wake(&self, page: u32) -> Result<()> {
        let Some(waking) = self.leaves.get(page as usize).wake() else { return Ok(()) };
        let guard = epoch::pin();
        self.check_readable(page)?;
        // The checkpoint has said where its records end.
        let (end, _) = self.space.watermarks(page).ok_or_else(|| self.not_a_leaf(page))?;
        let head = match self.head_of(&guard, page) {
            Err(error @ (Error::ChecksumMismatch { .. } | Error::Corrupt { .. })) => {
                if waking.is_shut() {
                    // The close, or the clear, has to know all leaves.
                    return Err(error);
                }
                self.opened.asleep.fetch_sub(1, Ordering::Relaxed);
                return self.replace_lost(page, waking);
            }
            head => head?,
        };
        let (found, latest) = self.read_leaf_page(&guard, page, head, (end, end))?;
        if found.is_dead {
            let offset = self.space.start_of(page) + u64::from(found.end);
            let what = format!("the records of page {page} end here, and should not");
            return Err(Error::Corrupt { offset, what });
        }
        let begun = latest.begun(&found, self.opened.sealed_births);
        waking.begin(begun, latest.records(self.space.start_of(page)));
        self.opened.asleep.fetch_sub(1, Ordering::Relaxed);
        if !found.is_to_be_told() {
            return Ok(());
        }
        match self.whole_key(&guard, &found.head.least) {
            Ok(least) => match self.keep_doubt(&least) {
                // It stays as it is: whoever wakes it has a guard, and waits for no page.
                Err(Error::NoSpace { .. }) => Ok(()),
                kept => kept,
            },
            Err(_) => Ok(()),
        }
    }
}
