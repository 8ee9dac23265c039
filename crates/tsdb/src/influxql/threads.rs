//! Threads that work for queries beside the queries' own: one less than there are cores, of all stores of the process together.
//!
//! They are made when the first query wants one, and live on. A thread that is made begins where the one that makes it runs, and
//! waits until that pauses (Linux 6.18: 2 ms behind one that works for 2 ms, where one that is woken begins within 40 µs on the
//! other core): a query of some milliseconds would have no use of it.
//!
//! No query waits for one. Those that are free work for it, and it does the rest itself.

use parking_lot::Mutex;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// See the module.
pub(super) struct QueryThreads {
    /// None on one core, and where the system gives no threads.
    pool: Option<ThreadPool>,
    free: AtomicUsize,
}

/// Some of them, until it is dropped.
struct Hired<'h> {
    count: usize,
    free: &'h AtomicUsize,
}

impl Drop for Hired<'_> {
    fn drop(&mut self) {
        self.free.fetch_add(self.count, Ordering::Release);
    }
}

impl QueryThreads {
    /// Those of the process.
    pub(super) fn get() -> &'static Self {
        static THREADS: OnceLock<QueryThreads> = OnceLock::new();
        THREADS.get_or_init(|| {
            let count = thread::available_parallelism().map_or(1, usize::from) - 1;
            Self::new(count)
        })
    }

    fn new(count: usize) -> Self {
        let builder = ThreadPoolBuilder::new().num_threads(count);
        let builder = builder.thread_name(|_| "ts-query".to_owned());
        // Without them queries take longer.
        let pool = if count == 0 { None } else { builder.build().ok() };
        let free = AtomicUsize::new(pool.as_ref().map_or(0, ThreadPool::current_num_threads));
        Self { pool, free }
    }

    /// How many there are.
    pub(super) fn threads(&self) -> usize {
        self.pool.as_ref().map_or(0, ThreadPool::current_num_threads)
    }

    /// Those that are free, at most so many.
    fn hire(&self, most: usize) -> Hired<'_> {
        let take = |free: usize| Some(free - free.min(most));
        let before = self.free.fetch_update(Ordering::Acquire, Ordering::Relaxed, take);
        Hired { count: before.unwrap_or_default().min(most), free: &self.free }
    }

    /// Does this in the caller's thread, and in at most so many others at the same time: what each comes to.
    ///
    /// # Errors
    /// That one has panicked, when all are done.
    pub(super) fn work<R: Send>(
        &self,
        others: usize,
        work: impl Fn() -> R + Sync,
    ) -> thread::Result<Vec<R>> {
        let hired = self.hire(others);
        let Some(pool) = self.pool.as_ref().filter(|_| hired.count > 0) else {
            return catch_unwind(AssertUnwindSafe(|| vec![work()]));
        };
        let all = Mutex::new(Vec::with_capacity(hired.count + 1));
        let add = || {
            let one = work();
            all.lock().push(one);
        };
        catch_unwind(AssertUnwindSafe(|| {
            pool.in_place_scope(|scope| {
                (0..hired.count).for_each(|_| scope.spawn(|_| add()));
                add();
            });
        }))?;
        Ok(all.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;

    #[test]
    fn those_that_are_free_work_beside_the_caller() {
        let threads = QueryThreads::new(2);
        for (others, count) in [(0, 1), (1, 2), (2, 3), (5, 3)] {
            // All are at it at the same time.
            let together = Barrier::new(count);
            let names = threads.work(others, || {
                together.wait();
                thread::current().id()
            });
            let names: HashSet<_> = names.unwrap().into_iter().collect();
            assert!(names.len() == count && names.contains(&thread::current().id()));
        }
    }

    #[test]
    fn a_caller_who_finds_none_free_does_it_alone() {
        let threads = QueryThreads::new(2);
        let within = threads.work(2, || threads.work(2, || ()).unwrap().len());
        assert_eq!(within.unwrap(), [1, 1, 1]);
        assert_eq!(threads.work(2, || ()).unwrap().len(), 3);
        assert_eq!(QueryThreads::new(0).work(2, || ()).unwrap().len(), 1);
    }

    #[test]
    fn a_panic_is_told_when_all_are_done_and_leaves_them_free() {
        let threads = QueryThreads::new(1);
        let caller = thread::current().id();
        for is_of_caller in [true, false] {
            let done = AtomicUsize::new(0);
            let ended = threads.work(1, || {
                assert_ne!(thread::current().id() == caller, is_of_caller, "on purpose");
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert!(ended.is_err() && done.load(Ordering::Relaxed) == 1);
        }
        assert_eq!(threads.work(1, || ()).unwrap().len(), 2);
    }
}
