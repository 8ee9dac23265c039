//! Changes of the membership while the matrix is open.
//!
//! A changed record is written to all current members with the next epoch, and then once more with that epoch
//! as the committed one; only then is it in force. A member that fails to write it leaves with the same
//! change. Each device writes it in a thread of its own, with a deadline, so that a device that hangs leaves
//! like one that fails. A query of the membership needs no lock that is held meanwhile.
//!
//! After a change that fails the record before it is written again, with a later epoch. If no device takes it, an
//! open may find the changed one, so that no write is made until a record is in force again.
//!
//! **Members leave.** The failed one may have been the primary, and writes that it had acknowledged may still
//! be in the rings of the others. The same holds for writes that the others had acknowledged together, where
//! writes wait for some members only. Therefore:
//!
//! ```text
//!   states: changing     no write is answered from here on
//!     ─▶ the members that stay execute the writes on their way to them
//!     ─▶ the primary has left? a member that has every write becomes primary
//!     ─▶ record without those that left, durable and committed
//!     ─▶ states: these members, this primary; writers check whether enough of them have their writes
//! ```
//!
//! A power cut before the new record leaves the old one, which requires the old primary. If no remaining
//! member can make a write that only the old primary had, its key is a
//! [lost range](crate::membership::lost_ranges) of the record.
//!
//! A change waits for no key lock, since the holders of key locks may wait for the change.

use crate::device::{Device, Drained, is_failure};
use crate::failover::Failover;
use crate::group::Group;
use crate::membership::{LostRange, MemberState, MembershipRecord, just};
use crate::shape::Position;
use coreplane_engine::{Error, Result};
use coreplane_pmem::spin::{Backoff, Patience};
use coreplane_pmem::{ShortLived, background, mutant};
use parking_lot::MutexGuard;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How long the threads that write the record are waited for between two looks at the time.
const LOOK: Duration = Duration::from_millis(5);

/// True if a group has a current member besides this one.
fn has_current(record: &MembershipRecord, group: u16, but: Option<Position>) -> bool {
    let but = but.filter(|at| at.group == group).map_or(0, |at| 1 << at.device);
    record.current_of(group) & !but != 0
}

/// A device or a group that joins with a change, and that cannot yet take the place of a leaving member.
#[derive(Clone, Copy, Default)]
pub(crate) struct Joiner<'a> {
    /// A device that has been filled.
    pub(crate) device: Option<Position>,
    /// A group that does not belong to the matrix yet.
    pub(crate) group: Option<&'a Arc<Group>>,
}

impl Joiner<'_> {
    fn is(&self, at: Position) -> bool {
        self.device == Some(at) || self.group.is_some_and(|group| group.number == at.group)
    }
}

/// A member that leaves, and why, if that is to be noted when it has left.
type Gone<'a> = (Position, Option<&'a Error>);

/// Groups some of whose members are leaving; when it is dropped, the members of the groups left in it have stayed.
struct Leaving<'s> {
    groups: Vec<&'s Arc<Group>>,
}

impl<'s> Leaving<'s> {
    fn begin(&mut self, group: &'s Arc<Group>) {
        if !self.groups.iter().any(|known| known.number == group.number) {
            group.states.begin_change();
            self.groups.push(group);
        }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.groups.iter().for_each(|group| group.states.stay());
    }
}

impl Failover {
    /// Ends the membership of a device: durably on all that can be reached, when it returns. Does nothing if
    /// another device is at its place by now. The reason, if it is no failure, is noted when it has left.
    ///
    /// # Errors
    /// If it was the last of its group.
    pub(crate) fn end_membership(&self, device: &Device, why: Option<&Error>) -> Result<()> {
        let (at, mut backoff) = (device.at, Backoff::new());
        let group = self.keyspace.groups.get(usize::from(at.group));
        let others = || {
            let members = group.into_iter().flat_map(|group| group.of(group.members()));
            members.filter(|it| it.number != at.device)
        };
        let failures = || others().map(|it| it.failures()).sum::<u64>();
        let fails = || others().any(|it| it.is_failing());
        loop {
            let is_primary = self.membership.now().primary_of(at.group) == at.device;
            let (before, did_fail) = (failures(), fails());
            let demoted = self.try_demote(device, why);
            let has_failed = did_fail || fails() || failures() != before;
            // The failing member cannot make a write that the primary has. When its processor has tried to leave,
            // either it has left or the writes that it lacks are noted.
            if demoted.is_ok() || !is_primary || !has_failed {
                return demoted;
            }
            backoff.wait();
        }
    }

    fn try_demote(&self, device: &Device, why: Option<&Error>) -> Result<()> {
        let at = device.at;
        let mut record = self.membership.lock();
        let Some(group) = self.keyspace.groups.iter().find(|group| group.number == at.group) else {
            return Err(Error::Unusable(format!("there is no device {at}")));
        };
        if !group.is_there(device) {
            return Ok(());
        }
        let bit = 1 << at.device;
        if group.followers() & bit != 0 && group.members() & bit == 0 {
            // No write counts on it yet.
            group.states.leave(at.device);
            self.keyspace.settle_group(group);
            return Ok(());
        }
        if group.members() & bit == 0 {
            return Ok(());
        }
        self.commit_with(&mut record, vec![(at, why)], Joiner::default())
    }

    /// Puts a changed record in force: it is durable on all current members when it returns. A device that
    /// fails to write it is no longer a member. After an error the record is as it was before the change, and
    /// has been written again; if that was possible on no device, nothing is written from now on until a change
    /// succeeds.
    ///
    /// # Errors
    /// If a group would have no member, and if a device is full.
    pub(crate) fn commit(&self, record: &mut MembershipRecord) -> Result<()> {
        self.commit_with(record, vec![], Joiner::default())
    }

    /// Changes the record, likewise, and returns it locked.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub(crate) fn change(
        &self,
        change: impl FnOnce(&mut MembershipRecord),
    ) -> Result<MutexGuard<'_, MembershipRecord>> {
        let mut record = self.membership.lock();
        change(&mut record);
        self.commit(&mut record)?;
        Ok(record)
    }

    /// As [`Self::commit`], without the members that have `gone`, and with a `joiner`.
    pub(crate) fn commit_with(
        &self,
        record: &mut MembershipRecord,
        gone: Vec<Gone<'_>>,
        joiner: Joiner<'_>,
    ) -> Result<()> {
        // Until the undone record is written, too.
        let (mut leaving, mut may_be_there) = (Leaving { groups: Vec::new() }, false);
        let committed = self.try_commit(record, (&mut leaving, &mut may_be_there), gone, joiner);
        let mut is_in_force = committed.is_ok();
        if !is_in_force {
            let epoch = record.epoch + 1;
            record.clone_from(&self.membership.now());
            record.epoch = epoch;
            let written = self.write_to_members(record, joiner);
            is_in_force = written.iter().any(|(_, written)| written.is_ok());
            self.membership.publish(record);
        }
        // Before the members stay: then writes that have waited for the change go on.
        if is_in_force {
            self.set_lacks_record(false);
        } else if may_be_there && !mutant!("mkvs.change.not_undone") {
            self.set_lacks_record(true);
        }
        committed
    }

    /// Notes whether no device is known to have the record in force. The caller has the right to change it.
    fn set_lacks_record(&self, lacks_record: bool) {
        // Those that are on their way learn of it from the states, too. The first group, which answers for all, last.
        let groups = &self.keyspace.groups;
        if self.keyspace.lacks_record() != lacks_record {
            let in_order = groups.iter().skip(1).chain(groups.iter().take(1));
            in_order.for_each(|group| group.states.set_proven(!lacks_record));
        }
    }

    fn try_commit<'s>(
        &'s self,
        record: &mut MembershipRecord,
        (leaving, may_be_there): (&mut Leaving<'s>, &mut bool),
        mut gone: Vec<Gone<'_>>,
        joiner: Joiner<'_>,
    ) -> Result<()> {
        loop {
            gone.iter().for_each(|(at, _)| record.leave(*at));
            // The last member of a group must write the record, or else it would prove the old membership.
            let is_last = |(at, _): &&Gone<'_>| !has_current(record, at.group, joiner.device);
            if let Some((last, _)) = gone.iter().find(is_last) {
                let what = format!("{last} has failed, the last current device of its group");
                return Err(Error::Unusable(what));
            }
            let group_of = |at: &Position| &self.keyspace.groups[usize::from(at.group)];
            gone.iter().for_each(|(at, _)| leaving.begin(group_of(at)));
            let groups = if mutant!("mkvs.change.undrained") { &[] } else { &leaving.groups[..] };
            let failing = self.drain(groups, record)?;
            if !failing.is_empty() {
                gone.extend(failing.into_iter().map(|at| (at, None)));
                continue;
            }
            self.name_primaries(&leaving.groups, record)?;
            let failed = self.write_twice(record, joiner, may_be_there);
            if failed.is_empty() {
                break;
            }
            for (position, error) in failed {
                // A device that cannot write the record has failed too, unless it is full, just being closed, or
                // joining.
                if !is_failure(&error) {
                    return Err(error);
                }
                if let Some(device) = self.device_at(position) {
                    device.note_failure(&error);
                    device.note_timeout(&error);
                }
                if joiner.is(position) {
                    return Err(error);
                }
                gone.push((position, None));
            }
        }
        // Before a device is a member that lacks them.
        self.keyspace.lost_ranges.set(&record.lost_ranges);
        for (at, why) in &gone {
            let device = self.device_at(*at).map(|device| &**device);
            device.zip(*why).iter().for_each(|(device, why)| device.note_failure(why));
            self.note_departure(*at, device);
        }
        for group in leaving.groups.drain(..) {
            let (left, primary) =
                (record.current_of(group.number), record.primary_of(group.number));
            let left = left & group.members();
            group.set_members(left, primary, |hash| self.keyspace.is_of(group.number, hash));
        }
        // Behind the states: a checkpoint that reads this epoch drains a member that has joined with it. And before
        // the call returns: a caller that is informed of a departure finds the record in force.
        self.membership.publish(record);
        for (position, _) in gone {
            let device = self.device_at(position).filter(|device| device.has_timed_out());
            device.iter().for_each(|device| device.give_up());
            let why = self.device_at(position).and_then(|device| device.why().map(str::to_owned));
            let mut damaged = self.damaged.lock();
            damaged.retain(|(known, _)| *known != position);
            damaged.extend(why.map(|why| (position, why)));
        }
        Ok(())
    }

    /// Waits until the members that stay have executed the writes on their way to them; returns those that
    /// fail meanwhile.
    ///
    /// # Errors
    /// If a member is late although its processor does not hang: a caller's own write that has a place in the
    /// ring may hang.
    fn drain(&self, groups: &[&Arc<Group>], record: &MembershipRecord) -> Result<Vec<Position>> {
        let mut failing = Vec::new();
        for group in groups {
            let calls = |device: &Arc<Device>| (Arc::clone(device), device.call());
            let begun: Vec<_> = group.devices().map(calls).collect();
            let hangs = |device: &Arc<Device>| {
                let same = |(it, call): &(Arc<Device>, Option<u64>)| {
                    Arc::ptr_eq(it, device) && call.is_some() && *call == device.call()
                };
                begun.iter().any(same)
            };
            let mut patience = group.rules.answers_within.map(Patience::new);
            for device in group.of(record.current_of(group.number) & group.members()) {
                let at = device.at;
                match device.drain_within(patience.as_mut()) {
                    Drained::All => {}
                    Drained::Failing => failing.push(at),
                    // Its processor has been in one call all the time.
                    Drained::Late if hangs(device) => failing.push(at),
                    Drained::Late => {
                        let what = format!("{at} has not made in time what was on its way to it");
                        return Err(Error::Unusable(what));
                    }
                }
            }
        }
        Ok(failing)
    }

    /// Names another primary, which has every acknowledged write, where the primary has left. Writes that no
    /// member has are noted as lost.
    fn name_primaries(&self, groups: &[&Arc<Group>], record: &mut MembershipRecord) -> Result<()> {
        for group in groups {
            let number = group.number;
            let stays = record.current_of(number) & group.members();
            if stays & 1 << record.primary_of(number) != 0 {
                continue;
            }
            let sure = self.keyspace.in_flight.sure_of(number, stays, |_| true);
            let Some(successor) = (if sure == 0 { stays } else { sure }).checked_ilog2() else {
                continue;
            };
            record.name_primary(number, successor as u8);
            let mut lost = Vec::new();
            if sure == 0 {
                let newest = self.keyspace.sequence.load(Ordering::Acquire);
                for (_, doubt, sure) in self.keyspace.in_flight.indeterminate() {
                    // A write that was neither made nor taken back was never acknowledged.
                    if doubt.group == number && sure & 1 << successor == 0 && doubt.torn.is_none() {
                        let mut range = LostRange::new(number, just(&doubt.key));
                        range.end(newest);
                        lost.push(range);
                    }
                }
            }
            record.take_lost_ranges(&lost)?;
        }
        Ok(())
    }

    fn device_at(&self, Position { group, device }: Position) -> Option<&Arc<Device>> {
        self.keyspace.groups.get(usize::from(group))?.device(device).ok()
    }

    /// Writes the record with the next epoch to all current members, and again as committed; returns the
    /// devices that failed, with their errors. Notes if some device may have it.
    fn write_twice(
        &self,
        record: &mut MembershipRecord,
        joiner: Joiner<'_>,
        may_be_there: &mut bool,
    ) -> Vec<(Position, Error)> {
        record.epoch += 1;
        let failed = |(at, written): (Position, Result<()>)| written.err().map(|error| (at, error));
        let written = self.write_to_members(record, joiner);
        // Only for lack of space is it certain that a record was not written.
        *may_be_there |= written.iter().any(|(_, it)| !matches!(it, Err(Error::NoSpace { .. })));
        let failed_first: Vec<_> = written.into_iter().filter_map(failed).collect();
        if !failed_first.is_empty() {
            return failed_first;
        }
        if mutant!("mkvs.change.uncommitted") {
            return Vec::new();
        }
        record.committed = record.epoch;
        self.write_to_members(record, joiner).into_iter().filter_map(failed).collect()
    }

    /// Writes the record to all current members: each in a thread of its own, with the deadline, or, if there is
    /// no deadline or the system gives no thread, in this one. Returns the answers.
    fn write_to_members(
        &self,
        record: &MembershipRecord,
        joiner: Joiner<'_>,
    ) -> Vec<(Position, Result<()>)> {
        let groups = || self.keyspace.groups.iter().chain(joiner.group);
        let within = groups().next().and_then(|group| group.rules.answers_within);
        let (sender, receiver) = mpsc::channel();
        let (mut open, mut left) = (BTreeMap::new(), Vec::new());
        for device in groups().flat_map(|group| group.of(record.current_of(group.number))) {
            let (own, sender, known) = (record.at(device.at), sender.clone(), Arc::clone(device));
            let write = move || {
                let _number = ShortLived::begin();
                // If it was too late there is no receiver.
                let _heard = sender.send((known.at, own.write(&known.engine))).is_ok();
            };
            match within.map(|_| background::spawn_in_time("coreplane-record", write)) {
                Some(Ok(thread)) => drop(open.insert(device.at, thread)),
                _ => left.push(device),
            }
        }
        let mut answers = Vec::new();
        let mut patience = Patience::new(within.unwrap_or_default());
        while !open.is_empty() {
            match receiver.recv_timeout(LOOK) {
                Ok((at, written)) => {
                    // The thread ends now, and drops its reference to the device.
                    let _ended = open.remove(&at).is_some_and(|thread| thread.join().is_ok());
                    answers.push((at, written));
                }
                Err(RecvTimeoutError::Timeout) if patience.goes_on() => {}
                Err(_) => break,
            }
        }
        let late = |at: Position| {
            let within = within.unwrap_or_default().as_secs_f32();
            let context = format!("{at} has not written the membership record in {within} s");
            (at, Err(Error::Io { context, source: io::ErrorKind::TimedOut.into() }))
        };
        answers.extend(open.into_keys().map(late));
        answers.extend(left.iter().map(|it| (it.at, record.at(it.at).write(&it.engine))));
        answers
    }

    /// Which devices are current members, and which are not.
    pub(crate) fn member_states(&self) -> Vec<(Position, MemberState)> {
        let record = self.membership.now();
        let state = |position: Position| {
            let member = record.member(position);
            (position, member.map_or(MemberState::Absent, |member| member.state))
        };
        record.positions().map(state).collect()
    }
}
