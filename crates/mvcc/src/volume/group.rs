//! Where a group of several records is written.
//!
//! ```text
//!   fits the open page      [a b c D e F · · ·]
//!   fits a page             [a b c ■] [D e f G ·]             a page of its own, unless it fits
//!   longer                  [a b c ■] [D e f g] [h i J ·]     in pages whose lives were durable before
//! ```
//!
//! A recovery recognizes a complete group by its last record, provided that it sees all pages of the group. A page
//! whose life did not become durable is not seen, and the records before and behind it would be taken for one group.
//! So a group of several pages is written to pages whose lives were durable before it begins; a page of it that is
//! missing later was freed because all its records were superseded. A single record, and a group in one page, need no
//! such care; but in an ordered stream the life of every page is durable before the page is begun
//! ([`ahead`](crate::volume::ahead)).
//!
//! Where a fence is a sync, other writers continue while a group waits for those lives, and may fill the pages. A
//! group to which that has happened a few times waits while it holds the map.
//!
//! A group of several records that does not fit the open page always begins in a page of its own. After a power cut
//! its remains then fill pages with no other records, so a recovery has nothing to move behind them that would be
//! taken for the end of the group.

use crate::volume::stream::Stream;
use coreplane_engine::Result;
use coreplane_pmem::mutant;

impl Stream {
    /// The most pages that a group of records of these lengths takes, of those that are free or ahead.
    pub(crate) fn pages_for_group(&self, lengths: &[usize]) -> u32 {
        let (len, size) = (lengths.iter().sum(), self.volume.space.page_size() as usize);
        if lengths.is_empty() || self.fits_tail(len) {
            return 0;
        }
        if len <= size { 1 } else { pages_of(lengths, size) }
    }

    fn fits_tail(&self, len: usize) -> bool {
        self.tail.as_ref().is_some_and(|tail| tail.remaining() as usize >= len)
    }

    /// Announces that the next records have these lengths and form a group. Where a fence is a sync, returns a
    /// generation that has to end first, if any.
    ///
    /// # Errors
    /// [`Error::NoSpace`](coreplane_engine::Error::NoSpace), and if the medium fails.
    pub(crate) fn begin_group(&mut self, lengths: &[usize]) -> Result<Option<u64>> {
        let (len, size) = (lengths.iter().sum(), self.volume.space.page_size() as usize);
        if self.fits_tail(len) {
            return Ok(None);
        }
        let is_single = lengths.len() < 2;
        if !is_single && mutant!("mvcc.stream.group") {
            return Ok(None);
        }
        let is_prepared = self.is_ordered && !mutant!("mvcc.stream.order");
        if (is_prepared || len > size && !is_single)
            && let Some(generation) = self.prepare_ahead(pages_of(lengths, size))?
        {
            return Ok(Some(generation));
        }
        let is_lost = self.is_ordered && mutant!("mvcc.stream.own_page");
        if !is_single && !is_lost {
            self.close_tail()?;
        }
        Ok(None)
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
