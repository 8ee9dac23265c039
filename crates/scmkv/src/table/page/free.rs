//! The free pages: a queue, so that each is used as often as the others. Those at its front are
//! made ready before they are opened, where that is of use.

use super::Pages;
use coreplane_engine::{Error, Result};
use coreplane_pmem::Preparation;
use std::sync::atomic::{AtomicU8, Ordering};

/// So many of the pages that will be opened next are kept ready for small syncs.
const PREPARED: usize = 8;

/// Whether a page has been made ready for small syncs ([`Pages::prepare_next`]) since the store was
/// opened, and since it was last in use.
#[derive(Debug, Default)]
pub(super) struct Readiness(AtomicU8);

impl Readiness {
    /// It may never have been written. What a new one is.
    const UNKNOWN: u8 = 0;
    const READY: u8 = 1;
    /// It was ready, and records were appended to it since.
    const USED: u8 = 2;

    /// What is to be done before the page is filled; none if it is ready.
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

    /// The page is opened, by the one who has taken it.
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

    /// Adds the pages `from ..`, which were formatted, to the free ones. Only when the root says
    /// durably that they are: an open formats all pages behind those that it names.
    pub(crate) fn offer(&self, from: u32) {
        (from..self.len())
            .filter(|page| !self.is_table(*page))
            .for_each(|page| self.push_free(page));
    }

    /// Takes back the retired pages that no reader can hold any more; the free pages then.
    pub(crate) fn refresh_free(&self) -> u32 {
        self.free_and_retired().0
    }

    /// As [`Pages::refresh_free`], and the pages on their way: those that are still retired, and
    /// one that is being made ready. No page is missed on its way from these to those.
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

    /// Takes `count` pages off the free ones, if `reserve` are left. They are free all the same
    /// until [`Pages::open_log_in`].
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

    /// Makes a page ready for small syncs (`Space::prepare`), if one of the next [`PREPARED`]
    /// that will be opened is not; false if all are. No more than a quarter of the free pages are
    /// kept so; one is on its way meanwhile ([`Pages::free_and_retired`]).
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
        // Behind those that are ready, each of which has its turn.
        let is_ready = |page: &u32| self.cell(*page).readiness.due().is_none();
        let at = free.iter().take_while(|page| is_ready(page)).count();
        free.insert(at, page);
        self.preparing.fetch_sub(1, Ordering::Relaxed);
        self.free_len.store(free.len() as u32, Ordering::Release);
        let context = || format!("filling page {page} with zeroes");
        prepared.map_err(|source| Error::Io { context: context(), source })
    }
}
