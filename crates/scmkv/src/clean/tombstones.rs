//! Which tombstones are kept.

use crate::clean::Cleaner;
use crate::table::root::Root;
use coreplane_engine::Result;
use coreplane_pmem::spin;
use std::sync::atomic::Ordering;

impl Cleaner {
    /// Keeps the tombstones above `sequence`, after a restart too.
    pub(crate) fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        // No tombstone is dropped meanwhile.
        let _cleaning = spin::lock(&self.cleaner_state);
        self.check_writable()?;
        // If the root cannot be written it may have the old or the new value: the tombstones of
        // both are kept, and the next call writes the root.
        self.held_tombstones.fetch_min(sequence, Ordering::AcqRel);
        let dropped = self.dropped_tombstones.load(Ordering::Acquire);
        let held = if sequence == u64::MAX { 0 } else { sequence.max(dropped) + 1 };
        {
            let _changing = spin::lock(&self.root_change);
            let root = self.root();
            if root.held != held {
                self.set_root(Root { held, ..root })?;
            }
        }
        self.held_tombstones.store(sequence, Ordering::Release);
        Ok(())
    }
}
