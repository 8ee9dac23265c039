//! A group: devices that hold the same keys.
//!
//! A write is decided by one device and made on the others as it was decided there: to put this value, or to
//! delete, with a sequence. Devices keep the newest record, so copies may come in any order.
//! [`in_flight`](crate::in_flight) tells which devices have the write meanwhile, and where to read.
//!
//! ```text
//!   key lock ─▶ entry ─▶ decide on the first ─▶ copies that the write waits for ─▶ acknowledge
//!                                           the others: through their rings, afterwards
//! ```
//!
//! The last device that a write waits for is the same for all keys of the group, its *primary*. So a reader of all
//! keys finds on the primary the records that readers of single keys are shown: all acknowledged writes, and none
//! that may be taken back.
//!
//! A device that fails is dropped from the membership, durably, before the write is acknowledged without it. A
//! device without space is another matter: the write is taken back where it was made, before any reader has seen
//! it, and refused.

mod copy;
mod fast_put;
mod fence;
mod followers;
mod hedge;
mod item;
mod list;
mod read;
mod rollback;
#[cfg(test)]
mod tests;
mod watchdog;

pub(crate) use item::{Item, sequence_on};
pub(crate) use list::{Groups, limits};
pub(crate) use rollback::{sound_of, taken_back, undo_options};

use crate::device::{Decision, Device, Write, is_damage, is_failure};
use crate::filter::{CAPACITY_MIN, Filter};
use crate::in_flight::{Hashed, InFlight};
use crate::membership::MemberStates;
use crate::shape::{Ack, AppendList, DEVICES_MAX, Devices, Order, Prototype, ReadPath, numbers};
use crate::stats::Asked;
use coreplane_engine::{Completion, Error, Outcome, Result, Ticket, WriteOptions, Written};
use coreplane_pmem::spin::Backoff;
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use watchdog::Watch;

/// The membership of the matrix, which a group informs.
pub(crate) trait Superior: Send + Sync {
    /// A device has failed: makes that durable, or returns why that is impossible.
    fn demote(&self, device: &Device) -> Result<()>;

    /// The record of a key of a group is about to be written anew: gets the old sequence and the new one.
    fn renew(&self, key: (u16, &[u8]), known: u64, sequence: u64) -> Result<()>;
}

/// No device.
const NOBODY: u32 = u32::MAX;

/// A group of devices.
pub(crate) struct Group {
    pub(crate) number: u16,
    /// For each place, the index of its device in `devices`.
    places: [AtomicU32; DEVICES_MAX],
    /// In the order in which they came. A device that has gone leaves its shell behind, so that callers that have
    /// found it before need not be waited for.
    devices: AppendList<Arc<Device>>,
    /// The relation of each device to the group.
    pub(crate) states: MemberStates,
    /// The stamp of the states under which all writes that began under other states have ended.
    settled_at: AtomicU64,
    pub(crate) filter: Filter,
    /// How its reads end.
    pub(crate) asked: Asked,
    /// True if the filter was filled from all keys: then the group has no key that the filter denies.
    pub(crate) is_listed: AtomicBool,
    /// True if its keys have not been listed since it was opened: the background does that.
    pub(crate) is_to_be_listed: AtomicBool,
    /// Records of a kept filter that its primary has, in a matrix that is only looked at: others have used it up.
    pub(crate) kept_records: AtomicU64,
    /// The last stretch of sequences in which a thread checked the load of the filter.
    pub(crate) looked_at: AtomicU64,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) sequence: Arc<CachePadded<AtomicU64>>,
    pub(crate) rules: Rules,
    pub(crate) watch: Watch,
    /// Gone once the matrix is dropped.
    superior: Weak<dyn Superior>,
}

/// How a group is written and read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) ack: Ack,
    pub(crate) prototype: Prototype,
    pub(crate) reads: ReadPath,
    /// Readers ask the group's filter.
    pub(crate) asks_filters: bool,
    /// How long a processor may be in one call.
    pub(crate) answers_within: Option<Duration>,
    /// Bytes that may wait for a device.
    pub(crate) queue_bytes_max: u64,
}

/// A write that was not made on as many devices as it waits for.
pub(crate) struct NotMade {
    /// The devices on which it was made.
    pub(crate) made: Devices,
    /// The device that refused it; none if no device was left to ask.
    pub(crate) device: Option<Arc<Device>>,
    pub(crate) error: Error,
}

/// The result of a try.
enum Tried {
    Made(Outcome),
    /// It failed on this device, and nothing was made on any device.
    Failed(Arc<Device>, Error),
    /// It failed on this device, if on any; the copies on others have been taken back, unseen.
    TakenBack(Option<Arc<Device>>, Error),
}

impl Group {
    /// A group with these devices as its members, whose filter has no keys yet.
    ///
    /// # Errors
    /// If there is no memory for the filter.
    pub(crate) fn new(
        superior: Weak<dyn Superior>,
        number: u16,
        (devices, primary): (Vec<Arc<Device>>, u8),
        (in_flight, sequence, rules): (Arc<InFlight>, Arc<CachePadded<AtomicU64>>, Rules),
    ) -> Result<Arc<Self>> {
        let members = devices.iter().fold(0, |set, device| set | 1 << device.number);
        let states = MemberStates::new(members, primary);
        let group = Self {
            number,
            places: [const { AtomicU32::new(NOBODY) }; DEVICES_MAX],
            devices: AppendList::new(),
            // No write has begun before.
            settled_at: AtomicU64::new(states.now().stamp()),
            states,
            filter: Filter::with_capacity(CAPACITY_MIN)?,
            asked: Asked::default(),
            is_listed: AtomicBool::new(true),
            is_to_be_listed: AtomicBool::new(false),
            kept_records: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            in_flight,
            sequence,
            rules,
            watch: Watch::default(),
            superior,
        };
        devices.into_iter().for_each(|device| group.place(device));
        Ok(Arc::new(group))
    }

    /// Puts a device in its place, where it is found from now on. Callers that have found the device before it go
    /// on with that one.
    pub(crate) fn place(&self, device: Arc<Device>) {
        let number = usize::from(device.number);
        let at = self.devices.push(device);
        self.places[number].store(at, Ordering::Release);
    }

    /// The current members.
    #[inline]
    pub(crate) fn members(&self) -> Devices {
        self.states.members()
    }

    /// The devices that are there, members or not.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Arc<Device>> {
        (0..DEVICES_MAX as u8).filter_map(|number| self.at(number))
    }

    /// The devices of a set, the primary before others: if a write waits for the primary alone, no other device has
    /// a write that it lacks.
    pub(crate) fn of(&self, set: Devices) -> impl Iterator<Item = &Arc<Device>> {
        let primary = self.states.now().primary_set();
        let rest = numbers(set & !primary);
        numbers(set & primary).chain(rest).filter_map(|number| self.at(number))
    }

    fn lost(&self) -> Error {
        Error::Unusable(format!("group {} has no current device left", self.number))
    }

    /// The error for a key whose last acknowledged write is missing on failed devices that could not be left out,
    /// or is on such devices only.
    pub(crate) fn gone(&self) -> Error {
        let number = self.number;
        let what = format!(
            "the newest of a key is not on all devices of group {number}, of which one has failed"
        );
        Error::Unusable(what)
    }

    /// A read or a write on a device failed: if the device has failed, the group goes on without it, and the call
    /// can be made again.
    ///
    /// # Errors
    /// The error, if it is no failure of the device, or there is no other device.
    pub(crate) fn go_on_without(&self, device: &Device, error: Error) -> Result<()> {
        if !is_failure(&error) {
            return Err(error);
        }
        let members = self.members();
        if members & 1 << device.number == 0 || !self.is_there(device) {
            // Another thread has noticed it; and perhaps another device is in its place by now.
            return Ok(());
        }
        if members.count_ones() < 2 {
            return Err(error);
        }
        device.note_failure(&error);
        self.drop_member(device)
    }

    /// The group goes on without a device; that is durable when it returns.
    ///
    /// # Errors
    /// If that cannot be made durable, or the device was the last one.
    pub(crate) fn drop_member(&self, device: &Device) -> Result<()> {
        // A thread that makes another change does not wait for this device meanwhile.
        let _failing = device.fail();
        self.superior()?.demote(device)
    }

    fn superior(&self) -> Result<Arc<dyn Superior>> {
        self.superior.upgrade().ok_or(Error::Closed)
    }

    /// The membership is durable: from here on these are the members, and this is their primary.
    pub(crate) fn set_members(
        &self,
        members: Devices,
        primary: u8,
        of_group: impl Fn(u64) -> bool,
    ) {
        self.states.set_members(members, primary);
        self.in_flight.settle(self.followers(), of_group);
    }

    /// The devices that every write comes to: the members, and those that are about to become members.
    #[inline]
    pub(crate) fn followers(&self) -> Devices {
        self.states.now().followers()
    }

    /// A key is about to be written: hints for the engines that the write waits for, as far as these are known
    /// already.
    #[inline]
    pub(crate) fn prefetch(&self, key: &[u8]) {
        let now = self.states.now();
        let waits_for_some = self.rules.ack.copies(now.members().count_ones()) > 1;
        let ahead = numbers(if waits_for_some { now.members() } else { now.primary_set() });
        let ahead = ahead.filter_map(|number| self.at(number));
        ahead.for_each(|device| device.engine.hint(|it| it.prefetch(key)));
    }

    /// Writes a key, of which the caller has the key lock.
    ///
    /// # Errors
    /// As the engine; then no part of the write is visible.
    pub(crate) fn write(
        self: &Arc<Self>,
        hash: u64,
        options: &WriteOptions,
        write: &mut Write<'_>,
    ) -> Result<Outcome> {
        let given = options.sequence;
        loop {
            // A new sequence each time: a restored record is newer than the write that was tried.
            let sequence = Some(self.draw(given));
            let options = WriteOptions { sequence, completion: Completion::Wait, ..*options };
            match self.try_write(hash, &options, write)? {
                Tried::Made(outcome) => return Ok(outcome),
                Tried::TakenBack(Some(device), error) if given.is_none() => {
                    self.go_on_without(&device, error)?;
                }
                // All devices have been asked.
                Tried::Failed(_, error) if is_damage(&error) => return Err(error),
                Tried::Failed(device, error) => self.go_on_without(&device, error)?,
                Tried::TakenBack(_, error) => return Err(taken_back(given, error)),
            }
        }
    }

    fn try_write(
        self: &Arc<Self>,
        hash: u64,
        options: &WriteOptions,
        write: &mut Write<'_>,
    ) -> Result<Tried> {
        let key = write.key();
        let order = self.order_of(&[(hash, key)])?;
        let first = self.device(order.awaited()[0])?;
        let sequence = options.sequence.unwrap_or_default();
        let asked = order.asked();
        if let Some((value, _)) = write.decided().put {
            let awaited = order.awaited().iter().filter_map(|number| self.at(*number));
            let len = value.len();
            awaited.for_each(|device| device.engine.hint(|it| it.prefetch_to_write(key, len)));
        }
        self.in_flight.begin((hash, key), sequence, asked, false);
        self.prepare(&order);
        self.prefetch_filter(hash);
        // A key that is removed from the filter must not be listed by a rebuild that begins meanwhile. The key of a
        // put may be: then it is counted twice, which denies no key.
        let mut change = write.may_erase().then(|| self.filter.change());
        let (outcome, made) = match self.decide(first, &order, options, write) {
            Ok(made) => made,
            Err((device, error)) => {
                self.in_flight.refuse((hash, key), self.followers());
                return Ok(Tried::Failed(device, error));
            }
        };
        let Outcome::Written(written) = outcome else {
            self.in_flight.refuse((hash, key), self.followers());
            return Ok(Tried::Made(outcome));
        };
        let decided = write.decided();
        let copied = match self.copy_of(&order, made, &decided, options) {
            Ok(copied) => copied,
            Err(not_made) => return self.unmake(hash, asked, &decided, not_made),
        };
        self.note_put(decided.put.is_some() && !written.replaced);
        // No reader asks the filter while the entry is there, and no other writer counts the key.
        match (decided.put.is_some(), written.replaced) {
            (true, false) => {
                change.get_or_insert_with(|| self.filter.change()).insert(hash);
            }
            (false, true) => {
                change.get_or_insert_with(|| self.filter.change()).remove(hash);
            }
            (true, true) | (false, false) => {}
        }
        let decision = Decision { hash, decided, options };
        if let Err(not_made) = self.hand_to_followers(&order, &decision, copied) {
            if decision.decided.put.is_none() && written.replaced {
                // The key will be there again. A key that is counted once too often denies no key.
                change.get_or_insert_with(|| self.filter.change()).insert(hash);
            }
            return self.unmake(hash, asked, &decision.decided, not_made);
        }
        drop(change);
        let written = Written { sequence, ticket: Ticket::DURABLE, ..written };
        Ok(Tried::Made(Outcome::Written(written)))
    }

    /// Has the first device that a write waits for decide it. If the record there is damaged, or in doubt, the next
    /// device that has it decides, and the first gets the outcome like the others. The caller has the key lock.
    ///
    /// # Errors
    /// As the device that has refused it: it was made nowhere.
    fn decide(
        &self,
        first: &Arc<Device>,
        order: &Order,
        options: &WriteOptions,
        write: &mut Write<'_>,
    ) -> std::result::Result<(Outcome, Devices), (Arc<Device>, Error)> {
        let (key, mut damage) = (write.key(), None);
        let listed = order.awaited().iter().chain(order.others()).skip(1);
        let peers = listed.filter_map(|number| self.at(*number)).filter(|device| {
            device.drain();
            // It has the newest record now, unless it has failed to make it.
            self.is_member(device) && self.is_sure(device, |it| it == key)
        });
        for device in std::iter::once(first).chain(peers) {
            match device.pace.puts.of(|| device.engine.call(|it| write.decide(it, options))) {
                Ok(outcome) => return Ok((outcome, 1 << device.number)),
                Err(error) if is_damage(&error) => damage = damage.or(Some(error)),
                Err(error) => return Err((Arc::clone(device), error)),
            }
        }
        Err((Arc::clone(first), damage.unwrap_or_else(|| self.lost())))
    }

    #[inline]
    pub(crate) fn device(&self, number: u8) -> Result<&Arc<Device>> {
        self.at(number).ok_or_else(|| self.lost())
    }

    #[inline]
    fn at(&self, number: u8) -> Option<&Arc<Device>> {
        let at = self.places.get(usize::from(number))?.load(Ordering::Acquire);
        self.devices.get(at)
    }

    /// A sequence above all others, or the one that was given.
    pub(crate) fn draw(&self, given: Option<u64>) -> u64 {
        self.draw_many(given, 1)
    }

    /// The last of so many, likewise.
    pub(crate) fn draw_many(&self, given: Option<u64>, count: usize) -> u64 {
        match given {
            Some(given) => {
                self.sequence.fetch_max(given, Ordering::AcqRel);
                given
            }
            None => self.sequence.fetch_add(count as u64, Ordering::AcqRel) + count as u64,
        }
    }

    /// The members in the order in which a write of these keys comes to them, to each at once. The awaited ones have
    /// the newest records: the call waits until enough members have them. The caller has the key locks.
    pub(crate) fn order_of(&self, keys: &[Hashed<'_>]) -> Result<Order> {
        let mut backoff = Backoff::new();
        loop {
            let now = self.states.now();
            let (members, primary) = (now.members(), now.primary());
            let copies = self.rules.ack.copies(members.count_ones()) as usize;
            if members == 0 {
                return Err(self.lost());
            }
            let newest = |set, key: &Hashed<'_>| set & self.in_flight.newest(*key, members);
            let current = keys.iter().fold(members, newest);
            if current.count_ones() as usize >= copies && current & 1 << primary != 0 {
                let hash = keys.first().map_or(0, |(hash, _)| *hash);
                return Ok(Order::new(hash, members, current, (copies, primary)));
            }
            let reach = |set, key: &Hashed<'_>| set & self.in_flight.reached(*key, members);
            let reached = keys.iter().fold(members, reach);
            if reached & 1 << primary == 0 || (reached.count_ones() as usize) < copies {
                // Until the failed device can be left out.
                return Err(self.gone());
            }
            backoff.wait();
        }
    }

    /// The index, among all devices that ever came to the group, of the device at a place.
    pub(crate) fn index_of(&self, number: u8) -> u32 {
        self.places.get(usize::from(number)).map_or(NOBODY, |it| it.load(Ordering::Acquire))
    }
}
