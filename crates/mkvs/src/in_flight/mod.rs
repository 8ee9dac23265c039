//! Which devices have the newest record of a key, while not all of them do.
//!
//! # The problem
//!
//! A write goes to several devices, one after the other, and a read goes to one. A reader that has seen a value
//! must not see an older one afterwards, whichever device it asks then; and every later reader must see an
//! acknowledged write.
//!
//! # The picture
//!
//! ```text
//!   stripe (the keys of a slot)
//!     sequencer   held by a writer of one of its keys, from the decision to the last copy that the
//!                 write waits for: writes of a key come one after the other
//!     word        how many entries are open: 0 is the usual case, and all that a reader looks at;
//!                 and how many writes have begun
//!     entries     hash | sequence | asked: the device to read | done: devices that have it
//!                 | on the way: the place of the write in a device's ring
//! ```
//!
//! **Readers** see that no entry is open: then every current member has the newest record, and any will do.
//! Otherwise they look for the key's entry. While no device is known to have the write (*done* is empty) all of
//! them ask the same device, *asked*: one device by itself never goes back. As soon as a device is done they ask
//! any device that is.
//!
//! **Writers** make the entry before any device gets the write. The asked device is a current one, and the last of
//! those that the write waits for. So a write that a reader finds there is on all of them, and a write that fails
//! on the way can be taken back unseen.
//!
//! A reader decides first and asks then. The record that it finds is at least as new as the newest at the time of
//! the decision. But it may be too new: from a write that has begun since, and that the device that other readers
//! ask does not have yet, or that is taken back. So before the reader shows the record it checks whether a write
//! has begun in the stripe since it decided, and if so decides again.
//!
//! **Processors** that make a write from their ring do not come here: they publish their progress
//! ([`track`](crate::in_flight::track)), once for many writes, and a thread that looks at the entry sees whether
//! the processor is past it. Otherwise every entry would move from the writer's core to theirs and back. So an
//! entry may be there after all devices have the write: until the next thread looks at the stripe.
//!
//! A write that waits for the asked device alone takes its place in a ring before that device has it, and is reported
//! by one store in its stripe ([`fast`]): the next thread that locks the entries notes it there, before it reads them.
//!
//! A stripe is found by the hash of a key, and its entry there by another hash that no client can tell ([`key_id`]).

mod entries;
mod entry;
mod fast;
mod indeterminate;
mod key_id;
mod key_lock;
mod many;
mod track;

pub(crate) use track::{Track, Way};

use entries::Entries;
use entry::{Entry, Write};
pub(crate) use fast::FastWrite;
pub(crate) use indeterminate::{Indeterminate, Old, Torn};
pub(crate) use key_id::Hashed;
use key_id::{KeyId, Secret};
pub(crate) use key_lock::KeyLock;

use crate::in_flight::track::OnTheWay;
use crate::shape::{Devices, SLOTS, slot_of};
use coreplane_pmem::spin::{Held, Lock};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// One for each slot, so that a write mostly takes the place of one that was on the way to the same device.
const STRIPES: usize = SLOTS;

#[derive(Debug)]
#[repr(align(64))]
struct Stripe {
    entries: Lock<Entries>,
    sequencer: Lock<()>,
    /// How many threads have waited for the key lock for long, and still do.
    overdue: AtomicU32,
    /// The number of the last write that was reported as made on the devices that it waits for, without the lock of
    /// the entries.
    made: AtomicU64,
}

/// Offset of the bits, above those of devices that have a write, for devices that have failed to make it and could
/// not be left out. They never will make it.
const GIVEN_UP: u32 = Devices::BITS / 2;

/// The devices that have a write.
const MADE: Devices = (1 << GIVEN_UP) - 1;

/// The bits of a stripe's word that count open entries. Those above count writes that have begun.
const OPEN_BITS: u32 = 24;
const OPEN: u64 = (1 << OPEN_BITS) - 1;

/// The entries of all keys.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// The words of the stripes, each changed under the lock of its entries. They are apart from the stripes, so
    /// that all that readers look at fits into the first cache.
    words: Box<[AtomicU64]>,
    stripes: Box<[Stripe]>,
    secret: Secret,
    /// Writes that were taken back after a device that readers use had them.
    taken_back: AtomicU64,
    /// Approximately the tombstones that devices were given since they could last drop any.
    tombstones: AtomicU64,
    /// A lower bound of the sequences of writes in doubt, perhaps of one that is not any more; all ones: none.
    doubt: AtomicU64,
    /// Held while a thread adds a doubt, or lists the doubts.
    doubting: Mutex<()>,
}

/// The word of a key's stripe when a reader decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen(u64);

impl InFlight {
    pub(crate) fn new() -> Self {
        let words = (0..STRIPES).map(|_| AtomicU64::new(0)).collect();
        let stripe = |_| {
            let (entries, sequencer) = (Lock::new(Entries::default()), Lock::new(()));
            Stripe { entries, sequencer, overdue: AtomicU32::new(0), made: AtomicU64::new(0) }
        };
        let stripes = (0..STRIPES).map(stripe).collect();
        let [taken_back, tombstones] = [const { AtomicU64::new(0) }; 2];
        let (doubt, doubting) = (AtomicU64::new(u64::MAX), Mutex::default());
        let secret = Secret::new();
        Self { words, stripes, secret, taken_back, tombstones, doubt, doubting }
    }

    /// The number of a key's stripe. A thread that takes several key locks takes them in this order.
    #[inline]
    pub(crate) fn stripe_of(hash: u64) -> usize {
        slot_of(hash)
    }

    #[inline]
    fn word(&self, hash: u64) -> u64 {
        self.words[Self::stripe_of(hash)].load(Ordering::Acquire)
    }

    /// True if no key of the stripe has an entry.
    #[inline]
    pub(crate) fn is_quiet(&self, hash: u64) -> bool {
        self.word(hash) & OPEN == 0
    }

    /// The state to pass to [`Self::has_begun_since`]; to be taken before [`Self::current`].
    #[inline]
    pub(crate) fn see(&self, hash: u64) -> Seen {
        Seen(self.word(hash))
    }

    /// True if a write of a key of the stripe has begun since.
    #[inline]
    pub(crate) fn has_begun_since(&self, hash: u64, seen: Seen) -> bool {
        self.word(hash) >> OPEN_BITS != seen.0 >> OPEN_BITS
    }

    /// The members of a group that have the newest record of a key, or are to be read; none while its readers must
    /// wait: the devices that have it are gone, and the others will have it soon.
    #[inline]
    pub(crate) fn current(&self, key: Hashed<'_>, members: Devices) -> Devices {
        members & self.of_entry(key, Entry::current).unwrap_or(Devices::MAX)
    }

    /// The same for a writer, which does not wait as readers do.
    pub(crate) fn newest(&self, key: Hashed<'_>, members: Devices) -> Devices {
        members & self.of_entry(key, Entry::newest).unwrap_or(Devices::MAX)
    }

    /// True if a key has an entry.
    pub(crate) fn has_entry(&self, key: Hashed<'_>) -> bool {
        self.of_entry(key, |_| ()).is_some()
    }

    /// What the entry of a key says, if there is one.
    #[inline]
    fn of_entry<T>(&self, key: Hashed<'_>, of: impl FnOnce(&Entry) -> T) -> Option<T> {
        if self.is_quiet(key.0) { None } else { self.of_entry_there(key, of) }
    }

    #[inline(never)]
    fn of_entry_there<T>(&self, key: Hashed<'_>, of: impl FnOnce(&Entry) -> T) -> Option<T> {
        let (stripe, id) = (Self::stripe_of(key.0), self.secret.id_of(key));
        let mut entries = self.entries(stripe);
        self.sweep(stripe, &mut entries, 0);
        entries.find(id).map(|entry| of(entry))
    }

    /// Drops finished entries, and counts `begun` writes that begin.
    #[inline]
    fn sweep(&self, stripe: usize, entries: &mut Held<'_, Entries>, begun: u64) {
        entries.sweep();
        self.count(stripe, entries.len(), begun);
    }

    /// A write is about to be made by the holder of the key lock: readers ask the device `asked` while none is known
    /// to have it, or wait if it `is_held`. Its entry takes the place of the key's entry, if there is one.
    pub(crate) fn begin(&self, key: Hashed<'_>, sequence: u64, asked: u8, is_held: bool) {
        let entry = Entry::new((key.0, self.secret.id_of(key)), sequence, asked, is_held);
        let stripe = Self::stripe_of(key.0);
        self.begin_in(stripe, &mut self.entries(stripe), entry, None);
    }

    #[inline]
    fn begin_in(
        &self,
        stripe: usize,
        entries: &mut Held<'_, Entries>,
        mut entry: Entry,
        way: Option<Way<'_>>,
    ) -> u64 {
        let number = self.next_number(stripe);
        entry.write.number = number;
        let come = entries.sweep();
        entry.write.on_the_way = way.map(|way| OnTheWay::instead_of(come, way));
        match entries.find(entry.id) {
            Some(known) => {
                std::mem::swap(known, &mut entry);
                known.doubt = entry.doubt.take();
                let before = if entry.write.done == 0 { entry.before } else { Some(entry.write) };
                known.before = before;
            }
            None => entries.push(entry),
        }
        self.count(stripe, entries.len(), 1);
        number
    }

    /// The number of the next write that begins in a stripe. The caller has locked the entries.
    #[inline]
    fn next_number(&self, stripe: usize) -> u64 {
        (self.words[stripe].load(Ordering::Relaxed) >> OPEN_BITS) + 1
    }

    /// Notes how many entries a stripe has, and writes that begin. The caller has locked the
    /// entries.
    #[inline]
    fn count(&self, stripe: usize, open: usize, begun: u64) {
        let word = &self.words[stripe];
        let before = (word.load(Ordering::Relaxed) >> OPEN_BITS).wrapping_add(begun);
        word.store(before << OPEN_BITS | open as u64 & OPEN, Ordering::Release);
    }

    /// A write was not made: the write before it is in force again, with its progress since.
    pub(crate) fn refuse(&self, key: Hashed<'_>, members: Devices) {
        self.end(key, |entry| {
            let Some(mut before) = entry.before.take() else { return true };
            let _come = before.look();
            (entry.write, entry.wanted, entry.is_held) = (before, members, false);
            entry.is_over()
        });
    }

    /// Readers need not wait any more.
    pub(crate) fn let_go(&self, key: Hashed<'_>) {
        self.end(key, |entry| {
            entry.is_held = false;
            false
        });
    }

    /// These devices have the write of this sequence. The entry goes when all `members` have it.
    pub(crate) fn done(&self, key: Hashed<'_>, sequence: u64, devices: Devices, members: Devices) {
        self.done_and(key, sequence, (devices, None), members);
    }

    /// The same; and the write is on the way to another device.
    pub(crate) fn done_and(
        &self,
        key: Hashed<'_>,
        sequence: u64,
        (devices, way): (Devices, Option<Way<'_>>),
        members: Devices,
    ) {
        self.end(key, |entry| {
            if let Some(write) = entry.write_of(sequence) {
                write.done |= devices;
                write.on_the_way = way.map(OnTheWay::from).or(write.on_the_way.take());
            }
            entry.wanted = members;
            entry.is_over()
        });
    }

    /// The members that have the newest record of a key, or will have it.
    pub(crate) fn reached(&self, key: Hashed<'_>, members: Devices) -> Devices {
        // While a write is being made no device has failed to make it yet.
        let has_it = |entry: &Entry| match entry.write.done {
            done if !entry.is_held => done | !(done >> GIVEN_UP),
            _ => Devices::MAX,
        };
        members & self.of_entry(key, has_it).unwrap_or(Devices::MAX)
    }

    /// Drops the key's entry if `is_over`.
    #[inline]
    fn end(&self, key: Hashed<'_>, is_over: impl FnOnce(&mut Entry) -> bool) {
        let (stripe, id) = (Self::stripe_of(key.0), self.secret.id_of(key));
        let mut entries = self.entries(stripe);
        if entries.end(id, is_over) {
            self.count(stripe, entries.len(), 0);
        }
    }

    /// A device that was filled has all writes that are made: nothing else reports the writes from before it came.
    /// `of_group` says which keys are its group's.
    pub(crate) fn filled(&self, device: u8, of_group: impl Fn(u64) -> bool) {
        for number in 0..STRIPES {
            let mut entries = self.entries(number);
            for entry in entries.iter_mut().filter(|entry| of_group(entry.hash)) {
                let both = [Some(&mut entry.write), entry.before.as_mut()];
                // Not for a write that no device has yet, or whose devices are unknown.
                for write in both.into_iter().flatten().filter(|write| write.done & MADE != 0) {
                    write.done |= 1 << device;
                }
            }
        }
    }

    /// The members have changed, or have made all that they were given: entries that all of them have are dropped.
    /// `of_group` says which keys are theirs, by their hashes.
    pub(crate) fn settle(&self, members: Devices, of_group: impl Fn(u64) -> bool) {
        for number in 0..STRIPES {
            let mut entries = self.entries(number);
            for entry in entries.iter_mut().filter(|entry| of_group(entry.hash)) {
                entry.wanted = members;
            }
            self.sweep(number, &mut entries, 0);
        }
    }

    /// Bytes of DRAM.
    pub(crate) fn dram_bytes(&self) -> u64 {
        (size_of_val(&*self.stripes) + size_of_val(&*self.words)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::key_id::keyed;
    use super::*;
    use crate::in_flight::track::Track;
    use std::sync::Arc;

    const MEMBERS: Devices = 0b111;

    #[test]
    fn a_key_is_read_where_it_is_newest() {
        let in_flight = InFlight::new();
        assert_eq!(in_flight.current(keyed(7), MEMBERS), MEMBERS);
        in_flight.begin(keyed(7), 1, 2, false);
        assert_eq!(in_flight.current(keyed(7), MEMBERS), 1 << 2);
        assert_eq!(in_flight.current(keyed(8), MEMBERS), MEMBERS, "another key");
        in_flight.done(keyed(7), 1, 1 << 2, MEMBERS);
        assert_eq!(in_flight.current(keyed(7), MEMBERS), 0b100);
        in_flight.done(keyed(7), 1, 1 << 0, MEMBERS);
        assert_eq!(in_flight.current(keyed(7), MEMBERS), 0b101);
        // A newer write; late reports of the older one do not count for it.
        in_flight.begin(keyed(7), 2, 0, false);
        in_flight.done(keyed(7), 1, 1 << 1, MEMBERS);
        assert_eq!(in_flight.current(keyed(7), MEMBERS), 1 << 0);
        (0..3).for_each(|device| in_flight.done(keyed(7), 2, 1 << device, MEMBERS));
        assert_eq!(in_flight.current(keyed(7), MEMBERS), MEMBERS);
        assert!(in_flight.is_quiet(7));
    }

    #[test]
    fn what_was_refused_leaves_what_was_before() {
        let in_flight = InFlight::new();
        in_flight.begin(keyed(7), 1, 2, false);
        in_flight.done(keyed(7), 1, 1 << 2, MEMBERS);
        in_flight.begin(keyed(7), 2, 2, false);
        in_flight.refuse(keyed(7), MEMBERS);
        assert_eq!(in_flight.current(keyed(7), MEMBERS), 0b100);
        // The progress of the write before is not forgotten.
        in_flight.begin(keyed(7), 3, 2, false);
        in_flight.done(keyed(7), 1, 1 << 0, MEMBERS);
        in_flight.done(keyed(7), 1, 1 << 1, MEMBERS);
        in_flight.refuse(keyed(7), MEMBERS);
        assert_eq!(in_flight.current(keyed(7), MEMBERS), MEMBERS);
        in_flight.begin(keyed(9), 3, 1, false);
        in_flight.refuse(keyed(9), MEMBERS);
        assert_eq!(in_flight.current(keyed(9), MEMBERS), MEMBERS);
    }

    /// A write in a ring is known to be made when the processor is past it, without a report.
    #[test]
    fn what_is_on_the_way_comes() {
        let in_flight = InFlight::new();
        let track = Arc::new(Track::new());
        let write = |sequence, place| {
            in_flight.begin(keyed(7), sequence, 1, false);
            let way = (0b10, Some(Way { track: &track, place, number: 0 }));
            in_flight.done_and(keyed(7), sequence, way, 0b11);
        };
        write(1, 2);
        assert_eq!(in_flight.current(keyed(7), 0b11), 0b10);
        track.come_to(2);
        assert_eq!(in_flight.current(keyed(7), 0b11), 0b11);
        assert!(in_flight.is_quiet(7), "who looks takes it away");
        // The write before is still on its way when a newer one begins, which is refused.
        write(2, 4);
        in_flight.begin(keyed(7), 3, 1, false);
        in_flight.refuse(keyed(7), 0b11);
        assert_eq!(in_flight.current(keyed(7), 0b11), 0b10);
        in_flight.begin(keyed(7), 4, 1, false);
        track.come_to(4);
        in_flight.refuse(keyed(7), 0b11);
        assert_eq!(in_flight.current(keyed(7), 0b11), 0b11);
        // A write that was not made has not come, and no report follows.
        write(5, 6);
        track.stop(6);
        in_flight.give_up(0, keyed(7), 5, 0);
        track.come_to(8);
        assert_eq!(in_flight.current(keyed(7), 0b11), 0b10);
        assert_eq!(
            (in_flight.reached(keyed(7), 0b11), in_flight.reached(keyed(7), 0b01)),
            (0b10, 0)
        );
        // From then on each write is reported, so that the track need not be read.
        write(6, 8);
        in_flight.done(keyed(7), 6, 0b01, 0b11);
        assert_eq!(in_flight.current(keyed(7), 0b11), 0b11);
    }

    /// A write that all devices had but one, which left and came back: no device is left to wait for.
    #[test]
    fn who_was_filled_has_what_was_made_before() {
        let in_flight = InFlight::new();
        in_flight.begin(keyed(7), 1, 0, false);
        in_flight.done(keyed(7), 1, 1, MEMBERS);
        in_flight.begin(keyed(9), 2, 0, false);
        in_flight.filled(2, |hash| hash == 7 || hash == 9);
        assert_eq!(in_flight.current(keyed(7), MEMBERS), 0b101);
        assert_eq!(in_flight.current(keyed(9), MEMBERS), 1 << 0, "it is not made yet");
        in_flight.filled(1, |hash| hash == 7);
        in_flight.settle(MEMBERS, |_| true);
        assert_eq!(in_flight.current(keyed(7), MEMBERS), MEMBERS);
    }

    #[test]
    fn a_write_that_has_begun_is_told_from_one_that_was_done() {
        let in_flight = InFlight::new();
        // A key of the same slot, and one of another.
        let [same, other] = [8, 1 << 54].map(|hash| (hash, in_flight.see(hash)));
        in_flight.begin(keyed(7), 1, 2, false);
        let seen = in_flight.see(7);
        in_flight.done(keyed(7), 1, MEMBERS, MEMBERS);
        assert!(in_flight.is_quiet(7) && !in_flight.has_begun_since(7, seen));
        in_flight.begin(keyed(7), 2, 2, false);
        in_flight.refuse(keyed(7), MEMBERS);
        assert!(
            in_flight.is_quiet(7) && in_flight.has_begun_since(7, seen),
            "taken back, and seen"
        );
        let has_begun = |(hash, seen)| in_flight.has_begun_since(hash, seen);
        assert_eq!([same, other].map(has_begun), [true, false]);
    }

    #[test]
    fn who_has_given_up_is_not_waited_for() {
        let in_flight = InFlight::new();
        in_flight.begin(keyed(7), 1, 1, false);
        in_flight.done(keyed(7), 1, 0b10, 0b11);
        assert_eq!(in_flight.reached(keyed(7), 0b01), 0b01, "the other may get it still");
        in_flight.give_up(0, keyed(7), 1, 0);
        assert_eq!(
            (in_flight.reached(keyed(7), 0b01), in_flight.reached(keyed(7), 0b111)),
            (0, 0b110)
        );
        in_flight.begin(keyed(7), 2, 0, false);
        assert_eq!(in_flight.reached(keyed(7), 0b01), 0b01, "another is being made");
        in_flight.refuse(keyed(7), 0b01);
        assert_eq!(in_flight.reached(keyed(7), 0b01), 0, "it is so again");
        in_flight.filled(0, |_| true);
        assert_eq!(in_flight.reached(keyed(7), 0b01), 0b01, "another is in its place");
    }

    #[test]
    fn nobody_is_asked_who_is_no_member() {
        let in_flight = InFlight::new();
        in_flight.begin(keyed(7), 1, 2, false);
        in_flight.done(keyed(7), 1, 1 << 2, MEMBERS);
        assert_eq!(in_flight.current(keyed(7), 0b011), 0, "its only holder is gone");
        in_flight.done(keyed(7), 1, 1 << 0, 0b011);
        assert_eq!(in_flight.current(keyed(7), 0b011), 0b001);
        in_flight.settle(0b001, |hash| hash == 7);
        assert!(in_flight.is_quiet(7), "all that are left have it");
    }
}
