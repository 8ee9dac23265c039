//! What each page is for, in one DRAM word a page: both watermarks of a log page, or a mark.
//!
//! ```text
//!   FREE ──claim──▶ CLAIMED ──┬─▶ WORDS ──retire──▶ RETIRED ──release──▶ FREE
//!                             └─▶ published | durable (log) ──retire──▶ RETIRED
//! ```
//!
//! The two halves of the word hold `published + 1` and `durable + 1`, so that 0 is FREE; the top
//! bit says that a [`PageWriter`](super::PageWriter) lives, which keeps the page from retiring
//! under it. Word pages never retire, since their handles are not bound to a guard.

use std::sync::atomic::{AtomicU64, Ordering};

const FREE: u64 = 0;
const CLAIMED: u64 = u64::MAX;
const WORDS: u64 = u64::MAX - 1;
const RETIRED: u64 = u64::MAX - 2;

/// Set in a log page's word while it has a writer. Pages are at most 1 GiB, so that no watermark
/// reaches it.
const WRITER: u64 = 1 << 63;

/// What a page is.
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
                durable: word as u32 - 1,
            },
        }
    }
}

fn log_word(published: u32, durable: u32) -> u64 {
    (u64::from(published) + 1) << 32 | (u64::from(durable) + 1)
}

#[derive(Debug)]
pub(super) struct Roles(Box<[AtomicU64]>);

impl Roles {
    pub(super) fn new(pages: usize) -> Self {
        let words = Box::<[AtomicU64]>::new_zeroed_slice(pages);
        // SAFETY: all bits zero is a sound `AtomicU64`, and the value of `FREE`. The zeroes are
        // the system's, so that pages in reserve cost no memory until they are used.
        Self(unsafe { words.assume_init() })
    }

    #[inline]
    pub(super) fn get(&self, page: u32) -> Option<Role> {
        self.at(u64::from(page))
    }

    /// As [`Roles::get`], for any number at all.
    #[inline]
    pub(super) fn at(&self, page: u64) -> Option<Role> {
        let word = self.0.get(usize::try_from(page).ok()?)?;
        Some(Role::from_word(word.load(Ordering::Acquire)))
    }

    #[inline]
    pub(super) fn role(&self, page: u32) -> Role {
        self.get(page).unwrap_or(Role::Free)
    }

    /// FREE to CLAIMED; false if it was not free.
    pub(super) fn claim(&self, page: u32) -> bool {
        self.0.get(page as usize).is_some_and(|word| {
            word.compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    pub(super) fn become_words(&self, page: u32) {
        self.0[page as usize].store(WORDS, Ordering::Release);
    }

    pub(super) fn become_log(&self, page: u32, published: u32, durable: u32, writer: bool) {
        let writer = if writer { WRITER } else { 0 };
        self.0[page as usize].store(log_word(published, durable) | writer, Ordering::Release);
    }

    /// The writer of the page is gone.
    pub(super) fn drop_writer(&self, page: u32) {
        self.0[page as usize].fetch_and(!WRITER, Ordering::AcqRel);
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

    /// Raises both: only the page's writer calls it.
    #[inline]
    pub(super) fn raise_both(&self, page: u32, to: u32) {
        self.raise(page, |published, durable| (published.max(to), durable.max(to)));
    }

    #[inline]
    fn raise(&self, page: u32, change: impl Fn(u32, u32) -> (u32, u32)) {
        let Some(word) = self.0.get(page as usize) else {
            return;
        };
        let mut current = word.load(Ordering::Relaxed);
        while let Role::Log { published, durable } = Role::from_word(current) {
            let (published, durable) = change(published, durable);
            let raised = log_word(published, durable) | current & WRITER;
            if raised == current {
                return;
            }
            match word.compare_exchange_weak(current, raised, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => current = other,
            }
        }
    }

    /// Lowers both watermarks of a log page without a writer; false if it is anything else.
    pub(super) fn lower(&self, page: u32, to: u32) -> bool {
        let Some(word) = self.0.get(page as usize) else {
            return false;
        };
        let mut current = word.load(Ordering::Relaxed);
        while let Role::Log { published, durable } = Role::from_word(current)
            && current & WRITER == 0
        {
            let lowered = log_word(published.min(to), durable.min(to));
            match word.compare_exchange_weak(current, lowered, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(other) => current = other,
            }
        }
        false
    }

    /// A log page without a writer to RETIRED; false if it is anything else.
    pub(super) fn retire(&self, page: u32) -> bool {
        let Some(word) = self.0.get(page as usize) else {
            return false;
        };
        let mut current = word.load(Ordering::Relaxed);
        while matches!(Role::from_word(current), Role::Log { .. }) && current & WRITER == 0 {
            match word.compare_exchange_weak(current, RETIRED, Ordering::SeqCst, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(other) => current = other,
            }
        }
        false
    }

    pub(super) fn release(&self, page: u32) {
        if let Some(word) = self.0.get(page as usize) {
            word.store(FREE, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_only_rise_and_never_revive_a_retired_page() {
        let roles = Roles::new(1);
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
        assert!(roles.lower(0, 64) && roles.lower(0, 96));
        assert_eq!(roles.role(0), Role::Log { published: 64, durable: 64 });
        assert!(roles.retire(0) && !roles.retire(0) && !roles.lower(0, 8));
        roles.raise_both(0, 256);
        assert_eq!(roles.role(0), Role::Retired);
        assert!(!roles.claim(0));
        roles.release(0);
        assert!(roles.claim(0));
        assert!(roles.get(1).is_none());
    }
}
