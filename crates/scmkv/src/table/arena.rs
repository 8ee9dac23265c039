//! The DRAM of an index that is not in the pool: word pages, one after the other.

use crate::table::geometry::Geometry;
use coreplane_engine::{Error, Result};
use coreplane_pmem::{Claim, Space, SpaceOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) space: Arc<Space>,
    next: AtomicU32,
}

impl Arena {
    /// An arena that can grow to a quarter of `pool_reserve`, but to 64 pages at least.
    pub(crate) fn new(geometry: &Geometry, pool_reserve: u64) -> Result<Self> {
        let page = u64::from(geometry.page_size);
        let reserve = (pool_reserve / 4).max(64 * page);
        let options = SpaceOptions { page_size: geometry.page_size, reserve, own_epochs: false };
        let space = Space::dram(page, &options)
            .map_err(|source| Error::Io { context: "DRAM for the index".to_owned(), source })?;
        Ok(Self { space: Arc::new(space), next: AtomicU32::new(0) })
    }

    /// The offset of a fresh page. One caller at a time.
    pub(crate) fn supply(&self) -> Result<Option<u64>> {
        let page = self.next.fetch_add(1, Ordering::AcqRel);
        let end = self.space.start_of(page) + u64::from(self.space.page_size());
        if end > self.space.len() {
            self.space.grow(end).map_err(|source| Error::Io {
                context: "more DRAM for the index".into(),
                source,
            })?;
        }
        // Each page is handed out once: it is zero as the system gave it, and is not touched before
        // it is used.
        Ok(self.space.claim_words(page, Claim::WordsAsStored).then(|| self.space.start_of(page)))
    }
}
