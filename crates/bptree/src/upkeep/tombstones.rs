//! Decides which tombstones are kept.

use crate::upkeep::Store;
use crate::volume::root::Root;
use coreplane_engine::Result;
use coreplane_pmem::spin;
use std::sync::atomic::Ordering;

impl Store {
    /// Keeps the tombstones above `sequence`, after a restart too: durable when it returns
    /// (`a_flush_or_a_fence_of_these_that_is_missing_is_found`, as for told expiries).
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub(crate) fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        self.check_writable()?;
        let _holding = spin::lock(&self.holding);
        let before = self.held_tombstones.load(Ordering::Acquire);
        if sequence < before {
            self.held_tombstones.store(sequence, Ordering::Release);
            // Writers that still forget tombstones have recorded that by then.
            self.wait_for_writers();
        }
        self.write_held(sequence)?;
        // Tombstones that are no longer kept are forgotten only when the root states that: otherwise a power cut
        // could leave them forgotten, and no reader would be told.
        self.held_tombstones.store(sequence, Ordering::Release);
        Ok(())
    }

    /// Makes the root state which tombstones are kept, unless it does already. Tombstones that were forgotten
    /// before stay forgotten. If this fails the root may state either, and another call makes it state this.
    fn write_held(&self, sequence: u64) -> Result<()> {
        let _changing = spin::lock(&self.root_change);
        let forgotten = self.forgotten_tombstones.load(Ordering::Acquire);
        let held = if sequence == u64::MAX { 0 } else { sequence.max(forgotten) + 1 };
        let root = Root::from_words(self.pool.root());
        if root.held == held { Ok(()) } else { self.set_root(Root { held, ..root }) }
    }
}
