//! Claims: a free page becomes a word page or a log page.

use super::{PageWriter, Space};
use crate::media::Behaviour;
use std::sync::Arc;

/// The purpose of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Aligned 8-byte atomics, zeroed by the claim (the zeroes are stores like any others).
    Words,
    /// As `Words`, with the bytes left unchanged: for reopening.
    WordsAsStored,
}

impl Space {
    /// Claims a free page for words; false if it is not free.
    pub fn claim_words(&self, page: u32, claim: Claim) -> bool {
        if page >= self.pages() || !self.roles.claim(page) {
            return false;
        }
        self.keep_folios_small(page);
        if claim == Claim::Words {
            self.zero(page);
        }
        self.roles.become_words(page);
        true
    }

    /// Zeroes a page that is claimed and has no role yet.
    pub(super) fn zero(&self, page: u32) {
        let start = self.start_of(page);
        let len = self.page_size() as usize;
        if let Behaviour::Traced(trace) = &self.behaviour {
            trace.store(start, &vec![0; len], true);
        }
        // SAFETY: the page is claimed by this call alone and has no role yet, so that no reference
        // into it exists; it is mapped in full.
        unsafe { self.mapping.at(start).write_bytes(0, len) };
    }

    /// Claims a free page for appending; none if it is not free. Nothing is published yet, the
    /// old bytes stay until they are overwritten.
    pub fn claim_log(self: &Arc<Self>, page: u32) -> Option<PageWriter> {
        self.claim_for_log(page).then(|| PageWriter::new(Arc::clone(self), page))
    }

    /// Claims a free page for a writer; false if it is not free.
    pub(super) fn claim_for_log(&self, page: u32) -> bool {
        if page >= self.pages() || !self.roles.claim(page) {
            return false;
        }
        self.become_log(page, 0, true);
        true
    }

    /// Adopts a free page as a log page without a writer, with its first `published` bytes
    /// readable: for reopening. False if the page is not free or not that long.
    pub fn adopt_log(&self, page: u32, published: u32) -> bool {
        if page >= self.pages() || published > self.page_size() || !self.roles.claim(page) {
            return false;
        }
        self.become_log(page, published, false);
        true
    }

    fn become_log(&self, page: u32, published: u32, writer: bool) {
        if let Some(own) = &self.own {
            own.forget(page);
        }
        self.roles.become_log(page, published, published, writer);
    }
}
