//! The list as a log: pending entries, and the control record ([`control`](crate::control)).
//!
//! ```text
//!   stream    [a₅ E₅] [a₆ b₆ E₆] [C applied 5] [b₇ E₇]
//!   index     a ─▶ a₅                                      what is applied
//!   pending   6 ─▶ a₆ b₆ E₆      7 ─▶ b₇ E₇                until it is applied, or rolled back
//! ```
//!
//! Appending an entry writes its records, and the index does not lead to them. Applying it writes a control record
//! and makes the index lead to them; the closing record, and the versions that the changes replace, are dead from
//! then on. Rolling back writes a control record too, and the records of the entries are dead.
//!
//! The page of records that a control record has made dead may go only when that control record is durable
//! ([`release`](crate::volume::release)): so it is appended first.
//!
//! # Tombstones
//!
//! A tombstone stays as long as a page may have an older version of its key. In a list that is no log those are the
//! pages older than the tombstone, since the older version is not moved from then on. In a log it is moved until the
//! tombstone is applied; so the end of the stream at that moment counts. After a restart, which does not know that
//! place, the end of the stream at the restart counts.

use super::List;
use crate::control::{Control, Void, closing, closing_head, closing_len};
use crate::map::{Linked, Log, Map, Part, Places};
use coreplane_engine::Result;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind};
use std::collections::VecDeque;

/// An entry that is neither applied nor rolled back.
#[derive(Debug)]
pub(super) struct Pending {
    /// In the order of their keys.
    pub(super) changes: Vec<Part>,
    /// The record that closes it.
    pub(super) closing: Part,
}

impl Pending {
    pub(super) fn all(&self) -> impl Iterator<Item = &Part> {
        self.changes.iter().chain(std::iter::once(&self.closing))
    }
}

/// The newest control record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Newest {
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) void: Void,
}

/// The state of a log beside its index.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) control: Control,
    /// The number of the newest control record, and the record itself: none before the first.
    pub(super) serial: u64,
    pub(super) newest: Option<Newest>,
    /// Pending entries, from the timestamp behind the applied one on.
    pub(super) pending: VecDeque<Pending>,
}

impl Entries {
    fn index_of(&self, timestamp: u64) -> Option<usize> {
        let behind = timestamp.checked_sub(self.control.applied)?.checked_sub(1)?;
        usize::try_from(behind).ok()
    }

    fn of(&self, timestamp: u64) -> Option<&Pending> {
        self.pending.get(self.index_of(timestamp)?)
    }

    /// Removes and returns the entries above a timestamp.
    fn split_off(&mut self, above: u64) -> VecDeque<Pending> {
        let kept = above.saturating_sub(self.control.applied).min(self.pending.len() as u64);
        self.pending.split_off(kept as usize)
    }

    /// The note of the record at `offset`, if it belongs to a pending entry of that timestamp.
    pub(super) fn part_at(&mut self, timestamp: u64, offset: u64) -> Option<&mut Part> {
        let at = self.index_of(timestamp)?;
        let Pending { changes, closing } = self.pending.get_mut(at)?;
        changes.iter_mut().chain(std::iter::once(closing)).find(|part| part.offset == offset)
    }

    pub(super) fn dram_bytes(&self) -> u64 {
        let changes: usize = self.pending.iter().map(|it| it.changes.capacity()).sum();
        let pending = self.pending.capacity() * size_of::<Pending>();
        (pending + changes * size_of::<Part>()) as u64
    }
}

impl List {
    /// The offsets of the records of a log that the index does not lead to.
    pub(super) fn of_log(&self) -> impl Iterator<Item = u64> {
        let newest = self.entries.newest.iter().map(|it| it.offset);
        let pending = self.entries.pending.iter().flat_map(Pending::all);
        newest.chain(pending.map(|part| part.offset))
    }

    /// Appends a control record, which is the newest from then on.
    fn write_control(&mut self, control: Control, above: u64) -> Result<()> {
        let header = Header { kind: Kind::Commit, ..Header::put(self.entries.serial + 1) };
        let len = control.record_len();
        let void = Void { origin: self.stream.place_for(len), above };
        let offset = self.stream.append(header, &[], &[&control.encode(void)])?;
        let newest = Newest { offset, len: len as u32, void };
        (self.entries.control, self.entries.serial) = (control, header.version);
        let Some(last) = self.entries.newest.replace(newest) else { return Ok(()) };
        if last.void.is_any() && !mutant!("mvcc.log.void") {
            self.forget(last.offset, last.len, last.void.origin.birth);
        } else {
            self.stream.supersede(last.offset, last.len);
        }
        Ok(())
    }

    /// Where a fence is an instruction: makes these records visible, so that they can be read.
    fn expose<'p>(&mut self, mut parts: impl Iterator<Item = &'p Part>) -> Result<()> {
        if self.stream.is_hiding() && parts.any(|part| self.stream.is_hidden(part.offset)) {
            self.stream.commit()?;
        }
        Ok(())
    }

    /// Makes the records visible to which the index leads now for the keys of these entries. Their own records are
    /// visible.
    fn expose_replaced(&mut self, guard: &Guard, entries: &[Pending]) -> Result<()> {
        if !self.stream.is_hiding() {
            return Ok(());
        }
        for part in entries.iter().flat_map(|it| &it.changes) {
            let view = self.stream.volume.view(guard, part.offset)?;
            let replaced = self.index.get(view.key()).map(super::Versions::newest);
            if replaced.is_some_and(|offset| self.stream.is_hidden(offset)) {
                return self.stream.commit();
            }
        }
        Ok(())
    }

    /// Supersedes the records of an entry. Those with large values are visible.
    fn drop_entry(&mut self, guard: &Guard, entry: &Pending) -> Result<()> {
        for part in entry.all() {
            if part.is_large {
                self.supersede(guard, part.offset);
            } else {
                self.stream.supersede(part.offset, part.len);
            }
        }
        Ok(())
    }

    /// Makes the index lead to the changes of an entry.
    fn link_entry(&mut self, guard: &Guard, entry: &Pending) -> Result<()> {
        let volume = std::sync::Arc::clone(&self.stream.volume);
        for part in &entry.changes {
            let view = volume.view(guard, part.offset)?;
            let version = view.header.version;
            let is_put = view.header.kind == Kind::Put;
            let (offset, len) = (part.offset, part.len);
            let new = Linked { offset, version, sequence: version, len, is_put };
            self.link(guard, view.key(), new)?;
        }
        self.stream.supersede(entry.closing.offset, entry.closing.len);
        Ok(())
    }
}

impl Log for List {
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
        0
    }

    fn closing_len(&self, header: usize) -> usize {
        closing_len(header)
    }

    fn close_entry(
        &mut self,
        timestamp: u64,
        header: &[u8],
        changes: Vec<Part>,
        _keys: &[&[u8]],
    ) -> Result<()> {
        let head = closing_head(changes.len());
        let kind = Header { kind: Kind::Entry, ..Header::put(timestamp) };
        let offset = self.stream.append(kind, &[], &[&head, header])?;
        let len = kind.record_len(&[], head.len() + header.len()) as u32;
        let closing = Part { offset, len, is_large: false };
        self.entries.pending.push_back(Pending { changes, closing });
        self.entries.control.newest = timestamp;
        Ok(())
    }

    fn pages_to_apply(&self, _guard: &Guard, _to: u64, record: usize) -> Result<u32> {
        Ok(self.stream.pages_for_group(&[record]))
    }

    fn apply(&mut self, guard: &Guard, to: u64) -> Result<()> {
        let mut control = self.entries.control.clone();
        let later = self.entries.split_off(to);
        let taken: Vec<Pending> = std::mem::replace(&mut self.entries.pending, later).into();
        if self.stream.fences_at_once() {
            self.expose(taken.iter().flat_map(Pending::all))?;
            self.expose_replaced(guard, &taken)?;
        } else if (self.stream.is_uncovered() || self.stream.pending().is_some())
            && !mutant!("mvcc.log.early")
        {
            // So that readers wait for it, even if an earlier call has covered it. No sync is requested.
            self.stream.cover(true);
        }
        let Some(last) = taken.last() else { return Ok(()) };
        let view = self.stream.volume.view(guard, last.closing.offset)?;
        control.applied_header = closing(&view)?.1.to_vec();
        control.applied = to;
        if mutant!("mvcc.log.purge") {
            self.entries.control = control;
        } else {
            self.write_control(control, Void::NOTHING)?;
        }
        taken.iter().try_for_each(|entry| self.link_entry(guard, entry))
    }

    fn roll_back(&mut self, guard: &Guard, to: u64) -> Result<()> {
        let mut control = self.entries.control.clone();
        let dropped = self.entries.split_off(to);
        self.expose(dropped.iter().flat_map(Pending::all).filter(|part| part.is_large))?;
        control.newest = to;
        self.write_control(control, to)?;
        dropped.iter().try_for_each(|entry| self.drop_entry(guard, entry))
    }

    fn set_control(&mut self, control: Control) -> Result<()> {
        self.write_control(control, Void::NOTHING)
    }

    fn begin_install(&mut self, guard: &Guard) -> Result<()> {
        self.stream.commit()?;
        let mut control = self.entries.control.clone();
        let is_again = control.is_installing;
        let dropped = std::mem::take(&mut self.entries.pending);
        (control.newest, control.is_installing) = (control.applied, true);
        let cleared = control.applied + 1;
        self.write_control(control, if mutant!("mvcc.log.install") { Void::NOTHING } else { 0 })?;
        dropped.iter().try_for_each(|entry| self.drop_entry(guard, entry))?;
        let index = std::mem::take(&mut self.index);
        self.aged.clear();
        self.graves.clear();
        (self.records, self.key_bytes) = (0, 0);
        if is_again {
            // No pin can see any of it.
            let all = index.values().flat_map(|versions| versions.all().iter().copied());
            all.into_iter().for_each(|offset| self.supersede(guard, offset));
        } else {
            self.archives.push((cleared, index));
        }
        // They stand before the control record and are void; moved behind it they would count again.
        if !mutant!("mvcc.log.forgotten") {
            self.supersede_forgotten();
        }
        let _none_left = self.drop_archived(guard, usize::MAX);
        Ok(())
    }

    fn oldest_pin(&self) -> Option<u64> {
        self.pins.keys().next().copied()
    }
}
