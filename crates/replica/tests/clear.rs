//! A clear of a full cluster, while proposals wait to be applied.

use coreplane_engine::{
    Batch, Clear, Completion, Deferred, Engine, Entry, Error, UnixMillis, WriteOptions,
};
use coreplane_mvcc::{LogMap, MapKind, Options};
use coreplane_pmem::media::sim::{Sim, SimOptions};
use coreplane_replica::{Replica, Settings, map_options};
use std::sync::Arc;

/// Node 1 has the smallest pool.
fn replica(id: u64) -> Replica {
    let (len, page_size) = (if id == 1 { 1 << 20 } else { 4 << 20 }, 4096);
    let sim = Sim::new(&SimOptions { len, max_len: len, page_size, ..SimOptions::default() });
    let options = map_options(&Options { background: false, ..Options::default() });
    let space = Arc::clone(sim.expect("memory").space());
    let map = LogMap::simulated_create(MapKind::List, space, &options).expect("create");
    let settings = Settings { id, identity: id, peers: vec![1, 2, 3], ..Settings::default() };
    let time = Arc::new(|| UnixMillis(1000));
    Replica::open(Box::new(map), settings, Some(time)).expect("open")
}

/// Ticks all nodes, and delivers all their messages.
fn run(all: &[Replica], ticks: usize) {
    for _ in 0..ticks {
        all.iter().for_each(|it| it.tick().expect("tick"));
        loop {
            let letters: Vec<_> = all.iter().flat_map(Replica::take_envelopes).collect();
            if letters.is_empty() {
                break;
            }
            for letter in letters {
                all[letter.to as usize - 1].receive(letter).expect("receive");
            }
        }
    }
}

/// Makes node 1 the leader.
fn leader(all: &[Replica]) -> &Replica {
    let leader = (0..200).find_map(|_| {
        run(all, 1);
        if let Some(other) = all[1..].iter().find(|it| it.leads()) {
            other.transfer_leadership(1).expect("transfer");
        }
        all.first().filter(|it| it.leads())
    });
    leader.expect("a leader")
}

fn early() -> WriteOptions {
    WriteOptions { completion: Completion::Early, ..WriteOptions::default() }
}

const COUNT: u32 = 5000;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Fills the cluster while nothing is applied, until not even a delete has room.
fn fill_up(leader: &Replica) {
    let mut number = COUNT;
    while leader.put(&key(number), &[7; 100], &early()).is_ok() {
        number += 1;
    }
    let refused = (0..=number).find_map(|number| {
        let mut batch = Batch::new();
        batch.delete(&key(number));
        leader.apply(&batch, &early()).err()
    });
    // The proposals that wait to be applied will free room.
    assert!(matches!(refused, Some(Error::Busy)), "{refused:?}");
}

/// A step whose deletes have no room, because other proposals wait to be applied, is made later. `is_kept`: the first
/// record that it finds was written since the clear began, and stays.
fn clear_when_full(is_kept: bool) {
    let all: Vec<Replica> = (1..=3).map(replica).collect();
    let leader = leader(&all);
    for number in 0..COUNT {
        let _written = leader.put(&key(number), &[7; 8], &early()).expect("there is room");
        if number % 500 == 0 {
            run(&all, 1);
        }
    }
    run(&all, 3);
    let mut clear = Clear::default();
    assert!(leader.clear_step(&mut clear).expect("a step").is_none());
    run(&all, 3);
    if is_kept {
        let next: [u8; 4] = clear.next[..4].try_into().expect("a key");
        let next = key(u32::from_be_bytes(next) + 1);
        let _written = leader.put(&next, b"new", &early()).expect("there is room");
    }
    fill_up(leader);
    let refused = leader.clear_step(&mut clear);
    assert!(matches!(refused, Err(Error::Busy)), "{refused:?}");
    run(&all, 3);
    while leader.clear_step(&mut clear).expect("there is room by now").is_none() {
        run(&all, 1);
    }
    run(&all, 3);
    let mut found = Vec::new();
    let ordered = leader.ordered().expect("it is ordered");
    let visit = &mut |entry: Entry<'_>| {
        found.push(entry.key.to_vec());
        true
    };
    ordered.scan(&[], Some(&key(COUNT)), false, usize::MAX, visit).expect("scan");
    assert_eq!(found.len(), usize::from(is_kept));
}

/// The two run one after the other: free pages wait for the readers of all pools of the process.
#[test]
fn a_clear_that_has_no_room_yet_goes_on_later_and_is_not_over() {
    clear_when_full(false);
    clear_when_full(true);
}
