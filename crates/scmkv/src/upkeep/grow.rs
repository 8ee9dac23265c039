//! Growing the pool while it is in use.

use crate::store::Store;
use crate::table::root::Root;
use coreplane_engine::Result;
use coreplane_pmem::spin;

impl Store {
    /// Grows the pool. The new pages count once their elements are durable; the next open writes
    /// those that a crash has left out.
    ///
    /// # Errors
    /// If there is no room for it.
    pub(crate) fn grow(&self, size: u64) -> Result<()> {
        crate::recovery::open::check_len(size)?;
        let _cleaning = spin::lock(&self.cleaner_state);
        self.check_writable()?;
        let before = self.pages.len();
        self.pool.grow(size).map_err(crate::recovery::open::pool_error)?;
        self.pages.format(before)?;
        {
            let _changing = spin::lock(&self.root_change);
            self.set_root(Root { formatted: u64::from(self.pages.len()), ..self.root() })?;
        }
        self.pages.offer(before);
        Ok(())
    }
}
