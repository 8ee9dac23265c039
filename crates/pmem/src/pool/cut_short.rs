//! The mark beside a pool with a truncated file while it is repaired.
//!
//! A repair gives the file its length back, and from then on nothing in the pool shows that a part of it was lost:
//! zeroes look like pages that were never written. So a mark is first written beside the pool, a file with the length
//! that was found, and removed when the repair is done. An open of the pool meanwhile reports that, and an interrupted
//! repair begins again with the same findings. A file that was put in place of the pool does not look different: the
//! report names the mark, too, for whoever has done that to remove.
//!
//! ```text
//!   pool (short)  ──►  mark, durable  ──►  pool (long)  ──►  repaired, durable  ──►  mark removed
//! ```

use super::error::{IoContext, PoolError};
use super::{allocate, mark};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The mark's path.
fn mark_of(path: &Path) -> PathBuf {
    mark::beside(path, "cut-short")
}

/// The length to which the file at `path`, now `len` bytes long, was truncated according to the mark; `len` without a
/// mark.
///
/// # Errors
/// [`PoolError::Damaged`]: the mark is renamed when it is durable, so that an incomplete one was damaged later.
/// [`PoolError::Io`].
pub(super) fn len_left(path: &Path, len: u64) -> Result<u64, PoolError> {
    match std::fs::read_to_string(mark_of(path)) {
        Ok(text) => text.trim_end().parse().map(|left: u64| left.min(len)).map_err(|_| {
            let mark = mark_of(path);
            let what =
                format!("the length in {}, to which the pool was truncated,", mark.display());
            PoolError::Damaged { what, offset: 0 }
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(len),
        Err(error) => Err(error).io(format!("read {}", mark_of(path).display())),
    }
}

/// Fails if the file at `path`, now `len` bytes long, does not cover a pool of `size` bytes, or the mark says that it did
/// not.
///
/// # Errors
/// [`PoolError::Truncated`], [`PoolError::Unrepaired`]; as [`len_left`].
pub(super) fn check_whole(path: &Path, len: u64, size: u64) -> Result<(), PoolError> {
    check_length(path, len, size)?;
    let found = len_left(path, len)?;
    if found < size {
        return Err(PoolError::Unrepaired { expected: size, found, mark: mark_of(path) });
    }
    Ok(())
}

/// The same, whatever the mark says.
///
/// # Errors
/// [`PoolError::Truncated`].
pub(super) fn check_length(_path: &Path, len: u64, size: u64) -> Result<(), PoolError> {
    if len < size {
        return Err(PoolError::Truncated { expected: size, found: len });
    }
    Ok(())
}

/// Writes or replaces the mark: `len` bytes are left. Durable when it returns.
///
/// # Errors
/// [`PoolError::Io`].
pub(super) fn lay(path: &Path, len: u64) -> Result<(), PoolError> {
    let mark = mark_of(path);
    let mut new = mark.clone().into_os_string();
    new.push(".new");
    let written = File::create(&new).and_then(|mut file| {
        writeln!(file, "{len}")?;
        file.sync_all()?;
        std::fs::rename(&new, &mark)
    });
    written.io(format!("write {}", mark.display()))?;
    allocate::sync_directory(&mark)
}

/// Removes the mark, if there is one; durably when it returns.
///
/// # Errors
/// [`PoolError::Io`].
pub(super) fn lift(path: &Path) -> Result<(), PoolError> {
    let mark = mark_of(path);
    if mark::remove(&mark)? { allocate::sync_directory(&mark) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_says_what_is_left_until_it_is_lifted() {
        let place = tempfile::tempdir().expect("a place");
        let path = place.path().join("pool");
        let left = || len_left(&path, 100).expect("a look");
        assert_eq!(left(), 100);
        lay(&path, 40).expect("a mark");
        assert_eq!(left(), 40);
        for damaged in ["", "4x", "-1"] {
            std::fs::write(mark_of(&path), damaged).expect("a damaged mark");
            let answer = len_left(&path, 100);
            assert!(matches!(answer, Err(PoolError::Damaged { .. })), "{damaged}: {answer:?}");
        }
        lift(&path).expect("no mark");
        lift(&path).expect("none is there");
        assert_eq!(left(), 100);
    }

    #[test]
    fn a_mark_lies_beside_the_pool_and_not_beside_a_link_to_it() {
        let place = tempfile::tempdir().expect("a place");
        let (path, link) = (place.path().join("pool"), place.path().join("links/pool"));
        std::fs::create_dir(place.path().join("links")).expect("a directory");
        std::fs::write(&path, "").expect("a pool");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        lay(&link, 40).expect("a mark");
        assert_eq!(len_left(&path, 100).expect("a look"), 40);
        assert!(place.path().join("pool.cut-short").exists());
        lift(&link).expect("it is lifted");
        assert_eq!(len_left(&path, 100).expect("a look"), 100);
    }
}
