//! The scrub: every record of every device is checked against its checksums, and a damaged record is written
//! anew from a peer that has it undamaged.
//!
//! Every key that any member of the group has is looked up, so that a record is also missed that its own
//! device does not find any more. A key that differs is read again within its key lock, when all members have
//! the same writes.
//!
//! Before that, and once more afterwards if anything was found, each device reads the pages that its own
//! recovery would read ([`Repairable::scrub`]), and rewrites the pages that the recovery would not find
//! intact. So no healed damage reappears after a crash.
//!
//! A device that has lost records of unknown keys reports the ranges of keys that may be affected
//! ([`Repairable::lost_ranges`]). Its peers have those keys: each that differs is written to it again, and
//! when a peer has been read to the end, the doubt is settled. A key that is still in doubt then was deleted.
//!
//! A read that meets damage is served by a peer as well ([`read`](crate::keyspace::read)); it heals nothing.

use crate::device::{Device, UserCode, each_lot, is_damage};
use crate::filter::hash_of;
use crate::group::{Group, Item};
use crate::in_flight::InFlight;
use crate::rebuild::Rebuild;
use crate::shape::{Position, is_reserved};
use coreplane_engine::{Damage, Entry, Error, KeyRange, Progress, Record, Result, Visibility};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The findings of a scrub.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Records that were read, each on all of its devices.
    pub records: u64,
    /// Devices with a damaged record, once for each such record; it was written anew from a peer.
    pub repaired: Vec<Position>,
    /// Keys whose record is damaged on every device, or on one that may have been the only one with the last
    /// write: nothing was changed.
    pub lost: Vec<Vec<u8>>,
    /// Devices that had lost records, once for each range of keys that may have been affected, when all
    /// records of its peers in that range were written anew.
    pub settled: Vec<Position>,
    /// Keys whose last write is unknown, as long as devices are missing or fail: reads of them fail, and so
    /// do scans that reach them.
    pub indeterminate: Vec<Vec<u8>>,
    /// Ranges of keys of which acknowledged writes may be lost. Reads of keys in them that were not written
    /// since fail until the matrix is opened with the loss accepted.
    pub lost_ranges: Vec<KeyRange>,
    /// Devices with a page that their recovery would not have found intact, once for each such page, which
    /// was rewritten.
    pub rewritten: Vec<Position>,
    /// Devices that could not be read to the end, or still have damage that a recovery would find, and why.
    /// Their records were read as far as their peers have them.
    pub unreadable: Vec<(Position, String)>,
}

/// The state of a key on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Whole,
    Absent,
    Damaged,
}

impl Rebuild {
    /// The findings before any record is read: what is in doubt.
    pub(crate) fn begin_scrub(&self) -> Result<Scrubbed> {
        let indeterminate = self.clear_doubts()?;
        for (group, key) in self.keyspace.lost_ranges.keys() {
            let hash = hash_of(&key);
            let _turn = self.keyspace.in_flight.lock_key(InFlight::stripe_of(hash));
            // A later write is found.
            if self.keyspace.find(hash, &key, &mut |_| {}).is_ok_and(|found| found.hit) {
                self.failover.forget_lost_key(group, &key);
            }
        }
        let lost_ranges = self.keyspace.lost_ranges.ranges();
        Ok(Scrubbed { indeterminate, lost_ranges, ..Scrubbed::default() })
    }

    /// Scrubs a group.
    ///
    /// # Errors
    /// As the devices, but for damage.
    pub(crate) fn scrub_group(
        &self,
        group: &Arc<Group>,
        scrubbed: &mut Scrubbed,
        progress: &dyn Fn(Progress),
    ) -> Result<()> {
        let before = scrubbed.findings();
        let left = scrub_pages(group, scrubbed, progress)?;
        let mut doubts = Vec::new();
        for device in group.of(group.members()) {
            let its = doubts_of(group, device, &mut scrubbed.unreadable)?;
            doubts.push((Arc::clone(device), its));
        }
        let mut records = None;
        for (device, doubts) in &doubts {
            let of_device = self.scrub_keys_of(group, (device, doubts), scrubbed, progress)?;
            records = records.or(of_device);
        }
        scrubbed.records += records.unwrap_or(0);
        settle_all(group, &doubts, scrubbed)?;
        let is_doubtful = || doubts.iter().any(|(_, doubts)| !doubts.is_empty());
        if !left.is_empty() || scrubbed.findings() > before || is_doubtful() {
            // Rewritten records have left the damaged ones behind.
            let left = scrub_pages(group, scrubbed, progress)?;
            scrubbed.unreadable.extend(left);
        }
        if !group.is_listed.load(Ordering::Acquire) {
            // Perhaps its keys can be listed now.
            self.filters.fill_filter(group)?;
        }
        Ok(())
    }
}

impl Scrubbed {
    /// The number of findings.
    fn findings(&self) -> usize {
        self.repaired.len() + self.settled.len() + self.rewritten.len() + self.lost.len()
    }
}

impl Rebuild {
    /// Checks every key of one device, on all members, except those that the device is in doubt of: its peers
    /// have these. Returns the number of keys, unless the device failed: its peers have its records.
    pub(crate) fn scrub_keys_of(
        &self,
        group: &Arc<Group>,
        (device, doubts): (&Device, &[KeyRange]),
        scrubbed: &mut Scrubbed,
        progress: &dyn Fn(Progress),
    ) -> Result<Option<u64>> {
        if !group.is_member(device) {
            return Ok(None);
        }
        let mut done = 0;
        let total = match device.engine.call(|it| it.len()) {
            Ok(total) => total,
            Err(error) => {
                return go_around(group, device, error, &mut scrubbed.unreadable).map(|()| None);
            }
        };
        let take = |entry: &Entry<'_>| (!is_reserved(entry.key)).then(|| entry.key.to_vec());
        let listed = each_lot((&device.engine, doubts), take, |keys| {
            for key in &keys {
                self.failover.check_writable()?;
                self.scrub_key(group, key, scrubbed)?;
            }
            done += keys.len() as u64;
            progress(Progress { stage: "reading records", done: done.min(total), total });
            Ok(())
        })?;
        let Err(error) = listed else { return Ok(Some(done)) };
        let read = is_damage(&error).then_some(done);
        go_around(group, device, error, &mut scrubbed.unreadable)?;
        Ok(read)
    }

    /// Checks the record of a key against its checksums on all members, and heals it if it is damaged. The
    /// caller does not have the key lock.
    ///
    /// # Errors
    /// As the devices, but for damage.
    pub(crate) fn scrub_key(
        &self,
        group: &Arc<Group>,
        key: &[u8],
        scrubbed: &mut Scrubbed,
    ) -> Result<()> {
        let is_alike = |healths: &[(u8, Health)]| {
            healths.iter().all(|(_, health)| *health != Health::Damaged && *health == healths[0].1)
        };
        if is_alike(&healths(group, key)?) {
            return Ok(());
        }
        let _turn = self.keyspace.in_flight.lock_key(InFlight::stripe_of(hash_of(key)));
        // A close goes through all key locks: a write that takes its lock later would be made on some devices only.
        self.failover.check_writable()?;
        group.of(group.followers()).for_each(|device| device.drain());
        let (healths, members) = (healths(group, key)?, group.members());
        if is_alike(&healths) {
            return Ok(());
        }
        let sure = self.keyspace.in_flight.sure_of(group.number, members, |it| it == key);
        if sure != members {
            // Some device has an older record, perhaps of a key that was deleted since. Of no use is one that is sure
            // and cannot show it.
            let mut of_sure = healths.iter().filter(|(device, _)| sure & 1 << *device != 0);
            let is_lost = of_sure.all(|(_, health)| *health == Health::Damaged);
            let noted = if is_lost { &mut scrubbed.lost } else { &mut scrubbed.indeterminate };
            if !noted.iter().any(|known| known == key) {
                noted.push(key.to_vec());
            }
            return Ok(());
        }
        let whole = healths.iter().find(|(_, health)| *health == Health::Whole);
        // A device that reports the key as absent may have lost it, which proves nothing.
        let Some((source, _)) = whole else {
            if !scrubbed.lost.iter().any(|lost| lost == key) {
                scrubbed.lost.push(key.to_vec());
            }
            return Ok(());
        };
        let mut item = Item { key: key.to_vec(), put: None, sequence: group.draw(None) };
        let source = Arc::clone(group.device(*source)?);
        let mut known = 0;
        let mut take = |record: Record<'_>| {
            known = record.sequence;
            item.put = Some((record.value.to_vec(), record.expires_at));
        };
        match source.engine.call(|it| it.get_with(key, Visibility::Durable, &mut take)) {
            Err(error) if !is_damage(&error) => {
                // Its peers have its records, which are found when the peers are read.
                return group.go_on_without(&source, error);
            }
            read => drop(read?),
        }
        if self.keyspace.lost_ranges.since(group.number, key).is_some_and(|since| known <= since) {
            // A record that is written anew would be taken for the last write.
            if !scrubbed.lost.iter().any(|lost| lost == key) {
                scrubbed.lost.push(key.to_vec());
            }
            return Ok(());
        }
        if item.put.is_some() {
            // The filter may have been filled from a device that lacked the key. A key counted twice is only a
            // "perhaps".
            let change = group.filter.change();
            let _counted = change.insert(hash_of(key));
        }
        group.make_on_each(group.followers(), |engine| item.give_to(engine).map(|_| ()))?;
        let whole = if item.put.is_some() { Health::Whole } else { Health::Absent };
        let healed = healths.iter().filter(|(_, health)| *health != whole);
        let place = |number: u8| Position { group: group.number, device: number };
        scrubbed.repaired.extend(healed.map(|(number, _)| place(*number)));
        Ok(())
    }
}

/// Has each member of a group read the pages that its recovery would read, and rewrite damaged ones; returns
/// the damage that is left, and where. A member whose medium fails is left out.
fn scrub_pages(
    group: &Arc<Group>,
    scrubbed: &mut Scrubbed,
    progress: &dyn Fn(Progress),
) -> Result<Vec<(Position, String)>> {
    let mut left = Vec::new();
    for device in group.of(group.members()) {
        let place = device.at;
        let mut user = UserCode::default();
        let mut tell = |done| user.run(|| progress(done)).unwrap_or_default();
        let checked = device.engine.call(|it| it.scrub(&mut tell));
        user.end();
        match checked {
            Ok(report) => {
                scrubbed.rewritten.extend((0..report.rewritten).map(|_| place));
                let what = |it: Damage| format!("at {}: {}", it.offset, it.what);
                left.extend(report.damages.into_iter().map(|it| (place, what(it))));
            }
            Err(error) => go_around(group, device, error, &mut left)?,
        }
    }
    Ok(left)
}

/// A device could not make a step of the scrub. Damage is reported, and the device stays: its peers have what it
/// cannot show. If it has failed, it is left out.
fn go_around(
    group: &Group,
    device: &Device,
    error: Error,
    unreadable: &mut Vec<(Position, String)>,
) -> Result<()> {
    if !is_damage(&error) {
        return group.go_on_without(device, error);
    }
    unreadable.push((device.at, error.to_string()));
    Ok(())
}

/// The ranges of keys that a device is in doubt of.
fn doubts_of(
    group: &Group,
    device: &Device,
    unreadable: &mut Vec<(Position, String)>,
) -> Result<Vec<KeyRange>> {
    match device.engine.call(|it| it.lost_ranges()) {
        Err(error) => go_around(group, device, error, unreadable).map(|()| Vec::new()),
        doubts => doubts,
    }
}

/// Settles the doubts of members, as far as a peer has no doubt about the range and was read to the end.
fn settle_all(
    group: &Arc<Group>,
    doubts: &[(Arc<Device>, Vec<KeyRange>)],
    scrubbed: &mut Scrubbed,
) -> Result<()> {
    for (device, of) in doubts {
        let is_sure = |doubt: &KeyRange| {
            let mut peers = doubts.iter().filter(|(peer, _)| peer.number != device.number);
            peers.any(|(peer, theirs)| {
                let is_read = scrubbed.unreadable.iter().all(|(it, _)| *it != peer.at);
                is_read
                    && group.is_member(peer)
                    && !theirs
                        .iter()
                        .any(|other| other.overlaps(&doubt.start, doubt.end.as_deref()))
            })
        };
        let is_lost = |doubt: &KeyRange| scrubbed.lost.iter().any(|key| doubt.has(key));
        let settled: Vec<&KeyRange> = of.iter().filter(|it| is_sure(it) && !is_lost(it)).collect();
        for doubt in settled {
            if !group.is_member(device) {
                break;
            }
            device.drain();
            match device.engine.call(|it| it.settle(doubt)) {
                Ok(()) => scrubbed.settled.push(device.at),
                Err(error) => go_around(group, device, error, &mut scrubbed.unreadable)?,
            }
        }
    }
    Ok(())
}

/// The state of a key on each member; empty for an empty group.
fn healths(group: &Group, key: &[u8]) -> Result<Vec<(u8, Health)>> {
    let health = |device: &Device| match device.engine.call(|it| it.check(key)) {
        Ok(true) => Ok(Health::Whole),
        Ok(false) => Ok(Health::Absent),
        Err(error) if is_damage(&error) => Ok(Health::Damaged),
        Err(error) => Err(error),
    };
    let mut healths = Vec::new();
    for device in group.of(group.members()) {
        match health(device) {
            Ok(health) => healths.push((device.number, health)),
            Err(error) => group.go_on_without(device, error)?,
        }
    }
    Ok(healths)
}
