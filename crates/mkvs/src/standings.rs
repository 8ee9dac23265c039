//! What each device of a group is to it, in one word.
//!
//! ```text
//!   63            32 31  24 23        16 15      8 7       0
//!   version          0      candidates   joining   members
//! ```
//!
//! - **members** have all that was acknowledged (or `pending` says what they lack), and are read;
//! - **joining** devices are being filled: every write comes to them through their rings, nobody reads
//!   them and no write waits for them;
//! - **candidates** have been filled: writes wait for them, so that they have all from then on, until
//!   it is durable that they are members.
//!
//! The version grows with every change. Who finds the same word before and after has seen a group
//! that did not change in between.

use crate::pending::Devices;
use std::sync::atomic::{AtomicU64, Ordering};

const SET: u64 = 0xff;
const VERSION: u64 = 1 << 32;

/// The standings of a group at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment(u64);

impl Moment {
    #[inline]
    pub(crate) fn members(self) -> Devices {
        (self.0 & SET) as Devices
    }

    pub(crate) fn joining(self) -> Devices {
        (self.0 >> 8 & SET) as Devices
    }

    pub(crate) fn candidates(self) -> Devices {
        (self.0 >> 16 & SET) as Devices
    }

    /// All that writes come to.
    #[inline]
    pub(crate) fn followers(self) -> Devices {
        self.members() | self.joining() | self.candidates()
    }

    /// Another for each time, and never zero.
    pub(crate) fn stamp(self) -> u64 {
        self.0
    }

    fn with(self, members: Devices, joining: Devices, candidates: Devices) -> Self {
        let sets = u64::from(members) | u64::from(joining) << 8 | u64::from(candidates) << 16;
        Self((self.0 & !(VERSION - 1)).wrapping_add(VERSION) | sets)
    }
}

/// The standings of a group.
#[derive(Debug)]
pub(crate) struct Standings(AtomicU64);

impl Standings {
    pub(crate) fn new(members: Devices) -> Self {
        Self(AtomicU64::new(u64::from(members) & SET))
    }

    #[inline]
    pub(crate) fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn members(&self) -> Devices {
        self.now().members()
    }

    fn change(&self, change: impl Fn(Moment) -> Moment) {
        let change = |word| Some(change(Moment(word)).0);
        // It has no case in which it fails.
        let _changed = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok();
    }

    /// These are the members; who was becoming one of them has.
    pub(crate) fn set_members(&self, members: Devices) {
        self.change(|now| now.with(members, now.joining() & !members, now.candidates() & !members));
    }

    /// A device is filled from now on.
    pub(crate) fn join(&self, number: u8) {
        self.change(|now| now.with(now.members(), now.joining() | 1 << number, now.candidates()));
    }

    /// It has been: writes wait for it.
    pub(crate) fn propose(&self, number: u8) {
        self.change(|now| {
            let bit = 1 << number;
            let joined = now.joining() & bit;
            now.with(now.members(), now.joining() & !bit, now.candidates() | joined)
        });
    }

    /// It does not become a member.
    pub(crate) fn leave(&self, number: u8) {
        self.change(|now| {
            let others = !(1 << number);
            now.with(now.members(), now.joining() & others, now.candidates() & others)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_joins_is_proposed_and_is_a_member() {
        let standings = Standings::new(0b01);
        let before = standings.now();
        standings.join(1);
        assert_eq!((standings.members(), standings.now().followers()), (0b01, 0b11));
        standings.propose(1);
        assert_eq!((standings.now().joining(), standings.now().candidates()), (0, 0b10));
        standings.set_members(0b11);
        assert_eq!((standings.members(), standings.now().candidates()), (0b11, 0));
        standings.set_members(0b01);
        assert_eq!(standings.members(), before.members());
        assert_ne!(standings.now(), before, "it is another time");
    }

    #[test]
    fn who_has_left_is_not_proposed() {
        let standings = Standings::new(0b01);
        standings.join(1);
        standings.leave(1);
        standings.propose(1);
        assert_eq!(standings.now().followers(), 0b01);
    }
}
