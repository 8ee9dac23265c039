//! Reconciliation: the members of a group have the same again, when a matrix is opened that was not closed.
//!
//! Key by key, in all directions: of each key that has a sequence above the least of their stable watermarks the
//! greatest sequence counts, deletes too, and whoever lacks it is given it. Nothing is thrown away: what was written
//! and not acknowledged may be kept. The primary is given what others have before they get what it has (where a write
//! waits for the primary alone, no other has what it lacks, which proves that it is no older copy of itself).
//!
//! **Damage.** A member that cannot show what it has of a key counts as away, for that key. Do the others suffice
//! ([`Quorum`]) what they have counts, and the damaged one is given it. If not, nobody knows what was written last,
//! and the key becomes a *lost range*: reads of it fail until it is written again, or the loss is accepted.

use super::difference::{Missing, difference_since};
use super::unsure::Unsure;
use crate::device::decision::{Decided, is_damage, is_failure};
use crate::membership::lost_ranges::{LostRange, just};
use crate::membership::quorum::Quorum;
use crate::membership::rack::Found;
use crate::membership::record::MembershipRecord;
use crate::rebuild::filter_snapshot::side_by_side;
use crate::rebuild::scrub::is_within;
use crate::shape::position::Devices;
use crate::shape::position::is_reserved;
use crate::shape::position::{Ack, Position};
use coreplane_engine::{
    Change, DamagedKey, Entry, Error, KeyRange, Outcome, Progress, Result, StorageEngine,
    Visibility, WriteOptions,
};
use coreplane_pmem::mutant;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The devices, the primary of each group before its others.
pub(super) fn primaries_first<'f>(
    found: &'f BTreeMap<Position, Found>,
    record: &MembershipRecord,
) -> impl Iterator<Item = (&'f Position, &'f Found)> {
    let mut all: Vec<_> = found.iter().collect();
    all.sort_by_key(|(at, _)| (at.group, record.primary_of(at.group) != at.device));
    all.into_iter()
}

/// Where a write waits for the primary alone, nothing comes to another before the primary has it durably.
///
/// # Errors
/// If a primary lacks what another member has: it is an older copy of itself.
pub(crate) fn check_primaries(
    found: &BTreeMap<Position, Found>,
    before: &MembershipRecord,
    threads: usize,
) -> Result<()> {
    let is_ordered = before.ack == Ack::First && !before.is_relaxed;
    if !is_ordered || before.is_clean || mutant!("mkvs.reconcile.primary_ahead") {
        return Ok(());
    }
    let groups: Vec<u16> = (0..before.members.len() as u16).collect();
    let checked = side_by_side(&groups, threads, |group| check_primary(found, before, *group));
    checked.into_iter().collect()
}

fn check_primary(
    found: &BTreeMap<Position, Found>,
    before: &MembershipRecord,
    group: u16,
) -> Result<()> {
    let at = Position { group, device: before.primary_of(group) };
    let members = Members::of(found, before, group);
    let (Some(primary), true) = (found.get(&at), members.all.len() > 1) else { return Ok(()) };
    let since = members.watermark(before);
    let mut known = HashMap::new();
    let mut note = |entry: Entry<'_>| {
        known.insert(entry.key.to_vec(), entry.sequence);
    };
    if primary.engine.changes_since(since, &mut note).is_err() {
        // It has lost something, and that may be why.
        return Ok(());
    }
    for (other, device) in members.all.iter().filter(|(it, _)| **it != at) {
        let mut ahead = None;
        let mut compare = |entry: Entry<'_>| {
            let is_known = known.get(entry.key).is_some_and(|it| *it >= entry.sequence);
            let is_sound = || !primary.engine.check(entry.key).is_err_and(|it| is_damage(&it));
            if !is_known && ahead.is_none() && !is_reserved(entry.key) && is_sound() {
                ahead = Some(entry.sequence);
            }
        };
        // What else it cannot show is of no matter here.
        let _shown = device.engine.changes_since(since, &mut compare).is_ok();
        if let Some(sequence) = ahead {
            return Err(Error::Unusable(format!(
                "{at}, the primary of its group, lacks a write (sequence {sequence}) that {other} has got \
                 from it: it is an older copy of itself, and what was acknowledged since and is on none of \
                 the others would be lost (bring the newest one back, or accept loss to open it)"
            )));
        }
    }
    Ok(())
}

/// The matrix goes on without a device.
///
/// # Errors
/// If it is the last of its group.
fn leave_out(
    position: Position,
    found: &mut BTreeMap<Position, Found>,
    record: &mut MembershipRecord,
) -> Result<()> {
    let has_others = found.keys().any(|it| it.group == position.group && *it != position);
    if !has_others {
        return Err(no_space(position));
    }
    found.remove(&position);
    record.leave(position);
    let (group, others) = (position.group, record.current_of(position.group));
    if let (true, Some(last)) =
        (record.primary_of(group) == position.device, others.checked_ilog2())
    {
        // They have the same by now.
        record.name_primary(group, last as u8);
    }
    Ok(())
}

pub(super) fn no_space(position: Position) -> Error {
    Error::Unusable(format!(
        "{position} has no space for what its group has to take back or to make"
    ))
}

/// What members cannot show of what they had got.
#[derive(Default)]
struct Lost {
    /// Of these keys nobody knows what there was.
    doubts: Vec<KeyRange>,
    /// Of one of these keys each there was something that no other has, with this sequence.
    hurt: Vec<DamagedKey>,
    /// The greatest sequence of what some member cannot show.
    greatest: u64,
}

/// Brings the members of each group level: gives each what another has that is newer. Who has no space
/// for it is left out. What nobody can show is noted in the record, as far as the others do not suffice by the
/// group's quorum; the greatest sequence of what some member cannot show.
///
/// Most of the time goes to reading what each member has. So groups are reconciled side by side, and where there are
/// more `threads` than groups their members are read so, too.
///
/// # Errors
/// As the engines.
pub(crate) fn reconcile(
    found: &mut BTreeMap<Position, Found>,
    record: &mut MembershipRecord,
    (groups, threads): (&[(u16, Quorum)], usize),
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<u64> {
    let (all, before, of_members) = (&*found, &*record, threads / groups.len().max(1));
    let of_groups = Mutex::new(BTreeMap::new());
    let reconciled = side_by_side(groups, threads, |(group, quorum)| {
        let mut lost = Lost::default();
        let of_group = (before, *group, *quorum);
        let of_all = |progress: Progress| of_all_groups(&mut of_groups.lock(), *group, progress);
        let told = |of_one| progress(of_all(of_one));
        let full = reconcile_members(all, of_group, (&mut lost, of_members), &told)?;
        Ok((full, lost))
    });
    let mut greatest_lost = 0;
    for ((group, _), reconciled) in groups.iter().zip(reconciled) {
        let (full, Lost { doubts, hurt, greatest }) = reconciled?;
        greatest_lost = greatest_lost.max(greatest);
        full.into_iter().try_for_each(|position| leave_out(position, found, record))?;
        record.lost_ranges.extend(doubts.into_iter().map(|doubt| LostRange::new(*group, doubt)));
        for DamagedKey { within, sequence } in hurt {
            // It may have been hurt when the matrix was opened before.
            if !record.lost_ranges.iter().any(|it| it.covers(*group, &within, sequence)) {
                record.lost_ranges.push(LostRange::new(*group, within));
            }
        }
    }
    Ok(greatest_lost)
}

/// The progress of all groups in a stage, when one has come so far in it.
fn of_all_groups(
    of_groups: &mut BTreeMap<(&'static str, u16), (u64, u64)>,
    group: u16,
    Progress { stage, done, total }: Progress,
) -> Progress {
    of_groups.insert((stage, group), (done, total));
    let of_stage = of_groups.range((stage, 0)..=(stage, u16::MAX)).map(|(_, it)| *it);
    let (done, total) = of_stage.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    Progress { stage, done, total }
}

/// The members of a group, while they are brought level, the primary first.
struct Members<'f> {
    all: Vec<(&'f Position, &'f Found)>,
    /// Those that have no space.
    full: Vec<Position>,
}

impl<'f> Members<'f> {
    fn of(found: &'f BTreeMap<Position, Found>, record: &MembershipRecord, group: u16) -> Self {
        let of_group = |(position, _): &(&Position, &Found)| position.group == group;
        let all = primaries_first(found, record).filter(of_group).collect();
        Self { all, full: Vec::new() }
    }

    fn set(&self) -> Devices {
        self.all.iter().fold(0, |set, (position, _)| set | 1 << position.device)
    }

    /// Up to this all of them have all, whichever record of theirs is right.
    fn watermark(&self, record: &MembershipRecord) -> u64 {
        let own = self.all.iter().map(|(_, device)| device.record.watermark);
        if mutant!("mkvs.reconcile.greatest_watermark") {
            return record.watermark;
        }
        own.min().map_or(record.watermark, |least| least.min(record.watermark))
    }

    /// The devices of a set.
    fn in_set(&self, set: Devices) -> impl Iterator<Item = &(&'f Position, &'f Found)> {
        self.all.iter().filter(move |(position, _)| set & 1 << position.device != 0)
    }

    /// One of a set whose record of a key is whole.
    fn sound(&self, set: Devices, key: &[u8]) -> Result<Option<&'f Found>> {
        for (_, device) in self.in_set(set) {
            match device.engine.check(key) {
                Err(error) if is_damage(&error) => {}
                checked => return checked.map(|_| Some(*device)),
            }
        }
        Ok(None)
    }

    /// Those of a set that have the newest of a key.
    fn newest_of(&self, set: Devices, since: Option<u64>, key: &[u8]) -> Result<Devices> {
        let mut newest = (0, 0);
        for (position, device) in self.in_set(set) {
            let mut sequence = 0;
            let since = since.unwrap_or(device.engine.tombstone_horizon());
            let mut note = |entry: Entry<'_>| {
                if entry.key == key {
                    sequence = sequence.max(entry.sequence);
                }
            };
            match device.engine.changes_since(since, &mut note) {
                // It has shown all that is sure.
                Err(error) if !is_damage(&error) => return Err(error),
                _ => {}
            }
            if sequence == 0 {
                device
                    .engine
                    .get_with(key, Visibility::Durable, &mut |it| sequence = it.sequence)?;
            }
            newest = match newest {
                (known, devices) if known == sequence => (known, devices | 1 << position.device),
                (known, devices) if known > sequence => (known, devices),
                _ => (sequence, 1 << position.device),
            };
        }
        Ok(newest.1)
    }

    /// A member that has what was acknowledged last of a key that those of `has` have newer and damaged: none if
    /// that is not sure.
    fn sure_of(
        &self,
        has: Devices,
        (since, quorum, lost): (Option<u64>, Quorum, &Unsure),
        key: &[u8],
    ) -> Result<Option<&'f Found>> {
        let mut away = has | lost.of_key(key);
        loop {
            let here = self.set() & !away;
            if here == 0 || !quorum.suffices(here) {
                return Ok(None);
            }
            let newest = self.newest_of(here, since, key)?;
            if let Some(device) = self.sound(newest, key)? {
                return Ok(Some(device));
            }
            away |= newest;
        }
    }

    /// Gives a change to those of a set. Who had it already, damaged.
    fn give(&mut self, set: Devices, change: &Change, sequence: u64) -> Result<Vec<Position>> {
        // A device must not be left out because it is full.
        let options =
            WriteOptions { sequence: Some(sequence), use_reserve: true, ..WriteOptions::default() };
        let mut had = Vec::new();
        for (position, device) in &self.all {
            if set & 1 << position.device == 0 || self.full.contains(*position) {
                continue;
            }
            // What is not there need not be deleted: a full device has no space for more marks.
            match Decided::of(change.as_ref()).restore_told(&*device.engine, &options, true) {
                Err(error) if !is_failure(&error) => self.full.push(**position),
                Ok(Some(Outcome::NotNewer(theirs, _))) if theirs == sequence => {
                    had.push(**position)
                }
                other => drop(other?),
            }
        }
        Ok(had)
    }

    /// What one of them has of a key takes the place of what others have.
    fn give_anew(&mut self, others: Devices, source: &dyn StorageEngine, key: &[u8]) -> Result<()> {
        let change = change_of(source, key)?;
        let mut newest = 0;
        for (_, device) in &self.all {
            newest = newest.max(device.engine.advance_sequence()?);
        }
        self.give(others, &change, newest + 1).map(|_| ())
    }
}

/// What may be lost is: of keys that are lost ranges by themselves all members have from here on what one has
/// that is whole, and what was lost up to a sequence is not missed again.
///
/// # Errors
/// As the engines.
pub(crate) fn accept(
    found: &mut BTreeMap<Position, Found>,
    record: &mut MembershipRecord,
    lost: u64,
) -> Result<()> {
    for lost_ranges in std::mem::take(&mut record.lost_ranges) {
        let Some((group, key)) = lost_ranges.key() else { continue };
        let mut members = Members::of(found, record, group);
        if let Some(source) = members.sound(Devices::MAX, key)? {
            let source = Arc::clone(&source.engine);
            members.give_anew(Devices::MAX, &*source, key)?;
        }
        for position in members.full {
            leave_out(position, found, record)?;
        }
    }
    record.watermark = record.watermark.max(lost);
    Ok(())
}

/// What a device has of a key.
fn change_of(engine: &dyn StorageEngine, key: &[u8]) -> Result<Change> {
    let key = key.to_vec();
    let mut change = Change::Delete { key: key.clone() };
    engine.get_with(&key, Visibility::Durable, &mut |record| {
        let (value, expires_at) = (record.value.to_vec(), record.expires_at);
        change = Change::Put { key: key.clone(), value, expires_at };
    })?;
    Ok(change)
}

fn reconcile_members(
    found: &BTreeMap<Position, Found>,
    (record, group, quorum): (&MembershipRecord, u16, Quorum),
    (lost, threads): (&mut Lost, usize),
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<Position>> {
    let mut members = Members::of(found, record, group);
    if members.all.len() < 2 {
        return Ok(members.full);
    }
    let (mut since, mut unsure) = (Some(members.watermark(record)), Unsure::default());
    let missing = match difference_since(&members.all, since, (threads, progress), &mut unsure) {
        // A write whose sequence was given was older than what tombstones are kept for: then all that
        // there is is held against each other. Who lacks a key without a tombstone never had it.
        Err(Error::HistoryGone { .. }) => {
            since = None;
            difference_since(&members.all, since, (threads, progress), &mut unsure)?
        }
        other => other?,
    };
    let doubts: Vec<KeyRange> = unsure.ranges.iter().map(|(_, doubt)| doubt.clone()).collect();
    let mut hurt = Vec::new();
    for (position, device) in &members.all {
        for it in damaged_keys_since(&*device.engine, since)? {
            lost.greatest = lost.greatest.max(it.sequence);
            unsure.add(position.device, it.within.clone());
            hurt.push((**position, it));
        }
    }
    let all = members.set();
    let is_sure = |range: &KeyRange| quorum.suffices(all & !unsure.overlapping(range));
    lost.doubts = doubts.into_iter().filter(|doubt| !is_sure(doubt)).collect();
    let (total, mut proven) = (missing.len() as u64, Vec::new());
    for (done, Missing { key, sequence, has }) in (0..).zip(missing) {
        progress(Progress { stage: "reconciling members", done, total });
        if let Some(source) = members.sound(has, &key)? {
            let change = change_of(&*source.engine, &key)?;
            let had = members.give(all & !has, &change, sequence)?;
            proven.extend(had.into_iter().map(|position| (position, key.clone(), sequence)));
            continue;
        }
        lost.greatest = lost.greatest.max(sequence);
        if record.lost_ranges.iter().any(|it| it.is_about(group, &key, sequence)) {
            // Nobody is told what others have of it, as before.
        } else if let Some(source) = members.sure_of(has, (since, quorum, &unsure), &key)? {
            let source = Arc::clone(&source.engine);
            members.give_anew(all, &*source, &key)?;
        } else if !quorum.suffices(all & !has & !unsure.of_key(&key)) {
            lost.hurt.push(DamagedKey { within: just(&key), sequence });
        }
    }
    // What another has, too, is known.
    let is_proven = |at: &Position, it: &DamagedKey| {
        let known = |(other, key, sequence): &(Position, Vec<u8>, u64)| {
            other == at && *sequence == it.sequence && is_within(&it.within, key)
        };
        proven.iter().any(known)
    };
    let unknown = hurt.into_iter().filter(|(at, it)| !is_proven(at, it) && !is_sure(&it.within));
    lost.hurt.extend(unknown.map(|(_, it)| it));
    Ok(members.full)
}

/// The keys of a device that it cannot show and that are newer than a watermark, if there is one.
fn damaged_keys_since(engine: &dyn StorageEngine, since: Option<u64>) -> Result<Vec<DamagedKey>> {
    engine.damaged_keys_since(since.unwrap_or(engine.tombstone_horizon()))
}
