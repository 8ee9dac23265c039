//! The tree as a log: pending entries, and the state of the log in a commit.
//!
//! ```text
//!   stream   [a₅ b₅ E₅] [leaf' root' C₁] [a₆ E₆] [c₇ d₇ E₇] [C₂]
//!                                          ▲  │    ▲      ▲   │     C₁ applied 5, nothing is pending
//!                                          │  └────┼──────┤   │     C₂ applied 5, newest 7
//!                                          └───────┴──────┴───┘        E₇ ─▶ c₇, and E₆ ─▶ a₆
//! ```
//!
//! # The problem
//!
//! Pending records must be as durable as applied ones, must not be written twice, and must not be seen. In the
//! [list](crate::list) all records of the stream count, so rules are needed to exclude some of them. In a tree only
//! records count that a commit leads to.
//!
//! # The picture
//!
//! So a commit leads to the pending records, too. The record that closes an entry names the first of its changes, and
//! the record that closes the entry before it: the pending entries are a chain from the newest to the oldest, and the
//! commit names its newest entry beside the root. It also has the contents of a control record ([`Control::said`]).
//! Appending an entry writes its records and extends the chain; rolling back names an earlier entry; applying changes
//! the tree, which leads to the records where they are, and ends the chain at a later entry. All of it counts with
//! its commit, or not at all: so no later record ever makes a record void, and an entry that was rolled back cannot
//! come back, since nothing leads to it. An open reads these records, and no others.
//!
//! Records that a commit no longer leads to, rolled back or replaced, live as long as all others that a commit has
//! replaced ([`seal`](super::seal)).
//!
//! DRAM has the offsets of the records, and the keys that they change ([`room`]).
//!
//! # An alternative that was not taken
//!
//! A commit might state from which place of the stream on entries are pending, and an open might read all records
//! from there on. Then it would have to tell records that were rolled back, moved, or replaced by a snapshot from
//! those that count, as in the list, and pages in between could not be free.
//!
//! # Moves
//!
//! A record of the chain stays where it is: the record that names it would have to be written anew. So the cleaner
//! leaves a page with such a record until the entry is applied or rolled back; pages that it has met are examined
//! again then. The caller that appends has to bound how much is pending.
//!
//! # When an entry counts
//!
//! Where a fence is an instruction, readers see a record when it is durable. So only sealed records are made durable:
//! each fence of the stream comes behind a commit record. Before an entry is applied, it is sealed and durable as a
//! pending one. A power cut may undo its application, but not the entry itself.

mod found;
mod room;

pub(super) use found::{Found, find};

use super::Tree;
use super::seal::{Commit, Gone};
use crate::control::{Control, closing, closing_head, closing_len};
use crate::key::Key;
use crate::map::{Linked, Log, Map, Part, Places};
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

// media-format: begin pool
/// Bytes of the key of a record that closes an entry: the offset of its first change, and the offset of the record
/// that closes the entry before it if that was pending; 0 stands for none.
const LINKS: usize = 16;

fn links(first: u64, before: u64) -> [u8; LINKS] {
    let mut key = [0; LINKS];
    key[..8].copy_from_slice(&first.to_le_bytes());
    key[8..].copy_from_slice(&before.to_le_bytes());
    key
}
// media-format: end

/// An entry that is neither applied nor rolled back.
#[derive(Debug)]
struct Pending {
    /// The keys of its changes, in order, and the records of these.
    keys: Vec<Key>,
    changes: Vec<Part>,
    /// The record that closes it.
    closing: Part,
}

impl Pending {
    fn all(&self) -> impl Iterator<Item = &Part> {
        self.changes.iter().chain(std::iter::once(&self.closing))
    }
}

/// The state of a log beside the tree.
#[derive(Debug, Default)]
pub(super) struct Entries {
    control: Control,
    /// Pending entries, from the timestamp behind the applied one on.
    pending: VecDeque<Pending>,
    /// The keys of pending changes, and how many entries have each; the length of the longest since there were none.
    keys: BTreeMap<Key, u32>,
    longest_key: usize,
    /// Pages with records of pending entries, and how many each has.
    pages: HashMap<u32, u32>,
    /// Such pages that the cleaner has met, and pages that were not durable then.
    met: Vec<u32>,
}

impl Entries {
    fn of(&self, timestamp: u64) -> Option<&Pending> {
        let behind = timestamp.checked_sub(self.control.applied)?.checked_sub(1)?;
        self.pending.get(usize::try_from(behind).ok()?)
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.pending.iter().flat_map(Pending::all)
    }

    fn push(&mut self, entry: Pending, page_of: impl Fn(u64) -> u32) {
        for key in &entry.keys {
            self.longest_key = self.longest_key.max(key.len());
            *self.keys.entry(key.clone()).or_default() += 1;
        }
        for part in entry.all() {
            *self.pages.entry(page_of(part.offset)).or_default() += 1;
        }
        self.pending.push_back(entry);
    }

    /// Forgets the keys and pages of entries that are no longer pending.
    fn forget(&mut self, entries: &[Pending], page_of: impl Fn(u64) -> u32) {
        for entry in entries {
            for key in &entry.keys {
                match self.keys.get_mut(key) {
                    Some(count) if *count > 1 => *count -= 1,
                    _ => drop(self.keys.remove(key)),
                }
            }
            for page in entry.all().map(|part| page_of(part.offset)) {
                match self.pages.get_mut(&page) {
                    Some(count) if *count > 1 => *count -= 1,
                    _ => drop(self.pages.remove(&page)),
                }
            }
        }
        if self.keys.is_empty() {
            self.longest_key = 0;
        }
    }

    fn dram_bytes(&self) -> u64 {
        let of_entry = |it: &Pending| {
            it.changes.capacity() * size_of::<Part>() + it.keys.capacity() * size_of::<Key>()
        };
        let entries: usize = self.pending.iter().map(of_entry).sum();
        let heap: u64 = self.pending.iter().flat_map(|it| &it.keys).map(Key::heap_bytes).sum();
        let pending = entries + self.pending.capacity() * size_of::<Pending>();
        let keys = self.keys.len() * (size_of::<Key>() + 4) * 10 / 7;
        (pending + keys + 8 * self.pages.capacity()) as u64 + 2 * heap
    }
}

impl Tree {
    /// The state of the log for the next commit; empty for a tree that is no log.
    pub(super) fn said(&self) -> Vec<u8> {
        if !self.is_log {
            return Vec::new();
        }
        let last = self.entries.pending.back().map_or(0, |it| it.closing.offset);
        self.entries.control.said(last)
    }

    /// The most bytes of the record of the next commit.
    pub(super) fn commit_len_max(&self) -> usize {
        let said = if self.is_log { self.entries.control.said_len_max() } else { 0 };
        Commit::record_len(said)
    }

    /// The records of pending entries, for a count of live bytes.
    pub(super) fn pending_records(&self) -> impl Iterator<Item = Gone> + '_ {
        let gone =
            |part: &Part| Gone { offset: part.offset, len: part.len, is_large: part.is_large };
        self.entries.parts().map(gone)
    }

    pub(super) fn pending_dram_bytes(&self) -> u64 {
        self.entries.dram_bytes()
    }

    /// Takes over the entries that an open has found.
    pub(super) fn adopt_entries(&mut self, found: Found) {
        let Found { entries, chains } = found;
        self.entries = entries;
        if mutant!("mvcc.pending.page") {
            return;
        }
        let space = &self.stream.volume.space;
        for part in self.entries.parts() {
            self.stream.pages.add_live(space.page_of(part.offset), part.len);
        }
        self.stream.adopt_chain(&chains);
    }

    /// The page to clean, and its dead bytes. If the caller may not commit, none with records that are not durable.
    pub(super) fn victim(&mut self, may_commit: bool) -> Option<(u32, u32)> {
        loop {
            let (page, dead) = self.stream.pages.victim()?;
            let is_pending =
                self.entries.pages.contains_key(&page) && !mutant!("mvcc.pending.clean");
            if !is_pending && (may_commit || !self.stream.is_partly_hidden(page)) {
                return Some((page, dead));
            }
            self.stream.pages.keep(page);
            self.entries.met.push(page);
        }
    }

    /// Pages that the cleaner has met, and left as they were, may be cleaned now.
    pub(super) fn release_met(&mut self) {
        self.entries.met.drain(..).for_each(|page| self.stream.pages.close(page));
    }

    /// Verifies the checksums of all pending records, and of the commit that leads to them.
    pub(super) fn verify_pending(&self, guard: &Guard, damaged: &mut dyn FnMut(Error)) {
        let volume = &self.stream.volume;
        let commit = self.last.commit.filter(|_| self.is_log).map(|(offset, _)| offset);
        for offset in self.entries.parts().map(|part| part.offset).chain(commit) {
            let checked = volume.view(guard, offset).and_then(|view| {
                volume.check(&view)?;
                if view.header.large {
                    volume.chain(guard, view.value(), true)?;
                }
                Ok(())
            });
            if let Err(error) = checked {
                damaged(error);
            }
        }
    }

    /// The commits to come no longer lead to these records.
    fn drop_parts<'p>(&mut self, parts: impl Iterator<Item = &'p Part>) {
        for Part { offset, len, is_large } in parts.copied() {
            self.gone.push(Gone { offset, len, is_large });
        }
    }

    /// Removes and returns entries: those up to a timestamp, or those above it.
    fn take(&mut self, timestamp: u64, is_above: bool) -> Vec<Pending> {
        let entries = &mut self.entries;
        let behind = timestamp.saturating_sub(entries.control.applied);
        let at = behind.min(entries.pending.len() as u64) as usize;
        let range = if is_above { at..entries.pending.len() } else { 0..at };
        let taken: Vec<Pending> = entries.pending.drain(range).collect();
        entries.forget(&taken, |offset| self.stream.volume.space.page_of(offset));
        taken
    }

    /// Ensures that the entries up to `to` are sealed, and durable, or that readers wait for them. The records that
    /// they replace are not hidden either: a caller of the cleaner commits the records that it moves.
    fn expose(&mut self, to: u64) -> Result<()> {
        // If any of their records is hidden, this one is.
        let Some(last) = self.entries.of(to).map(|it| it.closing.offset) else { return Ok(()) };
        if mutant!("mvcc.pending.early") {
            return Ok(());
        }
        if self.stream.fences_at_once() {
            if self.stream.is_hidden(last) {
                self.seal_all()?;
                self.stream.commit()?;
            }
            return Ok(());
        }
        let is_durable = self.stream.position(last) < self.stream.proven();
        if !is_durable && self.stream.covering(last).is_none() {
            self.seal_all()?;
            // So that readers wait for it, even if an earlier call has covered it. No sync is requested.
            self.stream.cover(true);
        }
        Ok(())
    }
}

impl Log for Tree {
    fn control(&self) -> &Control {
        &self.entries.control
    }

    fn pending(&self, _guard: &Guard, timestamp: u64) -> Result<Option<Places>> {
        let pending = self.entries.of(timestamp);
        Ok(pending.map(|it| Places {
            changes: it.changes.iter().map(|part| part.offset).collect(),
            closing: it.closing.offset,
        }))
    }

    fn pending_keys(&self) -> u64 {
        self.entries.pending.iter().map(|it| it.keys.len() as u64).sum()
    }

    fn closing_len(&self, header: usize) -> usize {
        closing_len(header + LINKS)
    }

    fn close_entry(
        &mut self,
        timestamp: u64,
        header: &[u8],
        changes: Vec<Part>,
        keys: &[&[u8]],
    ) -> Result<()> {
        let before = self.entries.pending.back().map_or(0, |it| it.closing.offset);
        let links = links(changes.first().map_or(0, |part| part.offset), before);
        let kind = Header { kind: Kind::Entry, batched: true, ..Header::put(timestamp) };
        let head = closing_head(changes.len());
        let offset = self.stream.append(kind, &links, &[&head, header])?;
        let len = kind.record_len(&links, head.len() + header.len()) as u32;
        let closing = Part { offset, len, is_large: false };
        let keys = keys.iter().map(|key| Key::new(key)).collect();
        let space = &self.stream.volume.space;
        self.entries.push(Pending { keys, changes, closing }, |offset| space.page_of(offset));
        self.entries.control.newest = timestamp;
        (self.is_due, self.cleaned_before) = (true, self.pages_cleaned);
        Ok(())
    }

    fn pages_to_apply(&self, guard: &Guard, to: u64, record: usize) -> Result<u32> {
        let count = to.saturating_sub(self.entries.control.applied) as usize;
        let keys = self.entries.pending.iter().take(count).flat_map(|it| &it.keys);
        let keys = keys.map(Key::bytes).collect();
        Ok(self.stream.pages_for([record].into_iter()) + self.pages_to_put(guard, keys)?)
    }

    fn apply(&mut self, guard: &Guard, to: u64) -> Result<()> {
        self.expose(to)?;
        let mut control = self.entries.control.clone();
        let Some(last) = self.entries.of(to) else { return Ok(()) };
        let volume = Arc::clone(&self.stream.volume);
        control.applied_header = closing(&volume.view(guard, last.closing.offset)?)?.1.to_vec();
        control.applied = to;
        let taken = self.take(to, false);
        self.entries.control = control;
        if mutant!("mvcc.pending.applied") {
            self.is_due = true;
            self.seal_all()?;
            self.stream.commit()?;
        }
        for Pending { keys, changes, .. } in &taken {
            for (key, Part { offset, len, .. }) in keys.iter().zip(changes) {
                let header = volume.view(guard, *offset)?.header;
                let (version, is_put) = (header.version, header.kind == Kind::Put);
                let (offset, len, sequence) = (*offset, *len, version);
                self.link(guard, key, Linked { offset, version, sequence, len, is_put })?;
            }
        }
        self.drop_parts(taken.iter().map(|it| &it.closing));
        self.release_met();
        Ok(())
    }

    fn roll_back(&mut self, _guard: &Guard, to: u64) -> Result<()> {
        let taken = self.take(to, true);
        self.cleaned_before = self.pages_cleaned;
        self.entries.control.newest = to;
        self.drop_parts(taken.iter().flat_map(Pending::all));
        self.release_met();
        Ok(())
    }

    fn set_control(&mut self, control: Control) -> Result<()> {
        self.entries.control = control;
        (self.is_due, self.cleaned_before) = (true, self.pages_cleaned);
        Ok(())
    }

    fn begin_install(&mut self, guard: &Guard) -> Result<()> {
        if self.stream.is_hiding() {
            // The records that are given up are read below.
            self.seal_all()?;
            self.stream.commit()?;
        }
        let applied = self.entries.control.applied;
        self.roll_back(guard, applied)?;
        self.entries.control.is_installing = true;
        self.clear(guard, self.version)
    }

    fn oldest_pin(&self) -> Option<u64> {
        self.pins.keys().next().copied()
    }
}
