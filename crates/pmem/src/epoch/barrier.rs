//! Two fences that meet, one of which costs nothing.
//!
//! A reader pins at every operation, a retirer looks at the readers' slots a few times a second.
//! So the retirer pays for both: `membarrier` of Linux makes every running thread of the process
//! fence, and the reader's own fence is left to the compiler alone. Where the kernel lacks the
//! call, both fence by themselves.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

/// True once the kernel has said that it fences for readers. Set before the first pin
/// ([`prepare`]), never changed after.
static ASYMMETRIC: AtomicBool = AtomicBool::new(false);

const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Decides which fences are used. Every thread calls it before its first pin or look; whoever opens a
/// pool does before that: where the process has other threads by then, the kernel waits for all
/// processors, which takes it 20 ms, and the first operation should not.
pub(crate) fn prepare() {
    static PREPARED: OnceLock<()> = OnceLock::new();
    PREPARED.get_or_init(|| {
        let works = membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED);
        ASYMMETRIC.store(works, Ordering::SeqCst);
    });
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes no pointer; what it does to other threads is a fence.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// The reader's fence: between its slot and what it looks at. For whoever does that far more often
/// than another looks for it with [`heavy`].
#[inline]
pub fn light() {
    if ASYMMETRIC.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The retirer's: between what is made unreachable and the slots. A system call.
pub fn heavy() {
    prepare();
    fence(Ordering::SeqCst);
    if ASYMMETRIC.load(Ordering::Relaxed) && !membarrier(PRIVATE_EXPEDITED) {
        // It was registered and has worked; without it nothing may be reused any more.
        std::process::abort();
    }
}
