//! The tree over the pages of a [volume](crate::volume): inner nodes, the leaves and their locks.
//!
//! The first thread that descends to a leaf reads it ([`lazy_load`]), and a damaged leaf is rewritten at once: so
//! all code for rewriting a leaf belongs to this layer ([`image`], [`rewrite`], [`salvage`]).

mod append;
pub(crate) mod cuts;
pub(crate) mod doubt;
pub(crate) mod fill;
pub(crate) mod fill_factor;
pub(crate) mod image;
pub(crate) mod lazy_load;
pub(crate) mod leaf_page;
pub(crate) mod lock;
pub(crate) mod look;
mod mend;
pub(crate) mod multi_leaf_commit;
mod prefetch;
pub(crate) mod rewrite;
pub(crate) mod salvage;

use crate::inner::{Bound, Inner};
use crate::leaf::{Directory, Head, PLACES};
use crate::volume::keys::Edge;
use crate::volume::root::Root;
use crate::volume::{Volume, chunk, pages_max};
use coreplane_engine::Result;
use coreplane_pmem::chunked::Chunked;
use coreplane_pmem::mutant;
use coreplane_pmem::spin::Backoff;
use lock::Locked;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

/// Leaves whose directories are allocated together, 9 MiB; fewer in a small pool.
const CHUNK: usize = 16 << 10;

/// The leaves of a volume, and the way to each.
pub(crate) struct Tree {
    volume: Volume,
    pub(crate) inner: Inner,
    /// By the number of the page.
    pub(crate) leaves: Chunked<Directory>,
    /// Tombstones with a sequence above this are kept.
    pub(crate) held_tombstones: AtomicU64,
    /// The greatest sequence of a tombstone that was forgotten.
    pub(crate) forgotten_tombstones: AtomicU64,
    /// The state in which the store was opened.
    pub(crate) opened: Opened,
}

impl Deref for Tree {
    type Target = Volume;

    #[inline(always)]
    fn deref(&self) -> &Volume {
        &self.volume
    }
}

/// Bytes of the record that declares a leaf dead: each leaf has room for it.
pub(crate) const SUPERSEDED_MARK_LEN: usize = crate::tree::multi_leaf_commit::LEN;

/// The state in which a store was opened.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    /// Leaves with a birth below this are sealed.
    pub(crate) sealed_births: u64,
    /// Leaves with a birth below this no longer count.
    pub(crate) cleared_births: u64,
    /// Leaves with a birth below this existed at the open.
    pub(crate) births_end: u64,
    /// The store had been closed.
    pub(crate) was_closed: bool,
    /// The checkpoint had overflow pages.
    pub(crate) has_large: bool,
    /// It was opened with the checkpoint of the last close.
    pub(crate) with_checkpoint: bool,
    /// The root names a checkpoint that is not complete.
    pub(crate) checkpoint_is_damaged: bool,
    /// Leaves that are not loaded yet.
    pub(crate) unloaded: AtomicU64,
}

impl Tree {
    /// A tree whose inner nodes lead to no real leaf yet.
    pub(crate) fn new(volume: Volume, root: &Root) -> Self {
        let pages_max = pages_max(&volume.space);
        Self {
            inner: Inner::new(0, pages_max, chunk(&volume.space, crate::inner::CHUNK)),
            leaves: Chunked::new(pages_max, chunk(&volume.space, CHUNK), Directory::new),
            held_tombstones: AtomicU64::new(root.held.wrapping_sub(1)),
            forgotten_tombstones: AtomicU64::new(0),
            opened: Opened {
                sealed_births: root.sealed_births,
                cleared_births: root.cleared_births,
                ..Opened::default()
            },
            volume,
        }
    }

    /// Bytes that may still be appended to a leaf.
    pub(crate) fn room(&self, locked: &Locked<'_>) -> usize {
        if locked.held.is_sealed() {
            return 0;
        }
        let tail = self.space.watermarks(locked.page).map_or(u32::MAX, |(published, _)| published);
        (self.space.page_size() as usize).saturating_sub(tail as usize + SUPERSEDED_MARK_LEN)
    }

    /// True if a leaf is to be merged with another: its live records took `before` bytes and places and take `after`
    /// now. Where tombstones are held not at each delete: they may prevent the merge, none of this counts them, and
    /// they are found only when all records have been read.
    pub(crate) fn leaves_little(&self, before: (u32, usize), after: (u32, usize)) -> bool {
        let page = self.space.page_size();
        // As full as the one of the two of which there is more.
        let sixteenths = |(bytes, places): (u32, usize)| {
            (bytes / (page / 16)).max((places / (PLACES / 16)) as u32)
        };
        let is_step = sixteenths(after) < sixteenths(before) || after.1 == 0;
        let are_held = self.held_tombstones.load(Ordering::Relaxed) != u64::MAX;
        let is_due = is_step || !are_held || mutant!("bptree.merge.each_delete");
        after.0 < page / 4 && after < before && is_due
    }

    /// True if a tombstone is to be kept. Otherwise it is noted as forgotten.
    pub(crate) fn holds_tombstone(&self, sequence: u64) -> bool {
        let is_held = sequence > self.held_tombstones.load(Ordering::Acquire);
        if is_held && !mutant!("bptree.rewrite.tombstones") {
            return true;
        }
        self.forgotten_tombstones.fetch_max(sequence, Ordering::AcqRel);
        false
    }

    pub(crate) fn make_first_leaf(&self) -> Result<()> {
        let page = self.pages.take(1, 0)?[0];
        self.write_first(page, (Head::default(), Edge::first()))?;
        self.inner.build(page, Vec::new());
        Ok(())
    }

    /// Waits until all writers that began before the call have ended.
    pub(crate) fn wait_for_writers(&self) {
        let leaves = (0..self.space.pages()).filter_map(|page| self.leaves.made(page as usize));
        leaves.for_each(|leaf| drop(leaf.lock()));
    }

    /// Keeps writers out of all leaves from now on; returns the leaves, in the order of keys.
    pub(crate) fn shut_leaves(&self) -> Vec<Bound> {
        let mut backoff = Backoff::new();
        loop {
            let leaves = self.inner.leaves();
            // A dead leaf was rewritten meanwhile, by a thread that began earlier.
            if leaves.iter().all(|(_, page)| self.leaves.get(*page as usize).shut()) {
                return leaves;
            }
            backoff.wait();
        }
    }
}
