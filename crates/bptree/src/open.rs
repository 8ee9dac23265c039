//! Creating and opening a store.

use crate::compact::Compaction;
use crate::counters::Counters;
use crate::durable::Early;
use crate::inner::Inner;
use crate::keys::Edge;
use crate::leaf::{Directory, Head};
use crate::pages::Pages;
use crate::store::{Opened, PENS, Root, STEP, Store};
use coreplane_engine::{Error, Progress, Result, UnixMillis};
use coreplane_pmem::chunked::Chunked;
use coreplane_pmem::isolation::Isolation;
use coreplane_pmem::mutant;
use coreplane_pmem::windows::Windows;
use coreplane_pmem::{CreateOptions, MediaChoice, Pool, Space, spin};
pub use coreplane_record::Options;
pub(crate) use coreplane_record::pool_error;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The kind of pool that this engine makes.
pub const KIND: &str = "bptree";

/// The usual bytes in a page, and so in a leaf.
pub const PAGE_SIZE: u32 = 16 << 10;

/// Leaves whose directories come into being together: 4 MiB.
const CHUNK: usize = 16 << 10;

/// What a pool of this engine is created with.
pub(crate) fn create_options(size: u64, page_size: u32, media: MediaChoice) -> CreateOptions {
    CreateOptions { size, media, page_size, kind: KIND.to_owned(), parameters: [0; 8] }
}

fn pages_max(space: &Space) -> usize {
    usize::try_from(space.reserved() / u64::from(space.page_size())).unwrap_or(usize::MAX)
}

impl Store {
    /// Makes a fresh pool a store: one leaf for all keys.
    pub(crate) fn format(pool: Pool, options: &Options) -> Result<Self> {
        if pool.space().page_size() > 512 << 10 {
            return Err(Error::Unusable("a leaf has at most 512 KiB".to_owned()));
        }
        let root = Root { version_base: STEP, births_end: STEP, ..Root::default() };
        let store = Self::assemble(pool, root, options);
        store.pages.allow_births(1, STEP);
        store.pages.offer(1..store.space.pages());
        store.make_first_leaf()?;
        // With this the store begins.
        store.set_root(root)?;
        Ok(store)
    }

    fn make_first_leaf(&self) -> Result<()> {
        let head = Head {
            birth: 0,
            version: 0,
            predecessor: None,
            least: Box::default(),
            bound: None,
            image_len: 0,
            is_lost: false,
        };
        let page = self.pages.take(1, 0)?[0];
        self.write_first(page, (head, Edge::first()))?;
        self.inner.build(page, Vec::new());
        Ok(())
    }

    /// Opens the store that a pool holds, recovering it if it was not closed.
    pub(crate) fn open(
        pool: Pool,
        options: &Options,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self> {
        pool.expect_kind(KIND).map_err(pool_error)?;
        let old = Root::from_words(pool.root());
        if old.version_base == 0 {
            return Err(Error::Unusable("the store was never wholly created".to_owned()));
        }
        let is_clean = old.flags & Root::CLEAN != 0;
        let root = Root {
            flags: if mutant!("bptree.open.stays_clean") {
                old.flags
            } else {
                old.flags & !Root::CLEAN
            },
            sealed_births: if is_clean { old.sealed_births } else { old.births_end },
            version_base: old.version_base
                + if mutant!("bptree.open.version_base") { 0 } else { STEP },
            births_end: old.births_end + STEP,
            checkpoint: None,
            ..old
        };
        let mut store = Self::assemble(pool, root, options);
        let first_birth = if mutant!("bptree.open.births") { 1 } else { old.births_end };
        store.pages.allow_births(first_birth, root.births_end);
        store.opened.births_end = old.births_end;
        store.opened.was_closed = is_clean;
        // From here on a crash finds the store unclean and no checkpoint, and versions and births go
        // on above.
        store.set_root(root)?;
        // What was forgotten before is not known, unless they were held.
        let forgotten = if root.held > 0 { root.held - 1 } else { root.version_base };
        store.forgotten_tombstones.store(forgotten, Ordering::Release);
        let in_use = || Error::Unusable("the pool was opened before".to_owned());
        let recovery = store.space.recovery().ok_or_else(in_use)?;
        if let Some(checkpoint) = old.checkpoint.filter(|_| is_clean) {
            let loaded = store.load_checkpoint(&recovery, checkpoint)?;
            store.opened.with_checkpoint = loaded.is_some();
            store.opened.has_large = loaded.unwrap_or(false);
            store.opened.checkpoint_is_damaged = !store.opened.with_checkpoint;
        }
        if !store.opened.with_checkpoint {
            store.recover(recovery, progress)?;
        }
        Ok(store)
    }

    fn assemble(pool: Pool, root: Root, options: &Options) -> Self {
        let space = Arc::clone(pool.space());
        let pages_max = pages_max(&space);
        Self {
            seed: coreplane_pmem::checksum::crc32c_append(0, &pool.uuid()),
            pages: Pages::new(&space),
            inner: Inner::new(0, pages_max),
            leaves: Chunked::new(pages_max, CHUNK, Directory::new),
            pens: (0..PENS).map(|_| CachePadded::new(spin::Lock::new(None))).collect(),
            version_base: AtomicU64::new(root.version_base),
            counters: Counters::default(),
            held_tombstones: AtomicU64::new(root.held.wrapping_sub(1)),
            forgotten_tombstones: AtomicU64::new(0),
            cursors: Mutex::default(),
            isolation: Isolation::default(),
            early: Early::new(&space, pages_max),
            compaction: Compaction::default(),
            windows: Windows::new(),
            durability: options.durability,
            time: options.time.clone().unwrap_or_else(|| Arc::new(UnixMillis::now)),
            check_reads: options.check_reads,
            told_expired: AtomicU64::new(root.told_expired),
            root_change: Mutex::new(()),
            holding: Mutex::new(()),
            whole: Mutex::new(()),
            closed: AtomicBool::new(false),
            opened: Opened {
                sealed_births: root.sealed_births,
                cleared_births: root.cleared_births,
                ..Opened::default()
            },
            space,
            pool,
        }
    }

    /// Leaves a clean store behind, and a checkpoint if there is room for it. Writes fail from now on.
    pub(crate) fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::SeqCst) {
            let is_clean = Root::from_words(self.pool.root()).flags & Root::CLEAN != 0;
            let failed = || Error::Unusable("closing has failed, or goes on".to_owned());
            return is_clean.then_some(()).ok_or_else(failed);
        }
        let _whole = spin::lock(&self.whole);
        let leaves = self.shut_leaves();
        self.fence()?;
        let checkpoint = self.write_checkpoint(leaves)?;
        let _changing = spin::lock(&self.root_change);
        let root = Root::from_words(self.pool.root());
        self.set_root(Root { flags: root.flags | Root::CLEAN, checkpoint, ..root })
    }

    /// Waits until nobody writes who began before the call.
    pub(crate) fn wait_for_writers(&self) {
        let leaves = (0..self.space.pages()).filter_map(|page| self.leaves.made(page as usize));
        leaves.for_each(|leaf| drop(leaf.lock()));
    }
}
