//! Errors.

use coreplane_pmem::{PoolError, SyncError};

/// An error of a disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A sector whose name or bytes are not those that were written: reads of it fail until it is written again.
    #[error("sector {sector} is damaged: {what}")]
    Damaged {
        /// Its number.
        sector: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A range beyond the end of the disk.
    #[error("bytes {from} to {to} are not on a disk of {len}")]
    OutOfRange {
        /// The first byte of the range.
        from: u64,
        /// The end of the range, exclusive.
        to: u64,
        /// Bytes of the disk.
        len: u64,
    },
    /// No block is free. A disk has a block for each of its sectors, so pages were lost, or readers still hold some.
    #[error("no free block in partition {partition}")]
    NoSpace {
        /// The partition.
        partition: u32,
    },
    /// A sync of the medium has failed: no more writes are possible.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// A partition's pool cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The partitions do not form a disk.
    #[error("{0}")]
    Partitions(String),
    /// The disk was closed.
    #[error("the disk is closed")]
    Closed,
    /// A place that cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
