//! Tombstones that the index leads to, until it need not, and from then on.
//!
//! A tombstone stays in the stream as long as a page may have an older version of its key, which is as long as one is
//! left that was born with the tombstone, or before. In a log an older version is moved until the tombstone is applied
//! ([`entries`](super::entries)); so there it is the birth of the page that is open then.
//!
//! A delete searches the index three times: for what is there, to put the tombstone in its place, to take it out. From
//! then on it is [forgotten](super::tombstone), which is a push.

use super::tombstone::Tombstone;
use super::{List, Versions};
use crate::key::Key;
use coreplane_pmem::mutant;
use coreplane_record::{Kind, View};
use std::collections::VecDeque;
use std::collections::btree_map::Entry;

/// A tombstone that the index need not lead to once it is durable.
#[derive(Debug)]
pub(super) struct Grave {
    pub(super) key: Key,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) sequence: u64,
    /// Only a page that was born with this, or before, may have the key.
    pub(super) birth: u64,
}

impl List {
    /// The index leads no more to this tombstone, or record of a clear.
    pub(super) fn forget(&mut self, offset: u64, len: u32, birth: u64) {
        let page = self.stream.volume.space.page_of(offset);
        self.tombstones.add(page, Tombstone { offset, len, birth });
    }

    /// Up to which birth a page may have the key of a tombstone that was written in a page of this one. In a log the
    /// older version may have been moved since, until now: it lived until the tombstone was applied.
    pub(super) fn grave_birth(&self, written: u64) -> u64 {
        let is_later = self.is_log && !mutant!("mvcc.log.grave");
        if is_later { self.stream.end_position().birth } else { written }
    }

    pub(super) fn grave_of(&self, key: Key, view: &View<'_>) -> Grave {
        let birth = self.grave_birth(view.value_word(0).unwrap_or(u64::MAX));
        let (offset, len, sequence) = (view.offset, view.len(), view.sequence());
        Grave { key, offset, len, sequence, birth }
    }

    /// Those that are durable, and not held, need no entry any more.
    pub(super) fn bury_graves(&mut self) {
        while let Some(grave) = self.graves.front() {
            let offset = grave.offset;
            if self.stream.is_hidden(offset) || self.stream.covering(offset).is_some() {
                return;
            }
            let Some(grave) = self.graves.pop_front() else { return };
            // Where there is doubt a key is known to be gone by its tombstone alone.
            if self.damage.doubt.is_some() && !mutant!("mvcc.damage.grave") {
                continue;
            }
            if grave.sequence > self.held && !mutant!("mvcc.list.held") {
                continue;
            }
            // The last that is asked of its key, and so in one search.
            let Entry::Occupied(entry) = self.index.entry(grave.key) else { continue };
            if matches!(entry.get(), Versions::One(it) if *it == offset) {
                self.key_bytes -= entry.key().heap_bytes();
                entry.remove();
                self.horizon = self.horizon.max(grave.sequence);
                self.forget(offset, grave.len, grave.birth);
            }
        }
    }

    /// Those with a sequence above this are held.
    pub(super) fn hold_graves(&mut self, sequence: u64) {
        let is_raised = sequence > self.held;
        self.held = sequence;
        if !is_raised {
            return;
        }
        // Those that were held until now are looked at once more.
        let guard = coreplane_pmem::epoch::pin();
        let mut graves = VecDeque::new();
        for (key, versions) in &self.index {
            if let Versions::One(offset) = versions
                && let Ok(view) = self.stream.volume.view(&guard, *offset)
                && view.header.kind == Kind::Delete
            {
                graves.push_back(self.grave_of(key.clone(), &view));
            }
        }
        self.graves = graves;
        self.bury_graves();
    }
}
