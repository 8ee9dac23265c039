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
//! superseded. A single record, and a group in one page, needs no such care; but where the stream is ordered, every page
//! has had its life before ([`ahead`](crate::volume::ahead)).
//!
//! Where a fence is a sync, others write while a group waits for those lives, and may fill the pages. A group to which that
//! has happened a few times waits with the map in hand.
//!
//! A group of several pages begins in one of its own in any case. What a cut has left of it fills pages in which nothing
//! else is, so that a recovery has nothing to move behind it, which would be taken for its end.

use crate::volume::stream::Stream;
use coreplane_engine::Result;
use coreplane_pmem::mutant;

impl Stream {
    /// Pages that a group of records of these lengths takes at most, of those that are free or ahead.
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

    /// What is appended next are records of these lengths, which are a group. Where a fence is a sync, a generation
    /// that has to end before.
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
