//! A number for each thread that no other living thread has.
//!
//! [`thread_number`](coreplane_pmem::thread_number) is not enough for counters that are changed by a load and a
//! store: the simulator gives several threads the same one.

use parking_lot::Mutex;

/// The numbers that no living thread has.
struct Free {
    /// Numbers of threads that have ended.
    ended: Vec<usize>,
    /// The least number that no thread has had.
    next: usize,
}

static FREE: Mutex<Free> = Mutex::new(Free { ended: Vec::new(), next: 0 });

/// The number of a thread, given back when the thread ends.
struct Owned(usize);

impl Owned {
    fn take() -> Self {
        let mut free = FREE.lock();
        let number = free.ended.pop().unwrap_or(free.next);
        free.next = free.next.max(number + 1);
        Self(number)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        FREE.lock().ended.push(self.0);
    }
}

thread_local! {
    static OWNED: Owned = Owned::take();
}

/// The number of this thread; in its last moments `usize::MAX`, which is never the number of one thread alone.
#[inline]
pub(super) fn stripe_number() -> usize {
    OWNED.try_with(|owned| owned.0).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::stripe_number;
    use std::collections::BTreeSet;
    use std::sync::{Arc, Barrier, Mutex};

    #[test]
    fn living_threads_have_different_numbers_and_ended_threads_give_theirs_back() {
        const THREADS: usize = 8;
        let most = || {
            let (numbers, barrier) = (Mutex::new(BTreeSet::new()), Arc::new(Barrier::new(THREADS)));
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        numbers.lock().expect("lock").insert(stripe_number());
                        barrier.wait();
                    });
                }
            });
            let numbers = numbers.into_inner().expect("lock");
            assert_eq!(numbers.len(), THREADS);
            numbers.last().copied().expect("a number")
        };
        // Other tests run threads beside these, but not a thousand.
        assert!((0..200).all(|_| most() < 1000));
    }
}
