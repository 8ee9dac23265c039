//! The operations on a pool, and the resulting knowledge of its states.

use super::{Changes, Op, Pool, Value};
use coreplane_engine::{Batch, Durability, Engine, Error, Replicated, UnixMillis, WriteOptions};
use coreplane_mvcc::{MapEngine, Options};
use std::collections::BTreeSet;

impl Pool {
    pub(super) fn key(&self, number: u16) -> Vec<u8> {
        format!("key-{number:03}").into_bytes()
    }

    pub(super) fn options(&self) -> Options {
        Options {
            time: Some(self.clock.as_clock()),
            background: false,
            check_reads: true,
            ..Options::default()
        }
    }

    pub(super) fn value(&mut self) -> Option<Value> {
        self.serial += 1;
        let (serial, draw) = (self.serial, &mut self.draw);
        let is_large = !self.world.is_full && draw.next(20) == 0;
        let len = if is_large { 2100 + draw.next(7000) } else { 8 + draw.next(250) };
        let bytes = (0..len).map(|at| (serial * 31 + at) as u8).collect();
        let expires_at = (draw.next(6) == 0).then(|| self.clock.now().0 + draw.next(60));
        (draw.next(10) > 2).then_some(Value { bytes, expires_at })
    }

    pub(super) fn op(&mut self) -> Op {
        let count = match self.draw.next(40) {
            0 => return Op::Sync,
            1 => return Op::Wait(self.draw.next(30)),
            2..6 => return Op::Look(self.draw.next(u64::from(self.world.keys)) as u16),
            6 if self.draw.next(4) == 0 && !self.world.holds => return Op::Clear,
            6 => return Op::Sweep,
            7..14 => 2 + self.draw.next(10),
            _ => 1,
        };
        let numbers: BTreeSet<u16> =
            (0..count).map(|_| self.draw.next(u64::from(self.world.keys)) as u16).collect();
        let changes = numbers.into_iter().map(|number| (number, self.value())).collect();
        let is_relaxed = self.world.is_relaxed && self.draw.next(3) > 0;
        if is_relaxed { Op::Relaxed(changes) } else { Op::Write(changes) }
    }

    /// False if there was no room, which is expected in some pools.
    pub(super) fn write(
        &self,
        store: &MapEngine,
        changes: &Changes,
        durability: Option<Durability>,
    ) -> bool {
        let of = |value: &Option<Value>| {
            let expires_at = value.as_ref().and_then(|it| it.expires_at).map(UnixMillis);
            let sequence = self.world.is_given.then(|| store.advance_sequence().expect("a number"));
            WriteOptions { durability, expires_at, sequence, ..WriteOptions::default() }
        };
        let made = match changes.as_slice() {
            [(number, Some(value))] => {
                let options = of(&Some(value.clone()));
                store.put(&self.key(*number), &value.bytes, &options).map(drop)
            }
            [(number, None)] => store.delete(&self.key(*number), &of(&None)).map(drop),
            several => {
                let mut batch = Batch::new();
                for (number, value) in several {
                    let key = self.key(*number);
                    match value {
                        Some(Value { bytes, expires_at }) => {
                            batch.put_until(&key, bytes, expires_at.map(UnixMillis))
                        }
                        None => batch.delete(&key),
                    };
                }
                store.apply(&batch, &of(&None)).map(drop)
            }
        };
        match made {
            Err(Error::NoSpace { .. }) if self.world.is_full => false,
            made => made.map(|()| true).expect("there is room"),
        }
    }

    pub(super) fn run(&self, store: &MapEngine, op: &Op) -> bool {
        match op {
            Op::Write(it) => return self.write(store, it, None),
            Op::Relaxed(it) => return self.write(store, it, Some(Durability::RELAXED)),
            Op::Sync => store.sync().expect("sync"),
            Op::Clear => store.clear().expect("clear"),
            Op::Sweep => match store.sweep_expired() {
                Ok(_) => {}
                Err(Error::NoSpace { .. }) if self.world.is_full => return false,
                Err(error) => panic!("{error}"),
            },
            Op::Look(number) => {
                let found = store.get(&self.key(*number)).expect("get");
                if self.unclear.contains(number) {
                    return true;
                }
                // Only this thread writes the pool.
                let newest = self.states[number].last().expect("a state");
                let newest = newest.as_ref().filter(|it| !self.has_expired(it));
                // By a clock that was set back since, a reader was told that it has expired.
                let may_be_told = newest.is_none_or(|it| it.expires_at.is_some());
                let is_right = found.as_ref() == newest.map(|it| &it.bytes);
                assert!(is_right || found.is_none() && may_be_told, "{number}: {newest:.100?}");
            }
            Op::Wait(millis) => self.clock.advance(*millis),
            Op::Close => store.close().expect("close"),
        }
        true
    }

    pub(super) fn has_expired(&self, value: &Value) -> bool {
        value.expires_at.is_some_and(|at| at <= self.clock.now().0)
    }

    /// Notes the effect of an operation that has returned.
    pub(super) fn acknowledge(&mut self, op: &Op) {
        let now = self.clock.now().0;
        match op {
            Op::Write(changes) | Op::Relaxed(changes) => {
                self.unclear.retain(|number| changes.iter().all(|it| it.0 != *number));
            }
            Op::Clear => self.unclear.clear(),
            _ => {}
        }
        match op {
            Op::Write(changes) => {
                for (number, value) in changes {
                    self.states.insert(*number, vec![value.clone()]);
                    // Which states of earlier batches it has replaced is unknown.
                    self.batches.iter_mut().for_each(|batch| batch.retain(|it| it.0 != *number));
                }
            }
            Op::Relaxed(changes) => {
                let mut batch = Vec::new();
                for (number, value) in changes {
                    let states = self.states.entry(*number).or_default();
                    batch.push((*number, states.len()));
                    states.push(value.clone());
                }
                self.batches.push(batch);
            }
            Op::Sync | Op::Close => self.make_all_durable(),
            Op::Clear => {
                self.states.values_mut().for_each(|it| *it = vec![None]);
                self.batches.clear();
            }
            Op::Look(number) => {
                // A reader that was told that it has expired is never told otherwise later; nor about any other key
                // that expires no later.
                let states = &self.states[number];
                let told = states.last().and_then(|it| it.as_ref()?.expires_at);
                if let Some(told) = told.filter(|at| *at <= now) {
                    self.tell(told);
                }
            }
            // Nothing is known of keys that may be lost.
            Op::Sweep => {}
            Op::Wait(_) => {}
        }
    }

    pub(super) fn tell(&mut self, told: u64) {
        let is_told = |it: &Option<Value>| {
            it.as_ref().is_some_and(|it| it.expires_at.is_some_and(|at| at <= told))
        };
        for states in self.states.values_mut() {
            states.iter_mut().filter(|it| is_told(it)).for_each(|it| *it = None);
        }
    }

    pub(super) fn make_all_durable(&mut self) {
        let clear = self.states.iter_mut().filter(|it| !self.unclear.contains(it.0));
        clear.for_each(|(_, states)| drop(states.drain(..states.len() - 1)));
        self.batches.clear();
    }
}
