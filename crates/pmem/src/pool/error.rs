//! The reasons for which a pool cannot be used, with details.

use crate::SyncError;
use std::io;
use std::path::PathBuf;

/// The reason for which a pool cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The file is not a pool, or the creation of a pool in it was not finished.
    #[error("not a pool: {0}")]
    NotAPool(String),
    /// Another version of the format.
    #[error("pool of format version {found}; this program understands version {supported}")]
    WrongVersion {
        /// The pool's.
        found: u32,
        /// This program's.
        supported: u32,
    },
    /// The file is shorter than the pool.
    #[error("truncated pool: {expected} bytes expected, the file has {found}")]
    Truncated {
        /// Bytes that the pool has.
        expected: u64,
        /// Bytes that the file has.
        found: u64,
    },
    /// The repair of a truncated file has not ended, or the file was replaced since. It has its whole length.
    #[error(
        "truncated pool: {expected} bytes expected, {found} were left when a repair began, which has not ended; if the \
         pool was replaced since, remove {}",
        mark.display()
    )]
    Unrepaired {
        /// Bytes that the pool has.
        expected: u64,
        /// Bytes that were left.
        found: u64,
        /// The file that says so.
        mark: PathBuf,
    },
    /// Stored bytes do not match their checksum.
    #[error(
        "damaged pool: checksum mismatch in {what} at offset {offset:#x}: stored {stored:#010x}, \
         computed {computed:#010x}"
    )]
    ChecksumMismatch {
        /// The part.
        what: String,
        /// Where it starts.
        offset: u64,
        /// The checksum that is stored.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// Checksums are right, but the parts contradict each other.
    #[error("damaged pool: {what} at offset {offset:#x}")]
    Damaged {
        /// What is wrong.
        what: String,
        /// Where.
        offset: u64,
    },
    /// The pool is of another kind.
    #[error("the pool holds `{found}`, not `{expected}`")]
    WrongKind {
        /// The kind that was expected.
        expected: String,
        /// The kind of the pool.
        found: String,
    },
    /// The pool is open elsewhere.
    #[error("{} is locked: another process, or this one, has the pool open", path.display())]
    Locked {
        /// The pool.
        path: PathBuf,
    },
    /// The path exists already.
    #[error("{} exists already", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// `dax` was requested where the kernel cannot guarantee that a flushed store survives.
    #[error("{} is not power-safe persistent memory: {reason}", path.display())]
    NotPowerSafe {
        /// The pool.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// `emulated` was requested on a file system that does not live in memory.
    #[error(
        "{} is on {filesystem}: emulated media need a memory file system such as /dev/shm; \
         use `file`",
        path.display()
    )]
    NotMemory {
        /// The pool.
        path: PathBuf,
        /// The file system.
        filesystem: String,
    },
    /// There is no such emulated medium.
    #[error("emulated medium `{profile}`: {reason}")]
    Profile {
        /// As given.
        profile: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The file system is full. All blocks allocated by the call were released.
    #[error("no space on the file system: {needed} bytes needed, {available} available")]
    NoSpace {
        /// Bytes that were to be allocated.
        needed: u64,
        /// Bytes that the file system offers.
        available: u64,
    },
    /// Invalid sizes.
    #[error("impossible geometry: {0}")]
    Geometry(String),
    /// A number outside the range that is valid now. The pool is not concerned.
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
    /// The medium could not sync; no more writes are possible.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// An error of the operating system.
    #[error("{context}: {source}")]
    Io {
        /// The operation that failed.
        context: String,
        /// The error.
        source: io::Error,
    },
}

/// Adds the operation to an error of the system.
pub(super) trait IoContext<T> {
    fn io(self, context: impl Into<String>) -> Result<T, PoolError>;
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn io(self, context: impl Into<String>) -> Result<T, PoolError> {
        self.map_err(|error| PoolError::Io { context: context.into(), source: error.into() })
    }
}
