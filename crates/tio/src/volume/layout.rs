//! The layout of a partition.
//!
//! ```text
//!   page 0        the pool's header
//!   1 ‥ d         directory: a word for each extent of the disk, with its map page here
//!   d ‥ j         journal: writes whose names are not durable yet
//!   behind        map pages and blocks, as they are taken
//! ```
//!
//! The root has the number of sectors of the disk and the place of the directory; the pool's parameters have the
//! number of the disk, the number of the partition and the number of partitions.

use crate::error::{Error, Result};
use crate::volume::journal::journal_pages;
use crate::volume::name::BLOCKS_MAX;
use coreplane_pmem::Pool;
use coreplane_pmem::pool::{ROOT_WORDS, first_page};

// media-format: begin pool
/// The kind of a partition's pool.
pub(crate) const KIND: &str = "tio";
/// Bytes of a name, and of a word of the directory.
pub(crate) const WORD: u64 = 8;

/// The disk and the number of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Drawn at random when the disk was made. Never 0.
    pub(crate) disk: u64,
    pub(crate) partition: u32,
    pub(crate) partitions: u32,
}

impl Identity {
    pub(crate) fn to_parameters(self) -> [u64; 8] {
        let Self { disk, partition, partitions } = self;
        [disk, u64::from(partition), u64::from(partitions), 0, 0, 0, 0, 0]
    }

    pub(crate) fn of(pool: &Pool) -> Result<Self> {
        let [disk, partition, partitions, ..] = pool.parameters();
        let number = |word: u64| u32::try_from(word).ok();
        match (number(partition), number(partitions)) {
            (Some(partition), Some(partitions)) if partition < partitions && disk > 0 => {
                Ok(Self { disk, partition, partitions })
            }
            _ => Err(Error::Partitions("the pool is no partition of a disk".to_owned())),
        }
    }
}

/// The root of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Root {
    /// Sectors of the disk; 0 for a partition whose creation was interrupted.
    pub(crate) sectors: u64,
    /// The first page of the directory.
    pub(crate) directory: u32,
}

impl Root {
    pub(crate) fn to_words(self) -> [u64; ROOT_WORDS] {
        let mut words = [0; ROOT_WORDS];
        (words[0], words[1]) = (self.sectors, u64::from(self.directory));
        words
    }

    pub(crate) fn of(pool: &Pool) -> Result<Self> {
        let [sectors, directory, ..] = pool.root();
        let directory = u32::try_from(directory).unwrap_or(u32::MAX);
        if sectors == 0 {
            let what = "the making of the disk was cut off: remove its pools, and make it again";
            return Err(Error::Partitions(what.to_owned()));
        }
        Ok(Self { sectors, directory })
    }
}
// media-format: end

/// The sizes of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Bytes of a sector, of a block and of a page.
    pub(crate) sector_len: u32,
    /// Sectors of the disk.
    pub(crate) sectors: u64,
}

impl Geometry {
    /// Sectors of an extent: as many as a page has names.
    pub(crate) fn extent_sectors(self) -> u64 {
        u64::from(self.sector_len) / WORD
    }

    /// Extents of the disk.
    pub(crate) fn extents(self) -> u64 {
        self.sectors.div_ceil(self.extent_sectors())
    }

    pub(crate) fn directory_pages(self) -> u64 {
        self.extents().div_ceil(self.extent_sectors())
    }

    /// The most pages that an extent takes.
    pub(crate) fn extent_pages(self) -> u64 {
        self.extent_sectors() + 1
    }

    /// Blocks beyond those of all sectors: for writes whose names are not durable yet, and for the blocks that they
    /// replace.
    pub(crate) fn spare(self, extents: u64) -> u64 {
        (extents * self.extent_sectors() / 64).clamp(64, 1 << 16)
    }

    /// The capacity of the journal of a partition, in writes.
    pub(crate) fn journal_len(self, partitions: u32) -> u64 {
        2 * self.spare(self.extents().div_ceil(u64::from(partitions)))
    }

    pub(crate) fn journal_pages(self, partitions: u32) -> u64 {
        journal_pages(self.journal_len(partitions), self.sector_len)
    }

    /// Bytes of a partition with room for its share of the extents.
    ///
    /// # Errors
    /// [`Error::Partitions`] if a partition would have more blocks than names can denote.
    pub(crate) fn partition_bytes(self, partitions: u32) -> Result<u64> {
        let extents = self.extents().div_ceil(u64::from(partitions));
        let tables = self.directory_pages() + self.journal_pages(partitions);
        let header = u64::from(first_page(self.sector_len)) + tables;
        let pages = header + extents * self.extent_pages() + self.spare(extents);
        if pages > u64::from(BLOCKS_MAX) {
            return Err(Error::Partitions(format!(
                "a partition of {pages} pages is more than the {BLOCKS_MAX} that there can be: make more partitions"
            )));
        }
        Ok(pages * u64::from(self.sector_len))
    }
}
