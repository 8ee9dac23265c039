//! A page of entries: the part of an iteration that is in memory.
//!
//! The first page is small, since many callers use only an entry or two; each next one is twice as large, up to a
//! bound of entries and one of bytes. Only a single larger record exceeds the latter.

use super::Db;
use coreplane_engine::{Entry, Horizon, Result, Ticket};
use std::collections::VecDeque;

/// Entries of the first page.
const FIRST_LEN: usize = 16;

/// The most entries of a page.
const LEN_MAX: usize = 512;

/// The most bytes of keys and values of a page; the record that exceeds them is its last.
const BYTES_MAX: usize = 256 << 10;

/// A key and its value.
pub(super) type Pair = (Vec<u8>, Vec<u8>);

/// Entries in the order in which they are to be shown.
pub(super) type Page = VecDeque<Pair>;

/// The number of entries of the next page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size(usize);

impl Size {
    /// The size of the first page.
    pub(super) const fn first() -> Self {
        Self(FIRST_LEN)
    }

    /// Entries of this page; the next one has more.
    pub(super) fn take(&mut self) -> usize {
        let len = self.0;
        self.0 = (len * 2).min(LEN_MAX);
        len
    }
}

/// Takes entries into a page, and collects the tickets on which they depend.
#[derive(Debug)]
pub(super) struct Filler<'p> {
    page: &'p mut Page,
    bytes: usize,
    horizon: Horizon,
}

impl<'p> Filler<'p> {
    pub(super) fn new(page: &'p mut Page) -> Self {
        Self { page, bytes: 0, horizon: Horizon::new() }
    }

    /// Copies an entry; false if the page is full by its bytes.
    pub(super) fn add(&mut self, entry: &Entry<'_>) -> bool {
        if let Some(record) = &entry.record {
            let pair = (entry.key.to_vec(), record.value.to_vec());
            self.bytes += pair.0.len() + pair.1.len();
            self.horizon.include(record.ticket);
            self.page.push_back(pair);
        }
        !self.is_full()
    }

    /// True if the page has all the bytes that it may have.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= BYTES_MAX
    }

    /// Waits until the page is durable, and also the absences in it: a missing record was perhaps deleted a moment
    /// ago.
    pub(super) fn settle(mut self, db: &Db) -> Result<()> {
        let visible: Ticket = db.engine().visible_ticket();
        self.horizon.include(visible);
        match self.horizon.is_empty() {
            true => Ok(()),
            false => db.engine().wait_durable(&self.horizon),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_grow_up_to_a_bound() {
        let mut size = Size::first();
        let taken: Vec<usize> = (0..8).map(|_| size.take()).collect();
        assert_eq!(taken, [16, 32, 64, 128, 256, 512, 512, 512]);
    }
}
