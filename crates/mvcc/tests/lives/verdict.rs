//! The state of a pool, compared with its possible states.

use super::{Changes, Op, Pool, States, Value};
use coreplane_engine::{Engine, Repairable, Replicated};
use coreplane_mvcc::MapEngine;
use std::collections::BTreeSet;

impl Pool {
    /// Of a batch that may be lost, all keys have its states, or later ones, or none has.
    pub(super) fn check_batches(&mut self, store: &MapEngine, what: &str) {
        for batch in std::mem::take(&mut self.batches) {
            let (mut made, mut lost) = (Vec::new(), Vec::new());
            for (number, at) in batch {
                let found = store.get(&self.key(number)).expect("get");
                let is_it = |state: &Option<Value>| match state {
                    None => found.is_none(),
                    Some(it) => found.as_ref() == Some(&it.bytes) || it.expires_at.is_some(),
                };
                let (before, after) = self.states[&number].split_at(at);
                match (before.iter().any(is_it), after.iter().any(is_it)) {
                    (true, false) => lost.push(number),
                    (false, true) => made.push(number),
                    _ => {}
                }
            }
            assert!(made.is_empty() || lost.is_empty(), "{what}: {made:?} without {lost:?}");
        }
    }

    /// Checks the state of a pool, which is its only possible one from here on.
    pub(super) fn check(&mut self, store: &MapEngine, open: Option<&Op>, what: &str) {
        let mut is_made = BTreeSet::new();
        // The operation in flight may have come behind any of them.
        match open {
            Some(Op::Clear) => self.batches.clear(),
            Some(Op::Write(changes) | Op::Relaxed(changes)) => {
                let is_other = |number: u16| changes.iter().all(|it| it.0 != number);
                self.batches.iter_mut().for_each(|batch| batch.retain(|it| is_other(it.0)));
            }
            _ => {}
        }
        self.check_batches(store, what);
        for number in 0..self.world.keys {
            let found = store.get(&self.key(number)).unwrap_or_else(|it| panic!("{what}: {it}"));
            let is_it = |state: &Option<Value>| match state {
                None => found.is_none(),
                // A reader may have been told of an expired value, by a split for example.
                Some(value) => {
                    found.as_ref() == Some(&value.bytes)
                        || found.is_none() && value.expires_at.is_some()
                }
            };
            let new: Option<Option<Value>> = match open {
                Some(Op::Write(changes) | Op::Relaxed(changes)) => {
                    changes.iter().find(|it| it.0 == number).map(|it| it.1.clone())
                }
                Some(Op::Clear) => Some(None),
                _ => None,
            };
            let states = self.states.get_mut(&number).expect("a key");
            // An absent key was deleted, or has expired by a clock that will be set back.
            let mut left: States = states.iter().filter(|it| is_it(it)).cloned().collect();
            left.dedup();
            let new = new.filter(|it| is_it(it));
            if left.is_empty() && new.is_some() {
                is_made.insert(number);
            }
            left.extend(new);
            if left.is_empty() {
                let found = found.map(|it| it.len());
                panic!("{what}: key {number} has {found:?} bytes, not one of {states:.300?}")
            }
            *states = left;
            if states.len() > 1 {
                self.unclear.insert(number);
            } else {
                self.unclear.remove(&number);
            }
        }
        // All of it or nothing.
        let all: Changes = match open {
            Some(Op::Write(changes)) => changes.clone(),
            Some(Op::Clear) => (0..self.world.keys).map(|number| (number, None)).collect(),
            _ => Vec::new(),
        };
        if !is_made.is_empty() {
            for (number, value) in all {
                let states = self.states.get_mut(&number).expect("a key");
                assert!(states.contains(&value), "{what}: {number} was not made with {is_made:?}");
                *states = vec![value];
                self.unclear.remove(&number);
            }
        }
        let report = store.verify(&mut |_| {}).expect("verify");
        assert!(report.is_sound(), "{what}: {report:?}");
        assert_eq!(store.len().expect("len"), report.records, "{what}");
        store.audit().unwrap_or_else(|drift| panic!("{what}: {drift}"));
        self.check_history(store, what);
    }

    /// Where all tombstones are held, every key that existed once still does, or is known to be gone.
    pub(super) fn check_history(&mut self, store: &MapEngine, what: &str) {
        if !self.world.holds {
            return;
        }
        let mut changed = BTreeSet::new();
        let mut take = |entry: coreplane_engine::Entry<'_>| _ = changed.insert(entry.key.to_vec());
        store.changes_since(0, &mut take).unwrap_or_else(|it| panic!("{what}: {it}"));
        for number in &self.known {
            assert!(changed.contains(&self.key(*number)), "{what}: nothing is known of {number}");
        }
        let is_there = |(_, states): &(&u16, &States)| states.iter().all(Option::is_some);
        self.known.extend(self.states.iter().filter(is_there).map(|it| *it.0));
    }
}
