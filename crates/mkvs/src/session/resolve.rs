//! Membership resolution: decides which record is in force when a matrix is opened, which devices are current
//! by it, and what would be lost without the missing ones.
//!
//! In this order:
//!
//! 1. **The record** of the highest epoch is in force, if it is the latest. Only a group whose current members are
//!    all present proves that: a later record would have been made without any of the present devices, so that every
//!    group would have had a member that is missing now.
//! 2. **Older copies**: a current member whose epoch is below the committed one of any present device has missed
//!    something that all current members had. It does not count, and its peers fill it before users are admitted.
//! 3. **After a clean close** any member has every acknowledged write.
//! 4. **After a crash** the present members must suffice: the primary, or so many that at least one of them has each
//!    acknowledged write ([`Quorum`](super::quorum::Quorum)).
//!
//! If something may be lost the matrix is refused, unless the loss is accepted. Then the missing devices must
//! not count any more: they may have continued without the present ones, or been written to since. So their
//! places get new identities, and the matrix an epoch that no other branch of it reaches. A device that comes
//! back is "replaced by another", whichever has the higher epoch, and only a fresh one can take its place.

use crate::keyspace::intent::Intent;
use crate::membership::{Found, Loss, Member, MemberState, MembershipRecord, drawn, names};
use crate::shape::{Devices, Position};
use coreplane_engine::{Error, Result};
use coreplane_pmem::mutant;
use std::collections::BTreeMap;

/// The increase of the epoch after an accepted loss: more than a membership ever changes.
const LEAP: u64 = 1 << 32;

const STALE: &str = "what was written since it was left out, and is on the missing ones alone,";
const OUTDATED: &str = "what was written to it since";
const UNPROVEN: &str = "what was acknowledged without those that are here, if anything was,";
const SINGLE: &str = "what was acknowledged and had not come to those that are here";

/// Devices by the positions where they belong, and the position at each place.
pub(crate) type Placed = (BTreeMap<Position, Found>, BTreeMap<Position, Position>);

/// # Errors
/// If they are not all of one matrix, or two have the same position.
pub(crate) fn by_position(devices: Vec<(Position, Found)>) -> Result<Placed> {
    check_one_matrix(&devices)?;
    let (mut found, mut occupied) = (BTreeMap::new(), BTreeMap::new());
    for (place, device) in devices {
        let position = device.record.position;
        if let Some((other, _)) = occupied.iter().find(|(_, known)| **known == position) {
            return Err(Error::Unusable(format!(
                "there are two devices {position}, at {other} and at {place}: take one out"
            )));
        }
        occupied.insert(place, position);
        found.insert(position, device);
    }
    Ok((found, occupied))
}

/// # Errors
/// If devices belong to different matrices: the smaller number is reported as foreign, wherever they lie.
fn check_one_matrix(devices: &[(Position, Found)]) -> Result<()> {
    let mut places: BTreeMap<&str, Vec<Position>> = BTreeMap::new();
    for (place, device) in devices {
        places.entry(&device.record.matrix).or_default().push(*place);
    }
    let most = places.iter().max_by_key(|(_, places)| places.len());
    let Some((matrix, ours)) = most else { return Ok(()) };
    let Some((other, foreign)) = places.iter().find(|(it, _)| it != &matrix) else { return Ok(()) };
    let (foreign, ours) = (names(foreign), names(ours));
    Err(Error::Unusable(format!(
        "the device at {foreign} belongs to another matrix ({other}) than {ours} ({matrix}): take it out"
    )))
}

/// The record of the highest epoch, a committed one if there is one.
///
/// Several records of an epoch that differ are uncommitted, or all but one: a change was interrupted when only some
/// devices had it, and the matrix was opened without those, which was interrupted in turn. Either will do: the members
/// that it names had everything before. A write of a user was acknowledged under one that is not committed only if
/// it undoes a change that failed, whose members and primary are those of the record before.
pub(crate) fn newest(found: &BTreeMap<Position, Found>) -> Result<MembershipRecord> {
    let records = found.values().map(|device| &device.record);
    let newest = records.max_by_key(|it| (it.epoch, it.committed, it.watermark));
    newest.cloned().ok_or_else(|| Error::Unusable("there is no device".to_owned()))
}

/// The devices with which a matrix is opened.
pub(crate) struct Resolved {
    /// The record, without the missing members.
    pub(crate) record: MembershipRecord,
    /// The record as it was found.
    pub(crate) before: MembershipRecord,
    /// The present current members.
    pub(crate) members: BTreeMap<Position, Found>,
    /// Older copies of members, which are to be filled.
    pub(crate) outdated: BTreeMap<Position, Found>,
    /// The accepted losses.
    pub(crate) losses: Vec<Loss>,
}

impl Resolved {
    /// True if some device lacks something that the others have: the record of a close was interrupted, or
    /// the device is an older copy of itself.
    pub(crate) fn is_one_behind(&self) -> bool {
        let Self { before, members, outdated, .. } = self;
        let has = |own: &MembershipRecord| {
            own.epoch >= before.epoch && (own.is_clean || !before.is_clean)
        };
        !outdated.is_empty() || !members.values().all(|device| has(&device.record))
    }
}

/// The highest epoch whose record all current members had.
fn committed(found: &BTreeMap<Position, Found>) -> u64 {
    found.values().map(|device| device.record.committed).max().unwrap_or(0)
}

/// True for a device that is current by this record, or was when it began to be filled as an older copy, and
/// has missed something that all current members had.
fn is_outdated(
    record: &MembershipRecord,
    position: Position,
    device: &Found,
    committed: u64,
) -> bool {
    let own = &device.record;
    let was_current = own.is_current(position);
    let is_its = match record.member(position).map(|it| it.state) {
        Some(MemberState::Current) => true,
        Some(MemberState::Joining) => was_current,
        Some(MemberState::Absent) | None => false,
    };
    let identity = record.member(position).map(|it| it.identity.as_str());
    is_its
        && own.epoch < committed
        && !mutant!("mkvs.resolve.older_copies")
        && identity == Some(own.identity.as_str())
}

/// Decides which devices are current: the record to continue with, the devices that are its current members,
/// and the losses without the others.
///
/// # Errors
/// If a device does not belong to its place; and if something may be lost and the loss is not accepted.
pub(crate) fn resolve(
    mut found: BTreeMap<Position, Found>,
    before: MembershipRecord,
    accept_loss: bool,
) -> Result<Resolved> {
    check_identities(&found, &before)?;
    let (mut record, committed) = (before.clone(), committed(&found));
    let mut outdated: BTreeMap<Position, Found> =
        found.extract_if(.., |at, device| is_outdated(&before, *at, device, committed)).collect();
    let mut losses = Vec::new();
    for group in 0..record.members.len() as u16 {
        let is_here = |at: &Position| at.group == group && record.is_current(*at);
        if found.keys().any(is_here) {
            continue;
        }
        // The newest of its older copies, or the newest of its devices that were left out.
        let mut kept = take_outdated(&mut outdated, &record, group);
        let is_outdated = !kept.is_empty();
        if !is_outdated {
            kept = take_left_out(&mut found, &record, group);
        }
        let of = (group, is_outdated.then_some(committed));
        losses.push(go_on_with(&kept, &mut record, of, accept_loss)?);
        found.extend(kept);
    }
    found.retain(|position, _| record.is_current(*position));
    let is_missing = |at: &Position| record.is_current(*at) && !found.contains_key(at);
    let away: Vec<Position> = record.positions().filter(is_missing).collect();
    let missing: Vec<Position> =
        away.iter().copied().filter(|at| !outdated.contains_key(at)).collect();
    let what = check_missing((&found, &outdated), &record, &away, accept_loss)?;
    if let Some(what) = what {
        losses.extend(losses_of(&found, &record, &away, what));
    }
    for at in &away {
        let is_filled = outdated.contains_key(at);
        record.stand(*at, if is_filled { MemberState::Joining } else { MemberState::Absent });
    }
    if what == Some(UNPROVEN) {
        missing.iter().for_each(|at| banish(&mut record, *at));
    }
    for group in 0..record.members.len() as u16 {
        let members = record.current_of(group);
        if let (0, Some(last)) = (members & 1 << record.primary_of(group), members.checked_ilog2())
        {
            // All of them are made equal before users are admitted.
            record.name_primary(group, last as u8);
        }
    }
    if losses.iter().any(|loss| loss.what != SINGLE) {
        record.epoch += LEAP;
    }
    Ok(Resolved { record, before, members: found, outdated, losses })
}

/// Takes the newest of a group's older copies whose places have no other device.
fn take_outdated(
    outdated: &mut BTreeMap<Position, Found>,
    record: &MembershipRecord,
    group: u16,
) -> BTreeMap<Position, Found> {
    let of_group = |at: &Position| at.group == group && record.is_current(*at);
    let copies = outdated.iter().filter(|(at, _)| of_group(at));
    let newest = copies.map(|(_, device)| device.record.epoch).max();
    let is_newest = |device: &Found| Some(device.record.epoch) == newest;
    outdated.extract_if(.., |at, device| of_group(at) && is_newest(device)).collect()
}

fn check_identities(found: &BTreeMap<Position, Found>, record: &MembershipRecord) -> Result<()> {
    for (position, device) in found {
        let is_its = |member: &Member| member.identity == device.record.identity;
        // If another device is about to be created there, the old one does not matter.
        if !record.awaits(*position) && !record.member(*position).is_some_and(is_its) {
            return Err(Error::Unusable(format!(
                "the device at {position} was replaced by another: take it out"
            )));
        }
    }
    Ok(())
}

/// Gives a missing device's place a new identity, so that the device does not count when it comes back.
fn banish(record: &mut MembershipRecord, position: Position) {
    let group = record.members.get_mut(usize::from(position.group));
    if let Some(member) = group.and_then(|it| it.get_mut(usize::from(position.device))) {
        *member = Member { identity: drawn(), state: MemberState::Absent };
    }
}

/// Takes the newest device of a group that was left out. One that was being filled has an unknown part of the
/// records.
fn take_left_out(
    found: &mut BTreeMap<Position, Found>,
    record: &MembershipRecord,
    group: u16,
) -> BTreeMap<Position, Found> {
    let is_whole = |at: &Position| {
        record.member(*at).is_some_and(|member| member.state == MemberState::Absent)
    };
    let left_out = found.extract_if(.., |at, _| at.group == group && is_whole(at));
    let newest = left_out.max_by_key(|(_, it)| (it.record.epoch, it.record.watermark));
    newest.into_iter().collect()
}

/// Continues a group without a present current device with these devices: one that was left out, or, with the
/// committed epoch, older copies of themselves, as out of a backup.
fn go_on_with(
    kept: &BTreeMap<Position, Found>,
    record: &mut MembershipRecord,
    (group, committed): (u16, Option<u64>),
    accept_loss: bool,
) -> Result<Loss> {
    let none = format!("group {group} has no current device here");
    let current = record.positions().filter(|at| at.group == group && record.is_current(*at));
    let missing: Vec<Position> = current.filter(|at| !kept.contains_key(at)).collect();
    let newest = kept.values().map(|it| (it.record.epoch, it.record.watermark)).max();
    let Some((epoch, watermark)) = newest else {
        return Err(Error::Unusable(format!("{none}: one of {} is needed", names(&missing))));
    };
    let here: Vec<Position> = kept.keys().copied().collect();
    if !accept_loss {
        let (names, at) = (names(&here), format!("epoch {epoch}, watermark {watermark}"));
        let which = match committed {
            Some(committed) => format!(
                ": {names} are older copies of themselves, as out of a backup ({at}; its members have \
                 gone on to epoch {committed})"
            ),
            None => format!("; {names} is, which was left out ({at})"),
        };
        return Err(Error::Unusable(format!(
            "{none}{which}: what was written to the group since would be lost (accept loss to open it)"
        )));
    }
    // The peers have made or taken back its unfinished batches since.
    kept.values().try_for_each(|device| Intent::drop_all(&device.engine))?;
    missing.iter().for_each(|at| banish(record, *at));
    for at in &here {
        record.stand(*at, MemberState::Current);
        record.name_primary(group, at.device);
    }
    // It may have keys that have moved since, and new sequences must be above those of the missing devices.
    (record.has_guests, record.is_clean) = (true, false);
    let what = if committed.is_some() { OUTDATED } else { STALE };
    Ok(Loss { group, missing, kept: here, epoch, watermark, what })
}

/// The losses without the members that are `away`; none if everything is certainly present.
///
/// # Errors
/// If there are losses, and they are not accepted.
fn check_missing(
    (found, outdated): (&BTreeMap<Position, Found>, &BTreeMap<Position, Found>),
    record: &MembershipRecord,
    away: &[Position],
    accept_loss: bool,
) -> Result<Option<&'static str>> {
    let lacks = |group: u16| {
        let here = found.keys().filter(|at| at.group == group);
        let here: Devices = here.fold(0, |set, at| set | 1 << at.device);
        !record.quorum_of(group).suffices(here)
    };
    let group = (0..record.members.len() as u16).find(|group| lacks(*group));
    let is_here = |at: Position| found.contains_key(&at) || outdated.contains_key(&at);
    let (what, why) = if !away.is_empty() && !record.is_latest(is_here) {
        let why = format!(
            "{} are missing, and no group is whole: those that are here may be out of date, and \
             what was acknowledged without them would be lost (accept loss to open it)",
            names(away)
        );
        (UNPROVEN, why)
    } else if let Some(group) = group.filter(|_| !record.is_clean) {
        let primary = Position { group, device: record.primary_of(group) };
        let of_group: Vec<Position> = away.iter().copied().filter(|at| at.group == group).collect();
        let why = format!(
            "{} are missing or older copies of themselves, {primary} is the primary, the matrix was not \
             closed, and a write waited for some members only: what none but they have would be lost (put \
             {primary} back, or accept loss to open it)",
            names(&of_group)
        );
        (SINGLE, why)
    } else {
        return Ok(None);
    };
    if accept_loss { Ok(Some(what)) } else { Err(Error::Unusable(why)) }
}

/// The losses of each group that lacks a device.
fn losses_of<'a>(
    found: &'a BTreeMap<Position, Found>,
    record: &'a MembershipRecord,
    missing: &'a [Position],
    what: &'static str,
) -> impl Iterator<Item = Loss> + 'a {
    let (epoch, watermark) = (record.epoch, record.watermark);
    (0..record.members.len() as u16).filter_map(move |group| {
        let of_group = |at: &Position| at.group == group;
        let kept: Vec<Position> = found.keys().copied().filter(of_group).collect();
        let missing: Vec<Position> = missing.iter().copied().filter(of_group).collect();
        (!missing.is_empty()).then_some(Loss { group, missing, kept, epoch, watermark, what })
    })
}
