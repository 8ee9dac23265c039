//! Pages ahead of the open one: each has a life and no records yet.
//!
//! ```text
//!   births    7        8          9    10
//!   pages   [a b ■] [c d · ·]   [· ·] [· ·]       8 is open, 9 and 10 are ahead
//!                                  └ life durable since the last commit: may be begun
//! ```
//!
//! After a power cut a page whose life did not become durable is not seen: the stream has a hole there and goes on
//! behind it. Records of single keys may be lost this way, each independently. But a group of several pages would
//! then be taken for one group with the records behind it ([`group`](crate::volume::group)); and in a log each record
//! depends on all records before it. So in an *ordered* stream no page is begun whose life is not durable: a power
//! cut leaves a prefix of the stream.
//!
//! As a rule that costs no extra fence. Each commit begins some pages ahead and makes their lives durable together
//! with everything else. Only a writer that fills more pages than that in one commit waits for their lives first.

use crate::volume::stream::{Position, Stream};
use crate::volume::table::Life;
use coreplane_engine::{Error, Result};
use coreplane_pmem::{PageWriter, mutant};
use coreplane_record::sync_failed;

/// Where a fence is a sync, at most so many lives are made durable at once, if there is room.
const LIVES: u32 = 64;
/// Pages that are kept ahead of an ordered stream, if the pool is large enough.
const STOCK: u32 = 8;
/// The most pages that moving the live records of one page takes: only control records are longer than half a page.
const FOR_MOVES: u32 = 2;

/// A page ahead.
pub(super) struct Ahead {
    writer: PageWriter,
    birth: u64,
    /// The generation that covers its life; where a fence is an instruction, 0 if it is durable.
    covered: Option<u64>,
}

impl Stream {
    /// The birth of the page that is begun next.
    pub(super) fn birth_ahead(&self) -> u64 {
        self.ahead.front().map_or(self.next_birth, |page| page.birth)
    }

    /// Pages that have a life and no records yet.
    pub(crate) fn pages_ahead(&self) -> u32 {
        self.ahead.len() as u32
    }

    /// Pages in which the stream can continue: free pages and pages ahead.
    pub(crate) fn pages_usable(&self) -> u32 {
        self.pages.total_and_free().1 + self.pages_ahead()
    }

    /// Gives a free page a life in the stream.
    pub(super) fn begin_ahead(&mut self) -> Result<()> {
        self.volume.allow_birth(self.next_birth)?;
        let needed = u64::from(self.volume.space.page_size());
        let page = self.pages.take().ok_or(Error::NoSpace { needed, reclaimable: 0 })?;
        let birth = self.next_birth;
        let writer = self.begin(page, Life { birth, is_apart: false })?;
        self.pages.begin(page, birth, true);
        self.next_birth += 1;
        self.ahead.push_back(Ahead { writer, birth, covered: None });
        Ok(())
    }

    /// Opens the first of the pages ahead.
    pub(super) fn open_ahead(&mut self) {
        if let Some(Ahead { writer, birth, .. }) = self.ahead.pop_front() {
            self.tail = Some(writer);
            self.end = Position { birth, within: 0 };
        }
    }

    /// Ensures that there is a page ahead that may be begun.
    pub(super) fn see_to_next(&mut self) -> Result<()> {
        if self.ahead.is_empty() {
            self.begin_ahead()?;
        }
        if !self.is_ordered || mutant!("mvcc.stream.order") {
            return Ok(());
        }
        if let Some(generation) = self.cover_ahead(1)? {
            // Only a caller that did not prepare pages waits here: a recovery, which runs alone.
            self.volume.space.sync_wait(generation).map_err(sync_failed)?;
        }
        Ok(())
    }

    /// Ensures that there are so many pages ahead with durable lives; returns a generation that has to end first, if
    /// any.
    pub(super) fn prepare_ahead(&mut self, pages: u32) -> Result<Option<u64>> {
        if self.pages_ahead() < pages {
            let more = match self.fences_at_once() {
                true => 0,
                false => (self.pages.total_and_free().1 / 16).min(LIVES),
            };
            while self.pages_ahead() < pages.max(more) {
                self.begin_ahead()?;
            }
        }
        self.cover_ahead(pages)
    }

    /// Ensures that the lives of the first pages ahead are durable; returns a generation that has to end first, if
    /// any.
    fn cover_ahead(&mut self, pages: u32) -> Result<Option<u64>> {
        let is_covered =
            |it: &Self| it.ahead.iter().take(pages as usize).all(|page| page.covered.is_some());
        if !is_covered(self) {
            if self.fences_at_once() {
                self.commit()?;
            } else {
                self.cover(false);
            }
        }
        let needed = self.ahead.iter().take(pages as usize).filter_map(|page| page.covered).max();
        Ok(needed.filter(|generation| !self.has_ended(*generation)))
    }

    fn has_ended(&self, generation: u64) -> bool {
        generation == 0 || matches!(self.volume.space.sync_is_done(generation), Ok(true))
    }

    /// The lives are durable, or will be once this generation has ended.
    pub(super) fn note_covered(&mut self, generation: u64) {
        let lacking = self.ahead.iter_mut().rev().take_while(|page| page.covered.is_none());
        lacking.for_each(|page| page.covered = Some(generation));
    }

    /// Begins pages ahead of an ordered stream that is in use, if pages are free. Before a commit, or before a
    /// generation is drawn.
    pub(super) fn stock_up(&mut self) {
        if !self.is_ordered || self.tail.is_none() {
            return;
        }
        let (total, free) = self.pages.total_and_free();
        let lacking = (FOR_MOVES + total / 32).min(STOCK).saturating_sub(self.pages_ahead());
        if free < lacking {
            self.pages.refresh_free();
        }
        for _ in 0..lacking {
            // Without a page ahead, the next page costs a fence of its own.
            if self.begin_ahead().is_err() {
                return;
            }
        }
    }

    /// True if the live records of a page can be moved without a fence or a wait of their own.
    pub(crate) fn may_move(&self) -> bool {
        let durable = self
            .ahead
            .iter()
            .take_while(|page| page.covered.is_some_and(|generation| self.has_ended(generation)));
        !self.is_ordered || durable.take(FOR_MOVES as usize).count() == FOR_MOVES as usize
    }

    /// Where a fence is a sync: a generation that has to end before the live records of a page may be moved, so that
    /// the map does not wait.
    pub(crate) fn moves_wait_for(&mut self) -> Result<Option<u64>> {
        if !self.is_ordered || self.fences_at_once() {
            return Ok(None);
        }
        let free = self.pages.total_and_free().1;
        self.prepare_ahead(FOR_MOVES.min(self.pages_ahead() + free))
    }

    /// Ends the open page and those ahead: the pool is then in the state of a closed one.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn close_all(&mut self) -> Result<()> {
        self.close_tail()?;
        self.close_cold();
        while !self.ahead.is_empty() {
            self.open_ahead();
            self.close_tail()?;
        }
        self.is_closed = true;
        Ok(())
    }
}
