//! Reading: down the tree, one line of tags, the record. No lock, no fence, no copy.

use crate::store::Store;
use coreplane_engine::{Entry, Found, Record, Result, Ticket, Value};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::{Kind, View};

impl Store {
    /// Looks at the leaf that serves `key` until it has held still meanwhile.
    fn find<'g>(
        &'g self,
        guard: &'g Guard,
        key: &[u8],
    ) -> Result<Option<View<'g>>> {
        loop {
            let descent = self.inner.descend(key);
            let leaf = self.leaves.get(descent.leaf as usize);
            let Some(version) = leaf.version() else { continue };
            if !self.inner.is_current(&descent) {
                continue;
            }
            let seen = self.look(guard, descent.leaf, leaf, key);
            if leaf.is_at(version) {
                let standing = seen?;
                return Ok(standing.old.filter(|_| standing.live));
            }
        }
    }

    pub(crate) fn get_with(
        &self,
        key: &[u8],
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        let guard = epoch::pin();
        let found = self.find(&guard, key)?;
        if let Some(view) = &found {
            visit(record_of(view));
        }
        Ok(Found { hit: found.is_some(), ticket: Ticket::DURABLE })
    }

    /// All records and tombstones of the leaf that serves `key` (or, if `before`, of the one that
    /// serves what is just below it), in the order of keys; and its head.
    pub(crate) fn leaf_of<'g>(
        &'g self,
        guard: &'g Guard,
        key: Option<&[u8]>,
        before: bool,
    ) -> Result<(crate::leaf::Head, Vec<View<'g>>)> {
        loop {
            let descent = match key {
                Some(key) if !before => self.inner.descend(key),
                key => self.inner.descend_before(key),
            };
            let leaf = self.leaves.get(descent.leaf as usize);
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
        leaf: &crate::leaf::Directory,
    ) -> Result<(crate::leaf::Head, Vec<View<'g>>)> {
        let head = self.head_of(guard, page)?;
        let mut used = leaf.used();
        let mut records = Vec::with_capacity(used.count_ones() as usize);
        while used != 0 {
            records.push(self.record_at(guard, page, leaf, used.trailing_zeros() as usize)?);
            used &= used - 1;
        }
        records.sort_unstable_by_key(|view| view.key());
        Ok((head, records))
    }

    /// Shows the records between `start` and `end` in order, until `visit` says no or `limit` were
    /// shown.
    pub(crate) fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let mut from: Box<[u8]> = start.into();
        let mut shown = 0;
        while shown < limit {
            let guard = epoch::pin();
            let (head, records) = self.leaf_of(&guard, Some(&from), false)?;
            let first = records.partition_point(|view| view.key() < &*from);
            for view in &records[first..] {
                if shown >= limit || end.is_some_and(|end| view.key() >= end) {
                    return Ok(());
                }
                if view.header.kind == Kind::Put && !self.is_expired(view) {
                    shown += 1;
                    if !visit(entry_of(view)) {
                        return Ok(());
                    }
                }
            }
            match head.bound {
                Some(bound) if end.is_none_or(|end| &*bound < end) => from = bound,
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// As [`Store::scan`], from `end` down to `start`.
    pub(crate) fn scan_back(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let mut to: Option<Box<[u8]>> = end.map(Into::into);
        let mut shown = 0;
        while shown < limit {
            let guard = epoch::pin();
            let (head, records) = self.leaf_of(&guard, to.as_deref(), true)?;
            let below = |view: &View<'_>| to.as_ref().is_none_or(|to| view.key() < &**to);
            let last = records.partition_point(below);
            for view in records[..last].iter().rev() {
                if shown >= limit || view.key() < start {
                    return Ok(());
                }
                if view.header.kind == Kind::Put && !self.is_expired(view) {
                    shown += 1;
                    if !visit(entry_of(view)) {
                        return Ok(());
                    }
                }
            }
            if head.least.is_empty() || &*head.least <= start {
                return Ok(());
            }
            to = Some(head.least);
        }
        Ok(())
    }
}

pub(crate) fn record_of<'a>(view: &View<'a>) -> Record<'a> {
    Record {
        value: Value::Whole(view.value()),
        sequence: view.sequence(),
        expires_at: view.header.expires_at,
        ticket: Ticket::DURABLE,
    }
}

pub(crate) fn entry_of<'a>(view: &View<'a>) -> Entry<'a> {
    Entry { key: view.key(), record: Some(record_of(view)), sequence: view.sequence() }
}
