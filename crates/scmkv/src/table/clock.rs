//! The clock against which expiries are checked.
//!
//! Once a reader was told that a record has expired, the record must not come back because the
//! system's clock was set back before a restart. So the greatest expiry that was reported as passed
//! is kept durably (the *high-water mark*, in the page information table), and the clock never
//! reads less.
//!
//! The mark is an expiry, never the time of the check. A clock that was far ahead for a moment and
//! was then corrected must not make later writes expire at once.
//!
//! Where a fence is a sync, no caller waits for the mark here: an expiry is an absence like any
//! other, and its ticket covers the mark too ([`durable`](crate::table::durable)).

use crate::table::durable::Early;
use crate::table::page::sync_failed;
use coreplane_engine::{Error, Result, TimeSource, UnixMillis};
use coreplane_pmem::mutant;
use coreplane_pmem::{Durable, Space, spin};
use coreplane_record::sealed;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Clock {
    source: TimeSource,
    space: Arc<Space>,
    offset: u64,
    high_water: AtomicU64,
    raising: Mutex<()>,
}

impl Clock {
    /// The clock whose mark is the word at `offset`.
    pub(crate) fn open(source: TimeSource, space: Arc<Space>, offset: u64) -> Result<Self> {
        let word = space.word::<Durable>(offset).map_or(0, |word| word.load());
        let high_water = match word {
            0 => 0,
            word => sealed::open(word, offset).ok_or_else(|| Error::Corrupt {
                offset,
                what: "the clock's high-water mark does not match its check".to_owned(),
            })?,
        };
        let raising = Mutex::new(());
        Ok(Self { source, space, offset, high_water: AtomicU64::new(high_water), raising })
    }

    /// The time, which never goes back behind a reported expiry.
    pub(crate) fn now(&self) -> UnixMillis {
        (self.source)().max(UnixMillis(self.high_water.load(Ordering::Acquire)))
    }

    /// True if a record with this expiry is gone. That is durable when the call returns or, where a
    /// fence is a sync, once everything that `early` covers from now on is durable.
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub(crate) fn has_passed(&self, expires_at: UnixMillis, early: &Early) -> Result<bool> {
        if expires_at.0 <= self.high_water.load(Ordering::Acquire) {
            return Ok(true);
        }
        if expires_at > (self.source)() {
            return Ok(false);
        }
        self.raise(expires_at.0, early)?;
        Ok(true)
    }

    #[cold]
    fn raise(&self, to: u64, early: &Early) -> Result<()> {
        let _raising = spin::lock(&self.raising);
        if to <= self.high_water.load(Ordering::Acquire) {
            return Ok(());
        }
        if let Some(word) = self.space.word::<Durable>(self.offset) {
            word.store(sealed::seal(to & sealed::CONTENT_MAX, self.offset));
            if !mutant!("scmkv.clock.flush") {
                word.flush();
            }
            if self.space.fences_at_once() {
                if !mutant!("scmkv.clock.fence") {
                    self.space.fence().map_err(sync_failed)?;
                }
            } else {
                // Request the sync here: the caller that sees the expiry may never ask for one.
                self.space.sync_request(early.cover(&self.space));
            }
        }
        self.high_water.store(to, Ordering::Release);
        Ok(())
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").field("high_water", &self.high_water).finish_non_exhaustive()
    }
}
