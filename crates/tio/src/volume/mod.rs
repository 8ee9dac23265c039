//! A partition: sectors that are written whole, each to a free block, and then named.
//!
//! # The problem
//!
//! Persistent memory is written in place word by word, and a power cut in the midst of a sector leaves half of it. A block
//! device must not: file systems and databases rely on it that a sector is what it was, or what it is now.
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
//! So a write takes two fences, however many sectors it has, and no page is ever written in place. A sector without a name
//! reads as zeroes: to trim is to take names away. What readers follow are copies of the names in DRAM, which are exchanged
//! after the second fence.
//!
//! # Where a fence is a sync
//!
//! A write is acknowledged when its bytes are stored, as a disk does whose cache is volatile: readers see it, and
//! [`Volume::flush`] makes it durable by one sync, with what the `journal` says of it. Its name waits in DRAM for a
//! [`Volume::commit`], which names many at once. No writer waits for a sync, but when spare blocks or journal are taken.
//!
//! # Extents
//!
//! An extent is as many sectors as a map page has names (2 MiB of sectors of 4 KiB). It is in the partition in which it was
//! written first, whose directory names its map page, and has its blocks promised from then on.

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
use coreplane_pmem::spin::Backoff;
use coreplane_pmem::{Pool, Space};
use journal::Journal;
use layout::{Geometry, Identity, WORD};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
pub use verify::Findings;
pub(crate) use write::Change;

/// A partition of a disk.
#[derive(Debug)]
pub(crate) struct Volume {
    pool: Pool,
    identity: Identity,
    geometry: Geometry,
    /// Where the directory begins.
    directory: u64,
    /// Those of the whole disk; filled are those that are in this partition.
    extents: Box<[OnceLock<Extent>]>,
    blocks: Mutex<Blocks>,
    /// What waits for a commit, where a fence is a sync.
    pending: Mutex<Pending>,
    /// Extents whose map page the directory does not name yet.
    fresh: Mutex<Vec<u64>>,
    /// What waits, noted for the next opening.
    journal: Mutex<Journal>,
    /// Of the one who stores names.
    naming: Mutex<()>,
    /// Of those who write whole sectors together, or of one who changes a part of one.
    parts: RwLock<()>,
    /// What writers have left for the next.
    spares: Mutex<Vec<Batch>>,
    /// Bits of the directory that were set right when it was opened.
    pub(crate) repaired: u64,
}

/// What waits for a commit.
#[derive(Debug, Default)]
struct Pending {
    /// Of sectors: their names to be, and the numbers under which those are noted.
    names: HashMap<u64, (u64, u64)>,
    /// Blocks that were flushed, and are free once what has replaced them is.
    superseded: Vec<u32>,
}

/// An extent that is in the partition.
#[derive(Debug)]
struct Extent {
    map_page: u32,
    /// As readers see them.
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

    /// The pool below.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Bytes of an extent.
    pub(crate) fn extent_len(&self) -> u64 {
        self.geometry.extent_sectors() * u64::from(self.geometry.sector_len)
    }

    /// True if the extent is here.
    pub(crate) fn has(&self, extent: u64) -> bool {
        self.extent(extent).is_some()
    }

    fn extent(&self, extent: u64) -> Option<&Extent> {
        self.extents.get(usize::try_from(extent).ok()?)?.get()
    }

    /// The name of a sector, as readers see it; none if its extent is not here.
    fn cell(&self, sector: u64) -> Option<&AtomicU64> {
        let per = self.geometry.extent_sectors();
        self.extent(sector / per)?.names.get((sector % per) as usize)
    }

    /// The name of a sector, as readers see it; 0 if its extent is not here.
    fn name_word(&self, sector: u64) -> u64 {
        self.cell(sector).map_or(0, |cell| cell.load(Ordering::Acquire))
    }

    /// Where the name of a sector is in the pool.
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

    /// Extents for which there still is room here.
    pub(crate) fn room(&self) -> u64 {
        let spare = self.spare();
        self.blocks.lock().unpromised.saturating_sub(spare) / self.geometry.extent_pages()
    }

    fn no_space(&self) -> Error {
        Error::NoSpace { partition: self.identity.partition }
    }

    /// Takes an extent in, if there is room. Durable with the next commit of a write to it.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn take_in(&self, extent: u64) -> Result<()> {
        let cell = self.extents.get(usize::try_from(extent).unwrap_or(usize::MAX));
        let cell = cell.ok_or_else(|| self.no_space())?;
        let pages = self.geometry.extent_pages();
        let (since, mut backoff) = (Instant::now(), Backoff::new());
        let (page, mut blocks) = loop {
            let mut blocks = coreplane_pmem::spin::lock(&self.blocks);
            if cell.get().is_some() {
                return Ok(());
            }
            if blocks.unpromised < pages || since.elapsed() > write::PATIENCE {
                return Err(self.no_space());
            }
            if let Some(page) = blocks.take_words(self.space()) {
                break (page, blocks);
            }
            // They are those of others for now.
            drop(blocks);
            self.commit()?;
            backoff.wait();
        };
        blocks.unpromised -= pages;
        let names = (0..self.geometry.extent_sectors()).map(|_| 0);
        // Together: whoever sees it and writes to it has it named with what he writes.
        let mut fresh = coreplane_pmem::spin::lock(&self.fresh);
        fresh.push(extent);
        if cell.set(Extent::new(page, names)).is_err() {
            return Err(self.no_space());
        }
        Ok(())
    }
}
