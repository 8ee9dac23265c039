//! Records that stay in the stream although the index does not lead to them: durable tombstones, records of clears,
//! and control records that rolled back.
//!
//! They are noted by page, since only the cleaner of a page looks for them, and takes all of them. They come in the
//! order of the stream, so that nearly every one is in the page of the one before: noting one costs a push.

use std::collections::BTreeMap;

/// A record that states that others are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tombstone {
    pub(super) offset: u64,
    /// Bytes in the stream.
    pub(super) len: u32,
    /// Only a page with this birth, or a lesser one, may have the records that it states are gone.
    pub(super) birth: u64,
}

/// All such records.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    /// The page that was added to last, and its records.
    last: (u32, Vec<Tombstone>),
    /// The records of other pages.
    others: BTreeMap<u32, Vec<Tombstone>>,
    bytes: u64,
}

impl Tombstones {
    /// Adds a record of this page, once.
    pub(super) fn add(&mut self, page: u32, one: Tombstone) {
        if self.last.0 != page {
            let its = self.others.remove(&page).unwrap_or_default();
            let (before, full) = std::mem::replace(&mut self.last, (page, its));
            if !full.is_empty() {
                self.others.insert(before, full);
            }
        }
        self.bytes += u64::from(one.len);
        self.last.1.push(one);
    }

    /// The records of a page in the order of their offsets, in which most of them are added.
    pub(super) fn sorted(&mut self, page: u32) -> &[Tombstone] {
        let its = match self.last.0 == page {
            true => Some(&mut self.last.1),
            false => self.others.get_mut(&page),
        };
        its.map_or(&[], |its| {
            its.sort_by_key(|it| it.offset);
            its
        })
    }

    /// Removes and returns the records of a page.
    pub(super) fn take_page(&mut self, page: u32) -> Vec<Tombstone> {
        let taken = match self.last.0 == page {
            true => std::mem::take(&mut self.last.1),
            false => self.others.remove(&page).unwrap_or_default(),
        };
        self.bytes -= taken.iter().map(|it| u64::from(it.len)).sum::<u64>();
        taken
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Tombstone> {
        self.others.values().flatten().chain(&self.last.1)
    }

    /// Their bytes in the stream.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn dram_bytes(&self) -> u64 {
        let slots: usize = self.others.values().map(Vec::capacity).sum();
        ((slots + self.last.1.capacity()) * size_of::<Tombstone>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_a_page_are_together_whatever_the_order_that_they_came_in() {
        let mut all = Tombstones::default();
        let one = |offset| Tombstone { offset, len: 10, birth: offset };
        for (page, offset) in [(3, 1), (3, 2), (0, 6), (3, 4), (7, 5), (0, 3)] {
            all.add(page, one(offset));
        }
        let offsets = |its: &[Tombstone]| its.iter().map(|it| it.offset).collect::<Vec<_>>();
        assert_eq!(offsets(all.sorted(3)), [1, 2, 4]);
        assert_eq!(offsets(all.sorted(0)), [3, 6]);
        assert_eq!((all.all().count(), all.bytes()), (6, 60));
        assert_eq!(offsets(&all.take_page(0)), [3, 6]);
        assert_eq!(offsets(&all.take_page(3)), [1, 2, 4]);
        assert!(all.sorted(3).is_empty() && all.take_page(3).is_empty());
        assert_eq!((all.all().count(), all.bytes()), (1, 10));
    }
}
