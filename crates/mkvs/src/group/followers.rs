//! Gives a write to the devices that it does not wait for: through their rings, or at once if a ring is full.

use super::copy::Copied;
use super::{Group, NotMade};
use crate::device::{Decision, Device, Host, Job, Room, make};
use crate::in_flight::{Hashed, Way};
use crate::membership::Moment;
use crate::shape::Order;
use coreplane_engine::{Batch, Completion, Horizon, Result, WriteOptions};
use coreplane_pmem::epoch::{barrier, pin_in};
use coreplane_pmem::mutant;
use std::sync::Arc;

impl Group {
    /// Prefetches the rings of the devices that will follow a write.
    #[inline]
    pub(super) fn prepare(&self, order: &Order) {
        let guard = pin_in();
        for device in order.others().iter().filter_map(|number| self.at(*number)) {
            device.prepare(&guard);
        }
    }

    /// Has a device follow a write of one key: through its ring, or at once if that is full. A write in the ring is
    /// reported when it is made if it `is_told`, and otherwise its way is returned.
    #[inline]
    pub(super) fn follow<'d>(
        self: &Arc<Self>,
        device: &'d Arc<Device>,
        decision: &Decision<'_>,
        is_told: bool,
    ) -> Option<Way<'d>> {
        match device.follow(self, decision, is_told) {
            Room::Enough(place) | Room::Scarce(place) => {
                return (!is_told).then(|| device.way_to(place));
            }
            Room::None => {
                device.wait_for_processor();
                self.catch_up(device, decision, true);
            }
            Room::Never => {
                let mut batch = Batch::new();
                batch.push(decision.decided.as_change());
                let (batch, options) = (Arc::new(batch), *decision.options);
                let hashes = vec![decision.hash];
                self.follow_all(device, Job { batch, options, hashes });
            }
        }
        None
    }

    /// Gives a write that is made on the awaited devices to the others, and makes it visible.
    ///
    /// # Errors
    /// If members have left meanwhile, and it could not be made on as many devices as are to have it now.
    pub(super) fn hand_to_followers(
        self: &Arc<Self>,
        order: &Order,
        decision: &Decision<'_>,
        (mut made, mut now): Copied,
    ) -> std::result::Result<(), NotMade> {
        let Decision { hash, decided, options } = decision;
        let way = loop {
            // The write is in their rings before it is reported, so that a thread that drains a ring waits for it.
            let mut way = None;
            for device in self.of(self.followers() & !made) {
                let is_told = way.is_some();
                let its = self.follow(device, decision, is_told);
                way = way.or(its);
            }
            if self.is_as_then(now) {
                break way;
            }
            // It may be in the ring of a new primary behind writes which that device made before it became the
            // primary.
            (made, now) = self.copy_of(order, made, decided, options)?;
        };
        let sequence = options.sequence.unwrap_or_default();
        self.in_flight.done_and((*hash, decided.key), sequence, (made, way), self.followers());
        Ok(())
    }

    /// True if no member was leaving when a write was in the rings of all followers, and none has left since
    /// `then`. A member that leaves from here on has left only when the others have made the writes in their rings.
    #[inline]
    pub(crate) fn is_as_then(&self, then: Moment) -> bool {
        barrier::light();
        let is_same = self.states.now() == then && !then.is_changing();
        is_same || mutant!("mkvs.change.answered")
    }

    /// Has a device follow a batch: through its ring, or at once if that is full.
    pub(crate) fn follow_all(self: &Arc<Self>, device: &Arc<Device>, job: Job) {
        if let Some(job) = device.submit(self, job) {
            device.wait_for_processor();
            self.catch_up_all(device, &job);
        }
    }

    /// Makes a change of some keys, each with a sequence, on a device; none if the device has not made it.
    fn made_by<'k, T>(
        &self,
        device: &Device,
        keys: impl Iterator<Item = (Hashed<'k>, Option<u64>)>,
        make: impl FnOnce() -> Result<T>,
    ) -> Option<T> {
        let bit = 1 << device.number;
        if self.followers() & bit == 0 || !self.is_there(device) {
            return None;
        }
        let error = match make() {
            Ok(made) => return Some(made),
            Err(error) => error,
        };
        device.note_failure(&error);
        // A lack of space counts too: the device cannot have the records of the others. If leaving it out cannot be
        // made durable, the entry stays, and the write is not reported for the device. If the device was replaced
        // meanwhile, the one in its place has not failed.
        if self.is_there(device) && self.drop_member(device).is_err() {
            keys.for_each(|(key, sequence)| {
                let sequence = sequence.unwrap_or_default();
                self.in_flight.give_up(self.number, key, sequence, device.number);
            });
        }
        None
    }
}

impl Host for Group {
    fn queue_bytes_max(&self) -> u64 {
        self.rules.queue_bytes_max
    }

    fn watch_processors(self: &Arc<Self>) {
        self.watch.start(self);
    }

    fn leave_out(&self, device: &Device) -> Result<()> {
        self.drop_member(device)
    }

    fn catch_up(&self, device: &Device, decision: &Decision<'_>, is_told: bool) -> bool {
        let Decision { decided, options, .. } = decision;
        let make = || device.pace.puts.of(|| decided.make(&device.engine, options));
        let is_made = self.made_by(device, std::iter::once(key_of(decision)), make).is_some();
        if is_made && (is_told || device.has_stopped()) {
            self.tell(device, options.sequence, (decision.hash, decided.key));
        }
        is_made
    }

    fn catch_up_early(
        &self,
        device: &Device,
        decision: &Decision<'_>,
        waits_for: &mut Horizon,
    ) -> bool {
        let Decision { decided, options, .. } = decision;
        let options = WriteOptions { completion: Completion::Early, ..**options };
        let make = || decided.make_told(&device.engine, &options);
        let made = self.made_by(device, std::iter::once(key_of(decision)), make);
        if let Some(outcome) = &made {
            waits_for.include(outcome.ticket());
        }
        made.is_some()
    }

    fn make_durable<'d>(
        &self,
        device: &Device,
        made: impl Iterator<Item = Decision<'d>>,
        horizon: &Horizon,
    ) -> bool {
        let durable = || {
            if device.engine.call(|it| it.commit(horizon))? {
                Ok(())
            } else {
                device.engine.call(|it| it.wait_durable(horizon))
            }
        };
        horizon.is_empty() || self.made_by(device, made.map(|it| key_of(&it)), durable).is_some()
    }

    fn catch_up_all(&self, device: &Device, job: &Job) {
        let Job { batch, options, hashes } = job;
        let make = || make(&device.engine, batch, options);
        let keys = || hashes.iter().copied().zip(batch.changes().map(|change| change.key()));
        let sequence = options.sequence;
        if self.made_by(device, keys().map(|key| (key, sequence)), make).is_some() {
            keys().for_each(|key| self.tell(device, sequence, key));
        }
    }

    fn give_up_write(&self, device: &Device, decision: &Decision<'_>) {
        let (key, sequence) = key_of(decision);
        self.in_flight.give_up(self.number, key, sequence.unwrap_or_default(), device.number);
    }

    fn tell(&self, device: &Device, sequence: Option<u64>, key: Hashed<'_>) {
        self.in_flight.done(key, sequence.unwrap_or(0), 1 << device.number, self.followers());
    }
}

/// The key of a decision, and its sequence.
fn key_of<'d>(decision: &Decision<'d>) -> (Hashed<'d>, Option<u64>) {
    ((decision.hash, decision.decided.key), decision.options.sequence)
}
