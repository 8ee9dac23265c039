//! What the parts of the engine share: the pool, its pages, the tree.

use crate::compact::Compaction;
use crate::counters::{Count, Counters};
use crate::cursor::Place;
use crate::durable::Early;
use crate::inner::Inner;
use crate::leaf::{Directory, Head, Life, generation};
use crate::lock::Locked;
use crate::pages::Pages;
use coreplane_engine::{
    Beside, Cursors, Durability, Error, KEY_LEN_MAX, Result, TimeSource, UnixMillis,
};
use coreplane_pmem::chunked::Chunked;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::isolation::Isolation;
use coreplane_pmem::mutant;
use coreplane_pmem::spin;
use coreplane_pmem::windows::Windows;
use coreplane_pmem::{PageBytes, PageWriter, Pen, Pool, Space, fence_mark, thread_number};
pub(crate) use coreplane_record::sync_failed;
use coreplane_record::{self as record, Header, Reader, View};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Births and versions are raised in steps of this.
pub(crate) const STEP: u64 = 1 << 24;

/// Sequences that callers give are below this.
const SEQUENCE_MAX: u64 = 1 << 61;

/// Bytes of the record that says that a leaf is dead: each leaf has room for it.
pub(crate) const SUPERSEDED_MARK_LEN: usize = crate::multi_leaf_commit::LEN;

/// Pens of a store.
pub(crate) const PENS: usize = 64;

/// The parts of an open store.
pub(crate) struct Store {
    pub(crate) pool: Pool,
    pub(crate) space: Arc<Space>,
    /// What checksums begin with.
    pub(crate) seed: u32,
    pub(crate) pages: Pages,
    pub(crate) inner: Inner,
    /// By the number of the page.
    pub(crate) leaves: Chunked<Directory>,
    /// One for each thread, more or less.
    pub(crate) pens: Box<[CachePadded<spin::Lock<Option<Pen>>>]>,
    /// Versions given out are greater than this.
    pub(crate) version_base: AtomicU64,
    pub(crate) counters: Counters,
    /// Tombstones with a sequence above this are kept.
    pub(crate) held_tombstones: AtomicU64,
    /// The greatest sequence of a tombstone that was forgotten.
    pub(crate) forgotten_tombstones: AtomicU64,
    /// Where iterations go on.
    pub(crate) cursors: Mutex<Cursors<Place>>,
    pub(crate) isolation: Isolation,
    /// None where a fence is an instruction.
    pub(crate) early: Option<Early>,
    pub(crate) compaction: Compaction,
    pub(crate) windows: Windows,
    pub(crate) durability: Durability,
    pub(crate) time: TimeSource,
    pub(crate) check_reads: bool,
    pub(crate) told_expired: AtomicU64,
    pub(crate) root_change: Mutex<()>,
    /// Held while it is changed which tombstones are kept.
    pub(crate) holding: Mutex<()>,
    /// Held by who closes or empties the store, while all leaves are shut.
    pub(crate) whole: Mutex<()>,
    pub(crate) closed: AtomicBool,
    /// What it was opened with.
    pub(crate) opened: Opened,
}

/// What a store was opened with.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    /// Leaves with a birth below this are sealed.
    pub(crate) sealed_births: u64,
    /// Leaves with a birth below this count no more.
    pub(crate) cleared_births: u64,
    /// Leaves with a birth below this were there already.
    pub(crate) births_end: u64,
    /// It had been closed.
    pub(crate) was_closed: bool,
    /// There were large values in the checkpoint.
    pub(crate) has_large: bool,
    /// With the checkpoint of the close before.
    pub(crate) with_checkpoint: bool,
    /// The root names a checkpoint that is not there whole.
    pub(crate) checkpoint_is_damaged: bool,
    /// Leaves that nobody has come to since.
    pub(crate) unloaded: AtomicU64,
}

/// The words of the pool's root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) flags: u64,
    pub(crate) version_base: u64,
    /// All births that were ever given out are below this.
    pub(crate) births_end: u64,
    /// The greatest expiry that anyone was told has passed, in milliseconds since 1970.
    pub(crate) told_expired: u64,
    /// Leaves with a birth below this are sealed: their last records may not have been durable when the
    /// process was killed, and what came behind them would say that they were.
    pub(crate) sealed_births: u64,
    /// One more than the sequence above which all tombstones are kept; 0: they are not.
    pub(crate) held: u64,
    /// What the close has left behind; only in a root that is clean.
    pub(crate) checkpoint: Option<Life>,
    /// Leaves with a birth below this were there when the store was emptied: they do not count.
    pub(crate) cleared_births: u64,
}

impl Root {
    /// The store was closed.
    pub(crate) const CLEAN: u64 = 1;

    // media-format: begin pool
    pub(crate) fn to_words(self) -> [u64; 8] {
        let Self { version_base, births_end, told_expired, sealed_births, held, .. } = self;
        // No page has the birth 0.
        let (page, birth) = self.checkpoint.map_or((0, 0), |it| (u64::from(it.page), it.birth));
        let (flags, cleared) = (self.flags | page << 32, self.cleared_births);
        [flags, version_base, births_end, told_expired, sealed_births, held, birth, cleared]
    }
    // media-format: end

    pub(crate) fn from_words(words: [u64; 8]) -> Self {
        let [first, version_base, births_end, told_expired, sealed_births, held, birth, cleared] =
            words;
        Self {
            flags: first & u64::from(u32::MAX),
            version_base,
            births_end,
            told_expired,
            sealed_births,
            held,
            checkpoint: (birth > 0).then_some(Life { page: (first >> 32) as u32, birth }),
            cleared_births: cleared,
        }
    }
}

/// The least key of a leaf and its bound.
pub(crate) type Bounds<'g> = (Cow<'g, [u8]>, Option<Cow<'g, [u8]>>);

impl Store {
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { space: &self.space }
    }

    /// # Errors
    /// If writes have stopped.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        self.space.check_sync().map_err(sync_failed)
    }

    /// The longest value that is in its record.
    pub(crate) fn inline_max(&self) -> usize {
        self.space.page_size() as usize / 4
    }

    /// # Errors
    /// If the value is too long.
    pub(crate) fn check_value(&self, len: usize) -> Result<()> {
        let max = coreplane_engine::VALUE_LEN_MAX;
        if len > max {
            return Err(Error::ValueTooLong { len, max });
        }
        Ok(())
    }

    /// # Errors
    /// If the key is too long.
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<()> {
        let max = KEY_LEN_MAX;
        if key.len() > max {
            return Err(Error::KeyTooLong { len: key.len(), max });
        }
        Ok(())
    }

    /// # Errors
    /// If a sequence is given that is too great.
    pub(crate) fn check_sequence(&self, given: Option<u64>) -> Result<()> {
        if given.is_some_and(|given| given >= SEQUENCE_MAX) {
            let operation = "a given sequence of 2^61 or more";
            return Err(Error::Unsupported { engine: crate::KIND, operation });
        }
        Ok(())
    }

    /// The least key of a leaf and its bound, held against their checksum: who goes on to the next leaf,
    /// or says of a key that it is here, relies on them.
    ///
    /// # Errors
    /// If the page is no leaf, or its head is damaged.
    pub(crate) fn bounds<'g>(&'g self, guard: &'g Guard, page: u32) -> Result<Bounds<'g>> {
        let bytes = self.space.page_bytes(guard, page).ok_or_else(|| self.not_a_leaf(page))?;
        self.bounds_in(guard, &bytes)
    }

    /// As [`Store::bounds`], of a leaf's page. The bound is above the least key.
    ///
    /// # Errors
    /// As [`Store::bounds`].
    #[inline]
    pub(crate) fn bounds_in<'g>(
        &'g self,
        guard: &'g Guard,
        bytes: &PageBytes<'g>,
    ) -> Result<Bounds<'g>> {
        let page = self.space.page_of(bytes.start());
        let not_a_leaf = || self.not_a_leaf(page);
        Head::check(bytes, self.seed, page)?;
        let (least, bound) = Head::bounds(bytes).ok_or_else(not_a_leaf)?;
        let least = self.whole_key(guard, least)?;
        let bound = bound.map(|bound| self.whole_key(guard, bound)).transpose()?;
        if bound.as_deref().is_some_and(|bound| *bound <= *least) {
            return Err(not_a_leaf());
        }
        Ok((least, bound))
    }

    /// True if the record has expired: durably so, for one that was told that it is gone must not
    /// be told otherwise after a restart with a clock that was set back. What is kept is the
    /// greatest expiry that was told, never the time of the look.
    ///
    /// # Errors
    /// If that cannot be made durable.
    #[inline]
    pub(crate) fn is_expired(&self, view: &View<'_>) -> Result<bool> {
        match view.header.expires_at {
            Some(at) => self.has_passed(at),
            None => Ok(false),
        }
    }

    fn has_passed(&self, at: UnixMillis) -> Result<bool> {
        if at.0 <= self.told_expired.load(Ordering::Acquire) {
            return Ok(true);
        }
        if at > (self.time)() {
            return Ok(false);
        }
        let _changing = spin::lock(&self.root_change);
        if at.0 > self.told_expired.load(Ordering::Acquire) {
            let root = Root::from_words(self.pool.root());
            self.set_root(Root { told_expired: at.0, ..root })?;
            self.told_expired.store(at.0, Ordering::Release);
        }
        Ok(true)
    }

    /// The time, which never goes back behind an expiry that was told.
    pub(crate) fn now(&self) -> UnixMillis {
        (self.time)().max(UnixMillis(self.told_expired.load(Ordering::Acquire)))
    }

    /// Bytes that may still be appended to a leaf.
    pub(crate) fn room(&self, locked: &Locked<'_>) -> usize {
        if locked.held.is_sealed() {
            return 0;
        }
        let tail = self.space.watermarks(locked.page).map_or(u32::MAX, |(published, _)| published);
        (self.space.page_size() as usize).saturating_sub(tail as usize + SUPERSEDED_MARK_LEN)
    }

    /// The pen of this thread, more or less.
    #[inline]
    pub(crate) fn pen(&self) -> spin::Held<'_, Option<Pen>> {
        self.pens[thread_number() % PENS].lock()
    }

    /// Has `write` append to the page of a locked leaf, and flush it: published when it returns, and durable
    /// where a fence is an instruction. Where it is a sync, [`Store::cover`] says which. It returns where the
    /// record is, in a register: a load of what was stored in other pieces would wait until the medium has all.
    ///
    /// # Errors
    /// If the medium fails: no reader is led to it then.
    #[inline(always)]
    pub(crate) fn append_to(
        &self,
        page: u32,
        write: impl FnOnce(&mut PageWriter) -> Option<u32>,
    ) -> Result<u32> {
        let mut pen = self.pen();
        let mut writer = self.writer_of(&mut pen, page)?;
        let start = writer.next_offset();
        let written = write(&mut writer).ok_or_else(|| self.not_a_leaf(page));
        let is_fenced = self.early.is_none() && !mutant!("bptree.put.fence");
        let fenced = if is_fenced { self.fence() } else { Ok(()) };
        let is_made = written.is_ok() && fenced.is_ok();
        *pen = Some(if is_made && self.early.is_none() {
            writer.finish()
        } else {
            if is_made {
                writer.publish_early();
            } else {
                self.take_back(&mut writer, start);
            }
            writer.lay_down()
        });
        fenced.and(written)
    }

    /// As [`Store::append_to`], where a fence is an instruction, and beside the same
    /// put on another engine. None if nothing was made.
    ///
    /// # Errors
    /// As [`Store::append_to`].
    pub(crate) fn append_beside(
        &self,
        page: u32,
        write: &mut dyn FnMut(&mut PageWriter) -> Option<u32>,
        beside: Beside<'_>,
    ) -> Result<Option<u32>> {
        let mut pen = self.pen();
        let mut writer = self.writer_of(&mut pen, page)?;
        let start = writer.next_offset();
        let mut written = None;
        let goes_on = beside(&mut || {
            written = write(&mut writer).map(|written| (written, fence_mark()));
            written.is_some()
        });
        let fenced = match &written {
            Some((_, mark)) if goes_on => self.space.fence_since(*mark).map_err(sync_failed),
            _ => Ok(()),
        };
        let made = written.filter(|_| goes_on && fenced.is_ok());
        *pen = Some(if made.is_some() {
            writer.finish()
        } else {
            // What is written over it comes after it.
            if writer.next_offset() != start && self.fence().is_ok() {
                self.take_back(&mut writer, start);
            }
            writer.lay_down()
        });
        fenced.map(|()| made.map(|(written, _)| written))
    }

    fn writer_of(&self, pen: &mut Option<Pen>, page: u32) -> Result<PageWriter> {
        let taken = pen.take().unwrap_or_else(|| Pen::new(&self.space));
        taken.take_up(page).map_err(|_| self.not_a_leaf(page))
    }

    /// Nothing of what was appended from `start` on is published: it is as if it had not been.
    #[cold]
    pub(crate) fn take_back(&self, writer: &mut PageWriter, start: u64) {
        let birth = self.leaves.get(writer.page() as usize).birth();
        // Where the medium has failed nothing is written any more.
        let _taken_back =
            writer.rewind(start) && self.fill_rest(writer, birth).is_ok() && self.fence().is_ok();
    }

    /// Everything that this thread flushed before is durable when it returns.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn fence(&self) -> Result<()> {
        self.space.fence().map_err(sync_failed)
    }

    /// The encoded header of a record at `offset` of a page.
    pub(crate) fn encode(
        &self,
        birth: u64,
        offset: u64,
        header: &Header,
        key: &[u8],
        value: &[u8],
    ) -> record::Encoded {
        header.encode(record::seed(self.seed, generation(birth), offset), key, &[value])
    }

    /// The head of a leaf's page.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn head_of(&self, guard: &Guard, page: u32) -> Result<Head> {
        Head::read(&self.space, guard, self.seed, page)?.ok_or_else(|| self.not_a_leaf(page))
    }

    /// A birth for a page that is about to be written.
    ///
    /// # Errors
    /// If the root cannot be raised for it.
    pub(crate) fn birth(&self) -> Result<u64> {
        loop {
            if let Some(birth) = self.pages.birth() {
                return Ok(birth);
            }
            let _changing = spin::lock(&self.root_change);
            let root = Root::from_words(self.pool.root());
            let next = Root { births_end: root.births_end + STEP, ..root };
            self.set_root(next)?;
            self.pages.allow_births(root.births_end, next.births_end);
        }
    }

    /// # Errors
    /// If it cannot be made durable.
    pub(crate) fn set_root(&self, root: Root) -> Result<()> {
        self.pool.set_root(root.to_words()).map_err(crate::open::pool_error)
    }

    /// A page is not the leaf that it should be.
    pub(crate) fn not_a_leaf(&self, page: u32) -> Error {
        let offset = self.space.start_of(page);
        Error::Corrupt { offset, what: format!("page {page} is not the leaf that it should be") }
    }

    /// Grows the pool to `size` bytes while it is in use.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    pub(crate) fn grow(&self, size: u64) -> Result<()> {
        self.check_writable()?;
        let _changing = spin::lock(&self.root_change);
        // Whoever closes it takes the lock last of all: a pool that is left behind stays as it is.
        self.check_writable()?;
        let before = self.space.pages();
        self.pool.grow(size).map_err(crate::open::pool_error)?;
        self.pages.offer(before..self.space.pages());
        Ok(())
    }

    /// The number of records.
    pub(crate) fn len(&self) -> u64 {
        self.counters.get(Count::Records).max(0) as u64
    }

    /// Raises the base of versions by a step, and to `version` at least; the new base.
    ///
    /// # Errors
    /// If it cannot be made durable.
    pub(crate) fn raise_version_base(&self, version: u64) -> Result<u64> {
        let _changing = spin::lock(&self.root_change);
        let root = Root::from_words(self.pool.root());
        let version_base = (root.version_base + STEP).max(version);
        self.set_root(Root { version_base, ..root })?;
        self.version_base.store(version_base, Ordering::Release);
        Ok(version_base)
    }
}
