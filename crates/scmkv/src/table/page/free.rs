//! The free pages: a queue, so that all are used equally often. Pages at its front are made ready
//! before they are opened, where that helps.

use super::Pages;
use coreplane_engine::{Error, Result};
use coreplane_pmem::Preparation;
use std::sync::atomic::{AtomicU8, Ordering};

/// How many of the next pages to be opened are kept ready for small syncs.
const PREPARED: usize = 8;

/// Whether a page has been made ready for small syncs ([`Pages::prepare_next`]) since the store was
/// opened, and since it was last in use.
#[derive(Debug, Default)]
pub(super) struct Readiness(AtomicU8);

impl Readiness {
    /// The initial state: the page may never have been written.
    const UNKNOWN: u8 = 0;
    const READY: u8 = 1;
    /// It was ready, and records have been appended since.
    const USED: u8 = 2;

    /// The preparation that the page needs before it is filled; none if it is ready.
    fn due(&self) -> Option<Preparation> {
        match self.0.load(Ordering::Relaxed) {
            Self::READY => None,
            Self::USED => Some(Preparation::Again),
            Self::UNKNOWN.. => Some(Preparation::First),
        }
    }

    fn note_ready(&self) {
        self.0.store(Self::READY, Ordering::Relaxed);
    }

    /// Notes that the page is opened. Called by the thread that has taken it.
    pub(super) fn note_used(&self) {
        if self.0.load(Ordering::Relaxed) == Self::READY {
            self.0.store(Self::USED, Ordering::Relaxed);
        }
    }
}

impl Pages {
    /// Free pages, not counting retired ones.
    pub(crate) fn free_len(&self) -> u32 {
        self.free_len.load(Ordering::Acquire)
    }

    pub(super) fn push_free(&self, page: u32) {
        let mut free = self.free.lock();
        free.push_back(page);
        self.free_len.store(free.len() as u32, Ordering::Release);
    }

    /// Adds the pages `from ..`, which were formatted, to the free pages. Only when the root says
    /// durably that they are formatted: an open formats all pages behind those that the root
    /// counts.
    pub(crate) fn offer(&self, from: u32) {
        (from..self.len())
            .filter(|page| !self.is_table(*page))
            .for_each(|page| self.push_free(page));
    }

    /// Takes back the retired pages that no reader can hold any more; returns the number of free
    /// pages.
    pub(crate) fn refresh_free(&self) -> u32 {
        self.free_and_retired().0
    }

    /// As [`Pages::refresh_free`], and also the number of pages that become free later: those still
    /// retired, and one that is being made ready. A page that turns from such a page into a free
    /// one is not missed.
    pub(crate) fn free_and_retired(&self) -> (u32, u32) {
        let mut free = self.free.lock();
        while let Some(page) = self.space.reclaim() {
            free.push_back(page);
        }
        self.free_len.store(free.len() as u32, Ordering::Release);
        let preparing = self.preparing.load(Ordering::Relaxed);
        (free.len() as u32, self.space.retired_len() as u32 + preparing)
    }

    pub(crate) fn pop_free(&self, reserve: u32) -> Option<u32> {
        self.take(1, reserve).and_then(|mut pages| pages.pop())
    }

    /// Takes `count` pages off the free queue, if `reserve` are left. On the medium they stay free
    /// until [`Pages::open_log`].
    pub(crate) fn take(&self, count: u32, reserve: u32) -> Option<Vec<u32>> {
        self.refresh_free();
        let mut free = self.free.lock();
        if free.len() < count as usize + reserve as usize {
            return None;
        }
        let pages = free.drain(..count as usize).collect();
        self.free_len.store(free.len() as u32, Ordering::Release);
        Some(pages)
    }

    /// Gives back pages that were taken and not opened.
    pub(crate) fn put_back(&self, pages: &mut Vec<u32>) {
        pages.drain(..).for_each(|page| self.push_free(page));
    }

    /// Makes one of the next [`PREPARED`] free pages ready for small syncs (`Space::prepare`);
    /// false if all are. At most a quarter of the free pages are kept ready. Meanwhile the page
    /// counts as one that becomes free later ([`Pages::free_and_retired`]).
    pub(crate) fn prepare_next(&self) -> Result<bool> {
        let page = {
            let mut free = self.free.lock();
            let ahead = PREPARED.min(free.len() / 4);
            let is_due = |page: &u32| self.cell(*page).readiness.due().is_some();
            let due = free.iter().take(ahead).position(is_due);
            let Some(page) = due.and_then(|at| free.remove(at)) else { return Ok(false) };
            self.free_len.store(free.len() as u32, Ordering::Release);
            self.preparing.fetch_add(1, Ordering::Relaxed);
            page
        };
        let readiness = &self.cell(page).readiness;
        let prepared = readiness.due().map_or(Ok(true), |due| self.space.prepare(page, due));
        if prepared.is_ok() {
            readiness.note_ready();
        }
        let mut free = self.free.lock();
        // Behind the ready pages, which are used first.
        let is_ready = |page: &u32| self.cell(*page).readiness.due().is_none();
        let at = free.iter().take_while(|page| is_ready(page)).count();
        free.insert(at, page);
        self.preparing.fetch_sub(1, Ordering::Relaxed);
        self.free_len.store(free.len() as u32, Ordering::Release);
        let context = || format!("filling page {page} with zeroes");
        prepared.map_err(|source| Error::Io { context: context(), source })
    }
}
