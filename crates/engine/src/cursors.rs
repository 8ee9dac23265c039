//! Cursors of unordered iteration: numbers that stand for places of any kind.
//!
//! A cursor of 64 bits cannot say where among keys of any length an iteration is. So an engine may
//! remember that, for the iterations under way that were last asked to go on. One that is
//! forgotten begins again, which shows records twice and never leaves one out.
//!
//! What is forgotten first is what nobody is likely to ask for: places from which an iteration has
//! gone on, or behind which one has ended. So one that is quick does not make a slow one be forgotten.

use std::collections::VecDeque;

/// Places that are remembered.
const REMEMBERED: usize = 4096;

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
    place: P,
    /// It was gone on from, or nobody goes on from it.
    is_spare: bool,
}

impl<P: Clone + Default> Cursors<P> {
    /// Those behind this number: of several that go on with each other's cursors, each has its own.
    pub fn behind(last: u64) -> Self {
        Self { last, places: VecDeque::new() }
    }

    /// A cursor that stands for a place, to which an iteration has come that went on from the cursor
    /// `from`.
    pub fn remember(&mut self, from: u64, place: P) -> u64 {
        // Whoever begins anywhere has a cursor that was never given out, and does not come back.
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

    /// An iteration that went on from the cursor `from` has come to its end.
    pub fn end(&mut self, from: u64) {
        let known = self.position(from).and_then(|at| self.places.get_mut(at));
        if let Some(known) = known {
            known.is_spare = true;
        }
    }

    /// The place of a cursor, which stays known, since the same cursor may be asked for twice; the
    /// beginning if it is not known.
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
        // It may ask again, also where it was some steps before.
        let then = all.len() - 1000;
        assert_eq!(cursors.place_of(all[then]), then as u64);
        // Others end, or begin anywhere.
        for place in 1..MANY {
            let short = cursors.remember(0, place);
            cursors.end(short);
            cursors.remember(u64::MAX - place, place);
        }
        assert_eq!(cursors.place_of(slow), 7);
    }
}
