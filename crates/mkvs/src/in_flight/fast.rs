//! Writes that are made on all devices that they wait for at once, and of which it is told without a lock
//! that they are: a stripe says how far they are, and whoever locks its entries next notes it there.

use super::{Entries, Entry, InFlight, Known, Stripe};
use crate::in_flight::track::Way;
use coreplane_pmem::arch::prefetch_all_to_write;
use coreplane_pmem::spin::Held;
use std::sync::atomic::Ordering;

impl InFlight {
    /// A key of this hash is about to be written.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch_all_to_write(&self.stripes[Self::stripe_of(hash)]);
    }

    /// Locks the entries of a stripe, which say what has been made by then.
    #[inline]
    pub(super) fn entries(&self, stripe: usize) -> Held<'_, Entries> {
        let Stripe { entries, made, .. } = &self.stripes[stripe];
        let mut entries = entries.lock();
        let made = made.load(Ordering::Acquire);
        entries.iter_mut().for_each(|entry| entry.note_made(made));
        entries
    }

    /// As [`Self::begin`], of a write that was begun with [`Entry::fast`] and is perhaps on the way to
    /// another device, if all that it waits for have the newest of the key; its number.
    pub(crate) fn begin_fast(&self, entry: Entry, way: Option<Way<'_>>) -> Option<u64> {
        let stripe = Self::stripe_of(entry.hash);
        let mut entries = self.entries(stripe);
        let awaited = entry.write.awaited;
        let is_there = |known: &Entry| {
            let Known { asked: by, done, is_held } = known.known();
            !is_held && awaited == if done == 0 { 1 << by } else { done & awaited }
        };
        let known = entries.iter().find(|known| known.hash == entry.hash);
        let is_plain = known.is_none_or(is_there);
        is_plain.then(|| self.begin_in(stripe, &mut entries, entry, way))
    }

    /// All devices that a write of a key waits for have it, which was begun with [`Entry::fast`] and has
    /// this number. For whoever has the key lock: a plain store, since a lock would wait for the fence.
    #[inline]
    pub(crate) fn made(&self, hash: u64, number: u64) {
        self.stripes[Self::stripe_of(hash)].made.store(number, Ordering::Release);
    }

    /// Nobody will say with [`Self::made`] that a write was made, and it is not on the way.
    #[cold]
    pub(crate) fn stay(&self, hash: u64) {
        self.end(hash, |entry| {
            (entry.write.on_the_way, entry.write.awaited) = (None, 0);
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Current, STRIPES};
    use super::*;
    use crate::in_flight::track::Track;
    use std::sync::Arc;

    /// A write that waits for one device, is told of without the lock, and was given to the ring before.
    #[test]
    fn a_plain_write_is_seen_when_it_is_made_and_not_before() {
        let in_flight = InFlight::new();
        let track = Arc::new(Track::new());
        let plain = |hash, sequence, place| {
            let way = Way { track: &track, place, number: 0 };
            in_flight.begin_fast(Entry::fast((hash, sequence), (1, 0b10), 0b11), Some(way))
        };
        let current = || in_flight.current(7, 0b11);
        let first = plain(7, 1, 2).expect("nothing is there");
        assert_eq!(current(), Current::Ask(1));
        // A processor that is past the place has not made what was not made.
        track.come_to(2);
        assert_eq!(current(), Current::Ask(1));
        in_flight.made(7, first);
        assert_eq!(current(), Current::All);
        assert!(in_flight.is_quiet(7));
        // It comes to the other one later; and another of the stripe says nothing of it.
        let second = plain(7, 2, 4).expect("all have it");
        let other = plain(7 + STRIPES as u64, 3, 6).expect("another key");
        in_flight.made(7, second);
        assert_eq!(current(), Current::Some(0b10));
        assert_eq!(in_flight.current(7 + STRIPES as u64, 0b11), Current::Ask(1));
        in_flight.made(7, other);
        track.come_to(6);
        assert_eq!((current(), in_flight.is_quiet(7)), (Current::All, true));
        // One that is refused leaves what was before, whatever is made after it.
        let third = plain(7, 4, 8).expect("all have it");
        in_flight.made(7, third);
        let fourth = plain(7, 5, 10).expect("the one that is asked has it");
        in_flight.stay(7);
        in_flight.refuse(7, 0b11);
        in_flight.made(7, fourth);
        assert_eq!(current(), Current::Some(0b10));
        // Nor is one made that nobody has said it of, when others are.
        plain(7, 6, 12).expect("the one that is asked has it");
        in_flight.stay(7);
        let other = plain(7 + STRIPES as u64, 7, 14).expect("another key");
        in_flight.made(7, other);
        track.come_to(14);
        assert_eq!(current(), Current::Ask(1));
        // Where another has the newest it is left alone.
        in_flight.done(7, 6, 0b01, 0b11);
        assert_eq!(plain(7, 8, 16), None);
    }
}
