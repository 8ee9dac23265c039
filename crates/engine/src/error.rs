//! Errors, with evidence, sorted by what the caller must do.

/// The result of an engine's call.
pub type Result<T> = std::result::Result<T, Error>;

/// What the caller must do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// The same call may succeed later.
    Retry,
    /// Delete records or grow the pool.
    FreeSpace,
    /// The call's arguments are out of bounds.
    FixInput,
    /// The pool is damaged: `coreplane verify`, then restore or repair.
    Repair,
    /// Nothing can be done through this handle; open the pool again.
    GiveUp,
}

/// What makes way for a device at a place of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vacancy {
    /// A fresh device can take the place of what is there.
    Fresh,
    /// The device there is current: it is to be retired first.
    Retire,
}

/// Why an engine could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is longer than the engine's limit.
    #[error("key of {len} bytes is over the limit of {max}")]
    KeyTooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The value is longer than the engine's limit.
    #[error("value of {len} bytes is over the limit of {max}")]
    ValueTooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The batch has more changes than the engine's limit.
    #[error("batch of {len} changes is over the limit of {max}")]
    BatchTooLarge {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The batch has more bytes of keys and values than the engine's limit.
    #[error("batch of {bytes} bytes of keys and values is over the limit of {max}")]
    BatchTooLong {
        /// Bytes of its keys and values.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The pool is full.
    #[error("no space: {needed} bytes needed, {reclaimable} bytes reclaimable")]
    NoSpace {
        /// Bytes needed.
        needed: u64,
        /// Dead bytes that cleaning could still give back.
        reclaimable: u64,
    },
    /// Stored bytes do not match their checksum.
    #[error(
        "checksum mismatch at offset {offset:#x}: stored {stored:#010x}, computed {computed:#010x}"
    )]
    ChecksumMismatch {
        /// Where in the pool.
        offset: u64,
        /// The checksum that is stored.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// Stored bytes make no sense.
    #[error("corrupt at offset {offset:#x}: {what}")]
    Corrupt {
        /// Where in the pool.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// The pool cannot be used at all.
    #[error("unusable pool: {0}")]
    Unusable(String),
    /// There is no pool: something else, or what is left of one whose creation was cut off.
    #[error("unusable pool: {0}")]
    NotAPool(String),
    /// Somebody has the pool open: another process, or this one.
    #[error("unusable pool: {0}")]
    Locked(String),
    /// The file is shorter than the pool that it is to hold.
    #[error("truncated pool: {expected} bytes expected, the file has {found}")]
    Truncated {
        /// Bytes that the pool has.
        expected: u64,
        /// Bytes that the file has.
        found: u64,
    },
    /// A device of a matrix cannot be filled at its place as it is.
    #[error("unusable pool: {what}")]
    Occupied {
        /// Why.
        what: String,
        /// What makes way for it.
        vacancy: Vacancy,
    },
    /// A sync of the medium failed; what was not yet durable may be lost, and writes have stopped
    /// for good.
    #[error("sync of the medium failed: {0}; writes have stopped, open the pool again")]
    SyncFailed(String),
    /// The store was opened read-only.
    #[error("the store is read-only")]
    ReadOnly,
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
    /// The changes asked for are no longer complete.
    #[error("changes since sequence {asked} are gone: the horizon is {horizon}")]
    HistoryGone {
        /// The sequence that was asked for.
        asked: u64,
        /// The oldest that can be answered.
        horizon: u64,
    },
    /// A number that is none of those that can be given now.
    #[error("{what}: {given} is not one of {from} to {to}")]
    OutOfRange {
        /// What it was given for.
        what: &'static str,
        /// The number.
        given: u64,
        /// The least that can be.
        from: u64,
        /// The greatest that can be.
        to: u64,
    },
    /// A snapshot is being installed: nothing is there before it is.
    #[error("a snapshot is being installed, and was not installed as a whole yet")]
    Installing,
    /// Another node leads: ask there.
    #[error("this node does not lead; the leader is {}", leader.map_or("not known".to_owned(), |id| format!("node {id}")))]
    NotLeader {
        /// Its number, if it is known.
        leader: Option<u64>,
    },
    /// A write that may have been made, or may be made later, or never: its leader lost the leadership before it knew.
    #[error("nobody knows whether the write was made: the leadership ended before")]
    Indeterminate,
    /// Too much is under way: nothing was done.
    #[error("too much is under way; try again")]
    Busy,
    /// The operation is not one of this engine's.
    #[error("{engine} does not support {operation}")]
    Unsupported {
        /// The engine.
        engine: &'static str,
        /// The operation.
        operation: &'static str,
    },
    /// The engine keeps its keys in no order, so that it has no ranges of them.
    #[error(
        "{engine} keeps its keys in no order: ranges and prefixes need an engine that is ordered"
    )]
    NotOrdered {
        /// The engine.
        engine: &'static str,
    },
    /// An error of the operating system.
    #[error("{context}: {source}")]
    Io {
        /// What was being done.
        context: String,
        /// The error.
        source: std::io::Error,
    },
}

impl Error {
    /// What the caller must do.
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::KeyTooLong { .. }
            | Self::ValueTooLong { .. }
            | Self::BatchTooLarge { .. }
            | Self::BatchTooLong { .. }
            | Self::HistoryGone { .. }
            | Self::OutOfRange { .. }
            | Self::Unsupported { .. }
            | Self::NotOrdered { .. }
            | Self::ReadOnly => Remedy::FixInput,
            Self::NoSpace { .. } => Remedy::FreeSpace,
            Self::Locked(_)
            | Self::Installing
            | Self::NotLeader { .. }
            | Self::Indeterminate
            | Self::Busy => Remedy::Retry,
            Self::ChecksumMismatch { .. }
            | Self::Corrupt { .. }
            | Self::Truncated { .. }
            | Self::Occupied { .. }
            | Self::Unusable(_)
            | Self::NotAPool(_) => Remedy::Repair,
            Self::SyncFailed(_) | Self::Closed => Remedy::GiveUp,
            Self::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::Interrupted
                | std::io::ErrorKind::WouldBlock
                | std::io::ErrorKind::TimedOut => Remedy::Retry,
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    Remedy::FreeSpace
                }
                std::io::ErrorKind::NotFound
                | std::io::ErrorKind::PermissionDenied
                | std::io::ErrorKind::InvalidInput => Remedy::FixInput,
                _ => Remedy::GiveUp,
            },
        }
    }
}
