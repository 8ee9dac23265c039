//! Power cuts at every fence while a doubt is ended.

use super::*;
use crate::leaf::Head;
use crate::recovery::open::{Options, create_options};
use coreplane_engine::{Batch, Visibility, WriteOptions};
use coreplane_pmem::media::sim::{
    Fault, History, Model, Run, SimOptions, Standing, Subject, explore,
};
use coreplane_pmem::{MediaChoice, Pool, Space};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

const KEYS: u8 = 90;

#[derive(Debug, Clone)]
enum Op {
    Create,
    /// More than one put is a batch. Each value names its round.
    Put(Vec<u8>, u8),
    /// The records of a leaf with these keys are lost, as far as the store knows.
    Lose(Vec<u8>),
    /// The doubt is ended: none of the doubtful records is kept, or all are.
    Settle,
}

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    OfRound(u8),
    InDoubt,
}

fn key(number: u8) -> Vec<u8> {
    format!("key {number:03}").into_bytes()
}

fn value(number: u8, round: u8) -> Vec<u8> {
    // Some values have pages of their own.
    let len = if number.is_multiple_of(11) { 3000 } else { 60 + usize::from(number) };
    [vec![round], vec![number; len]].concat()
}

/// Puts the leaf in doubt, as if some of its records were damaged and the rest were older than those.
fn lose(store: &Store, key: &[u8]) -> Result<()> {
    let guard = epoch::pin();
    let locked = store.lock_to_write(key, 0)?;
    let head = Head { is_lost: true, ..store.head_of(&guard, locked.page)? };
    let mut contents = store.records_of(&guard, &locked)?;
    contents.kept.iter_mut().for_each(|item| item.header.doubtful = true);
    store.rewrite_as(&guard, locked, (key, 0, 0), (head, contents))?;
    // Where a fence is a sync, the superseded mark is not fenced yet.
    store.fence()
}

fn put(store: &Store, numbers: &[u8], round: u8) -> Result<()> {
    let options = WriteOptions::default();
    if let [only] = numbers {
        return store.put(&key(*only), &value(*only, round), &options).map(drop);
    }
    let mut batch = Batch::new();
    for number in numbers {
        batch.put(&key(*number), &value(*number, round));
    }
    store.apply(&batch, &options).map(drop)
}

struct Story {
    doubtful: Doubtful,
    /// The numbers of the fences of the settling of a run.
    settling: Mutex<Range<u64>>,
}

impl Story {
    fn of(doubtful: Doubtful) -> Self {
        Self { doubtful, settling: Mutex::default() }
    }
}

impl Subject for Story {
    type Op = Op;
    type Store = Option<Store>;
    type Contents = Option<Vec<State>>;

    fn work(&self, run: &Run<'_, Op>) {
        let create = create_options(run.space().len(), run.space().page_size(), MediaChoice::Auto);
        let options = Options { background: false, ..Options::default() };
        let store = run.acknowledged(Op::Create, || {
            let pool = Pool::simulated_create(Arc::clone(run.space()), &create).expect("a pool");
            Store::format(pool, &options).expect("a store")
        });
        let write = |numbers: Vec<u8>, round: u8| {
            let op = Op::Put(numbers.clone(), round);
            run.acknowledged(op, || put(&store, &numbers, round).expect("a write"));
        };
        (0..KEYS).step_by(15).for_each(|from| write((from..from + 15).collect(), 1));
        let leaves = store.inner.leaves();
        assert!(leaves.len() > 2, "{} leaves", leaves.len());
        // All but the last.
        for pair in leaves.windows(2) {
            let (least, bound) = (&*pair[0].0, &*pair[1].0);
            let is_in = |number: &u8| *key(*number) >= *least && *key(*number) < *bound;
            let op = Op::Lose((0..KEYS).filter(is_in).collect());
            run.acknowledged(op, || lose(&store, least).expect("a leaf"));
        }
        (0..KEYS).step_by(8).for_each(|number| write(vec![number], 2));
        write((0..KEYS).step_by(7).collect(), 3);
        let (_, first) = run.space().flushes_and_fences();
        let all = KeyRange { start: Vec::new(), end: None };
        run.acknowledged(Op::Settle, || store.settle(&all, self.doubtful).expect("settle"));
        *self.settling.lock().expect("nobody has it") = first..run.space().flushes_and_fences().1;
        write(vec![1], 4);
    }

    fn recover(&self, space: &Arc<Space>) -> std::result::Result<Option<Store>, String> {
        let options = Options { background: false, ..Options::default() };
        let pool = match Pool::simulated_open(Arc::clone(space)) {
            Ok(pool) => pool,
            // The cut came before the creation was acknowledged.
            Err(_) => return Ok(None),
        };
        match Store::open(pool, &options, &|_| {}) {
            Ok(store) => Ok(Some(store)),
            Err(Error::Unusable(_) | Error::NotAPool(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn contents(&self, store: &Option<Store>) -> std::result::Result<Self::Contents, String> {
        let Some(store) = store else { return Ok(None) };
        let state = |number: u8| {
            let mut found = Vec::new();
            let take = &mut |record: coreplane_engine::Record<'_>| found = record.value.to_vec();
            match store.get_with(&key(number), Visibility::Durable, take) {
                Ok(it) if !it.hit => Ok(State::Absent),
                Ok(_) if found == value(number, found[0]) => Ok(State::OfRound(found[0])),
                Ok(_) => Err(format!("{number} is torn")),
                Err(Error::Corrupt { .. }) => Ok(State::InDoubt),
                Err(error) => Err(error.to_string()),
            }
        };
        let states = (0..KEYS).map(state).collect::<std::result::Result<Vec<_>, _>>()?;
        let live = states.iter().filter(|it| matches!(it, State::OfRound(_))).count() as u64;
        let is_sound = store.lost_ranges().map_err(|error| error.to_string())?.is_empty();
        if is_sound && store.len() != live {
            return Err(format!("{live} records, {} are counted", store.len()));
        }
        Ok(Some(states))
    }

    fn check(
        &self,
        states: &Self::Contents,
        history: &History<'_, Op>,
    ) -> std::result::Result<(), String> {
        // The possible states of each key.
        let mut allowed: BTreeMap<u8, Vec<State>> =
            (0..KEYS).map(|number| (number, vec![State::Absent])).collect();
        for (op, standing) in history.operations() {
            let change = |number: &u8, state: &State| match op {
                Op::Put(numbers, round) if numbers.contains(number) => State::OfRound(*round),
                Op::Lose(numbers) if numbers.contains(number) => State::InDoubt,
                Op::Settle if *state == State::InDoubt => match self.doubtful {
                    Doubtful::Dropped => State::Absent,
                    // All keys had been put once before they were lost.
                    Doubtful::Kept => State::OfRound(1),
                },
                _ => *state,
            };
            for (number, states) in &mut allowed {
                let before = states.clone();
                states.iter_mut().for_each(|state| *state = change(number, state));
                if standing != Standing::Acknowledged {
                    states.extend(before);
                }
            }
        }
        let Some(states) = states else {
            let is_lost = history.acknowledged().next().is_some();
            return if is_lost { Err("the store is lost".to_owned()) } else { Ok(()) };
        };
        let wrong = allowed.iter().find(|it| !it.1.contains(&states[usize::from(*it.0)]));
        wrong.map_or(Ok(()), |(number, allowed)| {
            let state = states[usize::from(*number)];
            Err(format!("{number} is {state:?}, not one of {allowed:?}"))
        })
    }
}

fn options(seed: u64) -> SimOptions {
    SimOptions {
        len: 256 << 10,
        max_len: 256 << 10,
        page_size: 4096,
        seed,
        images_per_cut: 6,
        recovery_cut_in: 30,
        images_per_recovery_cut: 2,
        checkers: 2,
        model: if seed % 4 == 3 { Model::File } else { Model::X86 },
        ..SimOptions::default()
    }
}

#[test]
fn what_is_settled_is_settled_after_a_power_cut_and_what_is_not_stays_in_doubt() {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    for seed in 2..=if is_full { 12 } else { 3 } {
        for doubtful in [Doubtful::Dropped, Doubtful::Kept] {
            let report = explore(&options(seed), &Story::of(doubtful));
            let messages: Vec<_> = report.violations.iter().map(|it| &it.message).collect();
            assert!(messages.is_empty(), "seed {seed}, {doubtful:?}: {messages:.300?}");
            assert!(report.images > 200, "{} images", report.images);
        }
    }
}

#[test]
fn a_fence_of_a_settling_that_is_missing_is_found() {
    for doubtful in [Doubtful::Dropped, Doubtful::Kept] {
        let images_per_cut = 20;
        let sim = SimOptions {
            recovery_cut_in: 0,
            max_violations: 1,
            shrink: false,
            images_per_cut,
            ..options(2)
        };
        let whole = Story::of(doubtful);
        assert!(explore(&sim, &whole).violations.is_empty());
        let fences = whole.settling.into_inner().expect("a run that has ended");
        let is_caught = |number: &u64| {
            let sim = SimOptions { fault: Some(Fault::DropFence(*number)), ..sim.clone() };
            !explore(&sim, &Story::of(doubtful)).violations.is_empty()
        };
        // If a missing fence is followed by another before any acknowledgement, the flushes count there.
        let caught = fences.clone().filter(is_caught).count();
        assert!(caught > 1, "{doubtful:?}: {caught} of {fences:?}");
    }
}
