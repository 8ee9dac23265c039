//! A mark beside a pool: its place, and its end.

use super::error::{IoContext, PoolError};
use crate::mutant;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The path of the pool at `path`, or of the target of a symbolic link there, with `.suffix` behind it: so a mark is
/// found whatever the path by which the pool is opened next. While nothing is at `path`, that path itself counts.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let target = path.canonicalize().ok().filter(|_| !mutant!("pmem.mark.link"));
    let mut mark = target.unwrap_or_else(|| path.to_owned()).into_os_string();
    mark.push(".");
    mark.push(suffix);
    PathBuf::from(mark)
}

/// Removes a mark; false if there is none.
///
/// # Errors
/// [`PoolError::Io`].
pub(super) fn remove(mark: &Path) -> Result<bool, PoolError> {
    match std::fs::remove_file(mark) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        other => other.map(|()| true).io(format!("remove {}", mark.display())),
    }
}
