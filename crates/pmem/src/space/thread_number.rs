//! Small numbers for threads, by which each chooses its own logs and counters.

use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The next number that no thread has had.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Numbers of short-lived threads that have ended.
static ENDED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

thread_local! {
    static NUMBER: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
}

/// The small number of this thread; under the simulator the same in every run.
#[inline]
pub fn thread_number() -> usize {
    NUMBER.with(Cell::get)
}

/// Sets the number of this thread; returns the previous one.
pub(crate) fn set_thread_number(number: usize) -> usize {
    NUMBER.with(|cell| cell.replace(number))
}

/// The number of a thread that ends soon; a later short-lived thread reuses it. Otherwise many such threads
/// would take the small numbers from threads that stay.
#[derive(Debug)]
pub struct ShortLived(usize);

impl ShortLived {
    /// To be called first in such a thread, and kept until its end.
    #[must_use]
    pub fn begin() -> Self {
        let ended = ENDED.lock().pop();
        let number = ended.unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        NUMBER.set(number);
        Self(number)
    }
}

impl Drop for ShortLived {
    fn drop(&mut self) {
        ENDED.lock().push(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lived_threads_take_one_number_after_the_other() {
        let number = || {
            let of_thread = || {
                let _number = ShortLived::begin();
                thread_number()
            };
            std::thread::spawn(of_thread).join().expect("no panic")
        };
        let first = number();
        assert!((0..100).all(|_| number() == first));
    }
}
