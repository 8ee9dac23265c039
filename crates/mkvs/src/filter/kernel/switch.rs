//! The switch from one table to the next, beside probes and writers. The module docs of `filter` explain it; this
//! is the protocol:
//!
//! ```text
//!   start:    phase = {A, next B}; advance the gate       now all threads inside know B
//!   (keys):   B.add(key) for all keys of the engine
//!   finish:   phase = {B, since the coming generation}; advance the gate
//!   abandon:  phase = {A, since as before}
//!
//!   probe:    phase; current.may_contain
//!   insert:   inside; phase; current.add; next.add        (absent: unless current.may_contain)
//!   remove:   inside since g; phase; current.take if since <= g
//!   undo:     inside since before the insertion; phase; take from each that the insertion met
//! ```
//!
//! A table is *born* in the generation that its start begins, a number that no other table has. While a stay lasts
//! no table can be started and completed: its start would wait for the stay. So of the tables that an undo finds,
//! the insertion found those that are not younger than its youngest table.

use super::{Atomic, Gate, Stay, Table};
use std::marker::PhantomData;
use std::sync::Arc;

/// The tables in use.
#[derive(Debug)]
pub(in crate::filter) struct Phase<A> {
    /// The complete table.
    current: Born<A>,
    /// The generation from whose beginning on `current` is in force: no key is removed from it by a stay that began
    /// before.
    since: u64,
    /// The table that is being filled.
    next: Option<Born<A>>,
}

impl<A: Atomic> Phase<A> {
    /// Counts a key in the table that is being filled, if there is one; the generation of the youngest table.
    #[inline]
    fn insert_next(&self, hash: u64) -> u64 {
        match &self.next {
            None => self.current.generation,
            Some(next) => {
                next.table.add(hash);
                next.generation
            }
        }
    }
}

/// A table and its generation.
#[derive(Debug)]
struct Born<A> {
    table: Arc<Table<A>>,
    generation: u64,
}

impl<A> Clone for Born<A> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table), generation: self.generation }
    }
}

/// The place of a value that threads read while it is replaced.
pub(in crate::filter) trait Place<T> {
    fn new(value: T) -> Self;
    fn look<R>(&self, with: impl FnOnce(&T) -> R) -> R;
    fn replace(&self, value: T);
}

#[derive(Debug)]
pub(in crate::filter) struct Switch<A, P> {
    phase: P,
    gate: Gate<A>,
    words: PhantomData<A>,
}

impl<A: Atomic, P: Place<Phase<A>>> Switch<A, P> {
    pub(in crate::filter) fn new(table: Arc<Table<A>>, gate: Gate<A>) -> Self {
        let current = Born { table, generation: gate.generation() };
        let phase = Phase { since: current.generation, current, next: None };
        Self { phase: P::new(phase), gate, words: PhantomData }
    }

    pub(in crate::filter) fn place(&self) -> &P {
        &self.phase
    }

    /// Looks at the complete table.
    #[inline]
    pub(in crate::filter) fn current<R>(&self, look: impl FnOnce(&Arc<Table<A>>) -> R) -> R {
        self.phase.look(|phase| look(&phase.current.table))
    }

    #[inline]
    pub(in crate::filter) fn may_contain(&self, hash: u64) -> bool {
        self.current(|table| table.may_contain(hash))
    }

    #[inline]
    pub(in crate::filter) fn enter(&self, number: usize) -> Stay {
        self.gate.enter(number)
    }

    #[inline]
    pub(in crate::filter) fn leave(&self, stay: &Stay) {
        self.gate.leave(stay);
    }

    /// Counts a key; the generation of the youngest table that counts it now.
    #[inline]
    pub(in crate::filter) fn insert(&self, _inside: &Stay, hash: u64) -> u64 {
        self.phase.look(|phase| {
            phase.current.table.add(hash);
            phase.insert_next(hash)
        })
    }

    /// The same, unless the filter says that the key may be there.
    #[inline]
    pub(in crate::filter) fn insert_absent(&self, _inside: &Stay, hash: u64) -> Option<u64> {
        self.phase
            .look(|phase| phase.current.table.add_absent(hash).then(|| phase.insert_next(hash)))
    }

    /// Takes back the count that [`Self::insert`] made within the same stay; `youngest` is its result.
    pub(in crate::filter) fn undo(&self, _inside: &Stay, hash: u64, youngest: u64) {
        self.phase.look(|phase| {
            let tables = [Some(&phase.current), phase.next.as_ref()].into_iter().flatten();
            tables
                .filter(|born| born.generation <= youngest)
                .for_each(|born| born.table.take(hash));
        });
    }

    #[inline]
    pub(in crate::filter) fn remove(&self, inside: &Stay, hash: u64) {
        self.phase.look(|phase| {
            if phase.since <= inside.generation() {
                phase.current.table.take(hash);
            }
        });
    }

    /// After it returns the keys of the engine may be listed and added to `next`. One caller at a time, until it
    /// has finished or abandoned.
    pub(in crate::filter) fn start(&self, next: Arc<Table<A>>, wait: impl FnMut()) {
        let next = Born { table: next, generation: self.gate.generation() + 1 };
        self.replace(|phase| Phase {
            current: phase.current.clone(),
            since: phase.since,
            next: Some(next),
        });
        self.gate.advance(wait);
    }

    /// Puts the next table, to which all keys were added, in force.
    pub(in crate::filter) fn finish(&self, wait: impl FnMut()) {
        let since = self.gate.generation() + 1;
        self.replace(|phase| Phase {
            current: phase.next.as_ref().unwrap_or(&phase.current).clone(),
            since,
            next: None,
        });
        self.gate.advance(wait);
    }

    /// Drops the table that was being filled.
    pub(in crate::filter) fn abandon(&self) {
        self.replace(|phase| Phase {
            current: phase.current.clone(),
            since: phase.since,
            next: None,
        });
    }

    fn replace(&self, by: impl FnOnce(&Phase<A>) -> Phase<A>) {
        let phase = self.phase.look(by);
        self.phase.replace(phase);
    }
}
