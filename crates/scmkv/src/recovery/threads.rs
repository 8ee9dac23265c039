//! Work that several threads share at an open.

use coreplane_engine::{Progress, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that share it, at most.
pub(super) const THREADS_MAX: usize = 16;

/// Does `work` for each number below `count` in `threads` threads, each of which calls `end` at its end.
///
/// # Errors
/// The last one of all. What comes after an error is done all the same.
pub(super) fn in_parallel(
    (threads, count): (usize, usize),
    (stage, progress): (&'static str, &(dyn Fn(Progress) + Sync)),
    work: &(dyn Fn(usize) -> Result<()> + Sync),
    end: &(dyn Fn() -> Result<()> + Sync),
) -> Result<()> {
    let (next, done, failure) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Ok(())));
    let note = |result: Result<()>| result.unwrap_or_else(|error| *failure.lock() = Err(error));
    let run = || {
        let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        for at in numbers.take_while(|at| *at < count) {
            note(work(at));
            let done = done.fetch_add(1, Ordering::Relaxed) as u64 + 1;
            progress(Progress { stage, done, total: count as u64 });
        }
        note(end());
    };
    std::thread::scope(|scope| {
        // This thread works too: if no other can be started, it does all the work.
        for _ in 1..threads {
            let builder = std::thread::Builder::new().name("coreplane-replay".to_owned());
            if builder.spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
    failure.into_inner()
}
