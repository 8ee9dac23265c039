//! The lowest layer: pages, the index, the logs.
//!
//! The places (`page`, `index`, `hash`, `geometry`), the path of a record into a log and to
//! durability (`log`, `logs`, `stage`, `durable`), the state of a key before a write (`look`), live
//! bytes (`accounts`, `counters`), the root (`root`), and the shares of the free pages (`demand`).

pub(crate) mod accounts;
pub(crate) mod arena;
pub(crate) mod checkpoint_format;
pub(crate) mod checkpoints;
pub(crate) mod clock;
pub(crate) mod counters;
pub(crate) mod demand;
pub(crate) mod durable;
pub(crate) mod geometry;
pub(crate) mod hash;
pub(crate) mod index;
pub(crate) mod log;
pub(crate) mod logs;
pub(crate) mod look;
pub(crate) mod overflow;
pub(crate) mod page;
pub(crate) mod quarantine;
pub(crate) mod root;
pub(crate) mod run;
pub(crate) mod sound;
pub(crate) mod stage;
pub(crate) mod visit;

use arena::Arena;
use checkpoints::Checkpoints;
use clock::Clock;
use coreplane_engine::{Durability, Error, Result, Ticket};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_pmem::windows::Windows;
use coreplane_pmem::{Pool, Space, spin};
use coreplane_record::{self as record, HEADER, Kind, Pair, Reader, View};
use counters::Counters;
use crossbeam_utils::CachePadded;
use durable::Early;
use geometry::Geometry;
use hash::Place;
use index::{Index, Slot};
use log::Log;
use page::Pages;
use parking_lot::{Condvar, Mutex};
use quarantine::Quarantine;
use stage::Staging;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The kind of pool that this engine makes.
pub const KIND: &str = "scmkv";

/// The hash table over the logs: the places of all records, and how they become durable.
pub(crate) struct Table {
    pub(crate) pool: Pool,
    pub(crate) space: Arc<Space>,
    pub(crate) geometry: Geometry,
    pub(crate) durability: Durability,
    pub(crate) pages: Pages,
    pub(crate) index: Index,
    /// The DRAM that the index is in, unless it is in the pool.
    pub(crate) arena: Option<Arena>,
    pub(crate) early: Early,
    pub(crate) logs: Box<[CachePadded<spin::Lock<Log>>]>,
    pub(crate) staging: Staging,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) seeds: Seeds,
    /// Versions that the store gives out are greater than this.
    pub(crate) version_base: AtomicU64,
    pub(crate) counters: Counters,
    pub(crate) clock: Clock,
    pub(crate) opened: Instant,
    pub(crate) closed: AtomicBool,
    /// Held from the reading of the root to its writing, so that no change undoes another.
    pub(crate) root_change: Mutex<()>,
    /// True once the root says durably that `relaxed` writes are made: a crash may lose their
    /// records and keep their slots.
    pub(crate) non_strict: AtomicBool,
    /// The greatest sequence of a tombstone that was dropped.
    pub(crate) dropped_tombstones: AtomicU64,
    pub(crate) quarantine: Quarantine,
    /// A slot or a record was found that does not fit ([`reindex`](crate::clean::reindex)).
    pub(crate) is_index_doubted: AtomicBool,
    pub(crate) windows: Windows,
    /// Wakes the background threads.
    pub(crate) wake: (Mutex<bool>, Condvar),
}

/// The seeds that are derived from the pool's uuid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seeds {
    pub(crate) hash: u64,
    pub(crate) crc: u32,
}

impl Seeds {
    pub(crate) fn of(uuid: [u8; 16]) -> Self {
        Self { hash: xxhash_rust::xxh3::xxh3_64(&uuid), crc: crc32c::crc32c(&uuid) }
    }
}

impl Table {
    #[inline]
    pub(crate) fn view<'g>(&'g self, guard: &'g Guard, offset: u64) -> Option<View<'g>> {
        Reader { space: &self.space }.view(guard, offset)
    }

    #[inline]
    pub(crate) fn pair<'g>(&'g self, guard: &'g Guard, offset: u64) -> Option<Pair<'g>> {
        Reader { space: &self.space }.pair(guard, offset)
    }

    /// The checksum seed of a record at `offset` in a page of `generation`.
    #[inline]
    pub(crate) fn seed(&self, generation: u32, offset: u64) -> u32 {
        record::seed(self.seeds.crc, generation, offset)
    }

    /// # Errors
    /// [`Error::ChecksumMismatch`] if the record is not as it was written.
    pub(crate) fn check_record(&self, view: &View<'_>) -> Result<()> {
        let generation = self.pages.cell(self.space.page_of(view.offset)).generation();
        if mutant!("scmkv.get.checksum") {
            return Ok(());
        }
        view.check(self.seed(generation, view.offset))
    }

    /// True if the record is that of `key` and only its key is damaged: with `key` in its place the
    /// checksum matches.
    #[cold]
    pub(crate) fn had_key(&self, view: &View<'_>, key: &[u8]) -> bool {
        let generation = self.pages.cell(self.space.page_of(view.offset)).generation();
        view.had_key(self.seed(generation, view.offset), key)
    }

    /// The record that a slot points at.
    ///
    /// # Errors
    /// If there is none. Under the lock of the slot's group that is damage.
    pub(crate) fn record<'g>(&'g self, guard: &'g Guard, slot: Slot) -> Result<View<'g>> {
        let expected = if slot.is_tombstone() { Kind::Delete } else { Kind::Put };
        let view = self.view(guard, slot.offset());
        view.filter(|view| view.header.kind == expected).ok_or_else(|| misled(slot))
    }

    /// # Errors
    /// If writes have stopped.
    #[inline(always)]
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) || self.space.has_failed() {
            return self.why_not_writable();
        }
        Ok(())
    }

    #[cold]
    fn why_not_writable(&self) -> Result<()> {
        self.check_open()?;
        self.space.check_sync().map_err(crate::table::page::sync_failed)
    }

    /// # Errors
    /// If the key is too long.
    #[inline]
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<()> {
        let max = self.geometry.key_max();
        if key.len() > max {
            return Err(Error::KeyTooLong { len: key.len(), max });
        }
        Ok(())
    }

    /// The longest value: the offsets of all its overflow records must fit a record.
    pub(crate) fn value_max(&self) -> usize {
        let piece = self.geometry.inline_max();
        let list = self.geometry.record_max() - self.geometry.key_max() - 64;
        (list / 8 * piece).min(coreplane_engine::VALUE_LEN_MAX)
    }

    /// # Errors
    /// If the value is too long.
    #[inline]
    pub(crate) fn check_value(&self, len: usize) -> Result<()> {
        if len > self.geometry.inline_max() && len > self.value_max() {
            return Err(Error::ValueTooLong { len, max: self.value_max() });
        }
        Ok(())
    }

    /// Seconds since the store was opened.
    pub(crate) fn clock_seconds(&self) -> u32 {
        self.opened.elapsed().as_secs() as u32
    }

    #[inline]
    pub(crate) fn add_live(&self, offset: u64, bytes: i64) {
        let cell = self.pages.cell(self.space.page_of(offset));
        cell.live.fetch_add(bytes, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn place(&self, key: &[u8]) -> Place {
        Place::of(key, self.seeds.hash)
    }

    /// Prefetches the line of the index in which `key` is looked up.
    pub(crate) fn prefetch(&self, key: &[u8]) {
        self.index.prefetch(self.place(key));
    }

    /// Prefetches the lock of the group of `key`.
    pub(crate) fn prefetch_to_write(&self, key: &[u8]) {
        self.index.prefetch_lock(self.place(key));
    }

    /// Prefetches the record that the slot of `key` points at: the line of the index is here by
    /// now.
    pub(crate) fn prefetch_replaced(&self, key: &[u8]) {
        self.prefetch_replaced_at(self.place(key));
    }

    /// The same, of the key at `place`.
    #[inline]
    pub(crate) fn prefetch_replaced_at(&self, place: Place) {
        if let Some(slot) = self.index.likely(place) {
            self.space.prefetch(slot.offset());
            // Where a short key ends, often in the next line.
            self.space.prefetch(slot.offset() + HEADER as u64 + 16);
        }
    }

    /// True if the record has expired.
    #[inline]
    pub(crate) fn is_expired(&self, view: &View<'_>) -> Result<bool> {
        match view.header.expires_at {
            Some(at) => self.clock.has_passed(at, &self.early),
            None => Ok(false),
        }
    }

    /// True if all of the record at `offset` is durable.
    #[inline(always)]
    pub(crate) fn is_covered(&self, offset: u64, len: u32) -> bool {
        self.space.fences_at_once() || self.is_below_watermark(offset, len)
    }

    #[inline(never)]
    pub(crate) fn is_below_watermark(&self, offset: u64, len: u32) -> bool {
        let page = self.space.page_of(offset);
        let end = offset - self.space.start_of(page) + u64::from(len);
        self.space.watermarks(page).is_some_and(|(_, durable)| end <= u64::from(durable))
    }

    /// The ticket that must be durable before `view` may be shown to a caller.
    #[inline]
    pub(crate) fn ticket_of(&self, view: &View<'_>) -> Ticket {
        if self.is_covered(view.offset, view.len()) { Ticket::DURABLE } else { self.early_ticket() }
    }

    pub(crate) fn pool_bytes(&self) -> u64 {
        self.space.len()
    }

    pub(crate) fn log_pages(&self) -> impl Iterator<Item = u32> {
        (0..self.pages.len()).filter(|page| self.pages.cell(*page).kind() == Some(page::Kind::Log))
    }
}

/// The error for a slot that does not fit the record at its offset.
#[cold]
pub(crate) fn misled(slot: Slot) -> Error {
    let what = "the index points at no record of its kind".to_owned();
    Error::Corrupt { offset: slot.offset(), what }
}
