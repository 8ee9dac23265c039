//! Writes that were neither made nor taken back, and writes that a device has not made although it could not be
//! left out: their keys are *in doubt*.
//!
//! A key is in doubt as long as its entry says so, which is until every device of the group has the same record of
//! it again: a later write that comes to all of them, or the scrub, achieves that. Meanwhile a reader of many keys
//! is told which devices have the newest record of every key that it has read. Other readers are not concerned.

use super::{Devices, Entry, GIVEN_UP, Hashed, InFlight, MADE, Write};
use coreplane_engine::UnixMillis;
use std::sync::atomic::Ordering;

/// A value and its expiry, or none.
pub(crate) type Old = Option<(Vec<u8>, Option<UnixMillis>)>;

/// Why a key is in doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Indeterminate {
    pub(crate) group: u16,
    pub(crate) key: Vec<u8>,
    /// The sequence of the first write in doubt.
    pub(crate) sequence: u64,
    /// Set if a write was made that could not be taken back; else a device lacks the newest record.
    pub(crate) torn: Option<Torn>,
}

/// A write that was neither made nor taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Torn {
    /// The devices on which it was made.
    pub(crate) made: Devices,
    /// The device that readers were asked to read.
    pub(crate) asked: u8,
    /// The record before the write, if it is known.
    pub(crate) old: Option<Old>,
    /// The sequence of that record.
    pub(crate) known: u64,
}

impl Entry {
    /// The key is in doubt, from this write on.
    fn doubt(&mut self, (group, key): (u16, &[u8]), sequence: u64, torn: Option<Torn>) {
        match &mut self.doubt {
            Some(known) => {
                known.sequence = known.sequence.min(sequence);
                known.torn = torn.or(known.torn.take());
            }
            none => {
                let key = key.to_vec();
                *none = Some(Box::new(Indeterminate { group, key, sequence, torn }));
            }
        }
    }

    /// The devices that have the record that a reader of the key is shown.
    fn sure(&mut self) -> Devices {
        let made = |write: &mut Write| {
            write.look();
            write.done & MADE
        };
        match (made(&mut self.write), &mut self.before) {
            // A write that has begun over it is only on devices that had the newest record before.
            (0, Some(before)) if self.write.done == 0 => made(before),
            (done, _) => done,
        }
    }
}

impl InFlight {
    /// A write was neither made nor taken back everywhere: the state of the key is unknown.
    pub(crate) fn fail(&self, group: u16, key: Hashed<'_>, torn: Torn) {
        let _doubting = self.doubting.lock();
        self.end(key, |entry| {
            let sequence = entry.write.sequence;
            self.doubt.fetch_min(sequence, Ordering::AcqRel);
            entry.doubt((group, key.1), sequence, Some(torn));
            (entry.write.done, entry.write.on_the_way) = (!MADE, None);
            (entry.is_held, entry.before) = (false, None);
            false
        });
    }

    /// A device that should have followed a write has failed to make it, and could not be left out.
    pub(crate) fn give_up(&self, group: u16, key: Hashed<'_>, sequence: u64, device: u8) {
        let _doubting = self.doubting.lock();
        let given_up = 1 << (GIVEN_UP + u32::from(device));
        self.end(key, |entry| {
            // If the write has no entry any more, all devices have a newer one.
            if let Some(write) = entry.write_of(sequence) {
                write.done |= given_up;
                self.doubt.fetch_min(sequence, Ordering::AcqRel);
                entry.doubt((group, key.1), sequence, None);
            }
            false
        });
    }

    /// The least sequence of a write that is in doubt.
    #[inline]
    pub(crate) fn doubt(&self) -> Option<u64> {
        Some(self.doubt.load(Ordering::Acquire)).filter(|sequence| *sequence != u64::MAX)
    }

    /// Looks at every entry that is in doubt, after the finished entries are gone.
    #[cold]
    fn each_doubtful(&self, mut look: impl FnMut(u64, &Indeterminate, Devices)) {
        let _doubting = self.doubting.lock();
        let mut least = u64::MAX;
        for number in 0..self.stripes.len() {
            if self.words[number].load(Ordering::Acquire) & super::OPEN == 0 {
                continue;
            }
            let mut entries = self.entries(number);
            self.sweep(number, &mut entries, 0);
            for entry in entries.iter_mut() {
                let sure = entry.sure();
                if let Some(doubt) = &entry.doubt {
                    least = least.min(doubt.sequence);
                    look(entry.hash, doubt, sure);
                }
            }
        }
        // No thread adds a doubt meanwhile.
        self.doubt.store(least, Ordering::Release);
    }

    /// The keys that are in doubt, and the devices that have the newest record of each.
    pub(crate) fn indeterminate(&self) -> Vec<(u64, Indeterminate, Devices)> {
        let mut doubts = Vec::new();
        if self.doubt().is_some() {
            self.each_doubtful(|hash, doubt, sure| doubts.push((hash, doubt.clone(), sure)));
        }
        doubts
    }

    /// Those of some devices of a group that have the newest record of every key in doubt that it `is_about`. To be
    /// called after the devices were read.
    #[inline]
    pub(crate) fn sure_of(
        &self,
        group: u16,
        devices: Devices,
        is_about: impl Fn(&[u8]) -> bool,
    ) -> Devices {
        let mut left = devices;
        if self.doubt().is_some() {
            self.each_doubtful(|_, doubt, sure| {
                if doubt.group == group && is_about(&doubt.key) {
                    left &= sure;
                }
            });
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::super::key_id::keyed;
    use super::*;

    fn torn() -> Torn {
        Torn { made: 0b1, asked: 1, old: None, known: 0 }
    }

    #[test]
    fn the_oldest_doubt_counts_as_long_as_there_is_one() {
        let in_flight = InFlight::new();
        assert_eq!(in_flight.doubt(), None);
        for (hash, sequence) in [(1, 9), (2, 7), (3, 8)] {
            in_flight.begin(keyed(hash), sequence, 0, false);
        }
        in_flight.fail(0, keyed(1), torn());
        assert_eq!(in_flight.doubt(), Some(9));
        in_flight.give_up(0, keyed(2), 7, 1);
        in_flight.fail(1, keyed(3), torn());
        assert_eq!(in_flight.doubt(), Some(7));
        // A later write comes to all of them.
        in_flight.begin(keyed(2), 10, 0, false);
        in_flight.done(keyed(2), 10, 0b11, 0b11);
        assert_eq!(in_flight.indeterminate().len(), 2);
        assert_eq!(in_flight.doubt(), Some(8));
        for hash in [1, 3] {
            in_flight.begin(keyed(hash), 10 + hash, 0, false);
            in_flight.done(keyed(hash), 10 + hash, 0b11, 0b11);
        }
        assert!(in_flight.indeterminate().is_empty() && in_flight.doubt().is_none());
    }

    #[test]
    fn who_has_the_newest_is_sure() {
        let in_flight = InFlight::new();
        in_flight.begin(keyed(7), 1, 1, false);
        in_flight.done(keyed(7), 1, 0b10, 0b11);
        in_flight.give_up(0, keyed(7), 1, 0);
        let sure =
            |group, wanted: &'static [u8]| in_flight.sure_of(group, 0b11, |key| key == wanted);
        assert_eq!(
            (sure(0, keyed(7).1), sure(0, b"other"), sure(1, keyed(7).1)),
            (0b10, 0b11, 0b11)
        );
        // A refused write changes nothing; after a failed write no device is sure.
        in_flight.begin(keyed(7), 2, 1, false);
        assert_eq!(sure(0, keyed(7).1), 0b10);
        in_flight.refuse(keyed(7), 0b11);
        assert_eq!(sure(0, keyed(7).1), 0b10);
        in_flight.begin(keyed(7), 3, 1, false);
        in_flight.fail(0, keyed(7), torn());
        assert_eq!((sure(0, keyed(7).1), sure(0, b"other")), (0, 0b11));
        let doubts = in_flight.indeterminate();
        assert_eq!((doubts[0].1.sequence, doubts[0].1.torn.clone()), (1, Some(torn())));
    }
}
