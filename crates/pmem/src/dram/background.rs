//! Threads in the background, such as cleaners, checkpoints and the processors of followers.
//!
//! A thread that wakes up takes the processor from a thread that runs if it has used less time lately. A background
//! thread that wakes up thousands of times a second thus interrupts callers for a tenth of a millisecond each, while
//! another processor becomes free a moment later. Threads of Linux's batch policy have the same share of the
//! processors, and do not interrupt other threads as they wake up: they begin when a processor is idle, or when the
//! time slice of another thread is over (some milliseconds).
//!
//! A thread inherits its policy from the thread that starts it. So a thread that keeps a deadline is started by
//! [`spawn_in_time`] wherever a background thread may be the one that starts it.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread of this name with the batch policy, where the system has it and the process was started with the
/// usual one.
///
/// # Errors
/// If the system gives no thread.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    start(name.into(), true, run)
}

/// Starts a thread of this name that keeps a deadline, with the policy that the process was started with.
///
/// # Errors
/// If the system gives no thread.
pub fn spawn_in_time<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    start(name.into(), false, run)
}

fn start<T: Send + 'static>(
    name: String,
    is_batch: bool,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name).spawn(move || {
        set_batch(is_batch);
        run()
    })
}

/// Gives this thread the batch policy, or the usual one back. Nothing happens in a process that was started with
/// another policy than the usual one, and where the system refuses it: then the thread interrupts others as it wakes
/// up.
#[cfg(target_os = "linux")]
pub fn set_batch(is_batch: bool) {
    let (from, to) = match is_batch {
        true => (libc::SCHED_OTHER, libc::SCHED_BATCH),
        false => (libc::SCHED_BATCH, libc::SCHED_OTHER),
    };
    if policy_of(0) != from || policy_of(first_thread()) != libc::SCHED_OTHER {
        return;
    }
    // SAFETY: all zero is a value of this structure of integers.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: 0 is the calling thread; `param` lives until the call returns, and is only read.
    let _is_refused = unsafe { libc::sched_setscheduler(0, to, &raw const param) };
}

#[cfg(not(target_os = "linux"))]
pub fn set_batch(_is_batch: bool) {}

/// True if this thread has the batch policy.
pub fn is_batch() -> bool {
    #[cfg(target_os = "linux")]
    return policy_of(0) == libc::SCHED_BATCH;
    #[cfg(not(target_os = "linux"))]
    false
}

/// The policy of a thread; below 0 if there is no such thread. 0 is the calling one.
#[cfg(target_os = "linux")]
fn policy_of(thread: libc::pid_t) -> libc::c_int {
    // SAFETY: no memory is involved.
    unsafe { libc::sched_getscheduler(thread) }
}

/// The thread with which the process began: its number is that of the process.
#[cfg(target_os = "linux")]
fn first_thread() -> libc::pid_t {
    // SAFETY: it has no conditions.
    unsafe { libc::getpid() }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// The policies of a thread that this one starts in the background, of a thread that keeps a deadline and is
    /// started by that, and of this one.
    fn policies() -> [libc::c_int; 3] {
        let inside = || (policy_of(0), spawn_in_time("in-time", || policy_of(0)).unwrap());
        let (background, in_time) = spawn("background", inside).unwrap().join().unwrap();
        [background, in_time.join().unwrap(), policy_of(0)]
    }

    #[test]
    fn a_background_thread_interrupts_nobody_and_what_it_starts_in_time_is_as_usual() {
        let usual = policy_of(first_thread());
        if usual != libc::SCHED_OTHER {
            // Started with another policy, which stays.
            assert_eq!(policies()[..2], [policy_of(0); 2]);
            return;
        }
        assert_eq!(policies(), [libc::SCHED_BATCH, usual, usual]);
        let name = || std::thread::current().name().map(str::to_owned);
        assert_eq!(spawn("named", name).unwrap().join().unwrap().as_deref(), Some("named"));
    }

    #[test]
    fn a_thread_changes_between_the_two() {
        let usual = policy_of(0);
        let run = move || {
            [true, true, false, false, true].map(|is_batch| {
                set_batch(is_batch);
                policy_of(0)
            })
        };
        let found = std::thread::spawn(run).join().unwrap();
        let batch = if usual == libc::SCHED_OTHER { libc::SCHED_BATCH } else { usual };
        assert_eq!(found, [batch, batch, usual, usual, batch]);
    }
}
