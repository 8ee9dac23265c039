//! The few atomic accesses on which lock-free readers and writers rely. They are generic over the kind of atomic,
//! so that a model checker runs the accesses of the tree itself, though not the code that calls them.
//!
//! ```text
//!   reader:   node's version ─▶ child ─▶ leaf's version ─▶ node unchanged? ─▶ places ─▶ leaf unchanged?
//!   writer:   lock the leaf ─▶ changing ─▶ places ─▶ the next version, unlocked
//!   rewrite:  lock the leaf ─▶ begin its successor ─▶ the leaf is dead ─▶ node: changing ─▶ child ─▶ next version
//! ```
//!
//! A version word counts up by a fixed step. The bits below the step are marks; the marks in a mask stop readers.
//! The word of an inner node has one mark, the word of a leaf has several.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A mark of a leaf's word: a writer holds the leaf.
pub(crate) const LOCKED: u64 = 1;
/// The page is no leaf, or no longer one.
pub(crate) const DEAD: u64 = 2;
/// The data that the word guards is being changed.
pub(crate) const CHANGING: u64 = 4;
/// The leaf has not been loaded since the open.
pub(crate) const UNLOADED: u64 = 8;
/// No writer may write to the leaf.
pub(crate) const SHUT: u64 = 16;
/// The step by which the word counts up.
pub(crate) const VERSION: u64 = 32;

/// An atomic word.
pub(crate) trait Atomic {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// True if `current` was replaced by `new` (acquire).
    fn replace(&self, current: u64, new: u64) -> bool;
    fn fence(order: Ordering);
}

impl Atomic for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn replace(&self, current: u64, new: u64) -> bool {
        self.compare_exchange(current, new, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn fence(order: Ordering) {
        fence(order);
    }
}

/// The word, for a reader that checks whether it can begin.
#[inline]
pub(crate) fn look<A: Atomic>(word: &A) -> u64 {
    word.load(Ordering::Acquire)
}

/// True if the word is still `version`, apart from marks in `ignored`: then all data read since it was loaded is
/// valid.
#[inline]
pub(crate) fn is_at<A: Atomic>(word: &A, version: u64, ignored: u64) -> bool {
    // Earlier loads are not reordered after the load of the word.
    A::fence(Ordering::Acquire);
    word.load(Ordering::Relaxed) & !ignored == version
}

/// Locks: replaces `from` by `to`, which is `from` with a mark.
#[inline]
pub(crate) fn try_lock<A: Atomic>(word: &A, from: u64, to: u64) -> bool {
    word.replace(from, to)
}

/// Tells readers, by a mark in `word`, that the data that the word guards is being changed. Only the caller changes
/// the word.
#[inline]
pub(crate) fn begin<A: Atomic>(guard: &A, word: u64) {
    guard.store(word, Ordering::Relaxed);
    // No store of the change moves before this one: a reader that sees any of the change sees the mark.
    A::fence(Ordering::Release);
}

/// Ends a change, or a lock: a reader that sees this store sees the whole change.
#[inline]
pub(crate) fn end<A: Atomic>(guard: &A, word: u64) {
    guard.store(word, Ordering::Release);
}

#[cfg(test)]
mod tests;
