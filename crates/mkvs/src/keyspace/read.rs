//! Reads of single keys.

use super::Keyspace;
use crate::device::{Device, RecordCopy, is_damage};
use crate::filter::{bypass, hash_of};
use crate::group::Group;
use crate::in_flight::{InFlight, Seen};
use crate::membership::lost_ranges;
use crate::shape::{Devices, is_reserved};
use crate::stats::{Count, Said, latency};
use coreplane_engine::{Error, Found, Record, Result, Ticket};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Tries to read a key, each spoiled by a write that began meanwhile, before its key lock is taken.
const READS: u32 = 8;

thread_local! {
    /// A copy of the record that the device shows.
    static SHOWN: RefCell<RecordCopy> = RefCell::default();
}

impl Keyspace {
    pub(crate) fn get_with(&self, key: &[u8], visit: &mut dyn FnMut(Record<'_>)) -> Result<Found> {
        let hash = hash_of(key);
        let (found, said, owner) = loop {
            let owner = self.owners.of(hash).owner();
            let mut said = if bypass::is_worth_it() { Said::Perhaps } else { Said::Nothing };
            if is_reserved(key)
                || self.is_empty.load(Ordering::Acquire)
                || said == Said::Perhaps
                    && self.groups[owner].denies((hash, key))
                    && self.lost_ranges.since(owner as u16, key).is_none()
            {
                said = Said::No;
            }
            let found = if said == Said::No {
                Found { hit: false, ticket: Ticket::DURABLE }
            } else {
                self.find_in(&self.groups[owner], (hash, key), visit)?
            };
            // A record that was found existed while the group was asked. But a group that the key has left does
            // not know where the key is.
            if found.hit || self.owners.of(hash).owner() == owner {
                break (found, said, owner);
            }
        };
        bypass::note(found.hit);
        self.groups[owner].asked.note(found.hit, said);
        Ok(found)
    }

    /// Reads a key, of which the caller has the key lock, or whose slot does not change hands meanwhile, on a device
    /// that has the newest write. The record that is shown is durable, here and elsewhere.
    pub(crate) fn find(
        &self,
        hash: u64,
        key: &[u8],
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        self.find_in(self.group_of(hash), (hash, key), visit)
    }

    /// As [`Self::find`], on a device where the record is not damaged.
    ///
    /// # Errors
    /// As [`Self::find`], and if the record is damaged on every member.
    pub(crate) fn find_sound(
        &self,
        hash: u64,
        key: &[u8],
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        let (group, mut damaged) = (self.group_of(hash), 0);
        self.find_as((group, key), visit, |visit| {
            loop {
                let (device, seen) = group.reader((hash, key), damaged)?;
                if let Err(error) = device.engine.call(|it| it.check(key)) {
                    self.pass_over(group, device, &mut damaged, error)?;
                    continue;
                }
                let read =
                    self.read_here((group, device), (hash, key), seen, &mut damaged, visit)?;
                if let Some(found) = read {
                    return Ok(found);
                }
            }
        })
    }

    fn find_in(
        &self,
        group: &Arc<Group>,
        (hash, key): (u64, &[u8]),
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        self.find_as((group, key), visit, |visit| self.find_newest(group, (hash, key), visit))
    }

    /// Finds a key, unless its last write may be lost.
    #[inline]
    fn find_as(
        &self,
        (group, key): (&Arc<Group>, &[u8]),
        visit: &mut dyn FnMut(Record<'_>),
        find: impl FnOnce(&mut dyn FnMut(Record<'_>)) -> Result<Found>,
    ) -> Result<Found> {
        let Some(since) = self.lost_ranges.since(group.number, key) else {
            return find(visit);
        };
        let mut is_known = false;
        find(&mut |record| {
            is_known = record.sequence > since;
            if is_known {
                visit(record);
            }
        })
        .and_then(|found| if is_known { Ok(found) } else { Err(lost_ranges::lost()) })
    }

    /// Finds a key on one device that has its newest write; the answer and the device's number.
    pub(crate) fn find_on_one(
        &self,
        group: &Arc<Group>,
        (hash, key): (u64, &[u8]),
        damaged: &mut Devices,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<(Found, u8)> {
        let mut tries = 0;
        while tries < READS {
            let (device, seen) = group.reader((hash, key), *damaged)?;
            let before = (*damaged, group.members());
            let read = if tries < READS / 4 && *damaged == 0 && group.reads_by_rings(device) {
                group.compete((hash, key), visit)?
            } else {
                let read = self.read_here((group, device), (hash, key), seen, damaged, visit)?;
                read.map(|found| (found, device.number))
            };
            if let Some(found) = read {
                return Ok(found);
            }
            // A damaged record or a failed device is no write, and does not count as a try.
            tries += u32::from((*damaged, group.members()) == before);
        }
        // Writers of a stripe follow each other: the lock keeps them away for now. A caller that holds this lock
        // does not come here, for then no writer is active.
        let _turn = self.in_flight.lock_key(InFlight::stripe_of(hash));
        loop {
            let (device, seen) = group.reader((hash, key), *damaged)?;
            let read = self.read_here((group, device), (hash, key), seen, damaged, visit)?;
            if let Some(found) = read {
                return Ok((found, device.number));
            }
        }
    }

    /// Reads a key in this thread; none if a device must be chosen again.
    #[inline]
    pub(crate) fn read_here(
        &self,
        (group, device): (&Group, &Device),
        (hash, key): (u64, &[u8]),
        seen: Seen,
        damaged: &mut Devices,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Option<Found>> {
        let timer = latency::timer();
        // A record that a device shows while its medium is being lost is not to be believed. So it is passed on
        // only when the device has answered.
        let mut shown = SHOWN.take();
        let read = group.read_on(device, (hash, key), seen, &mut |record| shown.keep(&record));
        if let Some(begun_at) = timer {
            device.pace.note_here(begun_at.elapsed(), 1, group.is_watching());
        }
        if let Ok(Some(Found { hit: true, .. })) = read {
            visit(shown.record());
        }
        if shown.is_small() {
            SHOWN.set(shown);
        }
        read.or_else(|error| self.pass_over(group, device, damaged, error).map(|()| None))
    }

    /// A key could not be read on a device: it is to be read on another.
    ///
    /// # Errors
    /// The error, if there is no other.
    #[cold]
    fn pass_over(
        &self,
        group: &Group,
        device: &Device,
        damaged: &mut Devices,
        error: Error,
    ) -> Result<()> {
        if !is_damage(&error) {
            return group.go_on_without(device, error);
        }
        // One damaged record, of which a peer has another copy; the scrub heals it.
        self.counters.add(Count::DamagedReads, 1);
        *damaged |= 1 << device.number;
        if group.members() & !*damaged == 0 { Err(error) } else { Ok(()) }
    }
}
