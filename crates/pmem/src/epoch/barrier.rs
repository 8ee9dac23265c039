//! Two paired fences, one of which costs nothing.
//!
//! A reader pins at every operation, a retirer looks at the readers' slots a few times a second.
//! So the retirer pays for both: `membarrier` of Linux makes every running thread of the process
//! fence, and the reader only needs a compiler fence. Where the kernel lacks the call, each uses a
//! fence of its own.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

/// True if the kernel fences for readers. Set before the first pin ([`prepare`]), never changed
/// after.
static ASYMMETRIC: AtomicBool = AtomicBool::new(false);

const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Decides which fences are used. Every thread calls it before its first pin or look. Opening a pool
/// calls it earlier: if the process has other threads at the time, the kernel waits 20 ms for all
/// processors, and the first operation should not take that long.
pub(crate) fn prepare() {
    static PREPARED: OnceLock<()> = OnceLock::new();
    PREPARED.get_or_init(|| {
        let works = membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED);
        ASYMMETRIC.store(works, Ordering::SeqCst);
    });
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes no pointer; its effect on other threads is a fence.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// The reader's fence, between its slot and the state that it reads. For a side that fences far
/// more often than the other side calls [`heavy`].
#[inline]
pub fn light() {
    if ASYMMETRIC.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// True if [`heavy`] makes all threads of the process fence, and not only the one that calls it. Once true it stays so.
#[inline]
pub(crate) fn reaches_others() -> bool {
    ASYMMETRIC.load(Ordering::Relaxed)
}

#[cfg(test)]
thread_local! {
    static HEAVY: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The calls of [`heavy`] by this thread.
#[cfg(test)]
pub(crate) fn heavy_count() -> usize {
    HEAVY.get()
}

/// The retirer's fence, between making a page unreachable and reading the slots. A system call.
pub fn heavy() {
    #[cfg(test)]
    HEAVY.set(HEAVY.get() + 1);
    prepare();
    fence(Ordering::SeqCst);
    if ASYMMETRIC.load(Ordering::Relaxed) && !membarrier(PRIVATE_EXPEDITED) {
        // The call was registered and has worked before; without it nothing may be reused any more.
        std::process::abort();
    }
}
