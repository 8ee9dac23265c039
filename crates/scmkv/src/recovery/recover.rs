//! Recovery after a crash: the logs supply the records that the index lacks.
//!
//! A page is *unclean* if it was open at the crash. Its records are read up to the first that is
//! not sound; there the page is sealed for good, so that records stranded behind it can never come
//! back. (If these prove that the page is damaged, the open fails with an error, and
//! [`repair`](crate::upkeep::repair) is the remedy. A page without any sound record is free or in
//! [`quarantine`](crate::table::quarantine).) Each page is read by one thread, as in the paper; a thread is started for
//! pages enough to be worth it, and fences what it has flushed.
//!
//! - Index in the pool: every slot was flushed, and its flush fenced with the log's next write.
//!   So only records of unclean pages can be missing, and they are put into the index again,
//!   unless it has a newer version. A key deleted meanwhile is still there as a tombstone, since
//!   tombstones stay while a page older than them does.
//! - Index in DRAM: it is loaded from the last [`checkpoint`](crate::upkeep::checkpoint), and
//!   several threads read the pages that may have more records.
//! - No checkpoint, or an index in the pool after `relaxed` writes: all pages are read.
//!
//! All three treat each record alike, in any order and any number of times: the greatest version of
//! a key wins, at equal versions the tombstone (of an expired record that was turned into one).
//!
//! A batched record counts only if the commit record of its batch is sound, and with it every
//! record in its runs.

use crate::clean::Cleaner;
use crate::clean::reserve::SplitPages;
use crate::recovery::threads::{THREADS_MAX, in_parallel};
use crate::table::index::{Probe, Slot};
use crate::table::page::{self, Element};
use crate::table::run::Run;
use coreplane_engine::{Error, Progress, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{mutant, processors};
use coreplane_record::{Kind, View};
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::atomic::Ordering;

/// Records that are put into the index side by side.
const LANE: usize = 24;

/// A thread is started for so many bytes of the logs, an unclean page counted whole: it takes as long to start it as to
/// read them.
const SHARE: u64 = 64 << 10;

/// A log page to be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogPage {
    pub(crate) page: u32,
    pub(crate) element: Element,
}

/// A recovery: the pages that a crash has left, and the table that their records go to.
pub(crate) struct Recovery<'s> {
    cleaner: &'s Cleaner,
    /// Reads the pages before their lengths are known.
    left: coreplane_pmem::Recovery,
}

impl Deref for Recovery<'_> {
    type Target = Cleaner;

    fn deref(&self) -> &Cleaner {
        self.cleaner
    }
}

impl<'s> Recovery<'s> {
    /// # Errors
    /// If the pool was opened before.
    pub(crate) fn of(cleaner: &'s Cleaner) -> Result<Self> {
        let in_use = || Error::Unusable("the pool was opened before".to_owned());
        Ok(Self { left: cleaner.space.recovery().ok_or_else(in_use)?, cleaner })
    }

    /// Makes the records of log pages readable: sealed pages up to their length, unclean ones
    /// whole.
    pub(crate) fn adopt(&self, pages: &[LogPage]) -> Result<()> {
        for entry in pages {
            let (page, length) = (&entry.page, self.length(entry));
            if !self.left.adopt(*page, length) {
                return Err(Error::Corrupt {
                    offset: self.space.start_of(*page),
                    what: format!("page {page} cannot be {length} bytes long"),
                });
            }
            self.pages.cell(*page).length.store(length, Ordering::Release);
        }
        Ok(())
    }

    /// Puts the records of `pages` into the index where it lacks them, and seals the pages that
    /// were open. `is_anew`: the index was empty before, so that no slot knows more than the logs.
    pub(crate) fn replay(
        &mut self,
        pages: &[LogPage],
        is_anew: bool,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<()> {
        let tails = Mutex::new(Vec::new());
        let foreign = Mutex::new(Vec::new());
        let work = |at: usize| {
            let page = &pages[at];
            match self.replay_page(page, &foreign) {
                Ok(tail) if page.element.length == Some(tail) => {}
                Ok(0) if page.element.is_lost() && (is_anew || !self.index.in_pool()) => {
                    let what = page::NONE_CAN_BE_READ.to_owned();
                    let error = Error::Corrupt { offset: self.space.start_of(page.page), what };
                    return Err(in_page(page.page, error));
                }
                Ok(tail) => tails.lock().push((*page, tail)),
                Err(error) => return Err(in_page(page.page, error)),
            }
            Ok(())
        };
        // A flush counts only at a fence of its own thread.
        let fence = || match mutant!("scmkv.recover.fence") || mutant!("scmkv.recover.thread_fence")
        {
            true => Ok(()),
            false => self.space.fence().map_err(page::sync_failed),
        };
        let bytes = pages.iter().map(|page| u64::from(self.length(page))).sum();
        let threads = threads(processors::available(), pages.len(), bytes);
        in_parallel((threads, pages.len()), ("reading logs", progress), &work, &fence)?;
        for runs in foreign.into_inner() {
            self.replay_runs(&runs)?;
        }
        // The new slots are durable before the pages count as sealed.
        if !mutant!("scmkv.recover.fence") {
            self.space.fence().map_err(crate::table::page::sync_failed)?;
        }
        for (LogPage { page, element }, tail) in tails.into_inner() {
            if tail > 0 {
                self.pages.seal_cut(page, tail)?;
                self.left.cut(page, tail);
            } else if is_anew || element.length.is_some() {
                self.pages.free(page)?;
            } else {
                self.cleaner.quarantine(&mut self.left, page, element.is_lost());
            }
        }
        Ok(())
    }

    /// Bytes of a page that may hold records: of an unclean one all.
    fn length(&self, page: &LogPage) -> u32 {
        page.element.length.unwrap_or(self.geometry.page_size)
    }

    /// Reads a page; returns up to where it is sound. Batches that reach into other pages go to
    /// `foreign`.
    fn replay_page(&self, page: &LogPage, foreign: &Mutex<Vec<Vec<Run>>>) -> Result<u32> {
        let guard = self.left.pin();
        let start = self.space.start_of(page.page);
        // A load from a page that cannot be read would end the process.
        page::check_loads(&self.space, page.page)?;
        let generation = page.element.generation;
        let end = match page.element.length {
            Some(length) => start + u64::from(length),
            None => self.sound_end(&guard, page)?,
        };
        let mut at = start;
        let mut batched = Vec::new();
        let mut lane = Vec::with_capacity(LANE);
        while at < end {
            let view = self.sound(&guard, generation, at)?;
            match view.header.kind {
                Kind::Overflow | Kind::Lost | Kind::Node | Kind::Entry => {}
                Kind::Commit => {
                    let runs: Vec<_> = Run::decode_all(view.value()).collect();
                    let local = runs.iter().all(|run| self.space.page_of(run.start) == page.page);
                    if local {
                        self.replay_batch(&guard, &runs, &batched)?;
                        batched.clear();
                    } else {
                        foreign.lock().push(runs);
                    }
                }
                Kind::Put | Kind::Delete
                    if view.header.batched && !mutant!("scmkv.recover.half_batch") =>
                {
                    batched.push(view.offset);
                }
                Kind::Put | Kind::Delete => lane.push(view),
            }
            if lane.len() == LANE {
                self.restore_lane(&guard, &mut lane)?;
            }
            at += u64::from(view.len());
        }
        self.restore_lane(&guard, &mut lane)?;
        Ok((at - start) as u32)
    }

    /// Up to where an unclean page is sound.
    ///
    /// A process that was killed may have left its records in the caches. They are flushed: a later cut would take
    /// what was shown. Where slots are durable they are fenced, too, before the first slot leads to them: a slot that
    /// outlived its record would hide the record before it, in a page that no recovery reads again.
    fn sound_end(&self, guard: &Guard, page: &LogPage) -> Result<u64> {
        let (generation, start) = (page.element.generation, self.space.start_of(page.page));
        let end = start + u64::from(self.length(page));
        let (mut at, mut undurable) = (start, start);
        while at < end {
            let view = match self.sound(guard, generation, at) {
                Ok(view) => view,
                Err(error) if self.is_followed(guard, generation, at, end) => return Err(error),
                Err(_) => break,
            };
            if view.header.follows {
                undurable = at;
            }
            at += u64::from(view.len());
        }
        if !mutant!("scmkv.recover.killed") {
            self.space.flush(undurable, at - undurable);
        }
        if self.index.in_pool() && !mutant!("scmkv.recover.slot_first") {
            self.space.fence().map_err(crate::table::page::sync_failed)?;
        }
        Ok(at)
    }

    /// Restores the members of a batch that lies in one page; they were read before and are sound.
    fn replay_batch(&self, guard: &Guard, runs: &[Run], batched: &[u64]) -> Result<()> {
        for offset in batched {
            let covered = runs
                .iter()
                .any(|run| run.start <= *offset && *offset < run.start + u64::from(run.len));
            if covered && let Some(view) = self.view(guard, *offset) {
                self.restore(guard, &view)?;
            }
        }
        Ok(())
    }

    /// Restores a batch in several pages, as far as it is still there, if all of that is sound.
    fn replay_runs(&self, runs: &[Run]) -> Result<()> {
        let guard = self.left.pin();
        for apply in [false, true] {
            for run in runs {
                let page = self.space.page_of(run.start);
                // The run was cleaned since (a freed page keeps its generation until it is opened
                // again): its records stand alone elsewhere.
                let there = page < self.pages.len()
                    && self.pages.cell(page).kind() == Some(crate::table::page::Kind::Log)
                    && self.pages.cell(page).generation() == run.generation;
                if !there {
                    continue;
                }
                let mut at = run.start;
                while at < run.start + u64::from(run.len) {
                    let Ok(view) = self.sound(&guard, run.generation, at) else { return Ok(()) };
                    if apply && matches!(view.header.kind, Kind::Put | Kind::Delete) {
                        self.restore(&guard, &view)?;
                    }
                    at += u64::from(view.len());
                }
            }
        }
        Ok(())
    }

    /// As [`Recovery::restore`], for several records: the lines of all are prefetched before the
    /// first is read.
    fn restore_lane(&self, guard: &Guard, lane: &mut Vec<View<'_>>) -> Result<()> {
        for view in &*lane {
            self.index.prefetch(self.place(view.key()));
        }
        for view in &*lane {
            if let Some(slot) = self.index.likely(self.place(view.key())) {
                self.space.prefetch(slot.offset());
            }
        }
        lane.drain(..).try_for_each(|view| self.restore(guard, &view))
    }

    /// Lets the index point at `view`, unless it has the key in a later version.
    ///
    /// A crash may have emptied slots that other keys' probes have passed since: the last store in
    /// a bucket is lost, and the slot beside it is not. Each of these holes is filled by the replay
    /// of the record that its slot pointed at. Until all are filled, the whole group is searched,
    /// or a key behind a hole would get a second slot. A record goes to the first hole on its path,
    /// not to a slot before it that the cleaner has made free meanwhile: or the hole would stay, and
    /// the keys behind it would be absent.
    fn restore(&self, guard: &Guard, view: &View<'_>) -> Result<()> {
        let place = self.place(view.key());
        loop {
            let mut held = self.index.lock(place);
            let mut known: Option<(u64, bool)> = None;
            let probe = held.probe_whole(place, &mut |slot| {
                let Some(old) = self.view(guard, slot.offset()) else { return Ok(false) };
                let mine = old.key() == view.key();
                if mine {
                    known = Some((old.header.version, slot.is_tombstone()));
                }
                Ok(mine)
            })?;
            held.raise_version(view.header.version);
            let delete = view.header.kind == Kind::Delete;
            let at = match probe {
                Probe::Full => {
                    let leaf = held.leaf();
                    drop(held);
                    self.split(leaf, place, SplitPages::AsItIs(guard, 0))?;
                    continue;
                }
                Probe::Vacant { at } => at,
                Probe::Found { at, .. } => {
                    let (version, tombstone) = known.unwrap_or((0, false));
                    let newer = view.header.version > version
                        || view.header.version == version && delete && !tombstone;
                    if !newer && !mutant!("scmkv.recover.older") {
                        // The slot may be in the cache alone, as the crash left it.
                        held.flush(at);
                        return Ok(());
                    }
                    at
                }
            };
            let expires = view.header.expires_at.is_some();
            let slot = Slot::new(held.signature(place), view.offset, delete, expires);
            return held.publish_and_flush(at, slot);
        }
    }
}

/// Threads that read so many pages with so many bytes of records: at most one for each page and each [`SHARE`].
fn threads(available: usize, pages: usize, bytes: u64) -> usize {
    let shares = usize::try_from(bytes / SHARE).unwrap_or(usize::MAX);
    available.min(pages).min(shares).clamp(1, THREADS_MAX)
}

/// The error with the page that it is about.
fn in_page(page: u32, error: Error) -> Error {
    let (offset, what) = match error {
        Error::Corrupt { offset, what } => (offset, what),
        Error::ChecksumMismatch { offset, stored, computed } => {
            let what =
                format!("checksum mismatch, {stored:#010x} stored, {computed:#010x} computed");
            (offset, what)
        }
        other => return other,
    };
    Error::Corrupt { offset, what: format!("log page {page}: {what}") }
}

#[cfg(test)]
mod tests {
    use super::{SHARE, THREADS_MAX, threads};

    #[test]
    fn a_thread_has_a_page_and_a_share_of_the_bytes() {
        assert_eq!(threads(8, 0, 0), 1);
        assert_eq!(threads(8, 2, 8 << 10), 1);
        assert_eq!(threads(8, 2, 2 * SHARE), 2);
        assert_eq!(threads(8, 1, 2 << 20), 1);
        assert_eq!(threads(8, 100, 3 * SHARE), 3);
        assert_eq!(threads(64, 1000, 1 << 30), THREADS_MAX);
        assert_eq!(threads(1, 1000, 1 << 30), 1);
    }
}
