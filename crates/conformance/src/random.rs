//! Random operations on few keys, against an oracle; a failure is shrunk.
//!
//! A run is a list of steps drawn from a seed. Steps hold no sequences, only a rule to choose one from the state of
//! the oracle, so any part of a list is a run of its own. When a run fails, halves, quarters and so on are left out
//! as long as it still fails; the remaining steps are shown.

mod steps;

use super::oracle::{Cell, Oracle};
use super::probe::{self, FAR, PAST, key};
use super::rng::Rng;
use super::{Factory, Fixture, Restart, message};
use coreplane_engine::{Batch, Expected, Horizon, Mutation, Outcome, UnixMillis, WriteOptions};
use std::panic::{AssertUnwindSafe, catch_unwind};
use steps::{Act, Compare, Given, KEYS, Step, Ttl, draw_step};

/// A run in progress.
struct Run {
    fixture: Fixture,
    oracle: Oracle,
    early: Horizon,
}

impl Run {
    fn new(fixture: Fixture) -> Self {
        fixture.engine.hold_tombstones(0).unwrap();
        let mut run = Self { fixture, oracle: Oracle::default(), early: Horizon::new() };
        run.look_at_clock();
        run
    }

    fn look_at_clock(&mut self) {
        if let Some(clock) = &self.fixture.clock {
            self.oracle.now = clock.now();
        }
    }

    /// The time of a ttl; without a clock that can be set, only "soon" is left out.
    fn time(&self, ttl: Ttl) -> Option<UnixMillis> {
        match (ttl, &self.fixture.clock) {
            (Ttl::None, _) | (Ttl::Soon(_), None) => None,
            (Ttl::Past, _) => Some(PAST),
            (Ttl::Far, _) => Some(FAR),
            (Ttl::Soon(millis), Some(clock)) => Some(UnixMillis(clock.now().0 + millis)),
        }
    }

    fn commit(&self) {
        self.fixture.engine.commit(&self.early).unwrap();
    }

    /// Does a step; none if the fixture cannot, and the run ends.
    fn step(mut self, step: &Step) -> Option<Self> {
        let engine = &*self.fixture.engine;
        match step {
            Step::Write { key: number, act, value, ttl, given, options } => {
                let options = WriteOptions { expires_at: self.time(*ttl), ..*options };
                self.write(&key(*number), act, value, *given, options);
            }
            Step::Batch { changes, options } => self.batch(changes, options),
            Step::Get(number, visibility) => {
                self.commit();
                let key = key(*number);
                let found = probe::look(engine, &key, *visibility).0;
                let found = found.map(|seen| (Some(seen.value), seen.sequence, seen.expires_at));
                let due = self.oracle.live(&key);
                let due = due.map(|cell| (cell.value.clone(), cell.sequence, cell.expires_at));
                assert!(found == due, "get shows {found:?}, not {due:?}");
            }
            Step::Check => {
                self.commit();
                self.oracle.check(engine);
            }
            Step::Changes => {
                let middle = self.oracle.cells.values().map(|cell| cell.sequence).min();
                self.oracle.check_changes(engine, 0);
                self.oracle.check_changes(engine, middle.unwrap_or(0));
            }
            Step::Advance(millis) => {
                if let Some(clock) = &self.fixture.clock {
                    clock.advance(*millis);
                }
                self.look_at_clock();
            }
            Step::Clear => {
                engine.clear().unwrap();
                self.oracle.cells.clear();
            }
            Step::Sync => {
                engine.sync().unwrap();
                assert!(engine.is_durable(&self.early).unwrap(), "not durable after sync");
                self.early.clear();
            }
            Step::Restart(how) => return self.restart(*how),
        }
        Some(self)
    }

    fn restart(mut self, how: Restart) -> Option<Self> {
        if self.fixture.reopen.is_none() {
            return Some(self);
        }
        if how == Restart::PowerCut {
            // So that it may lose nothing.
            self.fixture.engine.sync().unwrap();
        }
        self.early.clear();
        self.fixture = self.fixture.restart(how)?;
        self.fixture.engine.hold_tombstones(0).unwrap();
        self.oracle.forget();
        self.oracle.check(&*self.fixture.engine);
        Some(self)
    }

    fn write(
        &mut self,
        key: &[u8],
        act: &Act,
        value: &[u8],
        given: Given,
        mut options: WriteOptions,
    ) {
        let engine = &*self.fixture.engine;
        let cell = self.oracle.cells.get(key).cloned();
        let live = self.oracle.live(key).cloned();
        let held = cell.as_ref().map(|cell| cell.sequence);
        let exact = cell.as_ref().is_some_and(|cell| cell.exact);
        options.sequence = match (given, held) {
            (Given::None, _) => None,
            (Given::Beside(offset), Some(held)) if exact => {
                Some(held.saturating_add_signed(offset).max(1))
            }
            // A key that the oracle has forgotten may have a tombstone yet, of any sequence.
            (Given::Newest | Given::Beside(_), _) => Some(engine.advance_sequence().unwrap() + 2),
        };
        let (outcome, wanted) = self.act(key, act, value, live.as_ref(), &options);
        let outdated =
            matches!((options.sequence, held), (Some(given), Some(held)) if given <= held);
        self.early.include(outcome.ticket());
        let refused = !matches!(wanted, Wanted::Write(_));
        match (&outcome, wanted) {
            (Outcome::NotNewer(stored, _), _) if outdated => assert_eq!(Some(*stored), held),
            // Refused for two reasons at once: either may be reported.
            (other, _) if outdated && !refused => panic!("{other:?} for a sequence not newer"),
            (Outcome::Exists(_), Wanted::Exists)
            | (Outcome::Missing(_), Wanted::Missing)
            | (Outcome::Mismatch(_), Wanted::Mismatch)
            | (Outcome::Kept(_), Wanted::Kept) => {}
            (Outcome::Written(made), Wanted::Write(new)) => {
                assert_eq!(made.replaced, live.is_some(), "replaced, where there was {live:?}");
                assert!(held.is_none_or(|held| made.sequence > held), "{made:?} after {held:?}");
                if let Some(given) = options.sequence {
                    assert_eq!(made.sequence, given, "the given sequence");
                }
                let (value, expires_at) = new.map_or((None, None), |(v, at)| (Some(v), at));
                let cell = Cell { value, sequence: made.sequence, exact: true, expires_at };
                self.oracle.cells.insert(key.to_vec(), cell);
            }
            (other, wanted) => panic!("{other:?} where {wanted:?} was due; there was {cell:?}"),
        }
    }

    /// Does the act, and returns its expected result.
    fn act(
        &self,
        key: &[u8],
        act: &Act,
        value: &[u8],
        live: Option<&Cell>,
        options: &WriteOptions,
    ) -> (Outcome, Wanted) {
        let engine = &*self.fixture.engine;
        let new = Wanted::Write(Some((value.to_vec(), options.expires_at)));
        let (outcome, wanted) = match act {
            Act::Put => (engine.put(key, value, options), new),
            Act::Insert if live.is_some() => (engine.insert(key, value, options), Wanted::Exists),
            Act::Insert => (engine.insert(key, value, options), new),
            Act::Update if live.is_none() => (engine.update(key, value, options), Wanted::Missing),
            Act::Update => (engine.update(key, value, options), new),
            Act::Delete if live.is_none() && options.sequence.is_none() => {
                (engine.delete(key, options), Wanted::Missing)
            }
            Act::Delete => (engine.delete(key, options), Wanted::Write(None)),
            Act::CompareAndSet(compare) => {
                let old = live.and_then(|cell| cell.value.clone()).unwrap_or_default();
                let sequence = live.map_or(0, |cell| cell.sequence);
                let other = [&old[..], b"!"].concat();
                let (expected, matches) = match compare {
                    Compare::Absent => (Expected::Absent, live.is_none()),
                    Compare::Value => (Expected::Value(&old), live.is_some()),
                    Compare::WrongValue => (Expected::Value(&other), false),
                    Compare::Sequence => (Expected::Sequence(sequence), live.is_some()),
                    Compare::WrongSequence => (Expected::Sequence(sequence + 1), false),
                };
                let outcome = engine.compare_and_set(key, expected, value, options);
                (outcome, if matches { new } else { Wanted::Mismatch })
            }
            Act::Modify(kind) => {
                let (mutation, wanted) = modification(*kind, value, live, options);
                let mut shown = None;
                let outcome = engine.modify(key, options, &mut |record| {
                    shown = Some(record.map(|record| record.value.to_vec()));
                    mutation.clone()
                });
                if let Some(shown) = shown {
                    let due = live.and_then(|cell| cell.value.clone());
                    assert!(shown == due, "modify shows {shown:?}, not {due:?}");
                }
                (outcome, wanted)
            }
        };
        (outcome.unwrap(), wanted)
    }

    fn batch(&mut self, changes: &[(usize, Option<Vec<u8>>, Ttl)], options: &WriteOptions) {
        let mut batch = Batch::new();
        let mut after = self.oracle.clone();
        for (number, value, ttl) in changes {
            let key = key(*number);
            let expires_at = self.time(*ttl);
            let value = match value {
                Some(value) => {
                    batch.put_until(&key, value, expires_at);
                    Some(value.clone())
                }
                None => {
                    batch.delete(&key);
                    None
                }
            };
            // A delete without a record need leave no trace; a delete of a record leaves a tombstone.
            if value.is_some() || self.oracle.live(&key).is_some() {
                let cell = Cell { value, sequence: u64::MAX, exact: false, expires_at };
                after.cells.insert(key, cell);
            } else if let Some(before) = self.oracle.cells.get_mut(&key) {
                before.exact = false;
                after.cells.insert(key, before.clone());
            } else {
                after.cells.remove(&key);
            }
        }
        let engine = &*self.fixture.engine;
        let touched = changes.iter().any(|(number, ..)| self.oracle.live(&key(*number)).is_some());
        let made = engine.apply(&batch, options).unwrap();
        assert_eq!(made.replaced, touched, "replaced, of a batch");
        self.early.include(made.ticket);
        self.commit();
        let fresh: Vec<_> =
            after.cells.iter().filter(|(_, cell)| cell.sequence == u64::MAX).collect();
        for (key, cell) in fresh {
            let before = self.oracle.cells.get(key).map_or(0, |cell| cell.sequence);
            let mut cell = Cell { sequence: before + 1, exact: false, ..cell.clone() };
            // The changes of a batch may have one sequence or one each.
            if after.live(key).is_some() {
                let shown = probe::record(engine, key).map(|seen| seen.sequence);
                cell.sequence = shown.unwrap_or_else(|| panic!("a batch did not write {key:?}"));
                cell.exact = true;
                let fits = before < cell.sequence && cell.sequence <= made.sequence;
                assert!(fits, "sequence {} after {before}, in {made:?}", cell.sequence);
            }
            self.oracle.cells.insert(key.clone(), cell);
        }
        // A delete of an absent key may or may not leave a newer tombstone.
        for (number, ..) in changes {
            if let Some(cell) = self.oracle.cells.get_mut(&key(*number))
                && cell.value.is_none()
            {
                cell.exact = false;
            }
        }
    }
}

/// The expected result of a step.
#[derive(Debug)]
enum Wanted {
    /// A record (value and expiry), or a tombstone.
    Write(Option<(Vec<u8>, Option<UnixMillis>)>),
    Exists,
    Missing,
    Mismatch,
    Kept,
}

fn modification(
    kind: u8,
    value: &[u8],
    live: Option<&Cell>,
    options: &WriteOptions,
) -> (Mutation, Wanted) {
    let old = live.and_then(|cell| cell.value.clone());
    let expires_at = options.expires_at;
    match (kind, old) {
        (0, _) => (Mutation::Keep, Wanted::Kept),
        (1, Some(_)) => (Mutation::Delete, Wanted::Write(None)),
        (1, None) => (Mutation::Delete, Wanted::Kept),
        (2, Some(old)) => (Mutation::Expire(expires_at), Wanted::Write(Some((old, expires_at)))),
        (2, None) => (Mutation::Expire(expires_at), Wanted::Kept),
        _ => {
            let value = value.to_vec();
            (
                Mutation::Put { value: value.clone(), expires_at },
                Wanted::Write(Some((value, expires_at))),
            )
        }
    }
}

/// Runs `steps` on a fresh store.
fn run(factory: Factory<'_>, steps: &[Step]) {
    let mut run = Run::new(factory());
    for step in steps {
        match run.step(step) {
            Some(next) => run = next,
            None => return,
        }
    }
    run.fixture.engine.sync().unwrap();
    run.oracle.check(&*run.fixture.engine);
    let report = run.fixture.engine.verify(&mut |_| ()).unwrap();
    assert!(report.is_sound(), "{:?}", report.damages);
}

/// The message of a run that fails.
fn failure(factory: Factory<'_>, steps: &[Step]) -> Option<String> {
    let result = catch_unwind(AssertUnwindSafe(|| run(factory, steps)));
    result.err().map(|panic| message(panic.as_ref()))
}

/// Leaves out steps as long as the run still fails, with at most `budget` runs.
fn shrink(factory: Factory<'_>, mut steps: Vec<Step>, mut budget: usize) -> Vec<Step> {
    let mut width = steps.len() / 2;
    while width > 0 && budget > 0 {
        let mut place = 0;
        let mut shorter = false;
        while place < steps.len() && budget > 0 {
            budget -= 1;
            let end = (place + width).min(steps.len());
            let rest = [&steps[..place], &steps[end..]].concat();
            if failure(factory, &rest).is_some() {
                steps = rest;
                shorter = true;
            } else {
                place = end;
            }
        }
        if !shorter || width > steps.len() {
            width /= 2;
        }
    }
    steps
}

pub(super) fn random_operations_match_the_oracle(factory: Factory<'_>) {
    let scale = factory().scale;
    for round in 0..4 {
        let mut rng = Rng::new(scale.seed.wrapping_add(round));
        let largest = scale.bytes / (4 * KEYS);
        let steps: Vec<Step> =
            (0..scale.operations / 3).map(|_| draw_step(&mut rng, largest)).collect();
        if failure(factory, &steps).is_some() {
            let steps = shrink(factory, steps, 400);
            let list: Vec<String> = steps.iter().map(|step| format!("  {step:?}")).collect();
            let what = failure(factory, &steps).unwrap_or_else(|| "not again".to_owned());
            panic!("seed {}: {what}, after\n{}", scale.seed + round, list.join("\n"));
        }
    }
}
