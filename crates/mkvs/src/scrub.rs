//! The scrub: every record of every device is held against its checksums, and what is damaged is
//! written anew from a peer that has it whole.
//!
//! Keys are asked for by name, those that any member of the group has: so that a record is missed, too,
//! that its own device does not find any more. What differs is looked at again within the key's turn,
//! when all members have the same.
//!
//! A read that meets damage goes to a peer as well ([`Shared::find`]); it heals nothing.

use crate::bloom::hash_of;
use crate::decided::{is_damage, is_failure};
use crate::device::Device;
use crate::engine::Matrix;
use crate::filling::Item;
use crate::group::Group;
use crate::label::Position;
use crate::matrix::{Shared, is_reserved};
use crate::pending::Pending;
use coreplane_engine::{Engine, Progress, Record, Result, Visibility};
use std::sync::Arc;

/// Keys that are looked at at a time.
const AT_A_TIME: usize = 256;

/// What a scrub has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Records that were looked at, each on all of its devices.
    pub records: u64,
    /// Devices that had a damaged record, once for each, which was written anew from a peer.
    pub repaired: Vec<Position>,
    /// Keys whose record is damaged on every device: nothing was changed.
    pub lost: Vec<Vec<u8>>,
    /// Devices that could not be gone through as far as the end, and why. Their records were looked at
    /// as far as their peers have them.
    pub unreadable: Vec<(Position, String)>,
}

/// What a device says of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Whole,
    Absent,
    Damaged,
}

impl Matrix {
    /// Reads every record of every current device against its checksums, and writes what is damaged
    /// anew from a peer, while everybody goes on. Durable when it returns.
    ///
    /// # Errors
    /// As the devices, but for damage, which is in the answer.
    pub fn scrub(&self, progress: &dyn Fn(Progress)) -> Result<Scrubbed> {
        let shared = &*self.shared;
        let mut scrubbed = Scrubbed::default();
        for group in shared.groups.iter() {
            let mut records = None;
            for device in group.of(group.members()) {
                let of_device = shared.scrub_keys_of(group, device, &mut scrubbed, progress)?;
                records = records.or(of_device);
            }
            scrubbed.records += records.unwrap_or(0);
        }
        Ok(scrubbed)
    }
}

impl Shared {
    /// Looks at every key that one device has, on all members; how many they were, unless the device
    /// failed: its peers have what it had.
    fn scrub_keys_of(
        &self,
        group: &Arc<Group>,
        device: &Device,
        scrubbed: &mut Scrubbed,
        progress: &dyn Fn(Progress),
    ) -> Result<Option<u64>> {
        let (mut cursor, mut done) = (0, 0);
        let total = match device.engine.len() {
            Ok(total) => total,
            Err(error) => return group.go_on_without(device, error).map(|()| None),
        };
        loop {
            let mut keys = Vec::with_capacity(AT_A_TIME);
            let next = device.engine.iterate(cursor, AT_A_TIME, &mut |entry| {
                if !is_reserved(entry.key) {
                    keys.push(entry.key.to_vec());
                }
            });
            for key in &keys {
                self.check_writable()?;
                self.scrub_key(group, key, scrubbed)?;
            }
            done += keys.len() as u64;
            progress(Progress { stage: "reading records", done: done.min(total), total });
            cursor = match next {
                Ok(cursor) => cursor,
                Err(error) if is_damage(&error) => {
                    let position = Position { group: group.number, device: device.number };
                    scrubbed.unreadable.push((position, error.to_string()));
                    0
                }
                Err(error) => return group.go_on_without(device, error).map(|()| None),
            };
            if cursor == 0 {
                return Ok(Some(done));
            }
        }
    }

    fn scrub_key(&self, group: &Arc<Group>, key: &[u8], scrubbed: &mut Scrubbed) -> Result<()> {
        let is_alike = |healths: &[(u8, Health)]| {
            healths.iter().all(|(_, health)| *health != Health::Damaged && *health == healths[0].1)
        };
        if is_alike(&self.healths(group, key)?) {
            return Ok(());
        }
        let _turn = self.pending.turn(Pending::stripe_of(hash_of(key)));
        group.of(group.followers()).for_each(|device| device.drain());
        let healths = self.healths(group, key)?;
        if is_alike(&healths) {
            return Ok(());
        }
        let whole = healths.iter().find(|(_, health)| *health == Health::Whole);
        // One that says that it is not there may have lost its key: that is no answer.
        let Some((source, _)) = whole else {
            if !scrubbed.lost.iter().any(|lost| lost == key) {
                scrubbed.lost.push(key.to_vec());
            }
            return Ok(());
        };
        let mut item = Item { key: key.to_vec(), put: None, sequence: group.draw(None) };
        let source = Arc::clone(group.device(*source)?);
        let read = source.engine.get_with(key, Visibility::Durable, &mut |record: Record<'_>| {
            item.put = Some((record.value.to_vec(), record.expires_at));
        });
        match read {
            Err(error) if !is_damage(&error) => {
                // What it had is found again with its peers, by whoever goes through theirs.
                return group.go_on_without(&source, error);
            }
            read => drop(read?),
        }
        for device in group.of(group.followers()) {
            if let Err(error) = item.give_to(&*device.engine) {
                if !is_failure(&error) {
                    return Err(error);
                }
                // It cannot even be written over: the device has to be replaced.
                if group.members() & 1 << device.number == 0 {
                    group.drop_member(device)?;
                } else {
                    group.go_on_without(device, error)?;
                }
            }
        }
        let whole = if item.put.is_some() { Health::Whole } else { Health::Absent };
        let healed = healths.iter().filter(|(_, health)| *health != whole);
        let place = |number: u8| Position { group: group.number, device: number };
        scrubbed.repaired.extend(healed.map(|(number, _)| place(*number)));
        Ok(())
    }

    /// What each member says of a key. Of an empty group nothing.
    fn healths(&self, group: &Group, key: &[u8]) -> Result<Vec<(u8, Health)>> {
        let health = |engine: &dyn Engine| match engine.check(key) {
            Ok(true) => Ok(Health::Whole),
            Ok(false) => Ok(Health::Absent),
            Err(error) if is_damage(&error) => Ok(Health::Damaged),
            Err(error) => Err(error),
        };
        let mut healths = Vec::new();
        for device in group.of(group.members()) {
            match health(&*device.engine) {
                Ok(health) => healths.push((device.number, health)),
                Err(error) => group.go_on_without(device, error)?,
            }
        }
        Ok(healths)
    }
}
