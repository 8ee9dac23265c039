//! The newest entries in DRAM, for followers that lag slightly, and for watchers of changes.
//!
//! ```text
//!   dropped ── │ held for a node that is being filled ── │ the newest, of bytes_max ── newest
//! ```
//!
//! The ring drops its oldest entries when it has more than its bytes. While a node is being filled, it holds the
//! entries behind the snapshot of that node, up to a greater number of bytes: when the snapshot has arrived the node
//! goes on with them. If they were dropped, it would be sent another snapshot, and so on as long as writes continue.

use coreplane_pmem::mutant;
use raft::eraftpb::Entry;
use std::collections::VecDeque;

/// Bytes that an entry takes in the ring beside its data.
const PER_ENTRY: usize = 64;

/// Bytes that an entry takes in the ring.
pub(crate) fn bytes_of(entry: &Entry) -> usize {
    entry.data.len() + entry.context.len() + PER_ENTRY
}

/// The newest entries.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Without a gap up to the newest entry of the log.
    entries: VecDeque<Entry>,
    bytes: usize,
    bytes_max: usize,
    /// Most bytes while entries are held.
    held_bytes_max: usize,
    /// The entry behind which entries are held.
    pub(crate) held_behind: Option<u64>,
}

impl Ring {
    /// An empty ring of at most so many bytes, and of so many while entries are held.
    pub(crate) fn new(bytes_max: usize, held_bytes_max: usize) -> Self {
        let held_bytes_max = held_bytes_max.max(bytes_max);
        Self { entries: VecDeque::new(), bytes: 0, bytes_max, held_bytes_max, held_behind: None }
    }

    /// The index of the oldest entry; [`u64::MAX`] if there is none.
    pub(crate) fn first(&self) -> u64 {
        self.entries.front().map_or(u64::MAX, |entry| entry.index)
    }

    /// The entry with this index.
    pub(crate) fn get(&self, index: u64) -> Option<&Entry> {
        self.entries.get(usize::try_from(index.checked_sub(self.first())?).ok()?)
    }

    /// The entries behind this index, from the oldest on.
    pub(crate) fn behind(&self, index: u64) -> impl Iterator<Item = &Entry> {
        let skipped = index.saturating_add(1).saturating_sub(self.first());
        self.entries.iter().skip(usize::try_from(skipped).unwrap_or(usize::MAX))
    }

    /// Adds the entry behind the newest one.
    pub(crate) fn push(&mut self, entry: Entry) {
        self.bytes += bytes_of(&entry);
        self.entries.push_back(entry);
    }

    /// Adds the entry before the oldest one.
    pub(crate) fn push_oldest(&mut self, entry: Entry) {
        self.bytes += bytes_of(&entry);
        self.entries.push_front(entry);
    }

    /// Removes the entries from this index on.
    pub(crate) fn cut(&mut self, from: u64) {
        while let Some(entry) = self.entries.pop_back_if(|entry| entry.index >= from) {
            self.bytes -= bytes_of(&entry);
        }
    }

    /// Drops the oldest entries of a ring that is too long: the index and the term of the last one, if there is one.
    pub(crate) fn shorten(&mut self) -> Option<(u64, u64)> {
        let mut gone = None;
        // The newest entry stays, however long it is: watchers have to see it.
        while self.entries.len() > 1 && self.bytes > self.most() {
            let Some(entry) = self.entries.pop_front() else { break };
            self.bytes -= bytes_of(&entry);
            gone = Some((entry.index, entry.term));
        }
        gone
    }

    /// True if the entries behind this one stay without a hold, and as many bytes of new ones.
    pub(crate) fn keeps_all_behind(&self, index: u64) -> bool {
        let mut left = self.bytes_max / 2;
        let mut behind = self.entries.iter().rev().take_while(|entry| entry.index > index);
        behind.all(|entry| {
            let fits = bytes_of(entry) <= left;
            left = left.saturating_sub(bytes_of(entry));
            fits
        })
    }

    /// The most bytes that the ring has as long as its oldest entry stays.
    fn most(&self) -> usize {
        let is_held = self.held_behind.is_some_and(|behind| self.first() > behind);
        match is_held && !mutant!("replica.ring.unheld") {
            true => self.held_bytes_max,
            false => self.bytes_max,
        }
    }
}
