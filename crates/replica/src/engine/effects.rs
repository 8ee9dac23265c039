//! The effects of proposals: changes that were proposed here and are not applied yet, the newest of each key.
//!
//! The map shows applied entries only. A later write must see the proposals before it, and so must a read, whose
//! answer then waits for them.

use coreplane_engine::{ChangeRef, UnixMillis};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// The newest change of a key.
#[derive(Debug)]
pub(super) struct Newest {
    /// The number of its proposal.
    pub(super) number: u64,
    /// The index of its entry, which is the sequence of the record.
    pub(super) index: u64,
    /// None for a delete.
    pub(super) value: Option<Vec<u8>>,
    pub(super) expires_at: Option<UnixMillis>,
}

/// The newest changes of proposals that are not applied yet.
#[derive(Debug, Default)]
pub(super) struct Effects {
    newest: BTreeMap<Arc<[u8]>, Newest>,
    /// The keys of all proposals, each with the number of its own, the oldest first.
    order: VecDeque<(u64, Arc<[u8]>)>,
}

impl Effects {
    pub(super) fn add<'c>(
        &mut self,
        (number, index): (u64, u64),
        changes: impl Iterator<Item = ChangeRef<'c>>,
    ) {
        for change in changes {
            let (value, expires_at) = match change {
                ChangeRef::Put { value, expires_at, .. } => (Some(value.to_vec()), expires_at),
                ChangeRef::Delete { .. } => (None, None),
            };
            let newest = Newest { number, index, value, expires_at };
            let key: Arc<[u8]> = change.key().into();
            self.newest.insert(Arc::clone(&key), newest);
            self.order.push_back((number, key));
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Newest> {
        self.newest.get(key)
    }

    /// All proposals up to this one are applied.
    pub(super) fn applied(&mut self, number: u64) {
        while let Some((_, key)) = self.order.pop_front_if(|(first, _)| *first <= number) {
            if self.newest.get(&key).is_some_and(|newest| newest.number <= number) {
                self.newest.remove(&key);
            }
        }
    }

    /// Forgets proposals whose result is unknown.
    pub(super) fn clear(&mut self) {
        self.newest.clear();
        self.order.clear();
    }

    /// The last proposal; 0 if all are applied.
    pub(super) fn last(&self) -> u64 {
        self.order.back().map_or(0, |(number, _)| *number)
    }

    /// The number of keys with such changes.
    pub(super) fn len(&self) -> usize {
        self.newest.len()
    }

    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = (&[u8], &Newest)> {
        self.newest.iter().map(|(key, newest)| (&**key, newest))
    }

    /// The changes of a range of keys, in order.
    pub(super) fn range(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
    ) -> impl DoubleEndedIterator<Item = (&[u8], &Newest)> {
        // A range whose end is before its start is empty, and would cause a panic.
        let end = end.map_or(Bound::Unbounded, |end| Bound::Excluded(end.max(start)));
        let is_empty = matches!(end, Bound::Excluded(end) if end == start);
        let bounds = (Bound::Included(start), if is_empty { Bound::Included(start) } else { end });
        let found = self.newest.range::<[u8], _>(bounds).filter(move |_| !is_empty);
        found.map(|(key, newest)| (&**key, newest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_engine::Batch;

    #[test]
    fn the_newest_of_a_key_is_there_until_it_is_applied() {
        let mut effects = Effects::default();
        let mut batch = Batch::new();
        batch.put(b"a", b"1").put(b"b", b"1");
        effects.add((1, 10), batch.changes());
        let mut batch = Batch::new();
        batch.delete(b"a").put(b"c", b"2");
        effects.add((2, 11), batch.changes());
        assert_eq!(effects.get(b"a").unwrap().value, None);
        let keys = |effects: &Effects, start: &[u8], end: Option<&[u8]>| {
            effects.range(start, end).map(|it| it.0.to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(keys(&effects, b"b", None), [b"b", b"c"]);
        assert_eq!(keys(&effects, b"a", Some(b"c")), [b"a", b"b"]);
        assert!(keys(&effects, b"b", Some(b"a")).is_empty());
        assert!(keys(&effects, b"b", Some(b"b")).is_empty());
        effects.applied(1);
        assert!(effects.get(b"b").is_none());
        assert_eq!(effects.get(b"a").unwrap().index, 11);
        assert_eq!(effects.last(), 2);
        effects.applied(2);
        assert_eq!((effects.all().count(), effects.last()), (0, 0));
    }
}
