//! The origin of a pool's records. A measurement fills the pool that it is given, and its figures depend on the
//! records in it; so a pool with foreign records is used only if the user says so.

use crate::command::records::each_record;
use crate::failure::{Failure, REFUSED};
use coreplane::Store;
use coreplane_bench::record::is_record;
use std::path::Path;

/// The number of records that are checked, at most: this takes a second, or less.
const LOOKED_AT_MAX: u32 = 1 << 20;

/// Fails if one of the first million records was not written by a measurement.
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

/// The refusal to measure there.
pub(super) fn refused(path: &Path, key: &[u8]) -> Failure {
    let message = format!(
        "{}: it has records that bench has not written, such as \"{}\": name another pool, or say --beside-others",
        path.display(),
        key.escape_ascii()
    );
    Failure::new(REFUSED, message)
}
