//! The entries of a stripe: mostly one, of a write that all devices have by now, which lies in the stripe itself.

use super::{Entry, KeyId};
use crate::in_flight::track::OnTheWay;

/// The entries. Those beside the first are elsewhere, in memory that is kept for the next ones.
#[derive(Debug, Default)]
pub(super) struct Entries {
    first: Option<Entry>,
    rest: Vec<Entry>,
}

impl Entries {
    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.first.iter().chain(&self.rest)
    }

    #[inline]
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.first.iter_mut().chain(&mut self.rest)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    #[inline]
    pub(super) fn find(&mut self, id: KeyId) -> Option<&mut Entry> {
        self.iter_mut().find(|entry| entry.id == id)
    }

    /// The entry that is the only one.
    #[inline(always)]
    pub(super) fn only(&mut self) -> Option<&mut Entry> {
        self.first.as_mut().filter(|_| self.rest.is_empty())
    }

    /// The place in the stripe, if there is no entry.
    #[inline(always)]
    pub(super) fn vacant(&mut self) -> Option<&mut Option<Entry>> {
        (self.first.is_none() && self.rest.is_empty()).then_some(&mut self.first)
    }

    pub(super) fn push(&mut self, entry: Entry) {
        match &mut self.first {
            none @ None => *none = Some(entry),
            Some(_) => self.rest.push(entry),
        }
    }

    /// Drops finished entries; a way on which the last of these had come.
    #[inline]
    pub(super) fn sweep(&mut self) -> Option<OnTheWay> {
        let mut come = None;
        if self.first.as_mut().is_some_and(|entry| entry.look(&mut come)) {
            self.first = None;
        }
        self.rest.retain_mut(|entry| !entry.look(&mut come));
        come
    }

    /// Drops the entry of a key if `is_over`; true if it was.
    #[inline]
    pub(super) fn end(&mut self, id: KeyId, is_over: impl FnOnce(&mut Entry) -> bool) -> bool {
        let is_over = self.find(id).is_some_and(is_over);
        if is_over {
            self.first.take_if(|entry| entry.id == id);
            self.rest.retain(|entry| entry.id != id);
        }
        is_over
    }

    pub(super) fn clear(&mut self) {
        self.first = None;
        self.rest.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64) -> Entry {
        Entry::new((0, KeyId(id)), id, 0, false)
    }

    #[test]
    fn entries_come_and_go_in_any_order() {
        let mut entries = Entries::default();
        let hashes = |entries: &Entries| entries.iter().map(|it| it.id.0).collect::<Vec<_>>();
        for hash in 1..=4 {
            entries.push(entry(hash));
        }
        assert_eq!((hashes(&entries), entries.len()), (vec![1, 2, 3, 4], 4));
        assert!(entries.only().is_none());
        assert!(
            !entries.end(KeyId(1), |_| false)
                && !entries.end(KeyId(3), |_| false)
                && !entries.end(KeyId(5), |_| true)
        );
        assert!(entries.end(KeyId(1), |_| true) && entries.end(KeyId(3), |_| true));
        assert_eq!((hashes(&entries), entries.len()), (vec![2, 4], 2));
        assert!(entries.only().is_none(), "it is not in the stripe");
        entries.push(entry(5));
        assert_eq!(hashes(&entries), [5, 2, 4]);
        assert_eq!(entries.find(KeyId(4)).map(|entry| entry.write.sequence), Some(4));
        assert!(entries.find(KeyId(1)).is_none());
        // Those that all devices have go.
        for hash in [5, 2] {
            let entry = entries.find(KeyId(hash)).expect("there");
            (entry.write.done, entry.wanted) = (0b11, 0b11);
        }
        assert!(entries.sweep().is_none());
        assert_eq!(hashes(&entries), [4]);
        assert!(entries.vacant().is_none(), "one is elsewhere");
        entries.clear();
        assert_eq!((entries.len(), entries.find(KeyId(4)).is_none()), (0, true));
        *entries.vacant().expect("none is left") = Some(entry(6));
        assert!(entries.vacant().is_none());
        assert_eq!(entries.only().map(|entry| entry.id.0), Some(6));
    }
}
