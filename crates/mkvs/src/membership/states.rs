//! The states of all devices of a group, in one word.
//!
//! ```text
//!   63            32 31        30       26     24 23        16 15      8 7       0
//!   version          changing  unproven primary   candidates   joining   members
//! ```
//!
//! - **members** have every acknowledged write (or `in_flight` states which they lack), and are read;
//! - **joining** devices are being filled: every write comes to them through their rings, but they are not
//!   read and no write waits for them;
//! - **candidates** have been filled: writes wait for them, so that they have every later write, until it is
//!   durable that they are members;
//! - the **primary** is the member that has every acknowledged write;
//! - while the members are **changing** no write is answered, whether it began before or since: a member that
//!   is to be the primary executes the writes in its ring, and it must have every write that is answered
//!   afterwards;
//! - the members are **unproven** after a change that failed, if no device is known to have the record in force: an
//!   open may find the changed one, and no write is answered either, whether it began before or since.
//!
//! The version grows with every change. A caller that finds the same word before and after has seen a group
//! that did not change in between.

use crate::shape::Devices;
use coreplane_pmem::epoch::barrier;
use std::sync::atomic::{AtomicU64, Ordering};

const SET: u64 = 0xff;
const VERSION: u64 = 1 << 32;
const PRIMARY: u32 = 24;
const PRIMARY_BITS: u64 = 0x7;
const UNPROVEN: u64 = 1 << 30;
const CHANGING: u64 = 1 << 31;

/// The states of a group at a moment.
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

    /// The member that has every acknowledged write.
    #[inline]
    pub(crate) fn primary(self) -> u8 {
        (self.0 >> PRIMARY & PRIMARY_BITS) as u8
    }

    /// The primary, as a set.
    #[inline]
    pub(crate) fn primary_set(self) -> Devices {
        1 << self.primary()
    }

    /// Members are leaving, which is not yet durable.
    #[inline]
    pub(crate) fn is_changing(self) -> bool {
        self.0 & CHANGING != 0
    }

    /// No device is known to have the record of the members.
    pub(crate) fn is_unproven(self) -> bool {
        self.0 & UNPROVEN != 0
    }

    /// True if writes are answered.
    #[inline]
    pub(crate) fn is_answering(self) -> bool {
        self.0 & (CHANGING | UNPROVEN) == 0
    }

    /// All devices that receive writes.
    #[inline]
    pub(crate) fn followers(self) -> Devices {
        self.members() | self.joining() | self.candidates()
    }

    /// A number that differs for each change of the states, and is never zero.
    pub(crate) fn stamp(self) -> u64 {
        self.0
    }

    fn with(self, members: Devices, joining: Devices, candidates: Devices) -> Self {
        let sets = u64::from(members) | u64::from(joining) << 8 | u64::from(candidates) << 16;
        let same = self.0 & (CHANGING | UNPROVEN | PRIMARY_BITS << PRIMARY);
        Self((self.0 & !(VERSION - 1)).wrapping_add(VERSION) | same | sets)
    }

    fn led_by(self, primary: u8) -> Self {
        Self(self.0 & !(PRIMARY_BITS << PRIMARY) | (u64::from(primary) & PRIMARY_BITS) << PRIMARY)
    }

    fn changing(self, is_changing: bool) -> Self {
        let bit = if is_changing { CHANGING } else { 0 };
        Self(self.0.wrapping_add(VERSION) & !CHANGING | bit)
    }
}

/// The states of a group.
#[derive(Debug)]
pub(crate) struct MemberStates(AtomicU64);

impl MemberStates {
    pub(crate) fn new(members: Devices, primary: u8) -> Self {
        Self(AtomicU64::new(Moment(u64::from(members) & SET).led_by(primary).0))
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
        // The update cannot fail.
        let _changed = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok();
    }

    /// Sets the members and the primary. Candidates among the members are no longer candidates, and no member
    /// is leaving.
    pub(crate) fn set_members(&self, members: Devices, primary: u8) {
        self.change(|now| {
            let now = now.with(members, now.joining() & !members, now.candidates() & !members);
            now.led_by(primary).changing(false)
        });
    }

    /// Members are leaving: from here on no write is answered until [`Self::set_members`] or [`Self::stay`].
    pub(crate) fn begin_change(&self) {
        self.change(|now| now.changing(true));
        // A writer looks at the states when its write is in the rings. So either it sees this change, or a thread
        // that looks at the rings from here on sees its write.
        barrier::heavy();
    }

    /// No member has left.
    pub(crate) fn stay(&self) {
        self.change(|now| now.changing(false));
    }

    /// Some device is known to have the record of the members, or none is.
    pub(crate) fn set_proven(&self, is_proven: bool) {
        self.change(|now| {
            let bit = if is_proven { 0 } else { UNPROVEN };
            Moment(now.0.wrapping_add(VERSION) & !UNPROVEN | bit)
        });
    }

    /// A device is being filled from now on.
    pub(crate) fn join(&self, number: u8) {
        self.change(|now| now.with(now.members(), now.joining() | 1 << number, now.candidates()));
    }

    /// A joining device has been filled: writes wait for it.
    pub(crate) fn propose(&self, number: u8) {
        self.change(|now| {
            let bit = 1 << number;
            let joined = now.joining() & bit;
            now.with(now.members(), now.joining() & !bit, now.candidates() | joined)
        });
    }

    /// A device does not become a member.
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
        let states = MemberStates::new(0b01, 0);
        let before = states.now();
        states.join(1);
        assert_eq!((states.members(), states.now().followers()), (0b01, 0b11));
        states.propose(1);
        assert_eq!((states.now().joining(), states.now().candidates()), (0, 0b10));
        states.set_members(0b11, 0);
        assert_eq!((states.members(), states.now().candidates()), (0b11, 0));
        assert_eq!(states.now().primary(), 0, "joining does not change it");
        states.set_members(0b01, 0);
        assert_eq!(states.members(), before.members());
        assert_ne!(states.now(), before, "it is another time");
    }

    #[test]
    fn while_members_leave_it_is_said_and_then_another_is_primary() {
        let states = MemberStates::new(0b110, 2);
        let before = states.now();
        states.begin_change();
        let changing = states.now();
        assert!(changing.is_changing() && changing != before);
        assert_eq!((changing.members(), changing.primary()), (0b110, 2));
        states.join(0);
        assert!(states.now().is_changing());
        states.set_members(0b010, 1);
        let after = states.now();
        assert!(!after.is_changing());
        assert_eq!((after.members(), after.primary(), after.joining()), (0b010, 1, 0b1));
        states.begin_change();
        states.stay();
        assert!(!states.now().is_changing() && states.now() != after);
    }

    #[test]
    fn members_without_a_record_answer_no_write_until_one_is_there() {
        let states = MemberStates::new(0b11, 1);
        states.begin_change();
        states.set_proven(false);
        states.stay();
        assert!(states.now().is_unproven() && !states.now().is_answering());
        states.join(2);
        states.set_members(0b10, 1);
        assert!(!states.now().is_answering());
        let before = states.now();
        states.set_proven(true);
        assert!(states.now().is_answering() && states.now() != before);
        assert_eq!((states.members(), states.now().joining()), (0b10, 0b100));
    }

    #[test]
    fn who_has_left_is_not_proposed() {
        let states = MemberStates::new(0b01, 0);
        states.join(1);
        states.leave(1);
        states.propose(1);
        assert_eq!(states.now().followers(), 0b01);
    }
}
