//! The expected contents of a store: keys and records as a map, kept beside the engine.
//!
//! The oracle does not invent sequences; it takes those that the engine gave.

use super::probe::{self, Seen};
use coreplane_engine::{StorageEngine, Ticket, UnixMillis, Visibility};
use std::collections::BTreeMap;

/// A record, or (without a value) a tombstone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) value: Option<Vec<u8>>,
    pub(super) sequence: u64,
    /// False if the sequence is only known to be at least this.
    pub(super) exact: bool,
    pub(super) expires_at: Option<UnixMillis>,
}

/// The map, and the time.
#[derive(Debug, Clone)]
pub(super) struct Oracle {
    pub(super) cells: BTreeMap<Vec<u8>, Cell>,
    pub(super) now: UnixMillis,
}

impl Default for Oracle {
    fn default() -> Self {
        Self { cells: BTreeMap::new(), now: UnixMillis::now() }
    }
}

impl Oracle {
    /// The live record of `key`.
    pub(super) fn live(&self, key: &[u8]) -> Option<&Cell> {
        self.cells.get(key).filter(|cell| self.is_live(cell))
    }

    fn is_live(&self, cell: &Cell) -> bool {
        cell.value.is_some() && cell.expires_at.is_none_or(|at| at > self.now)
    }

    /// All live records.
    pub(super) fn records(&self) -> impl Iterator<Item = (&Vec<u8>, &Cell)> {
        self.cells.iter().filter(|(_, cell)| self.is_live(cell))
    }

    /// Writes a record whose sequence does not matter.
    pub(super) fn set(&mut self, key: &[u8], value: &[u8], expires_at: Option<UnixMillis>) {
        let cell = Cell { value: Some(value.to_vec()), sequence: 0, exact: false, expires_at };
        self.cells.insert(key.to_vec(), cell);
    }

    /// Takes a record out, without a trace.
    pub(super) fn remove(&mut self, key: &[u8]) {
        self.cells.remove(key);
    }

    /// Forgets tombstones, as an engine may at a restart; an expired record may have become one.
    pub(super) fn forget(&mut self) {
        self.cells.retain(|_, cell| cell.value.is_some());
        let now = self.now;
        for cell in self.cells.values_mut() {
            cell.exact &= cell.expires_at.is_none_or(|at| at > now);
        }
    }

    /// Compares keys, values and expiries with the engine's, by `iterate` and by `get`.
    pub(super) fn check_values(&self, engine: &dyn StorageEngine) {
        let shown = probe::all(engine, 64);
        for (key, cell) in self.records() {
            let found = probe::record(engine, key);
            let found = found.as_ref().map(|seen| (&seen.value, seen.expires_at));
            let due = cell.value.as_ref().map(|value| (value, cell.expires_at));
            assert!(found == due, "the record of {key:?} is {found:?}, not {due:?}");
            let shown = shown.get(key).map(|seen| (&seen.value, seen.expires_at));
            assert!(shown == due, "iterate shows {shown:?} of {key:?}, not {due:?}");
        }
        let invented = shown.keys().find(|key| self.live(key).is_none());
        assert_eq!(invented, None, "iterate shows a record that is not there");
    }

    /// The same with sequences, and by every other kind of read.
    pub(super) fn check(&self, engine: &dyn StorageEngine) {
        let due: BTreeMap<Vec<u8>, Seen> = self
            .records()
            .filter_map(|(key, cell)| {
                let (sequence, expires_at) = (cell.sequence, cell.expires_at);
                let value = cell.value.clone()?;
                Some((key.clone(), Seen { value, sequence, expires_at, ticket: Ticket::DURABLE }))
            })
            .collect();
        let undated = |mut seen: Seen| {
            seen.ticket = Ticket::DURABLE;
            seen
        };
        let shown: BTreeMap<_, _> =
            probe::all(engine, 5).into_iter().map(|(key, seen)| (key, undated(seen))).collect();
        assert_eq!(shown, due, "iterate");
        let keys: Vec<_> = self.cells.keys().cloned().collect();
        let (answers, _) = probe::records(engine, &keys, Visibility::Durable);
        for (key, answer) in keys.iter().zip(answers) {
            assert_eq!(answer.as_ref(), due.get(key), "multi_get of {key:?}");
        }
        let (least, len) = (due.len() as u64, engine.len().unwrap());
        let expired = self.cells.values().filter(|cell| cell.value.is_some()).count() as u64;
        assert!(least <= len && len <= expired, "len {len}, {least} live of {expired}");
        if let Some(ordered) = engine.ordered() {
            let mut scanned = Vec::new();
            let mut visit = |entry: coreplane_engine::Entry<'_>| {
                scanned.push((entry.key.to_vec(), entry.sequence));
                true
            };
            ordered.scan(b"", None, false, usize::MAX, &mut visit).unwrap();
            let due: Vec<_> = due.iter().map(|(key, seen)| (key.clone(), seen.sequence)).collect();
            assert_eq!(scanned, due, "scan");
        }
    }

    /// Compares the changes since `sequence`; the caller holds all tombstones.
    pub(super) fn check_changes(&self, engine: &dyn StorageEngine, sequence: u64) {
        let Ok(changes) = probe::changes(engine, sequence) else {
            assert!(engine.tombstone_horizon() > sequence, "gone, above the horizon");
            return;
        };
        for (key, cell) in self.cells.iter().filter(|(_, cell)| cell.sequence > sequence) {
            let found = changes.get(key);
            let Some((found, value)) = found else {
                panic!("changes since {sequence} leave out {key:?}: {cell:?}");
            };
            if cell.exact && (self.is_live(cell) || cell.value.is_none()) {
                assert_eq!((*found, value), (cell.sequence, &cell.value), "change of {key:?}");
            } else {
                // Expired: shown unchanged, or as a tombstone of that time or later.
                assert!(!self.is_live(cell) || *value == cell.value, "change of {key:?}");
                assert!(*found >= cell.sequence, "{found} of the expired {key:?}");
            }
        }
    }
}
