//! Which threads are inside, since when, and when all that entered before a point have left.
//!
//! ```text
//!   enter:    g = generation; inside[g odd?] += 1; light fence; generation still g? ─▶ inside; else -= 1, again
//!   leave:    inside[g odd?] -= 1
//!   advance:  generation += 1; heavy fence; wait until inside[the other one] is 0
//! ```
//!
//! The fences pair up: either an entering thread sees the new generation, or the advancing thread sees that a thread
//! is inside. When `advance` returns, every thread inside is of the generation that it began. No thread is kept
//! outside meanwhile: threads that enter are of the new generation.
//!
//! Two counters are enough for all generations: no thread of an older generation than the last is left when the
//! next begins, and a thread that slept between the first two steps of `enter` compares the whole number.
//!
//! The counters are in stripes. Of these the first belong to one thread each, which counts by a load and a store: a
//! locked instruction behind the fence of an engine's put would wait until the medium has the record. The other threads
//! share the others. The light fence costs nothing where the kernel can fence for all threads at the heavy one.

use super::Atomic;
use crossbeam_utils::CachePadded;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

#[derive(Debug)]
pub(in crate::filter) struct Gate<A> {
    generation: CachePadded<A>,
    /// One stripe for each thread of a small number, and some for all others.
    inside: Box<[CachePadded<[A; 2]>]>,
    /// Stripes that belong to one thread.
    own: usize,
}

/// The presence of a thread inside: to be given back to [`Gate::leave`] by the same thread.
#[derive(Debug)]
pub(in crate::filter) struct Stay {
    stripe: usize,
    generation: u64,
    not_send: PhantomData<*mut ()>,
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
    /// A gate with no thread inside, in generation 0. So many threads have a stripe to themselves, and all others share
    /// so many (at least one).
    pub(in crate::filter) fn new(own: usize, shared: usize) -> Self {
        let stripe = |_| CachePadded::new([A::new(0), A::new(0)]);
        let inside = (0..own + shared.max(1)).map(stripe).collect();
        Self { generation: CachePadded::new(A::new(0)), inside, own }
    }

    /// Goes inside. No other living thread calls with this number if the stripe of that number has one thread.
    #[inline]
    pub(super) fn enter(&self, number: usize) -> Stay {
        let stripe = match number < self.own {
            true => number,
            false => self.own + number % (self.inside.len() - self.own),
        };
        loop {
            let generation = self.generation.load(Ordering::SeqCst);
            let stay = Stay { stripe, generation, not_send: PhantomData };
            self.count(&stay, 1);
            A::light();
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
        self.count(stay, u64::MAX);
    }

    /// Adds to the counter of a stay, modulo 2^64.
    #[inline]
    fn count(&self, stay: &Stay, by: u64) {
        let counter = &self.inside[stay.stripe][stay.parity()];
        if stay.stripe < self.own {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Release);
        } else {
            counter.fetch_add(by, Ordering::SeqCst);
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Begins a generation, and waits until no thread of an older one is inside. All threads of the new generation
    /// see the stores made before the call. One caller at a time.
    pub(super) fn advance(&self, mut wait: impl FnMut()) {
        let left = self.generation.fetch_add(1, Ordering::SeqCst);
        A::heavy();
        for stripe in &self.inside {
            while stripe[(left & 1) as usize].load(Ordering::SeqCst) != 0 {
                wait();
            }
        }
    }
}
