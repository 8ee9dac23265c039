//! Reading: down the tree, one line of tags, the record. No lock, no fence, no copy.

use crate::counters::Count;
use crate::leaf::{Directory, Head};
use crate::store::Store;
use coreplane_engine::{Entry, Found, Record, Result, Ticket, Value};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::{Kind, View};

impl Store {
    /// Looks at the leaf that serves `key` until it has held still meanwhile.
    fn find<'g>(&'g self, guard: &'g Guard, key: &[u8]) -> Result<Option<Whole<'g>>> {
        loop {
            let descent = self.inner.descend(key);
            let leaf = self.leaves.get(descent.leaf as usize);
            leaf.prefetch();
            self.space.prefetch_page(descent.leaf);
            let Some(version) = leaf.version() else { continue };
            if !self.inner.is_current(&descent) {
                continue;
            }
            let seen = self.look(guard, descent.leaf, leaf, key).and_then(|standing| {
                let live = standing.old.filter(|_| standing.live);
                live.map(|view| self.whole(guard, view)).transpose()
            });
            // The pages of a large value are given back only when its record is gone.
            if leaf.is_at(version) {
                return seen;
            }
        }
    }

    /// A record with its value, as long as the guard lives. The record is still there.
    pub(crate) fn whole<'g>(&'g self, guard: &'g Guard, view: View<'g>) -> Result<Whole<'g>> {
        let pieces = if view.header.large && view.header.kind == Kind::Put {
            let pieces = self.pieces_of(guard, &view, false)?;
            pieces.into_iter().map(|(_, bytes)| bytes).collect()
        } else {
            Vec::new()
        };
        Ok(Whole { view, pieces })
    }

    pub(crate) fn get_with(&self, key: &[u8], visit: &mut dyn FnMut(Record<'_>)) -> Result<Found> {
        let guard = epoch::pin();
        let found = self.find(&guard, key)?;
        if let Some(whole) = &found {
            visit(whole.record());
        }
        self.counters.add(if found.is_some() { Count::Hits } else { Count::Misses }, 1);
        Ok(Found { hit: found.is_some(), ticket: Ticket::DURABLE })
    }

    /// All records and tombstones of the leaf that serves `key` (or, if `before`, of the one that
    /// serves what is just below it), in the order of keys; and its head.
    pub(crate) fn leaf_of<'g>(
        &'g self,
        guard: &'g Guard,
        key: Option<&[u8]>,
        before: bool,
    ) -> Result<(Head, Vec<Whole<'g>>)> {
        loop {
            let descent = match key {
                Some(key) if !before => self.inner.descend(key),
                key => self.inner.descend_before(key),
            };
            let leaf = self.leaves.get(descent.leaf as usize);
            leaf.prefetch();
            self.space.prefetch_page(descent.leaf);
            let Some(version) = leaf.version() else { continue };
            if !self.inner.is_current(&descent) {
                continue;
            }
            let seen = self.read_leaf(guard, descent.leaf, leaf);
            if leaf.is_at(version) {
                return seen;
            }
        }
    }

    fn read_leaf<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        leaf: &Directory,
    ) -> Result<(Head, Vec<Whole<'g>>)> {
        let head = self.head_of(guard, page)?;
        let mut used = leaf.used();
        let mut records = Vec::with_capacity(used.count_ones() as usize);
        while used != 0 {
            let view = self.record_at(guard, page, leaf, used.trailing_zeros() as usize)?;
            records.push(self.whole(guard, view)?);
            used &= used - 1;
        }
        records.sort_unstable_by_key(|whole| whole.view.key());
        Ok((head, records))
    }
}

/// A record or tombstone, and its value if that is large.
pub(crate) struct Whole<'g> {
    pub(crate) view: View<'g>,
    pieces: Vec<&'g [u8]>,
}

impl Whole<'_> {
    pub(crate) fn record(&self) -> Record<'_> {
        let is_large = self.view.header.large;
        Record {
            value: if is_large {
                Value::Pieces(&self.pieces)
            } else {
                Value::Whole(self.view.value())
            },
            sequence: self.view.sequence(),
            expires_at: self.view.header.expires_at,
            ticket: Ticket::DURABLE,
        }
    }

    pub(crate) fn entry(&self) -> Entry<'_> {
        let record = Some(self.record());
        Entry { key: self.view.key(), record, sequence: self.view.sequence() }
    }
}
