//! Bringing devices level when a matrix is opened that was not closed.

use crate::bloom::hash_of;
use crate::decided::{Decided, is_damage, is_failure};
use crate::intent::{Intent, Step};
use crate::label::{Ack, Label, Position};
use crate::matrix::is_reserved;
use crate::open::Found;
use crate::pending::Devices;
use crate::place::slot_of;
use crate::scrub::{is_within, show_sure};
use crate::uncertain::{Uncertain, just};
use coreplane_engine::{
    Change, Doubt, Engine, Entry, Error, Hurt, Outcome, Progress, Remedy, Result, Visibility,
    WriteOptions,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Finishes the batches that were under way in several groups: makes them, or takes them back. Who has no
/// space to take one back has something older than its peers then: it is left out when those are level, for
/// it may be the only one that has what was acknowledged.
///
/// # Errors
/// As the engines; and if nobody in a group has space to take one back: then it is there still.
pub(crate) fn finish_intents(found: &BTreeMap<Position, Found>, label: &Label) -> Result<()> {
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
            let full = make_intent(&intent, found, label, false)?;
            let has_space =
                |of: u16| found.keys().any(|other| other.group == of && !full.contains(other));
            if let Some(last) = full.iter().find(|it| !has_space(it.group)) {
                return Err(no_space(*last));
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
        return Err(no_space(position));
    }
    found.remove(&position);
    label.leave(position);
    Ok(())
}

fn no_space(position: Position) -> Error {
    Error::Unusable(format!(
        "{position} has no space for what its group has to take back or to make"
    ))
}

/// What members cannot show of what they had got.
#[derive(Default)]
struct Lost {
    /// Of these keys nobody knows what there was.
    doubts: Vec<Doubt>,
    /// Of one of these keys each there was something that no other has, with this sequence.
    hurt: Vec<Hurt>,
}

/// Brings the members of a group level: gives each what another has that is newer. Who has no space
/// for it is left out. What one alone has, and damaged, is noted in the label unless that loss `is_accepted`;
/// the greatest sequence of those.
///
/// Where writes wait for all it was never acknowledged, and what the others have counts.
///
/// # Errors
/// As the engines.
pub(crate) fn level(
    found: &mut BTreeMap<Position, Found>,
    label: &mut Label,
    (group, is_accepted): (u16, bool),
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<u64> {
    let is_nothing = label.ack == Ack::All || is_accepted;
    let mut lost = Lost::default();
    for position in level_members(found, (label, group, is_nothing), &mut lost, progress)? {
        leave_out(position, found, label)?;
    }
    let Lost { doubts, hurt } = lost;
    let greatest = hurt.iter().map(|it| it.sequence).max().unwrap_or(0);
    if label.ack != Ack::All {
        // The one that has lost them may have been the only holder of what was acknowledged.
        label.uncertain.extend(doubts.into_iter().map(|doubt| Uncertain::new(group, doubt)));
        for Hurt { within, sequence } in hurt {
            // It may have been hurt when the matrix was opened before.
            if !label.uncertain.iter().any(|it| it.covers(group, &within, sequence)) {
                label.uncertain.push(Uncertain::new(group, within));
            }
        }
    }
    Ok(greatest)
}

/// The members of a group, while they are brought level.
struct Members<'f> {
    all: Vec<(&'f Position, &'f Found)>,
    /// Those that have no space.
    full: Vec<Position>,
    /// The newest that any device has heard of.
    epoch: u64,
}

impl<'f> Members<'f> {
    fn of(found: &'f BTreeMap<Position, Found>, group: u16) -> Self {
        let all = found.iter().filter(|(position, _)| position.group == group).collect();
        let epoch = found.values().map(|device| device.label.epoch).max().unwrap_or(0);
        Self { all, full: Vec::new(), epoch }
    }

    /// Those that have heard of an older membership, and that less is on all: older copies of themselves, it
    /// seems, which somebody has put back.
    fn behind<'s>(
        &'s self,
        label: &'s Label,
    ) -> impl Iterator<Item = &'s (&'f Position, &'f Found)> {
        let is_older = |it: &Label| it.epoch < self.epoch && it.mark < label.mark;
        self.all.iter().filter(move |(_, device)| is_older(&device.label))
    }

    /// Up to this all of them have all.
    fn mark(&self, label: &Label) -> u64 {
        let marks = self.behind(label).map(|(_, device)| device.label.mark);
        marks.min().unwrap_or(label.mark)
    }

    /// One of a set.
    fn one_of(&self, set: Devices) -> Option<Arc<dyn Engine>> {
        let mut all = self.all.iter();
        let found = all.find(|(position, _)| set & 1 << position.device != 0);
        found.map(|(_, device)| Arc::clone(&device.engine))
    }

    /// One of a set whose record of a key is whole.
    fn sound(&self, set: Devices, key: &[u8]) -> Result<Option<&Found>> {
        for (position, device) in &self.all {
            if set & 1 << position.device != 0 {
                match device.engine.check(key) {
                    Err(error) if is_damage(&error) => {}
                    checked => return checked.map(|_| Some(*device)),
                }
            }
        }
        Ok(None)
    }

    /// Gives a change to those of a set. Who had it already, damaged.
    fn give(&mut self, set: Devices, change: &Change, sequence: u64) -> Result<Vec<Position>> {
        // A device must not be left out because it is full.
        let options =
            WriteOptions { sequence: Some(sequence), is_vital: true, ..WriteOptions::default() };
        let mut had = Vec::new();
        for (position, device) in &self.all {
            if set & 1 << position.device == 0 || self.full.contains(*position) {
                continue;
            }
            // What is not there need not be deleted: a full device has no space for more marks.
            match Decided::of(change).restore_told(&*device.engine, &options, true) {
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
    fn give_older(&mut self, others: Devices, source: &dyn Engine, key: &[u8]) -> Result<()> {
        let change = change_of(source, key)?;
        let mut newest = 0;
        for (_, device) in &self.all {
            newest = newest.max(device.engine.advance_sequence()?);
        }
        self.give(others, &change, newest + 1).map(|_| ())
    }
}

/// What may be lost is: of keys that are uncertain by themselves all members have from here on what one has
/// that is whole, and what was lost up to a sequence is not missed again.
///
/// # Errors
/// As the engines.
pub(crate) fn accept(
    found: &mut BTreeMap<Position, Found>,
    label: &mut Label,
    lost: u64,
) -> Result<()> {
    for uncertain in std::mem::take(&mut label.uncertain) {
        let Some((group, key)) = uncertain.key() else { continue };
        let mut members = Members::of(found, group);
        if let Some(source) = members.sound(Devices::MAX, key)? {
            let source = Arc::clone(&source.engine);
            members.give_older(Devices::MAX, &*source, key)?;
        }
        for position in members.full {
            leave_out(position, found, label)?;
        }
    }
    if lost > label.mark {
        // All members are level, and durably so.
        found.values().try_for_each(|device| device.engine.sync())?;
        label.mark = lost;
    }
    Ok(())
}

/// What a device has of a key.
fn change_of(engine: &dyn Engine, key: &[u8]) -> Result<Change> {
    let key = key.to_vec();
    let mut change = Change::Delete { key: key.clone() };
    engine.get_with(&key, Visibility::Durable, &mut |record| {
        let (value, expires_at) = (record.value.to_vec(), record.expires_at);
        change = Change::Put { key: key.clone(), value, expires_at };
    })?;
    Ok(change)
}

fn level_members(
    found: &BTreeMap<Position, Found>,
    (label, group, is_nothing): (&Label, u16, bool),
    lost: &mut Lost,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<Position>> {
    let mut members = Members::of(found, group);
    if members.all.len() < 2 {
        return Ok(members.full);
    }
    let mark = members.mark(label);
    let (mut since, doubts) = (Some(mark), &mut lost.doubts);
    let newest = match newest_since(&members.all, since, doubts) {
        // A write whose sequence was given was older than what tombstones are kept for: then all that
        // there is is held against each other. Who lacks a key without a tombstone never had it.
        Err(Error::HistoryGone { .. }) => {
            // What is only looked at for what it alone may have may have more, which was deleted since.
            if let Some((left, _)) = members.all.iter().find(|(at, _)| !label.is_current(**at)) {
                return Err(Error::Unusable(format!(
                    "nobody knows any more what was deleted since {left} was left out: take it out, and \
                     accept the loss of what it alone has"
                )));
            }
            since = None;
            newest_since(&members.all, since, doubts)?
        }
        other => other?,
    };
    let set_of = |set, (position, _): &(&Position, _)| set | 1 << position.device;
    // Who was left out is given nothing: it is to be filled.
    let current = members.all.iter().filter(|(at, _)| label.is_current(**at));
    let all = current.fold(0, set_of);
    let behind = members.behind(label).fold(0, set_of);
    let (total, mut proven) = (newest.len() as u64, Vec::new());
    for (done, (key, (sequence, has))) in (0..).zip(newest) {
        progress(Progress { stage: "bringing members level", done, total });
        if has & all == all {
            continue;
        }
        if since.is_none() && has & !behind == 0 && sequence <= label.mark {
            // It was on all, and was deleted since, which nobody knows any more.
            if let Some(source) = members.one_of(all & !behind) {
                members.give_older(has, &*source, &key)?;
                continue;
            }
        }
        if let Some(source) = members.sound(has, &key)? {
            let change = change_of(&*source.engine, &key)?;
            let had = members.give(all & !has, &change, sequence)?;
            proven.extend(had.into_iter().map(|position| (position, key.clone(), sequence)));
        } else if label.uncertain.iter().any(|it| it.is_about(group, &key, sequence)) {
            // Nobody is told what others have of it, as before.
        } else if !is_nothing {
            lost.hurt.push(Hurt { within: just(&key), sequence });
        } else if let Some(source) = members.sound(all & !has, &key)? {
            let source = Arc::clone(&source.engine);
            members.give_older(all, &*source, &key)?;
        }
    }
    for (position, device) in &members.all {
        let mut hurt = hurt_since(&*device.engine, since)?;
        // What another has, too, is known.
        for (_, key, sequence) in proven.iter().filter(|it| it.0 == **position) {
            let is_it = |it: &Hurt| it.sequence == *sequence && is_within(&it.within, key);
            if let Some(at) = hurt.iter().position(is_it) {
                hurt.remove(at);
            }
        }
        lost.hurt.extend(hurt);
    }
    Ok(members.full)
}

/// The keys of a device that it cannot show and that are newer than a mark, if there is one.
fn hurt_since(engine: &dyn Engine, mark: Option<u64>) -> Result<Vec<Hurt>> {
    engine.hurt_since(mark.unwrap_or(engine.tombstone_horizon()))
}

/// Of each key the newest sequence, and who has it.
type Newest = HashMap<Vec<u8>, (u64, Devices)>;

/// Of each key that is newer than `mark` on one of the devices; without a mark of all keys.
fn newest_since(
    members: &[(&Position, &Found)],
    mark: Option<u64>,
    lost: &mut Vec<Doubt>,
) -> Result<Newest> {
    let mut newest = Newest::new();
    lost.clear();
    for (position, device) in members {
        let bit = 1 << position.device;
        let mut note = |entry: Entry<'_>| {
            if is_reserved(entry.key) {
                return;
            }
            let known = newest.entry(entry.key.to_vec()).or_insert((entry.sequence, 0));
            if entry.sequence > known.0 {
                *known = (entry.sequence, bit);
            } else if entry.sequence == known.0 {
                known.1 |= bit;
            }
        };
        let engine = &device.engine;
        let since = mark.unwrap_or(engine.tombstone_horizon());
        let (mut doubts, mut is_hurt) = (Vec::new(), false);
        if let Err(error) = engine.changes_since(since, &mut note) {
            // It has shown all that is sure: of the rest it is given what others have, as if it lacked it.
            if !is_damage(&error) {
                return Err(error);
            }
            (doubts, is_hurt) = (engine.doubts()?, !engine.hurt_since(since)?.is_empty());
            if doubts.is_empty() && !is_hurt {
                return Err(error);
            }
        }
        if mark.is_none() {
            match show_sure(&**engine, &doubts, &mut note) {
                // It has shown the others.
                Err(error) if is_damage(&error) && is_hurt && doubts.is_empty() => {}
                shown => shown?,
            }
        }
        lost.extend(doubts);
    }
    Ok(newest)
}
