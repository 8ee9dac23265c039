//! Keys that a group's primary lacks and its peers have, because a bit of the key itself is wrong there: an
//! iteration skips the key, or shows another key, which is not found.

use crate::device::{Device, each_lot, is_damage};
use crate::filter::hash_of;
use crate::group::{Group, Item};
use crate::in_flight::InFlight;
use crate::membership::just;
use crate::rebuild::Rebuild;
use crate::rebuild::copy::{AT_A_TIME, Pace, hurt_of, value_len};
use crate::rebuild::scrub::Scrubbed;
use crate::shape::is_reserved;
use coreplane_engine::{Entry, Error, Result};
use std::sync::Arc;

impl Rebuild {
    /// Checks the checksum of a record that a device lists from this cursor on; false if the device lists the
    /// key and does not find it. A key that was deleted meanwhile does not count.
    pub(crate) fn check_listed(&self, (device, from): (&Device, u64), item: &Item) -> Result<bool> {
        let is_found = device.engine.call(|it| it.check(&item.key))?;
        Ok(is_found || !self.is_strange(device, from, &item.key)?)
    }

    /// True if a device lists a key, from this cursor on, that it does not find: the key differs from the one
    /// that was written.
    fn is_strange(&self, device: &Device, from: u64, key: &[u8]) -> Result<bool> {
        let _turn = self.keyspace.in_flight.lock_key(InFlight::stripe_of(hash_of(key)));
        device.drain();
        if device.engine.call(|it| it.check(key))? {
            return Ok(false);
        }
        // Others may have been inserted before it.
        let mut is_listed = false;
        let mut look = |entry: Entry<'_>| is_listed |= entry.key == key && entry.record.is_some();
        device.engine.call(|it| it.iterate(from, 16 * AT_A_TIME, &mut look))?;
        Ok(is_listed)
    }

    /// Gives the records that the primary's peers list and the primary does not find, and heals them. If the primary
    /// has not shown all others because of some damage, gives all records of all members, one of which must show
    /// them to the end. Notes the keys that no member has undamaged, the `strange` ones among them.
    ///
    /// # Errors
    /// The given damage, if no member has shown all of its records; and as the devices.
    pub(crate) fn give_of_members(
        &self,
        group: &Arc<Group>,
        (primary, damage): (&Arc<Device>, Option<Error>),
        strange: Vec<Vec<u8>>,
        pace: &mut Pace,
        give: &mut dyn FnMut(&Item) -> Result<()>,
    ) -> Result<()> {
        // The keys that the primary has skipped, if it has shown all others.
        let (hurt, damage) = match damage.map(|error| hurt_of(&primary.engine, error)) {
            Some(Err(error)) if is_damage(&error) => (Vec::new(), Some(error)),
            hurt => (hurt.transpose()?.unwrap_or_default(), None),
        };
        let is_there = |key: &[u8]| matches!(primary.engine.call(|it| it.check(key)), Ok(true));
        let take = |entry: &Entry<'_>| {
            let is_record = entry.record.is_some() && !is_reserved(entry.key);
            let is_taken = is_record && (damage.is_some() || !is_there(entry.key));
            is_taken.then(|| Item { key: entry.key.to_vec(), put: None, sequence: 0 })
        };
        let (mut is_whole, mut lacked, mut lost) = (damage.is_none(), 0, Vec::new());
        let peers = group.of(group.members() & !(1 << primary.number));
        // The primary last: by then it has what its peers have.
        for device in peers.chain([primary]) {
            if is_whole && device.number == primary.number {
                break;
            }
            device.drain();
            let listed = each_lot((&device.engine, &[]), take, |items| {
                let mut later = 0;
                self.give_each(&items, pace, &mut |item| {
                    let is_lacking = !is_there(&item.key);
                    self.give_sound(group, &item.key, &mut lost, &mut |item| {
                        lacked += usize::from(is_lacking);
                        later += value_len(item);
                        give(item)
                    })
                })?;
                pace.count_values(later);
                Ok(())
            })?;
            match listed {
                Ok(()) => is_whole |= group.is_member(device) && group.is_sure(device, |_| true),
                // The device has shown all other records, or a peer shows the rest.
                Err(error) if is_damage(&error) => {}
                Err(error) => group.go_on_without(device, error)?,
            }
        }
        if lacked < strange.len() {
            // Each stands for a record whose key a peer may know.
            lost.extend(strange);
        }
        lost.iter().for_each(|key| pace.leave_out(just(key)));
        if !hurt.is_empty() {
            let left = primary.engine.call(|it| it.damaged_keys_since(0))?;
            let left = hurt.into_iter().filter(|it| left.contains(it));
            left.for_each(|it| pace.leave_out(it.within));
        }
        damage.filter(|_| !is_whole).map_or(Ok(()), Err)
    }

    /// Makes sure that the new groups have every record of a moving slot that any member of a group has: the
    /// member that was read may lack a key, and all members are about to remove their records.
    pub(crate) fn hold_moving(&self, group: &Arc<Group>) -> Result<()> {
        let number = usize::from(group.number);
        let target = |key: &[u8]| {
            let route = self.keyspace.owners.of(hash_of(key));
            route.to().filter(|_| route.owner() == number && !is_reserved(key))
        };
        if !self.keyspace.owners.has(|route| route.to().is_some() && route.owner() == number) {
            return Ok(());
        }
        let take = |entry: &Entry<'_>| {
            let is_moving = entry.record.is_some() && target(entry.key).is_some();
            is_moving.then(|| entry.key.to_vec())
        };
        for device in group.of(group.members()) {
            device.drain();
            let listed = each_lot((&device.engine, &[]), take, |keys| {
                keys.iter().try_for_each(|key| {
                    self.check_going_on()?;
                    self.hold_in_target(group, key, target)
                })
            })?;
            match listed {
                Err(error) if !is_damage(&error) => group.go_on_without(device, error)?,
                // After damage the peers know the rest.
                _ => {}
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
