//! A list that only grows, and whose entries stay where they are: read without a lock.
//!
//! ```text
//!   0..16   16..48   48..112   …    rows, each twice as long as the one before, made when they are needed
//! ```

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Entries of the first row, which is there from the beginning.
const FIRST: u32 = 16;

/// Rows: together they have room for more than 2^31 entries.
const ROWS: usize = 27;

type Row<T> = Box<[OnceLock<T>]>;

/// The list.
pub(crate) struct AppendList<T> {
    first: [OnceLock<T>; FIRST as usize],
    more: [OnceLock<Row<T>>; ROWS],
    /// Entries that were added, or are being added.
    len: AtomicU32,
}

/// The row of an entry beyond the first row, and its place in that row.
fn place_of(number: u32) -> (usize, usize) {
    // Row r begins at FIRST x (2^(r+1) - 1).
    let row = (number / FIRST + 1).ilog2() - 1;
    let begin = FIRST * ((2 << row) - 1);
    (row as usize, (number - begin) as usize)
}

impl<T> AppendList<T> {
    pub(crate) fn new() -> Self {
        Self {
            first: [const { OnceLock::new() }; FIRST as usize],
            more: [const { OnceLock::new() }; ROWS],
            len: AtomicU32::new(0),
        }
    }

    /// Adds an entry; its number.
    pub(crate) fn push(&self, entry: T) -> u32 {
        let number = self.len.fetch_add(1, Ordering::AcqRel);
        let place = match self.first.get(number as usize) {
            Some(place) => place,
            None => {
                let (row, at) = place_of(number);
                let len = (FIRST as usize) << (row + 1);
                let make = || (0..len).map(|_| OnceLock::new()).collect();
                &self.more[row].get_or_init(make)[at]
            }
        };
        // No other thread has the number.
        let _placed = place.set(entry).is_ok();
        number
    }

    /// The entry of a number.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        match self.first.get(number as usize) {
            Some(place) => place.get(),
            None => self.get_beyond(number),
        }
    }

    fn get_beyond(&self, number: u32) -> Option<&T> {
        if number >= self.len.load(Ordering::Acquire) {
            return None;
        }
        let (row, at) = place_of(number);
        self.more.get(row)?.get()?.get(at)?.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_their_numbers_and_stay_where_they_are() {
        let list = AppendList::new();
        let mut places = Vec::new();
        for number in 0..1000 {
            assert_eq!((list.get(number), list.push(number)), (None, number));
            places.push(list.get(number).map(std::ptr::from_ref));
        }
        for (number, place) in (0..).zip(places) {
            assert_eq!(list.get(number), Some(&number));
            assert_eq!(list.get(number).map(std::ptr::from_ref), place);
        }
        assert_eq!(list.get(u32::MAX), None);
    }
}
