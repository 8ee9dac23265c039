//! Handles to aligned 8-byte words.
//!
//! The grade states whether a recovery uses a word, and so what the simulator checks: a [`Durable`]
//! word is read after a restart, so that a load of it must not see a value that another thread has
//! not made durable; a [`Volatile`] one (locks, sequence words, DRAM-grade indexes) is never
//! trusted after a restart.

use super::Space;
use crate::media::{Behaviour, Trace};
use crate::mutant;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Whether a word survives a restart.
pub trait Grade {
    /// True for [`Durable`].
    const DURABLE: bool;
}

/// Read after a restart.
#[derive(Debug)]
pub struct Durable;

/// Never trusted after a restart.
#[derive(Debug)]
pub struct Volatile;

impl Grade for Durable {
    const DURABLE: bool = true;
}

impl Grade for Volatile {
    const DURABLE: bool = false;
}

/// A handle to one word of a word page.
#[derive(Debug, Clone, Copy)]
pub struct Word<'a, G> {
    space: &'a Space,
    offset: u64,
    grade: PhantomData<G>,
}

impl<'a, G: Grade> Word<'a, G> {
    #[inline]
    pub(super) fn new(space: &'a Space, offset: u64) -> Self {
        Self { space, offset, grade: PhantomData }
    }

    #[inline]
    fn trace(&self) -> Option<&'a Arc<dyn Trace>> {
        match &self.space.behaviour {
            Behaviour::Traced(trace) => Some(trace),
            _ => None,
        }
    }

    /// Its offset in the space.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Loads it (acquire).
    #[inline]
    pub fn load(&self) -> u64 {
        if let Some(trace) = self.trace() {
            trace.load(self.offset, 8, G::DURABLE);
        }
        self.space.atomic(self.offset).load(Ordering::Acquire)
    }

    /// Stores it (release). Durable after a flush and a fence.
    #[inline]
    pub fn store(&self, value: u64) {
        if let Some(trace) = self.trace() {
            trace.store(self.offset, &value.to_le_bytes(), G::DURABLE);
        }
        self.space.atomic(self.offset).store(value, Ordering::Release);
    }

    /// As [`Word::store`], and visible to every thread before later loads of this thread: of two threads that each
    /// store a word and then load the other's word, at least one sees the other's store.
    #[inline]
    pub fn store_ahead_of_loads(&self, value: u64) {
        if let Some(trace) = self.trace() {
            trace.store(self.offset, &value.to_le_bytes(), G::DURABLE);
        }
        let _replaced = self.space.atomic(self.offset).swap(value, Ordering::SeqCst);
        // On x86 the swap is the barrier.
        if cfg!(not(target_arch = "x86_64")) {
            fence(Ordering::SeqCst);
        }
    }

    /// Replaces `current` by `new`.
    ///
    /// # Errors
    /// The value found, if it was not `current`.
    #[inline]
    pub fn compare_exchange(&self, current: u64, new: u64) -> Result<(), u64> {
        if let Some(trace) = self.trace() {
            trace.load(self.offset, 8, G::DURABLE);
        }
        self.space.atomic(self.offset).compare_exchange(
            current,
            new,
            Ordering::AcqRel,
            Ordering::Acquire,
        )?;
        if let Some(trace) = self.trace() {
            trace.swapped(self.offset, new, G::DURABLE);
        }
        Ok(())
    }

    /// Flushes its line.
    #[inline]
    pub fn flush(&self) {
        if mutant!("pmem.word.flush") {
            return;
        }
        self.space.flush(self.offset, 8);
    }
}
