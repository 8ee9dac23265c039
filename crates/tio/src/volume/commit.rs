//! Commits store the names of blocks whose bytes are durable.

use super::Volume;
use super::layout::WORD;
use super::name::{DAMAGED, Name, directory_word};
use crate::error::Result;
use coreplane_pmem::{Durable, Pen, mutant};

/// The state that a writer keeps from one write to the next: memory, and the pen for writing to pages.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Sectors that were written to blocks, and their new names, in order.
    pub(super) names: Vec<(u64, u64)>,
    pub(super) pen: Option<Pen>,
    pub(super) sector: Vec<u8>,
    replaced: Vec<u32>,
}

impl Batch {
    /// Adds sectors that cannot be read.
    pub(super) fn damage(&mut self, sectors: std::ops::Range<u64>) {
        self.names.extend(sectors.map(|sector| (sector, DAMAGED)));
    }
}

impl Volume {
    /// Names the staged sectors; readers see them when they are durable.
    pub(super) fn name_at_once(&self, batch: &mut Batch) -> Result<()> {
        let _alone = coreplane_pmem::spin::lock(&self.naming);
        let fresh = self.take_fresh();
        if batch.names.is_empty() && fresh.is_empty() {
            return Ok(());
        }
        if !mutant!("tio.name.early") {
            self.space().fence()?;
        }
        self.store_names(batch.names.iter().copied(), &fresh);
        if !mutant!("tio.name.fence") {
            self.space().fence()?;
        }
        self.exchange_all(batch);
        Ok(())
    }

    fn exchange_all(&self, batch: &mut Batch) {
        batch.replaced.clear();
        for (sector, word) in batch.names.drain(..) {
            batch.replaced.extend(self.exchange(sector, word));
        }
        self.give_back(&batch.replaced);
    }

    /// Lets readers see the staged sectors, which wait for a flush, and their names for a commit: after one, if the
    /// journal has no room before.
    pub(super) fn note_all(&self, batch: &mut Batch) -> Result<()> {
        if self.note(batch) {
            return Ok(());
        }
        let _alone = coreplane_pmem::spin::lock(&self.naming);
        // Another thread may have committed while this one waited.
        while !self.note(batch) {
            self.commit_alone()?;
        }
        Ok(())
    }

    /// Lets readers see the staged sectors, which wait for a flush, and their names for a commit. False if the
    /// journal has no room before a commit.
    fn note(&self, batch: &mut Batch) -> bool {
        batch.replaced.clear();
        let mut pending = coreplane_pmem::spin::lock(&self.pending);
        let mut journal = coreplane_pmem::spin::lock(&self.journal);
        if !journal.has_room(batch.names.len()) {
            return false;
        }
        for (sector, word) in batch.names.drain(..) {
            let number = journal.note(self.space(), sector, word);
            let seen = self.exchange(sector, word);
            if mutant!("tio.block.reused") {
                batch.replaced.extend(seen);
            }
            // A waiting name was never in the pool; a name that is being committed is not waiting any more.
            let Some((before, noted)) = pending.names.insert(sector, (word, number)) else {
                continue;
            };
            let Some(block) = Name::block_of(before) else { continue };
            if noted > journal.flushing() || mutant!("tio.superseded.reused") {
                batch.replaced.push(block);
            } else {
                // It was flushed: a power cut leaves it until this one is flushed.
                pending.superseded.push(block);
            }
        }
        drop(journal);
        drop(pending);
        self.give_back(&batch.replaced);
        true
    }

    /// Makes all earlier writes durable: by one sync, where a fence is a sync.
    ///
    /// # Errors
    /// [`Error::Sync`](crate::Error::Sync), from then on.
    pub(crate) fn flush(&self) -> Result<()> {
        if self.is_durable_at_once() {
            // Every acknowledged write had its two fences.
            return Ok(self.space().check_sync()?);
        }
        let _alone = coreplane_pmem::spin::lock(&self.naming);
        self.flush_alone()
    }

    /// Commits if the waiting writes take too much room, and otherwise flushes if `is_asked`.
    ///
    /// # Errors
    /// [`Error::Sync`](crate::Error::Sync), from then on.
    pub(crate) fn commit_or_flush(&self, is_asked: bool) -> Result<()> {
        let _alone = coreplane_pmem::spin::lock(&self.naming);
        // Another thread may have committed while this one waited.
        match self.is_crowded() {
            true => self.commit_alone(),
            false if is_asked => self.flush_alone(),
            false => Ok(()),
        }
    }

    /// Commits if the journal has no room for `count` writes more.
    ///
    /// # Errors
    /// [`Error::Sync`](crate::Error::Sync), from then on.
    pub(crate) fn make_room(&self, count: usize) -> Result<()> {
        let has_room = || coreplane_pmem::spin::lock(&self.journal).has_room(count);
        if self.is_durable_at_once() || has_room() {
            return Ok(());
        }
        let _alone = coreplane_pmem::spin::lock(&self.naming);
        if has_room() { Ok(()) } else { self.commit_alone() }
    }

    /// Lets a thread begin to make earlier writes durable, where a fence is a sync and there are such writes. This
    /// only begins the sync and guarantees nothing; the flush that follows finds it under way.
    pub(crate) fn begin_sync(&self) {
        if !self.is_durable_at_once() && self.has_to_flush() {
            let space = self.space();
            space.sync_request(space.sync_generation());
        }
    }

    fn has_to_flush(&self) -> bool {
        let pending = coreplane_pmem::spin::lock(&self.pending);
        let is_noted = coreplane_pmem::spin::lock(&self.journal).has_to_flush();
        is_noted || !pending.superseded.is_empty()
    }

    fn flush_alone(&self) -> Result<()> {
        match self.begin_flush() {
            (false, superseded) if superseded.is_empty() => Ok(self.space().check_sync()?),
            (_, superseded) => self.finish_flush(&superseded),
        }
    }

    /// Makes what [`Volume::begin_flush`] has begun durable.
    fn finish_flush(&self, superseded: &[u32]) -> Result<()> {
        self.space().fence()?;
        coreplane_pmem::spin::lock(&self.journal).store_flushed(self.space());
        self.give_back(superseded);
        Ok(())
    }

    /// Whether there are new entries since the last flush, and the blocks that become free after the next one.
    fn begin_flush(&self) -> (bool, Vec<u32>) {
        let mut pending = coreplane_pmem::spin::lock(&self.pending);
        let is_new = coreplane_pmem::spin::lock(&self.journal).begin_flush();
        (is_new, std::mem::take(&mut pending.superseded))
    }

    /// Makes all earlier writes durable, and stores their names in the pool.
    ///
    /// # Errors
    /// [`Error::Sync`](crate::Error::Sync), from then on.
    pub(crate) fn commit(&self) -> Result<()> {
        let _alone = coreplane_pmem::spin::lock(&self.naming);
        self.commit_alone()
    }

    fn commit_alone(&self) -> Result<()> {
        let (names, noted) = {
            let mut pending = coreplane_pmem::spin::lock(&self.pending);
            let noted = coreplane_pmem::spin::lock(&self.journal).last();
            (std::mem::take(&mut pending.names), noted)
        };
        let fresh = self.take_fresh();
        if names.is_empty() && fresh.is_empty() {
            return self.flush_alone();
        }
        if !mutant!("tio.name.early") {
            let (_, superseded) = self.begin_flush();
            self.finish_flush(&superseded)?;
        }
        let named = |sector: &u64| {
            let word = self.space().word::<Durable>(self.name_offset(*sector)?)?;
            Name::block_of(word.load())
        };
        let replaced: Vec<u32> = names.keys().filter_map(named).collect();
        let names = names.into_iter().map(|(sector, (word, _))| (sector, word));
        self.store_names(names, &fresh);
        if !mutant!("tio.commit.early") {
            self.space().fence()?;
        }
        if !self.is_durable_at_once() {
            // Not before the names are durable: until then flushed writes are only in the journal.
            coreplane_pmem::spin::lock(&self.journal).store_committed(self.space(), noted);
            self.space().fence()?;
            coreplane_pmem::spin::lock(&self.journal).note_committed(noted);
        }
        if !mutant!("tio.block.reused") {
            self.give_back(&replaced);
        }
        Ok(())
    }

    /// Takes the extents that the directory has to name, and flushes their map pages, in this thread, even if another
    /// one has claimed them.
    fn take_fresh(&self) -> Vec<u64> {
        let fresh = std::mem::take(&mut *coreplane_pmem::spin::lock(&self.fresh));
        for extent in fresh.iter().filter_map(|extent| self.extent(*extent)) {
            let (offset, len) = self.map_range(extent);
            if !mutant!("tio.map.flush") {
                self.space().flush(offset, len);
            }
        }
        fresh
    }

    /// Lets commits and flushes wait until the guard is dropped.
    #[cfg(test)]
    pub(crate) fn hold_commits(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.naming.lock()
    }

    /// Does what a commit does before the sync of the names, and no more.
    #[cfg(test)]
    pub(crate) fn begin_commit(&self) {
        let names = std::mem::take(&mut self.pending.lock().names);
        let names = names.into_iter().map(|(sector, (word, _))| (sector, word));
        self.store_names(names, &self.take_fresh());
    }

    /// Stores and flushes names, and then the words of the directory for extents that it does not have yet.
    pub(super) fn store_names(&self, names: impl Iterator<Item = (u64, u64)>, fresh: &[u64]) {
        let mut line = u64::MAX;
        for (sector, word) in names {
            let Some(offset) = self.name_offset(sector) else { continue };
            if line != u64::MAX && line != offset / 64 {
                self.space().flush(line * 64, WORD);
            }
            if let Some(place) = self.space().word::<Durable>(offset) {
                place.store(word);
            }
            line = offset / 64;
        }
        if line != u64::MAX && !mutant!("tio.name.flush") {
            self.space().flush(line * 64, WORD);
        }
        for extent in fresh {
            let Some(page) = self.extent(*extent).map(|extent| extent.map_page) else { continue };
            if let Some(place) = self.space().word::<Durable>(self.directory + extent * WORD) {
                place.store(directory_word(*extent, page));
                if !mutant!("tio.directory.flush") {
                    place.flush();
                }
            }
        }
    }
}
