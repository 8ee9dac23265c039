//! Closes the store: a clean root, and a [checkpoint](crate::recovery::checkpoint) with which the next open begins.

use crate::inner::Bound;
use crate::leaf::Life;
use crate::recovery::checkpoint::Sheet;
use crate::upkeep::Store;
use crate::volume::root::Root;
use coreplane_engine::{Error, Result};
use coreplane_pmem::spin::Patience;
use coreplane_pmem::{epoch, spin};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The longest wait for threads that are about to give a page back. Only the next recovery finds a page that comes
/// later.
const STRAGGLERS_MAX: Duration = Duration::from_millis(200);

impl Store {
    /// Leaves a clean store behind, and a checkpoint if there is room for it. Writes fail from now on.
    pub(crate) fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::SeqCst) {
            let is_clean = Root::from_words(self.pool.root()).flags & Root::CLEAN != 0;
            let failed = || Error::Unusable("closing has failed, or goes on".to_owned());
            return is_clean.then_some(()).ok_or_else(failed);
        }
        let _whole = spin::lock(&self.whole);
        let leaves = self.shut_leaves();
        self.fence()?;
        let checkpoint = self.write_checkpoint(leaves)?;
        let _changing = spin::lock(&self.root_change);
        let root = Root::from_words(self.pool.root());
        self.set_root(Root { flags: root.flags | Root::CLEAN, checkpoint, ..root })
    }

    /// Writes a checkpoint of a store whose leaves are shut; returns its first page, for the root to name.
    fn write_checkpoint(&self, leaves: Vec<Bound>) -> Result<Option<Life>> {
        wait_for_stragglers();
        Sheet::of(self, leaves)?.write(self)
    }
}

/// Waits for threads that have written and not yet given back pages that nothing leads to any more.
fn wait_for_stragglers() {
    let (stamp, mut patience) = (epoch::stamp(), Patience::new(STRAGGLERS_MAX));
    while !epoch::has_passed(stamp) && patience.wait() {}
}
