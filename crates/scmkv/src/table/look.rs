//! The state of a key under the lock of its group, and the slot that a write stores there.

use crate::table::Table;
use crate::table::hash::Place;
use crate::table::index::{GroupLock, Probe, Slot, VERSION_STEP};
use crate::table::log::{Appended, Log, Order};
use coreplane_engine::{Error, Result, WriteOptions};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind, View};

/// Sequences that callers give are below this.
const SEQUENCE_MAX: u64 = 1 << 61;

/// The state of a key, as the probe of its locked group found it.
pub(crate) struct Standing<'g> {
    pub(crate) at: u64,
    pub(crate) slot: Slot,
    /// The record or tombstone of the key.
    pub(crate) old: Option<View<'g>>,
    /// It is a record, and has not expired.
    pub(crate) live: bool,
}

/// A write that was checked.
#[derive(Clone, Copy)]
pub(crate) struct Write<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) place: Place,
    pub(crate) options: &'a WriteOptions,
    pub(crate) order: Order,
}

impl Standing<'_> {
    /// A key that was not looked up yet.
    pub(crate) const UNKNOWN: Self = Self { at: 0, slot: Slot::EMPTY, old: None, live: false };
}

impl Table {
    /// Probes a locked group for a key; none if it is absent and the group is full.
    pub(crate) fn look<'g>(
        &'g self,
        guard: &'g Guard,
        held: &GroupLock<'_>,
        key: &[u8],
        place: Place,
    ) -> Result<Option<Standing<'g>>> {
        let mut standing = Standing::UNKNOWN;
        let has_place = self.look_into(&mut standing, guard, held, key, place)?;
        Ok(has_place.then_some(standing))
    }

    /// The same, into a value of the caller's that is [`Standing::UNKNOWN`]; false if the key is absent and the group
    /// is full. Behind an append past the caches a copy of the result, whose parts were stored in other pieces, would
    /// wait until the record has left the processor.
    pub(crate) fn look_into<'g>(
        &'g self,
        standing: &mut Standing<'g>,
        guard: &'g Guard,
        held: &GroupLock<'_>,
        key: &[u8],
        place: Place,
    ) -> Result<bool> {
        debug_assert!(standing.old.is_none() && !standing.live);
        let old = &mut standing.old;
        let probe = held.probe(place, &mut |slot| {
            let view = self.record(guard, slot)?;
            // A write also replaces a record whose key is damaged: otherwise the slot of that
            // record would stay for ever, and lead every sweep to the damage.
            let mine = view.key() == key || self.had_key(&view, key);
            if mine {
                *old = Some(view);
            }
            Ok(mine)
        })?;
        match probe {
            Probe::Full => return Ok(false),
            Probe::Vacant { at } => standing.at = at,
            Probe::Found { at, slot } => {
                (standing.at, standing.slot) = (at, slot);
                standing.live = match &standing.old {
                    Some(view) => !slot.is_tombstone() && !self.is_expired(view)?,
                    None => false,
                };
            }
        }
        Ok(true)
    }

    /// Lets the slot at `at` point at a record that was committed.
    #[inline(always)]
    pub(crate) fn publish_slot(
        &self,
        log: &mut Log,
        held: &GroupLock<'_>,
        write: &Write<'_>,
        at: u64,
        (header, value_len): (&Header, usize),
        appended: Appended,
    ) -> Result<()> {
        held.publish(at, held.slot_of(write.place, appended.offset, header))?;
        log.note_published(self, at);
        let value_len = if header.kind == Kind::Delete { 0 } else { value_len };
        self.count_published(held, header, appended, write.key.len() + value_len);
        Ok(())
    }

    /// The version of a write: above all versions of the group, and so above the key's last one,
    /// and not below the sequence that the caller gave.
    ///
    /// # Errors
    /// If the base of versions must be raised for it and cannot be.
    #[inline]
    pub(crate) fn draw_version(
        &self,
        held: &mut GroupLock<'_>,
        standing: &Standing<'_>,
        given: Option<u64>,
    ) -> Result<u64> {
        let given = given.map_or(0, |given| given.saturating_sub(1));
        let version = self.next_version(held, given)?;
        match &standing.old {
            Some(old) if old.header.version >= version => Err(Error::Corrupt {
                offset: old.offset,
                what: format!("version {:#x}, though none was given out yet", old.header.version),
            }),
            _ => Ok(version),
        }
    }

    /// The next version of a group, also above `floor`. The durable base is raised before a version
    /// comes near to the versions of the next open, however often a group was written to.
    ///
    /// # Errors
    /// If the base cannot be raised.
    #[inline]
    pub(crate) fn next_version(&self, held: &mut GroupLock<'_>, floor: u64) -> Result<u64> {
        let base = self.version_base();
        let version = held.next_version(base.max(floor));
        if version >= base + VERSION_STEP / 2 && !mutant!("scmkv.put.cover_version") {
            self.cover_version(version)?;
        }
        Ok(version)
    }

    /// # Errors
    /// If a given sequence is too great to leave room for the versions after it.
    pub(crate) fn check_sequence(&self, given: Option<u64>) -> Result<()> {
        match given {
            Some(given) if given >= SEQUENCE_MAX => Err(Error::Unsupported {
                engine: crate::table::KIND,
                operation: "a given sequence of 2^61 or more",
            }),
            _ => Ok(()),
        }
    }
}
