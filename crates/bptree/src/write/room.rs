//! Room for a record.

use crate::tree::fill_factor::FillFactor;
use crate::volume::pages::Demand;
use crate::write::Writer;
use coreplane_engine::Result;
use coreplane_pmem::epoch;

impl Writer {
    /// Sees to it that the leaf that serves `key` has room for a record of `len` bytes. What is vital
    /// takes the last pages.
    ///
    /// # Errors
    /// [`Error::NoSpace`](coreplane_engine::Error::NoSpace), and if the medium fails.
    pub(crate) fn make_room(&self, key: &[u8], len: usize, demand: Demand) -> Result<()> {
        {
            let guard = epoch::pin();
            let locked = self.lock_to_write(key, 0)?;
            if self.room(&locked) >= len {
                if self.fill_factor() != FillFactor::AMPLE {
                    locked.leaf.allow_full();
                }
                if locked.leaf.vacancy().is_some() {
                    return Ok(());
                }
            }
            self.rewrite(&guard, locked, (key, len), self.pages.reserve(demand))?;
        }
        self.compact_if_due();
        Ok(())
    }
}
