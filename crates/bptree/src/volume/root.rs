//! The words of the pool's root, and the state that is kept durable in them: births, versions, expiries.

use crate::leaf::{Life, generation};
use crate::volume::Volume;
use coreplane_engine::{Result, UnixMillis};
use coreplane_pmem::{mutant, spin};
use coreplane_record::{Kind, View};
use std::sync::atomic::Ordering;

/// Births and versions are raised in this step.
pub(crate) const STEP: u64 = 1 << 24;

/// The words of the pool's root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) flags: u64,
    pub(crate) version_base: u64,
    /// All births that were ever given out are below this.
    pub(crate) births_end: u64,
    /// The greatest expiry that counts as told to a caller, in milliseconds since 1970. It has passed.
    pub(crate) told_expired: u64,
    /// Leaves with a birth below this are sealed: their last records may not have been durable when the process was
    /// killed, and later records behind them would state that they were.
    pub(crate) sealed_births: u64,
    /// One more than the sequence above which all tombstones are kept; 0: no tombstones are kept.
    pub(crate) held: u64,
    /// The checkpoint of the close; only in a clean root.
    pub(crate) checkpoint: Option<Life>,
    /// Leaves with a birth below this existed when the store was emptied: they do not count.
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

impl Volume {
    /// True if the record has expired. Durably so, since a caller that was told that a record is gone must not see
    /// it again after a restart with a clock that was set back. The root keeps the greatest expiry that was told,
    /// never the time of the look. A change of the root takes four fences: so that a leaf needs one, those of the
    /// expiries of its `others` that have passed count as told, too.
    ///
    /// # Errors
    /// If the expiry cannot be made durable.
    #[inline]
    pub(crate) fn is_expired<I: Iterator<Item = UnixMillis>>(
        &self,
        view: &View<'_>,
        others: impl FnOnce() -> I,
    ) -> Result<bool> {
        let Some(at) = view.header.expires_at else { return Ok(false) };
        if at.0 <= self.told_expired.load(Ordering::Acquire) {
            return Ok(true);
        }
        let now = (self.time)();
        if at > now {
            return Ok(false);
        }
        self.tell_expired(at, now, others)?;
        Ok(true)
    }

    /// True if a record of a leaf of this birth is no tombstone, and has not expired.
    ///
    /// # Errors
    /// As [`Volume::means_absence`] and [`Volume::is_expired`].
    #[inline]
    pub(crate) fn is_live<I: Iterator<Item = UnixMillis>>(
        &self,
        view: &View<'_>,
        birth: u64,
        others: impl FnOnce() -> I,
    ) -> Result<bool> {
        let is_put = view.header.kind == Kind::Put;
        if is_put && view.header.expires_at.is_none() || !self.means_absence(view, birth)? {
            return Ok(true);
        }
        Ok(is_put && !self.is_expired(view, others)?)
    }

    /// True if a record of a leaf of this birth is a tombstone, or has expired by now. Its checksum is verified then:
    /// otherwise a flipped bit of its kind or its expiry would be a silent loss.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn means_absence(&self, view: &View<'_>, birth: u64) -> Result<bool> {
        let has_passed = |at: UnixMillis| at <= self.now();
        if view.header.kind == Kind::Put && !view.header.expires_at.is_some_and(has_passed) {
            return Ok(false);
        }
        if !mutant!("bptree.look.absence") {
            view.check(coreplane_record::seed(self.seed, generation(birth), view.offset))?;
        }
        Ok(true)
    }

    /// Makes an expiry durable, with those of `others` that have passed now.
    #[cold]
    fn tell_expired<I: Iterator<Item = UnixMillis>>(
        &self,
        at: UnixMillis,
        now: UnixMillis,
        others: impl FnOnce() -> I,
    ) -> Result<()> {
        let at = others().filter(|at| *at <= now).fold(at, Ord::max);
        let _changing = spin::lock(&self.root_change);
        if at.0 > self.told_expired.load(Ordering::Acquire) {
            let root = Root::from_words(self.pool.root());
            self.set_root(Root { told_expired: at.0, ..root })?;
            self.told_expired.store(at.0, Ordering::Release);
        }
        Ok(())
    }

    /// The time, which never goes back before an expiry that was told.
    pub(crate) fn now(&self) -> UnixMillis {
        (self.time)().max(UnixMillis(self.told_expired.load(Ordering::Acquire)))
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
        self.pool.set_root(root.to_words()).map_err(coreplane_record::pool_error)
    }

    /// Raises the base of versions by a step, and at least to `version`; returns the new base.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_births_of_one_open_have_not_the_generations_of_another() {
        let births = || (0..4096).flat_map(|open| (1..9).map(move |birth| open * STEP + birth));
        let generations: HashSet<u32> = births().map(generation).collect();
        assert_eq!(generations.len(), births().count());
        assert_eq!(generation(u64::from(u32::MAX)), u32::MAX, "as it was");
    }
}
