//! Writes of bytes to free blocks.

use super::commit::Batch;
use super::name::Name;
use super::{Extent, Volume};
use crate::error::{Error, Result};
use coreplane_pmem::spin::Patience;
use coreplane_pmem::{Pen, mutant};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a writer waits for a block that other threads hold.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A change of a range of bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'b> {
    /// Write these bytes at an offset of the disk.
    Write(u64, &'b [u8]),
    /// Make a number of bytes from an offset on read as zeroes.
    Zero(u64, u64),
}

impl Change<'_> {
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        match *self {
            Self::Write(offset, bytes) => offset..offset + bytes.len() as u64,
            Self::Zero(offset, len) => offset..offset + len,
        }
    }
}

/// A change that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    /// Its index.
    pub(crate) at: usize,
    pub(crate) error: Error,
}

impl Failed {
    /// No change is known to have been made.
    fn all(error: Error) -> Self {
        Self { at: 0, error }
    }
}

impl Volume {
    /// Makes changes in their order, all in extents of this partition, up to the first that fails. Durable when it
    /// returns, or, where a fence is a sync, after the next [`Volume::flush`]. Each sector is changed as a whole.
    ///
    /// # Errors
    /// [`Error::NoSpace`] and [`Error::Damaged`] (for a sector that is changed in part) of one of the changes: those
    /// before it are made, some of its own sectors may be, and those behind it are not. [`Error::Sync`], from then on:
    /// it is unknown what was made.
    pub(crate) fn write(&self, changes: &[Change<'_>]) -> std::result::Result<(), Failed> {
        self.space().check_sync().map_err(|error| Failed::all(error.into()))?;
        let mut batch = coreplane_pmem::spin::lock(&self.spares).pop().unwrap_or_default();
        let written = self.write_with(&mut batch, changes);
        coreplane_pmem::spin::lock(&self.spares).push(batch);
        written
    }

    fn write_with(
        &self,
        batch: &mut Batch,
        changes: &[Change<'_>],
    ) -> std::result::Result<(), Failed> {
        let sector_len = u64::from(self.geometry.sector_len);
        let is_whole = |change: &Change<'_>| {
            let range = change.range();
            range.start.is_multiple_of(sector_len) && range.end.is_multiple_of(sector_len)
        };
        // Of two concurrent changes of parts of one sector, one would be lost.
        let (_together, _alone) = match changes.iter().all(is_whole) {
            true => (Some(coreplane_pmem::spin::read(&self.parts)), None),
            false => (None, Some(coreplane_pmem::spin::write(&self.parts))),
        };
        batch.names.clear();
        for (at, change) in changes.iter().enumerate() {
            if let Err(error) = self.change(batch, change) {
                // Those before it may have been seen and overwritten already, so that nobody may repeat them.
                if !mutant!("tio.write.unnamed") {
                    self.name(batch).map_err(Failed::all)?;
                }
                return Err(Failed { at, error });
            }
        }
        self.name(batch).map_err(Failed::all)
    }

    /// Names the staged sectors: readers see them at once, or when they are durable.
    fn name(&self, batch: &mut Batch) -> Result<()> {
        match self.is_durable_at_once() {
            true => self.name_at_once(batch),
            false => self.note_all(batch),
        }
    }

    /// Discards the staged sectors but the first `kept`.
    fn unstage(&self, batch: &mut Batch, kept: usize) {
        let kept = kept.min(batch.names.len());
        let blocks = batch.names.drain(kept..).filter_map(|(_, word)| Name::block_of(word));
        self.give_back(&blocks.collect::<Vec<u32>>());
    }

    /// Stages a change sector by sector, and names the staged sectors whenever the batch is full. If it fails, it
    /// leaves none of its own staged.
    fn change(&self, batch: &mut Batch, change: &Change<'_>) -> Result<()> {
        let sector_len = u64::from(self.geometry.sector_len);
        let range = change.range();
        if matches!(change, Change::Zero(..)) {
            // So that its sectors need not be searched for in the batch one by one.
            let sectors = range.start / sector_len..range.end.div_ceil(sector_len);
            if batch.names.iter().any(|(sector, _)| sectors.contains(sector)) {
                self.name(batch)?;
            }
        }
        let (mut at, mut others) = (range.start, batch.names.len());
        let batch_len_max = self.batch_len_max();
        while at < range.end {
            let (sector, within) = (at / sector_len, at % sector_len);
            let len = (sector_len - within).min(range.end - at);
            if batch.names.len() >= batch_len_max {
                self.name(batch)?;
                others = 0;
            }
            let mut staged = self.stage(batch, change, (sector, within, len));
            if matches!(staged, Err(Error::NoSpace { .. })) {
                // The spare blocks are taken by writes without names, or without durable names, or they are held by
                // readers and other writers. So that no writer waits while it holds some itself, its own are
                // committed first.
                self.name(batch)?;
                others = 0;
                self.commit()?;
                let mut patience = Patience::new(PATIENCE);
                loop {
                    staged = self.stage(batch, change, (sector, within, len));
                    if !matches!(staged, Err(Error::NoSpace { .. })) || !patience.wait() {
                        break;
                    }
                }
            }
            if let Err(error) = staged {
                self.unstage(batch, others);
                return Err(error);
            }
            at += len;
        }
        Ok(())
    }

    /// The most sectors that are named together.
    fn batch_len_max(&self) -> usize {
        256.min(self.spare() as usize / 4)
    }

    fn stage(
        &self,
        batch: &mut Batch,
        change: &Change<'_>,
        (sector, within, len): (u64, u64, u64),
    ) -> Result<()> {
        let is_whole = len == u64::from(self.geometry.sector_len);
        match change {
            Change::Write(start, bytes) => {
                let at = sector * u64::from(self.geometry.sector_len) + within;
                let from = (at - start) as usize;
                let part = bytes.get(from..from + len as usize).unwrap_or_default();
                match is_whole {
                    true => self.stage_sector(batch, sector, part),
                    false => self.stage_part(batch, sector, within as usize, part),
                }
            }
            // No change is needed in a sector that is all zeroes. None of its sectors is staged.
            Change::Zero(..) if self.name_word(sector) == 0 => Ok(()),
            Change::Zero(..) if is_whole => {
                batch.names.push((sector, 0));
                Ok(())
            }
            Change::Zero(..) => {
                self.stage_part(batch, sector, within as usize, &vec![0; len as usize])
            }
        }
    }

    /// The name of a sector after the changes of the batch.
    fn staged_word(&self, batch: &Batch, sector: u64) -> u64 {
        let staged = batch.names.iter().rev().find(|(of, _)| *of == sector);
        staged.map_or_else(|| self.name_word(sector), |(_, word)| *word)
    }

    /// Changes a part of a sector by rewriting the whole.
    fn stage_part(&self, batch: &mut Batch, sector: u64, within: usize, part: &[u8]) -> Result<()> {
        let mut whole = std::mem::take(&mut batch.sector);
        whole.resize(self.geometry.sector_len as usize, 0);
        let word = self.staged_word(batch, sector);
        let guard = self.space().pin();
        let read = self.read_named(&guard, sector, word, &mut whole);
        drop(guard);
        let staged = read.and_then(|is_it| {
            // No other thread writes meanwhile.
            let what = "its block is not there";
            let gone = Error::Damaged { sector, what };
            is_it.then_some(()).ok_or(gone)?;
            if let Some(place) = whole.get_mut(within..within + part.len()) {
                place.copy_from_slice(part);
            }
            self.stage_sector(batch, sector, &whole)
        });
        batch.sector = whole;
        staged
    }

    /// Writes a sector to a free block, which has no name yet.
    fn stage_sector(&self, batch: &mut Batch, sector: u64, bytes: &[u8]) -> Result<()> {
        let pen = batch.pen.take().unwrap_or_else(|| Pen::new(self.space()));
        let taken = coreplane_pmem::spin::lock(&self.blocks).take(&self.pool, pen);
        let mut writer = match taken {
            Ok(writer) => writer,
            Err(pen) => {
                batch.pen = Some(pen);
                return Err(self.no_space());
            }
        };
        let written = match mutant!("tio.block.flush") {
            true => writer.append(&[bytes]),
            false => writer.append_block(bytes),
        };
        let block = writer.page();
        // The name becomes visible when the block is durable; where a fence is a sync, earlier, since readers may see
        // such writes then.
        batch.pen = Some(writer.finish_early());
        debug_assert!(written.is_some());
        batch.names.push((sector, Name::new(sector, block, bytes).word()));
        Ok(())
    }

    /// Sets the name that readers see of a sector; returns the block that it had.
    pub(super) fn exchange(&self, sector: u64, word: u64) -> Option<u32> {
        let before = self.cell(sector)?.swap(word, Ordering::AcqRel);
        Name::block_of(before)
    }

    /// Retires blocks that have no name any more; they are free when no reader is left.
    pub(super) fn give_back(&self, blocks: &[u32]) {
        let retired = self.space().retire_all(blocks);
        debug_assert_eq!(retired, blocks.len(), "one of {blocks:?} was free");
    }

    pub(super) fn map_range(&self, extent: &Extent) -> (u64, u64) {
        (self.space().start_of(extent.map_page), u64::from(self.geometry.sector_len))
    }
}
