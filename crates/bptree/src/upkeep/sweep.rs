//! Removes expired records.

use crate::upkeep::Store;
use crate::volume::counters::Count;
use crate::volume::hurt::is_damage;
use crate::volume::pages::{Demand, Patience};
use coreplane_engine::Result;
use coreplane_pmem::epoch;
use coreplane_record::{Kind, View};

impl Store {
    /// Removes expired records; returns how many. Goes on behind damage, and reports it last.
    ///
    /// # Errors
    /// [`Error::NoSpace`](coreplane_engine::Error::NoSpace), and if the medium fails; if a leaf is damaged, after all
    /// others have been swept.
    pub(crate) fn sweep_expired(&self) -> Result<u64> {
        self.check_writable()?;
        let before = self.counters.get(Count::Expired);
        let (mut from, mut damage) = (Box::default(), None);
        let mut patience = Patience::default();
        loop {
            let swept = self.sweep_in_time(&from, &mut patience);
            let guard = epoch::pin();
            let next = swept.and_then(|()| Ok(self.leaf_of(&guard, &from)?.head.bound));
            let next = match next {
                Err(error) if is_damage(&error) => {
                    damage = damage.or(Some(error));
                    // The tree knows where the next leaf begins.
                    self.inner.bound_of(&from)
                }
                next => next?,
            };
            match next {
                None => break,
                Some(next) => from = next,
            }
        }
        let swept = (self.counters.get(Count::Expired) - before).max(0) as u64;
        damage.map_or(Ok(swept), Err)
    }

    /// Removes the expired records of the leaf in a page, and merges it with a neighbour if both have few records.
    /// Not urgent: where there is no page for that, it stays as it is, and its turn comes again.
    pub(super) fn sweep_page(&self, page: u32) {
        let Some(least) = self.least_if_expired(page) else { return self.merge_page(page) };
        if self.sweep_at(&least, self.pages.reserve(Demand::Overwrite)).is_ok() {
            self.merge_after(&least);
        }
    }

    /// The least key of the leaf in a page, if a record in it may have expired.
    fn least_if_expired(&self, page: u32) -> Option<Box<[u8]>> {
        let guard = epoch::pin();
        let now = self.now();
        let has_expired = |view: &View<'_>| {
            view.header.kind == Kind::Put && view.header.expires_at.is_some_and(|at| at <= now)
        };
        let leaf = self.leaves.made(page as usize).filter(|leaf| !leaf.is_unloaded());
        let is_any = match leaf {
            Some(leaf) => {
                let mut views = leaf.used().map(|place| self.record_at(&guard, page, leaf, place));
                views.any(|view| view.is_ok_and(|view| has_expired(&view)))
            }
            None => {
                let (end, _) = self.space.watermarks(page)?;
                let head = self.head_of(&guard, page).ok()?;
                let (_, latest) = self.read_leaf_page(&guard, page, head, (end, end)).ok()?;
                latest.views().iter().any(has_expired)
            }
        };
        // If it is a leaf no more, its successor is looked at under its lock.
        let (least, _) = if is_any { self.bounds(&guard, page).ok()? } else { return None };
        Some(least.into())
    }

    /// As [`Store::sweep_at`]. Waits for pages that readers may still use: not to be called with a guard or a lock.
    ///
    /// # Errors
    /// As [`Store::sweep_at`].
    fn sweep_in_time(&self, key: &[u8], patience: &mut Patience) -> Result<()> {
        patience.renew();
        self.pages.in_time(patience, || self.sweep_at(key, 0))
    }

    /// Rewrites the leaf that serves `key`, if any record in it has expired; leaves `reserve` pages.
    ///
    /// # Errors
    /// [`Error::NoSpace`](coreplane_engine::Error::NoSpace), and if the medium fails.
    fn sweep_at(&self, key: &[u8], reserve: u32) -> Result<()> {
        let guard = epoch::pin();
        let locked = self.lock_to_write(key, 0)?;
        self.ask_for_records(&locked);
        if self.records_of(&guard, &locked)?.expired.is_empty() {
            return Ok(());
        }
        self.rewrite(&guard, locked, (key, 0), reserve)
    }
}
