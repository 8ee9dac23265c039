//! Concurrent histories of small matrices, judged key by key, while devices stall, are pulled out and come
//! back, a group is added, records are scrubbed, and everything crashes and is opened again.
//!
//! ```text
//!   clients   call ─ call ─ call ─ … ─ (cut off)      call ─ call ─ …
//!   stalls      a device waits ─ goes on ─ another waits …
//!   chaos       pulled out ─ put back, filled, a member again; or a new one in its place …
//!   keeper      scrub ─ a group is added: slots move … ─ scrub …
//!   power                              ✂ every device fails at once; opened again
//! ```
//!
//! At every moment at most one device of a group has failed, so that a call fails only if the power does. A
//! device that was pulled out and put back unnoticed may have failed a call that is still running. So before
//! another device of its group is pulled out, all running calls have ended, and a device whose processor met
//! the failure is no longer a member.
//!
//! The seed also determines the path of reads, and whether devices compete for them: if they do, and all
//! reads go through the rings, the peer of a stalled device makes the reads that it is late with.
//!
//! `COREPLANE_HISTORIES=n` for n seeds of each matrix (else a few, or 400 at full scale), from
//! `COREPLANE_HISTORY=seed` on.

mod shelf;
mod tally;

use coreplane_conformance::history::{Call, Client, Event, Sequences, is_linearizable};
use coreplane_engine::{Engine, Error, Repairable, WriteOptions};
use coreplane_mkvs::filter::hash_of;
use coreplane_mkvs::slots::{deal, share_of, slot_of};
use coreplane_mkvs::{
    Ack, CopyOptions, Matrix, MemberState, Options, Position, Prototype, ReadPath, Shape,
};
use parking_lot::RwLock;
use shelf::{Kind, Shelf};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tally::{Dice, Tally, add, prototype_of, read_path_of};

const KEYS: usize = 3;
const CLIENTS: u64 = 3;
/// Calls of each client between two restarts.
const CALLS: u64 = 16;
const RESTARTS: u64 = 2;

/// A matrix, and the state of its history.
struct History<'t> {
    seed: u64,
    shape: Shape,
    shelf: Shelf,
    clock: AtomicU64,
    tally: &'t Tally,
    /// The faults and repairs of devices, with their times.
    deeds: Mutex<Vec<(u64, String)>>,
    /// Held for reading during each call of the matrix.
    at_work: RwLock<()>,
    /// The device of each group that was pulled out last.
    pulled: Mutex<HashMap<u16, Position>>,
}

fn positions(matrix: &Matrix) -> Vec<Position> {
    matrix.member_states().into_iter().map(|(position, _)| position).collect()
}

impl History<'_> {
    fn note(&self, deed: String) {
        self.deeds.lock().expect("lock").push((self.clock.load(Ordering::SeqCst), deed));
    }

    /// Devices stall for a moment until `is_over`, one after the other.
    fn stall(&self, matrix: &Matrix, mut dice: Dice, is_over: &AtomicBool) {
        while !is_over.load(Ordering::SeqCst) {
            let positions = positions(matrix);
            let position = positions[dice.throw(positions.len() as u64) as usize];
            let gate = self.shelf.gate(position);
            gate.is_stalled.store(true, Ordering::SeqCst);
            // Half of the time so long that a waiting reader asks another device.
            let long = if dice.throw(2) == 0 { 600 } else { 50 };
            std::thread::sleep(Duration::from_micros(long + dice.throw(400)));
            gate.is_stalled.store(false, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(dice.throw(300)));
            add(&self.tally.stalls, 1);
        }
    }

    /// Devices are pulled out and put back until `is_over`; one of a group always stays.
    fn pull_and_return(&self, matrix: &Matrix, mut dice: Dice, is_over: &AtomicBool) {
        while !is_over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(dice.throw(600)));
            let positions = positions(matrix);
            let position = positions[dice.throw(positions.len() as u64) as usize];
            if self.may_be_pulled(matrix, position) {
                self.note(format!("{position} is pulled out"));
                self.shelf.pull(position);
                add(&self.tally.pulls, 1);
                std::thread::sleep(Duration::from_micros(dice.throw(800)));
                self.note(format!("{position} is there"));
                self.shelf.put_back(position);
            } else if !matrix.member_states().contains(&(position, MemberState::Current)) {
                self.put_back(matrix, position, dice.throw(4) == 0);
            }
        }
    }

    /// True if the group of a device has another one, and no running call has met a failure of that one.
    fn may_be_pulled(&self, matrix: &Matrix, position: Position) -> bool {
        let mut pulled = self.pulled.lock().expect("lock");
        let last = pulled.get(&position.group).copied();
        if let Some(last) = last.filter(|last| *last != position) {
            drop(self.at_work.write());
            // Writes in rings are executed; a device that cannot execute them is no longer a member.
            assert!(matrix.sync().is_ok() || self.shelf.is_dead(), "seed {}: sync", self.seed);
            let has_failed = &self.shelf.gate(last).has_failed_processor;
            let is_current = matrix.member_states().contains(&(last, MemberState::Current));
            if has_failed.load(Ordering::SeqCst) && is_current {
                // A read that another device has answered meanwhile may be about to leave it out.
                return false;
            }
        }
        let standings = matrix.member_states();
        let is_current = |at: Position| standings.contains(&(at, MemberState::Current));
        let mut others = standings.iter().map(|(at, _)| *at).filter(|it| *it != position);
        let may =
            is_current(position) && others.any(|it| it.group == position.group && is_current(it));
        if may {
            let is_peer = last.is_some_and(|last| last != position);
            add(&self.tally.peer_pulls, u64::from(is_peer));
            pulled.insert(position.group, position);
        }
        may
    }

    fn put_back(&self, matrix: &Matrix, position: Position, is_fresh: bool) {
        self.note(format!("{position} comes back, or a new one: {is_fresh}"));
        let options = CopyOptions { is_fresh, ..CopyOptions::default() };
        match matrix.replace(&self.shelf, position, &options, &|_| {}) {
            Ok(_) => {
                self.note(format!("{position} is a member again"));
                add(&self.tally.returns, 1);
            }
            // The keeper is filling something.
            Err(Error::Unusable(why)) if why.starts_with("another device or group") => {}
            Err(error) => {
                let seed = self.seed;
                assert!(self.shelf.is_dead(), "seed {seed}: {position} cannot come back: {error}");
            }
        }
    }

    /// A group is added, once, and records are scrubbed, until `is_over`.
    fn keep(&self, matrix: &Matrix, mut dice: Dice, is_over: &AtomicBool) {
        while !is_over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(dice.throw(1500)));
            let _working = self.at_work.read();
            if dice.throw(3) > 0 {
                match matrix.scrub(&|_| {}) {
                    Ok(scrubbed) => assert_eq!(scrubbed.lost.len(), 0, "seed {}", self.seed),
                    Err(error) => self.assert_is_cut(matrix, "scrub", &error),
                }
                add(&self.tally.scrubs, 1);
            } else {
                self.grow(matrix);
            }
        }
    }

    fn grow(&self, matrix: &Matrix) {
        let options = CopyOptions::default();
        let has_grown = matrix.slots().0.len() > usize::from(self.shape.groups);
        if has_grown && !matrix.is_moving() {
            return;
        }
        self.note("slots begin to move".to_owned());
        let moved = if has_grown {
            matrix.finish_moves(&options, &|_| {})
        } else {
            matrix.add_group(&self.shelf, &options, &|_| {})
        };
        match moved {
            Ok(_) => {
                self.note("slots have moved".to_owned());
                add(&self.tally.groups, 1);
            }
            // A device is being filled.
            Err(Error::Unusable(why)) if why.starts_with("another device or group") => {}
            Err(error) => self.assert_is_cut(matrix, "a group cannot be added", &error),
        }
    }

    fn assert_is_cut(&self, matrix: &Matrix, what: &str, error: &Error) {
        // The devices that left before, and why.
        let left = || (matrix.damaged(), self.deeds.lock().expect("lock").clone());
        assert!(self.shelf.is_dead(), "seed {}: {what}: {error} {:?}", self.seed, left());
    }

    fn has_pulled(&self) -> bool {
        !self.pulled.lock().expect("lock").is_empty()
    }

    /// From an opening to the next crash or close: the events of each client.
    fn live(&self, matrix: &Matrix, era: u64) -> Vec<Vec<Event>> {
        let mut dice = Dice::of(self.seed, era);
        // Sometimes it ends without a cut.
        let is_cut = era < RESTARTS && dice.throw(4) > 0;
        let last = if is_cut { dice.throw(CLIENTS * CALLS) } else { u64::MAX };
        let (is_over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let (is_over, calls) = (&is_over, &calls);
            let clients: Vec<_> = (0..CLIENTS)
                .map(|thread| {
                    let number = era * CLIENTS + thread;
                    let seed = self.seed << 16 | number;
                    let mut client = Client::new(seed, number + 1, KEYS, &self.clock);
                    client.batch_in = 12;
                    scope.spawn(move || self.run(matrix, client, (calls, last)))
                })
                .collect();
            let dice = |part| Dice::of(self.seed, part + era);
            let (stalls, pulls, keeps) = (dice(100), dice(200), dice(300));
            scope.spawn(move || self.stall(matrix, stalls, is_over));
            scope.spawn(move || self.pull_and_return(matrix, pulls, is_over));
            scope.spawn(move || self.keep(matrix, keeps, is_over));
            let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
            is_over.store(true, Ordering::SeqCst);
            ended
                .into_iter()
                .map(|it| it.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }

    /// Calls until the power is cut, which happens at the call with the number `last` of all clients.
    fn run(
        &self,
        matrix: &Matrix,
        mut client: Client<'_>,
        (calls, last): (&AtomicU64, u64),
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..CALLS {
            if calls.fetch_add(1, Ordering::SeqCst) == last {
                self.shelf.cut_power();
                add(&self.tally.crashes, 1);
            }
            let _working = self.at_work.read();
            let (made, error) = client.call(matrix);
            events.extend(made);
            if let Some(error) = error {
                self.assert_is_cut(matrix, "a call failed", &error);
                break;
            }
        }
        events
    }

    /// Runs the whole history: the events of each client, in order.
    fn tell(&self) -> Vec<Vec<Event>> {
        let options = Options { read_path: read_path_of(self.seed), ..Options::default() };
        let mut matrix = Matrix::create(&self.shelf, self.shape, &options).expect("create");
        let mut all = Vec::new();
        for era in 0..=RESTARTS {
            let mut events = self.live(&matrix, era);
            self.tally.count_races(&matrix);
            if !self.shelf.is_dead() {
                matrix.close().unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
            }
            drop(matrix);
            self.shelf.restore_power();
            let opened = Matrix::open(&self.shelf, &options, &|_| {});
            let now = self.clock.fetch_add(1, Ordering::SeqCst);
            events.iter_mut().flatten().for_each(|event| event.end = event.end.min(now));
            all.extend(events);
            matrix = match opened {
                Ok(matrix) => matrix,
                // A write that only the pulled device had might be lost.
                Err(Error::Unusable(_)) if self.shape.ack != Ack::All && self.has_pulled() => {
                    add(&self.tally.refused, 1);
                    return all;
                }
                Err(error) => panic!("seed {}: it cannot be opened: {error}", self.seed),
            };
        }
        self.end(&matrix, &mut all);
        self.tally.count_races(&matrix);
        all
    }

    /// Calls and deeds in the order in which they began, as text.
    fn told(&self, threads: &[Vec<Event>]) -> String {
        let mut lines = self.deeds.lock().expect("lock").clone();
        for event in threads.iter().flatten() {
            lines.push((event.begin, format!("to {} {:?}", event.end, event.call)));
        }
        lines.sort();
        lines.iter().map(|(at, what)| format!("  {at} {what}\n")).collect()
    }

    /// Pulls a device out, and writes until that is noticed.
    fn pull_noticed(&self, matrix: &Matrix) {
        let positions = positions(matrix);
        let position = positions[self.seed as usize % positions.len()];
        self.shelf.pull(position);
        add(&self.tally.pulls, 1);
        for number in 0.. {
            let key = format!("another {number}");
            let _outcome = matrix.put(key.as_bytes(), b"", &WriteOptions::default()).expect("put");
            // Its processor may not run for a while, and the pools are small.
            std::thread::sleep(Duration::from_micros(20));
            if !matrix.member_states().contains(&(position, MemberState::Current)) {
                break;
            }
        }
        self.shelf.put_back(position);
    }

    /// Each device of a group is late with a read once, so that another is asked.
    fn ask_another(&self, matrix: &Matrix) {
        if self.shape.prototype != Prototype::Mkvs || read_path_of(self.seed) != ReadPath::Rings {
            return;
        }
        for position in positions(matrix) {
            let gate = self.shelf.gate(position);
            gate.holds_gets.store(true, Ordering::SeqCst);
            assert!(matrix.get(b"another 0").expect("get").is_some(), "seed {}", self.seed);
            gate.holds_gets.store(false, Ordering::SeqCst);
        }
    }

    /// Everything that has not happened yet is done; all devices come back, and all keys are read.
    fn end(&self, matrix: &Matrix, all: &mut Vec<Vec<Event>>) {
        // A device that cannot execute the writes in its ring is no longer a member.
        matrix.sync().expect("sync");
        self.bring_back(matrix);
        self.grow(matrix);
        self.pull_noticed(matrix);
        self.bring_back(matrix);
        self.ask_another(matrix);
        let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
        assert!(scrubbed.lost.is_empty() && !matrix.is_moving(), "seed {}", self.seed);
        add(&self.tally.scrubs, 1);
        let report = matrix.verify(&mut |_| {}).expect("verify");
        assert!(report.is_sound(), "seed {}: {report:?}", self.seed);
        all.push(self.read_all(matrix));
    }

    fn bring_back(&self, matrix: &Matrix) {
        for (position, standing) in matrix.member_states() {
            if standing != MemberState::Current {
                self.put_back(matrix, position, false);
            }
        }
    }

    fn read_all(&self, matrix: &Matrix) -> Vec<Event> {
        let mut reader = Vec::new();
        for key in 0..KEYS {
            let begin = self.clock.fetch_add(1, Ordering::SeqCst);
            let mut register = None;
            let visibility = coreplane_engine::Visibility::Durable;
            let read = matrix.get_with(&Client::key(key), visibility, &mut |record| {
                let value = record.value.to_vec().try_into().expect("eight bytes");
                register = Some((u64::from_le_bytes(value), record.sequence));
            });
            read.expect("get");
            let end = self.clock.fetch_add(1, Ordering::SeqCst);
            reader.push(Event { key, begin, end, call: Call::Get(register) });
        }
        reader
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let first = number("COREPLANE_HISTORY").unwrap_or(1);
    let count = number("COREPLANE_HISTORIES").unwrap_or(if is_full { 400 } else { 5 });
    first..first + count
}

fn judge(kind: Kind, shape: Shape) {
    let (tally, mut violations) = (Tally::default(), Vec::new());
    for seed in seeds() {
        // The smallest pool of this kind.
        let size = if kind == Kind::Bptree { 1 << 20 } else { 16 << 20 };
        let (shelf, clock) = (Shelf::new(kind, size), AtomicU64::new(0));
        let shape = Shape { prototype: prototype_of(seed), ..shape };
        let (tally, deeds, at_work, pulled) =
            (&tally, Mutex::default(), RwLock::default(), Mutex::default());
        let history = History { seed, shape, shelf, clock, tally, deeds, at_work, pulled };
        let threads = history.tell();
        add(&tally.histories, 1);
        for key in 0..KEYS {
            let of_key: Vec<Vec<Event>> = threads
                .iter()
                .map(|events| events.iter().filter(|event| event.key == key).copied().collect())
                .collect();
            let events = of_key.iter().flatten();
            add(&tally.calls, events.clone().count() as u64);
            let is_cut_off = |event: &&Event| matches!(event.call, Call::CutOff(_));
            add(&tally.cut_off, events.filter(is_cut_off).count() as u64);
            if !is_linearizable(&of_key, Sequences::Renewed) {
                let told = history.told(&of_key);
                violations.push(format!("seed {seed}: key {key} has no linearization:\n{told}"));
            }
        }
    }
    let Shape { groups, devices, ack, .. } = shape;
    let named = format!("{kind:?} {groups}x{devices} at {ack:?}");
    tally.print(&named, seeds(), violations.len());
    assert!(violations.is_empty(), "{named}: {}", violations.join("\n"));
    let Tally { stalls, pulls, crashes, returns, groups, scrubs, wins, hedges, .. } = &tally;
    let happened = [stalls, pulls, crashes, returns, groups, scrubs, wins, hedges];
    assert!(happened.iter().all(|it| it.load(Ordering::Relaxed) > 0), "{tally:?}");
    // About six in five seeds.
    let is_long = seeds().count() >= 25;
    assert!(!is_long || tally.peer_pulls.load(Ordering::Relaxed) > 0, "{tally:?}");
}

fn shape(groups: u16, devices: u8, ack: Ack) -> Shape {
    Shape { groups, devices, ack, ..Shape::default() }
}

/// When a group is added, keys of the histories move to it.
#[test]
fn keys_move_to_a_group_that_is_added() {
    for groups in 1..=3 {
        let share = share_of(groups, &deal(groups));
        let moves = |key: &usize| share.contains(&slot_of(hash_of(&Client::key(*key))));
        let moving = (0..KEYS).filter(moves).count();
        assert!((1..KEYS).contains(&moving), "{moving} of {KEYS} from {groups} groups on");
    }
}

#[test]
fn two_by_two_that_waits_for_all() {
    judge(Kind::Bptree, shape(2, 2, Ack::All));
    judge(Kind::Scmkv, shape(2, 2, Ack::All));
}

#[test]
fn two_by_two_that_waits_for_the_first() {
    judge(Kind::Bptree, shape(2, 2, Ack::First));
    judge(Kind::Scmkv, shape(2, 2, Ack::First));
}

#[test]
fn three_by_two_that_waits_for_all() {
    judge(Kind::Bptree, shape(3, 2, Ack::All));
    judge(Kind::Scmkv, shape(3, 2, Ack::All));
}

#[test]
fn three_by_two_that_waits_for_the_first() {
    judge(Kind::Bptree, shape(3, 2, Ack::First));
    judge(Kind::Scmkv, shape(3, 2, Ack::First));
}

#[test]
fn one_by_three_that_waits_for_most() {
    judge(Kind::Bptree, shape(1, 3, Ack::Majority));
    judge(Kind::Scmkv, shape(1, 3, Ack::Majority));
}

#[test]
fn one_by_three_that_waits_for_the_first() {
    judge(Kind::Bptree, shape(1, 3, Ack::First));
    judge(Kind::Scmkv, shape(1, 3, Ack::First));
}

#[test]
fn one_by_three_that_waits_for_all() {
    judge(Kind::Bptree, shape(1, 3, Ack::All));
    judge(Kind::Scmkv, shape(1, 3, Ack::All));
}
