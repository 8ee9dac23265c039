//! Bringing devices level when a matrix is opened that was not closed.

use crate::bloom::hash_of;
use crate::decided::{Decided, is_damage, is_failure};
use crate::intent::{Intent, Step};
use crate::label::{Ack, Label, Position};
use crate::matrix::is_reserved;
use crate::open::Found;
use crate::pending::Devices;
use crate::place::slot_of;
use crate::scrub::show_sure;
use crate::uncertain::Uncertain;
use coreplane_engine::{
    Change, Doubt, Entry, Error, Progress, Remedy, Result, Visibility, WriteOptions,
};
use std::collections::{BTreeMap, HashMap};

/// Finishes the batches that were under way in several groups: makes them, or takes them back.
///
/// # Errors
/// As the engines; and if a group would have no member left.
pub(crate) fn finish_intents(
    found: &mut BTreeMap<Position, Found>,
    label: &mut Label,
) -> Result<()> {
    // By their numbers, and whether they are to be made: not where one member says no.
    let mut open: BTreeMap<(u64, u64), (Intent, bool)> = BTreeMap::new();
    for device in found.values() {
        for it in Intent::all_on(&*device.engine)? {
            let key = (it.intent.made, it.intent.undone);
            open.entry(key).or_insert((it.intent, true)).1 &= it.is_go;
        }
    }
    for (intent, is_go) in open.into_values() {
        let full = if is_go { make_or_find_full(&intent, found, label)? } else { vec![] };
        // What does not fit is not made at all: nobody was told that it was.
        if !is_go || !full.is_empty() {
            for device in found.values() {
                refuse_on(device, &intent)?;
            }
            for position in make_intent(&intent, found, label, false)? {
                // It has what nobody else has.
                leave_out(position, found, label)?;
            }
        }
    }
    found.values().try_for_each(|device| Intent::drop_all(&*device.engine))
}

fn refuse_on(device: &Found, intent: &Intent) -> Result<()> {
    for it in Intent::all_on(&*device.engine)? {
        if it.intent.made == intent.made && it.is_go {
            Intent::refuse(&*device.engine, it.number)?;
        }
    }
    Ok(())
}

/// Makes an intent on all devices; those that have no space for it, however often it is tried. A try that is
/// refused may make space, by a leaf that it has written anew: a recovery that was cut off behind it would
/// find that, and make what this one has refused. Each change writes a leaf anew at most once for that.
fn make_or_find_full(
    intent: &Intent,
    found: &BTreeMap<Position, Found>,
    label: &Label,
) -> Result<Vec<Position>> {
    let mut full = make_intent(intent, found, label, true)?;
    for _ in &intent.steps {
        if full.is_empty() {
            break;
        }
        full = make_intent(intent, found, label, true)?;
    }
    Ok(full)
}

/// Makes an intent on all devices, or takes it back; the devices that had no space for it.
fn make_intent(
    intent: &Intent,
    found: &BTreeMap<Position, Found>,
    label: &Label,
    is_made: bool,
) -> Result<Vec<Position>> {
    let sequence = Some(if is_made { intent.made } else { intent.undone });
    // What is taken back takes the place of what had been there.
    let options = WriteOptions { sequence, is_vital: !is_made, ..WriteOptions::default() };
    let mut full = Vec::new();
    for (position, device) in found {
        let is_own =
            |step: &&Step| label.owners[slot_of(hash_of(step.change.key()))] == position.group;
        let mut steps = intent.steps.iter().filter(is_own);
        let made = steps.try_for_each(|Step { change, old }| {
            let before = old.as_ref().map(|(value, at)| (value.as_slice(), *at));
            let decided = Decided::of(change);
            let put = if is_made { decided.put } else { before };
            Decided { put, ..decided }.make(&*device.engine, &options)
        });
        match made {
            Err(error) if error.remedy() == Remedy::FreeSpace => full.push(*position),
            other => other?,
        }
    }
    Ok(full)
}

/// The matrix goes on without a device.
///
/// # Errors
/// If it is the last of its group.
fn leave_out(
    position: Position,
    found: &mut BTreeMap<Position, Found>,
    label: &mut Label,
) -> Result<()> {
    let has_others = found.keys().any(|it| it.group == position.group && *it != position);
    if !has_others {
        let what =
            format!("{position} has no space for what its group has to take back or to make");
        return Err(Error::Unusable(what));
    }
    found.remove(&position);
    label.leave(position);
    Ok(())
}

/// Brings the members of a group level: gives each what another has that is newer. Who has no space
/// for it is left out.
///
/// # Errors
/// As the engines.
pub(crate) fn level(
    found: &mut BTreeMap<Position, Found>,
    label: &mut Label,
    group: u16,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<()> {
    let mut lost = Vec::new();
    for position in level_members(found, (label.mark, group), &mut lost, progress)? {
        leave_out(position, found, label)?;
    }
    if label.ack != Ack::All {
        // The one that has lost them may have been the only holder of what was acknowledged.
        label.uncertain.extend(lost.into_iter().map(|doubt| Uncertain::new(group, doubt)));
    }
    Ok(())
}

fn level_members(
    found: &BTreeMap<Position, Found>,
    (mark, group): (u64, u16),
    lost: &mut Vec<Doubt>,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<Position>> {
    let members: Vec<(&Position, &Found)> =
        found.iter().filter(|(position, _)| position.group == group).collect();
    let mut full = Vec::new();
    if members.len() < 2 {
        return Ok(full);
    }
    let newest = match newest_since(&members, Some(mark), lost) {
        // A write whose sequence was given was older than what tombstones are kept for: then all that
        // there is is held against each other. Who lacks a key without a tombstone never had it.
        Err(Error::HistoryGone { .. }) => newest_since(&members, None, lost)?,
        other => other?,
    };
    let all = members.iter().fold(0, |set, (position, _)| set | 1 << position.device);
    let total = newest.len() as u64;
    for (done, (key, (sequence, has, at))) in (0..).zip(newest) {
        progress(Progress { stage: "bringing members level", done, total });
        if has == all {
            continue;
        }
        let mut change = Change::Delete { key: key.clone() };
        let source = &members[at].1.engine;
        source.get_with(&key, Visibility::Durable, &mut |record| {
            let (value, expires_at) = (record.value.to_vec(), record.expires_at);
            change = Change::Put { key: key.clone(), value, expires_at };
        })?;
        // A device must not be left out because it is full.
        let sequence = Some(sequence);
        let options = WriteOptions { sequence, is_vital: true, ..WriteOptions::default() };
        for (position, device) in &members {
            if has & 1 << position.device == 0 && !full.contains(*position) {
                // What is not there need not be deleted: a full device has no space for more marks.
                match Decided::of(&change).restore(&*device.engine, &options, true) {
                    Err(error) if !is_failure(&error) => full.push(**position),
                    other => other?,
                }
            }
        }
    }
    Ok(full)
}

/// Of each key the newest sequence, who has it, and one of them.
type Newest = HashMap<Vec<u8>, (u64, Devices, usize)>;

/// Of each key that is newer than `mark` on one of the devices; without a mark of all keys.
fn newest_since(
    members: &[(&Position, &Found)],
    mark: Option<u64>,
    lost: &mut Vec<Doubt>,
) -> Result<Newest> {
    let mut newest = Newest::new();
    lost.clear();
    for (at, (position, device)) in members.iter().enumerate() {
        let bit = 1 << position.device;
        let mut note = |entry: Entry<'_>| {
            if is_reserved(entry.key) {
                return;
            }
            let known = newest.entry(entry.key.to_vec()).or_insert((entry.sequence, 0, at));
            if entry.sequence > known.0 {
                *known = (entry.sequence, bit, at);
            } else if entry.sequence == known.0 {
                known.1 |= bit;
            }
        };
        let engine = &device.engine;
        let since = mark.unwrap_or(engine.tombstone_horizon());
        let doubts = match engine.changes_since(since, &mut note) {
            // It has shown all that is sure: of the rest it is given what others have, as if it lacked it.
            Err(error) if is_damage(&error) => match engine.doubts()? {
                doubts if doubts.is_empty() => return Err(error),
                doubts => doubts,
            },
            shown => shown.map(|()| Vec::new())?,
        };
        if mark.is_none() {
            show_sure(&**engine, &doubts, &mut note)?;
        }
        lost.extend(doubts);
    }
    Ok(newest)
}
