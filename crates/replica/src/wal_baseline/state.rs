//! The state: a sorted map in DRAM, which keeps the versions that a pin sees.

use coreplane_engine::{ChangeRef, Entry, Record, Ticket, UnixMillis, Value};
use parking_lot::RwLock;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// Keys that are shown while the state is locked; between two such groups it may change.
const AT_ONCE: usize = 256;
/// Approximate bytes of a record beside its key and value.
const RECORD_BYTES: u64 = 96;

struct Version {
    timestamp: u64,
    expires_at: Option<UnixMillis>,
    /// None: deleted.
    value: Option<Box<[u8]>>,
}

/// Records by their keys, with their versions from the oldest one that a pin sees.
#[derive(Default)]
pub(super) struct State {
    records: BTreeMap<Box<[u8]>, SmallVec<[Version; 1]>>,
    len: u64,
    bytes: u64,
    /// The same of the versions that only pins see.
    old_bytes: u64,
    /// The number of pins of each timestamp.
    pins: BTreeMap<u64, usize>,
    /// Keys with a version that is seen only by pins before this timestamp.
    old: VecDeque<(u64, Box<[u8]>)>,
}

/// A range of keys.
pub(super) type Range<'r> = (&'r [u8], Option<&'r [u8]>);

fn bytes_of(key: &[u8], version: &Version) -> u64 {
    version.value.as_ref().map_or(0, |value| (key.len() + value.len()) as u64 + RECORD_BYTES)
}

impl State {
    /// The number of current records.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Approximate bytes of the newest version of each key: those that a checkpoint of now would have.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Approximate bytes of all versions, in memory.
    pub(super) fn all_bytes(&self) -> u64 {
        self.bytes + self.old_bytes
    }

    /// Makes a change, which is newer than all earlier ones.
    pub(super) fn make(&mut self, timestamp: u64, change: ChangeRef<'_>) {
        // More than it adds.
        self.drop_old(2);
        let key = change.key();
        let (value, expires_at) = match change {
            ChangeRef::Put { value, expires_at, .. } => (Some(Box::from(value)), expires_at),
            ChangeRef::Delete { .. } => (None, None),
        };
        let version = Version { timestamp, expires_at, value };
        let is_live = version.value.is_some();
        let bytes = bytes_of(key, &version);
        let newest_pin = self.pins.last_key_value().map_or(0, |(timestamp, _)| *timestamp);
        match self.records.get_mut(key) {
            None if is_live => {
                self.records.insert(Box::from(key), SmallVec::from_buf([version]));
                (self.len, self.bytes) = (self.len + 1, self.bytes + bytes);
            }
            None => {}
            Some(versions) => {
                let last = versions.last().filter(|it| it.value.is_some());
                self.len = self.len + u64::from(is_live) - u64::from(last.is_some());
                self.bytes += bytes;
                let replaced = versions.last().map_or(0, |it| bytes_of(key, it));
                self.bytes -= replaced;
                let is_seen = versions.last().is_some_and(|it| it.timestamp <= newest_pin);
                if is_seen {
                    versions.push(version);
                    self.old_bytes += replaced;
                    self.old.push_back((timestamp, Box::from(key)));
                    return;
                }
                let _replaced = versions.pop();
                match is_live || !versions.is_empty() {
                    true => versions.push(version),
                    false => _ = self.records.remove(key),
                }
            }
        }
    }

    /// Drops versions that no pin sees any more, of so many keys at most: there are many when a pin has just gone.
    pub(super) fn drop_old(&mut self, most: usize) {
        let oldest = self.pins.first_key_value().map_or(u64::MAX, |(timestamp, _)| *timestamp);
        for _ in 0..most {
            let dropped = self.old.pop_front_if(|(timestamp, _)| *timestamp <= oldest);
            let Some((_, key)) = dropped else { return };
            let Some(versions) = self.records.get_mut(&key) else { continue };
            // Keeps the last one that the oldest pin sees, and those after it.
            let seen = versions.iter().rposition(|it| it.timestamp <= oldest).unwrap_or(0);
            self.old_bytes -= versions.drain(..seen).map(|it| bytes_of(&key, &it)).sum::<u64>();
            if versions.len() == 1 && versions.first().is_some_and(|it| it.value.is_none()) {
                self.records.remove(&key);
            }
        }
    }

    /// Shows the record of a key as it was at this timestamp; false if there was none.
    pub(super) fn get(&self, key: &[u8], at: u64, visit: &mut dyn FnMut(Record<'_>)) -> bool {
        let versions = self.records.get(key);
        let record = versions.and_then(|versions| record_at(versions, at));
        record.map(visit).is_some()
    }

    /// Shows keys with their records of this timestamp, if they had any, in order, until `visit` says no.
    pub(super) fn scan(
        state: &RwLock<Self>,
        at: u64,
        (start, end): Range<'_>,
        reverse: bool,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) {
        let mut next: Option<Box<[u8]>> = None;
        loop {
            let state = state.read();
            let from = match (&next, reverse) {
                (Some(key), false) => Bound::Excluded(key.as_ref()),
                _ => Bound::Included(start),
            };
            let to = match (&next, reverse) {
                (Some(key), true) => Bound::Excluded(key.as_ref()),
                _ => end.map_or(Bound::Unbounded, Bound::Excluded),
            };
            if is_empty(from, to) {
                return;
            }
            let mut range = state.records.range::<[u8], _>((from, to));
            let mut last = None;
            for _ in 0..AT_ONCE {
                let shown = if reverse { range.next_back() } else { range.next() };
                let Some((key, versions)) = shown else { return };
                last = Some(key);
                let record = record_at(versions, at);
                let sequence = record.as_ref().map_or(0, |record| record.sequence);
                if !visit(Entry { key, sequence, record }) {
                    return;
                }
            }
            next = last.cloned();
        }
    }

    /// Keeps the state of this timestamp, which is the newest.
    pub(super) fn pin(state: &Arc<RwLock<Self>>, timestamp: u64) -> Pin {
        *state.write().pins.entry(timestamp).or_default() += 1;
        Pin { state: Arc::clone(state), timestamp }
    }
}

fn is_empty(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (_, Bound::Unbounded | Bound::Included(_)) | (Bound::Unbounded, _) => false,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to)) => from >= to,
    }
}

fn record_at(versions: &[Version], at: u64) -> Option<Record<'_>> {
    let version = versions.iter().rev().find(|it| it.timestamp <= at)?;
    let value = Value::Whole(version.value.as_ref()?);
    let Version { timestamp, expires_at, .. } = *version;
    Some(Record { value, sequence: timestamp, expires_at, ticket: Ticket::DURABLE })
}

/// The state of one moment.
pub(super) struct Pin {
    state: Arc<RwLock<State>>,
    timestamp: u64,
}

impl Pin {
    pub(super) fn timestamp(&self) -> u64 {
        self.timestamp
    }

    /// As [`State::scan`], of its time.
    pub(super) fn walk(&self, range: Range<'_>, visit: &mut dyn FnMut(Entry<'_>) -> bool) {
        State::scan(&self.state, self.timestamp, range, false, visit);
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.state.write();
        if let Some(count) = state.pins.get_mut(&self.timestamp) {
            *count -= 1;
            if *count == 0 {
                state.pins.remove(&self.timestamp);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(state: &Arc<RwLock<State>>, timestamp: u64, key: &[u8], value: &[u8]) {
        state.write().make(timestamp, ChangeRef::Put { key, value, expires_at: None });
    }

    fn all(pin: &Pin) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut shown = Vec::new();
        let mut take = |entry: Entry<'_>| {
            shown.extend(entry.record.map(|it| (entry.key.to_vec(), it.value.to_vec())));
            true
        };
        pin.walk((b"", None), &mut take);
        shown
    }

    #[test]
    fn a_pin_sees_what_was_there() {
        let state: Arc<RwLock<State>> = Arc::default();
        put(&state, 1, b"a", b"1");
        put(&state, 2, b"b", b"2");
        let first = State::pin(&state, 2);
        put(&state, 3, b"a", b"3");
        state.write().make(4, ChangeRef::Delete { key: b"b" });
        put(&state, 5, b"c", b"5");
        let second = State::pin(&state, 5);
        put(&state, 6, b"a", b"6");
        state.write().make(7, ChangeRef::Delete { key: b"c" });
        let pair = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
        assert_eq!(all(&first), [pair(b"a", b"1"), pair(b"b", b"2")]);
        assert_eq!(all(&second), [pair(b"a", b"3"), pair(b"c", b"5")]);
        assert_eq!((state.read().len(), state.read().bytes()), (1, 2 + RECORD_BYTES));
        drop(first);
        put(&state, 8, b"d", b"8");
        assert_eq!(all(&second), [pair(b"a", b"3"), pair(b"c", b"5")]);
        drop(second);
        put(&state, 9, b"d", b"9");
        put(&state, 10, b"d", b"9");
        let state = state.read();
        assert_eq!((state.len(), state.records.len(), state.old.len()), (2, 2, 0));
        assert!(state.records.values().all(|versions| versions.len() == 1));
        assert_eq!((state.bytes(), state.all_bytes()), (2 * (2 + RECORD_BYTES), state.bytes()));
    }
    #[test]
    fn what_only_a_pin_has_seen_goes_in_parts() {
        const KEYS: u64 = 10_000;
        let state: Arc<RwLock<State>> = Arc::default();
        (1..=KEYS).for_each(|number| put(&state, number, &number.to_be_bytes(), b"1"));
        let pin = State::pin(&state, KEYS);
        (1..=KEYS).for_each(|number| put(&state, KEYS + number, &number.to_be_bytes(), b"2"));
        drop(pin);
        put(&state, 2 * KEYS + 1, b"another", b"3");
        assert!(state.read().old.len() as u64 >= KEYS - 2);
        // Without writes it goes, too.
        (0..10).for_each(|_| state.write().drop_old(KEYS as usize / 10));
        assert_eq!((state.read().old.len(), state.read().old_bytes), (0, 0));
    }

    /// There may be many later keys in a row.
    #[test]
    fn a_pin_shows_later_keys_without_records() {
        let state: Arc<RwLock<State>> = Arc::default();
        put(&state, 1, b"a", b"1");
        let pin = State::pin(&state, 1);
        put(&state, 2, b"b", b"2");
        state.write().make(3, ChangeRef::Delete { key: b"a" });
        let mut shown = Vec::new();
        pin.walk((b"", None), &mut |entry| {
            shown.push((entry.key.to_vec(), entry.record.is_some()));
            true
        });
        assert_eq!(shown, [(b"a".to_vec(), true), (b"b".to_vec(), false)]);
    }
}
