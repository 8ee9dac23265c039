//! Pages that nobody needs any more: free again when no reader is left that could look at them.

use super::Space;
use crate::epoch;

impl Space {
    /// Retires a log page that has no writer: from now on nobody gets at its bytes, and
    /// [`Space::reclaim`] hands it out once no reader is left that could have. False if the page
    /// is anything else (word pages never retire).
    pub fn retire(&self, page: u32) -> bool {
        if !self.roles.retire(page) {
            return false;
        }
        let stamp = epoch::stamp();
        self.retired.lock().push_back((page, stamp));
        true
    }

    /// A retired page that is free again.
    pub fn reclaim(&self) -> Option<u32> {
        let mut retired = self.retired.lock();
        let (page, stamp) = *retired.front()?;
        if !epoch::has_passed(stamp) {
            return None;
        }
        retired.pop_front();
        self.roles.release(page);
        Some(page)
    }

    /// All retired pages that are free again, at the price of one look at the readers: with several
    /// threads that is a system call that interrupts them.
    pub fn reclaim_all(&self, mut each: impl FnMut(u32)) {
        let mut retired = self.retired.lock();
        if retired.is_empty() {
            return;
        }
        let oldest = epoch::oldest_pinned();
        while let Some((page, stamp)) = retired.front().copied()
            && stamp < oldest
        {
            retired.pop_front();
            self.roles.release(page);
            each(page);
        }
    }

    /// Pages retired and not yet reclaimed.
    pub fn retired_len(&self) -> usize {
        self.retired.lock().len()
    }
}
