//! The one owner of a log page that is being filled.

use super::Space;
use crate::arch;
use crate::media::Behaviour;
use std::sync::Arc;

/// How an append reaches the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// Plain stores, and a flush of the lines by the caller.
    Cached,
    /// Stores past the caches; durable at the next fence without a flush.
    NonTemporal,
}

/// Appends to one log page. There is one writer a page, by the claim; what it appends can be read
/// only once it is published, and is never changed after.
#[derive(Debug)]
pub struct PageWriter {
    space: Arc<Space>,
    page: u32,
    start: u64,
    tail: u32,
    published: u32,
}

impl PageWriter {
    pub(super) fn new(space: Arc<Space>, page: u32) -> Self {
        let start = space.start_of(page);
        Self { space, page, start, tail: 0, published: 0 }
    }

    /// The page.
    pub fn page(&self) -> u32 {
        self.page
    }

    /// Bytes appended.
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Bytes that still fit.
    pub fn remaining(&self) -> u32 {
        self.space.page_size() - self.tail
    }

    /// The offset at which the next append will start.
    pub fn next_offset(&self) -> u64 {
        self.start + u64::from(self.tail)
    }

    /// Appends the parts one after the other and pads with zeroes to a multiple of 8; returns the
    /// offset of the first byte, or none if they do not fit. Not visible before
    /// [`PageWriter::publish`]; durable after a flush and a fence.
    #[inline]
    pub fn append(&mut self, parts: &[&[u8]]) -> Option<u64> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let padded = len.checked_next_multiple_of(8)?;
        if padded > self.remaining() as usize {
            return None;
        }
        let offset = self.next_offset();
        let mut at = offset;
        for part in parts {
            self.copy(at, part);
            at += part.len() as u64;
        }
        let pad = [0; 8];
        self.copy(at, &pad[..padded - len]);
        self.tail += padded as u32;
        Some(offset)
    }

    /// Copies within the bounds that `append` has checked.
    #[inline]
    fn copy(&self, at: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Behaviour::Traced(trace) = &self.space.behaviour {
            trace.store(at, bytes, true);
        }
        // SAFETY: `append` has checked that the bytes end within the page. They are above the
        // published watermark, so that nobody else looks at them, and `&mut self` of the page's
        // one writer is held by the caller. `bytes` cannot overlap: it is not above a watermark.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.space.mapping.at(at), bytes.len());
        }
    }

    /// Appends `record` (a multiple of 8 bytes) past the caches; none if it does not fit.
    /// Durable after a fence, without a flush.
    #[inline]
    pub fn append_nt(&mut self, record: &[u8]) -> Option<u64> {
        if !record.len().is_multiple_of(8) || record.len() > self.remaining() as usize {
            return None;
        }
        let offset = self.next_offset();
        if let Behaviour::Traced(trace) = &self.space.behaviour {
            trace.store_nt(offset, record);
        }
        // SAFETY: as in `copy`; the tail and the length are multiples of 8.
        unsafe { arch::copy_nt(self.space.mapping.at(offset), record.as_ptr(), record.len()) };
        self.space.note_nt(offset, record.len() as u64);
        self.tail += record.len() as u32;
        Some(offset)
    }

    /// Flushes what was appended from `offset` on.
    #[inline]
    pub fn flush_from(&self, offset: u64) {
        self.space.flush(offset, self.next_offset() - offset);
    }

    /// Lets readers see everything appended so far, which the caller has made durable.
    #[inline]
    pub fn publish(&mut self) {
        self.published = self.tail;
        self.space.roles.raise_both(self.page, self.tail);
    }

    /// Lets readers see everything appended so far although it may not be durable yet:
    /// [`Space::mark_durable`] follows when it is.
    #[inline]
    pub fn publish_early(&mut self) {
        self.published = self.tail;
        self.space.roles.raise_published(self.page, self.tail);
    }

    /// Forgets what was appended from `offset` on and is not published yet: the next append
    /// starts there. False if some of it is published.
    pub fn rewind(&mut self, offset: u64) -> bool {
        let within = offset.wrapping_sub(self.start);
        if within < u64::from(self.published) || within > u64::from(self.tail) {
            return false;
        }
        self.tail = within as u32;
        true
    }
}

impl Drop for PageWriter {
    fn drop(&mut self) {
        self.space.roles.drop_writer(self.page);
    }
}
