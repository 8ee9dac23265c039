//! A ring of cache lines: many threads write to it, one reads. It works over any kind of atomic, so that a model
//! checker runs the same code as writers and processors.
//!
//! ```text
//!   line       [ mark ][ word ][ word ] … seven words
//!   record     one or more lines; the mark of its first has its place, counted from the first line ever
//!              written, and its length; the marks of the other lines have no meaning
//!
//!   write:     tail += lines, if that many are free (reserve); words; mark (release: publish)
//!   read:      mark at head (acquire) is of this place ─▶ words; head += lines (release)
//! ```
//!
//! A mark that is left from an earlier round is of an earlier place, so nothing has to be wiped. A writer writes a
//! line again only if it has seen (acquire) that the reader is past it.
//!
//! The words are atomic with relaxed order: that costs nothing, and needs no unsafe code.

use coreplane_pmem::arch::prefetch_to_write;
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering};

/// An atomic word.
pub(super) trait Atomic {
    fn new(value: u64) -> Self;
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Replaces `current` by `new` (relaxed), or returns the present value; may fail without a reason.
    fn replace(&self, current: u64, new: u64) -> Result<u64, u64>;
}

impl Atomic for AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn replace(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange_weak(current, new, Ordering::Relaxed, Ordering::Relaxed)
    }
}

/// Words of a line that carry data.
const WORDS: usize = 7;

/// The bits of a mark that hold the number of lines of a record.
const LEN_BITS: u32 = 12;

/// Lines that are prefetched: those of a usual record.
const AHEAD: u64 = 4;

/// Lines of a record at most.
pub(super) const LINES_MAX: usize = (1 << LEN_BITS) - 1;

/// Lines that a record of so many words takes.
pub(super) fn lines_of(words: usize) -> usize {
    words.div_ceil(WORDS).max(1)
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Line<A> {
    mark: A,
    words: [A; WORDS],
}

/// The ring.
#[derive(Debug)]
pub(super) struct Ring<A> {
    lines: Box<[Line<A>]>,
    /// Lines that writers have taken so far, and the lines that the reader was past when a writer looked: the
    /// reader moves on all the time, and each look at its head takes the cache line from it.
    tail: CachePadded<[A; 2]>,
    /// Lines that the reader is past.
    head: CachePadded<A>,
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    /// Lines that are taken now, at most: exact if it is more than a quarter of them.
    pub(super) taken: usize,
    /// How many lines the reader is past when it has taken the record.
    pub(super) end: u64,
}

/// The mark of the record that begins at `place`.
fn mark(place: u64, lines: usize) -> u64 {
    (place + 1) << LEN_BITS | lines as u64
}

impl<A: Atomic> Ring<A> {
    /// A ring of `lines` lines, a power of two.
    pub(super) fn new(lines: usize) -> Self {
        debug_assert!(lines.is_power_of_two());
        let line = |_| Line { mark: A::new(0), words: std::array::from_fn(|_| A::new(0)) };
        Self {
            lines: (0..lines).map(line).collect(),
            tail: CachePadded::new([A::new(0), A::new(0)]),
            head: CachePadded::new(A::new(0)),
        }
    }

    #[inline]
    fn line(&self, place: u64) -> &Line<A> {
        &self.lines[place as usize & (self.lines.len() - 1)]
    }

    /// Lines that were taken so far.
    pub(super) fn tail(&self) -> u64 {
        self.tail[0].load(Ordering::Acquire)
    }

    /// True if a record is published in the lines from a place on, or was when the reader came to it. Places that
    /// are only reserved do not count.
    pub(super) fn has_published(&self, from: u64) -> bool {
        let is_begin =
            |place: u64| self.line(place).mark.load(Ordering::Acquire) >> LEN_BITS == place + 1;
        (from..self.tail()).any(is_begin)
    }

    /// Prefetches the lines that will be written next.
    #[inline]
    pub(super) fn prefetch(&self) {
        let tail = self.tail[0].load(Ordering::Relaxed);
        (tail..tail + AHEAD).for_each(|place| prefetch_to_write(self.line(place)));
    }

    /// Lines between the head and here; looks at the head itself only where it may matter.
    #[inline]
    fn between(&self, place: u64) -> usize {
        // Any value read from the free lines was read before they became free. A tail that is out of date may be
        // behind the head.
        let known = place.saturating_sub(self.tail[1].load(Ordering::Acquire)) as usize;
        if known <= self.lines.len() / 4 {
            return known;
        }
        let head = self.head.load(Ordering::Acquire);
        self.tail[1].store(head, Ordering::Release);
        place.saturating_sub(head) as usize
    }

    /// Writes a record of so many words; none if there is no room.
    #[inline]
    pub(super) fn write(
        &self,
        words: usize,
        fill: impl FnOnce(&mut Writer<'_, A>),
    ) -> Option<Written> {
        let reserved = self.reserve(words)?;
        fill(&mut reserved.writer());
        Some(reserved.publish())
    }

    /// Takes the lines of a record of so many words; none if there is no room. The reader waits for it.
    #[inline(always)]
    pub(super) fn reserve(&self, words: usize) -> Option<Reserved<'_, A>> {
        let lines = lines_of(words);
        if lines > LINES_MAX {
            return None;
        }
        let mut tail = self.tail[0].load(Ordering::Relaxed);
        let taken = loop {
            let taken = self.between(tail + lines as u64);
            if taken > self.lines.len() {
                let now = self.tail[0].load(Ordering::Relaxed);
                if now == tail {
                    return None;
                }
                tail = now;
                continue;
            }
            match self.tail[0].replace(tail, tail + lines as u64) {
                Ok(_) => break taken,
                Err(now) => tail = now,
            }
        };
        Some(Reserved { ring: self, place: tail, lines, taken })
    }

    /// The record at the head, if it is there; for the reader alone.
    #[inline]
    pub(super) fn front(&self) -> Option<Reader<'_, A>> {
        let place = self.head.load(Ordering::Relaxed);
        let found = self.line(place).mark.load(Ordering::Acquire);
        let is_there = found >> LEN_BITS == place + 1;
        let lines = found & LINES_MAX as u64;
        is_there.then(|| Reader { lines: Lines::new(self, place), next: place + lines })
    }
}

/// The lines of a record that is to be published: the reader does not pass them before that.
#[derive(Debug)]
#[must_use = "the reader waits until it is published"]
pub(super) struct Reserved<'a, A> {
    ring: &'a Ring<A>,
    place: u64,
    lines: usize,
    taken: usize,
}

impl<A: Atomic> Reserved<'_, A> {
    /// The place at which the reader is past it.
    pub(super) fn end(&self) -> u64 {
        self.place + self.lines as u64
    }

    #[inline]
    pub(super) fn writer(&self) -> Writer<'_, A> {
        Writer { lines: Lines::new(self.ring, self.place) }
    }

    /// Makes the record visible to the reader. Once: from then on the lines are the reader's.
    #[inline]
    pub(super) fn publish(&self) -> Written {
        let mark = mark(self.place, self.lines);
        self.ring.line(self.place).mark.store(mark, Ordering::Release);
        Written { taken: self.taken, end: self.end() }
    }
}

/// The words of a record, one after the other, over the lines from its place on.
struct Lines<'a, A> {
    ring: &'a Ring<A>,
    /// The line that the words are of, and those that are left of it.
    place: u64,
    words: std::slice::Iter<'a, A>,
}

impl<'a, A: Atomic> Lines<'a, A> {
    #[inline(always)]
    fn new(ring: &'a Ring<A>, place: u64) -> Self {
        Self { ring, place, words: ring.line(place).words.iter() }
    }

    #[inline(always)]
    fn next_word(&mut self) -> &'a A {
        loop {
            if let Some(word) = self.words.next() {
                return word;
            }
            self.next_line();
        }
    }

    #[inline(always)]
    fn next_line(&mut self) {
        self.place += 1;
        self.words = self.ring.line(self.place).words.iter();
    }
}

/// Puts the words of a record into its lines.
pub(super) struct Writer<'a, A> {
    lines: Lines<'a, A>,
}

impl<A: Atomic> Writer<'_, A> {
    #[inline(always)]
    pub(super) fn push(&mut self, word: u64) {
        self.lines.next_word().store(word, Ordering::Relaxed);
    }

    /// The same for several words, a line at a time.
    #[inline(always)]
    pub(super) fn push_all(&mut self, mut words: &[[u8; 8]]) {
        loop {
            let (now, later) = words.split_at(words.len().min(self.lines.words.len()));
            for (word, place) in now.iter().zip(self.lines.words.by_ref()) {
                place.store(u64::from_le_bytes(*word), Ordering::Relaxed);
            }
            if later.is_empty() {
                return;
            }
            words = later;
            self.lines.next_line();
        }
    }
}

/// Takes the words of the record at the head, one after the other.
pub(super) struct Reader<'a, A> {
    lines: Lines<'a, A>,
    next: u64,
}

impl<A: Atomic> Reader<'_, A> {
    #[inline(always)]
    pub(super) fn pop(&mut self) -> u64 {
        self.lines.next_word().load(Ordering::Relaxed)
    }

    /// Frees the lines of the record, after all words were taken; returns how many lines the reader is past then.
    #[inline]
    pub(super) fn free(self) -> u64 {
        self.lines.ring.head.store(self.next, Ordering::Release);
        self.next
    }
}

#[cfg(test)]
mod tests;
