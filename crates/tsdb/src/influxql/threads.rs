//! Threads that work for queries beside the queries' own threads: one fewer than there are cores, shared by all
//! stores of the process.
//!
//! They are created when the first query needs one, and are kept. A new thread starts on the core of the thread
//! that creates it, and waits until that one pauses (Linux 6.18: 2 ms behind a thread that works for 2 ms, while a
//! woken thread starts within 40 µs on the other core). So a query of some milliseconds would gain nothing from new
//! threads.
//!
//! No query waits for a thread to become free: the threads that are free when a batch begins work for it, and the
//! query's thread does the rest. It waits until the threads that it has hired end their current work.

use parking_lot::Mutex;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// See the module.
pub(super) struct QueryThreads {
    /// None on one core, and where the system refuses threads.
    pool: Option<ThreadPool>,
    free: AtomicUsize,
}

/// A hired thread, until it is dropped.
struct Hired<'h>(&'h AtomicUsize);

impl Drop for Hired<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

impl QueryThreads {
    /// The threads of the process.
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

    /// The number of threads.
    pub(super) fn threads(&self) -> usize {
        self.pool.as_ref().map_or(0, ThreadPool::current_num_threads)
    }

    /// Hires a free thread.
    fn hire(&self) -> Option<Hired<'_>> {
        let take = |free: usize| free.checked_sub(1);
        let hired = self.free.fetch_update(Ordering::Acquire, Ordering::Relaxed, take);
        hired.ok().map(|_| Hired(&self.free))
    }

    /// Runs `work` in the caller's thread and in at most `others` more at the same time, and returns all results. A
    /// panic of one thread continues in the caller's thread, when all have ended.
    pub(super) fn work<R: Send>(&self, others: usize, work: impl Fn() -> R + Sync) -> Vec<R> {
        let hired: Vec<_> = (0..others).map_while(|_| self.hire()).collect();
        let Some(pool) = self.pool.as_ref().filter(|_| !hired.is_empty()) else {
            return vec![work()];
        };
        let all = Mutex::new(Vec::with_capacity(hired.len() + 1));
        let add = || {
            let one = work();
            all.lock().push(one);
        };
        pool.in_place_scope(|scope| {
            for one in hired {
                scope.spawn(|_| {
                    let _until_its_end = one;
                    add();
                });
            }
            add();
        });
        all.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;

    #[test]
    fn those_that_are_free_work_beside_the_caller() {
        let threads = QueryThreads::new(2);
        for (others, count) in [(0, 1), (1, 2), (2, 3), (5, 3)] {
            // All threads work at the same time.
            let together = Barrier::new(count);
            let names = threads.work(others, || {
                together.wait();
                thread::current().id()
            });
            let names: HashSet<_> = names.into_iter().collect();
            assert!(names.len() == count && names.contains(&thread::current().id()));
        }
    }

    #[test]
    fn a_caller_who_finds_none_free_does_it_alone() {
        let threads = QueryThreads::new(2);
        // The threads stay hired until all have tried.
        let (together, apart) = (Barrier::new(3), Barrier::new(3));
        let within = threads.work(2, || {
            together.wait();
            let count = threads.work(2, || ()).len();
            apart.wait();
            count
        });
        assert_eq!(within, [1, 1, 1]);
        assert_eq!(threads.work(2, || ()).len(), 3);
        assert_eq!(QueryThreads::new(0).work(2, || ()).len(), 1);
    }

    #[test]
    fn a_panic_goes_on_when_all_have_ended_and_leaves_them_free() {
        let threads = QueryThreads::new(1);
        let caller = thread::current().id();
        for is_of_caller in [true, false] {
            let done = AtomicUsize::new(0);
            let work = || {
                assert_ne!(thread::current().id() == caller, is_of_caller, "on purpose");
                done.fetch_add(1, Ordering::Relaxed);
            };
            assert!(catch_unwind(AssertUnwindSafe(|| threads.work(1, work))).is_err());
            assert_eq!(done.load(Ordering::Relaxed), 1);
        }
        assert_eq!(threads.work(1, || ()).len(), 2);
    }
}
