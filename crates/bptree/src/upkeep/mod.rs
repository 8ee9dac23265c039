//! The store as a whole: opened, grown, maintained and closed.

mod close;
mod scrub;
mod settle;
mod sweep;
#[cfg(test)]
mod tests;
mod tombstones;
mod verify;

use crate::recovery::open;
use crate::write::Writer;
use coreplane_engine::{Progress, Result};
use coreplane_pmem::{Pool, spin};
use coreplane_record::Options;
use parking_lot::Mutex;
use std::ops::Deref;

/// An open store.
pub(crate) struct Store {
    writer: Writer,
    /// Held while the kept tombstones are changed.
    holding: Mutex<()>,
    /// Held while the pool grows, by nothing else.
    growing: Mutex<()>,
    /// The pool stays unchanged: what is written is in this process alone.
    is_copy: bool,
}

impl Deref for Store {
    type Target = Writer;

    #[inline(always)]
    fn deref(&self) -> &Writer {
        &self.writer
    }
}

impl Store {
    /// Makes a store of a fresh pool.
    pub(crate) fn format(pool: Pool, options: &Options) -> Result<Self> {
        open::format(pool, options).map(|writer| Self::over(writer, options))
    }

    /// Opens the store that a pool holds.
    pub(crate) fn open(
        pool: Pool,
        options: &Options,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self> {
        open::open(pool, options, progress).map(|writer| Self::over(writer, options))
    }

    fn over(writer: Writer, options: &Options) -> Self {
        let (holding, growing) = (Mutex::new(()), Mutex::new(()));
        Self { writer, holding, growing, is_copy: options.is_copy }
    }

    /// Grows the pool to `size` bytes while it is in use.
    ///
    /// # Errors
    /// [`Error::NoSpace`](coreplane_engine::Error::NoSpace), and if the medium fails.
    pub(crate) fn grow(&self, size: u64) -> Result<()> {
        let _growing = spin::lock(&self.growing);
        // A close beside it loses nothing: the root states the size by itself.
        self.check_writable()?;
        let before = self.space.pages();
        self.pool.grow(size).map_err(coreplane_record::pool_error)?;
        self.pages.offer(before..self.space.pages());
        Ok(())
    }
}
