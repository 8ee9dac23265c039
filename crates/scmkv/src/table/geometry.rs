//! The sizes that are fixed when a store is created, kept among the pool's parameters.
//!
//! ```text
//!   page (2 MiB) = 1 header unit + 31 index segments of 64 KiB       (index pages)
//!                = records, one after the other                      (log pages)
//!   segment      = 64 groups of 16 buckets of 8 slots of 8 bytes
//! ```
//!
//! Everything is a parameter so that a crash test can run the whole engine in 64 KiB.

use coreplane_engine::{Error, Result};
use coreplane_pmem::LINE;

/// Slots in a bucket: a cache line of 8-byte words.
pub(crate) const SLOTS: u64 = 8;

/// Sizes of a store. `Geometry::default()` is for real pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in a page; a power of two from 4096 to 1 GiB.
    pub page_size: u32,
    /// Groups in an index segment; a power of two up to 64.
    pub groups: u32,
    /// Buckets in a group; a power of two up to 16.
    pub buckets: u32,
    /// Depth of the directory at creation: the index starts with `2^depth` segments.
    pub depth: u32,
}

impl Default for Geometry {
    fn default() -> Self {
        Self { page_size: 2 << 20, groups: 64, buckets: 16, depth: 0 }
    }
}

impl Geometry {
    /// The smallest that works: for crash tests.
    pub const TINY: Self = Self { page_size: 4096, groups: 1, buckets: 4, depth: 0 };

    /// This geometry, its first directory sized for a pool of `size` bytes: about one index page
    /// in 512, so that the index has doubled a few times before the pool is full and its stored
    /// hash bits suffice.
    #[must_use]
    pub fn sized_for(mut self, size: u64) -> Self {
        let segments = size / (self.segment_bytes() * 256).max(1);
        self.depth = segments.max(1).ilog2().min(12);
        self
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        u64::from(self.groups) * self.group_bytes()
    }

    pub(crate) fn group_bytes(&self) -> u64 {
        u64::from(self.buckets) * LINE as u64
    }

    /// Index segments in a page; the first unit of a page holds their header words.
    pub(crate) fn segments_per_page(&self) -> u64 {
        u64::from(self.page_size) / self.segment_bytes() - 1
    }

    /// The longest record, header included: a quarter of a page.
    pub(crate) fn record_max(&self) -> usize {
        self.page_size as usize / 4
    }

    /// Values longer than this are stored as overflow records.
    pub(crate) fn inline_max(&self) -> usize {
        self.page_size as usize / 8
    }

    /// The longest key.
    pub(crate) fn key_max(&self) -> usize {
        (self.page_size as usize / 16).min(coreplane_engine::KEY_LEN_MAX)
    }

    /// The pool parameters that hold these sizes.
    pub(crate) fn to_parameters(self) -> [u64; 8] {
        let Self { page_size, groups, buckets, depth } = self;
        [page_size, groups, buckets, depth, 0, 0, 0, 0].map(u64::from)
    }

    /// Reads the parameters back.
    ///
    /// # Errors
    /// If they make no sense, although the pool's checksum holds.
    pub(crate) fn from_parameters(parameters: &[u64; 8]) -> Result<Self> {
        let at = |index: usize| u32::try_from(parameters[index]).unwrap_or(u32::MAX);
        let geometry = Self { page_size: at(0), groups: at(1), buckets: at(2), depth: at(3) };
        geometry.check()?;
        Ok(geometry)
    }

    /// # Errors
    /// If a size is out of its bounds.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { page_size, groups, buckets, depth } = *self;
        let sound = page_size.is_power_of_two()
            && (4096..=1 << 30).contains(&page_size)
            && groups.is_power_of_two()
            && groups <= 64
            && buckets.is_power_of_two()
            && buckets <= 16
            && depth <= 16
            && u64::from(page_size) >= 2 * self.segment_bytes()
            && self.segments_per_page() * 8 + 8 <= self.segment_bytes();
        if sound { Ok(()) } else { Err(Error::Unusable(format!("geometry {self:?}"))) }
    }
}
