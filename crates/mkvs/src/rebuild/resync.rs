//! Resync: fills a returning or new device from its peers, while readers and writers continue.
//!
//! ```text
//!   the record says "joining", durably ─▶ writes come to it through its ring
//!     ─▶ all records of its peers are given to it ─▶ records that the peers lack are removed
//!     ─▶ writes wait for it ─▶ the record says "current", durably ─▶ it is read
//! ```
//!
//! After an interruption at any point the device is still joining, and the same call continues: records that
//! it has are compared and not written again.
//!
//! A device that was away may have writes that were never acknowledged, and may lack deletes so old that no
//! device has a tombstone of them. So none of its records is trusted: each of its keys is compared with its
//! peers, within the key lock, and where the device has the newer record, the record of the peers is written
//! anew.

use crate::device::{Device, Guarded, each_lot, is_damage};
use crate::failover::Joiner;
use crate::filter::hash_of;
use crate::group::{Group, sequence_on};
use crate::in_flight::InFlight;
use crate::keyspace::intent::Intent;
use crate::membership::{
    Found, LostRange, Member, MemberState, MembershipRecord, Rack, drawn, just,
};
use crate::rebuild::copy::{Copied, CopyOptions, Pace};
use crate::rebuild::scrub::Scrubbed;
use crate::rebuild::{Rebuild, filter_snapshot};
use crate::shape::{Position, is_reserved};
use coreplane_engine::{Entry, Error, KeyRange, Outcome, Progress, Result, Vacancy};
use coreplane_pmem::mutant;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Rebuild {
    /// Fills an older copy of a member before users are admitted, which makes it a member. If that fails the
    /// device stays as it is, and the next open of the matrix tries again.
    pub(crate) fn fill_outdated(
        &self,
        place: Position,
        device: Found,
        progress: &(dyn Fn(Progress) + Sync),
    ) {
        let Some(group) = self.keyspace.groups.get(usize::from(place.group)) else { return };
        let options = CopyOptions::default();
        let filled = self.fill_member(group, place, device.engine, &options, progress);
        self.failover.damaged.lock().extend(filled.err().map(|error| (place, error.to_string())));
    }

    /// Fills a device from the members of its group, which makes it a member.
    pub(crate) fn fill_member(
        &self,
        group: &Arc<Group>,
        place: Position,
        engine: Arc<Guarded>,
        options: &CopyOptions,
        progress: &dyn Fn(Progress),
    ) -> Result<Copied> {
        self.keyspace.take_in(place, &engine)?;
        Intent::drop_all(&engine)?;
        filter_snapshot::drop_all(&engine)?;
        self.failover.damaged.lock().retain(|(damaged, _)| *damaged != place);
        let device = Arc::new(Device::new(place, engine));
        // A write that began when the previous device was a member finds that one at the place, and not one that
        // lacks the key.
        self.keyspace.in_flight.wait_for_key_locks();
        let before = group.device(place.device).ok().cloned();
        {
            // A thread that finds from here on that the previous device has failed comes too late.
            let _record = self.failover.membership.lock();
            group.place(Arc::clone(&device));
            group.states.join(place.device);
        }
        if let Some(before) = before {
            before.leave(Some(&device));
        }
        let filled = self.fill(group, &device, options, progress);
        let joined = filled.and_then(|(pace, since)| {
            self.admit(group, &device, (pace.lost(), since)).map(|()| pace.filled())
        });
        if joined.is_err() {
            group.states.leave(place.device);
            self.keyspace.settle_group(group);
        }
        joined
    }
}

/// The existing device cannot be filled.
fn fresh_only(what: String) -> Error {
    Error::Occupied { what, vacancy: Vacancy::Fresh }
}

pub(crate) fn no_such(place: Position) -> Error {
    Error::Unusable(format!("there is no place {place} in this matrix"))
}

impl Rebuild {
    /// The right to fill a device or a group.
    pub(crate) fn fill_alone(&self) -> Result<parking_lot::MutexGuard<'_, ()>> {
        self.failover.check_writable()?;
        let busy = || Error::Unusable("another device or group is being filled".to_owned());
        self.filling.try_lock().ok_or_else(busy)
    }

    /// Records durably that a device joins, and creates or finds it.
    pub(crate) fn announce(
        &self,
        rack: &dyn Rack,
        group: &Group,
        place: Position,
        options: &CopyOptions,
    ) -> Result<Arc<Guarded>> {
        let known = self.failover.membership.now().member(place).cloned();
        let member = known.ok_or_else(|| no_such(place))?;
        self.make_way(rack, group, place, options)?;
        let found = if options.is_fresh {
            // Waits until its processor has gone through its rings and ended. Writes there are not made: the device
            // is not in the group now.
            group.device(place.device).iter().for_each(|device| device.stop());
            None
        } else {
            self.returning(rack, group, place, &member)?
        };
        let identity = if found.is_some() { member.identity } else { drawn() };
        let state = MemberState::Joining;
        self.check_place(place)?;
        let record = self.write_state(place, &Member { identity, state })?;
        let engine = match found {
            Some(engine) => engine,
            None => {
                // The old device takes space, perhaps space that the new one needs.
                group.device(place.device).iter().for_each(|device| device.leave(None));
                rack.remove(place)?;
                Guarded::new(rack.create(place, &self.keyspace.clock.source())?)?
            }
        };
        record.at(place).write(&engine)?;
        Ok(engine)
    }

    /// Lets a current device make way for a fresh one if its file or medium was removed while it was open:
    /// the next open of the matrix would not find it.
    ///
    /// # Errors
    /// If the device is current, and is at its place or no fresh device is requested.
    fn make_way(
        &self,
        rack: &dyn Rack,
        group: &Group,
        place: Position,
        options: &CopyOptions,
    ) -> Result<()> {
        if group.followers() & 1 << place.device == 0 {
            return Ok(());
        }
        if rack.present()?.contains(&place) {
            return Err(Error::Occupied {
                what: format!("{place} is a current device: one that fails is to be retired first"),
                vacancy: Vacancy::Retire,
            });
        }
        if !options.is_fresh {
            return Err(fresh_only(format!(
                "{place} is a current device, and was removed from its place: a fresh device can take it"
            )));
        }
        self.failover.end_membership(group.device(place.device)?, None)
    }

    /// The device that was at a place before, if it is present.
    fn returning(
        &self,
        rack: &dyn Rack,
        group: &Group,
        place: Position,
        member: &Member,
    ) -> Result<Option<Arc<Guarded>>> {
        let is_joining = member.state == MemberState::Joining;
        // A device that was dropped while the matrix was open is still open.
        let there = group.device(place.device).ok().filter(|device| !device.has_gone());
        let engine = match there {
            Some(device) => {
                device.stop();
                if device.is_given_up() {
                    let why = device.why().unwrap_or_default();
                    return Err(fresh_only(format!(
                        "{place} is still in a call that does not return ({why}): it can be looked at \
                         when the matrix is opened again, or a fresh device can take its place"
                    )));
                }
                if let Err(error) = device.engine.call(|it| it.check_medium()) {
                    if !rack.present()?.contains(&place) {
                        return Ok(None);
                    }
                    return Err(fresh_only(format!(
                        "{error}; what is at {place} now can be looked at when the matrix is opened \
                         again, or a fresh device can take its place"
                    )));
                }
                Arc::clone(&device.engine)
            }
            None if !rack.present()?.contains(&place) => return Ok(None),
            None => match rack.open(place, &self.keyspace.clock.source()).and_then(Guarded::new) {
                // It was about to be created.
                Err(Error::Unusable(_) | Error::NotAPool(_)) if is_joining => return Ok(None),
                Err(error) if is_damage(&error) || matches!(error, Error::NotAPool(_)) => {
                    return Err(fresh_only(format!(
                        "what is at {place} cannot be used ({error}): a fresh device can take its place"
                    )));
                }
                opened => opened?,
            },
        };
        let matrix = self.failover.membership.now().matrix.clone();
        match engine.call(MembershipRecord::read)? {
            // It was created, but did not get the record.
            None if is_joining && engine.call(|it| it.is_empty())? => Ok(Some(engine)),
            None => Err(Error::Unusable(format!("the device at {place} belongs to no matrix"))),
            Some(record) if record.matrix != matrix => Err(Error::Unusable(format!(
                "the device at {place} belongs to another matrix: {}, not {matrix}",
                record.matrix
            ))),
            // This device was there before a new one was to be created.
            Some(record) if is_joining && record.identity != member.identity => Ok(None),
            Some(record) if record.identity != member.identity || record.position != place => {
                Err(Error::Unusable(format!(
                    "the device at {place} was {} once, and was replaced by another: take it out",
                    record.position
                )))
            }
            Some(_) => Ok(Some(engine)),
        }
    }

    /// # Errors
    /// If another device of the matrix lies at the place of a new one.
    pub(crate) fn check_place(&self, place: Position) -> Result<()> {
        match self.occupied.lock().get(&place) {
            Some(other) if *other != place => Err(Error::Unusable(format!(
                "at {place} lies the device {other}: put each device where it belongs first"
            ))),
            _ => Ok(()),
        }
    }

    /// Gives a device another state: durably on all members, when it returns.
    fn write_state(&self, place: Position, member: &Member) -> Result<MembershipRecord> {
        let mut record = self.failover.membership.lock();
        let members = record.members.get_mut(usize::from(place.group));
        let it = members.and_then(|members| members.get_mut(usize::from(place.device)));
        *it.ok_or_else(|| no_such(place))? = member.clone();
        self.failover.commit(&mut record)?;
        Ok(record.clone())
    }

    /// Gives a device all records of its peers, and removes the records that they do not have. Returns the
    /// sequence above which it has every write.
    fn fill(
        &self,
        group: &Arc<Group>,
        device: &Device,
        options: &CopyOptions,
        progress: &dyn Fn(Progress),
    ) -> Result<(Pace, u64)> {
        // Writes from here on come to the device; earlier ones are found.
        self.keyspace.in_flight.wait_for_key_locks();
        let since = self.keyspace.sequence.load(Ordering::Acquire);
        let total = group.ask(Group::settled, |device| device.engine.call(|it| it.len()))?;
        let mut pace = Pace::new(options);
        let mut done = 0;
        self.give_all(group, &mut pace, &mut |item| {
            check_joining(group, device)?;
            done += 1;
            if done % 1024 == 0 {
                progress(Progress { stage: "filling", done: done.min(total), total });
            }
            match item.give_to(&device.engine)? {
                // The device may have a write of a moment ago, or one that was never acknowledged.
                Outcome::NotNewer(theirs, _) if theirs > item.sequence => {
                    self.hold_key(group, device, &item.key)
                }
                _ => Ok(()),
            }
        })?;
        self.compare_with_peers((group, device), &mut pace, progress)?;
        progress(Progress { stage: "filling", done: pace.records(), total: pace.records() });
        Ok((pace, since))
    }

    /// Removes every key of a device that its peers do not have, and overwrites records that are newer on it
    /// than on its peers. Keys that are damaged on all peers that have them are noted as lost.
    fn compare_with_peers(
        &self,
        (group, device): (&Arc<Group>, &Device),
        pace: &mut Pace,
        progress: &dyn Fn(Progress),
    ) -> Result<()> {
        let (mut done, total) = (0, device.engine.call(|it| it.len())?);
        let take = |entry: &Entry<'_>| {
            (!is_reserved(entry.key)).then(|| (entry.key.to_vec(), entry.sequence))
        };
        each_lot((&device.engine, &[]), take, |keys| {
            done += keys.len() as u64;
            for (key, sequence) in keys {
                self.check_going_on()?;
                check_joining(group, device)?;
                // Mostly they have the same, and no key lock is needed to see that.
                if matches!(group.item_of(&key), Ok(Some(item)) if item.sequence == sequence) {
                    continue;
                }
                match self.hold_key(group, device, &key) {
                    Err(error) if is_damage(&error) => {
                        let mut scrubbed = Scrubbed::default();
                        self.scrub_key(group, &key, &mut scrubbed)?;
                        if scrubbed.lost.is_empty() {
                            self.hold_key(group, device, &key)?;
                        } else {
                            // It stays as it is.
                            pace.leave_out(just(&key));
                        }
                    }
                    held => held?,
                }
            }
            progress(Progress { stage: "holding against peers", done: done.min(total), total });
            Ok(())
        })?
    }

    /// Compares a key within its key lock, when all members have the same record. If this device has another,
    /// the record of its peers is written anew, to all.
    fn hold_key(&self, group: &Group, device: &Device, key: &[u8]) -> Result<()> {
        let hash = hash_of(key);
        let _turn = self.keyspace.in_flight.lock_key(InFlight::stripe_of(hash));
        self.check_going_on()?;
        device.drain();
        if sequence_on(&device.engine, key)? == group.sequence_of(key)? {
            return Ok(());
        }
        let item = group.give_anew(hash, key)?;
        self.keyspace.in_flight.keep_tombstones(u64::from(item.put.is_none()));
        Ok(())
    }

    /// Makes a device that has been filled a member: durably, when it returns.
    fn admit(&self, group: &Arc<Group>, device: &Device, lost: (&[KeyRange], u64)) -> Result<()> {
        group.states.propose(device.number);
        // Writers wait for the device from here on; earlier writes are in its ring.
        if !mutant!("mkvs.admit.undrained") {
            self.keyspace.in_flight.wait_for_key_locks();
            device.drain();
        }
        device.engine.call(|it| it.sync())?;
        let horizon = group.settled()?.engine.tell(|it| it.tombstone_horizon());
        let mut record = self.failover.membership.lock();
        // From here to the end no member can leave.
        self.keyspace.check_writable()?;
        check_joining(group, device)?;
        // Before the record makes it current: an error leaves the record as it was.
        let left_out = left_out(group, device, lost)?;
        record.take_lost_ranges(&left_out)?;
        record.stand(device.at, MemberState::Current);
        // It received no tombstones that its peers had dropped.
        record.horizon = record.horizon.max(horizon);
        let joiner = Joiner { device: Some(device.at), ..Joiner::default() };
        self.failover.commit_with(&mut record, vec![], joiner)?;
        self.keyspace.horizon.fetch_max(record.horizon, Ordering::AcqRel);
        let of_group = |hash: u64| self.keyspace.is_of(group.number, hash);
        self.failover.forget_departure(device.at);
        self.keyspace.in_flight.filled(device.number, of_group);
        let primary = record.primary_of(group.number);
        group.set_members(group.members() | 1 << device.number, primary, of_group);
        Ok(())
    }
}

/// # Errors
/// If the device has failed meanwhile.
fn check_joining(group: &Group, device: &Device) -> Result<()> {
    if group.followers() & 1 << device.number == 0 {
        return Err(Error::Unusable(format!("{} failed while it was filled", device.at)));
    }
    Ok(())
}

/// The keys that could not be given to a device, and that it has not received since: it must not report them
/// as absent.
fn left_out(
    group: &Group,
    device: &Device,
    (lost, since): (&[KeyRange], u64),
) -> Result<Vec<LostRange>> {
    let mut left_out = Vec::new();
    for it in lost {
        let known = it.only_key().map(|key| sequence_on(&device.engine, key)).transpose()?;
        if known.flatten().unwrap_or(0) <= since {
            left_out.push(LostRange::new(group.number, it.clone()));
        }
    }
    left_out.iter_mut().for_each(|it| it.end(since));
    Ok(left_out)
}
