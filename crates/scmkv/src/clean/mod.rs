//! The cleaner: reclaims the space of dead records.
//!
//! It [picks](crate::clean::victim) a full page, copies its live records to a log of its own, so
//! that records that have outlived a page are stored together (hot and cold records part), and
//! frees the page. Order:
//!
//! 1. copy the live records, each under the lock of its group, one flush and fence for all;
//! 2. group by group, under the lock: if the slot still points at the old record, let it point at
//!    the copy; if it has moved on, a writer won, and the copy is dead at birth;
//! 3. flush the slot of *every* record of the page, dead ones too, and fence: a writer flushes and
//!    fences a slot with its next record, which may never come, and a slot that a crash takes back
//!    must not point into a page that is used again;
//! 4. free the page durably, once all records that replaced its own are durable: the record of a
//!    `relaxed` writer may not be yet, and until then the page is *emptied* and stays.
//!
//! [`reserve`](crate::clean::reserve) makes pages free for writers and keeps some for the cleaner
//! itself. Large values: [`overflow`](crate::write::overflow).
//!
//! **Tombstones.** A tombstone may go once no page can hold an older record of its key. Records
//! are copied only while they live; so a page that was opened after the tombstone was written
//! cannot hold one. Each tombstone carries the number of page openings at its time (its *birth*),
//! and is dropped when all pages but the one being cleaned were opened later. That is why a copy
//! is appended under the lock of its group, in a page that was open before: a delete that comes
//! between copy and publication is then younger than the page of the copy that lost. An expired
//! record becomes a tombstone first. So that tombstones cannot pile up behind a cold page, the
//! oldest page is cleaned, however much of it lives, when they hold more than a part of the store.
//!
//! **Commit records** of batches: [`commits`].

use crate::clean::copies::Moving;
use crate::read::Reader;
use crate::table::counters::Count;
use crate::table::index::Position;
use crate::table::log::Log;
use appraisal::Appraisals;
use commits::CommitCopy;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::{self};
use coreplane_pmem::mutant;
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) mod appraisal;
pub(crate) mod census;
mod commits;
pub(crate) mod copies;
pub(crate) mod dead_damage;
pub(crate) mod overflow;
pub(crate) mod reindex;
pub(crate) mod reserve;
pub(crate) mod tombstones;
pub(crate) mod unindexed;
pub(crate) mod victim;

/// A table that is cleaned.
pub(crate) struct Cleaner {
    pub(crate) reader: Reader,
    pub(crate) cleaner_state: Mutex<CleanerState>,
    /// Pages that were appraised before; used by the holder of the state.
    pub(crate) appraisals: Mutex<Appraisals>,
    /// Tombstones with a sequence above this are kept.
    pub(crate) held_tombstones: AtomicU64,
    /// The position up to which the groups' records are counted.
    pub(crate) counting: Mutex<Position>,
    /// All is counted, and all slots were seen.
    pub(crate) census_done: AtomicBool,
}

impl Deref for Cleaner {
    type Target = Reader;

    #[inline(always)]
    fn deref(&self) -> &Reader {
        &self.reader
    }
}

/// The cleaner's own state; the holder of its mutex cleans.
#[derive(Debug)]
pub(crate) struct CleanerState {
    log: Log,
    /// Bytes of tombstones that were found and kept since the oldest page was last cleaned.
    pub(crate) kept_tombstone_bytes: u64,
    /// Pages that the log has taken.
    opened: u32,
    /// Pages without live records that wait to be freed.
    emptied: Vec<Emptied>,
    commits: Vec<CommitCopy>,
}

/// A page that is freed as soon as the logs whose bit is set have settled.
#[derive(Debug, Clone, Copy)]
struct Emptied {
    page: u32,
    unsettled: u64,
}

impl CleanerState {
    pub(crate) fn new(log: u16) -> Self {
        Self {
            log: Log::new(log),
            kept_tombstone_bytes: 0,
            opened: 0,
            emptied: Vec::new(),
            commits: Vec::new(),
        }
    }

    pub(crate) fn log(&mut self) -> &mut Log {
        &mut self.log
    }

    /// True if a page waits to be freed.
    pub(crate) fn has_emptied(&self, page: u32) -> bool {
        self.emptied.iter().any(|emptied| emptied.page == page)
    }

    /// Pages that wait to be freed.
    pub(crate) fn emptied_len(&self) -> u32 {
        self.emptied.len() as u32
    }
}

impl Cleaner {
    /// Cleans the page that promises most; returns the bytes gained. None if no page gains
    /// `gain_min` bytes.
    pub(crate) fn clean_one(&self, state: &mut CleanerState, gain_min: u64) -> Result<Option<i64>> {
        self.free_emptied(state, None)?;
        self.pages.refresh_free();
        let mut victim = None;
        if state.kept_tombstone_bytes > self.tombstone_budget() {
            state.kept_tombstone_bytes = 0;
            victim = self.oldest(state, None)?;
        }
        let Some(victim) = victim.or_else(|| self.pick(state, gain_min)) else {
            return Ok(None);
        };
        let gained = self.clean_page(state, victim)?;
        self.free_emptied(state, None)?;
        Ok(Some(gained))
    }

    /// Moves the live records of `victim` and empties it; returns the bytes gained, below 0 if it
    /// took more than it gave.
    pub(crate) fn clean_page(&self, state: &mut CleanerState, victim: u32) -> Result<i64> {
        self.clear_doubt(state)?;
        if self.pages.cell(victim).is_pinned() {
            return Ok(0);
        }
        let (opened, room) = (state.opened, state.log.room());
        let mut commits = {
            let guard = epoch::pin();
            let mut moving = Moving::new(self.oldest_birth_but(victim));
            if let Err(error) = self.move_page(state, &guard, victim, &mut moving) {
                self.abandon(state, &mut moving)?;
                if matches!(error, Error::ChecksumMismatch { .. } | Error::Corrupt { .. }) {
                    // The page stays as it is, for `verify` to report, and is not picked again,
                    // unless the damage is in the index.
                    self.keep(victim);
                    self.doubt_index();
                }
                return Err(error);
            }
            moving.commits
        };
        if !self.may_be_freed(state, victim)? {
            state.commits.append(&mut commits);
            return Ok(0);
        }
        // Commit records that lay here have been copied again.
        state.commits.retain(|commit| self.space.page_of(commit.appended.offset) != victim);
        state.commits.append(&mut commits);
        self.pages.cell(victim).pin();
        let waits = self.non_strict.load(Ordering::Acquire) && !mutant!("scmkv.clean.unsettled");
        let unsettled = if waits { u64::MAX } else { 0 };
        state.emptied.push(Emptied { page: victim, unsettled });
        self.free_emptied(state, None)?;
        self.counters.add(Count::CleanerPages, 1);
        let page = i64::from(self.geometry.page_size);
        let pages = 1 - i64::from(state.opened.wrapping_sub(opened));
        Ok(pages * page + state.log.room() as i64 - room as i64)
    }

    /// Frees the emptied pages that wait for no unsettled log any more. Logs that are not in use
    /// are settled for it; `own` is the number of a log that the caller holds and has settled.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn free_emptied(&self, state: &mut CleanerState, own: Option<u16>) -> Result<()> {
        if state.emptied.is_empty() {
            return Ok(());
        }
        let waited_for = state.emptied.iter().fold(0, |logs, emptied| logs | emptied.unsettled);
        // The bits above the number of logs.
        let mut settled = u64::MAX.checked_shl(self.logs.len() as u32).unwrap_or(0);
        for (number, log) in self.logs.iter().enumerate() {
            let bit = 1 << number;
            if own == Some(number as u16) {
                settled |= bit;
            } else if waited_for & bit != 0
                && let Some(mut log) = log.try_lock()
            {
                if log.is_unsettled() {
                    log.settle(self)?;
                }
                settled |= bit;
            }
        }
        let mut freed = false;
        for mut emptied in std::mem::take(&mut state.emptied) {
            emptied.unsettled &= !settled;
            if emptied.unsettled == 0 {
                self.pages.cell(emptied.page).unpin();
                self.pages.free(emptied.page)?;
                freed = true;
            } else {
                state.emptied.push(emptied);
            }
        }
        if freed {
            self.forget_commits(state);
        }
        Ok(())
    }
}
