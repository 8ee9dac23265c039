//! The few accesses on which readers without locks and writers rest, over any kind of atomic, so that
//! a model checker runs the very accesses that the tree makes, if not those that call them.
//!
//! ```text
//!   reader:   node's version ─▶ child ─▶ leaf's version ─▶ node still at its? ─▶ places ─▶ leaf still at its?
//!   writer:   lock the leaf ─▶ changing ─▶ places ─▶ the next version, unlocked
//!   rewrite:  lock the leaf ─▶ begin its successor ─▶ the leaf is dead ─▶ node: changing ─▶ child ─▶ next version
//! ```
//!
//! A version word counts up by whole steps; below them are marks, of which those in a mask stop
//! readers. An inner node's has one mark, a leaf's some more.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A mark of a leaf's word: somebody writes to the leaf.
pub(crate) const LOCKED: u64 = 1;
/// The page is no leaf, or no more.
pub(crate) const DEAD: u64 = 2;
/// What the word guards is being changed.
pub(crate) const CHANGING: u64 = 4;
/// Nobody has read the leaf since the open.
pub(crate) const UNLOADED: u64 = 8;
/// Nobody is to write to the leaf.
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

/// The word, for a reader that looks whether it can begin.
#[inline]
pub(crate) fn look<A: Atomic>(word: &A) -> u64 {
    word.load(Ordering::Acquire)
}

/// True if all that was read since the word was `version` was so, marks in `ignored` aside.
#[inline]
pub(crate) fn is_at<A: Atomic>(word: &A, version: u64, ignored: u64) -> bool {
    // What was loaded before this is not loaded after the word.
    A::fence(Ordering::Acquire);
    word.load(Ordering::Relaxed) & !ignored == version
}

/// Locks: puts `to`, which is `from` and a mark, in the place of `from`.
#[inline]
pub(crate) fn try_lock<A: Atomic>(word: &A, from: u64, to: u64) -> bool {
    word.replace(from, to)
}

/// Tells readers that what the word guards is being changed, by a mark in `word`. The caller alone
/// changes the word.
#[inline]
pub(crate) fn begin<A: Atomic>(guard: &A, word: u64) {
    guard.store(word, Ordering::Relaxed);
    // No store of the change before this one: who has seen any of it sees that.
    A::fence(Ordering::Release);
}

/// Ends a change, or a lock: who sees this sees all of it.
#[inline]
pub(crate) fn end<A: Atomic>(guard: &A, word: u64) {
    guard.store(word, Ordering::Release);
}

#[cfg(test)]
mod tests;
