//! Versions that are kept for pins.
//!
//! A key that is written while a pin sees its newest version keeps both versions: it is *aged*. When a pin has gone,
//! aged keys are trimmed, some at a time, and other threads get the map in between, or it goes on with later commits:
//! there may be as many aged keys as keys. So are the keys from before a clear.

use super::{Index, List, Versions};
use crate::key::Key;
use coreplane_engine::Result;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::Kind;
use std::collections::{BTreeMap, VecDeque};

/// Keys that are trimmed at a time when a pin has gone.
const TRIMMED: usize = 4;

/// Keys from before a clear that are dropped at a time.
const DROPPED: usize = 64;

/// Keys of a chunk: when the queue of chunks grows, chunks are moved, and no keys.
const CHUNK: usize = 256;

/// Keys with several versions, in the order in which they got them.
#[derive(Debug, Default)]
pub(super) struct Aged {
    chunks: VecDeque<VecDeque<Key>>,
    /// The number of keys, from the front, that were not examined since a pin has gone.
    due: usize,
    len: usize,
}

impl Aged {
    pub(super) fn push(&mut self, key: Key) {
        self.len += 1;
        match self.chunks.back_mut() {
            Some(last) if last.len() < CHUNK => last.push_back(key),
            _ => {
                let mut chunk = VecDeque::with_capacity(CHUNK);
                chunk.push_back(key);
                self.chunks.push_back(chunk);
            }
        }
    }

    /// The next key that is due.
    fn pop_due(&mut self) -> Option<Key> {
        self.due = self.due.checked_sub(1)?;
        let first = self.chunks.front_mut()?;
        let key = first.pop_front()?;
        self.len -= 1;
        if first.is_empty() {
            self.chunks.pop_front();
        }
        Some(key)
    }

    fn is_due(&self) -> bool {
        self.due > 0
    }

    /// The number of keys that were examined since a pin has gone, or got several versions since.
    pub(super) fn len_examined(&self) -> usize {
        self.len - self.due
    }

    /// A pin has gone: all keys are due.
    pub(super) fn all_due(&mut self) {
        self.due = self.len;
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// True if a pin sees this version of a key, which a later one replaces. A damaged version may be the greater one.
pub(super) fn is_between_pins(pins: &BTreeMap<u64, u32>, version: u64, replaced_by: u64) -> bool {
    // A range that ends before it begins would panic.
    version < replaced_by
        && pins.range(version..replaced_by).next().is_some()
        && !mutant!("mvcc.list.pin")
}

impl List {
    /// True if a pin sees this version of a key, which a later one replaces.
    pub(super) fn is_pinned(&self, version: u64, replaced_by: u64) -> bool {
        is_between_pins(&self.pins, version, replaced_by)
    }

    pub(super) fn version_of(&self, guard: &Guard, offset: u64) -> Result<u64> {
        Ok(self.stream.volume.view(guard, offset)?.header.version)
    }

    /// Drops the versions of a key that no pin sees any more; true if several are left.
    fn trim(&mut self, guard: &Guard, key: &Key) -> Result<bool> {
        let Some(Versions::Many(offsets)) = self.index.get(key.bytes()) else { return Ok(false) };
        let offsets = offsets.clone();
        let (mut kept, mut dropped) = (Vec::with_capacity(offsets.len()), Vec::new());
        for (at, offset) in offsets.iter().enumerate() {
            let is_needed = match offsets.get(at + 1) {
                None => true,
                Some(next) => {
                    self.is_pinned(self.version_of(guard, *offset)?, self.version_of(guard, *next)?)
                }
            };
            if is_needed { kept.push(*offset) } else { dropped.push(*offset) }
        }
        let newest = kept.last().copied().unwrap_or_default();
        let is_one = kept.len() == 1;
        let view = self.stream.volume.view(guard, newest)?;
        let is_tombstone = is_one && view.header.kind == Kind::Delete;
        let grave = is_tombstone.then(|| self.grave_of(key.clone(), &view));
        if let Some(versions) = self.index.get_mut(key.bytes()) {
            *versions = if is_one { Versions::One(newest) } else { Versions::Many(kept) };
        }
        // Only when the index no longer leads to them, lest they are superseded again.
        dropped.into_iter().for_each(|offset| self.supersede(guard, offset));
        grave.into_iter().for_each(|grave| self.graves.push(grave));
        Ok(!is_one)
    }

    /// The index of the state at a version.
    pub(super) fn index_at(&self, at: u64) -> &Index {
        let archive = self.archives.iter().find(|(cleared, _)| *cleared > at);
        archive.map_or(&self.index, |(_, index)| index)
    }

    /// True if there are records from before a clear that no pin sees any more.
    fn is_archive_due(&self) -> bool {
        let oldest = self.pins.keys().next().copied().unwrap_or(u64::MAX);
        self.archives.first().is_some_and(|(cleared, _)| *cleared <= oldest)
    }

    /// Supersedes records from before a clear that no pin sees any more, of so many keys; false if none are left.
    pub(super) fn drop_archived(&mut self, guard: &Guard, most: usize) -> bool {
        for _ in 0..most {
            if !self.is_archive_due() {
                return false;
            }
            let Some((_, index)) = self.archives.first_mut() else { return false };
            match index.pop_first() {
                Some((_, versions)) => {
                    versions.all().iter().for_each(|offset| self.supersede(guard, *offset));
                }
                None => drop(self.archives.remove(0)),
            }
        }
        true
    }

    /// The newest version that is not above `at`.
    ///
    /// # Errors
    /// If one above it is damaged, or cannot be read.
    pub(super) fn newest_at(
        &self,
        guard: &Guard,
        versions: &Versions,
        at: u64,
    ) -> Result<Option<u64>> {
        for offset in versions.all().iter().rev() {
            let volume = &self.stream.volume;
            if !volume.is_above(&volume.view(guard, *offset)?, at)? {
                return Ok(Some(*offset));
            }
        }
        Ok(None)
    }

    /// True if there are keys to trim.
    pub(super) fn is_trim_due(&self) -> bool {
        self.aged.is_due() || self.is_archive_due()
    }

    /// Trims the next keys; false if there are no more. Hidden records cannot be read.
    pub(super) fn trim_some(&mut self, guard: &Guard) -> Result<bool> {
        if !self.is_trim_due() {
            return Ok(false);
        }
        let most = if self.drop_archived(guard, DROPPED) { 0 } else { TRIMMED };
        for _ in 0..most {
            let Some(key) = self.aged.pop_due() else { break };
            // A key that still has several versions, or cannot be read, is examined again when the next pin has gone.
            if !matches!(self.trim(guard, &key), Ok(false)) {
                self.aged.push(key);
            }
        }
        if self.is_trim_due() && !mutant!("mvcc.list.trim") {
            return Ok(true);
        }
        // Pages that the cleaner has set aside meanwhile, for a pin that is gone.
        self.stream.pages.release();
        Ok(false)
    }
}
