//! The changes of a transaction so far.
//!
//! They are a [`Batch`] from the beginning, in the order in which they were made, so that a command that only writes
//! costs one copy of its key and value. Only commands that read need to know which change of a key is the last: for
//! the first of them the changes are indexed, by the hashes of their keys, and from then on as they come: so each
//! change is looked at once, however many commands count the records or draw one. The engine finds the last changes by
//! itself, once for all.
//!
//! A command that derives a new value from the old one may add much more than its own words: many of them on one
//! large value would add up. When the changes have grown to twice the size of the last ones, only the last change of
//! each key is kept. If those alone are more than a transaction may have, all are given up, and `EXEC` fails as a
//! whole.

use coreplane_engine::{
    Batch, ChangeRef, Entry, Error, Limits, Record, Result, Ticket, UnixMillis, Value,
};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// The changes of a transaction so far.
#[derive(Debug)]
pub(crate) struct Overlay {
    changes: Batch,
    index: Index,
    /// The time at which the transaction began, with which expiries are compared.
    began_at: UnixMillis,
    /// All records of the engine are to be removed.
    clears: bool,
    /// Bytes of changes above which only the last ones are kept.
    compact_above: usize,
    /// The limit of the bytes of the last changes, and their bytes if they exceeded it.
    bytes_max: usize,
    excess: Option<usize>,
}

/// Below so many bytes it is not worth while to keep only the last changes.
const COMPACT_MIN: usize = 1 << 20;

/// The limit of the bytes of changes in a transaction, unless its words have more.
const BYTES_MAX: usize = 1 << 30;

/// The last change with each hash.
#[derive(Debug, Default)]
struct Index {
    hasher: RandomState,
    last: HashMap<u64, usize>,
    /// For each indexed change the one before it with the same hash, nearly always of the same key.
    before: Vec<Option<usize>>,
    /// The changes that are the last of their keys, and make a record that has not expired, in no order.
    live: Vec<usize>,
    /// For each indexed change its place among those.
    places: Vec<Option<usize>>,
    /// Changes of which it is known whether the engine has a record of the key, and the keys of which it has one.
    counted: usize,
    replaced: u64,
}

impl Index {
    /// The last change of `key` among that with this number and those before it.
    fn last_of(&self, changes: &Batch, key: &[u8], mut at: Option<usize>) -> Option<usize> {
        while let Some(number) = at
            && changes.get(number).is_some_and(|change| change.key() != key)
        {
            at = self.before.get(number).copied().flatten();
        }
        at
    }

    /// Notes the next change, the last one of its key from now on.
    fn add(&mut self, changes: &Batch, change: ChangeRef<'_>, is_live: bool) {
        let number = self.before.len();
        let before = self.last.insert(self.hasher.hash_one(change.key()), number);
        self.before.push(before);
        let replaced = self.last_of(changes, change.key(), before);
        if let Some(place) = replaced.and_then(|it| self.places.get_mut(it)?.take()) {
            self.live.swap_remove(place);
            let moved = self.live.get(place).and_then(|it| self.places.get_mut(*it));
            moved.into_iter().for_each(|it| *it = Some(place));
        }
        self.places.push(is_live.then_some(self.live.len()));
        self.live.extend(is_live.then_some(number));
    }
}

/// The state of a key in an overlay.
pub(crate) enum Look<'a> {
    Present(Record<'a>),
    Absent,
    Unchanged,
}

impl Overlay {
    /// An overlay without changes, of a transaction that began at this time, with room for those of so many commands,
    /// whose words have so many bytes.
    pub(crate) fn with_capacity(began_at: UnixMillis, commands: usize, bytes: usize) -> Self {
        Self {
            changes: Batch::with_capacity(commands, bytes),
            index: Index::default(),
            began_at,
            clears: false,
            compact_above: COMPACT_MIN.max(2 * bytes),
            bytes_max: BYTES_MAX.max(2 * bytes),
            excess: None,
        }
    }

    /// Writes `key`.
    #[inline]
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8], expires_at: Option<UnixMillis>) {
        if self.excess.is_some() {
            return;
        }
        self.changes.put_until(key, value, expires_at);
        self.bound();
    }

    /// Keeps only the last changes when the changes have outgrown them.
    #[inline]
    fn bound(&mut self) {
        if self.changes.bytes_len() > self.compact_above {
            self.compact();
        }
    }

    /// Keeps only the last change of each key.
    #[cold]
    fn compact(&mut self) {
        let mut last = Batch::new();
        for change in self.last_changes() {
            last.push(change);
        }
        self.compact_above = COMPACT_MIN.max(2 * last.bytes_len());
        if last.bytes_len() > self.bytes_max {
            self.excess = Some(last.bytes_len());
            last = Batch::new();
        }
        self.changes = last;
        self.index = Index::default();
    }

    /// # Errors
    /// [`Error::BatchTooLong`] if the changes were given up, since they were too many.
    pub(crate) fn check(&self) -> Result<()> {
        match self.excess {
            Some(bytes) => Err(Error::BatchTooLong { bytes, max: self.bytes_max }),
            None => Ok(()),
        }
    }

    /// Deletes `key`.
    pub(crate) fn delete(&mut self, key: &[u8]) {
        if self.excess.is_none() {
            self.changes.delete(key);
            self.bound();
        }
    }

    /// Adds all changes of a batch.
    pub(crate) fn add(&mut self, batch: &Batch) {
        if self.excess.is_some() {
            return;
        }
        for change in batch.changes() {
            self.changes.push(change);
        }
        self.bound();
    }

    /// Deletes everything.
    pub(crate) fn clear(&mut self) {
        (self.changes, self.index) = (Batch::new(), Index::default());
        self.clears = true;
    }

    /// The time at which the transaction began.
    pub(crate) fn began_at(&self) -> UnixMillis {
        self.began_at
    }

    /// True if all records of the engine are to be removed.
    pub(crate) fn clears(&self) -> bool {
        self.clears
    }

    /// True if no key was changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Indexes the changes that are not indexed yet.
    fn catch_up(&mut self) {
        while let Some(change) = self.changes.get(self.index.before.len()) {
            let is_live = live_record(change, self.began_at).is_some();
            self.index.add(&self.changes, change, is_live);
        }
    }

    /// The number of the last change of `key`; all changes are indexed.
    fn find(&self, key: &[u8]) -> Option<usize> {
        if self.index.before.is_empty() {
            return None;
        }
        let last = self.index.last.get(&self.index.hasher.hash_one(key)).copied();
        self.index.last_of(&self.changes, key, last)
    }

    /// True if `key` was written or deleted.
    pub(crate) fn changes(&mut self, key: &[u8]) -> bool {
        self.catch_up();
        self.find(key).is_some()
    }

    /// The state of `key`.
    pub(crate) fn look(&mut self, key: &[u8]) -> Look<'_> {
        self.catch_up();
        match self.find(key).and_then(|at| self.changes.get(at)) {
            Some(change) => live_record(change, self.began_at).map_or(Look::Absent, Look::Present),
            None if self.clears => Look::Absent,
            None => Look::Unchanged,
        }
    }

    /// The last change of each key.
    pub(crate) fn last_changes(&mut self) -> Vec<ChangeRef<'_>> {
        self.catch_up();
        let changes = self.changes.changes().enumerate();
        changes.filter(|(at, change)| self.find(change.key()) == Some(*at)).map(|it| it.1).collect()
    }

    /// The number of records that will be written.
    pub(crate) fn live_len(&mut self) -> u64 {
        self.catch_up();
        self.index.live.len() as u64
    }

    /// The key of one of those, by its number among them.
    pub(crate) fn live_key(&self, number: u64) -> Option<&[u8]> {
        let number = self.index.live.get(usize::try_from(number).ok()?)?;
        self.changes.get(*number).map(|change| change.key())
    }

    /// Shows at most `count` of them from a number on, in no order; returns the next number, none at the end.
    pub(crate) fn live(
        &mut self,
        from: usize,
        count: usize,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Option<usize> {
        self.catch_up();
        let numbers = self.index.live.iter().skip(from).take(count);
        for change in numbers.filter_map(|number| self.changes.get(*number)) {
            let record = live_record(change, self.began_at);
            visit(Entry { key: change.key(), record, sequence: 0 });
        }
        let next = from.saturating_add(count);
        (next < self.index.live.len()).then_some(next)
    }

    /// The number of changed keys of which the engine has a record, as `has` says.
    ///
    /// # Errors
    /// As `has`.
    pub(crate) fn replaced(&mut self, has: &mut dyn FnMut(&[u8]) -> Result<bool>) -> Result<u64> {
        self.catch_up();
        while let Some(change) = self.changes.get(self.index.counted) {
            let before = self.index.before.get(self.index.counted).copied().flatten();
            if self.index.last_of(&self.changes, change.key(), before).is_none() {
                self.index.replaced += u64::from(has(change.key())?);
            }
            self.index.counted += 1;
        }
        Ok(self.index.replaced)
    }

    /// The changes as a batch within these limits, if so few keys were changed.
    ///
    /// # Errors
    /// As [`Overlay::check`].
    pub(crate) fn into_batch(mut self, limits: &Limits) -> Result<Batch> {
        if self.changes.check(limits).is_err() {
            self.compact();
        }
        // This step, too, may find that they are too many.
        self.check()?;
        Ok(self.changes)
    }
}

/// The record that a change makes, unless it has expired.
fn live_record(change: ChangeRef<'_>, now: UnixMillis) -> Option<Record<'_>> {
    match change {
        ChangeRef::Put { value, expires_at, .. } if expires_at.is_none_or(|at| at > now) => {
            let value = Value::Whole(value);
            Some(Record { value, sequence: 0, expires_at, ticket: Ticket::DURABLE })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_conformance::model::ModelEngine;
    use coreplane_engine::Engine;

    fn seen(overlay: &mut Overlay, key: &[u8]) -> Option<Option<Vec<u8>>> {
        match overlay.look(key) {
            Look::Present(record) => Some(Some(record.value.to_vec())),
            Look::Absent => Some(None),
            Look::Unchanged => None,
        }
    }

    #[test]
    fn the_last_change_of_a_key_counts() {
        let mut overlay = Overlay::with_capacity(UnixMillis(5), 0, 0);
        assert_eq!(seen(&mut overlay, b"a"), None);
        overlay.put(b"a", b"1", None);
        overlay.put(b"b", b"1", Some(UnixMillis(5)));
        overlay.put(b"a", b"2", Some(UnixMillis(6)));
        assert_eq!(seen(&mut overlay, b"a"), Some(Some(b"2".to_vec())));
        assert_eq!(seen(&mut overlay, b"b"), Some(None), "expired");
        assert_eq!(seen(&mut overlay, b"c"), None);
        overlay.delete(b"a");
        overlay.put(b"c", b"3", None);
        assert_eq!(seen(&mut overlay, b"a"), Some(None));
        let mut live = Vec::new();
        let mut next = Some(0);
        while let Some(from) = next {
            next = overlay.live(from, 2, &mut |entry| live.push(entry.key.to_vec()));
        }
        assert_eq!(live, [b"c"]);
        assert_eq!(overlay.last_changes().len(), 3);
        overlay.clear();
        assert!(overlay.is_empty() && overlay.clears());
        assert_eq!(seen(&mut overlay, b"c"), Some(None));
    }

    #[test]
    fn new_values_of_a_large_one_do_not_add_up() {
        let mut overlay = Overlay::with_capacity(UnixMillis(5), 1000, 10_000);
        overlay.put(b"other", b"value", None);
        let mut value = vec![7; 100_000];
        for round in 0..1000_u32 {
            value.extend_from_slice(&round.to_le_bytes());
            overlay.put(b"large", &value, None);
            let most = COMPACT_MIN.max(2 * (value.len() + 15)) + value.len() + 5;
            assert!(overlay.changes.bytes_len() <= most, "round {round}");
            assert_eq!(seen(&mut overlay, b"large"), Some(Some(value.clone())));
        }
        assert_eq!(seen(&mut overlay, b"other"), Some(Some(b"value".to_vec())));
        assert_eq!(overlay.last_changes().len(), 2);
    }

    #[test]
    fn copies_of_a_large_value_do_not_add_up() {
        let mut overlay = Overlay::with_capacity(UnixMillis(5), 1000, 10_000);
        let value = vec![7; 100_000];
        for round in 0..1000_u32 {
            // As COPY and RENAME make them.
            let mut batch = Batch::new();
            batch.put(if round % 2 == 0 { b"a" } else { b"b" }, &value);
            batch.delete(if round % 2 == 0 { b"b" } else { b"a" });
            overlay.add(&batch);
            let most = COMPACT_MIN.max(2 * (value.len() + 2)) + value.len() + 2;
            assert!(overlay.changes.bytes_len() <= most, "round {round}");
        }
        assert_eq!(seen(&mut overlay, b"b"), Some(Some(value)));
        assert_eq!(seen(&mut overlay, b"a"), Some(None));
    }

    #[test]
    fn changes_that_are_too_many_are_given_up_as_a_whole() {
        let mut overlay =
            Overlay { bytes_max: 3 << 20, ..Overlay::with_capacity(UnixMillis(5), 1000, 10_000) };
        let value = vec![7; 1 << 20];
        for number in 0..1000_u32 {
            // Each change has another key: none replaces another.
            match number % 3 {
                0 => overlay.put(&number.to_le_bytes(), &value, None),
                1 => overlay.delete(&number.to_le_bytes()),
                _ => {
                    let mut batch = Batch::new();
                    batch.put(&number.to_le_bytes(), &value);
                    overlay.add(&batch);
                }
            }
            assert!(overlay.changes.bytes_len() <= 8 << 20, "change {number}");
        }
        overlay.clear();
        overlay.put(b"k", b"v", None);
        assert!(matches!(overlay.check(), Err(Error::BatchTooLong { max: 0x30_0000, .. })));
        assert!(overlay.is_empty());
    }

    #[test]
    fn changes_that_are_found_to_be_too_many_at_the_end_are_no_empty_batch() {
        let mut overlay =
            Overlay { bytes_max: 3 << 20, ..Overlay::with_capacity(UnixMillis(5), 1000, 2 << 20) };
        // Below the size that is checked while they are made.
        (0..15_u32).for_each(|at| overlay.put(&at.to_le_bytes(), &vec![7; 250 << 10], None));
        overlay.check().expect("nobody knows yet");
        let bytes_max = 1 << 20;
        let limits = Limits {
            batch_len_max: 100,
            batch_bytes_max: bytes_max,
            ..ModelEngine::new().limits()
        };
        assert!(matches!(overlay.into_batch(&limits), Err(Error::BatchTooLong { .. })));
    }

    #[test]
    fn a_batch_over_the_limits_has_the_last_changes_alone() {
        for (batch_len_max, batch_bytes_max) in [(10, 100), (100, 10)] {
            let mut overlay = Overlay::with_capacity(UnixMillis(5), 0, 0);
            for round in 0..10_u8 {
                overlay.put(b"a", &[round], None);
                overlay.put(b"b", &[round], None);
            }
            let (key_len_max, value_len_max) = (100, 100);
            let limits = Limits { key_len_max, value_len_max, batch_len_max, batch_bytes_max };
            let batch = overlay.into_batch(&limits).expect("few enough");
            assert_eq!(batch.len(), 2);
            assert!(batch.changes().all(|change| change.value() == Some(&[9])));
        }
    }
}
