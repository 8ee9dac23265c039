//! The key locks of a stripe, and the order in which threads get them.
//!
//! A key lock is released by a plain store, which wakes no thread: a waiting thread looks again, and after a while
//! sleeps in between. So a thread that comes back at once would get the key lock again and again, each time before
//! the waiting thread looks. Therefore threads that have waited for long are counted, and a newcomer lets them go
//! first.

use super::{InFlight, Stripe};
use coreplane_pmem::spin::{Backoff, Held};
use std::sync::atomic::Ordering;

/// How often a newcomer lets overdue threads go first, at most; each of them looks as often meanwhile. Then it
/// waits like any other thread.
const COURTESY: u32 = 400;

/// The right to write the keys of a stripe.
pub(crate) type KeyLock<'a> = Held<'a, ()>;

impl InFlight {
    /// Waits for the key lock to write the keys of a stripe.
    #[inline]
    pub(crate) fn lock_key(&self, stripe: usize) -> KeyLock<'_> {
        self.try_lock_key(stripe).unwrap_or_else(|| self.stripes[stripe].wait_for_turn())
    }

    /// Takes the key lock of a stripe unless another thread holds it, or has waited for it for long.
    #[inline]
    pub(crate) fn try_lock_key(&self, stripe: usize) -> Option<KeyLock<'_>> {
        let stripe = &self.stripes[stripe];
        // A stale value does no harm.
        let is_overdue = stripe.overdue.load(Ordering::Relaxed) > 0;
        if is_overdue { None } else { stripe.sequencer.try_lock() }
    }
}

impl Stripe {
    #[cold]
    fn wait_for_turn(&self) -> KeyLock<'_> {
        let mut backoff = Backoff::new();
        let mut courtesy = 0..COURTESY;
        while self.overdue.load(Ordering::Relaxed) > 0 && courtesy.next().is_some() {
            backoff.wait();
        }
        let mut backoff = Backoff::new();
        while !backoff.is_long() {
            if let Some(turn) = self.sequencer.try_lock() {
                return turn;
            }
            backoff.wait();
        }
        self.overdue.fetch_add(1, Ordering::Relaxed);
        let turn = loop {
            if let Some(turn) = self.sequencer.try_lock() {
                break turn;
            }
            backoff.wait();
        };
        self.overdue.fetch_sub(1, Ordering::Relaxed);
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    /// One thread takes the key lock again and again, and hardly releases it in between: another thread that waits
    /// gets it after a few turns.
    #[test]
    fn nobody_waits_for_ever_beside_one_that_comes_back_at_once() {
        const AT_MOST: u64 = 20;
        let in_flight = InFlight::new();
        for _ in 0..10 {
            let (is_over, has_begun) = (AtomicBool::new(false), AtomicBool::new(false));
            let turns = AtomicU64::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut turn = in_flight.lock_key(3);
                    has_begun.store(true, Ordering::SeqCst);
                    // The other sleeps by now.
                    while in_flight.stripes[3].overdue.load(Ordering::Relaxed) == 0 {
                        std::thread::yield_now();
                    }
                    while !is_over.load(Ordering::SeqCst) && turns.load(Ordering::SeqCst) <= AT_MOST
                    {
                        drop(turn);
                        turn = in_flight.lock_key(3);
                        turns.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                });
                while !has_begun.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                let turn = in_flight.lock_key(3);
                is_over.store(true, Ordering::SeqCst);
                drop(turn);
            });
            let turns = turns.load(Ordering::SeqCst);
            assert!(turns <= AT_MOST, "{turns} turns of the other");
        }
        assert_eq!(in_flight.stripes[3].overdue.load(Ordering::Relaxed), 0);
    }
}
