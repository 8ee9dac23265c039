//! Flushes and fences, which make stores durable, and their counts.

use super::sync::{Syncer, lost};
use super::{Counter, Space, SyncError, WriteMode, bump, thread_number};
use crate::arch;
use crate::media::Behaviour;
use crate::order::{self, Instruction, LINE};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

thread_local! {
    /// The number of fence instructions that this thread has made.
    static FENCES: Cell<u64> = const { Cell::new(0) };
}

/// The number of fence instructions that this thread has made.
#[inline]
pub(super) fn fences() -> u64 {
    FENCES.get()
}

/// A thread, as the address of its count of fences, and that count. A thread that has ended may have had the same
/// address; its end has ordered all its stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    thread: usize,
    fences: u64,
}

impl Moment {
    /// The current moment of this thread.
    #[inline]
    pub(super) fn now() -> Self {
        FENCES
            .with(|fences| Self { thread: std::ptr::from_ref(fences).addr(), fences: fences.get() })
    }

    /// True if both are of one thread.
    #[inline]
    pub(super) fn is_of_thread_of(self, other: Self) -> bool {
        self.thread == other.thread
    }
}

/// A moment between the fences of one thread.
#[derive(Debug, Clone, Copy)]
pub struct FenceMark {
    fences: u64,
    /// Not `Send`: another thread's fences prove nothing.
    _of_thread: PhantomData<*const ()>,
}

/// The current moment, for [`Space::fence_since`].
#[inline]
pub fn fence_mark() -> FenceMark {
    FenceMark { fences: fences(), _of_thread: PhantomData }
}

#[inline]
fn note_fence() {
    FENCES.set(FENCES.get() + 1);
}

impl Space {
    /// Writes back the lines of the range: durable at this thread's next [`Space::fence`]. On
    /// `file` media it marks the file as dirty instead. Of a range that ends outside the space nothing
    /// is flushed: such a range was never stored to.
    #[inline]
    pub fn flush(&self, offset: u64, len: u64) {
        if matches!(self.behaviour, Behaviour::Dram) {
            return;
        }
        let lines = order::lines(offset, len);
        if lines.end > self.len() {
            return;
        }
        self.count_flushes((lines.end - lines.start) / LINE as u64);
        // First, so that the time of the instructions is part of the time of an emulated medium.
        self.behaviour_flush(&lines);
        if self.instruction != Instruction::None {
            let mut at = lines.start;
            while at < lines.end {
                // SAFETY: `at < lines.end <= self.len()`, checked above, and mapped memory stays
                // mapped; the instruction is one of `available()`.
                unsafe { arch::flush_line(self.mapping.at(at), self.instruction) };
                at += LINE as u64;
            }
        }
    }

    #[inline]
    fn behaviour_flush(&self, lines: &std::ops::Range<u64>) {
        match &self.behaviour {
            Behaviour::Traced(trace) => trace.flush(lines.start, lines.end - lines.start),
            Behaviour::Emulated(Some(model)) => model.flush(lines.start, lines.end - lines.start),
            Behaviour::File => {
                if let Some(syncer) = &self.syncer {
                    syncer.dirty();
                }
            }
            _ => {}
        }
    }

    /// Notes a write past the caches to `offset .. offset + len`: the next fence covers it.
    #[inline]
    pub(super) fn note_nt(&self, offset: u64, len: u64) {
        if matches!(self.behaviour, Behaviour::Emulated(Some(_)) | Behaviour::File) {
            self.behaviour_flush(&order::lines(offset, len));
        }
    }

    /// Everything that this thread flushed (or copied non-temporally) before is durable when it
    /// returns. On `file` media it takes part in a group-committed sync.
    ///
    /// # Errors
    /// [`SyncError`] on `file` media, and for a pool that was lost and is outlived; after it no later
    /// fence succeeds.
    #[inline]
    pub fn fence(&self) -> Result<(), SyncError> {
        match &self.behaviour {
            Behaviour::Dram => return Ok(()),
            Behaviour::Traced(trace) => {
                self.count_fence();
                trace.fence()?;
                if trace.fences_at_once() {
                    note_fence();
                }
            }
            Behaviour::Emulated(Some(model)) => {
                self.count_fence();
                arch::fence();
                note_fence();
                model.fence();
            }
            Behaviour::Emulated(None) | Behaviour::Dax { .. } => {
                self.count_fence();
                arch::fence();
                note_fence();
            }
            Behaviour::File => {
                self.count_fence();
                self.syncer.as_ref().map_or(Ok(()), Syncer::sync)?;
            }
        }
        // Checked afterwards: stores made before the loss was noticed may be lost, too.
        self.check_lost().map_err(lost)
    }

    /// As [`Space::fence`], for the flushes of this thread in this space before `mark`: makes no
    /// fence if the thread has made one since, in any space. The instruction orders all flushes of
    /// its thread, to any space. Where a fence is a sync, each file has its own.
    ///
    /// # Errors
    /// As [`Space::fence`].
    #[inline]
    pub fn fence_since(&self, mark: FenceMark) -> Result<(), SyncError> {
        if fences() == mark.fences || !self.fences_at_once() {
            return self.fence();
        }
        match &self.behaviour {
            Behaviour::Traced(trace) => trace.fenced_elsewhere(),
            // The flushes to this medium may take longer.
            Behaviour::Emulated(Some(model)) => model.fence(),
            _ => {}
        }
        self.check_lost().map_err(lost)
    }

    /// [`Space::flush`], then [`Space::fence`].
    ///
    /// # Errors
    /// As [`Space::fence`].
    #[inline]
    pub fn persist(&self, offset: u64, len: u64) -> Result<(), SyncError> {
        self.flush(offset, len);
        self.fence()
    }

    /// The faster way to append bytes that the next fence makes durable: through the caches, with a
    /// flush of the lines, or past them. For records of some hundred bytes that will not be read at
    /// once.
    #[inline]
    pub fn append_mode(&self) -> WriteMode {
        match &self.behaviour {
            Behaviour::Traced(trace) if trace.appends_past_caches() => WriteMode::NonTemporal,
            Behaviour::Emulated(_) | Behaviour::Dax { .. }
                if self.instruction != Instruction::None =>
            {
                order::append_mode()
            }
            _ => WriteMode::Cached,
        }
    }

    /// As [`Space::append_mode`], for many whole lines at once: past the caches wherever a flush is
    /// an instruction, since then lines that are written as a whole need not be read.
    #[inline]
    pub fn fill_mode(&self) -> WriteMode {
        match &self.behaviour {
            Behaviour::Emulated(_) | Behaviour::Dax { .. }
                if self.instruction != Instruction::None =>
            {
                WriteMode::NonTemporal
            }
            _ => self.append_mode(),
        }
    }

    /// True if a fence is an instruction here, not a system call that waits for a device.
    pub fn fences_at_once(&self) -> bool {
        match &self.behaviour {
            Behaviour::File => false,
            Behaviour::Traced(trace) => trace.fences_at_once(),
            _ => true,
        }
    }

    /// The error of the sync that failed, if one did: no more writes are possible.
    ///
    /// # Errors
    /// That error.
    #[inline]
    pub fn check_sync(&self) -> Result<(), SyncError> {
        if let Behaviour::Traced(trace) = &self.behaviour {
            return trace.check_sync();
        }
        self.check_lost().map_err(lost)?;
        self.syncer.as_ref().map_or(Ok(()), Syncer::check)
    }

    /// True if [`Space::check_sync`] has an error: a sync has failed, or the medium is gone.
    #[inline]
    pub fn has_failed(&self) -> bool {
        match &self.behaviour {
            Behaviour::Traced(_) => self.check_sync().is_err(),
            _ => self.check_lost().is_err() || self.syncer.as_ref().is_some_and(Syncer::has_failed),
        }
    }

    #[inline]
    fn counter(&self) -> &Counter {
        &self.counters[thread_number() % Self::COUNTERS]
    }

    #[inline]
    fn count_flushes(&self, lines: u64) {
        bump(&self.counter().flushes, lines);
    }

    #[inline]
    pub(super) fn count_fence(&self) {
        bump(&self.counter().fences, 1);
    }

    /// Lines flushed and fences made so far, by all threads. Exact while at most 64 threads ever
    /// used the space.
    pub fn flushes_and_fences(&self) -> (u64, u64) {
        self.counters.iter().fold((0, 0), |(flushes, fences), counter| {
            (
                flushes + counter.flushes.load(Ordering::Relaxed),
                fences + counter.fences.load(Ordering::Relaxed),
            )
        })
    }
}
