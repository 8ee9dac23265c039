//! A group that is added: slots move to it, a few at a time, while readers and writers continue.
//!
//! ```text
//!   the group's devices are planned, made and have a record ─▶ the group exists, and slots are "moving"
//!     ─▶ every write to a moving slot is made in the new group as well
//!     ─▶ all records of the slots in the old group are given to the new one
//!     ─▶ a few slots at a time: their writers wait, the record has the new owner, writers continue
//!     ─▶ the old groups remove records of slots that they no longer own
//! ```
//!
//! After an interruption at any point, an open finds slots that have moved and slots that have not, each
//! whole with its owner, and [`Matrix::finish_moves`](crate::Matrix::finish_moves) continues: it gives
//! everything again (existing records are not written twice), and compares the new group with the old one.
//!
//! A new group that cannot take a write (for example because it is full) loses the slot before it owns it:
//! the owner is the old group, which has everything.

use crate::device::{Device, Guarded, each_lot, is_damage};
use crate::failover::Joiner;
use crate::filter::hash_of;
use crate::group::{Group, Item, sequence_on};
use crate::in_flight::InFlight;
use crate::membership::{Member, MemberState, MembershipRecord, Rack, drawn};
use crate::rebuild::Rebuild;
use crate::rebuild::copy::{Copied, CopyOptions, Pace, hurt_of};
use crate::shape::{GROUPS_MAX, Position, is_reserved, share_of, slot_of};
use coreplane_engine::{Entry, Error, KeyRange, Progress, Result};
use coreplane_pmem::mutant;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Slots that change hands at a time: their writers wait for a change of the record.
const SLOTS_AT_A_TIME: usize = 16;

impl Rebuild {
    /// Creates the devices of a new group, and the group; from then on its share of the slots is to move.
    pub(crate) fn make_group(&self, rack: &dyn Rack) -> Result<()> {
        let number = self.keyspace.groups.len() as u16;
        if number == GROUPS_MAX {
            return Err(Error::Unusable(format!("a matrix has at most {GROUPS_MAX} groups")));
        }
        let plan = |record: &mut MembershipRecord| {
            let devices = record.members.first().map_or(0, Vec::len);
            let member = |_| Member { identity: drawn(), state: MemberState::Joining };
            record.planned = Some((0..devices).map(member).collect());
        };
        let planned = self.failover.change(plan)?.clone();
        let mut devices = Vec::new();
        for at in 0..planned.planned.as_ref().map_or(0, Vec::len) {
            let place = Position { group: number, device: at as u8 };
            self.check_place(place)?;
            rack.remove(place)?;
            let engine = Guarded::new(rack.create(place, &self.keyspace.clock.source())?)?;
            self.keyspace.take_in(place, &engine)?;
            planned.at(place).write(&engine)?;
            devices.push(Arc::new(Device::new(place, engine)));
        }
        let parts = (
            Arc::clone(&self.keyspace.in_flight),
            Arc::clone(&self.keyspace.sequence),
            self.keyspace.groups[0].rules,
        );
        let primary = devices.len().saturating_sub(1) as u8;
        let superior = Arc::downgrade(&self.failover);
        let group = Group::new(superior, number, (devices, primary), parts)?;
        // All devices have a record by now: the group exists as soon as the record of one device says so.
        let mut record = self.failover.membership.lock();
        found(&mut record);
        let joiner = Joiner { group: Some(&group), ..Joiner::default() };
        self.failover.commit_with(&mut record, vec![], joiner)?;
        self.keyspace.has_guests.store(true, Ordering::Release);
        if !self.keyspace.groups.push(group) {
            return Err(Error::Unusable("a group was added at the same time".to_owned()));
        }
        Ok(())
    }

    /// Moves the slots that are to move, and removes the moved records.
    pub(crate) fn run_moves(
        &self,
        options: &CopyOptions,
        progress: &dyn Fn(Progress),
    ) -> Result<Copied> {
        let mut pace = Pace::new(options);
        if !self.keyspace.has_guests.load(Ordering::Acquire) {
            return Ok(pace.filled());
        }
        let moving: Vec<(usize, u16)> = {
            let record = self.failover.membership.now();
            record.moving.iter().map(|(slot, to)| (usize::from(*slot), *to)).collect()
        };
        for (slot, to) in &moving {
            self.keyspace.owners.begin(*slot, *to);
        }
        // Writers write to both groups from here on; earlier writes are found.
        self.keyspace.in_flight.wait_for_key_locks();
        for group in self.keyspace.groups.iter().filter(|_| !mutant!("mkvs.move.not_copied")) {
            self.give_moving(group, &mut pace, progress)?;
        }
        let is_target = |group: &Group| {
            self.keyspace.owners.has(|route| route.to() == Some(group.number.into()))
        };
        for group in self.keyspace.groups.iter().filter(|group| is_target(group)) {
            self.see_to_guests(group)?;
        }
        for group in self.keyspace.groups.iter() {
            self.hold_moving(group)?;
        }
        let total = moving.len() as u64;
        for (done, slots) in (0..).step_by(SLOTS_AT_A_TIME).zip(moving.chunks(SLOTS_AT_A_TIME)) {
            progress(Progress { stage: "moving slots", done, total });
            self.hand_over(slots)?;
        }
        progress(Progress { stage: "moving slots", done: total, total });
        for group in self.keyspace.groups.iter() {
            self.see_to_guests(group)?;
            self.filters.look_after_filter(group);
        }
        drop(self.failover.change(|record| record.has_guests = false)?);
        self.keyspace.has_guests.store(false, Ordering::Release);
        Ok(pace.filled())
    }

    /// Gives a group's records of moving slots to the groups that the slots move to.
    fn give_moving(
        &self,
        group: &Arc<Group>,
        pace: &mut Pace,
        progress: &dyn Fn(Progress),
    ) -> Result<()> {
        let number = usize::from(group.number);
        if !self.keyspace.owners.has(|route| route.to().is_some() && route.owner() == number) {
            return Ok(());
        }
        let total = group.ask(Group::settled, |device| device.engine.call(|it| it.len()))?;
        let mut done = 0;
        self.give_all(group, pace, &mut |item| {
            done += 1;
            if done % 1024 == 0 {
                progress(Progress { stage: "copying", done: done.min(total), total });
                self.keyspace.groups.iter().for_each(|group| self.filters.look_after_filter(group));
            }
            let hash = hash_of(&item.key);
            let _turn = self.keyspace.in_flight.lock_key(InFlight::stripe_of(hash));
            self.check_going_on()?;
            let route = self.keyspace.owners.of(hash);
            match route.to() {
                Some(to) if route.owner() == number => {
                    let has = self.keyspace.groups[to].give(hash, item)?;
                    // The target has a newer write, which may be left from an earlier try.
                    if has == item.put.is_some() {
                        Ok(())
                    } else {
                        self.keyspace.give_anew(route, &item.key)
                    }
                }
                _ => Ok(()),
            }
        })?;
        // If its slot moved, the key would no longer be known to have existed.
        let moves = |lost: &&KeyRange| {
            lost.only_key().is_none_or(|key| {
                let route = self.keyspace.owners.of(hash_of(key));
                route.to().is_some() && route.owner() == number
            })
        };
        match pace.lost().iter().find(moves) {
            Some(KeyRange { start: key, .. }) => Err(Error::Unusable(format!(
                "the record of \"{}\" is damaged on every device of group {number}, so that its slot \
                 cannot move: a scrub names all such keys, put or delete them first",
                key.escape_ascii()
            ))),
            None => Ok(()),
        }
    }

    /// Shows every key on a device whose slot its group does not own; if the device fails, the keys found by then.
    /// Returns the damage because of which it may not have shown all others.
    fn each_guest(
        &self,
        group: &Group,
        device: &Device,
        see: &mut dyn FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<Option<Error>> {
        let take = |entry: &Entry<'_>| {
            let is_own = self.keyspace.is_of(group.number, hash_of(entry.key));
            let is_guest = !is_own && !is_reserved(entry.key);
            is_guest.then(|| (entry.key.to_vec(), entry.sequence))
        };
        let listed = each_lot((&device.engine, &[]), take, |guests| {
            guests.iter().try_for_each(|(key, sequence)| {
                self.check_going_on()?;
                see(key, *sequence)
            })
        })?;
        match listed {
            Ok(()) => Ok(None),
            // The peers know the rest.
            Err(error) if is_damage(&error) => Ok(hurt_of(&device.engine, error).err()),
            // When the device returns it is compared with its peers.
            Err(error) => group.go_on_without(device, error).map(|()| None),
        }
    }

    /// Goes through a group's records of slots that it does not own. Those of slots that move to it are compared with
    /// their owners: records that the owners do not have are removed, and differing ones are overwritten. They are left
    /// from an earlier try. All others are removed; one that no member shows stays, and is not shown to readers either.
    ///
    /// # Errors
    /// As the devices, and if slots move to the group and each member has damage because of which it does not show all
    /// others: a record that its owner does not have might be among those.
    fn see_to_guests(&self, group: &Arc<Group>) -> Result<()> {
        let number = usize::from(group.number);
        let (mut is_listed, mut damage) = (false, None);
        for device in group.of(group.followers()) {
            let hidden = self.each_guest(group, device, &mut |key, sequence| {
                let hash = hash_of(key);
                let _turn = self.keyspace.in_flight.lock_key(InFlight::stripe_of(hash));
                self.check_going_on()?;
                let route = self.keyspace.owners.of(hash);
                if route.owner() == number {
                    return Ok(());
                }
                if route.to() != Some(number) {
                    let item = Item { key: key.to_vec(), put: None, sequence: group.draw(None) };
                    self.keyspace.in_flight.keep_tombstones(1);
                    return group.give(hash, &item).map(|_| ());
                }
                let owner = &self.keyspace.groups[route.owner()];
                if owner.sequence_of(key)? == Some(sequence) {
                    return Ok(());
                }
                // The sequence that was read may be out of date by now.
                match sequence_on(&device.engine, key) {
                    Err(error) if !is_damage(&error) => group.go_on_without(device, error),
                    Ok(has) if has == owner.sequence_of(key)? => Ok(()),
                    _ => self.keyspace.give_anew(route, key),
                }
            })?;
            is_listed |= hidden.is_none() && group.is_member(device);
            damage = damage.or(hidden);
        }
        let is_target = self.keyspace.owners.has(|route| route.to() == Some(number));
        damage.filter(|_| is_target && !is_listed).map_or(Ok(()), Err)
    }

    /// Hands slots over to their new owners: durably, when it returns.
    fn hand_over(&self, slots: &[(usize, u16)]) -> Result<()> {
        // Operations over many keys end first; only then are writers held up.
        let _moves = self.keyspace.moves.write();
        slots.iter().for_each(|(slot, _)| self.keyspace.owners.freeze(*slot));
        // From here on no writer of these slots is active, and all writes are everywhere.
        if !mutant!("mkvs.move.turns") {
            self.keyspace.in_flight.wait_for_key_locks();
        }
        self.keyspace.groups.iter().for_each(|group| {
            group.of(group.followers()).for_each(|device| device.drain());
            // Entries of the in-flight table refer to the group that the slots leave.
            self.keyspace.settle_group(group);
        });
        let is_synced = if mutant!("mkvs.move.sync") { Ok(()) } else { self.sync_targets(slots) };
        let written = is_synced.and_then(|()| self.write_owners(slots));
        for (slot, to) in slots {
            match written {
                Ok(()) => self.keyspace.owners.settle(*slot, *to),
                Err(_) => self.keyspace.owners.thaw(*slot),
            }
        }
        written
    }

    /// Makes everything durable that was given to the groups that slots move to.
    fn sync_targets(&self, slots: &[(usize, u16)]) -> Result<()> {
        for (number, group) in (0_u16..).zip(self.keyspace.groups.iter()) {
            if slots.iter().any(|(_, to)| *to == number) {
                group.of(group.followers()).try_for_each(|device| {
                    let synced = device.engine.call(|it| it.sync());
                    synced.or_else(|error| group.go_on_without(device, error))
                })?;
            }
        }
        Ok(())
    }

    fn write_owners(&self, slots: &[(usize, u16)]) -> Result<()> {
        let owners = &self.keyspace.owners;
        let is_lost =
            |(slot, to): &&(usize, u16)| owners.of_slot(*slot).to() != Some(usize::from(*to));
        if let Some((slot, to)) = slots.iter().find(is_lost) {
            let what = format!(
                "slot {slot} cannot move to group {to} now: a write to it could not be made in both groups"
            );
            return Err(Error::Unusable(what));
        }
        let moves = |hash: u64| slots.iter().any(|(slot, _)| *slot == slot_of(hash));
        if self.keyspace.lost_ranges.is_any()
            || self.keyspace.in_flight.indeterminate().iter().any(|it| moves(it.0))
        {
            let what =
                "of keys that are to move it is in doubt what was written last: scrub it first";
            return Err(Error::Unusable(what.to_owned()));
        }
        let mut horizon = 0;
        for group in self.keyspace.groups.iter() {
            horizon = group.settled()?.engine.tell(|it| it.tombstone_horizon()).max(horizon);
        }
        let mut record = self.failover.membership.lock();
        self.check_going_on()?;
        for (slot, to) in slots {
            record.owners[*slot] = *to;
            record.moving.remove(&(*slot as u16));
        }
        // The new owner received no tombstones that the old one had dropped.
        record.horizon = record.horizon.max(horizon);
        self.failover.commit(&mut record)?;
        self.keyspace.horizon.fetch_max(record.horizon, Ordering::AcqRel);
        Ok(())
    }
}

/// Makes a planned group a group of the matrix: its share of the slots is to move to it.
fn found(record: &mut MembershipRecord) {
    let Some(mut planned) = record.planned.take() else { return };
    planned.iter_mut().for_each(|member| member.state = MemberState::Current);
    let group = record.members.len() as u16;
    record.primaries.push(planned.len().saturating_sub(1) as u8);
    record.members.push(planned);
    let share = share_of(group, &record.owners).into_iter();
    record.moving = share.map(|slot| (slot as u16, group)).collect();
    record.has_guests = true;
}
