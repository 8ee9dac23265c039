//! Concurrent histories, checked for linearizability.
//!
//! # The problem
//!
//! Several threads write and read a few keys. Each call takes a while, so calls overlap, and many
//! answers are right. The history is right if every call can be given one moment between its start and its end so
//! that the answers are those of one thread doing the calls in the order of these moments. Keys are independent, so
//! each key's history is judged alone.
//!
//! # The picture
//!
//! Wing and Gong's search: from a state, try each thread's next call that no other call's end precedes; if the
//! register gives the same answer, go on from there. As each thread does one call after the other, the set of calls
//! made so far is one index per thread, and (indices, register) is remembered so that no state is searched twice.
//!
//! A call that a crash has cut off has an unknown answer: it was made at some moment before the store was open again,
//! or never. Other crates, whose engines can crash within a history, run and judge theirs with [`Client`] and
//! [`is_linearizable`].
//!
//! # Invariants
//!
//! - A call that ended before another began comes before it.
//! - The register is (value, last sequence); every write's sequence is greater than the last, and
//!   a record shows the sequence of its write. ([`Sequences::Renewed`]: or a greater one, where a write
//!   that failed has been taken back.)

use super::Factory;
use super::probe::{EARLY, WAIT, key};
use super::rng::Rng;
use coreplane_engine::{
    Batch, Error, Expected, Mutation, Outcome, Result, StorageEngine, Visibility, WriteOptions,
};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// A record as (value, sequence).
pub type Register = Option<(u64, u64)>;

/// A call and its answer. No two writes write the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// The record that was read.
    Get(Register),
    /// The value, the sequence, whether it replaced.
    Put(u64, u64, bool),
    /// The value, and the sequence if it was written.
    Insert(u64, Option<u64>),
    /// The value; the sequence, and whether it replaced, if it was written.
    Update(u64, Option<(u64, bool)>),
    /// The sequence, if there was something to delete.
    Delete(Option<u64>),
    /// Expected value, new value, sequence if it matched.
    Swap(u64, u64, Option<u64>),
    /// The record that it was shown, the new value, the sequence.
    Modify(Register, u64, u64),
    /// A part of a batch: the value, and its sequence.
    Batched(u64, u64),
    /// The value read by a client that is shown no sequences.
    Shown(Option<u64>),
    /// A write of such a client, and whether it was made.
    Answered(Wish, bool),
    /// A write whose answer never came.
    CutOff(Wish),
}

/// A write that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Writes the value in any case.
    Put(u64),
    /// Writes the value if there is no record.
    Insert(u64),
    /// Writes the value if there is a record.
    Update(u64),
    /// Deletes the record.
    Delete,
    /// Expected value, new value.
    Swap(u64, u64),
}

/// A call of one key.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// The number of the key.
    pub key: usize,
    /// The moment of the call.
    pub begin: u64,
    /// The moment of its return; for a call that was cut off, of the next open.
    pub end: u64,
    /// The call and its answer.
    pub call: Call,
}

/// Which sequences records may show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequences {
    /// That of their write.
    Kept,
    /// That of their write or a greater one.
    Renewed,
}

/// The sequence of a write whose answer never came.
const UNKNOWN: u64 = 0;

/// The register and the last sequence, if they agree with `seen`.
fn found(
    seen: Register,
    (register, last): (Register, u64),
    sequences: Sequences,
) -> Option<(Register, u64)> {
    match (seen, register) {
        (None, None) => Some((None, last)),
        (Some((value, sequence)), Some((held, known))) if value == held => {
            let is_new = known == UNKNOWN || sequences == Sequences::Renewed && sequence > known;
            (sequence == known || is_new).then_some((seen, last.max(sequence)))
        }
        _ => None,
    }
}

impl Wish {
    /// The register after the write; none if it changes nothing.
    fn made(self, register: Register) -> Option<Register> {
        let is_there = register.is_some();
        match self {
            Self::Put(value) => Some(Some((value, UNKNOWN))),
            Self::Insert(value) => (!is_there).then_some(Some((value, UNKNOWN))),
            Self::Update(value) => is_there.then_some(Some((value, UNKNOWN))),
            Self::Delete => is_there.then_some(None),
            Self::Swap(expected, value) => {
                let is_expected = register.is_some_and(|(held, _)| held == expected);
                is_expected.then_some(Some((value, UNKNOWN)))
            }
        }
    }
}

impl Call {
    /// The register after the call, if the call is possible on it.
    fn step(
        self,
        (register, last): (Register, u64),
        sequences: Sequences,
    ) -> Option<(Register, u64)> {
        let write =
            |value, sequence| (sequence > last).then_some((Some((value, sequence)), sequence));
        let nothing = Some((register, last));
        match self {
            Self::Get(seen) => found(seen, (register, last), sequences),
            Self::Put(value, sequence, replaced) if replaced == register.is_some() => {
                write(value, sequence)
            }
            Self::Batched(value, sequence) => write(value, sequence),
            Self::Insert(value, Some(sequence)) if register.is_none() => write(value, sequence),
            Self::Insert(_, None) if register.is_some() => nothing,
            Self::Update(value, Some((sequence, true))) if register.is_some() => {
                write(value, sequence)
            }
            Self::Update(_, None) if register.is_none() => nothing,
            Self::Delete(Some(sequence)) if register.is_some() => {
                (sequence > last).then_some((None, sequence))
            }
            Self::Delete(None) if register.is_none() => nothing,
            Self::Swap(expected, value, made) => {
                match (register.is_some_and(|(held, _)| held == expected), made) {
                    (true, Some(sequence)) => write(value, sequence),
                    (false, None) => nothing,
                    _ => None,
                }
            }
            Self::Modify(seen, value, sequence) => {
                let (_, last) = found(seen, (register, last), sequences)?;
                (sequence > last).then_some((Some((value, sequence)), sequence))
            }
            Self::Shown(seen) if seen == register.map(|(value, _)| value) => nothing,
            Self::Answered(wish, false) if wish.made(register).is_none() => nothing,
            Self::Answered(wish, true) | Self::CutOff(wish) => {
                wish.made(register).map(|register| (register, last))
            }
            _ => None,
        }
    }
}

/// States of one search. A history with too many calls that were cut off cannot be judged.
const STATES_MAX: usize = 20_000_000;

/// True if the threads' events of one key (each in its order) have a linearization.
pub fn is_linearizable(threads: &[Vec<Event>], sequences: Sequences) -> bool {
    let mut seen = HashSet::new();
    let mut open = vec![(vec![0; threads.len()], None, 0)];
    while let Some((done, register, last)) = open.pop() {
        let next: Vec<Option<&Event>> =
            threads.iter().zip(&done).map(|(events, done)| events.get(*done)).collect();
        let Some(first_end) = next.iter().flatten().map(|event| event.end).min() else {
            return true;
        };
        for (thread, event) in next.iter().enumerate() {
            let Some(event) = event.filter(|event| event.begin < first_end) else { continue };
            let never = matches!(event.call, Call::CutOff(_)).then_some((register, last));
            let made = event.call.step((register, last), sequences);
            for (register, last) in never.into_iter().chain(made) {
                let mut done = done.clone();
                done[thread] += 1;
                assert!(seen.len() < STATES_MAX, "too many calls were cut off to find an order");
                if seen.insert((done.clone(), register, last)) {
                    open.push((done, register, last));
                }
            }
        }
    }
    false
}

fn value_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map(u64::from_le_bytes).unwrap_or_else(|_| panic!("{bytes:?} is torn"))
}

/// One thread that calls an engine at random and records the answers.
#[derive(Debug)]
pub struct Client<'a> {
    /// Gives the moments of all threads' calls.
    pub clock: &'a AtomicU64,
    /// Keys are numbered from 0.
    pub keys: usize,
    /// The share of batches of several keys, one call in so many; 0 for none.
    pub batch_in: usize,
    /// Its number: no other thread has it.
    thread: u64,
    rng: Rng,
    calls: u64,
    /// A value that it has seen.
    seen: u64,
}

impl<'a> Client<'a> {
    /// One that draws its calls from `seed`.
    pub fn new(seed: u64, thread: u64, keys: usize, clock: &'a AtomicU64) -> Self {
        Self { clock, keys, batch_in: 0, thread, rng: Rng::new(seed), calls: 0, seen: 0 }
    }

    /// The name of a key.
    pub fn key(number: usize) -> Vec<u8> {
        key(number)
    }

    fn fresh(&mut self) -> u64 {
        self.calls += 1;
        self.thread << 32 | self.calls
    }

    /// Makes one call: its events, and the error if there was no answer. A write that was cut off ends at `u64::MAX`,
    /// until the caller sets its real end.
    pub fn call(&mut self, engine: &dyn StorageEngine) -> (Vec<Event>, Option<Error>) {
        if self.rng.one_in(4) {
            std::thread::yield_now();
        }
        if self.batch_in > 0 && self.rng.one_in(self.batch_in) {
            return self.apply(engine);
        }
        let number = self.rng.below(self.keys);
        let begin = self.clock.fetch_add(1, Ordering::SeqCst);
        let (wish, answer) = self.one(engine, &key(number));
        let end = self.clock.fetch_add(1, Ordering::SeqCst);
        let event = |end, call| Event { key: number, begin, end, call };
        match answer {
            Ok(call) => (vec![event(end, call)], None),
            Err(error) => {
                let cut_off = wish.map(|wish| event(u64::MAX, Call::CutOff(wish)));
                (cut_off.into_iter().collect(), Some(error))
            }
        }
    }

    /// One random call: its write, if it is one, and the answer.
    fn one(&mut self, engine: &dyn StorageEngine, key: &[u8]) -> (Option<Wish>, Result<Call>) {
        let options: WriteOptions = if self.rng.one_in(2) { WAIT } else { EARLY };
        let kind = self.rng.below(8);
        let fresh = self.fresh();
        let bytes = fresh.to_le_bytes();
        let sequence = |outcome: Outcome| outcome.written().map(|made| made.sequence);
        match kind {
            0 => {
                let answer = engine.put(key, &bytes, &options).map(|outcome| {
                    let made = super::probe::written(outcome);
                    Call::Put(fresh, made.sequence, made.replaced)
                });
                (Some(Wish::Put(fresh)), answer)
            }
            1 => {
                let answer = engine.insert(key, &bytes, &options);
                (Some(Wish::Insert(fresh)), answer.map(|it| Call::Insert(fresh, sequence(it))))
            }
            2 => {
                let answer = engine.update(key, &bytes, &options).map(|outcome| {
                    let made = outcome.written();
                    Call::Update(fresh, made.map(|made| (made.sequence, made.replaced)))
                });
                (Some(Wish::Update(fresh)), answer)
            }
            3 => {
                let answer = engine.delete(key, &options);
                (Some(Wish::Delete), answer.map(|it| Call::Delete(sequence(it))))
            }
            4 => {
                let expected = self.seen;
                let old = expected.to_le_bytes();
                let answer = engine.compare_and_set(key, Expected::Value(&old), &bytes, &options);
                let wish = Wish::Swap(expected, fresh);
                (Some(wish), answer.map(|it| Call::Swap(expected, fresh, sequence(it))))
            }
            5 => {
                let mut shown = None;
                let answer = engine.modify(key, &options, &mut |record| {
                    shown = record.map(|it| (value_of(&it.value.to_cow()), it.sequence));
                    Mutation::Put { value: bytes.to_vec(), expires_at: None }
                });
                let made = |it| Call::Modify(shown, fresh, super::probe::written(it).sequence);
                (Some(Wish::Put(fresh)), answer.map(made))
            }
            _ => (None, self.read(engine, key)),
        }
    }

    fn read(&mut self, engine: &dyn StorageEngine, key: &[u8]) -> Result<Call> {
        let visibility = if self.rng.one_in(2) { Visibility::Early } else { Visibility::Durable };
        let mut register = None;
        engine.get_with(key, visibility, &mut |record| {
            register = Some((value_of(&record.value.to_cow()), record.sequence));
        })?;
        self.seen = register.map_or(self.seen, |(value, _)| value);
        Ok(Call::Get(register))
    }

    /// Writes several keys at once.
    fn apply(&mut self, engine: &dyn StorageEngine) -> (Vec<Event>, Option<Error>) {
        let mut batch = Batch::new();
        let wishes: Vec<(usize, u64)> =
            (0..self.keys).map(|number| (number, self.fresh())).collect();
        for (number, value) in &wishes {
            batch.put(&key(*number), &value.to_le_bytes());
        }
        let begin = self.clock.fetch_add(1, Ordering::SeqCst);
        let answer = engine.apply(&batch, &WAIT);
        let end = self.clock.fetch_add(1, Ordering::SeqCst);
        let event = |(key, value): (usize, u64)| match &answer {
            Ok(made) => Event { key, begin, end, call: Call::Batched(value, made.sequence) },
            Err(_) => Event { key, begin, end: u64::MAX, call: Call::CutOff(Wish::Put(value)) },
        };
        (wishes.into_iter().map(event).collect(), answer.err())
    }
}

/// The history of one thread.
fn run_thread(engine: &dyn StorageEngine, mut client: Client<'_>) -> Vec<Event> {
    let mut events = Vec::new();
    for _ in 0..CALLS {
        let (made, error) = client.call(engine);
        assert!(error.is_none(), "{error:?}");
        events.extend(made);
    }
    events
}

const CALLS: u64 = 60;
const KEYS: usize = 2;

pub(super) fn concurrent_histories_are_linearizable(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    for round in 0..fixture.scale.operations as u64 / 40 {
        let clock = AtomicU64::new(0);
        let threads = 2 + round % 3;
        let histories: Vec<Vec<Event>> = std::thread::scope(|scope| {
            let clock = &clock;
            let seed = fixture.scale.seed + round * 100;
            let threads: Vec<_> = (0..threads)
                .map(|thread| {
                    let client = Client::new(seed + thread, thread, KEYS, clock);
                    scope.spawn(move || run_thread(engine, client))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for number in 0..KEYS {
            let of_key: Vec<Vec<Event>> = histories
                .iter()
                .map(|events| events.iter().filter(|event| event.key == number).copied().collect())
                .collect();
            assert!(
                is_linearizable(&of_key, Sequences::Kept),
                "round {round}: the history of a key has no linearization: {of_key:#?}"
            );
        }
        for number in 0..KEYS {
            let _outcome = engine.delete(&key(number), &WAIT).unwrap();
        }
        engine.sync().unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_linearizable(threads: &[Vec<Event>]) -> bool {
        super::is_linearizable(threads, Sequences::Kept)
    }

    fn event(begin: u64, end: u64, call: Call) -> Event {
        Event { key: 0, begin, end, call }
    }

    #[test]
    fn overlapping_calls_may_come_in_either_order() {
        let write = event(0, 5, Call::Put(7, 1, false));
        for seen in [None, Some((7, 1))] {
            assert!(is_linearizable(&[vec![write], vec![event(1, 4, Call::Get(seen))]]));
        }
    }

    #[test]
    fn what_is_shown_without_a_sequence_is_judged_by_its_value() {
        let write = event(0, 1, Call::Answered(Wish::Put(7), true));
        let swap = event(2, 3, Call::Answered(Wish::Swap(7, 8), true));
        let lost = event(4, u64::MAX, Call::CutOff(Wish::Put(9)));
        let read = |seen| event(5, 6, Call::Shown(seen));
        for (seen, is_right) in [(Some(8), true), (Some(9), true), (Some(7), false), (None, false)]
        {
            let threads = [vec![write, swap], vec![lost], vec![read(seen)]];
            assert_eq!(is_linearizable(&threads), is_right, "{seen:?}");
        }
        let refused = event(4, 5, Call::Answered(Wish::Swap(8, 9), false));
        assert!(!is_linearizable(&[vec![write, swap, refused]]));
    }

    #[test]
    fn a_stale_read_has_no_place() {
        let write = event(0, 1, Call::Put(7, 1, false));
        assert!(!is_linearizable(&[vec![write], vec![event(2, 3, Call::Get(None))]]));
        // New, then old again, within one long write.
        let write = event(0, 9, Call::Put(7, 1, false));
        let reads = vec![event(1, 2, Call::Get(Some((7, 1)))), event(3, 4, Call::Get(None))];
        assert!(!is_linearizable(&[vec![write], reads]));
    }

    #[test]
    fn a_repeated_sequence_has_no_place() {
        let writes = vec![event(0, 1, Call::Put(7, 1, false)), event(2, 3, Call::Put(8, 1, true))];
        assert!(!is_linearizable(&[writes]));
    }

    #[test]
    fn what_was_cut_off_was_made_or_not() {
        let before = vec![event(0, 1, Call::Put(7, 1, false))];
        let cut_off = vec![event(2, 9, Call::CutOff(Wish::Put(8)))];
        let history = |reads| [before.clone(), cut_off.clone(), reads];
        let (old, new) = (Call::Get(Some((7, 1))), Call::Get(Some((8, 5))));
        for seen in [old, new] {
            assert!(is_linearizable(&history(vec![event(10, 11, seen)])));
        }
        // A write that is known not to be made is not made later, nor is one undone.
        let reads = |first, second| vec![event(10, 11, first), event(12, 13, second)];
        assert!(!is_linearizable(&history(reads(old, new))));
        assert!(!is_linearizable(&history(reads(new, old))));
        assert!(!is_linearizable(&history(reads(new, Call::Get(Some((8, 6)))))), "renewed");
        let renewed = history(reads(new, Call::Get(Some((8, 6)))));
        assert!(super::is_linearizable(&renewed, Sequences::Renewed));
    }
}
