//! What can go wrong.

use coreplane_pmem::{PoolError, SyncError};

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A sector whose name or bytes are not what was written: it reads as an error until it is written again.
    #[error("sector {sector} is damaged: {what}")]
    Damaged {
        /// Its number.
        sector: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Bytes that the disk does not have.
    #[error("bytes {from} to {to} are not on a disk of {len}")]
    OutOfRange {
        /// The first.
        from: u64,
        /// Behind the last.
        to: u64,
        /// Bytes of the disk.
        len: u64,
    },
    /// No block is free. A disk has a block for each of its sectors: pages were lost, or readers have not let go of some.
    #[error("no free block in partition {partition}")]
    NoSpace {
        /// The partition.
        partition: u32,
    },
    /// The medium has failed to make something durable: nothing is written any more.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// A partition's pool cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The partitions do not make a disk.
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
