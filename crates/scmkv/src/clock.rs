//! The clock that expiries are held against.
//!
//! A record that a reader has once been told is gone must not come back because the system's
//! clock was set back before a restart. So the greatest expiry that anyone was told has passed is
//! kept durably (its *high-water mark*, in the page information table), and the clock never reads
//! less.

use crate::page::sync_failed;
use crate::sealed;
use coreplane_engine::{Error, Result, UnixMillis};
use coreplane_pmem::{Durable, Space};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells the time; tests bring their own.
pub type TimeSource = Arc<dyn Fn() -> UnixMillis + Send + Sync>;

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

    /// True if a record that expires then is gone; durably so when it returns.
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub(crate) fn has_passed(&self, expires_at: UnixMillis) -> Result<bool> {
        if expires_at.0 <= self.high_water.load(Ordering::Acquire) {
            return Ok(true);
        }
        let now = (self.source)();
        if expires_at > now {
            return Ok(false);
        }
        let _raising = self.raising.lock();
        if now.0 > self.high_water.load(Ordering::Acquire) {
            if let Some(word) = self.space.word::<Durable>(self.offset) {
                word.store(sealed::seal(now.0 & sealed::CONTENT_MAX, self.offset));
                self.space.persist(self.offset, 8).map_err(sync_failed)?;
            }
            self.high_water.store(now.0, Ordering::Release);
        }
        Ok(true)
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").field("high_water", &self.high_water).finish_non_exhaustive()
    }
}
