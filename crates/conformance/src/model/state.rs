//! The state that the lock protects, and the single steps on it.

use coreplane_engine::{
    Durability, Error, Record, Result, Stats, Ticket, UnixMillis, Value, WriteOptions,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A record, or the tombstone that stands for its absence (`value` is none).
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) value: Option<Arc<[u8]>>,
    pub(super) sequence: u64,
    pub(super) expires_at: Option<UnixMillis>,
    /// The position in the log at which it was written.
    pub(super) position: u64,
    /// Written `Relaxed`: no caller waits for it.
    pub(super) relaxed: bool,
}

impl Cell {
    pub(super) fn is_live(&self, now: UnixMillis) -> bool {
        self.value.is_some() && self.expires_at.is_none_or(|at| at > now)
    }

    /// The record, if it has a value.
    pub(super) fn record(&self, ticket: Ticket) -> Option<Record<'_>> {
        self.value.as_ref().map(|value| Record {
            value: Value::Whole(value),
            sequence: self.sequence,
            expires_at: self.expires_at,
            ticket,
        })
    }
}

/// The decision of a write.
pub(super) enum Plan {
    Put(Arc<[u8]>, Option<UnixMillis>),
    Delete,
    Refuse(fn(Ticket) -> coreplane_engine::Outcome),
}

/// Where and how the next cell is written.
#[derive(Clone, Copy)]
pub(super) struct Stamp {
    pub(super) sequence: u64,
    pub(super) position: u64,
    pub(super) relaxed: bool,
}

#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) cells: BTreeMap<Arc<[u8]>, Cell>,
    pub(super) order: BTreeSet<(u64, Arc<[u8]>)>,
    pub(super) sequence: u64,
    pub(super) appended: u64,
    pub(super) durable: u64,
    undo: Vec<(u64, Arc<[u8]>, Option<Cell>)>,
    tombstones: usize,
    hold: u64,
    /// The greatest sequence of a tombstone that was dropped.
    pub(super) dropped: u64,
    pub(super) now: UnixMillis,
    pub(super) manual: bool,
    pub(super) closed: bool,
    pub(super) broken: Option<String>,
    pub(super) capacity: Option<u64>,
    pub(super) stats: Stats,
}

impl Default for State {
    fn default() -> Self {
        Self {
            cells: BTreeMap::new(),
            order: BTreeSet::new(),
            sequence: 0,
            appended: 0,
            durable: 0,
            undo: Vec::new(),
            tombstones: 0,
            hold: u64::MAX,
            dropped: 0,
            now: UnixMillis(0),
            manual: false,
            closed: false,
            broken: None,
            capacity: None,
            stats: Stats::default(),
        }
    }
}

impl State {
    pub(super) fn check_writable(&self) -> Result<()> {
        if self.closed {
            return Err(Error::Closed);
        }
        match &self.broken {
            Some(reason) => Err(Error::SyncFailed(reason.clone())),
            None => Ok(()),
        }
    }

    /// The live record of `key`.
    pub(super) fn live(&self, key: &[u8]) -> Option<&Cell> {
        self.cells.get(key).filter(|cell| cell.is_live(self.now))
    }

    /// The ticket of an answer about `key`.
    pub(super) fn ticket(&self, key: &[u8]) -> Ticket {
        self.cells.get(key).map_or(Ticket::DURABLE, |cell| self.ticket_of(cell))
    }

    pub(super) fn ticket_of(&self, cell: &Cell) -> Ticket {
        if cell.relaxed || cell.position <= self.durable {
            Ticket::DURABLE
        } else {
            Ticket::new(0, cell.position)
        }
    }

    pub(super) fn is_durable_at(&self, position: u64) -> Result<bool> {
        if position.min(self.appended) <= self.durable {
            return Ok(true);
        }
        match &self.broken {
            Some(reason) => Err(Error::SyncFailed(reason.clone())),
            None => Ok(false),
        }
    }

    /// Turns the record of `key` into a tombstone if it has expired.
    pub(super) fn settle(&mut self, key: &[u8]) {
        let now = self.now;
        let Some(cell) = self.cells.get_mut(key) else {
            return;
        };
        if !cell.is_live(now)
            && let Some(value) = cell.value.take()
        {
            self.tombstones += 1;
            self.stats.expired += 1;
            self.stats.records -= 1;
            self.stats.live_bytes -= (key.len() + value.len()) as u64;
        }
    }

    /// The stamp of the next write.
    pub(super) fn stamp(&mut self, options: &WriteOptions) -> Result<Stamp> {
        let sequence = match options.sequence {
            Some(given) if given >= super::SEQUENCE_END => {
                return Err(Error::Unsupported {
                    engine: "model",
                    operation: "a sequence of 2^63 or more",
                });
            }
            Some(given) => {
                self.sequence = self.sequence.max(given);
                given
            }
            None => self.next_sequence(),
        };
        self.appended += 1;
        Ok(Stamp {
            sequence,
            position: self.appended,
            relaxed: matches!(options.durability, Some(Durability::Relaxed { .. })),
        })
    }

    pub(super) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Checks that `more` bytes fit beside the live ones, once `less` of these are gone.
    pub(super) fn check_space(&self, more: usize, less: u64) -> Result<()> {
        match self.capacity {
            Some(capacity) if self.stats.live_bytes - less + more as u64 > capacity => {
                Err(Error::NoSpace { needed: more as u64, reclaimable: 0 })
            }
            _ => Ok(()),
        }
    }

    /// The bytes of the live record of `key`.
    pub(super) fn bytes_of(&self, key: &[u8]) -> u64 {
        self.cells
            .get(key)
            .and_then(|cell| cell.value.as_ref())
            .map_or(0, |value| (key.len() + value.len()) as u64)
    }

    /// Writes a record (or, with no value, a tombstone) over the settled one. True if a live record was there.
    pub(super) fn write(
        &mut self,
        key: &[u8],
        value: Option<Arc<[u8]>>,
        expires_at: Option<UnixMillis>,
        stamp: Stamp,
    ) -> bool {
        let key: Arc<[u8]> = key.into();
        let written = (key.len() + value.as_ref().map_or(0, |value| value.len())) as u64;
        self.stats.user_bytes_written += written;
        self.stats.log_bytes_written += written;
        match value {
            Some(_) => self.stats.puts += 1,
            None => self.stats.deletes += 1,
        }
        self.order.insert((hash(&key), Arc::clone(&key)));
        let cell = Cell {
            value,
            sequence: stamp.sequence,
            expires_at,
            position: stamp.position,
            relaxed: stamp.relaxed,
        };
        self.account(&key, &cell, true);
        let old = self.cells.insert(Arc::clone(&key), cell);
        let replaced = old.as_ref().is_some_and(|old| {
            self.account(&key, old, false);
            old.value.is_some()
        });
        self.undo.push((stamp.position, key, old));
        replaced
    }

    /// Counts `cell` in or out of the sizes.
    fn account(&mut self, key: &[u8], cell: &Cell, comes: bool) {
        let (records, bytes, tombstones) = match &cell.value {
            Some(value) => (1, (key.len() + value.len()) as u64, 0),
            None => (0, 0, 1),
        };
        if comes {
            self.stats.records += records;
            self.stats.live_bytes += bytes;
            self.tombstones += tombstones;
        } else {
            self.stats.records -= records;
            self.stats.live_bytes -= bytes;
            self.tombstones -= tombstones;
        }
    }

    /// Makes all appended writes durable; true if there were any.
    pub(super) fn harden(&mut self) -> bool {
        if self.broken.is_some() || self.durable == self.appended {
            return false;
        }
        self.durable = self.appended;
        self.undo.clear();
        self.stats.fences += 1;
        if self.tombstones > self.cells.len() / 2 + 1024 {
            self.drop_tombstones();
        }
        true
    }

    /// The last step of a write: makes all writes durable, unless commits are manual and it does not wait.
    pub(super) fn finish(&mut self, waits: bool) -> bool {
        (waits || !self.manual) && self.harden()
    }

    pub(super) fn hold_tombstones(&mut self, sequence: u64) {
        self.hold = sequence;
        self.drop_tombstones();
    }

    fn drop_tombstones(&mut self) {
        let (hold, durable) = (self.hold, self.durable);
        let order = &mut self.order;
        let mut dropped = 0;
        self.cells.retain(|key, cell| {
            let keep = cell.value.is_some() || cell.sequence > hold || cell.position > durable;
            if !keep {
                dropped = dropped.max(cell.sequence);
                self.tombstones -= 1;
                order.remove(&(hash(key), Arc::clone(key)));
            }
            keep
        });
        self.dropped = self.dropped.max(dropped);
    }

    /// Writes a tombstone over every live record.
    pub(super) fn clear(&mut self) -> Result<()> {
        let keys: Vec<Arc<[u8]>> = self.cells.keys().cloned().collect();
        let stamp = self.stamp(&WriteOptions::default())?;
        for key in keys {
            self.settle(&key);
            if self.live(&key).is_some() {
                self.write(&key, None, None, stamp);
            }
        }
        Ok(())
    }

    /// Turns expired records into tombstones; their number.
    pub(super) fn sweep_expired(&mut self) -> u64 {
        let before = self.stats.expired;
        let keys: Vec<Arc<[u8]>> = self.cells.keys().cloned().collect();
        keys.iter().for_each(|key| self.settle(key));
        self.stats.expired - before
    }

    /// Takes back every undurable write.
    pub(super) fn lose_undurable(&mut self) {
        while let Some((_, key, before)) = self.undo.pop() {
            let after = match before {
                Some(cell) => {
                    self.account(&key, &cell, true);
                    self.cells.insert(key.clone(), cell)
                }
                None => {
                    self.order.remove(&(hash(&key), key.clone()));
                    self.cells.remove(&key)
                }
            };
            if let Some(cell) = after {
                self.account(&key, &cell, false);
            }
        }
        self.appended = self.durable;
    }

    /// Resets the state as a restart does.
    pub(super) fn reopen(&mut self) {
        self.durable = self.appended;
        self.undo.clear();
        self.closed = false;
        self.broken = None;
        self.hold = u64::MAX;
        let mut stats = Stats::default();
        (stats.records, stats.live_bytes) = (self.stats.records, self.stats.live_bytes);
        self.stats = stats;
    }

    /// Checks the invariants; a sentence for each that is violated.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let live = self.cells.values().filter(|cell| cell.value.is_some());
        let mut check = |holds: bool, what: &str| {
            if !holds {
                faults.push(what.to_owned());
            }
        };
        check(live.count() as u64 == self.stats.records, "the count of records is wrong");
        check(
            self.cells.keys().all(|key| self.order.contains(&(hash(key), Arc::clone(key))))
                && self.order.len() == self.cells.len(),
            "cells and order differ",
        );
        check(
            self.cells.values().all(|cell| cell.sequence <= self.sequence),
            "a sequence is beyond the last one drawn",
        );
        check(self.durable <= self.appended, "durable is beyond appended");
        faults
    }
}

/// The place of `key` in the order of iteration (FNV-1a, then a finalizer for short keys).
pub(super) fn hash(key: &[u8]) -> u64 {
    let fnv = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (fnv ^ (fnv >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}
