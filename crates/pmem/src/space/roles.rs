//! The role of each page, in one DRAM word per page: both watermarks of a log page, or a mark.
//!
//! ```text
//!   FREE ──claim──▶ CLAIMED ──┬─▶ WORDS ──retire──▶ RETIRED ──release──▶ FREE
//!                             └─▶ published | durable (log) ──retire──▶ RETIRED
//! ```
//!
//! The two halves of the word hold `published + 1` and `durable + 1`, so that 0 is FREE. The top bit
//! is set while the page has a [`PageWriter`](super::PageWriter), and keeps the page from retiring.
//! The top bit of the lower half requires readers of the page to have a suitable guard: either a
//! [`Recovery`](super::Recovery) has adopted the page, and it was not put into service since; or the
//! space has its own domain of epochs, where the bit is set in every log page (`guard`). Word pages
//! never retire, since their handles are not bound to a guard.

use crate::dram::huge;
use crate::mutant;
use crate::order::LINE;
use std::alloc::{Layout, alloc_zeroed};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

const FREE: u64 = 0;
const CLAIMED: u64 = u64::MAX;
const WORDS: u64 = u64::MAX - 1;
const RETIRED: u64 = u64::MAX - 2;

/// Set in a log page's word while it has a writer. Pages are at most 1 GiB, so that no watermark
/// reaches it.
const WRITER: u64 = 1 << 63;

/// Set in a log page's word while a recovery may cut it, and after that until the first read of it;
/// always in a space with its own epochs.
const RECOVERED: u64 = 1 << 31;

/// The role of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Free,
    Claimed,
    Words,
    Log { published: u32, durable: u32 },
    Retired,
}

impl Role {
    #[inline]
    fn from_word(word: u64) -> Self {
        match word {
            FREE => Self::Free,
            CLAIMED => Self::Claimed,
            WORDS => Self::Words,
            RETIRED => Self::Retired,
            _ => Self::Log {
                published: ((word & !WRITER) >> 32) as u32 - 1,
                durable: (word & !RECOVERED) as u32 - 1,
            },
        }
    }
}

fn log_word(published: u32, durable: u32) -> u64 {
    (u64::from(published) + 1) << 32 | (u64::from(durable) + 1)
}

/// Words in a line.
const IN_LINE: usize = LINE / size_of::<AtomicU64>();

/// This many successive pages have their words in as many lines.
const STRIPES: usize = 64;

/// The words of this many pages are contiguous, without unused memory in between: every read loads
/// some of them, so that they should not compete for a few sets of a cache.
const BLOCK: usize = STRIPES * IN_LINE;

/// The words, in stripes: logs are filled concurrently in successive pages, and each write raises
/// watermarks. If their words shared a line, it would move between the writers' caches.
///
/// ```text
///   line 0   pages 0, 64, 128 … 448
///   line 1   pages 1, 65, 129 … 449
///   …        and after line 63, those of page 512 on
/// ```
#[derive(Debug)]
pub(super) struct Roles {
    words: Box<[AtomicU64]>,
    pages: usize,
    /// Set in every log page's word.
    always: u64,
}

impl Roles {
    /// All pages are free. `used`: the number of pages that exist from the beginning; the others are in reserve.
    /// `own_epochs`: the guards of all readers are checked.
    ///
    /// # Errors
    /// If the address space cannot be allocated.
    pub(super) fn new(pages: usize, used: usize, own_epochs: bool) -> io::Result<Self> {
        let out_of_memory = || io::Error::from(io::ErrorKind::OutOfMemory);
        let len = pages.max(1).checked_next_multiple_of(BLOCK).ok_or_else(out_of_memory)?;
        let layout = Layout::array::<AtomicU64>(len).map_err(io::Error::other)?;
        // SAFETY: the layout is not empty.
        let words = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        let words = NonNull::slice_from_raw_parts(words.cast::<AtomicU64>(), len);
        // SAFETY: the memory is from the global allocator, with the layout of such a slice, and has no
        // other owner. All bits zero is a valid `AtomicU64`, and the value of `FREE`. The zeroes are
        // provided by the system, so that pages in reserve cost no memory until they are used.
        let words = unsafe { Box::from_raw(words.as_ptr()) };
        // An open visits all of them, and reads access them at random.
        huge::advise(&words[..used.next_multiple_of(BLOCK).min(len)]);
        Ok(Self { words, pages, always: if own_epochs { RECOVERED } else { 0 } })
    }

    #[inline]
    fn word(&self, page: usize) -> Option<&AtomicU64> {
        if page >= self.pages {
            return None;
        }
        let (block, page) = (page / BLOCK, page % BLOCK);
        let at = block * BLOCK + page % STRIPES * IN_LINE + page / STRIPES;
        debug_assert!(at < self.words.len());
        // SAFETY: `at` is in the block of the page, and `new` has made whole blocks for all pages below
        // `pages`; `page` was below `pages`.
        Some(unsafe { self.words.get_unchecked(at) })
    }

    #[inline]
    pub(super) fn get(&self, page: u32) -> Option<Role> {
        self.at(u64::from(page))
    }

    /// As [`Roles::get`], for any number.
    #[inline]
    pub(super) fn at(&self, page: u64) -> Option<Role> {
        let word = self.word(usize::try_from(page).ok()?)?;
        Some(Role::from_word(word.load(Ordering::Acquire)))
    }

    /// True if the page (any number) is a word page.
    #[inline]
    pub(super) fn is_words(&self, page: u64) -> bool {
        let word = usize::try_from(page).ok().and_then(|page| self.word(page));
        word.is_some_and(|word| word.load(Ordering::Acquire) == WORDS)
    }

    /// How much of a log page is published, and whether only certain guards may read it: the page has the
    /// mark of a recovery, or the space has its own epochs.
    #[inline]
    pub(super) fn readable(&self, page: u64) -> Option<(u32, bool)> {
        let word = self.word(usize::try_from(page).ok()?)?.load(Ordering::Acquire);
        // One comparison: words of other pages are FREE or at least RETIRED.
        if word.wrapping_sub(1) >= RETIRED - 1 {
            return None;
        }
        Some((((word & !WRITER) >> 32) as u32 - 1, word & RECOVERED != 0))
    }

    /// How much of a log page is published.
    pub(super) fn published(&self, page: u32) -> Option<u32> {
        self.readable(u64::from(page)).map(|(published, _)| published)
    }

    #[inline]
    pub(super) fn role(&self, page: u32) -> Role {
        self.get(page).unwrap_or(Role::Free)
    }

    /// FREE to CLAIMED; false if it was not free.
    pub(super) fn claim(&self, page: u32) -> bool {
        self.word(page as usize).is_some_and(|word| {
            word.compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    #[inline]
    fn store(&self, page: u32, to: u64) {
        if let Some(word) = self.word(page as usize) {
            word.store(to, Ordering::Release);
        }
    }

    pub(super) fn become_words(&self, page: u32) {
        self.store(page, WORDS);
    }

    pub(super) fn become_log(&self, page: u32, published: u32, durable: u32, writer: bool) {
        let writer = if writer { WRITER } else { 0 };
        self.store(page, log_word(published, durable) | writer | self.always);
    }

    /// As [`Roles::become_log`], for a page that a recovery adopts.
    pub(super) fn become_recovered(&self, page: u32, published: u32) {
        self.store(page, log_word(published, published) | RECOVERED);
    }

    /// Puts the page into service after the recovery that may have adopted it; returns how much of it is published.
    pub(super) fn put_into_service(&self, page: u32) -> Option<u32> {
        debug_assert_eq!(self.always, 0);
        self.change_log(page, Ordering::AcqRel, |word, _, _| Some(word & !RECOVERED))
    }

    /// Marks a log page without a writer as having one, which appends behind the published bytes; these
    /// must end at a word boundary. Returns the published length; none for any other page.
    pub(super) fn adopt_writer(&self, page: u32) -> Option<u32> {
        self.change_log(page, Ordering::AcqRel, |word, published, _| {
            (word & WRITER == 0 && published.is_multiple_of(8)).then_some(word | WRITER)
        })
    }

    /// Removes the mark of the page's writer.
    pub(super) fn drop_writer(&self, page: u32) {
        if let Some(word) = self.word(page as usize) {
            word.fetch_and(!WRITER, Ordering::AcqRel);
        }
    }

    /// Raises the published watermark; only the page's writer calls it.
    #[inline]
    pub(super) fn raise_published(&self, page: u32, to: u32) {
        self.raise(page, |published, durable| (published.max(to), durable));
    }

    /// Raises the durable watermark.
    #[inline]
    pub(super) fn raise_durable(&self, page: u32, to: u32) {
        self.raise(page, |published, durable| (published, durable.max(to)));
    }

    /// Raises both to the writer's tail, above which neither can be. Only the page's writer calls
    /// it, while it exists. So a plain store is enough: the page cannot change its role meanwhile,
    /// and no watermark is lost. A locked instruction would wait for the fence just before it.
    #[inline]
    pub(super) fn raise_both(&self, page: u32, to: u32) {
        debug_assert!(self.has_writer(page));
        self.store(page, log_word(to, to) | WRITER | self.always);
    }

    /// As [`Roles::raise_both`], and removes the mark of the writer. A concurrent raise of a
    /// watermark by another thread could be lost.
    #[inline]
    pub(super) fn finish(&self, page: u32, to: u32) {
        debug_assert!(self.has_writer(page));
        self.store(page, log_word(to, to) | self.always);
    }

    /// As [`Roles::finish`], for the published watermark alone.
    #[inline]
    pub(super) fn finish_early(&self, page: u32, to: u32) {
        debug_assert!(self.has_writer(page));
        if let Role::Log { durable, .. } = self.role(page) {
            self.store(page, log_word(to, durable) | self.always);
        }
    }

    /// Prefetches the word of a page.
    #[inline]
    pub(super) fn prefetch(&self, page: u32) {
        if let Some(word) = self.word(page as usize) {
            crate::arch::prefetch(word);
        }
    }

    fn has_writer(&self, page: u32) -> bool {
        let word = self.word(page as usize).map_or(FREE, |word| word.load(Ordering::Relaxed));
        matches!(Role::from_word(word), Role::Log { .. }) && word & WRITER != 0
    }

    #[inline]
    fn raise(&self, page: u32, change: impl Fn(u32, u32) -> (u32, u32)) {
        self.change_log(page, Ordering::AcqRel, |word, published, durable| {
            let (published, durable) = change(published, durable);
            let raised = log_word(published, durable) | word & (WRITER | RECOVERED);
            (raised != word).then_some(raised)
        });
    }

    /// Changes the word of a log page, unless `to` has nothing for the word and its watermarks; returns how much was
    /// published.
    #[inline]
    fn change_log(
        &self,
        page: u32,
        order: Ordering,
        to: impl Fn(u64, u32, u32) -> Option<u64>,
    ) -> Option<u32> {
        let word = self.word(page as usize)?;
        let mut current = word.load(Ordering::Relaxed);
        while let Role::Log { published, durable } = Role::from_word(current) {
            let changed = to(current, published, durable)?;
            match word.compare_exchange_weak(current, changed, order, Ordering::Relaxed) {
                Ok(_) => return Some(published),
                Err(other) => current = other,
            }
        }
        None
    }

    /// Lowers both watermarks of a log page that a recovery has adopted and that has no writer; false
    /// for any other page.
    pub(super) fn lower(&self, page: u32, to: u32) -> bool {
        let lowered = |word: u64, published: u32, durable: u32| {
            let may = word & (WRITER | RECOVERED) == RECOVERED || mutant!("pmem.recovery.cut");
            may.then(|| log_word(published.min(to), durable.min(to)) | RECOVERED)
        };
        self.change_log(page, Ordering::AcqRel, lowered).is_some()
    }

    /// Frees a page that a recovery has adopted, of which nothing is published and that has no writer; false for any
    /// other page.
    pub(super) fn free_cut(&self, page: u32) -> bool {
        let cut = log_word(0, 0) | RECOVERED;
        let free = |word: &AtomicU64| {
            word.compare_exchange(cut, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.word(page as usize).is_some_and(free)
    }

    /// Changes a log page without a writer to RETIRED; false for any other page.
    pub(super) fn retire(&self, page: u32) -> bool {
        let retired = |word: u64, _, _| {
            let may = word & WRITER == 0 || mutant!("pmem.page.retire_under_writer");
            may.then_some(RETIRED)
        };
        self.change_log(page, Ordering::SeqCst, retired).is_some()
    }

    pub(super) fn release(&self, page: u32) {
        self.store(page, FREE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_a_word_of_its_own_and_neighbours_share_no_line() {
        for pages in [1, 8, 63, 64, 65, 511, 512, 513, 1000, 5000] {
            let roles = Roles::new(pages, 0, false).unwrap();
            let at = |page| roles.word(page).map(|word| std::ptr::from_ref(word).addr());
            let all: std::collections::BTreeSet<_> = (0..pages).filter_map(at).collect();
            assert_eq!(all.len(), pages);
            assert!(at(pages).is_none());
            for page in 0..pages {
                for other in page + 1..pages.min(page + 8) {
                    let apart = at(page).unwrap().abs_diff(at(other).unwrap());
                    // The words need not begin at a line: where two blocks meet is one such pair.
                    assert!(apart >= LINE || other % BLOCK == 0, "{page} and {other} of {pages}");
                }
            }
            // All of them are in as few lines as possible, except in the last block.
            let bytes = all.last().unwrap() - all.first().unwrap();
            assert!(bytes < pages.next_multiple_of(BLOCK) * size_of::<u64>(), "{bytes}: {pages}");
        }
    }

    #[test]
    fn more_pages_than_there_is_memory_for_are_an_error() {
        assert!(
            Roles::new(usize::MAX, 0, false).is_err()
                && Roles::new(usize::MAX >> 5, 0, false).is_err()
        );
        assert!(Roles::new(0, 0, false).unwrap().get(0).is_none());
    }

    #[test]
    fn watermarks_only_rise_and_never_revive_a_retired_page() {
        let roles = Roles::new(1, 1, false).unwrap();
        assert!(roles.claim(0) && !roles.claim(0));
        roles.become_log(0, 0, 0, true);
        roles.raise_published(0, 64);
        roles.raise_published(0, 32);
        roles.raise_durable(0, 16);
        assert_eq!(roles.role(0), Role::Log { published: 64, durable: 16 });
        roles.raise_both(0, 128);
        assert_eq!(roles.role(0), Role::Log { published: 128, durable: 128 });
        assert!(!roles.retire(0) && !roles.lower(0, 8), "its writer lives");
        roles.drop_writer(0);
        assert_eq!(roles.role(0), Role::Log { published: 128, durable: 128 });
        assert!(!roles.lower(0, 64), "no recovery has adopted it");
        assert_eq!(roles.adopt_writer(0), Some(128));
        roles.finish_early(0, 160);
        assert_eq!(roles.role(0), Role::Log { published: 160, durable: 128 });
        assert!(roles.retire(0) && !roles.retire(0) && !roles.lower(0, 8));
        roles.raise_durable(0, 256);
        assert_eq!(roles.role(0), Role::Retired);
        assert!(!roles.claim(0));
        roles.release(0);
        assert!(roles.claim(0));
        assert!(roles.get(1).is_none());
    }

    #[test]
    fn a_writer_goes_on_at_a_word_alone() {
        let roles = Roles::new(1, 1, false).unwrap();
        roles.become_log(0, 63, 63, false);
        assert_eq!(roles.adopt_writer(0), None);
        roles.become_recovered(0, 1 << 30);
        roles.raise_durable(0, 1 << 30);
        assert_eq!(roles.readable(0), Some((1 << 30, true)));
        assert_eq!(roles.role(0), Role::Log { published: 1 << 30, durable: 1 << 30 });
        assert_eq!(roles.put_into_service(0), Some(1 << 30));
        assert_eq!(roles.readable(0), Some((1 << 30, false)));
    }
}
