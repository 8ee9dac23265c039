//! The keys of a matrix, spread over its groups: the owner of each slot, the writes in flight, all reads, and
//! the writes that a moving slot receives.
//!
//! Nothing here changes the members of a group: a group whose device fails informs the
//! [`failover`](crate::failover) above by itself.

mod cursor;
pub(crate) mod intent;
mod multi_get;
pub(crate) mod read;
pub(crate) mod relaxed;
mod scan;
mod second_look;
mod stale_writes;
mod write_ahead;

use crate::device::Guarded;
use crate::group::{Group, Groups};
use crate::in_flight::{InFlight, KeyLock};
use crate::membership::{LostRanges, unproven};
use crate::shape::{Owners, Position, is_reserved};
use crate::stats::{Clock, Counters};
use coreplane_engine::{Cursors, Error, Limits, Result};
use coreplane_pmem::isolation::Isolation;
use crossbeam_utils::CachePadded;
use cursor::Place;
use parking_lot::{Mutex, RwLock};
use relaxed::Relaxed;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The keys over the groups of an open matrix.
pub(crate) struct Keyspace {
    pub(crate) groups: Groups,
    /// The group that owns each slot.
    pub(crate) owners: Arc<Owners>,
    /// Held while many keys are read, so that no slot changes hands meanwhile. A reader does not take it twice: it
    /// would wait for a writer that waits for it.
    pub(crate) moves: RwLock<()>,
    /// Groups may have records of slots that are not theirs: on the way here, or not yet removed.
    pub(crate) has_guests: AtomicBool,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) sequence: Arc<CachePadded<AtomicU64>>,
    /// The matrix is being emptied: no key exists.
    pub(crate) is_empty: AtomicBool,
    pub(crate) relaxed: Relaxed,
    pub(crate) isolation: Isolation,
    pub(crate) cursors: Mutex<Cursors<Place>>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) closed: AtomicBool,
    /// Tombstones up to this sequence are not on all devices.
    pub(crate) horizon: AtomicU64,
    /// Keys of which acknowledged writes may be lost.
    pub(crate) lost_ranges: LostRanges,
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
}

impl Keyspace {
    pub(crate) fn group_of(&self, hash: u64) -> &Arc<Group> {
        &self.groups[self.owners.of(hash).owner()]
    }

    /// # Errors
    /// If the value is too long for some device: the other devices of its group would store it.
    #[inline]
    pub(crate) fn check_value(&self, value: &[u8]) -> Result<()> {
        let (len, max) = (value.len(), self.limits.value_len_max);
        if len > max { Err(Error::ValueTooLong { len, max }) } else { Ok(()) }
    }

    /// # Errors
    /// If the key is one of the matrix's own, or too long.
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<()> {
        if is_reserved(key) {
            let operation = "a key that begins with the matrix's own name";
            return Err(Error::Unsupported { engine: crate::shape::NAME, operation });
        }
        let max = self.limits.key_len_max;
        if key.len() > max {
            return Err(Error::KeyTooLong { len: key.len(), max });
        }
        Ok(())
    }

    /// Prepares a device that is to join.
    ///
    /// # Errors
    /// If it takes less than the matrix, whose limits are those of the open devices; as the engine.
    pub(crate) fn take_in(&self, place: Position, engine: &Guarded) -> Result<()> {
        let (limits, own) = (self.limits, engine.tell(|it| it.limits()));
        if limits.both(own) != limits {
            let what = format!("the matrix takes {limits:?}, and {place} only {own:?}");
            return Err(Error::Unusable(what));
        }
        self.raise_sequence(engine)?;
        self.clock.raise(engine.call(|it| Ok(it.now()))?);
        engine.call(|it| it.hold_tombstones(0))
    }

    /// New sequences are above all that an engine has given out.
    pub(crate) fn raise_sequence(&self, engine: &Guarded) -> Result<()> {
        let given = engine.call(|it| it.advance_sequence())?;
        self.sequence.fetch_max(given, Ordering::AcqRel);
        Ok(())
    }

    /// True if no device is known to have the membership record in force: an open may find another one. The groups
    /// are alike in that.
    pub(crate) fn lacks_record(&self) -> bool {
        self.groups[0].states.now().is_unproven()
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        if self.lacks_record() {
            return Err(unproven());
        }
        Ok(())
    }

    /// True if the keys of this hash belong to a group.
    pub(crate) fn is_of(&self, group: u16, hash: u64) -> bool {
        self.owners.of(hash).owner() == usize::from(group)
    }

    /// Writes no longer wait for devices that have left the group.
    pub(crate) fn settle_group(&self, group: &Group) {
        self.in_flight.settle(group.followers(), |hash| self.is_of(group.number, hash));
    }

    /// The key locks of all these keys, in the order in which every caller takes them.
    pub(crate) fn lock_keys(&self, hashes: impl Iterator<Item = u64>) -> Vec<KeyLock<'_>> {
        let mut stripes: Vec<usize> = hashes.map(InFlight::stripe_of).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().map(|stripe| self.in_flight.lock_key(stripe)).collect()
    }
}
