//! The lock of a pool: one opener at a time, unless all only read.
//!
//! `flock` belongs to the open file description: a second open of the file conflicts, in another
//! process or in this one, and the lock ends when the last handle to the description is closed,
//! which is when the space that maps the file is dropped (or the process dies, however it dies).

use super::error::{IoContext, PoolError};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// Takes the lock or fails at once.
pub(super) fn exclusively(file: &File, path: &Path) -> Result<(), PoolError> {
    lock(file, path, FlockOperation::NonBlockingLockExclusive)
}

/// Opens a file for reading and locks it shared with other readers: it cannot be open for writing meanwhile. Needs no
/// permission to write.
pub(super) fn open_to_read(path: &Path) -> Result<File, PoolError> {
    check_file(path)?;
    let file = File::open(path).io(format!("open {}", path.display()))?;
    lock(&file, path, FlockOperation::NonBlockingLockShared)?;
    Ok(file)
}

fn lock(file: &File, path: &Path, operation: FlockOperation) -> Result<(), PoolError> {
    match rustix::fs::flock(file, operation) {
        Err(Errno::WOULDBLOCK) => Err(PoolError::Locked { path: path.to_owned() }),
        other => other.io(format!("lock {}", path.display())),
    }
}

/// Checked before the open, which would block for ever on a pipe.
pub(super) fn check_file(path: &Path) -> Result<(), PoolError> {
    let kind = std::fs::metadata(path).io(format!("open {}", path.display()))?;
    if !kind.is_file() {
        return Err(PoolError::NotAPool(format!("{} is not a regular file", path.display())));
    }
    Ok(())
}

/// Opens a file that exists and locks it.
pub(super) fn open(path: &Path) -> Result<File, PoolError> {
    let open = || format!("open {}", path.display());
    check_file(path)?;
    let file = File::options().read(true).write(true).open(path).io(open())?;
    exclusively(&file, path)?;
    Ok(file)
}
