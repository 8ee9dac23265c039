//! The pages of the pool: which are free, and the births that they are given.
//!
//! Nothing of this is kept on the medium. A page says itself what it is ([`Head`](crate::leaf)),
//! and after a crash whatever no leaf needs is free. A *birth* is a number that no other page, and
//! no other use of the page, has ever had; it is in the seed of every checksum in the page, so that
//! what an earlier use has left there is never taken for a record. Births are drawn from a base in
//! the pool's root, which is raised durably before it is reached.

use coreplane_engine::{Error, Result};
use coreplane_pmem::{Space, spin};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pages that only what gives pages back may take: two new leaves, and one for each large value
/// on its way.
pub(crate) const RESERVE: u32 = 4;

#[derive(Debug)]
pub(crate) struct Pages {
    space: Arc<Space>,
    free: Mutex<VecDeque<u32>>,
    free_len: AtomicU32,
    next_birth: AtomicU64,
    /// Births up to here may be given out: the root says so durably.
    births_end: AtomicU64,
}

impl Pages {
    pub(crate) fn new(space: &Arc<Space>) -> Self {
        Self {
            space: Arc::clone(space),
            free: Mutex::default(),
            free_len: AtomicU32::new(0),
            next_birth: AtomicU64::new(1),
            births_end: AtomicU64::new(1),
        }
    }

    /// Adds pages that nobody uses.
    pub(crate) fn offer(&self, pages: impl Iterator<Item = u32>) {
        let mut free = spin::lock(&self.free);
        free.extend(pages);
        self.free_len.store(free.len() as u32, Ordering::Release);
    }

    /// Pages that are free, after those that no reader can hold any more have come back.
    pub(crate) fn free_len(&self) -> u32 {
        let mut free = spin::lock(&self.free);
        self.reclaim(&mut free);
        free.len() as u32
    }

    fn reclaim(&self, free: &mut VecDeque<u32>) {
        while let Some(page) = self.space.reclaim() {
            free.push_back(page);
        }
        self.free_len.store(free.len() as u32, Ordering::Release);
    }

    /// Takes `count` pages, if `reserve` are left.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn take(&self, count: u32, reserve: u32) -> Result<Vec<u32>> {
        let mut free = spin::lock(&self.free);
        self.reclaim(&mut free);
        if (free.len() as u32) < count + reserve {
            return Err(Error::NoSpace {
                needed: u64::from(count) * u64::from(self.space.page_size()),
                reclaimable: 0,
            });
        }
        let pages = free.drain(..count as usize).collect();
        self.free_len.store(free.len() as u32, Ordering::Release);
        Ok(pages)
    }

    /// From here on births are `from` and above, below `end`.
    pub(crate) fn allow_births(&self, from: u64, end: u64) {
        self.next_birth.fetch_max(from, Ordering::AcqRel);
        self.births_end.fetch_max(end, Ordering::AcqRel);
    }

    /// A birth; none if the root must be raised first.
    pub(crate) fn birth(&self) -> Option<u64> {
        let end = self.births_end.load(Ordering::Acquire);
        let draw = |next: u64| (next < end).then_some(next + 1);
        self.next_birth.fetch_update(Ordering::AcqRel, Ordering::Acquire, draw).ok()
    }
}
