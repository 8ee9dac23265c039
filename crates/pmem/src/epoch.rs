//! Epochs: when may the memory of a retired page be used again?
//!
//! A reader pins the current epoch while it holds slices of a pool. The retirer of a page stamps it
//! with the epoch of that moment, and uses the page again only when no reader is pinned at that
//! epoch or before.
//!
//! ```text
//!   reader:   slot = global epoch; SeqCst fence; look at the page's state; read; slot = 0
//!   retirer:  state = retired;     SeqCst fence; stamp = global epoch, advanced by one
//!   later:    SeqCst fence; reuse the page once every slot is 0 or greater than the stamp
//! ```
//!
//! The fences pair up: either the retirer sees the reader's slot (and waits for it), or the reader
//! sees that the page is retired (and looks the key up again). A reader that loads the global epoch
//! and stalls before it stores its slot publishes an old epoch, which only delays reuse, or has not
//! yet looked at any state, in which case it sees `retired`.
//!
//! A reader's fence costs nothing where the kernel can fence for all threads at the later look (`barrier`).
//!
//! A model checker tries every interleaving (module `kernel`), and finds a page reused under a
//! reader as soon as a fence is missing.
//!
//! Slots are per thread and process-wide; a guard may be nested at the cost of a counter.
//!
//! The same protocol serves for values in DRAM: [`Published`].
//!
//! There are three independent *domains*:
//!
//! - [`Pages`] of a pool;
//! - [`Calls`] on objects that may be removed as a whole, such as the engine of a device;
//! - [`Writes`] that have found a name, such as that of a series, which may be dropped.
//!
//! A call or a write may take long, and a call may wait for space, which comes from reused pages: so neither may
//! prevent the reuse of pages. Nor may a call delay the drop of a name, which waits for writes alone.
//!
//! A space may also have its own domain, for its pages alone ([`Space::pin`](crate::Space::pin)): its
//! readers are counted under a lock (module `readers`).

pub mod barrier;
mod kernel;
mod published;
mod readers;

pub use published::Published;
pub(crate) use readers::{Reader, Readers};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One thread's pinned epoch in a domain; 0 when it is not pinned.
#[derive(Debug, Default)]
struct Slot {
    pinned: AtomicU64,
    depth: Cell<u64>,
}

// SAFETY: `depth` is touched only by the thread whose thread-local holds the slot; other threads
// read `pinned` alone, which is atomic.
unsafe impl Sync for Slot {}

const DOMAINS: usize = 3;

/// One thread's slots, of each domain.
type Slots = CachePadded<[Slot; DOMAINS]>;

/// A set of guards and stamps: stamps of one domain do not wait for guards of another.
pub trait Domain: sealed::Numbered {}

/// Pages of a pool, and values that are read together with them.
#[derive(Debug, Clone, Copy)]
pub enum Pages {}

/// Calls, which may take long, on an object that may be removed.
#[derive(Debug, Clone, Copy)]
pub enum Calls {}

/// Writes that have found a name, which may be dropped.
#[derive(Debug, Clone, Copy)]
pub enum Writes {}

impl Domain for Pages {}
impl Domain for Calls {}
impl Domain for Writes {}

mod sealed {
    /// A domain, by its number.
    pub trait Numbered {
        const NUMBER: usize;
    }

    impl Numbered for super::Pages {
        const NUMBER: usize = 0;
    }

    impl Numbered for super::Calls {
        const NUMBER: usize = 1;
    }

    impl Numbered for super::Writes {
        const NUMBER: usize = 2;
    }
}

/// The next epoch to pin in each domain; starts at 1 since 0 means "not pinned".
static EPOCHS: [CachePadded<AtomicU64>; DOMAINS] =
    [const { CachePadded::new(AtomicU64::new(1)) }; DOMAINS];

/// All slots of living threads, and of dead ones until the next sweep.
static SLOTS: Mutex<Vec<Arc<Slots>>> = Mutex::new(Vec::new());

thread_local! {
    static SLOT: Arc<Slots> = register();
}

fn register() -> Arc<Slots> {
    barrier::prepare();
    let slots = Arc::new(Slots::default());
    let mut all = SLOTS.lock();
    // Slots that only the list holds belong to a thread that has ended.
    let is_pinned = |slot: &Slot| slot.pinned.load(Ordering::Acquire) != 0;
    all.retain(|held| Arc::strong_count(held) > 1 || held.iter().any(is_pinned));
    all.push(Arc::clone(&slots));
    slots
}

/// Prevents the reuse of every page that is not yet retired, while the guard exists; in another domain, the removal
/// of all objects that can still be reached. Not `Send`: it belongs to the thread that pinned.
#[derive(Debug)]
pub struct Guard<D: Domain = Pages> {
    slot: *const Slot,
    /// The special purpose of the pin, which a space identifies by its address; 0: none.
    purpose: usize,
    not_send: PhantomData<(*mut (), D)>,
}

/// Pins the current epoch of pages for this thread.
#[inline]
pub fn pin() -> Guard {
    pin_in()
}

/// Pins the current epoch of a domain for this thread.
#[inline]
pub fn pin_in<D: Domain>() -> Guard<D> {
    SLOT.with(|slots| {
        let slot = &slots[D::NUMBER];
        let depth = slot.depth.get();
        slot.depth.set(depth + 1);
        if depth == 0 {
            kernel::pin(&slot.pinned, &*EPOCHS[D::NUMBER]);
        } else if depth == u64::MAX - 1 {
            std::process::abort();
        }
        // The guard keeps the slot alive by its own count only if the thread-local could go
        // first; it cannot, since the guard is not `Send` and thread-locals outlive the stack.
        Guard { slot, purpose: 0, not_send: PhantomData }
    })
}

/// As [`pin`], for a purpose.
pub(crate) fn pin_for(purpose: usize) -> Guard {
    let mut guard = pin();
    guard.purpose = purpose;
    guard
}

impl Guard {
    /// True if it was pinned for this purpose.
    pub(crate) fn is_for(&self, purpose: usize) -> bool {
        self.purpose == purpose
    }
}

impl<D: Domain> Drop for Guard<D> {
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

/// Draws a stamp for pages made unreachable before the call, and advances the epoch.
pub fn stamp() -> u64 {
    stamp_in::<Pages>()
}

/// The same in a domain.
pub fn stamp_in<D: Domain>() -> u64 {
    kernel::stamp(&*EPOCHS[D::NUMBER])
}

/// True once no reader is left that was pinned when `stamp` was drawn.
pub fn has_passed(stamp: u64) -> bool {
    has_passed_in::<Pages>(stamp)
}

/// The same in a domain.
pub fn has_passed_in<D: Domain>(stamp: u64) -> bool {
    stamp < oldest_pinned_in::<D>()
}

/// The oldest epoch of pages that any thread has pinned; `u64::MAX` if none has.
pub fn oldest_pinned() -> u64 {
    oldest_pinned_in::<Pages>()
}

fn oldest_pinned_in<D: Domain>() -> u64 {
    let mut slots = None;
    kernel::oldest(|| slots.insert(SLOTS.lock()).iter().map(|slots| &slots[D::NUMBER].pinned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spin::Backoff;

    /// True if the stamp passes, at once or when readers of other tests, which may have been
    /// suspended in the middle, go on.
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

    #[test]
    fn a_guard_of_calls_does_not_hold_back_pages_nor_one_of_pages_calls() {
        let call = pin_in::<Calls>();
        let (of_pages, of_calls) = (stamp(), stamp_in::<Calls>());
        assert!(passes(of_pages) && !has_passed_in::<Calls>(of_calls));
        let page = pin();
        let of_pages = stamp();
        drop(call);
        let mut backoff = Backoff::new();
        let is_past = (0..100_000).any(|_| {
            backoff.wait();
            has_passed_in::<Calls>(of_calls)
        });
        assert!(is_past && !has_passed(of_pages));
        drop(page);
    }
}
