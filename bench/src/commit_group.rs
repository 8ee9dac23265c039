//! Writes that share a commit.

use crate::Result;
use coreplane_engine::{Completion, Horizon, Outcome, StorageEngine, WriteOptions};

/// What a write is asked for that others follow before the commit.
pub(crate) const EARLY: WriteOptions = WriteOptions {
    expires_at: None,
    durability: None,
    completion: Completion::Early,
    sequence: None,
    use_reserve: false,
};

/// Early writes of one thread: durable once so many are there.
pub(crate) struct CommitGroup<'e> {
    engine: &'e dyn StorageEngine,
    horizon: Horizon,
    pending: usize,
    size: usize,
}

impl<'e> CommitGroup<'e> {
    /// Groups of `size` writes.
    pub(crate) fn new(engine: &'e dyn StorageEngine, size: usize) -> Self {
        Self { engine, horizon: Horizon::new(), pending: 0, size }
    }

    /// A write was made; it was the last one of its group if that is full by it.
    ///
    /// # Errors
    /// If the medium fails.
    #[inline]
    pub(crate) fn add(&mut self, outcome: &Outcome) -> Result<()> {
        self.horizon.include(outcome.ticket());
        self.pending += 1;
        if self.pending >= self.size { self.commit() } else { Ok(()) }
    }

    /// All that was written is durable when it returns.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn commit(&mut self) -> Result<()> {
        self.pending = 0;
        if !self.engine.commit(&self.horizon)? {
            self.engine.wait_durable(&self.horizon)?;
        }
        self.horizon.clear();
        Ok(())
    }
}
