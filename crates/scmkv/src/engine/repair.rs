//! Opening a pool that is damaged.

use crate::engine::Scmkv;
use crate::recovery::open::{self, Options};
use crate::store::Store;
use coreplane_engine::{Repair, Result, Tell};
use coreplane_pmem::{MediaChoice, OpenOptions, Pool, Space};
use std::path::Path;
use std::sync::Arc;

impl Scmkv {
    /// Repairs the pool at `path`, which must not be open anywhere, as far as it is damaged, and
    /// opens it. `tell` gets each finding, with the loss that it causes, before anything is changed
    /// for it. A sound pool is not changed.
    ///
    /// # Errors
    /// As [`Scmkv::open`], for damage that cannot be repaired: of the pool's header, or of both
    /// copies of its root. [`NoSpace`](coreplane_engine::Error::NoSpace) if a record must be
    /// written and there is no page for it.
    pub fn repair(
        path: &Path,
        media: MediaChoice,
        options: Options,
        tell: Tell<'_>,
    ) -> Result<(Self, Repair)> {
        let media = OpenOptions { media };
        let restored = Pool::repair(path, &media).map_err(open::pool_error)?;
        let pool = Pool::open_repaired(path, &media).map_err(open::pool_error)?;
        let (store, repair) = Store::repaired(pool, restored, &options, tell)?;
        Pool::end_repair(path).map_err(open::pool_error)?;
        Ok((Self::start(store, &options)?, repair))
    }

    /// As [`Scmkv::repair`], in the simulator's memory.
    ///
    /// # Errors
    /// As [`Scmkv::repair`].
    pub fn simulated_repair(
        space: Arc<Space>,
        options: Options,
        tell: Tell<'_>,
    ) -> Result<(Self, Repair)> {
        let pool = Pool::simulated_open(space).map_err(open::pool_error)?;
        let (store, repair) = Store::repaired(pool, Vec::new(), &options, tell)?;
        Ok((Self::start(store, &options)?, repair))
    }
}
