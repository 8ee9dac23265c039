//! Tombstones while the index leads to them, and their transition to forgotten ones.
//!
//! A tombstone stays in the stream as long as a page may have an older version of its key: as long as a page is left
//! whose birth is that of the tombstone, or lesser. In a log an older version is moved until the tombstone is applied
//! ([`entries`](super::entries)); so there the birth of the page that is open at that moment counts.
//!
//! A delete searches the index three times: for the existing record, to put the tombstone in its place, and to take
//! that out. From then on the tombstone is [forgotten](super::tombstone), which costs a push.

use super::tombstone::Tombstone;
use super::{List, Versions};
use crate::key::Key;
use coreplane_pmem::{epoch, mutant};
use coreplane_record::{Kind, View};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

/// The most tombstones that are held no longer and forgotten at a time.
const AT_ONCE: usize = 1024;

/// A tombstone that the index need not lead to once it is durable.
#[derive(Debug)]
pub(super) struct Grave {
    pub(super) key: Key,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) sequence: u64,
    /// Only a page with this birth, or a lesser one, may have the key.
    pub(super) birth: u64,
}

/// The tombstones that the index leads to.
#[derive(Debug, Default)]
pub(super) struct Graves {
    /// Those that wait to be durable, in the order of the stream.
    waiting: VecDeque<Grave>,
    /// Those that are durable and held, by sequence and offset.
    held: BTreeMap<(u64, u64), Grave>,
}

impl Graves {
    pub(super) fn push(&mut self, grave: Grave) {
        self.waiting.push_back(grave);
    }

    /// The index leads to a newer version of the key in place of this tombstone.
    pub(super) fn replaced(&mut self, tombstone: &View<'_>) {
        self.held.remove(&(tombstone.sequence(), tombstone.offset));
    }

    /// A tombstone was moved, and the index leads to the copy.
    pub(super) fn moved(&mut self, tombstone: &View<'_>, to: u64) {
        let (sequence, from) = (tombstone.sequence(), tombstone.offset);
        if let Some(grave) = self.held.remove(&(sequence, from)) {
            self.held.insert((sequence, to), Grave { offset: to, ..grave });
        }
        let waiting = self.waiting.iter_mut().filter(|it| it.offset == from);
        waiting.for_each(|it| it.offset = to);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The first of those that are durable, if it has a sequence up to this: it is held no longer.
    fn let_go(&mut self, sequence: u64) -> Option<Grave> {
        let first = self.held.first_entry()?;
        (first.key().0 <= sequence).then(|| first.remove())
    }

    /// True if none waits to be durable.
    pub(super) fn is_settled(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn dram_bytes(&self) -> u64 {
        ((self.waiting.capacity() + self.held.len() * 10 / 7) * size_of::<Grave>()) as u64
    }
}

impl List {
    /// The index no longer leads to this tombstone, or to this record of a clear.
    pub(super) fn forget(&mut self, offset: u64, len: u32, birth: u64) {
        let page = self.stream.volume.space.page_of(offset);
        self.tombstones.add(page, Tombstone { offset, len, birth });
    }

    /// Everything before the record that was just appended is gone: what was forgotten need not say so any more.
    pub(super) fn supersede_forgotten(&mut self) {
        for it in std::mem::take(&mut self.tombstones).all() {
            self.stream.supersede(it.offset, it.len);
        }
    }

    /// The greatest birth of a page that may have the key of a tombstone that was written in a page of birth
    /// `written`. In a log the older version may have been moved until now: it was live until the tombstone was
    /// applied.
    pub(super) fn grave_birth(&self, written: u64) -> u64 {
        let is_later = self.is_log && !mutant!("mvcc.log.grave");
        if is_later { self.stream.end_position().birth } else { written }
    }

    pub(super) fn grave_of(&self, key: Key, view: &View<'_>) -> Grave {
        let birth = self.grave_birth(view.value_word(0).unwrap_or(u64::MAX));
        let (offset, len, sequence) = (view.offset, view.len(), view.sequence());
        Grave { key, offset, len, sequence, birth }
    }

    /// Forgets tombstones that are durable and not held: they need no entry in the index any more.
    pub(super) fn bury_graves(&mut self) {
        while let Some(grave) = self.graves.waiting.front() {
            let offset = grave.offset;
            if self.stream.is_hidden(offset) || self.stream.covering(offset).is_some() {
                return;
            }
            let Some(grave) = self.graves.waiting.pop_front() else { return };
            // While there is doubt, only its tombstone shows that a key is gone.
            if self.damage.doubt.is_some() && !mutant!("mvcc.damage.grave") {
                continue;
            }
            if grave.sequence > self.held && !mutant!("mvcc.list.held") {
                // It may have been replaced before it was known to be durable.
                let newest = self.index.get(&grave.key).map(|it| it.newest());
                if newest == Some(offset) || mutant!("mvcc.list.held_replaced") {
                    self.graves.held.insert((grave.sequence, offset), grave);
                }
                continue;
            }
            self.bury_grave(grave);
        }
    }

    fn bury_grave(&mut self, Grave { key, offset, len, sequence, birth }: Grave) {
        let is_there = self.is_tombstone(offset, sequence);
        // The last access to its key, done in one search.
        let Entry::Occupied(entry) = self.index.entry(key) else { return };
        if is_there && matches!(entry.get(), Versions::One(it) if *it == offset) {
            self.key_bytes -= entry.key().heap_bytes();
            entry.remove();
            self.horizon = self.horizon.max(sequence);
            self.forget(offset, len, birth);
        }
    }

    /// True if this tombstone is at `offset`, and not another record, of a later life of the page.
    fn is_tombstone(&self, offset: u64, sequence: u64) -> bool {
        let guard = epoch::pin();
        let view = self.stream.volume.view(&guard, offset);
        view.is_ok_and(|it| it.header.kind == Kind::Delete && it.sequence() == sequence)
    }

    /// Holds tombstones with a sequence above this; forgets some of the others. True if more are left.
    pub(super) fn hold_graves(&mut self, sequence: u64) -> bool {
        self.held = sequence;
        self.bury_graves();
        for _ in 0..AT_ONCE {
            match self.graves.let_go(sequence) {
                // While there is doubt, as above.
                Some(_) if self.damage.doubt.is_some() => {}
                Some(grave) => self.bury_grave(grave),
                None => return false,
            }
        }
        true
    }
}
