//! Followers: what they show, and what they are sent.

use crate::seat::{LEN, Seat, early, leader, run, run_without, seat, seat_on};
use coreplane_engine::{Engine, Error, Record, UnixMillis, Visibility, WriteOptions};
use coreplane_mvcc::MapKind;
use coreplane_pmem::media::sim::Model;
use coreplane_replica::{Envelope, FollowerReads};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A follower that serves reads asks the leader, and then knows an upper bound for the age of its state.
#[test]
fn a_follower_shows_what_it_has() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    let first = leader(&seats);
    let expiring = WriteOptions { expires_at: Some(UnixMillis(2000)), ..early() };
    let _written = seats[first].replica.put(b"k", b"v", &expiring).expect("put");
    run(&seats, 3);
    let follower = &seats[(first + 1) % 3];
    let replica = &follower.replica;
    let mut shown = Vec::new();
    let mut get = |follower: &FollowerReads| {
        shown.clear();
        let mut take = |record: Record<'_>| shown = record.value.to_vec();
        let found = follower.get_with(b"k", Visibility::Durable, &mut take).expect("get");
        assert!(found.ticket.is_durable());
        found.hit.then(|| shown.clone())
    };
    let reads = FollowerReads::of(Arc::clone(replica));
    assert!(matches!(replica.get(b"k"), Err(Error::NotLeader { .. })));
    assert_eq!(replica.age(), None, "it has not asked yet");
    let since = Instant::now();
    run(&seats, 2);
    assert!(replica.age().is_some_and(|age| age <= since.elapsed()));
    // Its age counts from its question, however long the answer took.
    std::thread::sleep(Duration::from_millis(40));
    let before = Instant::now();
    replica.tick().expect("tick");
    let asked = replica.take_envelopes();
    std::thread::sleep(Duration::from_millis(40));
    for letter in asked {
        seats[letter.to as usize - 1].replica.receive(letter).expect("receive");
    }
    for _ in 0..10 {
        let letters: Vec<_> = seats.iter().flat_map(|it| it.replica.take_envelopes()).collect();
        for letter in letters {
            seats[letter.to as usize - 1].replica.receive(letter).expect("receive");
        }
    }
    let age = replica.age().expect("an age");
    assert!(age >= Duration::from_millis(40) && age <= before.elapsed(), "{age:?}");
    assert_eq!(get(&reads).as_deref(), Some(&b"v"[..]));
    assert_eq!(reads.len().expect("len"), 1);
    let refused = reads.put(b"k", b"w", &WriteOptions::default());
    assert!(matches!(refused, Err(Error::NotLeader { leader: Some(_) })));
    follower.clock.store(2000, Ordering::Relaxed);
    assert_eq!(get(&reads), None, "it has expired");
    // No node answers any more: its age grows.
    let before = replica.age().expect("an age");
    run_without(&seats, 3, &[first]);
    assert!(replica.age().is_some_and(|age| age > before));
}

/// The records that a follower shows are durable with a majority, even if its own file has not synced them.
#[test]
fn what_a_follower_shows_rests_on_nothing() {
    for kind in MapKind::ALL {
        let seats: Vec<Seat> =
            (1..=3).map(|id| seat_on((Model::File, LEN), kind, id, vec![1, 2, 3])).collect();
        let persist = || seats.iter().for_each(|it| it.replica.persisted().expect("persisted"));
        let mut first = None;
        for _ in 0..200 {
            run(&seats, 1);
            persist();
            first = first.or_else(|| seats.iter().position(|it| it.replica.leads()));
        }
        let first = first.expect("a leader");
        let reads = FollowerReads::of(Arc::clone(&seats[(first + 1) % 3].replica));
        let mut hits = 0;
        // Every fifth key stays: the cleaner moves those.
        for number in 0..6000_u32 {
            let key = if number % 5 == 0 { 100 + number / 5 % 800 } else { number % 20 };
            let _written =
                seats[first].replica.put(&key.to_be_bytes(), &[7; 100], &early()).expect("put");
            seats[first].replica.persisted().expect("persisted");
            run(&seats, 1);
            for key in [key, 100 + number * 7 % 800] {
                let key = key.to_be_bytes();
                let found = reads.get_with(&key, Visibility::Early, &mut |_| {}).expect("get");
                assert!(found.ticket.is_durable(), "{kind:?}: it waits for this file");
                hits += u32::from(found.hit);
            }
            persist();
        }
        assert!(hits > 5000, "{hits}");
    }
}

/// Messages to a follower that was cut off arrive all at once. It lacks many entries, and answers as often as reads
/// were asked meanwhile: it must not be sent all missing entries as often.
#[test]
fn a_follower_that_was_cut_off_is_sent_what_it_lacks_a_few_times() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    let first = leader(&seats);
    let cut = (first + 1) % 3;
    let (replica, id) = (&seats[first].replica, cut as u64 + 1);
    let mut kept = Vec::new();
    let deliver = |kept: &mut Vec<Envelope>, bytes: &mut usize| loop {
        let letters: Vec<_> = seats.iter().flat_map(|it| it.replica.take_envelopes()).collect();
        if letters.is_empty() {
            break;
        }
        for letter in letters {
            if letter.to == id && letter.from == first as u64 + 1 {
                let mut encoded = Vec::new();
                letter.encode(&mut encoded);
                *bytes += encoded.len();
                kept.push(letter);
            } else {
                seats[letter.to as usize - 1].replica.receive(letter).expect("receive");
            }
        }
    };
    let mut bytes = 0;
    for number in 0..400_u32 {
        let key = (number % 50).to_be_bytes();
        let _written = replica.put(&key, &[7; 1000], &early()).expect("put");
        let _found = replica.get_with(&key, Visibility::Early, &mut |_| {}).expect("get");
        replica.persisted().expect("it goes on");
        deliver(&mut kept, &mut bytes);
        if number % 100 == 0 {
            replica.tick().expect("tick");
        }
    }
    // The first message is lost, so that the follower lacks everything behind it.
    kept.remove(0);
    bytes = 0;
    while !kept.is_empty() {
        for letter in std::mem::take(&mut kept) {
            seats[cut].replica.receive(letter).expect("receive");
            deliver(&mut kept, &mut bytes);
        }
    }
    for _ in 0..20 {
        replica.tick().expect("tick");
        deliver(&mut kept, &mut bytes);
        for letter in std::mem::take(&mut kept) {
            seats[cut].replica.receive(letter).expect("receive");
            deliver(&mut kept, &mut bytes);
        }
    }
    assert!(bytes < 20 << 20, "{bytes} bytes of 400 values of 1,000");
    let newest = replica.status().newest;
    assert_eq!(seats[cut].replica.status().newest, newest, "it has all");
}
