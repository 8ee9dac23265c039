//! The pool as pages with lives, and the stream of records that is written to them.

pub(crate) mod ahead;
pub(crate) mod cold;
pub(crate) mod flip;
pub(crate) mod geometry;
pub(crate) mod group;
pub(crate) mod overflow;
pub(crate) mod page;
pub(crate) mod pages;
pub(crate) mod release;
pub(crate) mod root;
pub(crate) mod stream;
pub(crate) mod table;
pub(crate) mod visibility;

use coreplane_engine::{Error, Result, TimeSource, UnixMillis};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{Pool, Space, mutant};
use coreplane_record::{self as record, Options, Reader, View};
use geometry::Use;
use parking_lot::Mutex;
use root::Root;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use table::Table;

/// A birth in 32 bits. Births of one session differ in the low bits, births of two sessions in the high bits: the low
/// bits alone do not tell all of them apart.
// media-format: begin pool
pub(crate) fn fold(birth: u64) -> u32 {
    coreplane_pmem::checksum::crc32c_append(0, &birth.to_le_bytes())
}
// media-format: end

/// An open pool.
pub(crate) struct Volume {
    pub(crate) pool: Pool,
    pub(crate) space: Arc<Space>,
    /// The value with which all checksums of the pool begin.
    pub(crate) seed: u32,
    pub(crate) table: Table,
    root_change: Mutex<()>,
    versions_end: AtomicU64,
    births_end: AtomicU64,
    told_expired: AtomicU64,
    time: TimeSource,
    /// Every read verifies the checksum.
    pub(crate) check_reads: bool,
    /// All pages that were in use when the pool was opened can be read.
    is_adopted: AtomicBool,
    pub(crate) closed: AtomicBool,
    /// The records that are found for some keys may not be the newest, or cannot be read. It is set by a thread that
    /// holds the map, and unset by one that holds it for writing.
    pub(crate) damaged: AtomicBool,
    /// Views of records so far.
    #[cfg(test)]
    pub(crate) views: AtomicU64,
}

impl Volume {
    /// A pool with this root.
    pub(crate) fn new(pool: Pool, root: &Root, options: &Options) -> Self {
        let space = Arc::clone(pool.space());
        let first = pool.first_page();
        Self {
            seed: coreplane_pmem::checksum::crc32c_append(0, &pool.uuid()),
            table: Table::new(&space, first),
            root_change: Mutex::new(()),
            versions_end: AtomicU64::new(root.versions_end),
            births_end: AtomicU64::new(root.births_end),
            told_expired: AtomicU64::new(root.told_expired),
            time: options.time.clone().unwrap_or_else(|| Arc::new(UnixMillis::now)),
            check_reads: options.check_reads,
            is_adopted: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            damaged: AtomicBool::new(false),
            #[cfg(test)]
            views: AtomicU64::new(0),
            space,
            pool,
        }
    }

    /// True if the pool holds a log.
    pub(crate) fn is_log(&self) -> bool {
        matches!(Use::of(&self.pool), Ok((Use::Log, _)))
    }

    /// The most entries of a node.
    pub(crate) fn fan_out(&self) -> usize {
        Use::of(&self.pool).map_or(0, |(_, fan_out)| fan_out as usize)
    }

    /// The value with which the checksum of a record begins.
    #[inline]
    pub(crate) fn seed_at(&self, birth: u64, offset: u64) -> u32 {
        record::seed(self.seed, fold(birth), offset)
    }

    /// The record at `offset`. Its checksum is not verified.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none.
    #[inline]
    pub(crate) fn view<'g>(&'g self, guard: &'g Guard, offset: u64) -> Result<View<'g>> {
        #[cfg(test)]
        self.views.fetch_add(1, Ordering::Relaxed);
        match (Reader { space: &self.space }.view(guard, offset)) {
            Some(view) => Ok(view),
            None => self.view_late(guard, offset),
        }
    }

    #[cold]
    fn view_late<'g>(&'g self, guard: &'g Guard, offset: u64) -> Result<View<'g>> {
        let what = "no record is where one should be".to_owned();
        let is_there = self.adopt_late(guard, offset);
        let view = is_there.then(|| Reader { space: &self.space }.view(guard, offset)).flatten();
        view.ok_or(Error::Corrupt { offset, what })
    }

    /// Adopts the page that contains `offset`, if an open has deferred that. False if it has not, or if the page is
    /// not in use.
    #[cold]
    pub(crate) fn adopt_late(&self, guard: &Guard, offset: u64) -> bool {
        let page = self.space.page_of(offset);
        // Before the table is read: it changes once all pages are adopted.
        let is_left = !self.is_adopted.load(Ordering::Acquire);
        if !is_left || !self.table.life(page).is_ok_and(|life| life.is_some()) {
            return false;
        }
        if !self.space.adopt_log(page, self.space.page_size()) {
            // Another thread adopts the page. It may have ended since, if all pages are adopted.
            while self.space.page_at(guard, offset).is_none() {
                if self.is_adopted.load(Ordering::Acquire) {
                    return self.space.page_at(guard, offset).is_some();
                }
                std::hint::spin_loop();
            }
        }
        true
    }

    /// All pages are adopted.
    pub(crate) fn adopted_all(&self) {
        self.is_adopted.store(true, Ordering::Release);
    }

    /// Verifies the checksum of a record.
    ///
    /// # Errors
    /// [`Error::ChecksumMismatch`], and [`Error::Corrupt`] if its page is not in use.
    pub(crate) fn check(&self, view: &View<'_>) -> Result<()> {
        let page = self.space.page_of(view.offset);
        let life = self.table.life(page)?.ok_or_else(|| Error::Corrupt {
            offset: view.offset,
            what: format!("page {page} is free"),
        })?;
        view.check(self.seed_at(life.birth, view.offset))
    }

    /// True if the version of a record is above `at`, so that a reader passes over it. Its checksum is verified then:
    /// a flipped bit of its version would be a silent loss.
    ///
    /// # Errors
    /// As [`Volume::check`].
    pub(crate) fn is_above(&self, view: &View<'_>, at: u64) -> Result<bool> {
        let is_above = view.header.version > at;
        if is_above && !mutant!("mvcc.pin.above") {
            self.check(view)?;
        }
        Ok(is_above)
    }
}
