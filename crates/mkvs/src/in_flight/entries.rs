//! The entries of a stripe: mostly one, of a write that all devices have by now, which lies in the stripe itself.

use super::Entry;
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
    pub(super) fn find(&mut self, hash: u64) -> Option<&mut Entry> {
        self.iter_mut().find(|entry| entry.hash == hash)
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
    pub(super) fn end(&mut self, hash: u64, is_over: impl FnOnce(&mut Entry) -> bool) -> bool {
        let is_over = self.find(hash).is_some_and(is_over);
        if is_over {
            self.first.take_if(|entry| entry.hash == hash);
            self.rest.retain(|entry| entry.hash != hash);
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

    #[test]
    fn entries_come_and_go_in_any_order() {
        let mut entries = Entries::default();
        let hashes = |entries: &Entries| entries.iter().map(|it| it.hash).collect::<Vec<_>>();
        for hash in 1..=4 {
            entries.push(Entry::new(hash, hash, 0, false));
        }
        assert_eq!((hashes(&entries), entries.len()), (vec![1, 2, 3, 4], 4));
        assert!(entries.only().is_none());
        assert!(
            !entries.end(1, |_| false) && !entries.end(3, |_| false) && !entries.end(5, |_| true)
        );
        assert!(entries.end(1, |_| true) && entries.end(3, |_| true));
        assert_eq!((hashes(&entries), entries.len()), (vec![2, 4], 2));
        assert!(entries.only().is_none(), "it is not in the stripe");
        entries.push(Entry::new(5, 5, 0, false));
        assert_eq!(hashes(&entries), [5, 2, 4]);
        assert_eq!(entries.find(4).map(|entry| entry.write.sequence), Some(4));
        assert!(entries.find(1).is_none());
        // Those that all devices have go.
        for hash in [5, 2] {
            let entry = entries.find(hash).expect("there");
            (entry.write.done, entry.wanted) = (0b11, 0b11);
        }
        assert!(entries.sweep().is_none());
        assert_eq!(hashes(&entries), [4]);
        assert!(entries.vacant().is_none(), "one is elsewhere");
        entries.clear();
        assert_eq!((entries.len(), entries.find(4).is_none()), (0, true));
        *entries.vacant().expect("none is left") = Some(Entry::new(6, 6, 0, false));
        assert!(entries.vacant().is_none());
        assert_eq!(entries.only().map(|entry| entry.hash), Some(6));
    }
}
