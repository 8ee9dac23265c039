//! Which devices have the newest of a key, while not all of them do.
//!
//! # The problem
//!
//! A write goes to several devices, one after the other, and a read goes to one. A reader who has
//! seen a value must not see an older one afterwards, whichever device it asks then; and what was
//! acknowledged must be seen by whoever comes after.
//!
//! # The picture
//!
//! ```text
//!   stripe (of 4096, by the key's hash)
//!     sequencer   held by whoever writes one of its keys, from the decision to the last copy that
//!                 it waits for: writes of a key come one after the other
//!     open        how many entries: 0 is the usual case, and all a reader looks at
//!     entries     hash | sequence | asked: the device to read | done: devices that have it
//! ```
//!
//! **Readers** see that no entry is open: then every current member has the newest, and any will do.
//! Else they look for their key's. While no device is known to have the write (*done* is empty) all
//! of them ask the same device, *asked*: one device by itself never goes back. As soon as one is
//! done they ask any that is.
//!
//! **Writers** make the entry before any device is told. The device that is asked is a current one,
//! and the last of those that the write waits for, so that what a reader finds there is on all of
//! them, and a write that fails on the way can be taken back unseen.
//!
//! Why a reader may decide first and ask then: what it finds is at least as new as what was the
//! newest when it decided. What came in between may be too new: a write that has come to this device
//! and not to the one that is asked. So it looks again when it has found something, and asks again
//! if that is so.
//!
//! Two keys with one hash are taken for one here, which costs a moment and nothing else.

use coreplane_pmem::spin;
use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU32, Ordering};

/// Stripes of a matrix.
const STRIPES: usize = 4096;

/// A set of devices of a group, a bit each.
pub(crate) type Devices = u32;

/// A write that not all members have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) hash: u64,
    pub(crate) sequence: u64,
    /// The device to read while `done` is empty.
    pub(crate) asked: u8,
    /// Devices that have it.
    pub(crate) done: Devices,
    /// Readers wait until it is over: it is a part of a batch in several groups.
    pub(crate) is_held: bool,
    /// The write before it and who has that, as long as this one may be refused.
    pub(crate) before: Option<(u64, Devices)>,
}

#[derive(Debug, Default)]
struct Stripe {
    open: AtomicU32,
    entries: Mutex<Vec<Entry>>,
    sequencer: Mutex<()>,
}

/// The entries of all keys.
#[derive(Debug)]
pub(crate) struct Pending {
    stripes: Box<[CachePadded<Stripe>]>,
}

/// Where to read a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Current {
    /// Every member is current.
    All,
    /// These are.
    Some(Devices),
    /// This is the one to ask.
    Ask(u8),
    /// Nobody may be asked now.
    Wait,
}

/// The right to write the keys of a stripe.
pub(crate) type Turn<'a> = MutexGuard<'a, ()>;

impl Pending {
    pub(crate) fn new() -> Self {
        Self { stripes: (0..STRIPES).map(|_| CachePadded::default()).collect() }
    }

    /// The number of a key's stripe. Who takes several turns takes them in this order.
    #[inline]
    pub(crate) fn stripe_of(hash: u64) -> usize {
        hash as usize % STRIPES
    }

    /// How many stripes there are.
    pub(crate) fn stripes() -> usize {
        STRIPES
    }

    /// Waits for the turn to write the keys of a stripe.
    pub(crate) fn turn(&self, stripe: usize) -> Turn<'_> {
        spin::lock(&self.stripes[stripe].sequencer)
    }

    /// True if no key of the stripe has an entry.
    #[inline]
    pub(crate) fn is_quiet(&self, hash: u64) -> bool {
        self.stripes[Self::stripe_of(hash)].open.load(Ordering::Acquire) == 0
    }

    /// Where to read a key of a group whose members these are.
    #[inline]
    pub(crate) fn current(&self, hash: u64, members: Devices) -> Current {
        if self.is_quiet(hash) {
            return Current::All;
        }
        match self.entry(hash) {
            None => Current::All,
            Some(Entry { is_held: true, .. }) => Current::Wait,
            Some(Entry { done: 0, asked, .. }) if members & 1 << asked != 0 => Current::Ask(asked),
            // Who has it is gone, and who has not will have it soon.
            Some(Entry { done, .. }) if done & members == 0 => Current::Wait,
            Some(Entry { done, .. }) => Current::Some(done & members),
        }
    }

    /// True if what `device` has of a key, the record of this sequence or none, may be of a write
    /// that others do not see yet.
    #[inline]
    pub(crate) fn is_early(&self, hash: u64, sequence: Option<u64>, device: u8) -> bool {
        !self.is_quiet(hash)
            && self.entry(hash).is_some_and(|entry| {
                let is_seen = entry.done != 0 || entry.asked == device;
                (entry.is_held || !is_seen) && sequence.is_none_or(|it| it == entry.sequence)
            })
    }

    /// The entry of a key.
    pub(crate) fn entry(&self, hash: u64) -> Option<Entry> {
        let entries = spin::lock(&self.stripes[Self::stripe_of(hash)].entries);
        entries.iter().find(|entry| entry.hash == hash).copied()
    }

    /// A write is about to be made, by whoever has the turn. It takes the place of the key's entry,
    /// if there is one.
    pub(crate) fn begin(&self, entry: Entry) {
        let stripe = &self.stripes[Self::stripe_of(entry.hash)];
        let mut entries = spin::lock(&stripe.entries);
        match entries.iter_mut().find(|known| known.hash == entry.hash) {
            Some(known) => {
                let before =
                    if known.done == 0 { known.before } else { Some((known.sequence, known.done)) };
                *known = Entry { before, ..entry };
            }
            None => {
                entries.push(entry);
                stripe.open.store(entries.len() as u32, Ordering::Release);
            }
        }
    }

    /// A write was not made: what there was before is so again, with what has become of it since.
    pub(crate) fn refuse(&self, hash: u64, members: Devices) {
        self.end(hash, |entry| match entry.before {
            Some((sequence, done)) if done & members != members => {
                *entry = Entry { sequence, done, is_held: false, before: None, ..*entry };
                false
            }
            _ => true,
        });
    }

    /// Readers need not wait any more.
    pub(crate) fn let_go(&self, hash: u64) {
        self.end(hash, |entry| {
            entry.is_held = false;
            false
        });
    }

    /// A device has the write of this sequence. The entry goes when all `members` have it.
    pub(crate) fn done(&self, hash: u64, sequence: u64, device: u8, members: Devices) {
        self.end(hash, |entry| {
            if entry.sequence == sequence {
                entry.done |= 1 << device;
            }
            if let Some((before, done)) = &mut entry.before
                && *before == sequence
            {
                *done |= 1 << device;
            }
            entry.done != 0 && !entry.is_held && entry.done & members == members
        });
    }

    /// Drops the key's entry if `is_over`.
    fn end(&self, hash: u64, mut is_over: impl FnMut(&mut Entry) -> bool) {
        let stripe = &self.stripes[Self::stripe_of(hash)];
        let mut entries = spin::lock(&stripe.entries);
        if let Some(at) = entries.iter().position(|entry| entry.hash == hash)
            && is_over(&mut entries[at])
        {
            entries.swap_remove(at);
            stripe.open.store(entries.len() as u32, Ordering::Release);
        }
    }

    /// A device that was filled has all that is made: of writes from before it came nobody else tells.
    /// `of_group` says which keys are its group's.
    pub(crate) fn filled(&self, device: u8, of_group: impl Fn(u64) -> bool) {
        for stripe in &self.stripes {
            let mut entries = spin::lock(&stripe.entries);
            for entry in entries.iter_mut().filter(|entry| of_group(entry.hash)) {
                let before = entry.before.as_mut().map(|(_, done)| done);
                for done in before.into_iter().chain([&mut entry.done]).filter(|done| **done != 0) {
                    *done |= 1 << device;
                }
            }
        }
    }

    /// The members are others now: entries go that all of them have. `of_group` says which keys
    /// are theirs, by their hashes.
    pub(crate) fn settle(&self, members: Devices, of_group: impl Fn(u64) -> bool) {
        for stripe in &self.stripes {
            let mut entries = spin::lock(&stripe.entries);
            entries.retain(|entry| {
                let is_over = entry.done != 0 && entry.done & members == members;
                !of_group(entry.hash) || entry.is_held || !is_over
            });
            stripe.open.store(entries.len() as u32, Ordering::Release);
        }
    }

    /// Bytes of DRAM.
    pub(crate) fn dram_bytes(&self) -> u64 {
        (self.stripes.len() * size_of::<CachePadded<Stripe>>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBERS: Devices = 0b111;

    fn entry(sequence: u64, asked: u8) -> Entry {
        Entry { hash: 7, sequence, asked, done: 0, is_held: false, before: None }
    }

    #[test]
    fn a_key_is_read_where_it_is_newest() {
        let pending = Pending::new();
        assert_eq!(pending.current(7, MEMBERS), Current::All);
        pending.begin(entry(1, 2));
        assert_eq!(pending.current(7, MEMBERS), Current::Ask(2));
        assert_eq!(pending.current(8, MEMBERS), Current::All, "another key");
        pending.done(7, 1, 2, MEMBERS);
        assert_eq!(pending.current(7, MEMBERS), Current::Some(0b100));
        pending.done(7, 1, 0, MEMBERS);
        assert_eq!(pending.current(7, MEMBERS), Current::Some(0b101));
        // A newer one; what comes late of the older one does not count for it.
        pending.begin(entry(2, 0));
        pending.done(7, 1, 1, MEMBERS);
        assert_eq!(pending.current(7, MEMBERS), Current::Ask(0));
        (0..3).for_each(|device| pending.done(7, 2, device, MEMBERS));
        assert_eq!(pending.current(7, MEMBERS), Current::All);
        assert!(pending.is_quiet(7));
    }

    #[test]
    fn what_is_not_on_all_that_are_waited_for_is_early() {
        let pending = Pending::new();
        assert!(!pending.is_early(7, Some(1), 0));
        pending.begin(entry(2, 2));
        let is_early = |sequence, device| pending.is_early(7, sequence, device);
        assert!(is_early(Some(2), 0) && is_early(None, 0));
        assert!(!is_early(Some(1), 0), "it was there before");
        assert!(!is_early(Some(2), 2) && !is_early(None, 2), "it is the one that is asked");
        pending.done(7, 2, 2, MEMBERS);
        assert!(!is_early(Some(2), 0) && !is_early(None, 0), "it is made");
        pending.begin(Entry { is_held: true, ..entry(3, 2) });
        assert!(is_early(Some(3), 2), "a part of a batch");
    }

    #[test]
    fn what_was_refused_leaves_what_was_before() {
        let pending = Pending::new();
        pending.begin(entry(1, 2));
        pending.done(7, 1, 2, MEMBERS);
        pending.begin(entry(2, 2));
        pending.refuse(7, MEMBERS);
        assert_eq!(pending.current(7, MEMBERS), Current::Some(0b100));
        // What came of the one before meanwhile is not forgotten.
        pending.begin(entry(3, 2));
        pending.done(7, 1, 0, MEMBERS);
        pending.done(7, 1, 1, MEMBERS);
        pending.refuse(7, MEMBERS);
        assert_eq!(pending.current(7, MEMBERS), Current::All);
        pending.begin(Entry { hash: 9, ..entry(3, 1) });
        pending.refuse(9, MEMBERS);
        assert_eq!(pending.current(9, MEMBERS), Current::All);
    }

    /// A write that all had but one, which left and came back: nobody is left to wait for.
    #[test]
    fn who_was_filled_has_what_was_made_before() {
        let pending = Pending::new();
        pending.begin(entry(1, 0));
        pending.done(7, 1, 0, MEMBERS);
        pending.begin(Entry { hash: 9, ..entry(2, 0) });
        pending.filled(2, |hash| hash == 7 || hash == 9);
        assert_eq!(pending.current(7, MEMBERS), Current::Some(0b101));
        assert_eq!(pending.current(9, MEMBERS), Current::Ask(0), "it is not made yet");
        pending.filled(1, |hash| hash == 7);
        pending.settle(MEMBERS, |_| true);
        assert_eq!(pending.current(7, MEMBERS), Current::All);
    }

    #[test]
    fn nobody_is_asked_who_is_no_member() {
        let pending = Pending::new();
        pending.begin(entry(1, 2));
        pending.done(7, 1, 2, MEMBERS);
        assert_eq!(pending.current(7, 0b011), Current::Wait, "its only holder is gone");
        pending.done(7, 1, 0, 0b011);
        assert_eq!(pending.current(7, 0b011), Current::Some(0b001));
        pending.settle(0b001, |hash| hash == 7);
        assert!(pending.is_quiet(7), "all that are left have it");
    }
}
