//! The lowest layer: the pool as pages, and their content, regardless of the references to them.
//!
//! It knows which pages are free, the content of the root, how writes become durable, and how keys and values lie
//! in pages of their own. It does not know which page is the leaf of which keys: the [tree](crate::tree) does.

pub(crate) mod counters;
pub(crate) mod durable;
pub(crate) mod hurt;
pub(crate) mod keys;
pub(crate) mod overflow;
pub(crate) mod pages;
pub(crate) mod root;

use crate::leaf::{Head, generation};
use coreplane_engine::{Durability, Error, Result, TimeSource, UnixMillis};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::isolation::Isolation;
use coreplane_pmem::windows::Windows;
use coreplane_pmem::{PageBytes, Pen, Pool, Space, spin, thread_number};
use coreplane_record::{self as record, Header, Options, Reader, sync_failed};
use counters::{Count, Counters};
use crossbeam_utils::CachePadded;
use durable::Early;
use pages::Pages;
use parking_lot::Mutex;
use root::Root;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The kind of pool that this engine makes.
pub const KIND: &str = "bptree";

/// The number of pens of a store.
const PENS: usize = 64;

/// An open pool as pages.
pub(crate) struct Volume {
    pub(crate) pool: Pool,
    pub(crate) space: Arc<Space>,
    /// The seed of checksums.
    pub(crate) seed: u32,
    pub(crate) pages: Pages,
    /// One for each thread, more or less.
    pens: Box<[CachePadded<spin::Lock<Option<Pen>>>]>,
    pub(crate) counters: Counters,
    /// None where a fence is an instruction.
    pub(crate) early: Option<Early>,
    pub(crate) windows: Windows,
    durability: Durability,
    /// Tells a close whether there were rows of pages that no record names yet.
    pub(crate) unnamed_rows: Isolation,
    /// Held while the root is changed.
    pub(crate) root_change: Mutex<()>,
    /// Versions given out are greater than this.
    pub(crate) version_base: AtomicU64,
    time: TimeSource,
    told_expired: AtomicU64,
    pub(crate) closed: AtomicBool,
}

/// The number of pages that the pool can grow to.
pub(crate) fn pages_max(space: &Space) -> usize {
    usize::try_from(space.reserved() / u64::from(space.page_size())).unwrap_or(usize::MAX)
}

/// The least number of entries that are made at a time of a table by page.
const CHUNK_MIN: usize = 64;

/// The number of entries that are made at a time of a table by page, at most `most`: half of the pages that the pool
/// has when it is opened, so that a small pool with a large reserve has a small table. It stays so when the pool grows.
pub(crate) fn chunk(space: &Space, most: usize) -> usize {
    let pages = usize::try_from(space.len() / u64::from(space.page_size())).unwrap_or(usize::MAX);
    most.min((pages / 2).max(CHUNK_MIN))
}

/// The least key of a leaf and its bound.
pub(crate) type Bounds<'g> = (Cow<'g, [u8]>, Option<Cow<'g, [u8]>>);

impl Volume {
    /// A volume over a pool with this root.
    pub(crate) fn new(pool: Pool, root: &Root, options: &Options) -> Self {
        let space = Arc::clone(pool.space());
        Self {
            seed: coreplane_pmem::checksum::crc32c_append(0, &pool.uuid()),
            pages: Pages::new(&space),
            pens: (0..PENS).map(|_| CachePadded::new(spin::Lock::new(None))).collect(),
            counters: Counters::default(),
            early: Early::new(&space),
            windows: Windows::new(),
            durability: options.durability,
            unnamed_rows: Isolation::default(),
            root_change: Mutex::new(()),
            version_base: AtomicU64::new(root.version_base),
            time: options.time.clone().unwrap_or_else(|| Arc::new(UnixMillis::now)),
            told_expired: AtomicU64::new(root.told_expired),
            closed: AtomicBool::new(false),
            space,
            pool,
        }
    }

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

    /// The least key of a leaf and its bound, checked against their checksums: a caller that goes on to the next
    /// leaf, or decides that a key is here, relies on them.
    ///
    /// # Errors
    /// If the page is no leaf, or its head or the rest of a bound is damaged.
    pub(crate) fn bounds<'g>(&'g self, guard: &'g Guard, page: u32) -> Result<Bounds<'g>> {
        let bytes = self.space.page_bytes(guard, page).ok_or_else(|| self.not_a_leaf(page))?;
        self.bounds_in(guard, &bytes)
    }

    /// As [`Volume::bounds`], of a leaf's page. The bound is above the least key.
    ///
    /// # Errors
    /// As [`Volume::bounds`].
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
        let least = self.bound(guard, least)?;
        let bound = bound.map(|bound| self.bound(guard, bound)).transpose()?;
        if bound.as_deref().is_some_and(|bound| *bound <= *least) {
            return Err(not_a_leaf());
        }
        Ok((least, bound))
    }

    /// The pen of this thread, more or less.
    #[inline]
    pub(crate) fn pen(&self) -> spin::Held<'_, Option<Pen>> {
        self.pens[thread_number() % PENS].lock()
    }

    /// Makes everything durable that this thread flushed before.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn fence(&self) -> Result<()> {
        self.space.fence().map_err(sync_failed)
    }

    /// The encoded header of a record at `offset` in the pool.
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

    /// The error for a page that is not the leaf that it should be.
    pub(crate) fn not_a_leaf(&self, page: u32) -> Error {
        let offset = self.space.start_of(page);
        Error::Corrupt { offset, what: format!("page {page} is not the leaf that it should be") }
    }

    /// The number of records.
    pub(crate) fn len(&self) -> u64 {
        self.counters.get(Count::Records).max(0) as u64
    }

    /// Checks that the medium can read a page, before anything is read from it. An unreadable page may be readable
    /// at another time: it is not overwritten.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a part of it cannot be read.
    pub(crate) fn check_readable(&self, page: u32) -> Result<()> {
        self.space.probe_loads(page).map_err(|at| {
            let what = "the medium cannot be read there".to_owned();
            Error::Corrupt { offset: at.offset, what }
        })
    }

    /// Gives a page back, once no reader can hold it and its old content is no longer needed.
    pub(crate) fn retire(&self, page: u32) -> Result<()> {
        if self.pages.give_back(page) {
            return Ok(());
        }
        Err(Error::Unusable(format!("page {page} has a writer, and should be dead")))
    }

    /// As [`Volume::retire`], for all of them; returns the first error.
    pub(crate) fn retire_all(&self, pages: impl IntoIterator<Item = u32>) -> Result<()> {
        let mut retired = Ok(());
        for page in pages {
            retired = retired.and(self.retire(page));
        }
        retired
    }

    /// The head of the leaf of this birth in a page, whose bounds are whole.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn sound_head(&self, guard: &Guard, page: u32, birth: u64) -> Result<Head> {
        let head = self.head_of(guard, page)?;
        if head.birth != birth {
            return Err(self.not_a_leaf(page));
        }
        for bound in std::iter::once(&head.least).chain(&head.bound) {
            self.bound(guard, bound)?;
        }
        Ok(head)
    }
}
