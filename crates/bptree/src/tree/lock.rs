//! From a key to its leaf, and the leaf's lock.

use crate::inner::Descent;
use crate::leaf::{Directory, Held, Life, Version, tag_of};
use crate::tree::Tree;
use coreplane_engine::{Error, Result};
use coreplane_pmem::spin::Backoff;
use coreplane_pmem::{LINE, WriteMode, mutant};
use coreplane_record::{HEADER, lost};
use std::sync::atomic::Ordering;

/// A leaf that is locked for a write.
pub(crate) struct Locked<'s> {
    pub(crate) page: u32,
    pub(crate) leaf: &'s Directory,
    pub(crate) held: Held<'s>,
}

impl Locked<'_> {
    pub(crate) fn life(&self) -> Life {
        Life { page: self.page, birth: self.held.birth() }
    }
}

impl Tree {
    /// The leaf at the end of a descent, and its version; none if the descent is stale, or the leaf is not loaded:
    /// then the caller descends again, after [`Tree::load_leaf`].
    #[inline]
    pub(crate) fn arrive(&self, descent: &Descent) -> Option<(&Directory, Version)> {
        let leaf = self.leaves.get(descent.leaf as usize);
        leaf.prefetch();
        self.space.prefetch_page(descent.leaf);
        // For the address translation, which the record needs too.
        self.space.prefetch(self.space.start_of(descent.leaf));
        self.begin_at(descent, leaf).map(|version| (leaf, version))
    }

    #[inline]
    pub(crate) fn begin_at(&self, descent: &Descent, leaf: &Directory) -> Option<Version> {
        let version = leaf.version()?;
        self.inner.is_current(descent).then_some(version)
    }

    /// Locks the leaf that serves `key`.
    ///
    /// # Errors
    /// As [`Tree::load_leaf`], and if the medium is gone.
    pub(crate) fn lock_leaf(&self, key: &[u8]) -> Result<Locked<'_>> {
        self.lock_leaf_for(self.descend(key), (key, 0), 0)
    }

    /// As [`Tree::lock_leaf`], along an earlier descent, where a record of about `len` bytes is to be appended (0:
    /// none) of a key with this tag.
    #[inline]
    fn lock_leaf_for(
        &self,
        way: Descent,
        (key, tag): (&[u8], u8),
        len: usize,
    ) -> Result<Locked<'_>> {
        let (mut way, mut backoff) = (Some(way), Backoff::new());
        loop {
            let descent = way.take().unwrap_or_else(|| self.inner.descend(key));
            let leaf = self.leaves.get(descent.leaf as usize);
            self.prefetch_leaf((descent.leaf, leaf), (key, tag), len);
            let Some(version) = self.begin_at(&descent, leaf) else {
                self.load_leaf(descent.leaf)?;
                continue;
            };
            if let Some(held) = leaf.try_lock(version) {
                return Ok(Locked { page: descent.leaf, leaf, held });
            }
            // On a lost medium there is no use in waiting for the holder of the lock.
            self.space.check_lost().map_err(|at| lost(&self.pool, at))?;
            backoff.wait();
        }
    }

    /// True if a leaf that the caller has locked serves `key`. The path to the leaf does not change while it is
    /// locked: a rewrite or a merge with its neighbours needs its lock. `way` is an earlier descent for the key.
    pub(crate) fn serves(&self, locked: &Locked<'_>, way: Descent, key: &[u8]) -> bool {
        let is_current = self.inner.is_current(&way);
        let way = if is_current { way } else { self.inner.descend(key) };
        way.leaf == locked.page || mutant!("bptree.batch.serves")
    }

    /// Prefetches the lines that a write to a leaf reads, those that a record of `len` bytes will occupy, and those
    /// of records that it may replace, all at once. Called before the leaf is locked: no load behind the locking
    /// instruction starts before it is done, and it waits for the leaf's own lines.
    #[inline]
    pub(crate) fn prefetch_leaf(
        &self,
        (page, leaf): (u32, &Directory),
        (key, tag): (&[u8], u8),
        len: usize,
    ) {
        leaf.prefetch();
        if len == 0 {
            return self.space.prefetch_page(page);
        }
        let start = self.space.start_of(page);
        if self.space.append_mode() == WriteMode::Cached
            && let Some((tail, _)) = self.space.watermarks(page)
        {
            let from = start + u64::from(tail);
            // A long value is not in the page, and neither is a record that has no room there.
            let len = len.min(self.record_len_max()) as u64;
            let end = (from + len).min(start + u64::from(self.space.page_size()));
            let lines = (from..end).step_by(LINE);
            lines.for_each(|at| self.space.prefetch_to_write(at));
        }
        for place in leaf.candidates(tag) {
            let old = start + u64::from(leaf.offset(place));
            // The beginning of the record, and the end of its key.
            self.space.prefetch(old);
            self.space.prefetch(old + (HEADER + key.len().min(self.field_max())) as u64);
        }
    }

    /// As [`Tree::lock_leaf`], for a write of a record of about `len` bytes, or of unknown length (0).
    ///
    /// # Errors
    /// [`Error::Closed`], and as [`Tree::load_leaf`].
    pub(crate) fn lock_to_write(&self, key: &[u8], len: usize) -> Result<Locked<'_>> {
        self.lock_to_append((key, tag_of(key)), len)
    }

    /// The same, along an earlier descent.
    ///
    /// # Errors
    /// As [`Tree::lock_to_write`].
    pub(crate) fn lock_to_write_by(&self, way: Descent, key: &[u8]) -> Result<Locked<'_>> {
        self.lock_open_leaf(way, (key, tag_of(key)), 0)
    }

    /// As [`Tree::lock_to_write`], for a key with this tag.
    ///
    /// # Errors
    /// As [`Tree::lock_to_write`].
    #[inline]
    pub(crate) fn lock_to_append(&self, keyed: (&[u8], u8), len: usize) -> Result<Locked<'_>> {
        self.lock_open_leaf(self.descend(keyed.0), keyed, len)
    }

    #[inline]
    fn lock_open_leaf(&self, way: Descent, keyed: (&[u8], u8), len: usize) -> Result<Locked<'_>> {
        let (mut way, mut backoff) = (Some(way), Backoff::new());
        loop {
            let by = way.take().unwrap_or_else(|| self.inner.descend(keyed.0));
            let locked = self.lock_leaf_for(by, keyed, len)?;
            if !locked.held.is_shut() {
                return Ok(locked);
            }
            drop(locked);
            if self.closed.load(Ordering::Acquire) {
                return Err(Error::Closed);
            }
            // The store is being emptied.
            backoff.wait();
        }
    }
}
