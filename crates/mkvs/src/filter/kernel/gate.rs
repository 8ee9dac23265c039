//! Which threads are inside, since when, and when all that entered before a point have left.
//!
//! ```text
//!   enter:    g = generation; inside[g odd?] += 1; generation still g? ─▶ inside; else -= 1, again
//!   leave:    inside[g odd?] -= 1
//!   advance:  generation += 1; wait until inside[the other one] is 0
//! ```
//!
//! All accesses up to `leave` are sequentially consistent: either an entering thread sees the new generation, or
//! the advancing thread sees that a thread is inside. When `advance` returns, every thread inside is of the
//! generation that it began. No thread is kept outside meanwhile: threads that enter are of the new generation.
//!
//! Two counters are enough for all generations: no thread of an older generation than the last is left when the
//! next begins, and a thread that slept between the first two steps of `enter` compares the whole number.
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

/// The presence of a thread inside: to be given back to [`Gate::leave`].
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
    /// A gate with no thread inside, in generation 0.
    pub(in crate::filter) fn new(stripes: usize) -> Self {
        let stripe = |_| CachePadded::new([A::new(0), A::new(0)]);
        Self { generation: CachePadded::new(A::new(0)), inside: (0..stripes).map(stripe).collect() }
    }

    /// Goes inside. Threads of different numbers do not share a counter if there are stripes enough.
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

    /// Goes outside. The actions of the thread inside happen before the return of an [`Self::advance`] that waited
    /// for it.
    #[inline]
    pub(super) fn leave(&self, stay: &Stay) {
        self.inside[stay.stripe][stay.parity()].fetch_sub(1, Ordering::Release);
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Begins a generation, and waits until no thread of an older one is inside. All threads of the new generation
    /// see the stores made before the call. One caller at a time.
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
