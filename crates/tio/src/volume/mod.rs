//! A partition: sectors are written as a whole, each to a free block, and then named.
//!
//! # The problem
//!
//! Persistent memory is written in place word by word, and a power cut within a sector leaves half of it. A block
//! device must not do this: file systems and databases rely on a sector having either its old or its new contents.
//!
//! # The picture
//!
//! ```text
//!   write ─▶ bytes to free blocks ─ fence ─▶ names of all of them ─ fence ─▶ readers see them, old blocks are free
//!
//!   directory            map page (words)            blocks (log pages)
//!   [ extent 0 ]────────▶[ name name 0 … ]───────┬──▶[ bytes of a sector ]
//!   [ 0        ]                                 └──▶[ bytes of another  ]
//! ```
//!
//! So a write takes two fences for each 256 sectors, and no page is ever written in place. A sector without a
//! name reads as zeroes: trimming removes names. Readers use copies of the names in DRAM, which are exchanged after
//! the second fence.
//!
//! # Where a fence is a sync
//!
//! A write is acknowledged when its bytes are stored, as by a disk with a volatile cache: readers see it, and
//! [`Volume::flush`] makes it durable by one sync, together with its entry in the `journal`. Its name waits in DRAM
//! for a [`Volume::commit`], which names many sectors at once. A writer waits for a sync only when the spare blocks
//! or the journal are used up.
//!
//! # Extents
//!
//! An extent is as many sectors as a map page has names (2 MiB with sectors of 4 KiB). It belongs to the partition in
//! which it was first written, whose directory names its map page, and its blocks are reserved from then on.

pub(crate) mod layout;
pub(crate) mod name;

mod blocks;
mod commit;
mod growth;
mod journal;
mod open;
mod read;
mod verify;
mod write;

use crate::error::{Error, Result};
use blocks::Blocks;
use commit::Batch;
use coreplane_pmem::spin::Patience;
use coreplane_pmem::{Pool, Space};
use journal::Journal;
use layout::{Geometry, Identity, WORD};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
pub use verify::Findings;
pub(crate) use write::{Change, Failed};

/// A partition of a disk.
#[derive(Debug)]
pub(crate) struct Volume {
    pool: Pool,
    identity: Identity,
    geometry: Geometry,
    /// The offset of the directory.
    directory: u64,
    /// The extents of the whole disk; those in this partition are filled.
    extents: Box<[OnceLock<Extent>]>,
    blocks: Mutex<Blocks>,
    /// True if a page is known to be unreadable.
    has_bad: AtomicBool,
    /// Map pages that the open could not read.
    bad_maps: Vec<u32>,
    /// Writes that wait for a commit, where a fence is a sync.
    pending: Mutex<Pending>,
    /// Extents whose map page the directory does not name yet.
    fresh: Mutex<Vec<u64>>,
    /// The waiting writes, recorded for the next open.
    journal: Mutex<Journal>,
    /// Held by the thread that stores names.
    naming: Mutex<()>,
    /// Shared by writers of whole sectors; exclusive for a writer that changes a part of a sector.
    parts: RwLock<()>,
    /// Batches that writers leave for reuse.
    spares: Mutex<Vec<Batch>>,
    /// The number of directory words that were corrected at the open.
    pub(crate) repaired: u64,
    /// The number of flushed writes whose journal entries were unreadable at the open.
    pub(crate) unnamed: u64,
    /// Extents of which the directory's words are damaged: another partition may have them.
    pub(crate) lost: Vec<u64>,
}

/// Writes that wait for a commit.
#[derive(Debug, Default)]
struct Pending {
    /// By sector: its new name, and the number of the journal entry.
    names: HashMap<u64, (u64, u64)>,
    /// Flushed blocks that become free once their replacements are flushed, too.
    superseded: Vec<u32>,
}

/// An extent of the partition.
#[derive(Debug)]
struct Extent {
    map_page: u32,
    /// The names that readers see.
    names: Box<[AtomicU64]>,
}

impl Extent {
    fn new(map_page: u32, names: impl Iterator<Item = u64>) -> Self {
        Self { map_page, names: names.map(AtomicU64::new).collect() }
    }
}

impl Volume {
    fn space(&self) -> &Arc<Space> {
        self.pool.space()
    }

    /// The pool of the partition.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Bytes of an extent.
    pub(crate) fn extent_len(&self) -> u64 {
        self.geometry.extent_sectors() * u64::from(self.geometry.sector_len)
    }

    /// True if the extent is in this partition.
    pub(crate) fn has(&self, extent: u64) -> bool {
        self.extent(extent).is_some()
    }

    fn extent(&self, extent: u64) -> Option<&Extent> {
        self.extents.get(usize::try_from(extent).ok()?)?.get()
    }

    /// The name of a sector, as readers see it; none if its extent is not in this partition.
    fn cell(&self, sector: u64) -> Option<&AtomicU64> {
        let per = self.geometry.extent_sectors();
        self.extent(sector / per)?.names.get((sector % per) as usize)
    }

    /// The name of a sector, as readers see it; 0 if its extent is not in this partition.
    fn name_word(&self, sector: u64) -> u64 {
        self.cell(sector).map_or(0, |cell| cell.load(Ordering::Acquire))
    }

    /// The offset of a sector's name in the pool.
    fn name_offset(&self, sector: u64) -> Option<u64> {
        let per = self.geometry.extent_sectors();
        let page = self.extent(sector / per)?.map_page;
        Some(self.space().start_of(page) + sector % per * WORD)
    }

    /// True if a write is durable when it returns.
    pub(crate) fn is_durable_at_once(&self) -> bool {
        self.space().fences_at_once()
    }

    /// True if the sector has a block.
    pub(crate) fn has_block(&self, sector: u64) -> bool {
        self.name_word(sector) != 0
    }

    /// Blocks beyond those of all sectors.
    fn spare(&self) -> u64 {
        self.geometry.spare(self.geometry.extents().div_ceil(u64::from(self.identity.partitions)))
    }

    /// True if writes that wait for a commit have taken half of the spare blocks, or of the journal.
    pub(crate) fn is_crowded(&self) -> bool {
        let taken = {
            let pending = coreplane_pmem::spin::lock(&self.pending);
            pending.names.len() + pending.superseded.len()
        };
        taken as u64 > self.spare() / 2 || coreplane_pmem::spin::lock(&self.journal).is_crowded()
    }

    /// The number of further extents for which this partition has room.
    pub(crate) fn room(&self) -> u64 {
        let spare = self.spare();
        self.blocks.lock().unpromised.saturating_sub(spare) / self.geometry.extent_pages()
    }

    /// True if this partition could take a further extent, be it into its spare blocks.
    pub(crate) fn has_room_for_one(&self) -> bool {
        self.blocks.lock().unpromised >= self.geometry.extent_pages()
    }

    fn no_space(&self) -> Error {
        Error::NoSpace { partition: self.identity.partition }
    }

    /// Adds an extent to this partition, if there is room. Durable with the next commit of a write to it.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn take_in(&self, extent: u64) -> Result<()> {
        let cell = self.extents.get(usize::try_from(extent).unwrap_or(usize::MAX));
        let cell = cell.ok_or_else(|| self.no_space())?;
        let pages = self.geometry.extent_pages();
        let mut patience = Patience::new(write::PATIENCE);
        let (page, mut blocks) = loop {
            let mut blocks = coreplane_pmem::spin::lock(&self.blocks);
            if cell.get().is_some() {
                return Ok(());
            }
            if blocks.unpromised < pages {
                return Err(self.no_space());
            }
            if let Some(page) = blocks.take_words(&self.pool) {
                break (page, blocks);
            }
            // The free pages are in use by other threads for now.
            drop(blocks);
            self.commit()?;
            if !patience.wait() {
                return Err(self.no_space());
            }
        };
        blocks.unpromised -= pages;
        let names = (0..self.geometry.extent_sectors()).map(|_| 0);
        // Both under the lock: a writer that sees the extent also has it named together with its write.
        let mut fresh = coreplane_pmem::spin::lock(&self.fresh);
        fresh.push(extent);
        if cell.set(Extent::new(page, names)).is_err() {
            return Err(self.no_space());
        }
        Ok(())
    }
}
