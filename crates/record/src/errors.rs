//! Errors of pools, converted to those of an engine.

use coreplane_engine::Error;
use coreplane_pmem::poison::LostAt;
use coreplane_pmem::{Pool, PoolError, SyncError};

/// A failed sync as an engine's error.
pub fn sync_failed(error: SyncError) -> Error {
    Error::SyncFailed(error.0)
}

/// The loss of a pool under its mapping as an engine's error.
#[cold]
pub fn lost(pool: &Pool, at: LostAt) -> Error {
    let name = pool.path().map(|path| path.display().to_string()).unwrap_or_default();
    Error::Io { context: format!("pool {name}: {at}"), source: at.into() }
}

/// Makes a pool outlive its medium, if `is_asked`.
///
/// # Errors
/// If that fails.
pub fn outlive(pool: &Pool, is_asked: bool) -> Result<(), Error> {
    if is_asked {
        let context = "wait for a loss of the medium".to_owned();
        // If there are too many pools, a loss ends the process, as with any other pool.
        let _is_outlived = pool.outlive().map_err(|source| Error::Io { context, source })?;
    }
    Ok(())
}

/// A pool's error as an engine's.
///
/// Damage and a missing pool keep their own errors, so that a matrix can go on without this device if others have its
/// data. Other reasons for which a pool cannot be opened (another version, a lock) must be resolved first.
pub fn pool_error(error: PoolError) -> Error {
    match error {
        PoolError::NoSpace { needed, .. } => Error::NoSpace { needed, reclaimable: 0 },
        PoolError::Sync(error) => sync_failed(error),
        PoolError::Io { context, source } => Error::Io { context, source },
        PoolError::ChecksumMismatch { offset, .. } => {
            Error::Corrupt { offset, what: error.to_string() }
        }
        PoolError::Damaged { offset, .. } => Error::Corrupt { offset, what: error.to_string() },
        PoolError::Truncated { expected, found } => Error::Truncated { expected, found },
        PoolError::Unrepaired { expected, found, mark } => {
            Error::Unrepaired { expected, found, mark: mark.display().to_string() }
        }
        PoolError::OutOfRange { what, given, from, to } => {
            Error::OutOfRange { what, given, from, to }
        }
        PoolError::Locked { .. } => Error::Locked(error.to_string()),
        PoolError::NotAPool(_) => Error::NotAPool(error.to_string()),
        other => Error::Unusable(other.to_string()),
    }
}
