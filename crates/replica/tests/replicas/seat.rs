//! Nodes in one thread, over pools in the simulator's memory.

use coreplane_engine::{Batch, Completion, Engine, UnixMillis, WriteOptions};
use coreplane_mvcc::{LogMap, MapKind, Options};
use coreplane_pmem::media::sim::{Model, Sim, SimOptions};
use coreplane_replica::{Replica, Settings, map_options};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The length of a pool, in bytes.
pub(crate) const LEN: u64 = 1 << 20;

/// A node, with its clock.
pub(crate) struct Seat {
    pub(crate) replica: Arc<Replica>,
    pub(crate) clock: Arc<AtomicU64>,
    pub(crate) sim: Sim,
}

/// A node of three, with a list.
pub(crate) fn seat(id: u64) -> Seat {
    seat_on((Model::X86, LEN), MapKind::List, id, vec![1, 2, 3])
}

pub(crate) fn seat_on((model, len): (Model, u64), kind: MapKind, id: u64, peers: Vec<u64>) -> Seat {
    let page_size = 4096;
    let sim =
        Sim::new(&SimOptions { len, max_len: len, page_size, model, ..SimOptions::default() });
    let sim = sim.expect("memory");
    let options = map_options(&Options { background: false, ..Options::default() });
    let map = LogMap::simulated_create(kind, Arc::clone(sim.space()), &options);
    let settings = Settings { id, identity: id, peers, ..Settings::default() };
    let clock = Arc::new(AtomicU64::new(1000));
    let told = Arc::clone(&clock);
    let time = Arc::new(move || UnixMillis(told.load(Ordering::Relaxed)));
    let replica =
        Replica::open(Box::new(map.expect("create")), settings, Some(time)).expect("open");
    Seat { replica: Arc::new(replica), clock, sim }
}

/// A cluster of one node, which leads.
pub(crate) fn alone(kind: MapKind) -> Seat {
    alone_on(LEN, kind)
}

pub(crate) fn alone_on(len: u64, kind: MapKind) -> Seat {
    let seats = [seat_on((Model::X86, len), kind, 1, vec![1])];
    leader(&seats);
    let [seat] = seats;
    seat
}

/// Ticks all nodes, and delivers all their messages.
pub(crate) fn run(seats: &[Seat], ticks: usize) {
    run_without(seats, ticks, &[]);
}

/// The same without these nodes, which receive nothing and whose messages are dropped.
pub(crate) fn run_without(seats: &[Seat], ticks: usize, cut: &[usize]) {
    let is_cut = |id: u64| cut.contains(&(id as usize - 1));
    for _ in 0..ticks {
        let all = seats.iter().enumerate().filter(|(at, _)| !cut.contains(at));
        all.for_each(|(_, it)| it.replica.tick().expect("tick"));
        loop {
            let letters: Vec<_> = seats.iter().flat_map(|it| it.replica.take_envelopes()).collect();
            if letters.is_empty() {
                break;
            }
            for letter in letters {
                if is_cut(letter.from) || is_cut(letter.to) {
                    continue;
                }
                let to = letter.to as usize - 1;
                seats[to].replica.receive(letter).expect("receive");
            }
        }
    }
}

pub(crate) fn leader(seats: &[Seat]) -> usize {
    leader_without(seats, &[])
}

pub(crate) fn leader_without(seats: &[Seat], cut: &[usize]) -> usize {
    (0..200)
        .find_map(|_| {
            run_without(seats, 1, cut);
            let mut all = seats.iter().enumerate().filter(|(at, _)| !cut.contains(at));
            all.find(|(_, it)| it.replica.leads()).map(|it| it.0)
        })
        .expect("a leader")
}

/// Makes a node the leader.
pub(crate) fn lead(seats: &[Seat], next: usize) {
    for _ in 0..50 {
        if seats[next].replica.leads() {
            return;
        }
        let now = leader(seats);
        seats[now].replica.transfer_leadership(next as u64 + 1).expect("transfer");
        run(seats, 5);
    }
    panic!("{next} does not lead");
}

/// Writes these keys, some at a time, to a node that is alone.
pub(crate) fn put_range(replica: &Replica, numbers: Range<u32>) {
    for first in numbers.clone().step_by(1000) {
        let mut batch = Batch::new();
        for number in first..numbers.end.min(first + 1000) {
            batch.put(&number.to_be_bytes(), &[7; 8]);
        }
        replica.apply(&batch, &early()).expect("there is room");
        replica.persisted().expect("it goes on");
    }
}

pub(crate) fn early() -> WriteOptions {
    WriteOptions { completion: Completion::Early, ..WriteOptions::default() }
}
