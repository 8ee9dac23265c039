//! The reading side of a group: which device is asked, and whether its answer may be shown.

use super::Group;
use crate::device::{Device, is_damage};
use crate::group::hedge;
use crate::in_flight::{Hashed, Seen};
use crate::membership::Moment;
use crate::shape::{Devices, Prototype, ReadPath, nth, numbers};
use coreplane_engine::{Found, Record, Result, Visibility};
use coreplane_pmem::spin::Backoff;
use coreplane_pmem::{mutant, thread_number};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Tries of a processor to read a key whose writers keep beginning.
const READS: u32 = 4;

/// One read in so many goes to another device than the thread's own, to check that this device still answers.
const STRAY_EVERY: u32 = 64;

thread_local! {
    /// How many reads the thread has made.
    static READS_MADE: Cell<u32> = const { Cell::new(0) };
}

impl Group {
    /// The devices that a key may be read on now, and the member states of that moment; no device while readers of
    /// the key must wait.
    #[inline]
    fn current_of(&self, key: Hashed<'_>, but: Devices) -> (Devices, Moment) {
        loop {
            let now = self.states.now();
            let members = now.members() & !but;
            let devices = self.in_flight.current(key, members);
            if self.states.now() == now {
                return (devices, now);
            }
            // A device that is no member any more may lack writes that were acknowledged since.
        }
    }

    /// The devices that a key may be read on now; none while its readers must wait.
    #[inline]
    pub(crate) fn current_now(&self, key: Hashed<'_>) -> Devices {
        self.current_of(key, 0).0
    }

    /// The devices that a key may be read on, except some that were asked in vain.
    ///
    /// # Errors
    /// If the group has no member left.
    #[inline]
    fn readers(&self, key: Hashed<'_>, but: Devices) -> Result<(Devices, Moment)> {
        let mut backoff = Backoff::new();
        loop {
            let (devices, now) = self.current_of(key, but);
            if devices != 0 {
                return Ok((devices, now));
            }
            if now.members() & !but == 0 {
                return Err(self.lost());
            }
            if self.in_flight.reached(key, now.members()) & !but == 0 {
                return Err(self.gone());
            }
            backoff.wait();
        }
    }

    /// The device to read a key on in this thread, except some that were asked in vain; and the state to check by
    /// [`has_begun_since`](crate::in_flight::InFlight::has_begun_since) before a record is shown.
    ///
    /// # Errors
    /// If the group has no member left.
    #[inline]
    pub(crate) fn reader(&self, key: Hashed<'_>, but: Devices) -> Result<(&Arc<Device>, Seen)> {
        loop {
            let seen = self.in_flight.see(key.0);
            let (devices, now) = self.readers(key, but)?;
            let number = self.choose(devices).ok_or_else(|| self.lost())?;
            let device = self.device(number)?;
            // Another device may be in the place of one that is no member any more.
            if self.states.now() == now {
                return Ok((device, seen));
            }
        }
    }

    /// The device to read many keys on in this thread, unless its reads go through the rings; and the members and
    /// the states of that moment. For each key the caller checks whether the device has the newest record
    /// ([`Group::see_current`]), and then whether the states are still the same.
    pub(crate) fn lane_reader(&self) -> Option<(&Arc<Device>, Devices, Moment)> {
        let now = self.states.now();
        let device = self.device(self.choose(now.members())?).ok()?;
        (!self.reads_by_rings(device)).then_some((device, now.members(), now))
    }

    /// If a device, one of the `members`, has the newest record of a key: the state to check by
    /// [`has_begun_since`](crate::in_flight::InFlight::has_begun_since) before the record is shown.
    #[inline]
    pub(crate) fn see_current(
        &self,
        key: Hashed<'_>,
        device: u8,
        members: Devices,
    ) -> Option<Seen> {
        let seen = self.in_flight.see(key.0);
        let has_newest = self.in_flight.current(key, members) & 1 << device != 0;
        (has_newest || mutant!("mkvs.multi_get.current")).then_some(seen)
    }

    /// As [`Group::reader`], without waiting; none if no other device has the newest record of the key at this
    /// moment.
    pub(crate) fn other_reader(
        &self,
        key: Hashed<'_>,
        but: Devices,
    ) -> Option<(&Arc<Device>, Seen)> {
        loop {
            let seen = self.in_flight.see(key.0);
            let (devices, now) = self.current_of(key, but);
            let device = self.device(self.choose(devices)?).ok()?;
            if self.states.now() == now {
                return Some((device, seen));
            }
        }
    }

    /// The device of a set that is likely to answer first; none if the set is empty. A late device is not likely
    /// to, nor is one with a longer queue.
    pub(crate) fn fastest(&self, set: Devices) -> Option<u8> {
        let chosen = self.choose(set)?;
        if !self.competes() {
            return Some(chosen);
        }
        let load = |number: u8| {
            let of = |it: &Arc<Device>| (it.pace.is_late(), it.reads_queued(), number != chosen);
            self.device(number).map_or((true, u64::MAX, true), of)
        };
        numbers(set).min_by_key(|number| load(*number))
    }

    /// A key is about to be read, probably on the thread's own device: prefetches its data.
    pub(crate) fn prefetch_to_read(&self, key: &[u8]) {
        if let Some(device) = self.likely_reader() {
            device.engine.hint(|it| it.prefetch(key));
        }
    }

    /// Some time after [`Group::prefetch_to_read`], prefetches the record that the key probably has. An engine
    /// whose index does not have the place of the record does nothing (`bptree`).
    pub(crate) fn prefetch_record(&self, key: &[u8]) {
        if let Some(device) = self.likely_reader() {
            device.engine.hint(|it| it.prefetch_replaced(key));
        }
    }

    /// The device that this thread's reads mostly go to.
    fn likely_reader(&self) -> Option<&Arc<Device>> {
        let now = self.states.now();
        let own = match self.competes() {
            true => nth(now.members(), thread_number() as u32),
            false => Some(now.primary()),
        };
        self.device(own?).ok()
    }

    /// A device of a set: for one thread mostly the same, so that its caches hold half as much, and for another
    /// thread another one. If devices do not compete it is the primary, which always has the newest record.
    #[inline]
    fn choose(&self, set: Devices) -> Option<u8> {
        if !self.competes() {
            let primary = self.states.now().primary_set() & set;
            return (if primary == 0 { set } else { primary }).checked_ilog2().map(|it| it as u8);
        }
        let made = READS_MADE.get().wrapping_add(1);
        READS_MADE.set(made);
        let stray = if made.is_multiple_of(STRAY_EVERY) { 1 + made / STRAY_EVERY } else { 0 };
        nth(set, (thread_number() as u32).wrapping_add(stray))
    }

    /// Reads a key on a device that was chosen since it has the newest record; none if a write has begun since, so
    /// that the record may not be shown.
    #[inline]
    pub(crate) fn read_on(
        &self,
        device: &Device,
        (hash, key): Hashed<'_>,
        seen: Seen,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Option<Found>> {
        let mut is_late = false;
        // Tickets of a device mean nothing to other devices: only durable records are shown.
        let mut show = |record: Record<'_>| {
            is_late =
                self.in_flight.has_begun_since(hash, seen) && !mutant!("mkvs.read.second_look");
            if !is_late {
                visit(record);
            }
        };
        let found = device.engine.call(|it| it.get_with(key, Visibility::Durable, &mut show))?;
        if !found.hit && !mutant!("mkvs.read.second_look") {
            is_late = self.in_flight.has_begun_since(hash, seen);
        }
        Ok((!is_late).then_some(found))
    }

    /// Reads a key on a device if it has the newest record of the key; none if it has not, or writes keep
    /// beginning.
    pub(crate) fn read_if_current(
        &self,
        device: &Device,
        (hash, key): Hashed<'_>,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Option<Found>> {
        for _ in 0..READS {
            let seen = self.in_flight.see(hash);
            if self.current_now((hash, key)) & 1 << device.number == 0 || !self.is_there(device) {
                return Ok(None);
            }
            if let Some(found) = self.read_on(device, (hash, key), seen, visit)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The primary, for the holder of the key locks of the keys that are read there: of these keys it has exactly
    /// the records that readers are shown.
    ///
    /// # Errors
    /// If the group has no member left.
    pub(crate) fn primary(&self) -> Result<&Arc<Device>> {
        loop {
            let before = self.states.now();
            if before.members() == 0 {
                return Err(self.lost());
            }
            let device = self.device(before.primary())?;
            // A device that has just become the primary may have older writes to make.
            device.drain();
            if self.states.now() == before {
                return Ok(device);
            }
        }
    }

    /// The primary, for a caller without key locks that goes through many keys: of every key it has exactly the
    /// record that readers are shown.
    ///
    /// # Errors
    /// If the group has no member left.
    pub(crate) fn settled(&self) -> Result<&Arc<Device>> {
        loop {
            let now = self.states.now();
            self.settle_writers(now);
            let device = self.primary()?;
            if self.states.now() == now {
                return Ok(device);
            }
        }
    }

    /// True if all writes that began under other states than these have ended.
    #[inline]
    pub(crate) fn is_settled(&self, now: Moment) -> bool {
        self.settled_at.load(Ordering::Acquire) == now.stamp()
    }

    /// Waits until all writes that began under other states than these have ended. Then there was perhaps another
    /// primary: they may have shown records there that are on their way to this one, and have locked the devices in
    /// another order. The caller has no key lock.
    pub(crate) fn settle_writers(&self, now: Moment) {
        if !self.is_settled(now) {
            if !mutant!("mkvs.read.settled") {
                self.in_flight.wait_for_key_locks();
            }
            self.settled_at.store(now.stamp(), Ordering::Release);
        }
    }

    /// True if a device that was read has the newest record of every key in doubt that this `is_about`.
    #[inline]
    pub(crate) fn is_sure(&self, device: &Device, is_about: impl Fn(&[u8]) -> bool) -> bool {
        self.in_flight.sure_of(self.number, 1 << device.number, is_about) != 0
    }

    /// The number of the device with this index (see [`Self::index_of`]), if it is a member and not the primary.
    pub(crate) fn aside(&self, index: Option<u32>) -> Option<u8> {
        let now = self.states.now();
        let of_index = numbers(now.members()).find(|number| Some(self.index_of(*number)) == index);
        of_index.filter(|number| now.primary() != *number)
    }

    /// True if this is the device at its place, and not one that was there before.
    pub(crate) fn is_there(&self, device: &Device) -> bool {
        self.device(device.number).is_ok_and(|here| std::ptr::eq(&**here, device))
    }

    /// True if this device is a member, as it was when it was found.
    pub(crate) fn is_member(&self, device: &Device) -> bool {
        self.members() & 1 << device.number != 0 && self.is_there(device)
    }

    /// True if reads go through the rings.
    #[inline]
    pub(crate) fn reads_by_rings(&self, device: &Device) -> bool {
        match self.rules.reads {
            ReadPath::Inline => false,
            ReadPath::Rings => true,
            ReadPath::Auto => self.competes() && device.pace.is_unsteady(),
        }
    }

    /// True if several devices may be asked for one read.
    #[inline]
    pub(crate) fn competes(&self) -> bool {
        self.rules.prototype == Prototype::Mkvs
    }

    /// True if no member has the key, as far as the filter can tell.
    #[inline]
    pub(crate) fn denies(&self, (hash, key): Hashed<'_>) -> bool {
        self.rules.asks_filters
            // This look drops the entry of a write that has come to all devices meanwhile.
            && !self.in_flight.has_entry((hash, key))
            // Checked before and after: meanwhile the filter may be replaced by one of all keys, and then by one of
            // fewer.
            && self.is_listed.load(Ordering::Acquire)
            && !self.filter.may_contain(hash)
            && self.is_listed.load(Ordering::Acquire)
    }

    /// True if callers' threads measure whether devices are steady.
    #[inline]
    pub(crate) fn is_watching(&self) -> bool {
        self.rules.reads == ReadPath::Auto && self.competes()
    }

    /// Reads a key through the rings; returns the result, and the number of the device that gave it. None if the
    /// device must be chosen anew.
    ///
    /// # Errors
    /// As the engine, and if the group has no member left.
    pub(crate) fn compete(
        self: &Arc<Self>,
        (hash, key): Hashed<'_>,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Option<(Found, u8)>> {
        let (devices, _) = self.readers((hash, key), 0)?;
        let first = self.fastest(devices).ok_or_else(|| self.lost())?;
        hedge::read(self, self.device(first)?, (hash, key), self.competes(), visit)
    }

    /// Asks the primary, and goes on without it if it has failed: then the new primary is asked the same, from the
    /// beginning. It is found by [`Self::settled`], or, for the holder of the key locks of the keys that are read
    /// there, by [`Self::primary`].
    ///
    /// # Errors
    /// As `ask`, and if the group has no member left.
    pub(crate) fn ask<T>(
        &self,
        find: fn(&Self) -> Result<&Arc<Device>>,
        mut ask: impl FnMut(&Arc<Device>) -> Result<T>,
    ) -> Result<T> {
        loop {
            let device = find(self)?;
            match ask(device) {
                Err(error) if !is_damage(&error) => self.go_on_without(device, error)?,
                answer => return answer,
            }
        }
    }
}
