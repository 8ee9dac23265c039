//! Keys that a group's primary lacks and its peers have, because a bit of the key itself is wrong there: an
//! iteration skips the key, or shows another key, which is not found.

use crate::device::Device;
use crate::device::decision::is_damage;
use crate::filter::hash_of;
use crate::group::Group;
use crate::group::item::Item;
use crate::in_flight::InFlight;
use crate::membership::lost_ranges::just;
use crate::rebuild::Rebuild;
use crate::rebuild::copy::{AT_A_TIME, Pace, items_of, value_len};
use crate::rebuild::scrub::Scrubbed;
use crate::shape::position::is_reserved;
use crate::shape::slots::SLOTS;
use coreplane_engine::{Entry, Error, Result, StorageEngine};
use std::sync::Arc;

/// Shows all records of a device.
fn list_of(engine: &dyn StorageEngine, show: &mut dyn FnMut(Entry<'_>)) -> Result<()> {
    let mut cursor = 0;
    loop {
        cursor = engine.iterate(cursor, AT_A_TIME, show)?;
        if cursor == 0 {
            return Ok(());
        }
    }
}

impl Rebuild {
    /// Checks the checksum of a record that a device lists from this cursor on; false if the device lists the
    /// key and does not find it. A key that was deleted meanwhile does not count.
    pub(crate) fn check_listed(&self, (device, from): (&Device, u64), item: &Item) -> Result<bool> {
        Ok(device.engine.check(&item.key)? || !self.is_strange(device, from, &item.key)?)
    }

    /// True if a device lists a key, from this cursor on, that it does not find: the key differs from the one
    /// that was written.
    fn is_strange(&self, device: &Device, from: u64, key: &[u8]) -> Result<bool> {
        let _turn = self.keyspace.in_flight.lock_key(InFlight::stripe_of(hash_of(key)));
        device.drain();
        if device.engine.check(key)? {
            return Ok(false);
        }
        // Others may have been inserted before it.
        let mut is_listed = false;
        device.engine.iterate(from, 16 * AT_A_TIME, &mut |entry| {
            is_listed |= entry.key == key && entry.record.is_some();
        })?;
        Ok(is_listed)
    }

    /// Gives the records that the primary's peers list and the primary does not find, and heals them; returns
    /// the number of these keys.
    pub(crate) fn give_lacking(
        &self,
        group: &Arc<Group>,
        primary: &Device,
        pace: &mut Pace,
        give: &mut dyn FnMut(&Item) -> Result<()>,
    ) -> Result<usize> {
        let mut lacking = Vec::new();
        let members = group.members() & !(1 << primary.number);
        for device in group.of(members) {
            device.drain();
            let listed = list_of(&*device.engine, &mut |entry| {
                let is_there = || matches!(primary.engine.check(entry.key), Ok(true));
                if entry.record.is_some() && !is_reserved(entry.key) && !is_there() {
                    lacking.push(Item { key: entry.key.to_vec(), put: None, sequence: 0 });
                }
            });
            match listed {
                // The device has shown all other records.
                Err(error) if !is_damage(&error) => group.go_on_without(device, error)?,
                _ => {}
            }
        }
        lacking.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        lacking.dedup_by(|one, other| one.key == other.key);
        let (mut lacked, mut lost) = (0, Vec::new());
        self.give_each(&lacking, pace, &mut |item| {
            self.give_sound(group, &item.key, &mut lost, &mut |item| {
                lacked += 1;
                give(item)
            })
        })?;
        lost.iter().for_each(|key| pace.leave_out(just(key)));
        Ok(lacked)
    }

    /// Gives all records of a member that lists them to the end, which may be the current primary.
    ///
    /// # Errors
    /// The given error, if no member does.
    pub(crate) fn give_as_a_peer(
        &self,
        group: &Arc<Group>,
        error: Error,
        pace: &mut Pace,
        give: &mut dyn FnMut(&Item) -> Result<()>,
    ) -> Result<()> {
        let mut lost = Vec::new();
        'members: for device in group.of(group.members()) {
            device.drain();
            let mut cursor = 0;
            loop {
                let (items, listed) = items_of(device, cursor);
                cursor = match listed {
                    Ok(cursor) => cursor,
                    Err(error) if is_damage(&error) => continue 'members,
                    Err(error) => {
                        group.go_on_without(device, error)?;
                        continue 'members;
                    }
                };
                let mut later = 0;
                self.give_each(&items, pace, &mut |item| match device.engine.check(&item.key) {
                    Ok(true) if item.put.is_some() => give(item),
                    // Its peers have the record, or its value was left out.
                    _ => self.give_sound(group, &item.key, &mut lost, &mut |item| {
                        later += value_len(item);
                        give(item)
                    }),
                })?;
                pace.count_values(later);
                if cursor == 0 {
                    break;
                }
            }
            lost.iter().for_each(|key| pace.leave_out(just(key)));
            if group.is_member(device) && group.is_sure(device, |_| true) {
                return Ok(());
            }
        }
        Err(error)
    }

    /// Makes sure that the new groups have every record of a moving slot that any member of a group has: the
    /// member that was read may lack a key, and all members are about to remove their records.
    pub(crate) fn hold_moving(&self, group: &Arc<Group>) -> Result<()> {
        let number = usize::from(group.number);
        let target = |key: &[u8]| {
            let route = self.keyspace.owners.of(hash_of(key));
            route.to().filter(|_| route.owner() == number && !is_reserved(key))
        };
        let mut routes = (0..SLOTS).map(|slot| self.keyspace.owners.of_slot(slot));
        if !routes.any(|route| route.to().is_some() && route.owner() == number) {
            return Ok(());
        }
        for device in group.of(group.members()) {
            device.drain();
            let mut cursor = 0;
            loop {
                let mut keys = Vec::with_capacity(AT_A_TIME);
                let listed = device.engine.iterate(cursor, AT_A_TIME, &mut |entry| {
                    if entry.record.is_some() && target(entry.key).is_some() {
                        keys.push(entry.key.to_vec());
                    }
                });
                for key in keys {
                    self.check_going_on()?;
                    self.hold_in_target(group, &key, target)?;
                }
                match listed {
                    Ok(0) => break,
                    Ok(next) => cursor = next,
                    // The device has shown all other records, and the peers know the rest.
                    Err(error) if is_damage(&error) => break,
                    Err(error) => {
                        group.go_on_without(device, error)?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn hold_in_target(
        &self,
        group: &Arc<Group>,
        key: &[u8],
        target: impl Fn(&[u8]) -> Option<usize>,
    ) -> Result<()> {
        let has =
            |to: usize| Ok::<bool, Error>(self.keyspace.groups[to].sequence_of(key)?.is_some());
        // Mostly the target has it, and no key lock is needed to see that.
        let Some(to) = target(key) else { return Ok(()) };
        if has(to)? {
            return Ok(());
        }
        self.scrub_key(group, key, &mut Scrubbed::default())?;
        let hash = hash_of(key);
        let _turn = self.keyspace.in_flight.lock_key(InFlight::stripe_of(hash));
        self.check_going_on()?;
        match (target(key), group.item_of(key)?) {
            (Some(to), Some(item)) if !has(to)? => {
                // The target may know of a delete that the owner has forgotten.
                let has = self.keyspace.groups[to].give(hash, &item)?;
                if has {
                    Ok(())
                } else {
                    self.keyspace.give_anew(self.keyspace.owners.of(hash), key)
                }
            }
            _ => Ok(()),
        }
    }
}
