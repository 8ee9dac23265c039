//! Epochs: when may the memory of a retired page be used again?
//!
//! A reader pins the current epoch while it holds slices of a pool; whoever retires a page stamps
//! it with the epoch of that moment and uses the page again only when no reader is pinned at that
//! epoch or before.
//!
//! ```text
//!   reader:   slot = global epoch; SeqCst fence; look at the page's state; read; slot = 0
//!   retirer:  state = retired;     SeqCst fence; stamp = global epoch, advanced by one
//!   later:    SeqCst fence; reuse the page once every slot is 0 or greater than the stamp
//! ```
//!
//! The fences meet: either the retirer sees the reader's slot (and waits for it), or the
//! reader sees that the page is retired (and looks the key up again). A reader that loads the
//! global epoch and stalls before it stores its slot publishes an old epoch, which only delays
//! reuse, or has not yet looked at any state, in which case it sees `retired`.
//!
//! A reader's fence costs nothing where the kernel lets the later look fence for all (`barrier`).
//!
//! A model checker tries this in every interleaving (module `kernel`), and finds the page used
//! under a reader as soon as a fence is missing.
//!
//! Slots are per thread and process-wide; a guard may be nested at the cost of a counter.
//!
//! What is said of pages holds for values in DRAM as well: [`Published`].

pub mod barrier;
mod kernel;
mod published;

pub use published::Published;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One thread's pinned epoch; 0 when it is not pinned.
#[derive(Debug, Default)]
struct Slot {
    pinned: AtomicU64,
    depth: Cell<u64>,
}

// SAFETY: `depth` is touched only by the thread whose thread-local holds the slot; other threads
// read `pinned` alone, which is atomic.
unsafe impl Sync for Slot {}

/// The next epoch to pin; starts at 1 since 0 means "not pinned".
static EPOCH: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(1));

/// All slots of living threads, and of dead ones until the next sweep.
static SLOTS: Mutex<Vec<Arc<CachePadded<Slot>>>> = Mutex::new(Vec::new());

thread_local! {
    static SLOT: Arc<CachePadded<Slot>> = register();
}

fn register() -> Arc<CachePadded<Slot>> {
    barrier::prepare();
    let slot = Arc::new(CachePadded::new(Slot::default()));
    let mut slots = SLOTS.lock();
    // A slot that only the list holds belongs to a thread that has ended.
    slots.retain(|held| Arc::strong_count(held) > 1 || held.pinned.load(Ordering::Acquire) != 0);
    slots.push(Arc::clone(&slot));
    slot
}

/// Keeps every page that is not yet retired from being used again while it lives. Not `Send`: it
/// belongs to the thread that pinned.
#[derive(Debug)]
pub struct Guard {
    slot: *const CachePadded<Slot>,
    /// The space whose recovery has pinned it, by its address; 0: none.
    recovers: usize,
    not_send: PhantomData<*mut ()>,
}

/// Pins the current epoch for this thread.
#[inline]
pub fn pin() -> Guard {
    SLOT.with(|slot| {
        let depth = slot.depth.get();
        slot.depth.set(depth + 1);
        if depth == 0 {
            kernel::pin(&slot.pinned, &*EPOCH);
        } else if depth == u64::MAX - 1 {
            std::process::abort();
        }
        // The guard keeps the slot alive by its own count only if the thread-local could go
        // first; it cannot, since the guard is not `Send` and thread-locals outlive the stack.
        Guard { slot: Arc::as_ptr(slot), recovers: 0, not_send: PhantomData }
    })
}

/// As [`pin`], for the recovery of the space at an address.
pub(crate) fn pin_for_recovery(space: usize) -> Guard {
    let mut guard = pin();
    guard.recovers = space;
    guard
}

impl Guard {
    /// True if the recovery of the space at an address has pinned it.
    pub(crate) fn is_of_recovery(&self, space: usize) -> bool {
        self.recovers == space
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the slot is in `SLOTS` or in the thread-local, both of which outlive a guard on
        // this thread's stack; a guard moved into another thread-local could be dropped after
        // `SLOT`, but the list still holds the slot: `depth` is above 0, see `register`, whose
        // sweep is the only thing that removes it and which leaves pinned slots alone.
        let slot = unsafe { &*self.slot };
        let depth = slot.depth.get() - 1;
        slot.depth.set(depth);
        if depth == 0 {
            kernel::unpin(&slot.pinned);
        }
    }
}

/// Draws a stamp for what was made unreachable before the call, and advances the epoch.
pub fn stamp() -> u64 {
    kernel::stamp(&*EPOCH)
}

/// True once no reader is left that was pinned when `stamp` was drawn.
pub fn has_passed(stamp: u64) -> bool {
    stamp < oldest_pinned()
}

/// The oldest epoch that any thread has pinned; `u64::MAX` if none has.
pub fn oldest_pinned() -> u64 {
    let mut slots = None;
    kernel::oldest(|| slots.insert(SLOTS.lock()).iter().map(|slot| &slot.pinned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spin::Backoff;

    /// True if the stamp passes, at once or when readers of other tests, which may have been
    /// stopped in the middle, go on.
    fn passes(stamp: u64) -> bool {
        let mut backoff = Backoff::new();
        (0..100_000).any(|_| {
            let has = has_passed(stamp);
            if !has {
                backoff.wait();
            }
            has
        })
    }

    #[test]
    fn a_stamp_passes_only_when_the_readers_of_its_time_are_gone() {
        let early = pin();
        let drawn = stamp();
        assert!(!has_passed(drawn));
        let nested = pin();
        drop(early);
        assert!(!has_passed(drawn), "the nested guard still holds the slot");
        drop(nested);
        assert!(passes(drawn));
        let late = pin();
        assert!(passes(drawn), "a reader that came later does not hold it back");
        drop(late);
    }
}
