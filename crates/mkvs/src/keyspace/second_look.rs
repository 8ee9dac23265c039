//! A second look for a key that a device reports as absent.
//!
//! Some engines cannot prove an absence ([`proves_absence`](coreplane_engine::Repairable::proves_absence)):
//! where the index of `scmkv` is in the pool, a flipped bit in a slot makes a key look as if it had never
//! been written. So a miss is checked on a second member of the group:
//!
//! ```text
//!   filter ─ "no" ─▶ absent                                nothing more is read
//!      └─ "perhaps" ─▶ one device ─ found ─▶ it is shown
//!                          └─ absent ─▶ another that has the newest of the key ─▶ its answer counts
//! ```
//!
//! The filter denies nearly all absent keys; each of the others costs one more lookup.
//!
//! *Deletes.* The second device is asked by the same rules as the first: it has the newest write of the key,
//! and its answer is dropped if a write has begun meanwhile. So a record that it shows existed at that
//! moment. If a write has begun, or no other device has the newest write, the first answer stays: it was true
//! when it was given, as far as that device can tell.
//!
//! A key that only the second device has counts as a damaged read. The scrub, which asks every member for the
//! keys of every other one, gives it to the first; the read changes nothing. Writes that depend on the
//! current record, and iterations, ask one device alone.

use super::Keyspace;
use crate::group::Group;
use crate::in_flight::Hashed;
use crate::stats::Count;
use coreplane_engine::{Found, Record, Result};
use std::sync::Arc;

impl Keyspace {
    /// Finds a key on a device that has its newest write, and, if it is absent there, on another.
    ///
    /// # Errors
    /// As the engine, and if the group has no member left.
    pub(crate) fn find_newest(
        &self,
        group: &Arc<Group>,
        (hash, key): (u64, &[u8]),
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        let mut passed = 0;
        let (first, number) = self.find_on_one(group, (hash, key), &mut passed, visit)?;
        if first.hit || group.is_absence_proven(number, (hash, key)) {
            return Ok(first);
        }
        passed |= 1 << number;
        while let Some((device, seen)) = group.other_reader((hash, key), passed) {
            let before = passed;
            let read = self.read_here((group, device), (hash, key), seen, &mut passed, visit)?;
            match read {
                Some(found) => {
                    self.counters.add(Count::DamagedReads, i64::from(found.hit));
                    return Ok(found);
                }
                // A write has begun, or the device has failed.
                None if passed == before => return Ok(first),
                None => {}
            }
        }
        Ok(first)
    }
}

impl Group {
    /// True if a key that this device does not find is absent, as far as that can be known.
    fn is_absence_proven(&self, number: u8, key: Hashed<'_>) -> bool {
        self.device(number).is_ok_and(|device| device.engine.tell(|it| it.proves_absence()))
            || self.members() & !(1 << number) == 0
            || self.denies(key)
    }
}
