//! A table of counters, which does not grow.

use super::Atomic;
use crate::filter::counters;
use crate::filter::marks::{Marks, WORDS, line_of};
use coreplane_pmem::arch::{prefetch, prefetch_to_write};
use coreplane_pmem::huge;
use coreplane_pmem::stripes::Stripes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Keys a line at the design load, at which less than one probe in a hundred is wrong.
pub const KEYS_PER_LINE: u64 = 10;

/// The counters of some keys: a cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct Line<A>([A; WORDS]);

const _: () = assert!(size_of::<Line<AtomicU64>>() == 64);

#[derive(Debug)]
pub(crate) struct Table<A> {
    lines: huge::Table<Line<A>>,
    /// Keys that were added less those that were taken.
    tally: Stripes<1>,
    /// Bytes of all tables of the filter.
    footprint: Arc<AtomicU64>,
}

impl<A: Atomic> Table<A> {
    /// A table for `capacity` keys, whose bytes are in `footprint` as long as it lives.
    pub(in crate::filter) fn new(
        capacity: u64,
        footprint: &Arc<AtomicU64>,
    ) -> Result<Self, huge::NoMemory> {
        let lines = usize::try_from(capacity.div_ceil(KEYS_PER_LINE).max(1)).unwrap_or(usize::MAX);
        let line = || Line(std::array::from_fn(|_| A::new(0)));
        let lines = huge::Table::new(lines, line)?;
        footprint.fetch_add(lines.bytes(), Ordering::Relaxed);
        Ok(Self { lines, tally: Stripes::default(), footprint: Arc::clone(footprint) })
    }

    /// Keys that it has room for at the design load.
    pub(crate) fn capacity(&self) -> u64 {
        self.lines.len() as u64 * KEYS_PER_LINE
    }

    /// Keys that it counts.
    pub(crate) fn len(&self) -> u64 {
        self.tally.get(0).max(0) as u64
    }

    #[inline]
    fn line(&self, hash: u64) -> &[A; WORDS] {
        &self.lines[line_of(hash, self.lines.len())].0
    }

    /// Prefetches the line of a key that will be counted.
    #[inline]
    pub(in crate::filter) fn prefetch(&self, hash: u64) {
        prefetch_to_write(self.line(hash));
    }

    /// Prefetches the line of a key that will be looked up.
    #[inline]
    pub(in crate::filter) fn prefetch_to_read(&self, hash: u64) {
        prefetch(self.line(hash));
    }

    #[inline]
    pub(in crate::filter) fn may_contain(&self, hash: u64) -> bool {
        has_marks(self.line(hash), Marks::of(hash))
    }

    /// Counts a key.
    #[inline]
    pub(in crate::filter) fn add(&self, hash: u64) {
        self.add_marks(self.line(hash), Marks::of(hash));
    }

    /// Counts a key, unless the table says that it may be there; true if it has counted it.
    #[inline]
    pub(in crate::filter) fn add_absent(&self, hash: u64) -> bool {
        let (line, marks) = (self.line(hash), Marks::of(hash));
        let is_absent = !has_marks(line, marks);
        if is_absent {
            self.add_marks(line, marks);
        }
        is_absent
    }

    #[inline]
    fn add_marks(&self, line: &[A; WORDS], marks: Marks) {
        for (word, marks) in marks.words {
            update(&line[word], |value| counters::raised(value, marks));
        }
        self.tally.add(0, 1);
    }

    /// Takes back the count of a key that was counted. A key that was not, since damage had hidden it when keys were
    /// listed, changes nothing: to lower the counters of others would deny them.
    #[inline]
    pub(in crate::filter) fn take(&self, hash: u64) {
        let (line, marks) = (self.line(hash), Marks::of(hash));
        if !has_marks(line, marks) {
            return;
        }
        for (word, marks) in marks.words {
            update(&line[word], |value| counters::lowered(value, marks));
        }
        self.tally.add(0, -1);
    }
}

/// Tables as they are stored, in whole lines, while no thread counts.
impl Table<AtomicU64> {
    /// Bytes of the counters.
    pub(crate) fn len_bytes(&self) -> u64 {
        size_of_val(&*self.lines) as u64
    }

    fn words_from(&self, offset: u64) -> impl Iterator<Item = &AtomicU64> {
        let line = (offset as usize / size_of::<Line<AtomicU64>>()).min(self.lines.len());
        self.lines[line..].iter().flat_map(|line| &line.0)
    }

    /// The counters from `offset` on, at most so many bytes of them.
    pub(crate) fn read(&self, offset: u64, len: usize, to: &mut Vec<u8>) {
        to.clear();
        let words = self.words_from(offset).take(len / 8);
        to.extend(words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()));
    }

    /// Sets the counters from `offset` on; false if there are not so many.
    pub(in crate::filter) fn restore(&self, offset: u64, bytes: &[u8]) -> bool {
        let (whole, rest) = bytes.as_chunks::<8>();
        let end = offset.saturating_add(bytes.len() as u64);
        if !rest.is_empty() || !offset.is_multiple_of(64) || end > self.len_bytes() {
            return false;
        }
        for (word, bytes) in self.words_from(offset).zip(whole) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        true
    }

    /// Adds the number of keys that the restored counters count.
    pub(in crate::filter) fn restored(&self, keys: u64) {
        self.tally.add(0, keys as i64);
    }
}

impl<A> Drop for Table<A> {
    fn drop(&mut self) {
        self.footprint.fetch_sub(self.lines.bytes(), Ordering::Relaxed);
    }
}

/// True if all counters of a key are above 0.
#[inline]
fn has_marks<A: Atomic>(line: &[A; WORDS], marks: Marks) -> bool {
    // Nine in ten absent keys are recognised by the first word.
    let mut words = marks.words.into_iter();
    words.all(|(word, marks)| counters::has_all(line[word].load(Ordering::Relaxed), marks))
}

/// One compare-and-swap for all counters of the word; none if they stay as they are. The order is
/// relaxed: that a later look sees it follows from the coherence of the word alone.
#[inline]
fn update<A: Atomic>(word: &A, change: impl Fn(u64) -> u64) {
    let mut value = word.load(Ordering::Relaxed);
    loop {
        let changed = change(value);
        if changed == value {
            return;
        }
        match word.replace(value, changed) {
            Ok(_) => return,
            Err(seen) => value = seen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// The same table, a counter at a time.
    #[derive(Default)]
    struct Twin(BTreeMap<(usize, usize, u32), u64>);

    impl Twin {
        fn places(hash: u64, lines: usize) -> impl Iterator<Item = (usize, usize, u32)> {
            let line = line_of(hash, lines);
            Marks::of(hash).words.into_iter().flat_map(move |(word, marks)| {
                (0..16).filter(move |at| marks >> (4 * at) & 1 == 1).map(move |at| (line, word, at))
            })
        }

        fn change(&mut self, hash: u64, lines: usize, by: impl Fn(u64) -> u64) {
            for place in Self::places(hash, lines) {
                let count = self.0.entry(place).or_default();
                // A full counter stays full.
                *count = if *count == 15 { 15 } else { by(*count) };
            }
        }

        fn may_contain(&self, hash: u64, lines: usize) -> bool {
            Self::places(hash, lines).all(|place| self.0.get(&place).is_some_and(|it| *it > 0))
        }
    }

    proptest! {
        /// Three lines for fifty keys: most counters are shared, and many come to their end.
        #[test]
        fn a_table_counts_as_its_twin_and_denies_nothing(
            steps in proptest::collection::vec((0_u64..50, 1_usize..20, 0..3), 1..200),
        ) {
            let table = Table::<AtomicU64>::new(30, &Arc::default()).unwrap();
            let mut twin = Twin::default();
            let mut there = [0_usize; 50];
            for (key, times, step) in steps {
                let is_insert = step > 0;
                let hash = xxhash_rust::xxh3::xxh3_64(&key.to_le_bytes());
                let held = &mut there[key as usize];
                let times = if is_insert { times } else { times.min(*held) };
                for _ in 0..times {
                    if is_insert {
                        let is_counted = step == 1 || !twin.may_contain(hash, 3);
                        if step == 1 {
                            table.add(hash);
                        } else {
                            prop_assert_eq!(table.add_absent(hash), is_counted);
                        }
                        if is_counted {
                            twin.change(hash, 3, |count| count + 1);
                            *held += 1;
                        }
                    } else {
                        table.take(hash);
                        twin.change(hash, 3, |count| count - 1);
                        *held -= 1;
                    }
                }
                prop_assert_eq!(table.len(), there.iter().sum::<usize>() as u64);
                for (key, held) in there.iter().enumerate() {
                    let hash = xxhash_rust::xxh3::xxh3_64(&(key as u64).to_le_bytes());
                    let answer = table.may_contain(hash);
                    prop_assert!(answer || *held == 0, "key {} was denied", key);
                    prop_assert_eq!(answer, twin.may_contain(hash, 3));
                }
            }
        }
    }
}
