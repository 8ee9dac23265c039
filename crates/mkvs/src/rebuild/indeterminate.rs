//! Keys in doubt: takes back writes that were neither made nor taken back, and gives the newest record of a
//! key to devices that lack it.

use crate::device::is_damage;
use crate::group::{Group, sound_of};
use crate::in_flight::{Hashed, InFlight, Indeterminate};
use crate::keyspace::intent::{Intent, Lost};
use crate::rebuild::Rebuild;
use crate::shape::{Devices, Position, numbers};
use coreplane_engine::Result;
use std::sync::Arc;

/// A summary of doubts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DamageSummary {
    /// Devices that have lost records, and the number of key ranges: the scrub restores them.
    pub devices: Vec<(Position, usize)>,
    /// Keys with a write that was neither made nor taken back, or that some device lacks: the scrub settles them.
    pub keys: usize,
    /// Ranges of keys of which acknowledged writes may be lost, until the loss is accepted.
    pub ranges: usize,
}

impl Rebuild {
    /// Settles all doubts, as far as the present devices can; returns the keys that are left.
    ///
    /// # Errors
    /// If the matrix is closed.
    pub(crate) fn clear_doubts(&self) -> Result<Vec<Vec<u8>>> {
        self.failover.check_writable()?;
        let _alone = self.failover.intents.seeing_to.lock();
        let (lost, in_flight) = (self.failover.intents.lost(), &self.keyspace.in_flight);
        // An open from here on takes these batches back as well.
        let is_refused = |it: &Lost| it.is_over || self.failover.change_on_all(it, Intent::refuse);
        if lost.iter().all(is_refused) {
            for (hash, doubt, _) in in_flight.indeterminate() {
                // A doubt that cannot be settled now stays.
                let _cleared = self.clear_doubt(hash, &doubt.key).is_ok();
            }
        }
        let left: Vec<_> =
            in_flight.indeterminate().into_iter().map(|(_, doubt, _)| doubt.key).collect();
        self.failover.drop_lost(&lost, left.is_empty());
        Ok(left)
    }

    /// Settles the doubt about a key, if there still is one.
    ///
    /// # Errors
    /// If a device that is needed for it fails.
    fn clear_doubt(&self, hash: u64, key: &[u8]) -> Result<()> {
        let _turn = self.keyspace.in_flight.lock_key(InFlight::stripe_of(hash));
        self.failover.check_writable()?;
        let doubts = self.keyspace.in_flight.indeterminate();
        let Some((_, doubt, sure)) = doubts.into_iter().find(|(_, it, _)| it.key == key) else {
            return Ok(());
        };
        let group = &self.keyspace.groups[usize::from(doubt.group)];
        group.of(group.followers()).for_each(|device| device.drain());
        let Indeterminate { torn, .. } = doubt;
        let Some(mut torn) = torn else { return self.give_newest(group, (hash, key), sure) };
        if torn.old.is_none() && group.members() & !torn.made == 0 {
            // All remaining members have the write, so it counts as made.
            return self.give_newest(group, (hash, key), torn.made);
        }
        group.take_back(&mut torn, key)?;
        self.keyspace.in_flight.count_taken_back();
        self.make_known(group, (hash, key));
        Ok(())
    }

    /// Gives all devices of a group the record that the devices `who` have.
    fn give_newest(&self, group: &Arc<Group>, (hash, key): Hashed<'_>, who: Devices) -> Result<()> {
        let mut read = Err(group.gone());
        for number in numbers(who & group.members()) {
            read = sound_of(group.device(number)?, key);
            // Not a damaged record, which would be written again with a valid checksum: the next device may have
            // it undamaged.
            if !read.as_ref().is_err_and(is_damage) {
                break;
            }
        }
        let (found, known) = read?;
        if found.is_some() {
            // A write that was not made was not counted. A key that is counted twice only makes the filter say
            // "perhaps".
            let change = group.filter.change();
            let _counted = change.insert(hash);
        }
        // Each of them is needed.
        group.write_anew(key, (&found, known), Devices::MAX)?;
        self.make_known(group, (hash, key));
        Ok(())
    }

    /// Notes that all devices of a group have the same record of a key.
    fn make_known(&self, group: &Group, key: Hashed<'_>) {
        let (sequence, all) = (group.draw(None), group.followers());
        let asked = numbers(all).next().unwrap_or_default();
        self.keyspace.in_flight.begin(key, sequence, asked, false);
        self.keyspace.in_flight.done(key, sequence, all, all);
    }
}
