//! The checkpoints that the root names; [`checkpoint`](crate::upkeep::checkpoint) takes them.

use crate::table::Table;
use crate::table::root::Root;
use coreplane_engine::Result;
use coreplane_pmem::spin::{self, Backoff};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// The checkpoints of an open store.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    pub(crate) current: Mutex<Current>,
    /// A writer has no page left: a checkpoint that is being taken is to end.
    give_up: AtomicBool,
    /// Number of the current checkpoint, readable without the lock.
    number: AtomicU64,
    /// The counter of log bytes when the current checkpoint was taken.
    counted_from: AtomicI64,
    taken: AtomicU64,
    /// How often there was no space for a checkpoint that was due, and whether there was none last
    /// time.
    skipped: AtomicU64,
    lacks_space: AtomicBool,
    damaged: AtomicU64,
}

/// The checkpoint that the root names.
#[derive(Debug, Default)]
pub(crate) struct Current {
    /// 0: none.
    pub(crate) number: u64,
    pub(crate) pages: Vec<u32>,
}

impl Checkpoints {
    /// The checkpoints of a store that has none, or a damaged one.
    pub(crate) fn without(is_damaged: bool) -> Self {
        Self { damaged: AtomicU64::new(u64::from(is_damaged)), ..Self::default() }
    }

    /// The checkpoints of a store that was opened with checkpoint `number`.
    pub(crate) fn with(number: u64, pages: Vec<u32>) -> Self {
        let current = Mutex::new(Current { number, pages });
        Self { current, number: AtomicU64::new(number), ..Self::default() }
    }

    /// Counts `bytes` of log that an open has read and that the next open would read again.
    pub(crate) fn note_replayed(&self, bytes: u64) {
        self.counted_from.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// The number of the current checkpoint; 0: none.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// The counter of log bytes when the current checkpoint was taken.
    pub(crate) fn counted_from(&self) -> i64 {
        self.counted_from.load(Ordering::Relaxed)
    }

    /// True if a checkpoint that is being taken is to end.
    pub(crate) fn is_given_up(&self) -> bool {
        self.give_up.load(Ordering::Acquire)
    }

    /// The root names `number`, a checkpoint begun when `log_bytes` bytes had gone to the logs.
    pub(crate) fn note_taken(&self, number: u64, log_bytes: i64) {
        self.number.store(number, Ordering::Release);
        self.counted_from.store(log_bytes, Ordering::Relaxed);
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.lacks_space.store(false, Ordering::Relaxed);
    }

    /// Notes that there is no space for a checkpoint.
    pub(crate) fn skip(&self) {
        if !self.lacks_space.swap(true, Ordering::Relaxed) {
            self.skipped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The figures of the checkpoints for the statistics.
    pub(crate) fn stats(&self, log_bytes: i64) -> [(&'static str, u64); 5] {
        let since = log_bytes - self.counted_from.load(Ordering::Relaxed);
        [
            ("checkpoint", self.number.load(Ordering::Acquire)),
            ("checkpoint_replay_bytes", since.max(0) as u64),
            ("checkpoints_taken", self.taken.load(Ordering::Relaxed)),
            ("checkpoints_skipped", self.skipped.load(Ordering::Relaxed)),
            ("checkpoints_damaged", self.damaged.load(Ordering::Relaxed)),
        ]
    }
}

impl Table {
    pub(crate) fn set_checkpoint(&self, checkpoint: u64, replay_birth: u64) -> Result<()> {
        let _changing = spin::lock(&self.root_change);
        self.set_root(Root { checkpoint, replay_birth, ..self.root() })
    }

    /// Gives the pages of checkpoints back, for a writer that finds no other; false if there are
    /// none.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn give_up_checkpoint(&self) -> Result<bool> {
        if self.index.in_pool() {
            return Ok(false);
        }
        let mut was_busy = false;
        let mut backoff = Backoff::new();
        let mut current = loop {
            if let Some(current) = self.checkpoints.current.try_lock() {
                break current;
            }
            // The lock is free soon: a thread that takes a checkpoint waits for nothing that a
            // writer holds.
            self.checkpoints.give_up.store(true, Ordering::Release);
            was_busy = true;
            backoff.wait();
        };
        self.checkpoints.give_up.store(false, Ordering::Release);
        if current.number == 0 {
            return Ok(was_busy);
        }
        self.set_checkpoint(0, 0)?;
        let old = std::mem::take(&mut *current);
        self.checkpoints.number.store(0, Ordering::Release);
        self.checkpoints.note_replayed(self.pool_bytes());
        self.pages.free_all(&old.pages)?;
        Ok(true)
    }
}
