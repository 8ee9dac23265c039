//! Pages that nobody needs any more: free again when no reader is left that could look at them.

use super::Space;
use crate::epoch;
use crate::mutant;

impl Space {
    /// Retires a log page that has no writer: from now on nobody gets at its bytes, and
    /// [`Space::reclaim`] hands it out once no reader is left that could have. False if the page
    /// is anything else (word pages never retire).
    pub fn retire(&self, page: u32) -> bool {
        if !self.roles.retire(page) {
            return false;
        }
        let stamp = match &self.own {
            None => epoch::stamp(),
            Some(own) => own.readers.stamp(),
        };
        self.retired.lock().push_back((page, stamp));
        true
    }

    /// A retired page that is free again.
    pub fn reclaim(&self) -> Option<u32> {
        let mut retired = self.retired.lock();
        let (page, stamp) = *retired.front()?;
        if stamp >= self.oldest_pinned() && !mutant!("pmem.page.reclaim") {
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
        let oldest = self.oldest_pinned();
        while let Some((page, stamp)) = retired.front().copied()
            && (stamp < oldest || mutant!("pmem.page.reclaim_all"))
        {
            retired.pop_front();
            self.roles.release(page);
            each(page);
        }
    }

    /// The oldest epoch that a reader of its pages has pinned; `u64::MAX` if none has.
    fn oldest_pinned(&self) -> u64 {
        match &self.own {
            None => epoch::oldest_pinned(),
            Some(own) => own.readers.oldest(),
        }
    }

    /// Pages retired and not yet reclaimed.
    pub fn retired_len(&self) -> usize {
        self.retired.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use crate::spin::Backoff;
    use crate::{Space, SpaceOptions};
    use std::sync::Arc;

    const PAGE: u32 = 4096;

    fn space(own_epochs: bool) -> Arc<Space> {
        let options = SpaceOptions { page_size: PAGE, reserve: 1 << 20, own_epochs };
        Arc::new(Space::dram(4 * u64::from(PAGE), &options).unwrap())
    }

    /// A page that was retired under a reader; both ways to get it back.
    #[test]
    fn a_page_is_not_used_again_under_its_readers() {
        for (by_one, own_epochs) in [(true, false), (false, false), (true, true), (false, true)] {
            let space = space(own_epochs);
            let reclaim = || {
                let mut all: Vec<u32> = Vec::new();
                if by_one {
                    all.extend(space.reclaim());
                } else {
                    space.reclaim_all(|page| all.push(page));
                }
                all
            };
            let mut writer = space.claim_log(2).unwrap();
            writer.append(&[&[7; 64]]).unwrap();
            writer.publish();
            drop(writer);
            let guard = space.pin();
            let bytes = space.bytes(&guard, space.start_of(2), 64).unwrap();
            assert!(space.retire(2) && space.bytes(&space.pin(), space.start_of(2), 64).is_none());
            assert_eq!((reclaim(), space.retired_len()), (Vec::new(), 1));
            assert!(space.claim_log(2).is_none());
            assert_eq!(bytes, [7; 64]);
            drop(guard);
            let mut backoff = Backoff::new();
            // Readers of other tests, which may have been stopped in the middle, go on.
            while reclaim().is_empty() {
                backoff.wait();
            }
            assert!(space.claim_log(2).is_some());
        }
    }
}
