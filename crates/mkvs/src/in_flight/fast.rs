//! Writes whose awaited devices all get them together, and that are reported as made without a lock: the writer
//! stores the number of the last such write in the stripe, and the next thread that locks the entries notes it
//! there.

use super::{Entries, Entry, Hashed, InFlight, Stripe};
use crate::in_flight::track::{OnTheWay, Way};
use crate::shape::Devices;
use coreplane_pmem::arch::prefetch_all_to_write;
use coreplane_pmem::mutant;
use coreplane_pmem::spin::Held;
use std::sync::atomic::Ordering;

/// A write that the devices that it waits for are about to get together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FastWrite<'a> {
    pub(crate) key: Hashed<'a>,
    pub(crate) sequence: u64,
    /// The device to read until the write is made; it waits for this one.
    pub(crate) asked: u8,
    /// The devices that it waits for.
    pub(crate) awaited: Devices,
    /// The devices that get it.
    pub(crate) members: Devices,
}

impl InFlight {
    /// A key of this hash is about to be written.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch_all_to_write(&self.stripes[Self::stripe_of(hash)]);
    }

    /// Locks the entries of a stripe, after which they contain the writes that were made by then.
    #[inline]
    pub(super) fn entries(&self, stripe: usize) -> Held<'_, Entries> {
        let Stripe { entries, made, .. } = &self.stripes[stripe];
        let mut entries = entries.lock();
        let made = made.load(Ordering::Acquire);
        entries.iter_mut().for_each(|entry| entry.note_made(made));
        entries
    }

    /// As [`Self::begin`], for a fast write that is perhaps on the way to another device; its number. None if not
    /// all devices that it waits for have the newest record of the key.
    pub(crate) fn begin_fast(&self, write: &FastWrite<'_>, way: Option<Way<'_>>) -> Option<u64> {
        let (stripe, id) = (Self::stripe_of(write.key.0), self.secret.id_of(write.key));
        let mut entries = self.entries(stripe);
        let is_there = |known: &Entry| known.current() & write.awaited == write.awaited;
        if let Some(entry) = entries.only() {
            if entry.id == id && !is_there(entry) {
                return None;
            }
            if entry.will_be_over() || mutant!("mkvs.entry.not_over") {
                let number = self.next_number(stripe);
                entry.become_fast((write, id), number, way);
                self.count(stripe, 1, 1);
                return Some(number);
            }
        } else if let Some(vacant) = entries.vacant() {
            let number = self.next_number(stripe);
            let entry = vacant.insert(Entry::fast(write, id));
            entry.write.number = number;
            entry.write.on_the_way = way.map(OnTheWay::from);
            self.count(stripe, 1, 1);
            return Some(number);
        } else {
            let known = entries.iter().find(|known| known.id == id);
            if !known.is_none_or(is_there) {
                return None;
            }
        }
        Some(self.begin_in(stripe, &mut entries, Entry::fast(write, id), way))
    }

    /// Reports that all devices that a write waits for have it; the write was begun with [`Self::begin_fast`] and
    /// has this number. For the holder of the key lock: a plain store, since a lock would wait for the fence.
    #[inline]
    pub(crate) fn made(&self, hash: u64, number: u64) {
        self.stripes[Self::stripe_of(hash)].made.store(number, Ordering::Release);
    }

    /// The write will not be reported with [`Self::made`], and is not on the way.
    #[cold]
    pub(crate) fn stay(&self, key: Hashed<'_>) {
        self.end(key, |entry| {
            (entry.write.on_the_way, entry.write.awaited) = (None, 0);
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::key_id::keyed;
    use crate::in_flight::track::Track;
    use std::sync::Arc;

    /// A write that waits for one device, is reported without the lock, and whose place in the ring was taken before.
    #[test]
    fn a_plain_write_is_seen_when_it_is_made_and_not_before() {
        let in_flight = InFlight::new();
        let track = Arc::new(Track::new());
        let plain = |hash, sequence, place| {
            let way = Way { track: &track, place, number: 0 };
            let (asked, awaited, members) = (1, 0b10, 0b11);
            let key = keyed(hash);
            let write = FastWrite { key, sequence, asked, awaited, members };
            in_flight.begin_fast(&write, Some(way))
        };
        let current = || in_flight.current(keyed(7), 0b11);
        let first = plain(7, 1, 2).expect("nothing is there");
        assert_eq!(current(), 1 << 1);
        // A processor that is past the place has not made a write that was not made on the awaited device.
        track.come_to(2);
        assert_eq!(current(), 1 << 1);
        in_flight.made(7, first);
        assert_eq!(current(), 0b11);
        assert!(in_flight.is_quiet(7));
        // It comes to the other device later; another write of the stripe says nothing about it.
        let second = plain(7, 2, 4).expect("all have it");
        let other = plain(8, 3, 6).expect("another key");
        in_flight.made(7, second);
        assert_eq!(current(), 0b10);
        assert_eq!(in_flight.current(keyed(8), 0b11), 1 << 1);
        in_flight.made(7, other);
        track.come_to(6);
        assert_eq!((current(), in_flight.is_quiet(7)), (0b11, true));
        // A write that is refused leaves the write before it, whatever is made after it.
        let third = plain(7, 4, 8).expect("all have it");
        in_flight.made(7, third);
        let fourth = plain(7, 5, 10).expect("the one that is asked has it");
        in_flight.stay(keyed(7));
        in_flight.refuse(keyed(7), 0b11);
        in_flight.made(7, fourth);
        assert_eq!(current(), 0b10);
        // A write that was never reported is not taken for made when others are.
        plain(7, 6, 12).expect("the one that is asked has it");
        in_flight.stay(keyed(7));
        let other = plain(8, 7, 14).expect("another key");
        in_flight.made(7, other);
        track.come_to(14);
        assert_eq!(current(), 1 << 1);
        // A fast write is declined where another device has the newest record.
        in_flight.done(keyed(7), 6, 0b01, 0b11);
        assert_eq!(plain(7, 8, 16), None);
    }
}
