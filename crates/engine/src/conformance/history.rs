//! Concurrent histories, checked for linearizability.
//!
//! # The problem
//!
//! Several threads write and read a few keys. Each call takes a while, so calls overlap, and many
//! answers are right. The history is right if every call can be given one moment between its begin
//! and its end so that the answers are those of one thread doing the calls in the order of these
//! moments. Keys are independent, so each key's history is judged alone.
//!
//! # The picture
//!
//! Wing and Gong's search: from a state, try each thread's next call that no other call's end
//! precedes; if the register gives the same answer, go on from there. As each thread does one call
//! after the other, "what has been done" is one index per thread, and (indices, register) is
//! remembered so that nothing is searched twice.
//!
//! # Invariants
//!
//! - A call that ended before another began comes before it.
//! - The register is (value, last sequence); every write's sequence is greater than the last, and
//!   a record shows the sequence of its write.

use super::Factory;
use super::probe::{EARLY, WAIT, key, look};
use super::rng::Rng;
use crate::{Engine, Expected, Mutation, Outcome, Visibility, WriteOptions};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// A record as (value, sequence).
type Register = Option<(u64, u64)>;

#[derive(Debug, Clone, Copy)]
enum Call {
    Get(Register),
    /// The value, the sequence, whether it replaced.
    Put(u64, u64, bool),
    /// The value, and the sequence if it was written.
    Insert(u64, Option<u64>),
    Update(u64, Option<(u64, bool)>),
    Delete(Option<u64>),
    /// Expected value, new value, sequence if it matched.
    Swap(u64, u64, Option<u64>),
    /// What it was shown, the new value, the sequence.
    Modify(Register, u64, u64),
}

#[derive(Debug, Clone, Copy)]
struct Event {
    key: usize,
    begin: u64,
    end: u64,
    call: Call,
}

impl Call {
    /// What the register is after the call, if it can have been made on it.
    fn step(self, register: Register, last: u64) -> Option<(Register, u64)> {
        let write =
            |value, sequence| (sequence > last).then_some((Some((value, sequence)), sequence));
        let nothing = Some((register, last));
        match self {
            Self::Get(seen) if seen == register => nothing,
            Self::Put(value, sequence, replaced) if replaced == register.is_some() => {
                write(value, sequence)
            }
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
            Self::Modify(seen, value, sequence) if seen == register => write(value, sequence),
            _ => None,
        }
    }
}

/// True if the threads' events (each in its order) have a linearization.
fn is_linearizable(threads: &[Vec<Event>]) -> bool {
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
            if let Some((register, last)) = event.call.step(register, last) {
                let mut done = done.clone();
                done[thread] += 1;
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

/// Makes one call at random.
fn call(engine: &dyn Engine, rng: &mut Rng, key: &[u8], fresh: u64, seen: &mut u64) -> Call {
    let options: WriteOptions = if rng.one_in(2) { WAIT } else { EARLY };
    let bytes = fresh.to_le_bytes();
    let sequence = |outcome: Outcome| outcome.written().map(|made| made.sequence);
    match rng.below(8) {
        0 => {
            let outcome = engine.put(key, &bytes, &options).unwrap();
            let made = super::probe::written(outcome);
            Call::Put(fresh, made.sequence, made.replaced)
        }
        1 => Call::Insert(fresh, sequence(engine.insert(key, &bytes, &options).unwrap())),
        2 => {
            let made = engine.update(key, &bytes, &options).unwrap().written();
            Call::Update(fresh, made.map(|made| (made.sequence, made.replaced)))
        }
        3 => Call::Delete(sequence(engine.delete(key, &options).unwrap())),
        4 => {
            let expected = *seen;
            let old = expected.to_le_bytes();
            let outcome =
                engine.compare_and_set(key, Expected::Value(&old), &bytes, &options).unwrap();
            Call::Swap(expected, fresh, sequence(outcome))
        }
        5 => {
            let mut shown = None;
            let outcome = engine.modify(key, &options, &mut |record| {
                shown = record.map(|record| (value_of(&record.value.to_cow()), record.sequence));
                Mutation::Put { value: bytes.to_vec(), expires_at: None }
            });
            Call::Modify(shown, fresh, super::probe::written(outcome.unwrap()).sequence)
        }
        _ => {
            let visibility = if rng.one_in(2) { Visibility::Early } else { Visibility::Durable };
            let found = look(engine, key, visibility).0;
            let register = found.map(|found| (value_of(&found.value), found.sequence));
            *seen = register.map_or(*seen, |(value, _)| value);
            Call::Get(register)
        }
    }
}

/// The history of one thread.
fn run_thread(engine: &dyn Engine, clock: &AtomicU64, rng: &mut Rng, thread: u64) -> Vec<Event> {
    let mut seen = 0;
    (0..CALLS)
        .map(|number| {
            let key_number = rng.below(KEYS);
            if rng.one_in(4) {
                std::thread::yield_now();
            }
            let fresh = thread << 32 | (number + 1);
            let begin = clock.fetch_add(1, Ordering::SeqCst);
            let call = call(engine, rng, &key(key_number), fresh, &mut seen);
            let end = clock.fetch_add(1, Ordering::SeqCst);
            Event { key: key_number, begin, end, call }
        })
        .collect()
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
                    scope.spawn(move || {
                        run_thread(engine, clock, &mut Rng::new(seed + thread), thread)
                    })
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
                is_linearizable(&of_key),
                "round {round}: the history of a key has no linearization: {of_key:#?}"
            );
        }
        for number in 0..KEYS {
            engine.delete(&key(number), &WAIT).unwrap();
        }
        engine.sync().unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
