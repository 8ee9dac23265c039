//! The mark beside a pool of which a sync has failed.
//!
//! The kernel reports that it could not write a page once, and then takes the page for clean: the page cache has bytes
//! that the medium lacks. The process that got the error makes no further write. But the next one to open the pool
//! would find these bytes, take them for durable, and rely on them, for example to free what they replace, until the
//! kernel drops them. So a mark is left beside the pool, and an open that finds it reads the pool from the medium.
//!
//! ```text
//!   sync fails  ──►  mark  ──►  opened again: synced, dropped from the page cache  ──►  mark removed
//! ```
//!
//! The kernel reports the error to each open file description that is there, but to none that is opened after the first
//! report. So whoever gets it leaves the mark, also where another description would get it, too: the process may end
//! before.
//!
//! The mark need not be durable: a restart of the machine drops the page cache, too.

use super::error::{IoContext, PoolError};
use super::mark;
use crate::mutant;
use std::fs::File;
use std::path::{Path, PathBuf};

fn mark_of(path: &Path) -> PathBuf {
    mark::beside(path, "sync-failed")
}

/// Leaves the mark, if the file system lets it.
pub(super) fn lay(path: &Path) {
    if !mutant!("pmem.sync_failure.mark") {
        let _best_effort = File::create(mark_of(path)).is_ok();
    }
}

/// Makes the file's bytes and its metadata durable; leaves the mark if that fails.
///
/// # Errors
/// [`PoolError::Io`].
pub(super) fn sync(file: &File, path: &Path) -> Result<(), PoolError> {
    file.sync_all().inspect_err(|_| lay(path)).io(format!("sync {}", path.display()))
}

/// Drops what the page cache has of a marked pool that the medium lacks. Nothing may have the file mapped.
///
/// # Errors
/// [`PoolError::Io`], also if the file cannot be synced now; the mark stays.
pub(super) fn settle(file: &File, path: &Path) -> Result<(), PoolError> {
    let mark = mark_of(path);
    if !mark.try_exists().io(format!("look for {}", mark.display()))? {
        return Ok(());
    }
    // The kernel drops clean pages alone.
    sync(file, path)?;
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)
        .io(format!("drop the page cache of {}", path.display()))
}

/// Removes the mark, if there is one, after [`settle`] or beside a new pool.
///
/// # Errors
/// [`PoolError::Io`].
pub(super) fn lift(path: &Path) -> Result<(), PoolError> {
    mark::remove(&mark_of(path)).map(drop)
}
