//! Removes expired records.

use crate::upkeep::Store;
use crate::volume::counters::Count;
use crate::volume::hurt::is_damage;
use crate::volume::pages::Patience;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch;

impl Store {
    /// Removes expired records; returns how many. Goes on behind damage, and reports it last.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails; if a leaf is damaged, after all others have been swept.
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

    /// As [`Store::sweep_at`]. Waits for pages that readers may still use: not to be called with a guard or a lock.
    ///
    /// # Errors
    /// As [`Store::sweep_at`].
    fn sweep_in_time(&self, key: &[u8], patience: &mut Patience) -> Result<()> {
        patience.renew();
        loop {
            match self.sweep_at(key) {
                Err(Error::NoSpace { .. }) if self.pages.wait_for_more(patience) => {}
                swept => return swept,
            }
        }
    }

    /// Rewrites the leaf that serves `key`, if any record in it has expired.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    fn sweep_at(&self, key: &[u8]) -> Result<()> {
        let guard = epoch::pin();
        let locked = self.lock_to_write(key, 0)?;
        self.ask_for_records(&locked);
        if self.records_of(&guard, &locked)?.expired.is_empty() {
            return Ok(());
        }
        self.rewrite(&guard, locked, (key, 0), 0)
    }
}
