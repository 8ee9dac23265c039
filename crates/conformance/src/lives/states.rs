//! The possible states of a store, and the comparison with the actual one.

use super::story::{Changes, Op, State, Value};
use coreplane_engine::UnixMillis;
use std::collections::{BTreeMap, BTreeSet};

/// The possible states of a store.
#[derive(Debug, Clone)]
pub(super) struct States {
    /// The possible states of each key, from the last that is certainly durable to the newest.
    states: BTreeMap<u16, Vec<State>>,
    /// Keys that were absent after a cut, for one of several reasons: it is unknown which of their states is the
    /// newest.
    unclear: BTreeSet<u16>,
    /// Batches that may be lost, as a whole: for each key, the state that the batch has made, by its number.
    batches: Vec<Vec<(u16, usize)>>,
}

impl States {
    pub(super) fn empty(keys: u16) -> Self {
        let states = (0..keys).map(|number| (number, vec![None])).collect();
        Self { states, unclear: BTreeSet::new(), batches: Vec::new() }
    }

    /// Applies an operation that has returned.
    pub(super) fn acknowledge(&mut self, op: &Op, now: UnixMillis) {
        match op {
            Op::Write(changes) => {
                for (number, state) in changes {
                    self.states.insert(*number, vec![state.clone()]);
                    self.unclear.remove(number);
                    // Its effect on earlier batches is unknown.
                    self.batches.iter_mut().for_each(|batch| batch.retain(|it| it.0 != *number));
                }
            }
            Op::Relaxed(changes) => {
                let mut batch = Vec::new();
                for (number, state) in changes {
                    let states = self.states.entry(*number).or_default();
                    batch.push((*number, states.len()));
                    states.push(state.clone());
                    self.unclear.remove(number);
                }
                self.batches.push(batch);
            }
            Op::Sync | Op::Close => self.make_all_durable(),
            Op::Clear => {
                self.states.values_mut().for_each(|it| *it = vec![None]);
                self.unclear.clear();
                self.batches.clear();
            }
            Op::Look(number) => {
                let newest = self.states[number].last().and_then(Option::as_ref);
                let told = newest.and_then(|it| it.expires_at).filter(|at| *at <= now);
                told.into_iter().for_each(|told| self.tell(told));
            }
            // It is not known which of the states of a key it has met.
            Op::Sweep => {}
            Op::Wait(_) => {}
        }
    }

    /// A caller that was told that a record has expired is not told otherwise later; nor about any other record that
    /// expires no later.
    fn tell(&mut self, told: UnixMillis) {
        for state in self.states.values_mut().flatten() {
            state.take_if(|it| it.expires_at.is_some_and(|at| at <= told));
        }
    }

    pub(super) fn make_all_durable(&mut self) {
        let clear = self.states.iter_mut().filter(|it| !self.unclear.contains(it.0));
        clear.for_each(|(_, states)| drop(states.drain(..states.len() - 1)));
        self.batches.clear();
    }

    /// Checks a read, by the thread that has made all changes.
    pub(super) fn look(&self, number: u16, found: Option<&Vec<u8>>, now: UnixMillis, what: &str) {
        if self.unclear.contains(&number) {
            return;
        }
        let newest = self.states[&number].last().and_then(Option::as_ref);
        let newest = newest.filter(|it| it.expires_at.is_none_or(|at| at > now));
        // By a clock that was set back since, a caller may have been told that it has expired.
        let may_be_told = newest.is_none_or(|it| it.expires_at.is_some());
        let is_right = found == newest.map(|it| &it.bytes);
        assert!(is_right || found.is_none() && may_be_told, "{what}: {number}: {newest:.100?}");
    }

    /// Leaves the states that agree with what was `found` of each key after a restart. The changes `in_flight` may have
    /// been made.
    pub(super) fn narrow(&mut self, found: &[Option<Vec<u8>>], in_flight: &Changes, what: &str) {
        self.check_batches(found, in_flight, what);
        let mut made = Vec::new();
        for (number, states) in &mut self.states {
            let found = &found[usize::from(*number)];
            let mut left: Vec<State> =
                states.iter().filter(|it| is_shown(it, found)).cloned().collect();
            let new = in_flight.get(number).filter(|it| is_shown(it, found));
            if left.is_empty() && new.is_some() {
                made.push(*number);
            }
            left.extend(new.cloned());
            left.dedup();
            let len = found.as_ref().map(Vec::len);
            assert!(
                !left.is_empty(),
                "{what}: key {number} has {len:?} bytes, not one of {states:.300?}"
            );
            *states = left;
        }
        // All of the operation or nothing.
        if !made.is_empty() {
            for (number, state) in in_flight {
                let states = self.states.get_mut(number).expect("a key");
                assert!(states.contains(state), "{what}: {number} was not made with {made:?}");
                *states = vec![state.clone()];
            }
        }
        let several = self.states.iter().filter(|it| it.1.len() > 1);
        self.unclear = several.map(|it| *it.0).collect();
    }

    /// Of a batch that may be lost all keys are as it has made them, or later, or none is.
    fn check_batches(&mut self, found: &[Option<Vec<u8>>], in_flight: &Changes, what: &str) {
        for mut batch in std::mem::take(&mut self.batches) {
            // The operation in flight may have come behind any of them.
            batch.retain(|it| !in_flight.contains_key(&it.0));
            let (mut made, mut lost) = (Vec::new(), Vec::new());
            for (number, at) in batch {
                let found = &found[usize::from(number)];
                let (before, after) = self.states[&number].split_at(at);
                let is_one_of = |states: &[State]| states.iter().any(|it| is_shown(it, found));
                match (is_one_of(before), is_one_of(after)) {
                    (true, false) => lost.push(number),
                    (false, true) => made.push(number),
                    _ => {}
                }
            }
            assert!(made.is_empty() || lost.is_empty(), "{what}: {made:?} without {lost:?}");
        }
    }

    /// The keys that certainly exist, if they have not expired.
    pub(super) fn existing(&self) -> impl Iterator<Item = u16> {
        let exist = self.states.iter().filter(|(_, states)| states.iter().all(Option::is_some));
        exist.map(|(number, _)| *number)
    }
}

/// Whether a key in this state may be shown so. A caller, for example a split, may have been told that an expired
/// record is gone, by a clock that will be set back.
fn is_shown(state: &State, found: &Option<Vec<u8>>) -> bool {
    match (state, found) {
        (None, found) => found.is_none(),
        (Some(Value { bytes, .. }), Some(found)) => bytes == found,
        (Some(Value { expires_at, .. }), None) => expires_at.is_some(),
    }
}
