//! A value in DRAM that is read without a lock and replaced as a whole.
//!
//! ```text
//!   reader:    pin; load the pointer; read; unpin
//!   replacer:  swap the pointer; stamp ─▶ the old value waits ─▶ stamp has passed: it is dropped
//! ```
//!
//! The protocol is that of pages: the swap makes the old value unreachable, and a reader that may
//! still have its pointer was pinned before the stamp was drawn.

use super::{Domain, Guard, Pages, oldest_pinned_in, stamp_in};
use parking_lot::Mutex;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that any thread reads while others replace it.
pub struct Published<T, D: Domain = Pages> {
    current: AtomicPtr<T>,
    /// Values that were replaced, and the stamps that have to pass before they are dropped.
    replaced: Mutex<Vec<(u64, *mut T)>>,
    owns: PhantomData<(Box<T>, D)>,
}

// SAFETY: it owns its values like boxes, which may be sent if the values may be sent.
unsafe impl<T: Send, D: Domain> Send for Published<T, D> {}

// SAFETY: threads share references to the values (`Sync`), and a thread may drop a value that
// another thread has put there (`Send`).
unsafe impl<T: Send + Sync, D: Domain> Sync for Published<T, D> {}

impl<T, D: Domain> Published<T, D> {
    /// Shows `value` until it is replaced.
    pub fn new(value: T) -> Self {
        Self {
            current: AtomicPtr::new(Box::into_raw(Box::new(value))),
            replaced: Mutex::default(),
            owns: PhantomData,
        }
    }

    /// The current value. It stays valid as long as the guard.
    #[inline]
    pub fn get<'a>(&'a self, _guard: &'a Guard<D>) -> &'a T {
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: the pointer came from a box. It is freed either by `reclaim`, after a stamp has
        // passed that was drawn after the pointer was swapped out: this thread was pinned before it
        // loaded the pointer, and so before that stamp, and stays pinned until the guard is
        // dropped, which `'a` does not outlive. Or by `drop`, which has `self` exclusively.
        unsafe { &*current }
    }

    /// Shows `value` from now on. The old one is dropped when its readers are gone: by this call,
    /// by [`Self::reclaim`], or together with `self`.
    pub fn replace(&self, value: T) {
        let old = self.current.swap(Box::into_raw(Box::new(value)), Ordering::AcqRel);
        let drawn = stamp_in::<D>();
        self.replaced.lock().push((drawn, old));
        self.reclaim();
    }

    /// Drops the replaced values that no reader can hold any more; returns how many are left.
    pub fn reclaim(&self) -> usize {
        let mut replaced = self.replaced.lock();
        if replaced.is_empty() {
            return 0;
        }
        // After all of these stamps were drawn, and once: it is a system call.
        let oldest = oldest_pinned_in::<D>();
        let passed: Vec<_> = replaced.extract_if(.., |(drawn, _)| *drawn < oldest).collect();
        let left = replaced.len();
        drop(replaced);
        for (_, old) in passed {
            // SAFETY: the pointer came from a box, was taken out of the list by this call alone,
            // and every thread that could have loaded it has unpinned since.
            drop(unsafe { Box::from_raw(old) });
        }
        left
    }
}

impl<T, D: Domain> Drop for Published<T, D> {
    fn drop(&mut self) {
        let replaced = self.replaced.get_mut().drain(..).map(|(_, old)| old);
        for value in replaced.chain([*self.current.get_mut()]) {
            // SAFETY: each pointer came from a box and occurs once; `&mut self` guarantees that no
            // reference of `get` is left.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

impl<T, D: Domain> std::fmt::Debug for Published<T, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Published").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::Published;
    use crate::epoch::pin;
    use crate::spin::Backoff;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// Counts its drops, and changes its number when dropped.
    struct Value {
        number: AtomicU64,
        twin: AtomicU64,
        drops: Arc<AtomicU64>,
    }

    impl Value {
        fn new(number: u64, drops: &Arc<AtomicU64>) -> Self {
            let drops = drops.clone();
            Self { number: AtomicU64::new(number), twin: AtomicU64::new(number), drops }
        }
    }

    impl Drop for Value {
        fn drop(&mut self) {
            self.number.store(u64::MAX, Ordering::Relaxed);
            self.drops.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits, if necessary, for readers of other tests, which may have been suspended in the middle.
    fn reclaim_all(published: &Published<Value>) {
        let mut backoff = Backoff::new();
        let is_done = (0..100_000).any(|_| {
            let left = published.reclaim();
            if left > 0 {
                backoff.wait();
            }
            left == 0
        });
        assert!(is_done, "a value waits for ever");
    }

    #[test]
    fn a_replaced_value_is_dropped_after_its_reader_and_each_once() {
        let drops = Arc::new(AtomicU64::new(0));
        let published = Published::new(Value::new(1, &drops));
        let guard = pin();
        let first = published.get(&guard);
        published.replace(Value::new(2, &drops));
        assert_eq!(published.get(&guard).number.load(Ordering::Relaxed), 2);
        assert_eq!(published.reclaim(), 1);
        assert_eq!((first.number.load(Ordering::Relaxed), drops.load(Ordering::Relaxed)), (1, 0));
        drop(guard);
        reclaim_all(&published);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        let guard = pin();
        published.replace(Value::new(3, &drops));
        drop(guard);
        drop(published);
        assert_eq!(drops.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn readers_beside_a_replacer_meet_whole_values_in_order() {
        let drops = Arc::new(AtomicU64::new(0));
        let published = Arc::new(Published::new(Value::new(0, &drops)));
        let is_over = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (published, is_over) = (published.clone(), is_over.clone());
                std::thread::spawn(move || {
                    let mut last = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let guard = pin();
                        let value = published.get(&guard);
                        let number = value.number.load(Ordering::Relaxed);
                        std::thread::yield_now();
                        assert_eq!(number, value.twin.load(Ordering::Relaxed));
                        assert_eq!(number, value.number.load(Ordering::Relaxed), "it was dropped");
                        assert!(number >= last);
                        last = number;
                    }
                })
            })
            .collect();
        for number in 1..=2_000 {
            published.replace(Value::new(number, &drops));
        }
        is_over.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        reclaim_all(&published);
        assert_eq!(drops.load(Ordering::Relaxed), 2_000);
    }
}
