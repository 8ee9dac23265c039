//! Growth of a partition: new tables are made in the added pages.
//!
//! ```text
//!   header  tables  map pages and blocks ‥ │ tables of more extents   free
//!           └── free, once the root names the new ────┘
//! ```

use super::Volume;
use super::layout::{Geometry, Root, WORD};
use super::name::BLOCKS_MAX;
use crate::error::{Error, Result};
use coreplane_pmem::{Claim, Durable, mutant};

impl Volume {
    /// Grows this partition for a disk of `sectors` sectors; atomic, and durable when it returns. The partition must
    /// be opened again.
    ///
    /// # Errors
    /// As [`Pool::grow`](coreplane_pmem::Pool::grow), after which the partition is as before.
    pub(crate) fn grow(self, sectors: u64) -> Result<()> {
        if sectors <= self.geometry.sectors {
            return Ok(());
        }
        let geometry = Geometry { sectors, ..self.geometry };
        let partitions = self.identity.partitions;
        let tables = geometry.directory_pages() + geometry.journal_pages(partitions);
        let first = self.space().pages();
        let page_len = u64::from(geometry.sector_len);
        if u64::from(first) + tables > u64::from(BLOCKS_MAX) {
            return Err(Error::Partitions("a partition cannot be that large".to_owned()));
        }
        let behind = (u64::from(first) + tables) * page_len;
        self.pool.grow(geometry.partition_bytes(partitions)?.max(behind))?;
        for page in first..first + tables as u32 {
            if !self.space().claim_words(page, Claim::Words) {
                return Err(self.no_space());
            }
        }
        let start = self.space().start_of(first);
        for extent in 0..self.geometry.extents() {
            let from = self.space().word::<Durable>(self.directory + extent * WORD);
            let to = self.space().word::<Durable>(start + extent * WORD);
            if let (Some(from), Some(to)) = (from, to) {
                to.store(from.load());
            }
        }
        if !mutant!("tio.growth.flush") {
            self.space().persist(start, tables * page_len)?;
        }
        let root = Root { sectors, directory: first };
        self.pool.set_root(root.to_words()).map_err(Error::from)
    }
}
