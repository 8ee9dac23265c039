//! How a page of which nothing lives becomes free.
//!
//! ```text
//!   emptied ─▶ superseded      what has superseded its records is durable: its word in the table is 0 now
//!           ─▶ ended           that 0 is durable: nobody finds the page after a power cut
//!           ─▶ retired ─▶ free no reader is left
//! ```
//!
//! It is written to only when its 0 is durable. A recovery that finds an old life in the table reads the page as
//! what it was in that life; what has been written there since would be damage to it, or a torn end.
//!
//! Each arrow is a commit, or the end of a sync, that comes anyway. Only who waits for pages asks for one.

use crate::volume::stream::Stream;
use coreplane_engine::Result;
use coreplane_pmem::mutant;
use coreplane_pmem::spin::Backoff;
use coreplane_record::sync_failed;
use std::time::{Duration, Instant};

/// Readers are waited for so long.
const PATIENCE: Duration = Duration::from_secs(5);

/// How far a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its records will have been superseded durably.
    Superseded,
    /// Its word will be 0 durably.
    Ended,
}

impl Stream {
    /// Where a fence is a sync: all that was emptied, or ended, waits for the generation that was just drawn.
    pub(crate) fn wait_for_generation(&mut self) {
        let ended = std::mem::take(&mut self.ended);
        let ended = ended.into_iter().map(|page| (page, Stage::Ended));
        let emptied = self.pages.take_emptied().into_iter().map(|page| (page, Stage::Superseded));
        let generation = self.generation;
        self.waiting.extend(ended.chain(emptied).map(|(page, stage)| (generation, page, stage)));
    }

    /// Where a fence is an instruction, just after one: those whose 0 was flushed before are free.
    pub(super) fn retire_ended(&mut self, ended: Vec<u32>) {
        ended.into_iter().for_each(|page| self.retire(page));
    }

    /// Pages go as far as they can without a commit or a sync.
    pub(crate) fn advance(&mut self) {
        if self.fences_at_once() {
            if !self.is_undurable() || mutant!("mvcc.stream.free_early") {
                self.pages.take_emptied().into_iter().for_each(|page| self.end(page));
            }
            return;
        }
        while let Some((generation, page, stage)) = self.waiting.front().copied() {
            let is_due = matches!(self.volume.space.sync_is_done(generation), Ok(true));
            if !is_due && !mutant!("mvcc.stream.free_early") {
                return;
            }
            self.waiting.pop_front();
            match stage {
                Stage::Superseded => self.end(page),
                Stage::Ended => self.retire(page),
            }
        }
    }

    /// What has superseded what was in the page is durable.
    fn end(&mut self, page: u32) {
        if let Some(word) = self.volume.table.set_life(page, None) {
            self.note_dirty(word, 8);
        }
        self.pages.end(page);
        if mutant!("mvcc.stream.reuse_early") {
            self.retire(page);
        } else {
            self.ended.push(page);
        }
    }

    fn retire(&mut self, page: u32) {
        let is_retired = self.volume.space.retire(page);
        debug_assert!(is_retired, "page {page} has a writer");
    }

    /// Where a fence is a sync: something waits for a generation that was not drawn yet.
    pub(crate) fn is_uncovered(&self) -> bool {
        self.is_uncovered_itself() || !self.ended.is_empty() || self.pages.emptied() > 0
    }

    /// Makes all that was appended durable, and frees all pages of which nothing lives, durably.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn settle(&mut self) -> Result<()> {
        loop {
            self.advance();
            if self.fences_at_once() {
                if !self.is_undurable() {
                    return Ok(());
                }
                self.commit()?;
            } else {
                if !self.is_uncovered() && self.waiting.is_empty() {
                    return Ok(());
                }
                let generation = self.cover(false);
                self.volume.space.sync_wait(generation).map_err(sync_failed)?;
            }
        }
    }

    /// Waits, for a while, for a free page that only readers of other pools hold: an opening has none of its own.
    pub(crate) fn await_free(&mut self) -> bool {
        let (since, mut backoff) = (Instant::now(), Backoff::default());
        while self.pages.refresh_free() == 0 {
            if self.volume.space.retired_len() == 0 || since.elapsed() > PATIENCE {
                return false;
            }
            backoff.wait();
        }
        true
    }

    /// Pages that are free, or will be as soon as what was superseded is durable and nobody reads it.
    pub(crate) fn coming(&self) -> u32 {
        let waiting = self.waiting.len() + self.ended.len() + self.pages.emptied();
        (waiting + self.volume.space.retired_len()) as u32
    }

    /// The generation that the first page which waits to be free waits for.
    pub(crate) fn waits_for(&self) -> Option<u64> {
        self.waiting.front().map(|(generation, ..)| *generation)
    }
}
