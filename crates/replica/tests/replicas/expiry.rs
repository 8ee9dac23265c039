//! Records that expire: by the clock of the leader, and what one leader has told holds for the next.

use crate::seat::{LEN, Seat, early, lead, leader, run, seat, seat_on};
use coreplane_engine::{
    Batch, Completion, Deferred, Engine, Entry, Horizon, Ordered, UnixMillis, Visibility,
    WriteOptions,
};
use coreplane_mvcc::MapKind;
use coreplane_pmem::media::sim::Model;
use std::sync::atomic::Ordering;

#[test]
fn what_has_expired_for_one_leader_has_for_the_next() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    let first = leader(&seats);
    let early = |expires_at: u64| WriteOptions {
        expires_at: Some(UnixMillis(expires_at)),
        completion: Completion::Early,
        ..WriteOptions::default()
    };
    let replica = &seats[first].replica;
    let _sooner = replica.put(b"short", b"1", &early(2000)).expect("put");
    let _later = replica.put(b"long", b"1", &early(9000)).expect("put");
    run(&seats, 3);
    seats[first].clock.store(5000, Ordering::Relaxed);
    let found = replica.get_with(b"short", Visibility::Early, &mut |_| {}).expect("get");
    assert!(!found.hit);
    let rests_on = Horizon::from(found.ticket);
    assert!(!replica.is_durable(&rests_on).expect("ticket"), "it rests on an entry");
    run(&seats, 3);
    assert!(replica.is_durable(&rests_on).expect("ticket"));
    let second = (first + 1) % 3;
    while !seats[second].replica.leads() {
        replica.transfer_leadership(second as u64 + 1).expect("transfer");
        run(&seats, 5);
    }
    // The clock of this node says 1000.
    let next = &seats[second].replica;
    let found = next.get_with(b"short", Visibility::Early, &mut |_| {}).expect("get");
    assert!(!found.hit, "it was said to have expired");
    assert!(Engine::now(&**next) >= UnixMillis(2000), "somebody was told that it is later");
    assert!(next.get_with(b"long", Visibility::Early, &mut |_| {}).expect("get").hit);
}

#[test]
fn what_has_expired_is_swept() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    let first = leader(&seats);
    let replica = &seats[first].replica;
    for key in 0..20_u8 {
        let expires_at = (key % 2 == 0).then_some(UnixMillis(2000));
        let options = WriteOptions { expires_at, completion: Completion::Early, ..<_>::default() };
        let _written = replica.put(&[key], b"1", &options).expect("put");
    }
    run(&seats, 3);
    assert_eq!(replica.len().expect("len"), 20);
    seats[first].clock.store(5000, Ordering::Relaxed);
    let (mut from, mut swept) = (Vec::new(), 0);
    loop {
        let (some, next) = replica.sweep_some(&from, 3).expect("sweep");
        swept += some;
        let Some(next) = next else { break };
        from = next;
    }
    run(&seats, 3);
    assert_eq!((swept, replica.len().expect("len")), (10, 10));
    run(&seats, 10);
    assert!(seats.iter().all(|it| it.replica.with_map(|map| map.len()) == 10));
}

#[test]
fn what_others_have_written_is_swept() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    lead(&seats, 0);
    seats[0].replica.sweep_some(b"", 100).expect("sweep");
    lead(&seats, 1);
    let options = WriteOptions { expires_at: Some(UnixMillis(2000)), ..early() };
    let _written = seats[1].replica.put(b"k", b"v", &options).expect("put");
    run(&seats, 5);
    lead(&seats, 0);
    seats[0].clock.store(5000, Ordering::Relaxed);
    assert_eq!(seats[0].replica.sweep_some(b"", 100).expect("sweep").0, 1);
}

const EXPIRED: u32 = 5000;
/// The time at which the last of them expires.
const LATEST: u64 = 2000 + EXPIRED as u64;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// A cluster of so many nodes, the leader first, with many expired records and a live one behind them.
fn cluster(kind: MapKind, count: u64) -> Vec<Seat> {
    let peers: Vec<u64> = (1..=count).collect();
    let seat = |id: &u64| seat_on((Model::X86, 4 * LEN), kind, *id, peers.clone());
    let mut seats: Vec<Seat> = peers.iter().map(seat).collect();
    let first = leader(&seats);
    let mut batch = Batch::new();
    for number in 0..EXPIRED {
        batch.put_until(&key(number), b"v", Some(UnixMillis(2001 + u64::from(number))));
    }
    batch.put(&key(EXPIRED), b"lives");
    seats[first].replica.apply(&batch, &early()).expect("write");
    run(&seats, 3);
    seats[first].clock.store(LATEST, Ordering::Relaxed);
    seats.swap(0, first);
    seats
}

/// A cluster of one node.
fn expired(kind: MapKind) -> Seat {
    cluster(kind, 1).remove(0)
}

/// A call of an iteration passes at most as many expired records as it would show live ones.
#[test]
fn what_has_expired_is_a_step_of_an_iteration() {
    const COUNT: usize = 10;
    for kind in MapKind::ALL {
        let Seat { replica, .. } = &expired(kind);
        let (mut cursor, mut shown, mut before) = (0, Vec::new(), 0);
        loop {
            let visit = &mut |entry: Entry<'_>| shown.push(entry.key.to_vec());
            cursor = replica.iterate(cursor, COUNT, visit).expect("iterate");
            replica.persisted().expect("a turn");
            let expired = replica.stats().expired;
            assert!(expired - before <= COUNT as u64, "{} in one call", expired - before);
            before = expired;
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(shown, [key(EXPIRED)], "{kind:?}");
    }
}

/// A scan passes at most as many records as it may show, expired or not.
#[test]
fn what_has_expired_is_a_step_of_a_scan() {
    for kind in MapKind::ALL {
        for (reverse, live) in [(false, 0), (true, 1)] {
            let Seat { replica, .. } = &expired(kind);
            let (mut shown, mut met) = (0, 0);
            let visit = &mut |entry: Entry<'_>| {
                shown += u32::from(entry.record.is_some());
                met += 1;
                true
            };
            Ordered::scan(&**replica, &[], None, reverse, 10, visit).expect("scan");
            assert_eq!((shown, met), (live, 10), "{kind:?}");
            assert_eq!(replica.stats().expired, 10 - u64::from(live), "{kind:?}");
        }
    }
}

/// A scan that meets many expired records proposes one entry, which states for all of them that their time has
/// passed: no node's clock is before that any more.
#[test]
fn a_scan_says_once_that_a_time_has_passed() {
    for kind in MapKind::ALL {
        let Seat { replica, clock, .. } = &expired(kind);
        let mut shown = Vec::new();
        let before = replica.status().newest;
        let visit = &mut |entry: Entry<'_>| {
            shown.extend(entry.record.map(|_| entry.key.to_vec()));
            true
        };
        Ordered::scan(&**replica, &[], None, false, usize::MAX, visit).expect("scan");
        assert_eq!(shown, [key(EXPIRED)], "{kind:?}");
        replica.persisted().expect("a turn");
        assert_eq!(replica.status().newest, before + 1, "{kind:?}");
        clock.store(1000, Ordering::Relaxed);
        assert_eq!(Engine::now(&**replica), UnixMillis(LATEST), "{kind:?}");
        // A sweep deletes the records that the scan has not deleted.
        replica.sweep_expired().expect("sweep");
        assert_eq!(replica.stats().expired, u64::from(EXPIRED), "{kind:?}");
        assert_eq!(replica.len().expect("len"), 1, "{kind:?}");
    }
}

/// A sweep goes on as long as many records are due, it has time, and not too many of its proposals are open.
#[test]
fn a_sweep_goes_on_while_much_is_due() {
    for kind in MapKind::ALL {
        let Seat { replica, .. } = &expired(kind);
        let mut from = Vec::new();
        let mut steps = 0;
        let swept = replica.sweep_on(&mut from, &mut || {
            steps += 1;
            steps < 10
        });
        assert_eq!(swept.expect("sweep"), 10 * 64, "{kind:?}");
        let rest = replica.sweep_on(&mut from, &mut || true).expect("sweep");
        assert_eq!(10 * 64 + rest, u64::from(EXPIRED), "{kind:?}");
        assert!(from.is_empty(), "it has come to the end");
        replica.persisted().expect("a turn");
        assert_eq!(replica.len().expect("len"), 1, "{kind:?}");
    }
}

/// The proposals of a sweep are not applied: it goes on slowly.
#[test]
fn a_sweep_is_no_faster_than_the_followers() {
    for kind in MapKind::ALL {
        let Seat { replica, .. } = &cluster(kind, 3)[0];
        let mut from = Vec::new();
        let swept = replica.sweep_on(&mut from, &mut || true).expect("sweep");
        assert_eq!(swept, 4096, "{kind:?}");
        assert_eq!(replica.sweep_on(&mut from, &mut || true).expect("sweep"), 64, "{kind:?}");
    }
}
