//! What went wrong with a pool, as an engine says it.

use coreplane_engine::Error;
use coreplane_pmem::poison::LostAt;
use coreplane_pmem::{Pool, PoolError, SyncError};

/// A sync that failed, as an engine's error.
pub fn sync_failed(error: SyncError) -> Error {
    Error::SyncFailed(error.0)
}

/// A pool that was lost under its mapping, as an engine's error.
#[cold]
pub fn lost(pool: &Pool, at: LostAt) -> Error {
    let name = pool.path().map(|path| path.display().to_string()).unwrap_or_default();
    Error::Io { context: format!("pool {name}: {at}"), source: at.into() }
}

/// Has a pool outlive its medium, if that `is_asked`.
///
/// # Errors
/// If it cannot.
pub fn outlive(pool: &Pool, is_asked: bool) -> Result<(), Error> {
    if is_asked {
        let context = "wait for a loss of the medium".to_owned();
        // Where there are too many a loss ends the process, as that of any other pool.
        let _is_outlived = pool.outlive().map_err(|source| Error::Io { context, source })?;
    }
    Ok(())
}

/// A pool's error as an engine's.
///
/// Damage stays damage, and what is no pool stays that, so that a matrix whose other devices have what
/// this one had can go on without it; whatever else keeps a pool from being opened (it is of another version, locked)
/// has to be seen to first.
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
        PoolError::Locked { .. } => Error::Locked(error.to_string()),
        PoolError::NotAPool(_) => Error::NotAPool(error.to_string()),
        other => Error::Unusable(other.to_string()),
    }
}
