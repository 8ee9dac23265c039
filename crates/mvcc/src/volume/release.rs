//! How a page without live records becomes free.
//!
//! ```text
//!   emptied ─▶ superseded      the records that superseded its own are durable: its word in the table is set to 0
//!           ─▶ ended           that 0 is durable: no recovery finds the page any more
//!           ─▶ retired ─▶ free no reader is left
//! ```
//!
//! The page is written again only when its 0 is durable. A recovery that finds an old life in the table reads the
//! page as it was in that life, and would take later bytes for damage or for a torn end.
//!
//! Each arrow is a commit or the end of a sync that happens anyway. Only a writer that waits for pages asks for one.

use crate::volume::stream::Stream;
use coreplane_engine::Result;
use coreplane_pmem::mutant;
use coreplane_pmem::spin::Patience;
use coreplane_record::sync_failed;
use std::time::Duration;

/// How long readers are waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The stage that a page reaches when its generation has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its records are durably superseded.
    Superseded,
    /// Its word is durably 0.
    Ended,
}

impl Stream {
    /// Where a fence is a sync: all emptied and all ended pages wait for the generation that was just drawn.
    pub(crate) fn wait_for_generation(&mut self) {
        let ended = std::mem::take(&mut self.ended);
        let ended = ended.into_iter().map(|page| (page, Stage::Ended));
        let emptied = self.pages.take_emptied().into_iter().map(|page| (page, Stage::Superseded));
        let generation = self.generation;
        self.waiting.extend(ended.chain(emptied).map(|(page, stage)| (generation, page, stage)));
    }

    /// Where a fence is an instruction, just after a fence: retires the pages whose 0 was flushed before it.
    pub(super) fn retire_ended(&mut self, ended: Vec<u32>) {
        ended.into_iter().for_each(|page| self.retire(page));
    }

    /// Moves pages to the next stage as far as that needs no commit and no sync.
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

    /// Ends the life of a page: the records that superseded its own are durable.
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

    /// Makes moved records, and changes that pages wait for, durable, or requests a sync that will.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn press(&mut self) -> Result<()> {
        if self.fences_at_once() {
            return self.commit();
        }
        if mutant!("mvcc.clean.cover") {
            self.wait_for_generation();
            self.advance();
        } else if self.is_uncovered() {
            let generation = self.cover(false);
            self.volume.space.sync_request(generation);
        } else {
            self.advance();
        }
        Ok(())
    }

    /// Makes all appended records durable, and frees all pages without live records, durably.
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

    /// Waits for a while for a free page that only readers of other pools hold: an open has no readers of its own.
    pub(crate) fn await_free(&mut self) -> bool {
        let mut patience = Patience::new(PATIENCE);
        while self.pages.refresh_free() == 0 {
            if self.volume.space.retired_len() == 0 || !patience.wait() {
                return false;
            }
        }
        true
    }

    /// Pages that will be free as soon as the records that superseded theirs are durable and no reader holds them.
    pub(crate) fn coming(&self) -> u32 {
        let waiting = self.waiting.len() + self.ended.len() + self.pages.emptied();
        (waiting + self.volume.space.retired_len()) as u32
    }

    /// The generation for which the first of the waiting pages waits.
    pub(crate) fn waits_for(&self) -> Option<u64> {
        self.waiting.front().map(|(generation, ..)| *generation)
    }
}
