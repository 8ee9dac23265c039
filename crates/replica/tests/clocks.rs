//! Clocks that are not the same: what somebody was told of time holds for each leader.

use coreplane_engine::{Completion, Deferred, Horizon};
use coreplane_engine::{Engine, UnixMillis, Visibility, WriteOptions};
use coreplane_mvcc::{LogMap, MapKind, Options};
use coreplane_pmem::media::sim::{Sim, SimOptions};
use coreplane_replica::{Replica, Settings, map_options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct Seat {
    replica: Replica,
    clock: Arc<AtomicU64>,
    _sim: Sim,
}

fn seat(id: u64) -> Seat {
    let (len, page_size) = (1 << 20, 4096);
    let sim = Sim::new(&SimOptions { len, max_len: len, page_size, ..SimOptions::default() });
    let sim = sim.expect("memory");
    let options = map_options(&Options { background: false, ..Options::default() });
    let map = LogMap::simulated_create(MapKind::List, Arc::clone(sim.space()), &options);
    let settings = Settings { id, peers: vec![1, 2, 3], ..Settings::default() };
    let clock = Arc::new(AtomicU64::new(1000));
    let told = Arc::clone(&clock);
    let time = Arc::new(move || UnixMillis(told.load(Ordering::Relaxed)));
    let replica = Replica::open(map.expect("create"), settings, Some(time)).expect("open");
    Seat { replica, clock, _sim: sim }
}

/// Ticks all nodes, and delivers all that they say.
fn run(seats: &[Seat], ticks: usize) {
    for _ in 0..ticks {
        seats.iter().for_each(|it| it.replica.tick().expect("tick"));
        loop {
            let letters: Vec<_> = seats.iter().flat_map(|it| it.replica.take_envelopes()).collect();
            if letters.is_empty() {
                break;
            }
            for letter in letters {
                let to = letter.to as usize - 1;
                seats[to].replica.receive(letter).expect("receive");
            }
        }
    }
}

fn leader(seats: &[Seat]) -> usize {
    (0..200)
        .find_map(|_| {
            run(seats, 1);
            seats.iter().position(|it| it.replica.leads())
        })
        .expect("a leader")
}

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
    // Its clock says 1000.
    let next = &seats[second].replica;
    let found = next.get_with(b"short", Visibility::Early, &mut |_| {}).expect("get");
    assert!(!found.hit, "it was said to have expired");
    assert!(Engine::now(next) >= UnixMillis(2000), "somebody was told that it is later");
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
