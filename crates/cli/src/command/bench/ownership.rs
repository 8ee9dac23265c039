//! Whose records a pool has. A measurement fills the pool that it is given, and its figures are of what is there; so
//! one that has records of somebody else is taken only by who says that it is to be.

use crate::command::records::each_record;
use crate::failure::{Failure, REFUSED};
use coreplane::Store;
use coreplane_bench::record::is_record;
use std::path::Path;

/// Records that are looked at, at most: a second, or less.
const LOOKED_AT_MAX: u32 = 1 << 20;

/// Fails if one of the first million records is none that a measurement has written.
pub(super) fn check(store: &Store, path: &Path) -> Result<(), Failure> {
    let (mut looked_at, mut other) = (0, None);
    each_record(&**store.engine(), &mut |entry| {
        looked_at += 1;
        let value = entry.record.map(|record| record.value.to_cow());
        if !value.is_some_and(|value| is_record(entry.key, &value)) {
            other = Some(entry.key.to_vec());
        }
        Ok(other.is_none() && looked_at < LOOKED_AT_MAX)
    })?;
    other.map_or(Ok(()), |key| Err(refused(path, &key)))
}

/// Why nothing is measured there.
pub(super) fn refused(path: &Path, key: &[u8]) -> Failure {
    let message = format!(
        "{}: it has records that bench has not written, such as \"{}\": name another pool, or say --beside-others",
        path.display(),
        key.escape_ascii()
    );
    Failure::new(REFUSED, message)
}
