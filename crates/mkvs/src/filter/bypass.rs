//! Whether a group's filter is worth asking before a read.
//!
//! A probe of the filter costs a cache line that is seldom near, about a quarter of a read; it saves the whole read
//! of a key that is not there. So a thread asks while at least one in [`WORTH_ONE_IN`] of its last reads found
//! nothing. Without the filter the result of a read is the same: a device is asked instead.

use std::cell::Cell;

/// Filters are asked while at least one read in so many finds nothing.
const WORTH_ONE_IN: u32 = 8;

/// The share if all reads find nothing.
const ALL: u32 = 1 << 16;

/// About so many reads are remembered (logarithm to base two).
const MEMORY_BITS: u32 = 5;

thread_local! {
    /// The share of the thread's last reads that found nothing, of `ALL`. At first it asks.
    static MISSES: Cell<u32> = const { Cell::new(ALL) };
}

/// True if the thread's next read should ask.
#[inline]
pub(crate) fn is_worth_it() -> bool {
    is_worth(MISSES.get())
}

/// A read of the thread found something, or nothing.
#[inline]
pub(crate) fn note(is_hit: bool) {
    MISSES.set(after(MISSES.get(), is_hit));
}

#[inline]
fn is_worth(misses: u32) -> bool {
    misses >= ALL / WORTH_ONE_IN
}

#[inline]
fn after(misses: u32, is_hit: bool) -> u32 {
    let share = if is_hit { 0 } else { ALL >> MEMORY_BITS };
    misses - (misses >> MEMORY_BITS) + share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_what_it_reads_stops_asking_and_who_does_not_asks_again() {
        let reads_until = |misses: &mut u32, is_hit: bool, is_asking: bool| {
            let mut reads = 0;
            while is_worth(*misses) != is_asking {
                *misses = after(*misses, is_hit);
                reads += 1;
                assert!(reads < 1000 && *misses <= 2 * ALL);
            }
            reads
        };
        let mut misses = ALL;
        assert!(is_worth(misses), "at first");
        assert!((30..200).contains(&reads_until(&mut misses, true, false)));
        (0..10_000).for_each(|_| misses = after(misses, true));
        assert!((2..10).contains(&reads_until(&mut misses, false, true)));
        // One in four finds nothing: worth it for good. One in a hundred: never.
        let steady = |every: u32| {
            let mut misses = ALL;
            (0..10_000).for_each(|read| misses = after(misses, read % every != 0));
            let asked = |read| {
                misses = after(misses, read % every != 0);
                is_worth(misses)
            };
            (0..1000_u32).map(asked).filter(|it| *it).count()
        };
        assert_eq!((steady(4), steady(100)), (1000, 0));
    }
}
