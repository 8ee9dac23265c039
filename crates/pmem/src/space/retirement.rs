//! Pages that are not needed any more become free again when no reader can access them.

use super::Space;
use crate::epoch;
use crate::mutant;

impl Space {
    /// Retires a log page that has no writer: from now on no reader obtains its bytes, and
    /// [`Space::reclaim`] returns it once no earlier reader is left. False for any other page (word
    /// pages never retire).
    pub fn retire(&self, page: u32) -> bool {
        if !self.roles.retire(page) {
            return false;
        }
        let stamp = self.stamp();
        self.retired.lock().push_back((page, stamp));
        true
    }

    /// As [`Space::retire`], for many pages with one stamp and one lock; returns how many it has
    /// retired. Pages that are not log pages without a writer are skipped.
    pub fn retire_all(&self, pages: &[u32]) -> usize {
        self.retire_lot(pages.iter().copied())
    }

    /// A page of the lot can be read until its own role has changed, also by a reader that has pinned after the roles
    /// of other pages had changed. So the stamp is drawn after all roles have changed, and waits for that reader,
    /// too.
    fn retire_lot(&self, pages: impl Iterator<Item = u32>) -> usize {
        let early = mutant!("pmem.page.stamp_early").then(|| self.stamp());
        let lot: Vec<u32> = pages.filter(|page| self.roles.retire(*page)).collect();
        if lot.is_empty() {
            return 0;
        }
        let stamp = early.unwrap_or_else(|| self.stamp());
        self.retired.lock().extend(lot.iter().map(|page| (*page, stamp)));
        lot.len()
    }

    /// Draws a stamp for retired pages, in the domain of their readers.
    fn stamp(&self) -> u64 {
        match &self.own {
            None => epoch::stamp(),
            Some(own) => own.readers.stamp(),
        }
    }

    /// Returns a retired page that is now free.
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

    /// Calls `each` for all retired pages that are now free, with one look at the readers: with
    /// several threads that is a system call that interrupts them.
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

    /// The oldest epoch that a reader of the space's pages has pinned; `u64::MAX` if none has.
    fn oldest_pinned(&self) -> u64 {
        match &self.own {
            None => epoch::oldest_pinned(),
            Some(own) => own.readers.oldest(),
        }
    }

    /// True if a thread is in a call that may read pages of the space, or of another one with the same epochs.
    pub fn is_read(&self) -> bool {
        self.oldest_pinned() != u64::MAX
    }

    /// Pages retired and not yet reclaimed.
    pub fn retired_len(&self) -> usize {
        self.retired.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use crate::spin::Backoff;
    use crate::{Claim, Space, SpaceOptions};
    use std::sync::Arc;

    const PAGE: u32 = 4096;

    fn space(own_epochs: bool) -> Arc<Space> {
        let options = SpaceOptions { page_size: PAGE, reserve: 1 << 20, own_epochs };
        Arc::new(Space::dram(4 * u64::from(PAGE), &options).unwrap())
    }

    /// The pages that can be used again: taken one by one, or all at once.
    fn reclaim(space: &Space, by_one: bool) -> Vec<u32> {
        let mut all = Vec::new();
        if by_one {
            all.extend(std::iter::from_fn(|| space.reclaim()));
        } else {
            space.reclaim_all(|page| all.push(page));
        }
        all
    }

    /// The same, until there are `pages` pages: readers of other tests may have been suspended in the
    /// middle.
    fn reclaim_soon(space: &Space, by_one: bool, pages: usize) -> Vec<u32> {
        let mut all = Vec::new();
        let mut backoff = Backoff::new();
        while all.len() < pages {
            all.extend(reclaim(space, by_one));
            backoff.wait();
        }
        all
    }

    /// Makes a log page with `byte` in its first line.
    fn fill(space: &Arc<Space>, page: u32, byte: u8) {
        let mut writer = space.claim_log(page).unwrap();
        writer.append(&[&[byte; 64]]).unwrap();
        writer.publish();
    }

    /// Both ways to reclaim a page, in both domains.
    const WAYS: [(bool, bool); 4] = [(true, false), (false, false), (true, true), (false, true)];

    /// For a page that is retired under a reader.
    #[test]
    fn a_page_is_not_used_again_under_its_readers() {
        for (by_one, own_epochs) in WAYS {
            let space = space(own_epochs);
            fill(&space, 2, 7);
            let guard = space.pin();
            let bytes = space.bytes(&guard, space.start_of(2), 64).unwrap();
            assert!(space.retire(2) && space.bytes(&space.pin(), space.start_of(2), 64).is_none());
            assert_eq!((reclaim(&space, by_one), space.retired_len()), (Vec::new(), 1));
            assert!(space.claim_log(2).is_none());
            assert_eq!(bytes, [7; 64]);
            // One that comes later does not keep it. In the usual domain a thread has one pin.
            let _late = own_epochs.then(|| space.pin());
            drop(guard);
            assert_eq!(reclaim_soon(&space, by_one, 1), [2]);
            assert!(space.claim_log(2).is_some());
        }
    }

    /// For pages that are retired in a lot, under an earlier reader and under one that pins when half
    /// of the lot is retired.
    #[test]
    fn no_page_of_a_lot_is_used_again_under_its_readers() {
        for (by_one, own_epochs) in WAYS {
            let space = space(own_epochs);
            (1..4).for_each(|page| fill(&space, page, page as u8));
            let [one, two, three] = [1, 2, 3].map(|page| space.start_of(page));
            let early = space.pin();
            let bytes = [one, three].map(|at| space.bytes(&early, at, 64).unwrap());
            assert_eq!(space.retire_all(&[1, 3]), 2);
            assert!([one, three].iter().all(|at| space.bytes(&space.pin(), *at, 64).is_none()));
            assert_eq!((reclaim(&space, by_one), space.retired_len()), (Vec::new(), 2));
            assert_eq!(bytes, [[1; 64], [3; 64]]);
            drop(early);
            assert_eq!(reclaim_soon(&space, by_one, 2), [1, 3]);

            fill(&space, 1, 4);
            // The reader comes when the first has been retired and the second has not.
            let mut late = None;
            let lot = [1, 2].into_iter().inspect(|page| {
                if *page == 2 {
                    let guard = late.insert(space.pin());
                    assert!(space.bytes(guard, one, 64).is_none());
                    assert!(space.bytes(guard, two, 64).is_some());
                }
            });
            assert_eq!(space.retire_lot(lot), 2);
            let late = late.unwrap();
            assert_eq!((reclaim(&space, by_one), space.retired_len()), (Vec::new(), 2));
            drop(late);
            assert_eq!(reclaim_soon(&space, by_one, 2), [1, 2]);
        }
    }

    #[test]
    fn a_lot_has_one_stamp_and_passes_over_what_does_not_retire() {
        let space = space(true);
        (1..3).for_each(|page| fill(&space, page, 7));
        assert!(space.claim_words(0, Claim::Words));
        let _writer = space.claim_log(3).unwrap();
        let before = space.stamp();
        assert_eq!(space.retire_all(&[0, 3, 4, u32::MAX]), 0, "words, written to, nowhere");
        assert_eq!(space.retire_all(&[]), 0);
        assert_eq!(space.stamp(), before + 1, "nothing retired, no stamp");
        assert_eq!(space.retire_all(&[0, 1, 2, 1, 3]), 2, "one of them twice");
        assert_eq!(space.stamp(), before + 3);
        assert_eq!(reclaim(&space, false), [1, 2]);
        assert_eq!(space.retire_all(&[1, 2]), 0, "free");
    }
}
