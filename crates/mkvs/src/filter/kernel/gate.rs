//! Who is inside, since when, and when those who came before something are gone.
//!
//! ```text
//!   enter:    g = generation; inside[g odd?] += 1; generation still g? ─▶ inside; else -= 1, again
//!   leave:    inside[g odd?] -= 1
//!   advance:  generation += 1; wait until inside[the other one] is 0
//! ```
//!
//! All of it is sequentially consistent up to `leave`: either who enters sees the new generation,
//! or who advances sees that somebody is inside. When `advance` returns everybody inside is of the
//! generation that it began. Nobody is kept outside meanwhile: who comes is of the new one.
//!
//! Two counters are enough for all generations: nobody of an older generation than the last is
//! left when the next begins, and whoever slept between the first two steps of `enter` looks at
//! the whole number.
//!
//! The counters are in stripes, so that threads do not share a line.

use super::Atomic;
use crossbeam_utils::CachePadded;
use std::sync::atomic::Ordering;

#[derive(Debug)]
pub(in crate::filter) struct Gate<A> {
    generation: CachePadded<A>,
    inside: Box<[CachePadded<[A; 2]>]>,
}

/// That somebody is inside: to be given back to [`Gate::leave`].
#[derive(Debug)]
pub(in crate::filter) struct Stay {
    stripe: usize,
    generation: u64,
}

impl Stay {
    /// The generation in which it began.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    fn parity(&self) -> usize {
        (self.generation & 1) as usize
    }
}

impl<A: Atomic> Gate<A> {
    /// A gate with nobody inside, in generation 0.
    pub(in crate::filter) fn new(stripes: usize) -> Self {
        let stripe = |_| CachePadded::new([A::new(0), A::new(0)]);
        Self { generation: CachePadded::new(A::new(0)), inside: (0..stripes).map(stripe).collect() }
    }

    /// Goes inside. Threads of different numbers do not meet if there are stripes enough.
    #[inline]
    pub(super) fn enter(&self, number: usize) -> Stay {
        let stripe = number % self.inside.len();
        loop {
            let stay = Stay { stripe, generation: self.generation.load(Ordering::SeqCst) };
            self.inside[stripe][stay.parity()].fetch_add(1, Ordering::SeqCst);
            A::meet();
            if self.generation.load(Ordering::SeqCst) == stay.generation {
                return stay;
            }
            self.leave(&stay);
        }
    }

    /// Goes outside. What was done inside happens before the return of an [`Self::advance`] that
    /// waited for it.
    #[inline]
    pub(super) fn leave(&self, stay: &Stay) {
        self.inside[stay.stripe][stay.parity()].fetch_sub(1, Ordering::Release);
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Begins a generation, and waits until nobody of an older one is inside. What was stored
    /// before the call is seen by all of the new one. One caller at a time.
    pub(super) fn advance(&self, mut wait: impl FnMut()) {
        let left = self.generation.fetch_add(1, Ordering::SeqCst);
        A::meet();
        for stripe in &self.inside {
            while stripe[(left & 1) as usize].load(Ordering::SeqCst) != 0 {
                wait();
            }
        }
    }
}
