//! Batches over several groups that a power cut interrupted: made everywhere, or taken back everywhere.

use super::reconcile::{no_space, primaries_first};
use crate::device::Decided;
use crate::filter::hash_of;
use crate::keyspace::intent::{Intent, Step};
use crate::membership::{Found, MembershipRecord};
use crate::shape::{Position, slot_of};
use coreplane_engine::{Durability, Remedy, Result, WriteOptions};
use coreplane_pmem::mutant;
use std::collections::BTreeMap;

/// Finishes the batches that were under way in several groups: makes them, or takes them back. A device
/// without space to take one back then has an older record than its peers. It is left out when the members
/// have been made equal, and not before, since it may be the only one with an acknowledged write.
///
/// # Errors
/// As the engines; and if no device of a group has space to take a batch back: then the intent stays.
pub(crate) fn finish_intents(
    found: &BTreeMap<Position, Found>,
    record: &MembershipRecord,
) -> Result<()> {
    // By their sequences, and whether they are to be made: not if one member says no.
    let mut open: BTreeMap<(u64, u64), (Intent, bool)> = BTreeMap::new();
    for device in found.values() {
        for it in Intent::all_on(&device.engine)? {
            let key = (it.intent.made, it.intent.undone);
            open.entry(key).or_insert((it.intent, true)).1 &= it.is_go;
        }
    }
    for (intent, is_go) in open.into_values() {
        let full = if is_go { make_or_find_full(&intent, found, record)? } else { vec![] };
        // A batch that does not fit is not made at all: it was not acknowledged.
        if !is_go || !full.is_empty() {
            for device in found.values() {
                refuse_on(device, &intent)?;
            }
            let full = make_intent(&intent, found, record, false)?;
            let has_space =
                |of: u16| found.keys().any(|other| other.group == of && !full.contains(other));
            if let Some(last) = full.iter().find(|it| !has_space(it.group)) {
                return Err(no_space(*last));
            }
        }
    }
    found.values().try_for_each(|device| Intent::drop_all(&device.engine))
}

fn refuse_on(device: &Found, intent: &Intent) -> Result<()> {
    for it in Intent::all_on(&device.engine)? {
        if it.intent.made == intent.made && it.is_go {
            Intent::refuse(&device.engine, it.number)?;
        }
    }
    Ok(())
}

/// Makes an intent on all devices; returns those that have no space for it even after several tries. A
/// refused try may make space, by rewriting a leaf: a recovery that is interrupted after it would find the
/// space, and make the batch that this one has refused. Each change rewrites a leaf at most once for that.
fn make_or_find_full(
    intent: &Intent,
    found: &BTreeMap<Position, Found>,
    record: &MembershipRecord,
) -> Result<Vec<Position>> {
    let mut full = make_intent(intent, found, record, true)?;
    for _ in &intent.steps {
        if full.is_empty() {
            break;
        }
        full = make_intent(intent, found, record, true)?;
    }
    Ok(full)
}

/// The options with which an intent is made, or taken back.
fn options_of(intent: &Intent, is_made: bool) -> WriteOptions {
    let sequence = Some(if is_made { intent.made } else { intent.undone });
    // Durable before the intent is deleted, at every durability level: otherwise a power cut would leave a part.
    let is_strict = !mutant!("mkvs.intents.relaxed");
    let durability = is_strict.then_some(Durability::Strict);
    // A write that takes back replaces the one that was made.
    WriteOptions { sequence, durability, use_reserve: !is_made, ..WriteOptions::default() }
}

/// Makes an intent on all devices, or takes it back; returns the devices that had no space for it.
fn make_intent(
    intent: &Intent,
    found: &BTreeMap<Position, Found>,
    record: &MembershipRecord,
    is_made: bool,
) -> Result<Vec<Position>> {
    let options = options_of(intent, is_made);
    let mut full = Vec::new();
    for (position, device) in primaries_first(found, record) {
        let is_own =
            |step: &&Step| record.owners[slot_of(hash_of(step.change.key()))] == position.group;
        let mut steps = intent.steps.iter().filter(is_own);
        let made = steps.try_for_each(|Step { change, old }| {
            let decided = match is_made {
                true => Decided::of(change.as_ref()),
                false => Decided::to(change.key(), old),
            };
            decided.make(&device.engine, &options)
        });
        match made {
            Err(error) if error.remedy() == Remedy::FreeSpace => full.push(*position),
            other => other?,
        }
    }
    Ok(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It matters on files alone: elsewhere every write is strict. The simulator has no machine of several files.
    #[test]
    fn what_ends_a_batch_is_durable_whatever_writes_are() {
        let intent = Intent { made: 7, undone: 9, steps: Vec::new() };
        for (is_made, sequence) in [(true, 7), (false, 9)] {
            let options = options_of(&intent, is_made);
            assert_eq!(options.durability, Some(Durability::Strict));
            assert_eq!((options.sequence, options.use_reserve), (Some(sequence), !is_made));
        }
    }
}
