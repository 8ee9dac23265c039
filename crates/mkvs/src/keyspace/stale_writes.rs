//! Writes with a sequence from their caller, which may be older than a delete.
//!
//! Each device drops its tombstones in its own time, and a resynced device did not get the tombstones that
//! its peers could drop. So one member may know of a later delete, and refuse a put as not newer, while
//! another makes it: the key would exist again on some. Before such a put the members exchange their
//! tombstones.

use super::Keyspace;
use crate::device::{Decided, Guarded};
use crate::group::Group;
use coreplane_engine::{Outcome, Result, Visibility, WriteOptions};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Deletes an absent key, with a sequence. Returns the sequence of a newer write, if there is one.
fn mark(engine: &Guarded, key: &[u8], sequence: u64) -> Result<Option<u64>> {
    let sequence = Some(sequence);
    let options = WriteOptions { sequence, use_reserve: true, ..WriteOptions::default() };
    match (Decided { key, put: None }).make_told(engine, &options)? {
        Outcome::NotNewer(theirs, _) => Ok(Some(theirs)),
        _ => Ok(None),
    }
}

impl Keyspace {
    /// A key is about to be put with a given sequence: if one device knows of a delete that is not older, all
    /// do afterwards. Its sequence, if so: then the put must not be made. The caller has the key lock.
    pub(crate) fn newer_delete(
        &self,
        group: &Arc<Group>,
        key: &[u8],
        given: u64,
    ) -> Result<Option<u64>> {
        let devices = || group.of(group.followers());
        let is_old = self.horizon.load(Ordering::Acquire) >= given
            || devices().any(|device| device.engine.tell(|it| it.tombstone_horizon()) >= given);
        let Some(below) = given.checked_sub(1).filter(|_| is_old) else { return Ok(None) };
        for device in devices() {
            device.drain();
            let found = device.engine.call(|it| it.get_with(key, Visibility::Early, &mut |_| {}));
            if found.map_or(true, |found| found.hit) {
                // The record there has a sequence, so that all devices decide alike.
                return Ok(None);
            }
        }
        self.in_flight.keep_tombstones(1);
        let mut newest = 0;
        // A device that has dropped the tombstone gets one that the put replaces.
        for device in devices() {
            match mark(&device.engine, key, below) {
                Ok(theirs) => newest = newest.max(theirs.unwrap_or(0)),
                Err(error) => group.go_on_without(device, error)?,
            }
        }
        if newest < given {
            return Ok(None);
        }
        for device in devices() {
            if let Err(error) = mark(&device.engine, key, newest) {
                group.go_on_without(device, error)?;
            }
        }
        Ok(Some(newest))
    }
}
