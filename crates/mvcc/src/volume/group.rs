//! Where a group of several records is.
//!
//! ```text
//!   fits the open page      [a b c D e F · · ·]
//!   fits a page             [a b c ■] [D e f G ·]             a page of its own, unless it fits
//!   longer                  [a b c ■] [D e f g] [h i J ·]     in pages whose lives were durable before
//! ```
//!
//! A recovery knows by its last record that a group is whole, if it sees all pages that it is in. A page whose life
//! did not become durable is not seen, and what is before and behind it would be taken for one group. So a group of
//! several pages goes to pages that have had their lives before it begins; of those that are missing, all was
//! superseded. A single record, and a group in one page, needs no such care.

use crate::volume::stream::Stream;
use coreplane_engine::Result;
use coreplane_pmem::mutant;

/// Where a fence is a sync, so many lives are made durable at once at most, if there is room.
const AHEAD: u32 = 64;

impl Stream {
    /// Free pages that a group of records of these lengths takes at most.
    pub(crate) fn pages_for_group(&self, lengths: &[usize]) -> u32 {
        let (len, size) = (lengths.iter().sum(), self.volume.space.page_size() as usize);
        if lengths.is_empty() || self.fits_tail(len) {
            return 0;
        }
        let pages = if len <= size { 1 } else { pages_of(lengths, size) };
        pages.saturating_sub(self.ahead.len() as u32)
    }

    fn fits_tail(&self, len: usize) -> bool {
        self.tail.as_ref().is_some_and(|tail| tail.remaining() as usize >= len)
    }

    /// What is appended next are records of these lengths, which are a group. Where a fence is a sync, a generation
    /// that has to end before.
    ///
    /// # Errors
    /// [`Error::NoSpace`](coreplane_engine::Error::NoSpace), and if the medium fails.
    pub(crate) fn begin_group(&mut self, lengths: &[usize]) -> Result<Option<u64>> {
        let (len, size) = (lengths.iter().sum(), self.volume.space.page_size() as usize);
        if lengths.len() < 2 || self.fits_tail(len) || mutant!("mvcc.stream.group") {
            return Ok(None);
        }
        if len > size {
            let pages = pages_of(lengths, size) as usize;
            if self.ahead.len() < pages {
                let more = match self.fences_at_once() {
                    true => 0,
                    false => (self.pages.total_and_free().1 / 16).min(AHEAD) as usize,
                };
                while self.ahead.len() < pages.max(more) {
                    self.begin_ahead()?;
                }
            }
            if let Some(generation) = self.cover_ahead()? {
                return Ok(Some(generation));
            }
        }
        self.close_tail()?;
        Ok(None)
    }
}

impl Stream {
    /// Sees to it that the lives of all pages ahead are durable: a generation that has to end for that.
    fn cover_ahead(&mut self) -> Result<Option<u64>> {
        if self.fences_at_once() {
            if self.ahead_covered.is_none() {
                self.commit()?;
            }
            self.ahead_covered = Some(0);
            return Ok(None);
        }
        let generation = match self.ahead_covered {
            Some(generation) => generation,
            None => self.cover(false),
        };
        self.ahead_covered = Some(generation);
        let is_done = matches!(self.volume.space.sync_is_done(generation), Ok(true));
        Ok((!is_done).then_some(generation))
    }
}

fn pages_of(lengths: &[usize], size: usize) -> u32 {
    let (mut pages, mut room) = (0, 0);
    for len in lengths {
        if *len > room {
            (pages, room) = (pages + 1, size);
        }
        room -= (*len).min(room);
    }
    pages
}
