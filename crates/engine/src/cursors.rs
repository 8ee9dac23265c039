//! Cursors of unordered iteration: numbers that stand for places of any kind.
//!
//! A cursor of 64 bits cannot say where among keys of any length an iteration is. So an engine may
//! remember that, for the iterations under way that were last asked to go on. One that is
//! forgotten begins again, which shows records twice and never leaves one out.
//!
//! Of an iteration two places are kept, that where it goes on and the one before it: so it may ask
//! twice for what it was not told, and one that is quick does not make another be forgotten.

use std::collections::VecDeque;

/// Places that are remembered.
const REMEMBERED: usize = 8192;

/// The places where iterations go on.
#[derive(Debug, Default)]
pub struct Cursors<P> {
    last: u64,
    /// Ascending by cursor.
    places: VecDeque<Known<P>>,
}

#[derive(Debug)]
struct Known<P> {
    cursor: u64,
    /// The cursor from which this one was come to.
    before: u64,
    place: P,
}

impl<P: Clone + Default> Cursors<P> {
    /// Those behind this number: of several that go on with each other's cursors, each has its own.
    pub fn behind(last: u64) -> Self {
        Self { last, places: VecDeque::new() }
    }

    /// A cursor that stands for a place, to which an iteration has come that went on from the cursor
    /// `from`. Where that one came from is forgotten.
    pub fn remember(&mut self, from: u64, place: P) -> u64 {
        let before = self.find(from).map(|known| known.before);
        if let Some(at) = before.and_then(|before| self.position(before)) {
            self.places.remove(at);
        }
        if self.places.len() == REMEMBERED {
            self.places.pop_front();
        }
        self.last += 1;
        self.places.push_back(Known { cursor: self.last, before: from, place });
        self.last
    }

    /// The place of a cursor, which stays known, since the same cursor may be asked for twice; the
    /// beginning if it is not known.
    pub fn place_of(&self, cursor: u64) -> P {
        self.find(cursor).map_or_else(P::default, |known| known.place.clone())
    }

    fn position(&self, cursor: u64) -> Option<usize> {
        self.places.binary_search_by_key(&cursor, |known| known.cursor).ok()
    }

    fn find(&self, cursor: u64) -> Option<&Known<P>> {
        self.places.get(self.position(cursor)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_that_is_forgotten_begins_again() {
        let mut cursors = Cursors::default();
        let first = cursors.remember(0, 7_u64);
        assert_eq!((cursors.place_of(first), cursors.place_of(first)), (7, 7));
        assert_eq!((cursors.place_of(0), cursors.place_of(u64::MAX)), (0, 0));
        let last = (0..REMEMBERED as u64).map(|place| cursors.remember(0, place)).last();
        assert_eq!(cursors.place_of(first), 0);
        assert_eq!(cursors.place_of(last.unwrap()), REMEMBERED as u64 - 1);
    }

    #[test]
    fn one_that_is_slow_is_not_forgotten_for_a_quick_one() {
        let mut cursors = Cursors::default();
        let slow = cursors.remember(0, 7_u64);
        let (mut quick, mut before) = (0, 0);
        for place in 1..10 * REMEMBERED as u64 {
            (before, quick) = (quick, cursors.remember(quick, place));
        }
        assert_eq!(cursors.place_of(slow), 7);
        // It may ask again for what it was not told.
        let end = 10 * REMEMBERED as u64 - 1;
        assert_eq!((cursors.place_of(before), cursors.place_of(quick)), (end - 1, end));
        let again = cursors.remember(before, end);
        assert_eq!(cursors.place_of(again), end);
        assert_eq!(cursors.places.len(), 4);
    }
}
