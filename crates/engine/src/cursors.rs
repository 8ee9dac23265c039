//! Cursors of unordered iteration: numbers that stand for places of any kind.
//!
//! A cursor of 64 bits cannot say where among keys of any length an iteration is. So an engine may
//! remember that, for the iterations under way that were last asked to go on. One that is
//! forgotten begins again, which shows records twice and never leaves one out.

use std::collections::VecDeque;

/// Iterations that are remembered.
const REMEMBERED: usize = 4096;

/// The places where iterations go on.
#[derive(Debug, Default)]
pub struct Cursors<P> {
    last: u64,
    places: VecDeque<(u64, P)>,
}

impl<P: Clone + Default> Cursors<P> {
    /// Those behind this number: of several that go on with each other's cursors, each has its own.
    pub fn behind(last: u64) -> Self {
        Self { last, places: VecDeque::new() }
    }

    /// A cursor that stands for a place.
    pub fn remember(&mut self, place: P) -> u64 {
        if self.places.len() == REMEMBERED {
            self.places.pop_front();
        }
        self.last += 1;
        self.places.push_back((self.last, place));
        self.last
    }

    /// The place of a cursor, which stays known, since the same cursor may be asked for twice; the
    /// beginning if it is not known.
    pub fn place_of(&self, cursor: u64) -> P {
        let known = self.places.binary_search_by_key(&cursor, |(cursor, _)| *cursor);
        known.map_or_else(|_| P::default(), |at| self.places[at].1.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_that_is_forgotten_begins_again() {
        let mut cursors = Cursors::default();
        let first = cursors.remember(7_u64);
        assert_eq!((cursors.place_of(first), cursors.place_of(first)), (7, 7));
        assert_eq!((cursors.place_of(0), cursors.place_of(u64::MAX)), (0, 0));
        let last = (0..REMEMBERED as u64).map(|place| cursors.remember(place)).last();
        assert_eq!(cursors.place_of(first), 0);
        assert_eq!(cursors.place_of(last.unwrap()), REMEMBERED as u64 - 1);
    }
}
