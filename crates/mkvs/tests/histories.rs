//! Concurrent histories of small matrices, judged key by key, while devices stall, are pulled out and
//! come back, and all of it crashes and is opened again.
//!
//! ```text
//!   clients   call ─ call ─ call ─ … ─ (cut off)      call ─ call ─ …
//!   stalls      a device waits ─ goes on ─ another waits …
//!   chaos       pulled out ─ put back, filled, a member again …
//!   power                              ✂ every device fails at once; opened again
//! ```
//!
//! `COREPLANE_HISTORIES=n` for n seeds of each matrix (else a few, or 400 at full scale), from
//! `COREPLANE_HISTORY=seed` on.

#[path = "gated/mod.rs"]
mod shelf;

use coreplane_engine::conformance::history::{Call, Client, Event, Sequences, is_linearizable};
use coreplane_engine::{Engine, Error};
use coreplane_mkvs::{Ack, FillOptions, Matrix, Options, Position, Shape, Standing};
use shelf::{Kind, Shelf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const KEYS: usize = 3;
const CLIENTS: u64 = 3;
/// Of each client between two restarts.
const CALLS: u64 = 16;
const RESTARTS: u64 = 2;

/// A generator of numbers (xorshift), from a seed above 0.
struct Dice(u64);

impl Dice {
    fn of(seed: u64, part: u64) -> Self {
        let mut dice = Self((seed << 8 | part).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // The first few are much like the seed.
        for _ in 0..4 {
            dice.throw(2);
        }
        dice
    }

    fn throw(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % sides
    }
}

/// What happened in histories.
#[derive(Debug, Default)]
struct Tally {
    histories: AtomicU64,
    calls: AtomicU64,
    cut_off: AtomicU64,
    stalls: AtomicU64,
    pulls: AtomicU64,
    returns: AtomicU64,
    crashes: AtomicU64,
    refused: AtomicU64,
}

fn add(to: &AtomicU64, count: u64) {
    to.fetch_add(count, Ordering::Relaxed);
}

/// A matrix and what is done to it.
struct History<'t> {
    seed: u64,
    shape: Shape,
    shelf: Shelf,
    clock: AtomicU64,
    tally: &'t Tally,
    /// What was done to devices, and when.
    deeds: Mutex<Vec<(u64, String)>>,
}

impl History<'_> {
    fn positions(&self) -> Vec<Position> {
        let Shape { groups, devices, .. } = self.shape;
        (0..groups)
            .flat_map(|group| (0..devices).map(move |device| Position { group, device }))
            .collect()
    }

    fn note(&self, deed: String) {
        self.deeds.lock().expect("lock").push((self.clock.load(Ordering::SeqCst), deed));
    }

    /// Devices stall for a moment until `is_over`, one after the other.
    fn stall(&self, mut dice: Dice, is_over: &AtomicBool) {
        let positions = self.positions();
        while !is_over.load(Ordering::SeqCst) {
            let position = positions[dice.throw(positions.len() as u64) as usize];
            let gate = self.shelf.gate(position);
            gate.is_stalled.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(50 + dice.throw(400)));
            gate.is_stalled.store(false, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(dice.throw(300)));
            add(&self.tally.stalls, 1);
        }
    }

    /// Devices are pulled out and put back until `is_over`; one of a group always stays.
    fn pull_and_return(&self, matrix: &Matrix, mut dice: Dice, is_over: &AtomicBool) {
        let positions = self.positions();
        while !is_over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(dice.throw(600)));
            let position = positions[dice.throw(positions.len() as u64) as usize];
            let standings = matrix.standings();
            let is_current = |at: Position| standings.contains(&(at, Standing::Current));
            let others = positions.iter().filter(|it| it.group == position.group);
            if is_current(position) && others.filter(|it| is_current(**it)).count() > 1 {
                self.note(format!("{position} is pulled out"));
                self.shelf.pull(position);
                add(&self.tally.pulls, 1);
                std::thread::sleep(Duration::from_micros(dice.throw(800)));
                self.note(format!("{position} is there"));
                self.shelf.put_back(position);
            } else if !is_current(position) {
                self.put_back(matrix, position);
            }
        }
    }

    fn put_back(&self, matrix: &Matrix, position: Position) {
        self.note(format!("{position} comes back"));
        match matrix.replace(&self.shelf, position, &FillOptions::default(), &|_| {}) {
            Ok(_) => {
                self.note(format!("{position} is a member again"));
                add(&self.tally.returns, 1);
            }
            Err(error) => assert!(self.shelf.is_dead(), "{position} cannot come back: {error}"),
        }
    }

    /// From an opening to the next crash or close: the events of each client.
    fn live(&self, matrix: &Matrix, era: u64) -> Vec<Vec<Event>> {
        let mut dice = Dice::of(self.seed, era);
        // Sometimes it ends by itself.
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
            let (stalls, pulls) = (Dice::of(self.seed, 100 + era), Dice::of(self.seed, 200 + era));
            scope.spawn(move || self.stall(stalls, is_over));
            scope.spawn(move || self.pull_and_return(matrix, pulls, is_over));
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
            let (made, error) = client.call(matrix);
            events.extend(made);
            if let Some(error) = error {
                // A device was pulled out while somebody had still to find out that the other, which
                // is back, had failed him: then there is none.
                let error = error.to_string();
                let none_left =
                    ["the last current device of its group", "on no device that is left"];
                let is_last = none_left.iter().any(|words| error.contains(words));
                let is_cut = self.shelf.is_dead() || is_last;
                assert!(is_cut, "seed {}: a call failed: {error}", self.seed);
                break;
            }
        }
        events
    }

    /// The whole of it: the events of each client, in order.
    fn tell(&self) -> Vec<Vec<Event>> {
        let options = Options::default();
        let mut matrix = Matrix::create(&self.shelf, self.shape, &options).expect("create");
        let mut all = Vec::new();
        for era in 0..=RESTARTS {
            let mut events = self.live(&matrix, era);
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
                // What only the one that was pulled out had might be lost.
                Err(Error::Unusable(_)) if self.shape.ack != Ack::All => {
                    add(&self.tally.refused, 1);
                    return all;
                }
                Err(error) => panic!("seed {}: it cannot be opened: {error}", self.seed),
            };
        }
        self.end(&matrix, &mut all);
        all
    }

    /// Calls and deeds in the order in which they began.
    fn told(&self, threads: &[Vec<Event>]) -> String {
        let mut lines = self.deeds.lock().expect("lock").clone();
        for event in threads.iter().flatten() {
            lines.push((event.begin, format!("to {} {:?}", event.end, event.call)));
        }
        lines.sort();
        lines.iter().map(|(at, what)| format!("  {at} {what}\n")).collect()
    }

    /// All devices come back, and all keys are read.
    fn end(&self, matrix: &Matrix, all: &mut Vec<Vec<Event>>) {
        for (position, standing) in matrix.standings() {
            if standing != Standing::Current {
                self.put_back(matrix, position);
            }
        }
        let report = matrix.verify(&mut |_| {}).expect("verify");
        assert!(report.is_sound(), "seed {}: {report:?}", self.seed);
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
        all.push(reader);
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let first = number("COREPLANE_HISTORY").unwrap_or(1);
    let count = number("COREPLANE_HISTORIES").unwrap_or(if is_full { 400 } else { 12 });
    first..first + count
}

fn judge(kind: Kind, shape: Shape) {
    let tally = Tally::default();
    for seed in seeds() {
        // As little as a pool of the kind can have.
        let size = if kind == Kind::Bptree { 1 << 20 } else { 16 << 20 };
        let (shelf, clock) = (Shelf::new(kind, size), AtomicU64::new(0));
        let (tally, deeds) = (&tally, Mutex::default());
        let history = History { seed, shape, shelf, clock, tally, deeds };
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
            assert!(
                is_linearizable(&of_key, Sequences::Renewed),
                "{kind:?}, {shape:?}, seed {seed}: key {key} has no linearization:\n{}",
                history.told(&of_key)
            );
        }
    }
    eprintln!("{kind:?}, {shape:?}: {tally:?}");
    let happened = [&tally.stalls, &tally.pulls, &tally.crashes, &tally.returns];
    assert!(happened.iter().all(|it| it.load(Ordering::Relaxed) > 0), "{tally:?}");
}

fn shape(groups: u16, devices: u8, ack: Ack) -> Shape {
    Shape { groups, devices, ack, ..Shape::default() }
}

#[test]
fn two_by_two_that_waits_for_all() {
    judge(Kind::Bptree, shape(2, 2, Ack::All));
    judge(Kind::Scmkv, shape(2, 2, Ack::All));
}

#[test]
fn two_by_two_that_waits_for_the_first() {
    judge(Kind::Bptree, shape(2, 2, Ack::First));
}

#[test]
fn one_by_three_that_waits_for_most() {
    judge(Kind::Bptree, shape(1, 3, Ack::Majority));
}

#[test]
fn one_by_three_that_waits_for_the_first() {
    judge(Kind::Scmkv, shape(1, 3, Ack::First));
}

#[test]
fn one_by_three_that_waits_for_all() {
    judge(Kind::Bptree, shape(1, 3, Ack::All));
}
