//! What the parts of the engine share: the pool, its pages, the index, the logs.

use crate::clean::Cleaner;
use crate::clean::appraisal::Appraisals;
use crate::table::arena::Arena;
use crate::table::clock::Clock;
use crate::table::counters::Counters;
use crate::table::durable::Early;
use crate::table::geometry::Geometry;
use crate::table::index::{Index, Position, Slot};
use crate::table::log::Log;
use crate::table::page::Pages;
use crate::table::quarantine::Quarantine;
use crate::table::stage::Staging;
use crate::upkeep::checkpoint::Checkpoints;
use crate::write::batch::Gate;
use crate::write::sweep_expired::Expiries;
use coreplane_engine::{Durability, Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_pmem::windows::Windows;
use coreplane_pmem::{Pool, Space, spin};
use coreplane_record::{self as record, Kind, Reader, View};
use crossbeam_utils::CachePadded;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The parts of an open store.
pub(crate) struct Store {
    pub(crate) pool: Pool,
    pub(crate) space: Arc<Space>,
    pub(crate) geometry: Geometry,
    pub(crate) durability: Durability,
    /// [`Options::check_reads`](crate::Options::check_reads).
    pub(crate) check_reads: bool,
    pub(crate) pages: Pages,
    pub(crate) index: Index,
    /// The DRAM that the index is in, unless it is in the pool.
    pub(crate) arena: Option<Arena>,
    pub(crate) early: Early,
    pub(crate) logs: Box<[CachePadded<spin::Lock<Log>>]>,
    pub(crate) staging: Staging,
    pub(crate) cleaner: Mutex<Cleaner>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) seeds: Seeds,
    /// Versions given out are greater than this.
    pub(crate) version_base: AtomicU64,
    pub(crate) gate: Gate,
    pub(crate) counters: Counters,
    pub(crate) clock: Clock,
    pub(crate) expiries: Expiries,
    pub(crate) opened: Instant,
    /// Tombstones with a sequence above this are kept.
    pub(crate) held_tombstones: AtomicU64,
    /// The greatest sequence of a tombstone that was dropped.
    pub(crate) dropped_tombstones: AtomicU64,
    pub(crate) closed: AtomicBool,
    /// Held from the reading of the root to its writing, so that no change undoes another.
    pub(crate) root_change: Mutex<()>,
    /// Set, durably, once a write was made whose loss a crash may leave to the index.
    pub(crate) non_strict: AtomicBool,
    /// Up to where the groups' records are counted.
    pub(crate) counting: Mutex<Position>,
    /// All is counted, and all slots were seen.
    pub(crate) census_done: AtomicBool,
    /// What was appraised before; for those who have the cleaner.
    pub(crate) appraisals: Mutex<Appraisals>,
    pub(crate) quarantine: Quarantine,
    /// A slot or a record was met that does not fit ([`reindex`](crate::clean::reindex)).
    pub(crate) is_index_doubted: AtomicBool,
    pub(crate) windows: Windows,
    /// Wakes the cleaning thread.
    pub(crate) wake: (Mutex<bool>, Condvar),
}

/// What the pool's uuid is turned into.
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

/// The words of the pool's root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) flags: u64,
    pub(crate) version_base: u64,
    /// Live records at a clean close.
    pub(crate) records: u64,
    /// Number of the last complete checkpoint; 0: none.
    pub(crate) checkpoint: u64,
    /// Records of pages with at least this birth are not all in the checkpoint; it lists those of
    /// older pages that were open.
    pub(crate) replay_birth: u64,
    /// Pages whose elements are written: fewer than the pool has after a crash in a growth.
    pub(crate) formatted: u64,
    /// One more than the sequence above which all tombstones are kept; 0: they are not.
    pub(crate) held: u64,
}

impl Root {
    /// The store was closed: the index or checkpoint and the table tell all.
    pub(crate) const CLEAN: u64 = 1;
    /// The index is in the pool.
    pub(crate) const IN_POOL: u64 = 2;
    /// Since the last clean close writes were made at `relaxed`: slots of the index
    /// may be durable before their records.
    pub(crate) const NON_STRICT: u64 = 4;
    /// Some of those were never flushed, by a build that could: a full page may hold records that are not
    /// sound.
    pub(crate) const UNFLUSHED: u64 = 8;
    /// The flags that a clean close takes back.
    pub(crate) const UNCLEAN: u64 = Self::NON_STRICT | Self::UNFLUSHED;

    // media-format: begin pool
    pub(crate) fn to_words(self) -> [u64; 8] {
        let Self { flags, version_base, records, checkpoint, replay_birth, formatted, held } = self;
        [flags, version_base, records, checkpoint, replay_birth, formatted, held, 0]
    }
    // media-format: end

    pub(crate) fn from_words(words: [u64; 8]) -> Self {
        let [flags, version_base, records, checkpoint, replay_birth, formatted, held, _] = words;
        Self { flags, version_base, records, checkpoint, replay_birth, formatted, held }
    }

    pub(crate) fn has(self, flag: u64) -> bool {
        self.flags & flag != 0
    }
}

impl Store {
    #[inline]
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { space: &self.space }
    }

    /// The checksum seed of a record at `offset` in a page of `generation`.
    #[inline]
    pub(crate) fn seed(&self, generation: u32, offset: u64) -> u32 {
        record::seed(self.seeds.crc, generation, offset)
    }

    /// # Errors
    /// [`Error::ChecksumMismatch`] if the record is not what was written.
    pub(crate) fn check_record(&self, view: &View<'_>) -> Result<()> {
        let generation = self.pages.cell(self.space.page_of(view.offset)).generation();
        if mutant!("scmkv.get.checksum") {
            return Ok(());
        }
        view.check(self.seed(generation, view.offset))
    }

    /// True if a record is that of `key`, whose key is what is damaged of it: all else is as its checksum says
    /// with that key.
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
        let view = self.reader().view(guard, slot.offset());
        view.filter(|view| view.header.kind == expected).ok_or_else(|| misled(slot))
    }

    /// # Errors
    /// If writes have stopped.
    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
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

    /// The longest value: all its overflow records' offsets must fit a record.
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

    /// Grows the pool. The new pages count once their elements are durable; the next open writes
    /// those that a crash has left out.
    ///
    /// # Errors
    /// If there is no room for it.
    pub(crate) fn grow(&self, size: u64) -> Result<()> {
        crate::recovery::open::check_len(size)?;
        let _cleaning = spin::lock(&self.cleaner);
        self.check_writable()?;
        let before = self.pages.len();
        self.pool.grow(size).map_err(crate::recovery::open::pool_error)?;
        self.pages.format(before)?;
        {
            let _changing = spin::lock(&self.root_change);
            self.set_root(Root { formatted: u64::from(self.pages.len()), ..self.root() })?;
        }
        self.pages.offer(before);
        Ok(())
    }

    pub(crate) fn root(&self) -> Root {
        Root::from_words(self.pool.root())
    }

    /// # Errors
    /// If it cannot be made durable.
    pub(crate) fn set_root(&self, root: Root) -> Result<()> {
        self.pool.set_root(root.to_words()).map_err(crate::recovery::open::pool_error)
    }

    /// The root, to be changed for a write. A close marks the store as closed before it takes this
    /// lock to write the root of a closed store, so that no change comes behind that one.
    ///
    /// # Errors
    /// If the store is closed, or being closed.
    fn change_root(&self) -> Result<(MutexGuard<'_, ()>, Root)> {
        let changing = spin::lock(&self.root_change);
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok((changing, self.root()))
    }

    /// Raises the base of versions durably before any greater version is given out. For those who
    /// hold nothing.
    ///
    /// # Errors
    /// If it cannot be made durable, or the store is closed.
    pub(crate) fn advance_sequence(&self) -> Result<u64> {
        let (_changing, root) = self.change_root()?;
        self.raise_version_base_of(root)
    }

    fn raise_version_base_of(&self, mut root: Root) -> Result<u64> {
        root.version_base += crate::table::index::VERSION_STEP;
        self.set_root(root)?;
        self.version_base.store(root.version_base, Ordering::SeqCst);
        Ok(root.version_base)
    }

    /// Raises the base of versions durably to `version`, which a caller has given: a version never
    /// comes within half a step of the one that the next open begins with.
    ///
    /// # Errors
    /// If it cannot be made durable.
    #[cold]
    pub(crate) fn cover_version(&self, version: u64) -> Result<()> {
        let _changing = spin::lock(&self.root_change);
        let mut root = self.root();
        root.version_base = root.version_base.max(version);
        self.set_root(root)?;
        self.version_base.store(root.version_base, Ordering::SeqCst);
        Ok(())
    }

    /// Notes durably that a non-strict write is about to be made.
    ///
    /// # Errors
    /// If it cannot be made durable, or the store is closed.
    pub(crate) fn note_non_strict(&self) -> Result<()> {
        if self.non_strict.load(Ordering::Acquire) {
            return Ok(());
        }
        let (_changing, mut root) = self.change_root()?;
        root.flags |= Root::NON_STRICT;
        self.set_root(root)?;
        self.non_strict.store(true, Ordering::Release);
        Ok(())
    }

    #[inline]
    pub(crate) fn add_live(&self, offset: u64, bytes: i64) {
        let cell = self.pages.cell(self.space.page_of(offset));
        cell.live.fetch_add(bytes, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn version_base(&self) -> u64 {
        self.version_base.load(Ordering::Acquire)
    }
}

/// The error for a slot that does not fit what it points at.
#[cold]
pub(crate) fn misled(slot: Slot) -> Error {
    let what = "the index points at no record of its kind".to_owned();
    Error::Corrupt { offset: slot.offset(), what }
}
