//! Full clusters, and clears of them.

use crate::seat::{LEN, Seat, alone, alone_on, early, lead, put_range, run, seat_on};
use coreplane_engine::{
    Batch, Clear, Deferred, Engine, Entry, Error, UnixMillis, Visibility, WriteOptions,
};
use coreplane_mvcc::MapKind;
use coreplane_pmem::media::sim::Model;
use coreplane_replica::Replica;
use std::sync::atomic::Ordering;

#[test]
fn proposals_of_a_turn_have_room_together() {
    for (kind, len) in MapKind::ALL.into_iter().flat_map(|kind| [(kind, 1000), (kind, 100_000)]) {
        let Seat { replica, .. } = &alone(kind);
        let mut refused = None;
        for number in 0..3000_u32 {
            match replica.put(&number.to_le_bytes(), &vec![7; len], &early()) {
                Ok(_) => {}
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        assert!(matches!(refused, Some(Error::NoSpace { .. })), "{refused:?} of {kind:?}");
        replica.persisted().expect("it goes on");
        let deleted = replica.delete(&0_u32.to_le_bytes(), &WriteOptions::default());
        assert!(deleted.expect("there is room for deletes").written().is_some());
    }
}

#[test]
fn a_full_cluster_can_be_cleared() {
    for kind in MapKind::ALL {
        let Seat { replica, .. } = &alone(kind);
        let mut count = 0_u32;
        while replica.put(&count.to_le_bytes(), &[7; 8], &early()).is_ok() {
            count += 1;
        }
        replica.persisted().expect("it goes on");
        assert!(count > 2000, "{count} of {kind:?}");
        replica.clear().unwrap_or_else(|error| panic!("{count} of {kind:?}: {error}"));
        assert_eq!(replica.len().expect("len"), 0);
        let _written = replica.put(b"k", b"v", &WriteOptions::default()).expect("there is room");
    }
}

const COUNT: u32 = 5000;
/// The key of a record that expires at 2000, behind all others.
const EXPIRES: &[u8] = b"expires";

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Fills the cluster while nothing is applied, until not even a delete has room. A removal is to be tried again,
/// whatever asks for it: the proposals that wait to be applied will free room.
fn fill_up(Seat { replica, clock, .. }: &Seat) {
    let mut number = COUNT;
    while replica.put(&key(number), &[7; 100], &early()).is_ok() {
        number += 1;
    }
    let refused =
        (COUNT..number).rev().find_map(|number| replica.delete(&key(number), &early()).err());
    assert!(matches!(refused, Some(Error::Busy)), "{refused:?}");
    let mut batch = Batch::new();
    batch.delete(&key(0));
    let refused = replica.apply(&batch, &early());
    assert!(matches!(refused, Err(Error::Busy)), "{refused:?}");
    clock.store(5000, Ordering::Relaxed);
    let refused = replica.get_with(EXPIRES, Visibility::Early, &mut |_| {});
    assert!(matches!(refused, Err(Error::Busy)), "{refused:?}");
}

/// A step whose deletes have no room, because other proposals wait to be applied, is made later. `is_kept`: the first
/// record that it finds was written since the clear began, and stays.
fn clear_when_full(is_kept: bool) {
    // The first node has the smallest pool.
    let len = |id: u64| if id == 1 { LEN } else { 4 * LEN };
    let seat = |id| seat_on((Model::X86, len(id)), MapKind::List, id, vec![1, 2, 3]);
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    lead(&seats, 0);
    let leader = &seats[0].replica;
    for number in 0..COUNT {
        let _written = leader.put(&key(number), &[7; 8], &early()).expect("there is room");
        if number % 500 == 0 {
            run(&seats, 1);
        }
    }
    let expires = WriteOptions { expires_at: Some(UnixMillis(2000)), ..early() };
    let _written = leader.put(EXPIRES, b"v", &expires).expect("there is room");
    run(&seats, 3);
    let mut clear = Clear::default();
    assert!(leader.clear_step(&mut clear).expect("a step").is_none());
    run(&seats, 3);
    if is_kept {
        let _written = leader.put(&clear.next, b"new", &early()).expect("there is room");
    }
    fill_up(&seats[0]);
    let refused = leader.clear_step(&mut clear);
    assert!(matches!(refused, Err(Error::Busy)), "{refused:?}");
    loop {
        run(&seats, 3);
        match leader.clear_step(&mut clear) {
            Ok(None) => {}
            // Free pages wait for the readers of all pools of the process.
            Err(Error::Busy) => {}
            Ok(Some(_)) => break,
            Err(error) => panic!("there is room by now: {error}"),
        }
    }
    run(&seats, 3);
    let mut found = Vec::new();
    let ordered = leader.ordered().expect("it is ordered");
    let visit = &mut |entry: Entry<'_>| {
        found.push(entry.key.to_vec());
        true
    };
    ordered.scan(&[], Some(&key(COUNT)), false, usize::MAX, visit).expect("scan");
    assert_eq!(found.len(), usize::from(is_kept));
}

#[test]
fn a_clear_that_has_no_room_yet_goes_on_later_and_is_not_over() {
    clear_when_full(false);
    clear_when_full(true);
}

fn step(replica: &Replica, clear: &mut Clear) -> bool {
    let is_over = replica.clear_step(clear).expect("a step").is_some();
    replica.persisted().expect("it goes on");
    is_over
}

/// Writes that are made while everything is deleted come after the clear.
#[test]
fn what_is_written_beside_a_clear_stays() {
    let Seat { replica, .. } = &alone(MapKind::List);
    put_range(replica, 0..5000);
    let mut clear = Clear::default();
    assert!(!step(replica, &mut clear));
    for number in [0, 4999_u32] {
        let _written = replica.put(&number.to_be_bytes(), b"new", &early()).expect("put");
    }
    while !step(replica, &mut clear) {}
    assert_eq!(replica.len().expect("len"), 2);
}

/// An abandoned clear, or one beside that of another caller, leaves no record written before another began.
#[test]
fn a_clear_is_its_callers_own() {
    let Seat { replica, .. } = &alone(MapKind::List);
    put_range(replica, 0..5000);
    let (mut first, mut second) = (Clear::default(), Clear::default());
    assert!(!step(replica, &mut first));
    put_range(replica, 0..10);
    while !step(replica, &mut second) {}
    assert_eq!(replica.len().expect("len"), 0);
    put_range(replica, 0..10);
    while !step(replica, &mut first) {}
    assert_eq!(replica.len().expect("len"), 10, "what was written since stays");
}

/// A step looks at a bounded number of the keys that were written since the clear began.
#[test]
fn what_is_written_beside_a_clear_is_passed_in_steps() {
    let Seat { replica, .. } = &alone_on(16 * LEN, MapKind::List);
    put_range(replica, 0..10);
    let mut clear =
        Clear { next: Vec::new(), until: Some((replica.leaderships(), replica.applied())) };
    put_range(replica, 10..40_010);
    let mut steps = 1;
    while !step(replica, &mut clear) {
        steps += 1;
    }
    assert_eq!((steps, replica.len().expect("len")), (5, 40_000));
}
