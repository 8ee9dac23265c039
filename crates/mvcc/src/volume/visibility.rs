//! Which records readers may see, and what they have to wait for.

use super::stream::Stream;

impl Stream {
    /// Where a fence is an instruction: true if the record is not durable, and so not visible.
    #[inline]
    pub(crate) fn is_hidden(&self, offset: u64) -> bool {
        self.fences_at_once() && self.end != self.durable && self.position(offset) >= self.durable
    }

    /// Where a fence is an instruction: true if there are records that are not visible.
    pub(crate) fn is_hiding(&self) -> bool {
        self.fences_at_once() && self.end != self.durable
    }

    /// Where a fence is an instruction: true if the end of a full page is not visible.
    pub(crate) fn is_partly_hidden(&self, page: u32) -> bool {
        self.fences_at_once()
            && self.end != self.durable
            && self.pages.birth(page) >= self.durable.birth
            && !self.pages.is_apart(page)
    }

    /// Where a fence is a sync: the generation that has to end before the record is durable; none if it is durable,
    /// or if no reader has to wait for it.
    pub(crate) fn covering(&self, offset: u64) -> Option<u64> {
        let last = self.marks.back()?;
        let position = self.position(offset);
        if position < self.durable || position >= last.end {
            return None;
        }
        let mark = self.marks.iter().find(|mark| position < mark.end)?;
        let is_done = matches!(self.volume.space.sync_is_done(mark.generation), Ok(true));
        (!is_done).then_some(mark.generation)
    }

    /// Where a fence is a sync: true if the record is known to be durable, because a later position is.
    pub(crate) fn is_known_durable(&self, offset: u64) -> bool {
        self.position(offset) < self.durable
    }
}
