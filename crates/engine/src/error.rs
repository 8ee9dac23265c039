//! Errors, with details, sorted by what the caller must do.

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

/// How a place of a matrix can be made free for a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vacancy {
    /// A fresh device can replace the one there.
    Fresh,
    /// The device there is current: it must be retired first.
    Retire,
}

/// The reason for which a call of an engine failed.
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
        /// Dead bytes that cleaning could still reclaim.
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
    /// Not a pool: other content, or the remains of a pool whose creation was interrupted.
    #[error("unusable pool: {0}")]
    NotAPool(String),
    /// The pool is already open, in another process or in this one.
    #[error("unusable pool: {0}")]
    Locked(String),
    /// The file is shorter than the pool in it.
    #[error("truncated pool: {expected} bytes expected, the file has {found}")]
    Truncated {
        /// Bytes that the pool has.
        expected: u64,
        /// Bytes that the file has.
        found: u64,
    },
    /// The repair of a truncated file has not ended, or the file was replaced since.
    #[error(
        "truncated pool: {expected} bytes expected, {found} were left when a repair began, which has not ended; if the \
         pool was replaced since, remove {mark}"
    )]
    Unrepaired {
        /// Bytes that the pool has.
        expected: u64,
        /// Bytes that were left.
        found: u64,
        /// The file that says so.
        mark: String,
    },
    /// A place of a matrix cannot take a device in its present state.
    #[error("unusable pool: {what}")]
    Occupied {
        /// Why.
        what: String,
        /// How the place can be made free.
        vacancy: Vacancy,
    },
    /// A sync of the medium failed; writes that were not yet durable may be lost, and the store
    /// accepts no more writes.
    #[error("sync of the medium failed: {0}; writes have stopped, open the pool again")]
    SyncFailed(String),
    /// The store was opened read-only.
    #[error("the store is read-only")]
    ReadOnly,
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
    /// The requested changes are no longer complete.
    #[error("changes since sequence {asked} are gone: the horizon is {horizon}")]
    HistoryGone {
        /// The sequence that was asked for.
        asked: u64,
        /// The oldest that can be answered.
        horizon: u64,
    },
    /// A number outside the range that is valid now.
    #[error("{what}: {given} is not one of {from} to {to}")]
    OutOfRange {
        /// The purpose of the number.
        what: &'static str,
        /// The number.
        given: u64,
        /// The smallest valid number.
        from: u64,
        /// The greatest valid number.
        to: u64,
    },
    /// A snapshot is being installed: there are no records until that is done.
    #[error("a snapshot is being installed, and was not installed as a whole yet")]
    Installing,
    /// Another node is the leader: send the request there.
    #[error("this node does not lead; the leader is {}", leader.map_or("not known".to_owned(), |id| format!("node {id}")))]
    NotLeader {
        /// Its number, if it is known.
        leader: Option<u64>,
    },
    /// A write that may have been made, or may be made later, or never: its leader lost the leadership before it
    /// knew.
    #[error("nobody knows whether the write was made: the leadership ended before")]
    Indeterminate,
    /// Too many operations are under way: nothing was done.
    #[error("too much is under way; try again")]
    Busy,
    /// The engine does not support the operation.
    #[error("{engine} does not support {operation}")]
    Unsupported {
        /// The engine.
        engine: &'static str,
        /// The operation.
        operation: &'static str,
    },
    /// The engine keeps its keys in no order, so that it has no ranges.
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
        /// The operation that failed.
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
            | Self::Unrepaired { .. }
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
