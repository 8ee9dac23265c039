//! Which tombstones are kept.

use crate::upkeep::Store;
use crate::volume::root::Root;
use coreplane_engine::Result;
use coreplane_pmem::spin;
use std::sync::atomic::Ordering;

impl Store {
    /// Keeps the tombstones above `sequence`, after a restart too: durable when it returns
    /// (`a_flush_or_a_fence_of_these_that_is_missing_is_found`, as what is told of expiries).
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub(crate) fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        self.check_writable()?;
        let _holding = spin::lock(&self.holding);
        let before = self.held_tombstones.load(Ordering::Acquire);
        if sequence < before {
            self.held_tombstones.store(sequence, Ordering::Release);
            // Whoever forgets some still has said so by then.
            self.wait_for_writers();
        }
        self.write_held(sequence)?;
        // What is kept no more is forgotten only when the root says so: else a power cut could leave it
        // forgotten, and nobody would be told.
        self.held_tombstones.store(sequence, Ordering::Release);
        Ok(())
    }

    /// Lets the root say which tombstones are kept, if it does not. What was forgotten before stays so. If
    /// it fails the root may say either, and whoever calls again makes it say this.
    fn write_held(&self, sequence: u64) -> Result<()> {
        let _changing = spin::lock(&self.root_change);
        let forgotten = self.forgotten_tombstones.load(Ordering::Acquire);
        let held = if sequence == u64::MAX { 0 } else { sequence.max(forgotten) + 1 };
        let root = Root::from_words(self.pool.root());
        if root.held == held { Ok(()) } else { self.set_root(Root { held, ..root }) }
    }
}
