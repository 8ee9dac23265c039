//! A list that only grows, and whose entries stay where they are: read without a lock.

use std::sync::OnceLock;

/// Entries of a chunk.
const CHUNK: usize = 64;

/// The list: a chain of chunks, each made when it is needed.
pub(crate) struct AppendList<T> {
    entries: [OnceLock<T>; CHUNK],
    next: OnceLock<Box<Self>>,
}

impl<T> AppendList<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: [const { OnceLock::new() }; CHUNK], next: OnceLock::new() }
    }

    /// Adds an entry; its number.
    pub(crate) fn push(&self, mut entry: T) -> u32 {
        let (mut chunk, mut number) = (self, 0);
        loop {
            for place in &chunk.entries {
                match place.set(entry) {
                    Ok(()) => return number,
                    Err(unplaced) => entry = unplaced,
                }
                number += 1;
            }
            chunk = chunk.next.get_or_init(|| Box::new(Self::new()));
        }
    }

    /// The entry of a number.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let (mut chunk, mut at) = (self, number as usize);
        while at >= CHUNK {
            chunk = chunk.next.get()?;
            at -= CHUNK;
        }
        chunk.entries[at].get()
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
