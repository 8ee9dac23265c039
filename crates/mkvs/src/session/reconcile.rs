//! Reconciliation: makes the members of a group equal when a matrix is opened that was not closed.
//!
//! Key by key, in all directions: of each key with a sequence above the least stable watermark of the
//! members, the greatest sequence counts, deletes included, and members that lack it get it. No write is
//! dropped: one that was not acknowledged may be kept. The primary gets the writes of the others before they
//! get its own (where a write waits for the primary alone, no other member has a write that the primary
//! lacks, which proves that it is no older copy of itself).
//!
//! **Damage.** A member that cannot show its record of a key counts as absent for that key. If the others
//! suffice ([`Quorum`]), their record counts, and the damaged member gets it. If not, the last write is
//! unknown, and the key becomes a *lost range*: reads of it fail until it is written again, or the loss is
//! accepted. A member that cannot even tell which keys are damaged is left out, if the others suffice.

use super::difference::{Missing, difference_since};
use super::doubt::Doubt;
use super::unsure::{Unsure, bounds_of};
use crate::device::{Decided, Guarded, is_damage, is_failure};
use crate::group::sequence_on;
use crate::membership::{Found, LostRange, MembershipRecord, Quorum, just};
use crate::rebuild::side_by_side;
use crate::shape::{Ack, DEVICES_MAX, Devices, Position, is_reserved};
use coreplane_engine::{
    Change, DamagedKey, Entry, Error, KeyRange, Progress, Record, Remedy, Result, Visibility,
    WriteOptions,
};
use coreplane_pmem::mutant;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The devices, the primary of each group before the others.
pub(super) fn primaries_first<'f>(
    found: &'f BTreeMap<Position, Found>,
    record: &MembershipRecord,
) -> impl Iterator<Item = (&'f Position, &'f Found)> {
    let mut all: Vec<_> = found.iter().collect();
    all.sort_by_key(|(at, _)| (at.group, record.primary_of(at.group) != at.device));
    all.into_iter()
}

/// Checks primaries: where a write waits for the primary alone, the primary has each write durably before any other
/// member.
///
/// # Errors
/// If a primary lacks a write that another member has: it is an older copy of itself.
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
    if primary.engine.call(|it| it.changes_since(since, &mut note)).is_err() {
        // It has lost something, which may be the reason.
        return Ok(());
    }
    for (other, device) in members.all.iter().filter(|(it, _)| **it != at) {
        let mut ahead = None;
        let mut compare = |entry: Entry<'_>| {
            let is_known = known.get(entry.key).is_some_and(|it| *it >= entry.sequence);
            let check = || primary.engine.call(|it| it.check(entry.key));
            let is_sound = || !check().is_err_and(|error| is_damage(&error));
            if !is_known && ahead.is_none() && !is_reserved(entry.key) && is_sound() {
                ahead = Some(entry.sequence);
            }
        };
        // Other records that it cannot show do not matter here.
        let _shown = device.engine.call(|it| it.changes_since(since, &mut compare)).is_ok();
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

/// Leaves a device out of the matrix.
///
/// # Errors
/// If it is the last of its group.
pub(super) fn leave_out(
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
        // The members are equal by now.
        record.name_primary(group, last as u8);
    }
    Ok(())
}

pub(super) fn no_space(position: Position) -> Error {
    Error::Unusable(format!(
        "{position} has no space for what its group has to take back or to make"
    ))
}

/// Writes that members had and cannot show.
#[derive(Default)]
struct Lost {
    doubts: Vec<Doubt>,
    /// Ranges of one key each, which had a write with this sequence that no other member has.
    hurt: Vec<DamagedKey>,
    /// The greatest sequence of a write that some member cannot show.
    greatest: u64,
    /// Members that cannot be read, and why.
    unreadable: Vec<(Position, String)>,
}

/// What the members of a matrix could not show when they were made equal.
#[derive(Default)]
pub(crate) struct Reconciled {
    /// The greatest sequence of a write that some member cannot show.
    pub(crate) greatest_lost: u64,
    /// Members that could not be read, and why.
    pub(crate) unreadable: Vec<(Position, String)>,
    pub(crate) doubts: Vec<Doubt>,
}

/// Makes the members of each group equal: gives each the newer writes of the others. A member without space
/// for them is left out, and so is one that cannot be read, with the reason, if the others are enough. Writes that no
/// member can show are noted as lost ranges in the record, if the others are not enough by the group's quorum.
///
/// Most of the time goes to reading the members. So groups are reconciled side by side, and if there are more
/// `threads` than groups the members of a group are read side by side, too.
pub(crate) fn reconcile(
    found: &mut BTreeMap<Position, Found>,
    record: &mut MembershipRecord,
    (groups, threads): (&[(u16, Quorum)], usize),
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Reconciled> {
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
    let mut of_matrix = Reconciled::default();
    for ((group, _), reconciled) in groups.iter().zip(reconciled) {
        let (full, Lost { doubts, hurt, greatest, unreadable }) = reconciled?;
        of_matrix.greatest_lost = of_matrix.greatest_lost.max(greatest);
        let leaving = full.into_iter().chain(unreadable.iter().map(|(position, _)| *position));
        for position in leaving {
            leave_out(position, found, record)?;
        }
        of_matrix.unreadable.extend(unreadable);
        let lost = doubts.iter().filter(|doubt| doubt.is_lost).map(|doubt| doubt.range.clone());
        record.lost_ranges.extend(lost.map(|range| LostRange::new(*group, range)));
        of_matrix.doubts.extend(doubts);
        for DamagedKey { within, sequence } in hurt {
            // It may have been noted by an earlier open.
            if !record.lost_ranges.iter().any(|it| it.covers(*group, &within, sequence)) {
                record.lost_ranges.push(LostRange::new(*group, within));
            }
        }
    }
    Ok(of_matrix)
}

/// The progress of all groups in a stage, given that of one group.
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

/// The members of a group while they are made equal, the primary first.
pub(super) struct Members<'f> {
    all: Vec<(&'f Position, &'f Found)>,
    /// Members without space.
    pub(super) full: Vec<Position>,
    /// The primary, if no other member may have a write that it lacks.
    first: Option<Position>,
}

impl<'f> Members<'f> {
    pub(super) fn of(
        found: &'f BTreeMap<Position, Found>,
        record: &MembershipRecord,
        group: u16,
    ) -> Self {
        let of_group = |(position, _): &(&Position, &Found)| position.group == group;
        let all = primaries_first(found, record).filter(of_group).collect();
        let first = Position { group, device: record.primary_of(group) };
        let first = (record.ack == Ack::First).then_some(first);
        Self { all, full: Vec::new(), first }
    }

    fn set(&self) -> Devices {
        self.all.iter().fold(0, |set, (position, _)| set | 1 << position.device)
    }

    /// All members have every write up to this, whichever of their records is right.
    fn watermark(&self, record: &MembershipRecord) -> u64 {
        let own = self.all.iter().map(|(_, device)| device.record.watermark);
        if mutant!("mkvs.reconcile.greatest_watermark") {
            return record.watermark;
        }
        own.min().map_or(record.watermark, |least| least.min(record.watermark))
    }

    /// The devices of a set.
    pub(super) fn in_set(&self, set: Devices) -> impl Iterator<Item = &(&'f Position, &'f Found)> {
        self.all.iter().filter(move |(position, _)| set & 1 << position.device != 0)
    }

    /// A member of a set whose record of a key is undamaged.
    fn sound(&self, set: Devices, key: &[u8]) -> Result<Option<&'f Found>> {
        for (_, device) in self.in_set(set) {
            match device.engine.call(|it| it.check(key)) {
                Err(error) if is_damage(&error) => {}
                checked => return checked.map(|_| Some(*device)),
            }
        }
        Ok(None)
    }

    /// The members of a set that have the newest write of a key, given what they have shown of it.
    fn newest_of(&self, set: Devices, of: &Missing) -> Result<Devices> {
        let mut newest = (0, 0);
        for (Position { device, .. }, found) in self.in_set(set) {
            let mut sequence = of.own[usize::from(*device)];
            if sequence == 0 {
                sequence = sequence_on(&found.engine, &of.key)?.unwrap_or(0);
            }
            newest = match newest {
                (known, devices) if known == sequence => (known, devices | 1 << device),
                (known, devices) if known > sequence => (known, devices),
                _ => (sequence, 1 << device),
            };
        }
        Ok(newest.1)
    }

    /// A member that has the last acknowledged write of a key, of which some members have a newer, damaged record;
    /// none if that is not sure.
    fn sure_of(&self, of: &Missing, quorum: Quorum, lost: &Unsure) -> Result<Option<&'f Found>> {
        let mut away = of.has | lost.of_key(&of.key);
        loop {
            let here = self.set() & !away;
            if here == 0 || !quorum.suffices(here) {
                return Ok(None);
            }
            let newest = self.newest_of(here, of)?;
            if let Some(device) = self.sound(newest, &of.key)? {
                return Ok(Some(device));
            }
            away |= newest;
        }
    }

    /// Goes on without a member that cannot be read, if the others have every acknowledged write; false if not.
    fn leave_unreadable(&mut self, at: Position, quorum: Quorum) -> bool {
        let others = self.set() & !(1 << at.device);
        let can_leave = others != 0 && quorum.suffices(others);
        if can_leave {
            self.all.retain(|(position, _)| **position != at);
        }
        can_leave
    }

    /// Gives a change to the members of a set.
    fn give(&mut self, set: Devices, change: &Change, sequence: u64) -> Result<()> {
        // A full device must not have to leave the group.
        let options =
            WriteOptions { sequence: Some(sequence), use_reserve: true, ..WriteOptions::default() };
        for (position, device) in &self.all {
            if set & 1 << position.device == 0 || self.full.contains(*position) {
                continue;
            }
            // A key that is absent need not be deleted: a full device has no space for more tombstones. But if this
            // open is cut off, the next one must not take the primary for one that lacks the delete.
            let give = |is_spared| {
                Decided::of(change.as_ref()).restore(&device.engine, &options, is_spared)
            };
            let is_needed = self.first == Some(**position);
            let given = match give(!is_needed) {
                Err(error) if is_needed && error.remedy() == Remedy::FreeSpace => give(true),
                given => given,
            };
            match given {
                Err(error) if !is_failure(&error) => self.full.push(**position),
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Replaces the others' records of a key by the one of a source.
    pub(super) fn give_anew(
        &mut self,
        others: Devices,
        source: &Guarded,
        key: &[u8],
    ) -> Result<()> {
        let change = change_of(source, key)?;
        let mut newest = 0;
        for (_, device) in &self.all {
            newest = newest.max(device.engine.call(|it| it.advance_sequence())?);
        }
        self.give(others, &change, newest + 1)
    }
}

/// Accepts losses: for keys that are lost ranges by themselves all members get the undamaged record of one
/// member, and writes lost up to the sequence `lost` are not missed again.
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
            members.give_anew(Devices::MAX, &source, key)?;
        }
        for position in members.full {
            leave_out(position, found, record)?;
        }
    }
    record.watermark = record.watermark.max(lost);
    Ok(())
}

/// The record of a key on a device, as a change.
fn change_of(engine: &Guarded, key: &[u8]) -> Result<Change> {
    let key = key.to_vec();
    let mut change = Change::Delete { key: key.clone() };
    let mut note = |record: Record<'_>| {
        let (value, expires_at) = (record.value.to_vec(), record.expires_at);
        change = Change::Put { key: key.clone(), value, expires_at };
    };
    engine.call(|it| it.get_with(&key, Visibility::Durable, &mut note))?;
    Ok(change)
}

/// Adds the damaged records that are newer than what the others have, so that the others' record replaces them: given
/// with its own sequence, it would count as older. Only those of keys whose others suffice: for the rest the newest of
/// the others' records goes to all of them, and the key is lost.
fn with_damaged(
    mut missing: Vec<Missing>,
    hurt: &[(Position, DamagedKey)],
    is_sure: impl Fn(&KeyRange) -> bool,
) -> Vec<Missing> {
    if mutant!("mkvs.reconcile.damaged_stays") {
        return missing;
    }
    let mut newest = BTreeMap::<&[u8], (u64, Devices)>::new();
    for (at, it) in hurt.iter().filter(|(_, it)| is_sure(&it.within)) {
        let Some(key) = it.within.only_key() else { continue };
        let known = newest.entry(key).or_default();
        if it.sequence > known.0 {
            *known = (it.sequence, 0);
        }
        known.1 |= Devices::from(it.sequence == known.0) << at.device;
    }
    for one in &mut missing {
        if let Some((sequence, has)) = newest.remove(&*one.key)
            && sequence > one.sequence
        {
            (one.sequence, one.has) = (sequence, has);
        }
    }
    let alone = newest.into_iter();
    let own = [0; DEVICES_MAX];
    let of_alone =
        |(key, (sequence, has)): (&[u8], _)| Missing { key: key.to_vec(), sequence, has, own };
    missing.extend(alone.map(of_alone));
    missing
}

fn reconcile_members(
    found: &BTreeMap<Position, Found>,
    (record, group, quorum): (&MembershipRecord, u16, Quorum),
    (lost, threads): (&mut Lost, usize),
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<Position>> {
    let mut members = Members::of(found, record, group);
    let (mut since, mut unsure) = (Some(members.watermark(record)), Unsure::default());
    let missing = loop {
        if members.all.len() < 2 {
            return Ok(members.full);
        }
        match difference_since(&members.all, since, (threads, progress), &mut unsure) {
            // A write with a given sequence was older than the tombstones that are kept: then all records are
            // compared. A member that lacks a key and has no tombstone of it never had it.
            Err(Error::HistoryGone { .. }) if since.is_some() => since = None,
            Err(error) => match unsure.unreadable {
                Some(at) if is_damage(&error) && members.leave_unreadable(at, quorum) => {
                    lost.unreadable.push((at, error.to_string()));
                }
                _ => return Err(error),
            },
            Ok(missing) => break missing,
        }
    };
    let doubts = unsure.ranges.clone();
    let hurt = std::mem::take(&mut unsure.hurt);
    for (at, it) in &hurt {
        lost.greatest = lost.greatest.max(it.sequence);
        unsure.add(*at, it.within.clone());
    }
    let all = members.set();
    let is_sure = |range: &KeyRange| quorum.suffices(all & !unsure.overlapping(range));
    let doubt = |(of, range): (Position, _)| Doubt { of, is_lost: !is_sure(&range), range };
    lost.doubts = doubts.into_iter().map(doubt).collect();
    let missing = with_damaged(missing, &hurt, is_sure);
    let (total, mut proven) = (missing.len() as u64, BTreeMap::new());
    for (done, it) in (0..).zip(missing) {
        progress(Progress { stage: "reconciling members", done, total });
        let (key, sequence, has) = (&it.key, it.sequence, it.has);
        if let Some(source) = members.sound(has, key)? {
            let change = change_of(&source.engine, key)?;
            members.give(all & !has, &change, sequence)?;
            proven.insert(it.key, (all & !has, sequence));
            continue;
        }
        lost.greatest = lost.greatest.max(sequence);
        if record.lost_ranges.iter().any(|it| it.is_about(group, key, sequence)) {
            // The records of the others are not shown, as before.
        } else if let Some(source) = members.sure_of(&it, quorum, &unsure)? {
            let source = Arc::clone(&source.engine);
            members.give_anew(all, &source, key)?;
        } else if !quorum.suffices(all & !has & !unsure.of_key(key)) {
            lost.hurt.push(DamagedKey { within: just(key), sequence });
        }
    }
    // A write that another member has too is known.
    let is_proven = |at: &Position, it: &DamagedKey| {
        let mut known = proven.range::<[u8], _>(bounds_of(&it.within));
        known.any(|(_, (given, sequence))| given & 1 << at.device != 0 && *sequence == it.sequence)
    };
    let unknown = hurt.into_iter().filter(|(at, it)| !is_proven(at, it) && !is_sure(&it.within));
    for (_, it) in unknown {
        match lost.hurt.iter_mut().find(|known| known.within == it.within) {
            Some(known) => known.sequence = known.sequence.max(it.sequence),
            None => lost.hurt.push(it),
        }
    }
    Ok(members.full)
}
