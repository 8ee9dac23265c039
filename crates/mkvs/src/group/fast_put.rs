//! Puts in a group in its usual state: on the device that they wait for, or on all of them with one fence
//! ([`fence`](super::fence)).
//!
//! After the engine's fence, a locked instruction waits until the medium has all flushed data; so does a load of
//! data that was stored in pieces of another size, and any instruction once the stores since the fence have filled
//! the processor's store buffer (64 of them on Zen 4, where plain instead of locked instructions before the fence
//! made no difference). That wait is a fifth of such a put. So the steps that take a locked instruction come before:
//! the place in the ring, the entry, which by then knows the place of the write, and the count in the filter.
//! Afterwards only stores remain, and the caller's next steps go on beside the fence. (A place that is filled before
//! the fence leaves room in the store buffer, but was slower: its lines may not have come from the processor yet.)
//! Two cases are left: a new key that was not expected to be new is counted after the fence, and the followers after
//! the first get the write there.
//!
//! ```text
//!   key lock ─▶ place in the ring ─▶ entry ─▶ the engine ─▶ the place is filled, published ─▶ made ─▶ turn ends
//! ```
//!
//! Every other case is left to [`Group::write`], which begins anew; on the same device if it is alone.

use super::Group;
use super::fence::{Copies, put_alone};
use crate::device::{Decided, Decision, Device, Place, is_damage};
use crate::filter::Insertion;
use crate::in_flight::{FastWrite, Hashed, InFlight};
use crate::membership::Moment;
use crate::shape::{Ack, Devices, Order, numbers};
use coreplane_engine::{Completion, Error, WriteOptions};
use coreplane_pmem::epoch::{Calls, Guard};
use coreplane_pmem::mutant;
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    /// True if the last key that the thread put was new. Then the next one mostly is, too.
    static PUTS_NEW: Cell<bool> = const { Cell::new(false) };
}

/// A write that has begun; if it is dropped before it is made, it is neither reported as made nor on the way.
struct Begun<'a> {
    in_flight: &'a InFlight,
    key: Hashed<'a>,
    is_made: bool,
}

impl Drop for Begun<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_made {
            self.in_flight.stay(self.key);
        }
    }
}

impl Group {
    /// Prefetches the data of a key that is about to be put the fast way.
    #[inline]
    pub(crate) fn prefetch_fast(&self, hash: u64, key: &[u8], guard: &Guard<Calls>) {
        // Looked at first, and cheap to ask for.
        self.in_flight.prefetch(hash);
        self.prefetch_filter(hash);
        let now = self.states.now();
        let awaited = self.awaited(hash, now.members(), now.primary());
        for device in numbers(now.members()).filter_map(|number| self.at(number)) {
            if awaited & 1 << device.number != 0 {
                device.engine.hint(|it| it.prefetch(key));
            } else {
                device.prepare(guard);
            }
        }
    }

    /// The devices that a put of a key waits for.
    #[inline(always)]
    fn awaited(&self, hash: u64, members: Devices, asked: u8) -> Devices {
        match self.rules.ack {
            Ack::First => 1 << asked,
            Ack::All => members,
            Ack::Majority => self.awaited_of_majority(hash, members, asked),
        }
    }

    #[inline(never)]
    fn awaited_of_majority(&self, hash: u64, members: Devices, asked: u8) -> Devices {
        let copies = self.rules.ack.copies(members.count_ones());
        let order = Order::new(hash, members, members, (copies as usize, asked));
        order.awaited().iter().fold(0, |set, number| set | 1 << number)
    }

    #[inline(always)]
    fn each_of(&self, devices: Devices, each: impl FnMut(&Arc<Device>)) {
        numbers(devices).filter_map(|number| self.at(number)).for_each(each);
    }

    /// Prefetches the filter's line of a key that is about to be written, if the line will probably change.
    #[inline]
    pub(super) fn prefetch_filter(&self, hash: u64) {
        if PUTS_NEW.get() {
            self.filter.prefetch(hash);
        }
    }

    /// The thread has put a key, which was new or not.
    #[inline]
    pub(super) fn note_put(&self, is_new: bool) {
        // Seldom: the call leaves data on the stack that is loaded in other pieces.
        if PUTS_NEW.get() != is_new {
            PUTS_NEW.set(is_new);
        }
    }

    /// Puts a value unconditionally, for the holder of the key lock: its sequence, and whether a live record was
    /// replaced. None if nothing was made.
    #[inline(always)]
    pub(crate) fn put_fast(
        self: &Arc<Self>,
        hash: u64,
        (key, value): (&[u8], &[u8]),
        options: &WriteOptions,
        guard: &Guard<Calls>,
    ) -> Option<(u64, bool)> {
        let now = self.states.now();
        let members = now.members();
        if now.followers() != members || !now.is_answering() {
            return None;
        }
        let asked = now.primary();
        // A group that has lost all members still has the number of its primary.
        let device = self.at(asked).filter(|_| members & 1 << asked != 0)?;
        let awaited = self.awaited(hash, members, asked);
        if awaited.checked_ilog2() != Some(u32::from(asked)) && !self.is_settled(now) {
            // Locks are taken from the greatest number down, the primary's first: an earlier primary's first by puts
            // that began under it.
            return None;
        }
        let waits_for_one = awaited == 1 << asked;
        let mut others = numbers(members & !awaited).filter_map(|number| self.at(number));
        let first = others.next();
        let sequence = self.draw(None);
        let options =
            WriteOptions { sequence: Some(sequence), completion: Completion::Wait, ..*options };
        let decided = Decided { key, put: Some((value, options.expires_at)) };
        let decision = Decision { hash, decided, options: &options };
        let mut place =
            first.map(|it| it.reserve(self, &decision, guard).ok_or(())).transpose().ok()?;
        let way = first.zip(place.as_ref()).map(|(first, place)| first.way_to(place.end()));
        let write = FastWrite { key: (hash, key), sequence, asked, awaited, members };
        let number = self.in_flight.begin_fast(&write, way)?;
        let mut begun = Begun { in_flight: &self.in_flight, key: write.key, is_made: false };
        // Counted before the put, as in any change of the group.
        let mut change = PUTS_NEW.get().then(|| self.filter.change());
        let counted = change.as_ref().and_then(|change| change.insert_absent(hash));
        if !waits_for_one && !PUTS_NEW.get() {
            // By now the prefetched data is here, and leads to the record that will be replaced on each device.
            self.each_of(awaited, |device| device.engine.hint(|it| it.prefetch_replaced(key)));
        }
        let mut copies = Copies::default();
        let (is_made, replaced) = match waits_for_one {
            true => put_alone(device, &decision, &mut copies),
            false => {
                let devices = (awaited, asked);
                let made = self.put_with_one_fence(devices, &decision, &mut copies, &mut || true);
                (made, copies.replaced)
            }
        };
        if !is_made && copies.made == 0 {
            self.refuse_fast(counted, write.key, members, &copies);
            begun.is_made = true;
            drop(place);
            self.leave_failed(copies.failed);
            return None;
        }
        match counted {
            Some(counted) if replaced => counted.undo(),
            None if !replaced => {
                change.get_or_insert_with(|| self.filter.change()).insert(hash);
            }
            _ => {}
        }
        self.note_put(!replaced);
        if !self.hand_over_fast((now, is_made), &mut place, &mut others, &decision) {
            drop(begun);
            self.leave_failed(copies.failed);
            let made = if is_made { awaited } else { copies.made };
            let concluded = self.conclude_fast(asked, made, &decision);
            if concluded.is_err_and(|is_gone| is_gone && !replaced)
                && let Some(change) = &change
            {
                change.remove(hash);
            }
            return concluded.ok().map(|()| (sequence, replaced));
        }
        begun.is_made = true;
        self.in_flight.made(hash, number);
        Some((sequence, replaced))
    }

    /// Hands a put to the rings of all followers, before it is reported: so a thread that drains a ring waits for
    /// it. False if it was not made, or members leave or have left: then it may have come to the rings after that, or
    /// the place is given up.
    #[inline(always)]
    fn hand_over_fast<'d>(
        self: &Arc<Self>,
        (now, is_made): (Moment, bool),
        place: &mut Option<Place<'_>>,
        others: &mut impl Iterator<Item = &'d Arc<Device>>,
        decision: &Decision<'_>,
    ) -> bool {
        if !is_made || self.states.now() != now {
            // At once: a change of the members waits for the processor, that for the place, and this put for the
            // change.
            if !mutant!("mkvs.put.place_kept") {
                *place = None;
            }
            return false;
        }
        if let Some(place) = place {
            place.hand_over(decision);
        }
        for device in others {
            self.follow(device, decision, true);
        }
        self.is_as_then(now)
    }

    /// No device has made a put, as far as is known: takes back its entry, and the count of its key unless a record
    /// may be there. A lone device may have one of a key that was not counted, which the put that is begun anew
    /// replaces. A key that is counted once too often denies no key.
    #[cold]
    fn refuse_fast(
        &self,
        counted: Option<Insertion<'_>>,
        key: Hashed<'_>,
        members: Devices,
        copies: &Copies,
    ) {
        match (counted, copies.is_nothing()) {
            (Some(counted), true) => counted.undo(),
            (None, false) if members.count_ones() == 1 => {
                self.filter.change().insert(key.0);
            }
            _ => {}
        }
        self.in_flight.refuse(key, self.followers());
    }

    /// A device has not made a put: if the device has failed, the group goes on without it.
    #[cold]
    fn leave_failed(&self, failed: Option<(Arc<Device>, Error)>) {
        // If that fails, the write that is begun anew meets the error too; and it reports damage.
        let failed = failed.filter(|(_, error)| !is_damage(error));
        let _is_left = failed.is_none_or(|(device, it)| self.go_on_without(&device, it).is_ok());
    }

    /// The members or the primary have changed, or not all awaited devices have made the put: the write goes on
    /// like any other.
    ///
    /// # Errors
    /// If it is to be made anew: true if it was taken back, false if the state of the key is unknown.
    #[cold]
    fn conclude_fast(
        self: &Arc<Self>,
        asked: u8,
        made: Devices,
        decision: &Decision<'_>,
    ) -> Result<(), bool> {
        let Decision { hash, decided, options } = decision;
        let order = Order::new(*hash, 1 << asked, 1 << asked, (1, asked));
        let concluded = match self.copy_of(&order, made, decided, options) {
            Ok(copied) => self.hand_to_followers(&order, decision, copied),
            Err(not_made) => Err(not_made),
        };
        concluded.map_err(|not_made| self.unmake(*hash, asked, decided, not_made).is_ok())
    }
}
