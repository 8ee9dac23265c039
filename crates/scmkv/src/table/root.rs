//! The root of the pool: the state that an open needs first, and the base of versions.

use crate::table::Table;
use coreplane_engine::{Error, Result};
use coreplane_pmem::spin;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;

/// The words of the pool's root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) flags: u64,
    pub(crate) version_base: u64,
    /// Live records at a clean close.
    pub(crate) records: u64,
    /// Number of the last complete checkpoint; 0: none.
    pub(crate) checkpoint: u64,
    /// The checkpoint lacks some records of pages with at least this birth. It lists the older
    /// pages that were open.
    pub(crate) replay_birth: u64,
    /// Pages whose elements are written; after a crash during growth, fewer than the pool has.
    pub(crate) formatted: u64,
    /// One more than the sequence above which all tombstones are kept; 0: tombstones are not held.
    pub(crate) held: u64,
}

impl Root {
    /// The store was closed: the index or checkpoint and the page information table are complete.
    pub(crate) const CLEAN: u64 = 1;
    /// The index is in the pool.
    pub(crate) const IN_POOL: u64 = 2;
    /// `relaxed` writes were made since the last clean close: slots of the index may be durable
    /// before their records.
    pub(crate) const NON_STRICT: u64 = 4;
    /// Some `relaxed` writes were never flushed, by an earlier build that allowed that: a full page
    /// may hold records that are not sound.
    pub(crate) const UNFLUSHED: u64 = 8;
    /// The flags that a clean close clears.
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

impl Table {
    pub(crate) fn root(&self) -> Root {
        Root::from_words(self.pool.root())
    }

    /// # Errors
    /// If it cannot be made durable.
    pub(crate) fn set_root(&self, root: Root) -> Result<()> {
        self.pool.set_root(root.to_words()).map_err(coreplane_record::pool_error)
    }

    /// The root, to be changed for a write. A close marks the store as closed before it takes this
    /// lock and writes the root of a closed store, so no change follows that one.
    ///
    /// # Errors
    /// If the store is closed, or being closed.
    pub(crate) fn change_root(&self) -> Result<(MutexGuard<'_, ()>, Root)> {
        let changing = spin::lock(&self.root_change);
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok((changing, self.root()))
    }

    /// Raises the base of versions durably before any greater version is given out. The caller
    /// holds no lock.
    ///
    /// # Errors
    /// If it cannot be made durable, or the store is closed.
    pub(crate) fn advance_sequence(&self) -> Result<u64> {
        let (_changing, root) = self.change_root()?;
        self.raise_version_base_of(root)
    }

    pub(crate) fn raise_version_base_of(&self, mut root: Root) -> Result<u64> {
        root.version_base += crate::table::index::VERSION_STEP;
        self.set_root(root)?;
        self.version_base.store(root.version_base, Ordering::SeqCst);
        Ok(root.version_base)
    }

    /// Raises the base of versions durably to `version`, which a caller has given: a version never
    /// comes within half a step of the version with which the next open begins.
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
    pub(crate) fn version_base(&self) -> u64 {
        self.version_base.load(Ordering::Acquire)
    }
}
