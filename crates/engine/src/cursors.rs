//! Cursors of unordered iteration: numbers that stand for places of any kind.
//!
//! A cursor of 64 bits cannot express a place among keys of any length. So an engine may remember
//! the places of the iterations that went on most recently. An iteration whose place is forgotten
//! begins again: it shows records twice and never omits one.
//!
//! The places that are least likely to be asked for are forgotten first: those from which an iteration has already
//! gone on or ended. So a quick iteration does not make the engine forget the place of a slow one.

use std::collections::VecDeque;

/// Places that are remembered.
const REMEMBERED: usize = 4096;

/// The places from which iterations go on.
#[derive(Debug, Default)]
pub struct Cursors<P> {
    last: u64,
    /// Ascending by cursor.
    places: VecDeque<Known<P>>,
}

#[derive(Debug)]
struct Known<P> {
    cursor: u64,
    place: P,
    /// An iteration has already gone on from here or ended, or none is likely to go on from here.
    is_spare: bool,
}

impl<P: Clone + Default> Cursors<P> {
    /// An empty set that numbers its cursors from `last` on: several engines, each of which may receive the
    /// cursors of another, use distinct numbers.
    pub fn behind(last: u64) -> Self {
        Self { last, places: VecDeque::new() }
    }

    /// Returns a cursor for the place that an iteration has reached from the cursor `from`.
    pub fn remember(&mut self, from: u64, place: P) -> u64 {
        // A caller that begins at an arbitrary number used a cursor that was never given out, and is not expected to
        // go on.
        let is_spare = from > self.last;
        self.end(from);
        if self.places.len() == REMEMBERED {
            let spare = self.places.iter().position(|known| known.is_spare);
            self.places.remove(spare.unwrap_or(0));
        }
        self.last += 1;
        self.places.push_back(Known { cursor: self.last, place, is_spare });
        self.last
    }

    /// Notes that the iteration that went on from the cursor `from` has ended.
    pub fn end(&mut self, from: u64) {
        let known = self.position(from).and_then(|at| self.places.get_mut(at));
        if let Some(known) = known {
            known.is_spare = true;
        }
    }

    /// The place of a cursor, or the beginning if it is not known. The place stays known, since the
    /// same cursor may be used twice.
    pub fn place_of(&self, cursor: u64) -> P {
        let known = self.position(cursor).and_then(|at| self.places.get(at));
        known.map_or_else(P::default, |known| known.place.clone())
    }

    fn position(&self, cursor: u64) -> Option<usize> {
        self.places.binary_search_by_key(&cursor, |known| known.cursor).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: u64 = 3 * REMEMBERED as u64;

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
    fn one_that_is_slow_is_not_forgotten_for_those_that_are_quick() {
        let mut cursors = Cursors::default();
        let slow = cursors.remember(0, 7_u64);
        let mut all = vec![0];
        for place in 1..MANY {
            all.push(cursors.remember(all[all.len() - 1], place));
        }
        assert_eq!(cursors.place_of(slow), 7);
        // It may go on again, also from a cursor of some steps before.
        let then = all.len() - 1000;
        assert_eq!(cursors.place_of(all[then]), then as u64);
        // Other iterations end, or begin at arbitrary cursors.
        for place in 1..MANY {
            let short = cursors.remember(0, place);
            cursors.end(short);
            cursors.remember(u64::MAX - place, place);
        }
        assert_eq!(cursors.place_of(slow), 7);
    }
}
