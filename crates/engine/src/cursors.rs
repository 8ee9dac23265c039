//! Cursors of unordered iteration: numbers that stand for places of any kind.
//!
//! A cursor of 64 bits cannot express a place among keys of any length. So an engine may remember
//! the places that iterations reached most recently. An iteration whose place is forgotten
//! begins again: it shows records twice and never omits one.
//!
//! So that each iteration comes to its end whatever others do:
//!
//! - A place has one cursor, whichever iterations reach it: those that only begin take one place together.
//! - The places that are least likely to be asked for are forgotten first: those from which all iterations have gone on
//!   or ended; then those that one step from the beginning leads to again.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Places that are remembered; each time there are so many, half of them are forgotten.
const REMEMBERED: usize = 4096;

/// The places from which iterations go on.
#[derive(Debug, Default)]
pub struct Cursors<P> {
    /// The cursor that was given to the newest place.
    last: u64,
    /// Counts the calls that gave a cursor.
    now: u64,
    places: BTreeMap<u64, Known<P>>,
    cursors: BTreeMap<Arc<P>, u64>,
}

#[derive(Debug)]
struct Known<P> {
    place: Arc<P>,
    /// The number of iterations that are likely to go on from here.
    waiting: u32,
    /// An iteration came here from another place than the beginning.
    is_far: bool,
    /// When its cursor was given last.
    given: u64,
    /// The cursor that was last given to an iteration that went on from here.
    next: u64,
}

impl<P> Known<P> {
    /// Greater for a place that is more likely to be asked for, or harder to reach again.
    fn rank(&self) -> (bool, bool, u64) {
        (self.waiting > 0, self.is_far, self.given)
    }
}

impl<P: Clone + Default + Ord> Cursors<P> {
    /// An empty set that numbers its cursors from `last` on: several engines, each of which may receive the
    /// cursors of another, use distinct numbers.
    pub fn behind(last: u64) -> Self {
        Self { last, now: 0, places: BTreeMap::new(), cursors: BTreeMap::new() }
    }

    /// Returns a cursor for the place that an iteration has reached from the cursor `from`.
    pub fn remember(&mut self, from: u64, place: P) -> u64 {
        // A caller that begins at an arbitrary number used a cursor that was never given out, and is not expected to
        // go on.
        let goes_on = from <= self.last;
        let cursor = self.cursor_of(place);
        self.leave(from, cursor);
        self.now += 1;
        if let Some(known) = self.places.get_mut(&cursor) {
            known.waiting = known.waiting.saturating_add(goes_on.into());
            known.is_far |= from != 0;
            known.given = self.now;
        }
        cursor
    }

    /// Notes that the iteration that went on from the cursor `from` has ended.
    pub fn end(&mut self, from: u64) {
        self.leave(from, 0);
    }

    /// The place of a cursor, or the beginning if it is not known. The place stays known, since the
    /// same cursor may be used twice.
    pub fn place_of(&self, cursor: u64) -> P {
        self.places.get(&cursor).map_or_else(P::default, |known| (*known.place).clone())
    }

    fn cursor_of(&mut self, place: P) -> u64 {
        if let Some(cursor) = self.cursors.get(&place) {
            return *cursor;
        }
        if self.places.len() == REMEMBERED {
            self.forget_half();
        }
        self.last += 1;
        let place = Arc::new(place);
        self.cursors.insert(Arc::clone(&place), self.last);
        let known = Known { place, waiting: 0, is_far: false, given: 0, next: 0 };
        self.places.insert(self.last, known);
        self.last
    }

    /// An iteration leaves the cursor `from` and gets the cursor `next`, or 0 at its end.
    fn leave(&mut self, from: u64, next: u64) {
        let Some(known) = self.places.get_mut(&from) else { return };
        let is_again = known.waiting == 0;
        known.waiting = known.waiting.saturating_sub(1);
        let before = std::mem::replace(&mut known.next, next);
        // One that asks again from the same cursor does not go on from the place that it got before.
        if is_again && let Some(known) = self.places.get_mut(&before) {
            known.waiting = known.waiting.saturating_sub(1);
        }
    }

    fn forget_half(&mut self) {
        let mut ranks: Vec<_> = self.places.values().map(Known::rank).collect();
        let half = ranks.len() / 2;
        let least = *ranks.select_nth_unstable(half).1;
        self.places.retain(|_, known| known.rank() >= least);
        self.cursors.retain(|_, cursor| self.places.contains_key(cursor));
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
        let last = (8..=MANY).map(|place| cursors.remember(0, place)).last();
        assert_eq!(cursors.place_of(first), 0);
        assert_eq!(cursors.place_of(last.unwrap()), MANY);
        assert!(cursors.places.len() <= REMEMBERED);
        assert_eq!(cursors.places.len(), cursors.cursors.len());
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

    #[test]
    fn one_that_is_slow_is_not_forgotten_for_those_that_only_begin() {
        let mut cursors = Cursors::default();
        let slow = cursors.remember(0, 7_u64);
        let others = |cursors: &mut Cursors<u64>| {
            for _ in 0..MANY {
                // Some make a second step, and are left then.
                let begun = cursors.remember(0, 1);
                cursors.remember(begun, 2);
            }
        };
        others(&mut cursors);
        assert_eq!(cursors.place_of(slow), 7);
        let slow = cursors.remember(slow, 8);
        others(&mut cursors);
        // Each begins in another way.
        (100..MANY).for_each(|place| _ = cursors.remember(0, place));
        assert_eq!(cursors.place_of(slow), 8);
        // One that has to begin again is not forgotten any more.
        let lost = cursors.remember(0, 9);
        (100..2 * MANY).for_each(|place| _ = cursors.remember(0, place));
        assert_eq!(cursors.place_of(lost), 0);
        let again = cursors.remember(lost, 9);
        (100..2 * MANY).for_each(|place| _ = cursors.remember(0, place));
        assert_eq!(cursors.place_of(again), 9);
    }

    #[test]
    fn one_that_is_slow_is_not_forgotten_for_those_that_ask_again() {
        let mut cursors = Cursors::default();
        let slow = cursors.remember(0, 1);
        let slow = cursors.remember(slow, 7_u64);
        let mut from = cursors.remember(0, 2);
        for step in 10..MANY {
            // Three steps of other lengths before the right one.
            (1..=3).for_each(|part| _ = cursors.remember(from, 10 * step + part));
            from = cursors.remember(from, 10 * step);
        }
        assert_eq!(cursors.place_of(slow), 7);
    }
}
