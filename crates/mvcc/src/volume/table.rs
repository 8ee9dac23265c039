//! The table of pages: one sealed word for each page, which states the life that the page is in.
//!
//! ```text
//!   page     first        first+1 …                 first+S        …
//!   what     table        data pages 1 … S-1        table          …          S = words in a page
//! ```
//!
//! A word is 0 for a page that is not in use, or the *life* of the page, sealed: whether the page is apart from the
//! stream, and its *birth*, a number that no other page, and no other life of this page, has ever had. The birth is
//! in the seed of every checksum in the page. A birth need not be durable before records are written to the page: a
//! commit flushes both. A 0 must be durable before the page has another life: a recovery that finds an old birth
//! finds the records of that life, all of which were replaced, and the records that replaced them
//! ([`release`](crate::volume::release)).

use coreplane_engine::{Error, Result};
use coreplane_pmem::{Claim, Durable, Space, Word, mutant};
use coreplane_record::sealed;
use std::sync::Arc;

/// The use of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) birth: u64,
    /// It is no page of the stream, but has a part of a large value, or records that were moved.
    pub(crate) is_apart: bool,
}

// media-format: begin pool
impl Life {
    fn content(self) -> u64 {
        self.birth << 1 | u64::from(self.is_apart)
    }

    fn of(content: u64) -> Self {
        Self { birth: content >> 1, is_apart: content & 1 == 1 }
    }
}
// media-format: end

/// The life of a page, from its stored word and the content of that.
#[inline]
fn life_of(page: u32, (stored, content): (u64, Option<u64>), offset: u64) -> Result<Option<Life>> {
    match content {
        _ if stored == 0 => Ok(None),
        Some(content) => Ok(Some(Life::of(content))),
        None => {
            let what = format!("the word of page {page} in the table of pages");
            Err(Error::Corrupt { offset, what })
        }
    }
}

/// True if all words of a line are of pages with births below `least` that there can be, or of free pages.
#[inline]
fn is_older(words: [u64; 8], contents: [u64; 8], least: u64) -> bool {
    let newest = contents.iter().fold(0, |newest, content| newest.max(content >> 1));
    let is_strange = |at: usize| (words[at] != 0) & (contents[at] >> 1 == 0);
    (newest < least) & !(0..8).fold(false, |any, at| any | is_strange(at))
}

/// The words of all pages.
#[derive(Debug)]
pub(crate) struct Table {
    space: Arc<Space>,
    /// The first page that the engine may use, which is a page of the table.
    first: u32,
}

impl Table {
    /// The table of a pool whose pages from `first` on belong to the engine.
    pub(crate) fn new(space: &Arc<Space>, first: u32) -> Self {
        Self { space: Arc::clone(space), first }
    }

    /// Words in a page, which is also the distance from one page of the table to the next.
    fn stride(&self) -> u32 {
        self.space.page_size() / 8
    }

    /// True if the page is one of the table's.
    pub(crate) fn is_table(&self, page: u32) -> bool {
        page >= self.first && (page - self.first).is_multiple_of(self.stride())
    }

    /// Claims the table's own pages among `pages`.
    ///
    /// # Errors
    /// If one of them is in use.
    pub(crate) fn claim(&self, pages: std::ops::Range<u32>, claim: Claim) -> Result<()> {
        let from = pages.start.saturating_sub(self.first).next_multiple_of(self.stride());
        for page in (self.first + from..pages.end).step_by(self.stride() as usize) {
            if !self.space.claim_words(page, claim) {
                return Err(Error::Unusable(format!("page {page} of the table is in use")));
            }
            if claim == Claim::Words {
                self.space.flush(self.space.start_of(page), u64::from(self.space.page_size()));
            }
        }
        Ok(())
    }

    /// Pages from `from` to the end of the pool that can hold records.
    pub(crate) fn data_pages(&self, from: u32) -> impl DoubleEndedIterator<Item = u32> + '_ {
        (from.max(self.first)..self.space.pages()).filter(|page| !self.is_table(*page))
    }

    fn word(&self, page: u32) -> Option<Word<'_, Durable>> {
        let within = page.checked_sub(self.first)?;
        let table = self.first + within - within % self.stride();
        self.space.word(self.space.start_of(table) + 8 * u64::from(within % self.stride()))
    }

    /// The life of a page; none if the page is not in use.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the word is damaged.
    pub(crate) fn life(&self, page: u32) -> Result<Option<Life>> {
        let Some(word) = self.word(page) else { return Ok(None) };
        let stored = word.load();
        life_of(page, (stored, sealed::open(stored, word.offset())), word.offset())
    }

    /// The number of pages that the table itself takes.
    pub(crate) fn len(&self) -> u32 {
        self.space.pages().saturating_sub(self.first).div_ceil(self.stride())
    }

    /// Shows the lives of the pages that the table pages number `of` describe, of each the pages in their order, the
    /// table's own left out. `show` returns the least birth that matters from then on: where eight pages in a row
    /// have none that is as great, they are not shown.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a word is damaged.
    pub(crate) fn lives(
        &self,
        of: impl Iterator<Item = u32>,
        mut show: impl FnMut(u32, Option<Life>) -> u64,
    ) -> Result<()> {
        let pages = self.space.pages();
        let mut least = 0;
        let mut tables = of.map(|number| self.first + number * self.stride()).peekable();
        while let Some(table) = tables.next() {
            // No processor prefetches by itself across pages of the table, which are far apart.
            if let Some(next) = tables.peek() {
                self.ask_for(*next);
            }
            let start = self.space.start_of(table);
            let stretch = table..pages.min(table.saturating_add(self.stride()));
            for line in stretch.clone().step_by(8) {
                let offset = start + 8 * u64::from(line - table);
                let Some(words) = self.space.load_line(offset) else { continue };
                let sound = sealed::open_line(words, offset);
                if sound.is_some_and(|it| is_older(words, it, least)) {
                    continue;
                }
                for (at, stored) in (0..).zip(words) {
                    let page = line + at;
                    if page != table && stretch.contains(&page) {
                        let offset = offset + 8 * u64::from(at);
                        let content = match sound {
                            Some(contents) => Some(contents[at as usize]),
                            None => sealed::open(stored, offset),
                        };
                        least = show(page, life_of(page, (stored, content), offset)?);
                    }
                }
            }
        }
        Ok(())
    }

    /// Prefetches the first words of a page of the table: at the usual page size all of them.
    fn ask_for(&self, table: u32) {
        let start = self.space.start_of(table);
        // A prefetch has no effect on a page that was never accessed: so its first line is loaded.
        let _first = self.space.load_line(start);
        let rest = (64..4096.min(u64::from(self.space.page_size()))).step_by(64);
        rest.for_each(|at| self.space.prefetch(start + at));
    }

    /// Flushes all words: words that a killed process has stored may still be in the caches alone.
    pub(crate) fn flush(&self) {
        let size = u64::from(self.space.page_size());
        let all = (self.first..self.space.pages()).step_by(self.stride() as usize);
        all.for_each(|page| self.space.flush(self.space.start_of(page), size));
    }

    /// Flushes the word of a page.
    pub(crate) fn flush_life(&self, page: u32) {
        if let Some(word) = self.word(page)
            && !mutant!("mvcc.table.chain_flush")
        {
            word.flush();
        }
    }

    /// Gives the page a life, or none. Not durable yet: returns the offset of the word, which has to be flushed.
    pub(crate) fn set_life(&self, page: u32, life: Option<Life>) -> Option<u64> {
        let word = self.word(page)?;
        word.store(life.map_or(0, |life| sealed::seal(life.content(), word.offset())));
        Some(word.offset())
    }
}
