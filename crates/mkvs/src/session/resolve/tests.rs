use super::*;
use crate::device::fault_guard::{Guarded, guarded};
use crate::shape::position::Ack;
use coreplane_conformance::model::ModelEngine;
use coreplane_engine::StorageEngine;
use std::sync::Arc;

const HERE: Position = Position { group: 0, device: 0 };

fn device(record: &MembershipRecord, at: Position) -> Found {
    let engine: Arc<dyn StorageEngine> = Arc::new(ModelEngine::new());
    let Guarded { engine, fault_guard } = guarded(engine).expect("it has no medium");
    Found { engine, fault_guard, record: record.at(at) }
}

fn found(record: &MembershipRecord) -> BTreeMap<Position, Found> {
    BTreeMap::from([(HERE, device(record, HERE))])
}

fn one_by(devices: usize, ack: Ack) -> MembershipRecord {
    let identities = vec![(0..devices).map(|it| it.to_string()).collect()];
    MembershipRecord::new("matrix".to_owned(), ack, &identities)
}

fn at(device: u8) -> Position {
    Position { group: 0, device }
}

/// Two groups, so that the other one proves the record: varies which of the first group's three devices are
/// present.
#[test]
fn after_a_crash_the_primary_or_a_quorum_suffices() {
    let identities: Vec<Vec<String>> =
        (0..2).map(|group| (0..3).map(|it| format!("{group}{it}")).collect()).collect();
    for (ack, is_clean) in
        [(Ack::First, false), (Ack::Majority, false), (Ack::All, false), (Ack::First, true)]
    {
        for here in 1..8_u32 {
            let mut record = MembershipRecord::new("matrix".to_owned(), ack, &identities);
            record.is_clean = is_clean;
            let is_here = |at: &Position| at.group == 1 || here & 1 << at.device != 0;
            let positions: Vec<Position> = record.positions().filter(is_here).collect();
            let found = positions.into_iter().map(|at| (at, device(&record, at))).collect();
            let least = match ack {
                _ if is_clean => 1,
                Ack::First => 3,
                Ack::Majority => 2,
                Ack::All => 1,
            };
            let resolved = resolve(found, record, false);
            let suffices = here & 0b100 != 0 || here.count_ones() >= least;
            assert_eq!(resolved.is_ok(), suffices, "{ack:?}, {is_clean}: {here:b}");
            if let Ok(Resolved { record, members, .. }) = resolved {
                assert_eq!(
                    (record.current_of(0), members.len()),
                    (here, 3 + here.count_ones() as usize)
                );
                assert_eq!(u32::from(record.primary_of(0)), here.ilog2());
            }
        }
    }
}

#[test]
fn who_has_missed_what_all_had_is_an_older_copy() {
    let mut record = one_by(2, Ack::All);
    (record.epoch, record.committed) = (7, 7);
    let mut old = record.clone();
    (old.epoch, old.committed) = (6, 6);
    let both = |old: &MembershipRecord, newer: &MembershipRecord| {
        BTreeMap::from([(at(0), device(newer, at(0))), (at(1), device(old, at(1)))])
    };
    let resolved = resolve(both(&old, &record), record.clone(), false).expect("one is current");
    assert!(resolved.outdated.contains_key(&at(1)) && resolved.losses.is_empty());
    assert_eq!((resolved.record.current_of(0), resolved.record.primary_of(0)), (0b1, 0));
    assert!(resolved.record.awaits(at(1)), "it is to be filled");
    // After an interruption the next open fills it.
    let mut next = resolved.record.clone();
    (next.epoch, next.committed) = (8, 8);
    let resolved = resolve(both(&old, &next), next, false).expect("as before");
    assert!(resolved.outdated.contains_key(&at(1)));
    // A record that was interrupted when one device had it is not known to be on all.
    record.committed = 6;
    let resolved = resolve(both(&old, &record), record, false).expect("both are current");
    assert!(resolved.outdated.is_empty() && resolved.record.current_of(0) == 0b11);
}

#[test]
fn of_two_records_of_one_epoch_the_one_in_force_counts() {
    let all = one_by(3, Ack::All);
    let mut without_a = all.clone();
    without_a.leave(at(0));
    let mut moved = all.clone();
    moved.has_guests = true;
    let force = |records: &[&MembershipRecord]| {
        let mut records: Vec<MembershipRecord> =
            (0..).zip(records).map(|(device, record)| record.at(at(device))).collect();
        let mut answers = Vec::new();
        // In any order, and with any watermarks.
        for turn in 0..6 {
            records.rotate_left(1);
            records[turn % 3].watermark += 10;
            let one = in_force(&records.iter().collect::<Vec<_>>()).cloned();
            answers.push(one.ok());
        }
        assert!(answers.iter().all(|it| it.is_some() == answers[0].is_some()));
        answers[0].clone()
    };
    assert!(force(&[&all, &all, &all]).is_some_and(|it| it.says_as(&all)));
    // The record was interrupted when the first device had it, which the others have left out since.
    assert!(force(&[&moved, &without_a, &without_a]).is_some_and(|it| it.says_as(&without_a)));
    // Two different records by which all devices are current: neither is in force.
    assert!(force(&[&moved, &all, &all]).is_none());
    // Each was opened without the others.
    let mut alone = all.clone();
    (1..3).for_each(|device| alone.leave(at(device)));
    assert!(force(&[&alone, &without_a, &without_a]).is_none());
}

#[test]
fn one_that_was_left_out_stands_for_its_group_if_that_is_accepted() {
    let mut stale = one_by(2, Ack::All);
    (stale.epoch, stale.watermark) = (3, 70);
    let mut record = stale.clone();
    (record.epoch, record.watermark) = (9, 400);
    record.leave(HERE);
    let devices = || found(&stale);
    let refused = resolve(devices(), record.clone(), false).map(|_| ()).expect_err("stale");
    assert!(refused.to_string().contains("epoch 3, watermark 70"), "{refused}");
    let resolved = resolve(devices(), record.clone(), true).expect("accepted");
    let Resolved { record: after, losses, .. } = resolved;
    let other = at(1);
    let told = (losses[0].missing.as_slice(), losses[0].epoch, losses[0].watermark);
    assert_eq!((losses.len(), told), (1, (&[other][..], 3, 70)));
    assert!(after.is_current(HERE) && !after.is_current(other));
    // Above the epoch of a device that continued without these, however often that changed.
    assert!(after.epoch > record.epoch + LEAP / 2);
    assert_ne!(after.members[0][1].identity, record.members[0][1].identity);
    // A device that was being filled is not complete.
    record.stand(HERE, MemberState::Joining);
    assert!(resolve(devices(), record, true).is_err());
}
