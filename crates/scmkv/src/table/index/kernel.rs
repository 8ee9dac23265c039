//! The accesses that readers without locks, writers and splits rely on, generic over the atomic, so
//! that a model checker runs the same code as the index.
//!
//! ```text
//!   writer:  leaf = directory; lock its group; leaf still there? ─▶ change slots ─▶ unlock
//!   split:   lock the groups of A; fill A0 and A1; lock theirs; directory = A0, A1; unlock all
//!   reader:  leaf = directory; probe; found ─▶ right; absent ─▶ right if the leaf is still there
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

/// Set while a group is locked.
pub(crate) const LOCKED: u64 = 1;

/// An atomic word.
pub(crate) trait Atomic {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// True if `current` was replaced by `new` (acquire).
    fn replace(&self, current: u64, new: u64) -> bool;
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
        self.compare_exchange_weak(current, new, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// Locks a group if no thread holds it; returns the word that it had.
#[inline]
pub(crate) fn try_acquire<A: Atomic>(lock: &A) -> Option<u64> {
    let word = lock.load(Ordering::Relaxed);
    (word & LOCKED == 0 && lock.replace(word, word | LOCKED)).then_some(word)
}

/// Unlocks a group, leaving `word` in it.
#[inline]
pub(crate) fn release<A: Atomic>(lock: &A, word: u64) {
    lock.store(word & !LOCKED, Ordering::Release);
}

/// The result of a probe without the lock.
pub(super) enum Seen<R> {
    /// The slot.
    Found(R),
    /// There is no slot.
    Absent,
    /// A slot whose record has moved meanwhile.
    Again,
}

/// Finds without a lock: a found slot is right, an absence only if the segment that was probed
/// still serves the key.
#[inline]
pub(super) fn find<L: PartialEq + Copy, R, E>(
    leaf: impl Fn() -> L,
    mut probe: impl FnMut(L) -> Result<Seen<R>, E>,
) -> Result<Option<R>, E> {
    loop {
        let probed = leaf();
        match probe(probed)? {
            Seen::Found(found) => return Ok(Some(found)),
            Seen::Absent if leaf() == probed => return Ok(None),
            Seen::Absent | Seen::Again => {}
        }
    }
}

#[cfg(test)]
mod tests {
    //! A present key is found in every interleaving with a split that moves it and a writer that
    //! replaces it. Both the check of the leaf and the order of a release are needed.

    use super::*;
    use loom::sync::Arc;
    use std::convert::Infallible;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    impl Atomic for loom::sync::atomic::AtomicU64 {
        fn load(&self, order: Ordering) -> u64 {
            self.load(order)
        }

        fn store(&self, value: u64, order: Ordering) {
            self.store(value, order);
        }

        fn replace(&self, current: u64, new: u64) -> bool {
            self.compare_exchange(current, new, Ordering::Acquire, Ordering::Relaxed).is_ok()
        }
    }

    type Word = loom::sync::atomic::AtomicU64;

    /// Two segments of one group and one slot; the directory names the one in use.
    struct World {
        directory: Word,
        locks: [Word; 2],
        slots: [Word; 2],
    }

    impl World {
        fn new() -> Self {
            Self {
                directory: Word::new(0),
                locks: [Word::new(0), Word::new(0)],
                slots: [Word::new(1), Word::new(0)],
            }
        }

        fn leaf(&self) -> usize {
            self.directory.load(Ordering::Acquire) as usize
        }

        fn lock(&self, leaf: usize) -> u64 {
            loop {
                if let Some(word) = try_acquire(&self.locks[leaf]) {
                    return word;
                }
                loom::thread::yield_now();
            }
        }

        /// Moves the slot of segment 0 to segment 1, and reuses segment 0.
        fn split(&self) {
            let word = self.lock(0);
            let slot = self.slots[0].load(Ordering::Acquire);
            self.slots[1].store(slot, Ordering::Release);
            let _taken = self.lock(1);
            self.directory.store(1, Ordering::Release);
            release(&self.locks[1], word);
            release(&self.locks[0], word);
            self.slots[0].store(0, Ordering::Release);
        }

        fn add(&self) {
            loop {
                let leaf = self.leaf();
                let word = self.lock(leaf);
                let mine = self.leaf() == leaf;
                if mine {
                    let slot = self.slots[leaf].load(Ordering::Acquire);
                    self.slots[leaf].store(slot + 1, Ordering::Release);
                }
                release(&self.locks[leaf], word);
                if mine {
                    return;
                }
            }
        }

        fn get(&self, checked: bool) -> Option<u64> {
            let probe = |leaf: usize| -> Result<Seen<u64>, Infallible> {
                Ok(match self.slots[leaf].load(Ordering::Acquire) {
                    0 => Seen::Absent,
                    slot => Seen::Found(slot),
                })
            };
            let once = self.leaf();
            let leaf = || if checked { self.leaf() } else { once };
            find(leaf, probe).unwrap_or_else(|never| match never {})
        }
    }

    fn explore(check: impl Fn(Arc<World>) + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.max_branches = 20_000;
        builder.check(move || check(Arc::new(World::new())));
    }

    fn look_while_it_splits(checked: bool) {
        explore(move |world| {
            let splitter = {
                let world = world.clone();
                loom::thread::spawn(move || world.split())
            };
            assert!(world.get(checked).is_some(), "a key that is there was not found");
            splitter.join().unwrap();
        });
    }

    #[test]
    fn a_key_that_a_split_moves_is_always_found() {
        look_while_it_splits(true);
    }

    #[test]
    fn without_a_second_look_at_the_leaf_it_is_not() {
        assert!(catch_unwind(AssertUnwindSafe(|| look_while_it_splits(false))).is_err());
    }

    #[test]
    fn no_change_is_lost_between_a_writer_and_another_or_a_split() {
        for (other, sum) in [(World::split as fn(&World), 2), (World::add, 3)] {
            explore(move |world| {
                let thread = {
                    let world = world.clone();
                    loom::thread::spawn(move || other(&world))
                };
                world.add();
                thread.join().unwrap();
                assert_eq!(world.get(true), Some(sum), "a change was lost");
            });
        }
    }
}
