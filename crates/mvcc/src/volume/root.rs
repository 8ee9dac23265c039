//! The words of the pool's root: state that must outlive every page.
//!
//! A birth and a version are numbers that are never given out twice. The root holds durable bounds, above all numbers
//! that were ever given out. A bound is raised by a step before it is reached, so that new numbers begin above it
//! after a crash.

use super::Volume;
use coreplane_engine::{Error, Result, UnixMillis};
use coreplane_pmem::{mutant, spin};
use coreplane_record::pool_error;
use std::sync::atomic::Ordering;

/// Births and versions are raised in steps of this.
pub(crate) const STEP: u64 = 1 << 24;

/// The greatest sequence that a caller may give.
const SEQUENCE_MAX: u64 = 1 << 61;

/// The words of the pool's root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) flags: u64,
    /// All versions that were ever given out are below this.
    pub(crate) versions_end: u64,
    /// All births that were ever given out are below this.
    pub(crate) births_end: u64,
    /// The greatest expiry that a caller was told has passed, in milliseconds since 1970.
    pub(crate) told_expired: u64,
    /// One more than the sequence above which all tombstones are kept; 0: none are kept.
    pub(crate) held: u64,
    /// Pages with a lesser birth were ended durably by a close: unsound bytes in them are damage.
    pub(crate) births_closed: u64,
}

impl Root {
    /// The store was closed.
    pub(crate) const CLEAN: u64 = 1;

    // media-format: begin pool
    pub(crate) fn to_words(self) -> [u64; 8] {
        let Self { flags, versions_end, births_end, told_expired, held, births_closed } = self;
        [flags, versions_end, births_end, told_expired, held, births_closed, 0, 0]
    }
    // media-format: end

    pub(crate) fn from_words(words: [u64; 8]) -> Self {
        let [flags, versions_end, births_end, told_expired, held, births_closed, ..] = words;
        Self { flags, versions_end, births_end, told_expired, held, births_closed }
    }
}

impl Volume {
    /// The root as it is now.
    pub(crate) fn root(&self) -> Root {
        Root::from_words(self.pool.root())
    }

    /// Changes the root; durable when it returns.
    ///
    /// # Errors
    /// If it cannot be made durable.
    pub(crate) fn change_root(&self, change: impl FnOnce(&mut Root)) -> Result<Root> {
        let _changing = spin::lock(&self.root_change);
        let mut root = self.root();
        let before = root;
        change(&mut root);
        if root != before {
            self.pool.set_root(root.to_words()).map_err(pool_error)?;
        }
        Ok(root)
    }

    /// True if the time has passed.
    ///
    /// That is durable when it returns: a caller that was told that a record has expired must not be told otherwise
    /// after a restart with a clock that was set back.
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub(crate) fn has_passed(&self, at: UnixMillis) -> Result<bool> {
        if at.0 <= self.told_expired.load(Ordering::Acquire) {
            return Ok(true);
        }
        if at > (self.time)() {
            return Ok(false);
        }
        if !mutant!("mvcc.root.expiry") {
            self.change_root(|root| root.told_expired = root.told_expired.max(at.0))?;
        }
        self.told_expired.fetch_max(at.0, Ordering::AcqRel);
        Ok(true)
    }

    /// As [`Volume::has_passed`], but without a write: false if the expiry would have to be made durable first.
    pub(crate) fn is_told_expired(&self, at: UnixMillis) -> bool {
        at.0 <= self.told_expired.load(Ordering::Acquire)
    }

    /// The time; never before an expiry that a caller was told of.
    pub(crate) fn now(&self) -> UnixMillis {
        (self.time)().max(UnixMillis(self.told_expired.load(Ordering::Acquire)))
    }

    /// Ensures that versions up to `version` may be given out.
    ///
    /// # Errors
    /// If the root cannot be raised for it.
    pub(crate) fn allow_version(&self, version: u64) -> Result<()> {
        if version < self.versions_end.load(Ordering::Acquire) {
            return Ok(());
        }
        let end =
            self.change_root(|root| root.versions_end = root.versions_end.max(version) + STEP)?;
        self.versions_end.fetch_max(end.versions_end, Ordering::AcqRel);
        Ok(())
    }

    /// Ensures that `birth` may be given out.
    ///
    /// # Errors
    /// If the root cannot be raised for it.
    pub(crate) fn allow_birth(&self, birth: u64) -> Result<()> {
        if birth < self.births_end.load(Ordering::Acquire) {
            return Ok(());
        }
        let end = self.change_root(|root| root.births_end = root.births_end.max(birth) + STEP)?;
        self.births_end.fetch_max(end.births_end, Ordering::AcqRel);
        Ok(())
    }

    /// # Errors
    /// If a caller may not give this sequence.
    pub(crate) fn check_sequence(sequence: Option<u64>) -> Result<()> {
        match sequence {
            Some(given) if given >= SEQUENCE_MAX => {
                Err(Error::Unusable(format!("sequence {given} is over {SEQUENCE_MAX}")))
            }
            _ => Ok(()),
        }
    }
}
