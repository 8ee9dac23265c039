//! Doubts of members about ranges of keys, at an open that has lost writes there, or that accepts their loss.
//!
//! A device keeps a doubt until its peers have put the records of the range again, and every open after a crash
//! reports it. It cannot be told from a new one then: what was written since would be unknown again. So a doubt ends
//! here: all members get the records of one that is in no doubt about the range, written anew, and the device
//! [settles](coreplane_engine::Repairable::settle) when the membership record is durable that has the range as lost up
//! to these records, or in which the loss is accepted. Other doubts are settled by a scrub.

use super::reconcile::{Members, leave_out};
use crate::device::{Guarded, each_entry, is_damage, is_failure};
use crate::membership::{Found, MembershipRecord};
use crate::shape::{Devices, Position, is_reserved};
use coreplane_engine::{Entry, KeyRange, Ordered, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A range of keys of which a member has lost records.
pub(crate) struct Doubt {
    pub(crate) of: Position,
    pub(crate) range: KeyRange,
    /// The others are not enough: the last writes are unknown.
    pub(crate) is_lost: bool,
}

/// The doubts of all devices, in a matrix that was closed: nothing is lost.
pub(crate) fn of_all(found: &BTreeMap<Position, Found>) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    for (of, device) in found {
        let ranges = device.engine.call(|it| it.lost_ranges()).unwrap_or_default();
        doubts.extend(ranges.into_iter().map(|range| Doubt { of: *of, range, is_lost: false }));
    }
    doubts
}

/// Writes the records of such ranges anew on all members, from a member in no doubt; returns the doubts that can be
/// settled. A member without space for them is left out.
pub(crate) fn give_anew(
    found: &mut BTreeMap<Position, Found>,
    record: &mut MembershipRecord,
    (doubts, accept_loss): (Vec<Doubt>, bool),
) -> Result<Vec<Doubt>> {
    let mut given = Vec::new();
    let of_group = |group: u16| doubts.iter().filter(move |doubt| doubt.of.group == group);
    for doubt in doubts.iter().filter(|doubt| doubt.is_lost || accept_loss) {
        let Doubt { of, range, .. } = doubt;
        let overlapping = of_group(of.group)
            .filter(|other| other.range.overlaps(&range.start, range.end.as_deref()));
        let unsure = overlapping.fold(0, |set, other| set | 1 << other.of.device);
        let mut members = Members::of(found, record, of.group);
        let sure = members.in_set(!unsure).next().map(|(_, device)| Arc::clone(&device.engine));
        let Some(source) = sure else { continue };
        match sound_keys(&source, range) {
            Err(error) if is_damage(&error) => continue,
            keys => {
                for key in keys? {
                    members.give_anew(Devices::MAX, &source, &key)?;
                }
            }
        }
        for position in members.full {
            leave_out(position, found, record)?;
        }
        given.push(Doubt { of: *of, range: range.clone(), is_lost: doubt.is_lost });
    }
    Ok(given)
}

/// The keys of a device in a range.
///
/// # Errors
/// As the engine, and if a record is damaged.
fn sound_keys(engine: &Guarded, range: &KeyRange) -> Result<Vec<Vec<u8>>> {
    let mut keys = Vec::new();
    let mut take = |entry: Entry<'_>| {
        if range.has(entry.key) && !is_reserved(entry.key) {
            keys.push(entry.key.to_vec());
        }
        true
    };
    let (start, end) = (&range.start, range.end.as_deref());
    let scan = |it: &dyn Ordered| it.scan(start, end, false, usize::MAX, &mut take);
    if engine.call_ordered(scan)?.is_none() {
        each_entry(engine, &[], &mut |entry| _ = take(entry))?;
    }
    for key in &keys {
        engine.call(|it| it.check(key))?;
    }
    Ok(keys)
}

/// Ends doubts. One that a device has no space to end, or cannot for damage, is reported by the next open again.
pub(crate) fn settle(found: &BTreeMap<Position, Found>, doubts: &[Doubt]) -> Result<()> {
    for Doubt { of, range, .. } in doubts {
        let settle = |device: &Found| device.engine.call(|it| it.settle(range));
        match found.get(of).map_or(Ok(()), settle) {
            Err(error) if is_failure(&error) && !is_damage(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
