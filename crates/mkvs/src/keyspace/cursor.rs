//! Iteration over all records: group after group, each on a device that has all records of the group.

use super::Keyspace;
use super::intent::own_records;
use crate::device::{Device, Guarded, Stretch, each_entry, is_damage};
use crate::filter::hash_of;
use crate::group::Group;
use crate::in_flight::InFlight;
use crate::stats::Count;
use coreplane_engine::{Entry, Error, Record, Result, Value};
use coreplane_pmem::spin;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where an iteration continues: a group, the index of a device among all that have ever come to the group,
/// and the cursor of that device's engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    group: usize,
    device: Option<u32>,
    inner: u64,
}

/// A call asks a device that has more at most so many times.
const CALLS_MAX: u32 = 8;

impl Keyspace {
    pub(crate) fn iterate(
        &self,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<u64> {
        let _still = self.moves.read();
        let Place { mut group, mut device, mut inner } = spin::lock(&self.cursors).place_of(cursor);
        let (mut shown, mut calls, mut stretch) = (0, 0, Stretch::default());
        while let Some(of) = self.groups.get(group) {
            self.lost_ranges.check(of.number, b"", None)?;
            let (wanted, from) = (count.saturating_sub(shown), (device, inner));
            let read = |on: &Arc<Device>, stretch: &mut Stretch| {
                // Another device than before, at its place or at another, begins with the group again.
                let index = Some(of.index_of(on.number));
                let inner = if from.0 == index { from.1 } else { 0 };
                stretch.clear();
                let mut keep = |entry: Entry<'_>| {
                    let is_shown = self.owners.shows(of.number, entry.key);
                    if let (true, Some(record)) = (is_shown, &entry.record) {
                        stretch.push(entry.key, record);
                    }
                };
                Ok((index, on.engine.call(|it| it.iterate(inner, wanted, &mut keep))?))
            };
            // The order of an iteration is unknown, so any key may be concerned.
            let is_about = |_: &Stretch, _: &[u8]| true;
            (device, inner) = match of.aside(from.0) {
                Some(on) => {
                    // The numbers only go down, and not to the primary again: a member that takes over begins anew.
                    let set = ((2 << on) - 1) & !of.states.now().primary_set();
                    self.read_around(of, (set, of.gone()), &mut stretch, read, is_about)?
                }
                None => self.read_settled(of, &mut stretch, read, is_about)?,
            };
            for entry in stretch.entries() {
                if entry.record.is_some() {
                    visit(entry);
                } else {
                    self.show_now(entry.key, visit)?;
                }
            }
            shown += stretch.len();
            if inner == 0 {
                (group, device) = (group + 1, None);
            }
            // A device that has more has looked at as many records, or places, as it was asked for; some may have
            // expired, or belong to the matrix itself.
            calls += u32::from(inner > 0);
            let is_enough = shown >= count || calls == CALLS_MAX;
            if is_enough && group < self.groups.len() {
                let place = Place { group, device, inner };
                return Ok(spin::lock(&self.cursors).remember(cursor, place));
            }
        }
        spin::lock(&self.cursors).end(cursor);
        Ok(0)
    }

    pub(crate) fn changes_since(
        &self,
        sequence: u64,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<()> {
        let horizon = self.tombstone_horizon();
        if sequence < horizon {
            return Err(Error::HistoryGone { asked: sequence, horizon });
        }
        let _still = self.moves.read();
        self.groups.iter().try_for_each(|group| self.changes_of(group, sequence, visit))
    }

    /// Shows the changes of a group since a sequence. Writes that are made meanwhile may be taken back: their
    /// keys are read one by one afterwards.
    fn changes_of(
        &self,
        group: &Arc<Group>,
        sequence: u64,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<()> {
        self.lost_ranges.check(group.number, b"", None)?;
        let mut written = BTreeMap::new();
        let mut show = |on: &Arc<Device>| {
            let (newest, taken_back) =
                (self.sequence.load(Ordering::Acquire), self.in_flight.taken_back());
            // Writes up to that sequence are settled by then.
            self.in_flight.wait_for_key_locks();
            on.drain();
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let mut see = |entry: Entry<'_>| {
                key.clear();
                key.extend_from_slice(entry.key);
                value.clear();
                entry.record.iter().for_each(|record| record.value.append_to(&mut value));
                // A record that is shown while the medium is being lost is not to be believed. The failure is
                // reported when this call has ended.
                let is_there = on.engine.tell(|it| it.check_medium().is_ok());
                if !is_there || !self.owners.shows(group.number, &key) {
                    return;
                }
                let is_settled = entry.sequence <= newest
                    && !self.in_flight.has_entry((hash_of(&key), &key))
                    && self.in_flight.taken_back() == taken_back;
                if is_settled {
                    let whole = |record| Record { value: Value::Whole(&value), ..record };
                    let record = entry.record.map(whole);
                    visit(Entry { key: &key, record, sequence: entry.sequence });
                } else {
                    written.insert(key.clone(), entry.sequence);
                }
            };
            on.engine.call(|it| it.changes_since(sequence, &mut see))
        };
        self.read_through(group, &mut show)?;
        for (key, sequence) in &written {
            let hash = hash_of(key);
            let _turn = self.in_flight.lock_key(InFlight::stripe_of(hash));
            if !self.show_now(key, visit)? {
                visit(Entry { key, record: None, sequence: *sequence });
            }
        }
        Ok(())
    }

    /// Shows the record that a key has now; false if it has none.
    fn show_now(&self, key: &[u8], visit: &mut dyn FnMut(Entry<'_>)) -> Result<bool> {
        let found = self.find(hash_of(key), key, &mut |record| {
            let sequence = record.sequence;
            visit(Entry { key, record: Some(record), sequence });
        });
        Ok(found?.hit)
    }

    /// Reads all records of a group on its primary, or, where that is damaged or in doubt, on the next member
    /// that is not, from the beginning. The caller has no key lock, and treats no write that is made
    /// meanwhile as certain.
    ///
    /// # Errors
    /// As `read` if no member can do it, and if the group has no member left.
    pub(crate) fn read_through(
        &self,
        group: &Group,
        read: &mut dyn FnMut(&Arc<Device>) -> Result<()>,
    ) -> Result<()> {
        let mut tried = 0;
        loop {
            let (primary, members) = (group.settled()?, group.members());
            let others = members & !tried & !(1 << primary.number);
            let other = || others.checked_ilog2().and_then(|it| group.device(it as u8).ok());
            let is_tried = tried & 1 << primary.number != 0;
            let on = if is_tried { other().unwrap_or(primary) } else { primary };
            on.drain();
            let error = match read(on) {
                Ok(()) if group.is_sure(on, |_| true) => return Ok(()),
                Ok(()) => group.gone(),
                Err(error) if is_damage(&error) => error,
                Err(error) => {
                    group.go_on_without(on, error)?;
                    continue;
                }
            };
            tried |= 1 << on.number;
            if members & !tried == 0 {
                return Err(error);
            }
            self.counters.add(Count::DamagedReads, 1);
        }
    }

    pub(crate) fn tombstone_horizon(&self) -> u64 {
        let devices = self.groups.iter().flat_map(|group| group.of(group.members()));
        let of_devices = devices.map(|device| device.engine.tell(|it| it.tombstone_horizon()));
        of_devices.max().unwrap_or(0).max(self.horizon.load(Ordering::Acquire))
    }

    pub(crate) fn len(&self) -> Result<u64> {
        // Not while a slot changes hands.
        let _still = self.moves.read();
        let mut len = 0;
        let has_guests = self.has_guests.load(Ordering::Acquire);
        for group in self.groups.iter() {
            len += group.ask(Group::settled, |device| {
                if has_guests {
                    return self.count_shown(group.number, &device.engine);
                }
                let own = own_records(&device.engine)?;
                Ok(device.engine.call(|it| it.len())?.saturating_sub(own))
            })?;
        }
        Ok(len)
    }

    /// As [`Self::len`]; none while a device that is asked has not counted its records.
    pub(crate) fn try_len(&self) -> Result<Option<u64>> {
        for group in self.groups.iter() {
            let len = group.ask(Group::settled, |device| device.engine.call(|it| it.try_len()))?;
            if len.is_none() {
                return Ok(None);
            }
        }
        self.len().map(Some)
    }

    /// Counts the records that a group shows, one by one: while slots move it has other records too. The caller
    /// keeps slots from changing hands.
    fn count_shown(&self, group: u16, engine: &Guarded) -> Result<u64> {
        let mut count = 0;
        each_entry(engine, &[], &mut |entry| {
            count += u64::from(self.owners.shows(group, entry.key));
        })?;
        Ok(count)
    }

    /// Removes expired records on every device.
    pub(crate) fn sweep_expired(&self) -> Result<u64> {
        self.check_writable()?;
        let mut swept = 0;
        for group in self.groups.iter() {
            let mut most = 0;
            for device in group.of(group.members()) {
                device.drain();
                match device.engine.call(|it| it.sweep_expired()) {
                    Ok(swept) => most = most.max(swept),
                    // It has swept what it could read.
                    Err(error) if is_damage(&error) => {}
                    Err(error) => group.go_on_without(device, error)?,
                }
            }
            swept += most;
        }
        Ok(swept)
    }

    /// True if every device has access in key order.
    pub(crate) fn is_ordered(&self) -> bool {
        let mut devices = self.groups.iter().flat_map(|group| group.devices());
        !devices.any(|device| device.engine.tell(|it| it.ordered().is_none()))
    }
}
