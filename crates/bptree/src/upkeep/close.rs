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

/// The longest wait for threads that are about to give a page back. Only a recovery finds a page that comes later:
/// if it is one of a row that no record names, the next open is one.
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
        self.wait_for_stragglers();
        // Where that is a sync, pages that they have given back are free after it.
        self.fence()?;
        let checkpoint = self.write_checkpoint(leaves)?;
        let _changing = spin::lock(&self.root_change);
        let root = Root::from_words(self.pool.root());
        self.set_root(Root { flags: root.flags | Root::CLEAN, checkpoint, ..root })
    }

    /// Writes a checkpoint of a store whose leaves are shut; returns its first page, for the root to name. None if
    /// there are pages of a write that has yet to find the store closed: in a checkpoint they would be in use; and if
    /// damage has made the counts, or the free pages, unsure: the next open finds them again.
    fn write_checkpoint(&self, leaves: Vec<Bound>) -> Result<Option<Life>> {
        if self.counters.are_unsure() {
            return Ok(None);
        }
        let Some(quiet) = self.unnamed_rows.quiet() else { return Ok(None) };
        let sheet = Sheet::of(self, leaves)?;
        if self.unnamed_rows.is_quiet_since(quiet) { sheet.write(self) } else { Ok(None) }
    }

    /// Waits for threads that have written and not yet given back pages that nothing leads to any more.
    fn wait_for_stragglers(&self) {
        let (stamp, mut patience) = (epoch::stamp(), Patience::new(STRAGGLERS_MAX));
        let is_over = || self.unnamed_rows.quiet().is_some() && epoch::has_passed(stamp);
        while !is_over() && patience.wait() {}
    }
}
