//! A write on its way to the devices, and the devices that have it.

use super::{Devices, Indeterminate, KeyId, MADE};
use crate::in_flight::FastWrite;
use crate::in_flight::track::{OnTheWay, Way};

/// A write that not all members have.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) hash: u64,
    pub(super) id: KeyId,
    /// The device to read while no device is known to have the write.
    pub(super) asked: u8,
    /// Readers wait until it is over: it is a part of a batch in several groups.
    pub(super) is_held: bool,
    pub(super) write: Write,
    /// The write before it, as long as this one may be refused.
    pub(super) before: Option<Write>,
    /// The devices that must have the write before the entry goes.
    pub(super) wanted: Devices,
    /// Set if the key is in doubt, for as long as the entry is there.
    pub(super) doubt: Option<Box<Indeterminate>>,
}

/// A write, and the devices that have it.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) sequence: u64,
    pub(super) done: Devices,
    /// The number of the write in its stripe.
    pub(super) number: u64,
    /// The devices that have it once the stripe's `made` has reached `number`.
    pub(super) awaited: Devices,
    pub(super) on_the_way: Option<OnTheWay>,
}

impl Write {
    /// Notes if the write has come to the device that it is on the way to; returns that way if so.
    #[inline]
    pub(super) fn look(&mut self) -> Option<OnTheWay> {
        // A write that was not made has not come, wherever the processor is.
        let has_come = |way: &OnTheWay| self.done & MADE != 0 && way.has_come();
        if !self.on_the_way.as_ref().is_some_and(has_come) {
            return None;
        }
        let way = self.on_the_way.take();
        self.done |= way.as_ref().map_or(0, |way| 1 << way.number());
        way
    }
}

impl Entry {
    /// A write that is about to be made.
    pub(super) fn new((hash, id): (u64, KeyId), sequence: u64, asked: u8, is_held: bool) -> Self {
        let write = Write { sequence, done: 0, number: 0, awaited: 0, on_the_way: None };
        let (before, wanted, doubt) = (None, Devices::MAX, None);
        Self { hash, id, asked, is_held, write, before, wanted, doubt }
    }

    /// A write that is about to be made on the devices that it waits for, the asked device among them; the caller
    /// reports it with [`InFlight::made`](super::InFlight::made).
    pub(super) fn fast(write: &FastWrite<'_>, id: KeyId) -> Self {
        let mut entry = Self::new((write.key.0, id), write.sequence, write.asked, false);
        (entry.write.awaited, entry.wanted) = (write.awaited, write.members);
        entry
    }

    /// Becomes the entry of such a write: field by field, since an entry that is put together elsewhere and moved
    /// here waits for its own stores.
    #[inline(always)]
    pub(super) fn become_fast(
        &mut self,
        (write, id): (&FastWrite<'_>, KeyId),
        number: u64,
        way: Option<Way<'_>>,
    ) {
        (self.hash, self.id, self.asked, self.is_held) = (write.key.0, id, write.asked, false);
        (self.write.sequence, self.write.number) = (write.sequence, number);
        (self.write.done, self.write.awaited) = (0, write.awaited);
        self.wanted = write.members;
        match (&mut self.write.on_the_way, way) {
            (Some(known), Some(way)) if known.is_on(&way) => known.turn_to(&way),
            (known, way) => *known = way.map(OnTheWay::from),
        }
        (self.before, self.doubt) = (None, None);
    }

    /// Notes the number up to which the stripe's writes are made.
    #[inline]
    pub(super) fn note_made(&mut self, made: u64) {
        if self.write.awaited != 0 && self.write.number <= made {
            self.write.done |= std::mem::take(&mut self.write.awaited);
        }
    }

    /// The devices that have the newest write; the one to read while none is known to have it.
    #[inline]
    pub(super) fn newest(&self) -> Devices {
        if self.write.done == 0 { 1 << self.asked } else { self.write.done }
    }

    /// The devices to read the key on; none while its readers must wait.
    #[inline]
    pub(super) fn current(&self) -> Devices {
        if self.is_held { 0 } else { self.newest() }
    }

    /// The write of a sequence, if it is this one or the one before.
    pub(super) fn write_of(&mut self, sequence: u64) -> Option<&mut Write> {
        let both = [Some(&mut self.write), self.before.as_mut()];
        both.into_iter().flatten().find(|write| write.sequence == sequence)
    }

    /// Notes if the write has come to the device that it is on the way to, and leaves that way in `come`; true if
    /// the entry can go.
    #[inline]
    pub(super) fn look(&mut self, come: &mut Option<OnTheWay>) -> bool {
        if let Some(way) = self.write.look() {
            *come = Some(way);
        }
        self.is_over()
    }

    /// True if the entry can go, as [`Self::look`] would find.
    #[inline(always)]
    pub(super) fn will_be_over(&self) -> bool {
        let Write { done, on_the_way, .. } = &self.write;
        // A write that was not made has not come, wherever the processor is.
        let way = on_the_way.as_ref().filter(|way| *done & MADE != 0 && way.has_come());
        let done = done | way.map_or(0, |way| 1 << way.number());
        done != 0 && !self.is_held && done & self.wanted == self.wanted
    }

    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.write.done != 0 && !self.is_held && self.write.done & self.wanted == self.wanted
    }
}
