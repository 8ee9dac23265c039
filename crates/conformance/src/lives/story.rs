//! The operations of a life: drawn, and made on a store.

use super::World;
use coreplane_engine::{Batch, Durability, Replicated, Result, UnixMillis, WriteOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A record of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) bytes: Vec<u8>,
    pub(super) expires_at: Option<UnixMillis>,
}

/// A key is absent, or has this value.
pub(super) type State = Option<Value>;

pub(super) type Changes = BTreeMap<u16, State>;

#[derive(Debug, Clone)]
pub(super) enum Op {
    /// More than one change is a batch.
    Write(Changes),
    /// These changes may be lost until the next sync.
    Relaxed(Changes),
    Sync,
    Clear,
    /// Replaces expired records by tombstones.
    Sweep,
    Look(u16),
    Wait(u64),
    Close,
}

impl Op {
    /// The changes that it makes to a store of so many keys.
    pub(super) fn changes(&self, keys: u16) -> Changes {
        match self {
            Self::Write(changes) | Self::Relaxed(changes) => changes.clone(),
            Self::Clear => (0..keys).map(|number| (number, None)).collect(),
            _ => Changes::new(),
        }
    }

    pub(super) fn needs_room(&self) -> bool {
        matches!(self, Self::Write(_) | Self::Relaxed(_) | Self::Sweep)
    }

    /// Makes it on a store, as far as it is one of a store.
    pub(super) fn make(&self, store: &impl Replicated, world: &World) -> Result<()> {
        match self {
            Self::Write(changes) => write(store, world, changes, None),
            Self::Relaxed(changes) => write(store, world, changes, Some(Durability::RELAXED)),
            Self::Sync => store.sync(),
            Self::Clear => store.clear(),
            Self::Sweep => store.sweep_expired().map(drop),
            Self::Close => store.close(),
            Self::Look(_) | Self::Wait(_) => Ok(()),
        }
    }
}

fn write(
    store: &impl Replicated,
    world: &World,
    changes: &Changes,
    durability: Option<Durability>,
) -> Result<()> {
    let sequence = world.is_given.then(|| store.advance_sequence().expect("a number"));
    let options = WriteOptions { durability, sequence, ..WriteOptions::default() };
    if changes.len() > 1 {
        let mut batch = Batch::new();
        for (number, state) in changes {
            let key = world.key(*number);
            match state {
                Some(Value { bytes, expires_at }) => batch.put_until(&key, bytes, *expires_at),
                None => batch.delete(&key),
            };
        }
        return store.apply(&batch, &options).map(drop);
    }
    changes.iter().try_for_each(|(number, state)| match state {
        Some(Value { bytes, expires_at }) => {
            let options = WriteOptions { expires_at: *expires_at, ..options };
            store.put(&world.key(*number), bytes, &options).map(drop)
        }
        None => store.delete(&world.key(*number), &options).map(drop),
    })
}

/// Draws the operations.
pub(super) struct Author {
    world: World,
    large: Range<u64>,
    pub(super) draw: Draw,
    /// Values so far, each of which is another.
    serial: u64,
}

impl Author {
    pub(super) fn new(world: World, large: Range<u64>, seed: u64) -> Self {
        Self { world, large, draw: Draw(seed << 8), serial: 0 }
    }

    pub(super) fn op(&mut self, now: UnixMillis) -> Op {
        if self.draw.next(80) == 0 {
            return Op::Close;
        }
        let count = match self.draw.next(40) {
            0 => return Op::Sync,
            1 => return Op::Wait(self.draw.next(30)),
            2..6 => return Op::Look(self.key()),
            // It would end the history, too.
            6 if self.draw.next(4) == 0 && !self.world.holds => return Op::Clear,
            6 => return Op::Sweep,
            7..14 => 2 + self.draw.next(10),
            _ => 1,
        };
        let numbers: BTreeSet<u16> = (0..count).map(|_| self.key()).collect();
        let changes = numbers.into_iter().map(|number| (number, self.state(now))).collect();
        let is_relaxed = self.world.is_relaxed && self.draw.next(3) > 0;
        if is_relaxed { Op::Relaxed(changes) } else { Op::Write(changes) }
    }

    fn key(&mut self) -> u16 {
        self.draw.next(u64::from(self.world.keys)) as u16
    }

    fn state(&mut self, now: UnixMillis) -> State {
        self.serial += 1;
        let (serial, draw) = (self.serial, &mut self.draw);
        let is_large = !self.world.is_full && draw.next(20) == 0;
        let len = if is_large {
            self.large.start + draw.next(self.large.end - self.large.start)
        } else {
            8 + draw.next(250)
        };
        let bytes = (0..len).map(|at| (serial * 31 + at) as u8).collect();
        let expires_at = (draw.next(6) == 0).then(|| UnixMillis(now.0 + draw.next(60)));
        (draw.next(10) > 2).then_some(Value { bytes, expires_at })
    }
}

/// A linear congruential generator.
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}
