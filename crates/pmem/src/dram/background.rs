//! Threads that work for no caller who waits: cleaners, checkpoints, the processors of followers.
//!
//! A thread that wakes up takes the processor from a thread that runs if it has used less time lately. A background
//! thread that wakes up thousands of times a second thus interrupts callers for a tenth of a millisecond each, while
//! another processor becomes free a moment later. Threads of the batch policy have the same share of the processors,
//! and do not interrupt other threads as they wake up: they begin when a processor is idle, or at the next tick of the
//! system's clock (1 to 10 ms).

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread of this name, with the batch policy where the system has it and this process has the usual one.
///
/// # Errors
/// If the system gives no thread.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(move || {
        become_batch();
        run()
    })
}

/// Gives this thread the batch policy; a policy that the process was started with stays.
#[cfg(target_os = "linux")]
fn become_batch() {
    let usual = libc::SCHED_OTHER;
    // SAFETY: no memory is involved; 0 is the calling thread.
    if unsafe { libc::sched_getscheduler(0) } != usual {
        return;
    }
    // SAFETY: all zero is a value of this structure of integers.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // If it is refused, the thread interrupts others as it wakes up.
    // SAFETY: `param` lives until the call returns, and is only read.
    let _is_refused = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const param) };
}

#[cfg(not(target_os = "linux"))]
fn become_batch() {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: no memory is involved.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_background_thread_does_not_preempt_and_its_caller_stays_as_it_was() {
        let before = policy();
        let run = || (std::thread::current().name().map(str::to_owned), policy());
        let (name, inside) = spawn("coreplane-test", run).unwrap().join().unwrap();
        assert_eq!(name.as_deref(), Some("coreplane-test"));
        let expected = if before == libc::SCHED_OTHER { libc::SCHED_BATCH } else { before };
        assert_eq!((inside, policy()), (expected, before));
    }
}
