//! What is done beside reading and writing: members that fail, the mark, the close.

use crate::bloom::hash_of;
use crate::decided::is_failure;
use crate::device::Device;
use crate::label::{Ack, Label, Position, Standing};
use crate::matrix::Shared;
use crate::order::anchor_of;
use coreplane_engine::{Batch, Error, Remedy, Result};
use coreplane_pmem::spin;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sequences below this are taken.
const SEQUENCE_MAX: u64 = 1 << 61;

/// Sequences after which somebody looks how full a filter is.
const FILTERS: u64 = 1 << 10;

/// Sequences after which the mark is raised.
pub(crate) const MARKS: u64 = 1 << 20;

/// True for the first that comes to a stretch of sequences: a write may draw several, so that nobody may
/// see its first.
#[inline]
fn is_next(last: &AtomicU64, stretch: u64) -> bool {
    stretch > last.load(Ordering::Relaxed) && last.fetch_max(stretch, Ordering::Relaxed) < stretch
}

/// Tombstones that devices keep before one without space is relieved of them.
const FULL: u64 = 1 << 10;

/// True if a group has a current member besides this one.
fn has_current(label: &Label, group: u16, but: Option<Position>) -> bool {
    let members = label.members.get(usize::from(group)).into_iter().flatten();
    (0..).zip(members).any(|(device, member)| {
        member.standing == Standing::Current && but != Some(Position { group, device })
    })
}

impl Shared {
    /// A device is a member no more: durably so on all that can be reached, when it returns. Nothing
    /// is to be done if another is in its place by now.
    ///
    /// # Errors
    /// If it was the last of its group.
    pub(crate) fn demote(&self, position: Position, device: &Device) -> Result<()> {
        let mut label = spin::lock(&self.label);
        let Some(group) = self.groups.iter().find(|group| group.number == position.group) else {
            return Err(Error::Unusable(format!("there is no device {position}")));
        };
        if !group.is_there(device) {
            return Ok(());
        }
        let bit = 1 << position.device;
        if group.followers() & bit != 0 && group.members() & bit == 0 {
            // Nobody counts on it yet.
            group.standings.leave(position.device);
            self.settle_group(group);
            return Ok(());
        }
        let members = group.members();
        if members & bit == 0 {
            return Ok(());
        }
        let before = label.clone();
        self.write_without(&mut label, &before, vec![position], None)
    }

    /// Writes a label that was changed to all current members; durable when it returns. Who cannot
    /// be told is a member no more. After an error the label is as it was before the change, and who
    /// was told otherwise has been told again, as far as that could be.
    ///
    /// # Errors
    /// If a group would have no member, and if a device is full.
    pub(crate) fn write_changed(&self, label: &mut Label, before: &Label) -> Result<()> {
        self.write_without(label, before, vec![], None)
    }

    /// The same, without the members that have `gone`, and with a `joiner`, which is not yet one that
    /// others may go for.
    pub(crate) fn write_without(
        &self,
        label: &mut Label,
        before: &Label,
        gone: Vec<Position>,
        joiner: Option<Position>,
    ) -> Result<()> {
        let written = self.try_write_without(label, gone, joiner);
        if written.is_err() {
            let epoch = label.epoch + 1;
            label.clone_from(before);
            label.epoch = epoch;
            self.write_label(label);
        }
        written
    }

    fn try_write_without(
        &self,
        label: &mut Label,
        mut gone: Vec<Position>,
        joiner: Option<Position>,
    ) -> Result<()> {
        loop {
            gone.iter().for_each(|position| label.leave(*position));
            // The last of a group must be told: else it would prove the old membership.
            if let Some(last) = gone.iter().find(|it| !has_current(label, it.group, joiner)) {
                let what = format!("{last} has failed, the last current device of its group");
                return Err(Error::Unusable(what));
            }
            label.epoch += 1;
            // The others may not have got yet what the anchor had acknowledged. Who only follows has nothing
            // that was acknowledged without the anchor, which stays.
            if label.ack != Ack::All {
                let anchors = gone.iter().filter(|it| self.is_anchor(**it));
                anchors.for_each(|anchor| label.lose_holder(*anchor));
            }
            let failed = self.write_label(label);
            if failed.is_empty() {
                // Which the next one says.
                label.heard = label.epoch;
                break;
            }
            for (position, error) in failed {
                self.device_at(position).iter().for_each(|device| device.note_failure(&error));
                // Who cannot be told has failed too; but not who is full, or is just being closed.
                if !is_failure(&error) || Some(position) == joiner {
                    return Err(error);
                }
                gone.push(position);
            }
        }
        for at @ Position { group, .. } in &gone {
            let members = label.members[usize::from(*group)].iter();
            let current = members.enumerate().filter(|it| it.1.standing == Standing::Current);
            let left = current.fold(0, |set, (device, _)| set | 1 << device);
            let of = &self.groups[usize::from(*group)];
            self.note_departure(*at, self.device_at(*at).map(|device| &**device));
            of.set_members(left & of.members(), |hash| self.is_of(*group, hash));
        }
        for position in gone {
            let why = self.device_at(position).and_then(|device| device.why().map(str::to_owned));
            let mut damaged = self.damaged.lock();
            damaged.retain(|(known, _)| *known != position);
            damaged.extend(why.map(|why| (position, why)));
        }
        self.is_level.store(label.is_level, Ordering::Release);
        Ok(())
    }

    fn is_anchor(&self, Position { group, device }: Position) -> bool {
        let group = self.groups.get(usize::from(group));
        group.is_some_and(|group| anchor_of(group.members()) == Some(device))
    }

    fn device_at(&self, Position { group, device }: Position) -> Option<&Arc<Device>> {
        self.groups.get(usize::from(group))?.device(device).ok()
    }

    /// True if the keys of this hash are a group's.
    pub(crate) fn is_of(&self, group: u16, hash: u64) -> bool {
        self.owners.of(hash).owner() == usize::from(group)
    }

    /// Writes the label to all current members; those that it cannot be written to, and why.
    pub(crate) fn write_label(&self, label: &Label) -> Vec<(Position, Error)> {
        let mut failed = Vec::new();
        for group in self.groups.iter() {
            for device in group.devices() {
                let position = Position { group: group.number, device: device.number };
                let is_member =
                    label.member(position).is_some_and(|it| it.standing == Standing::Current);
                if !is_member {
                    continue;
                }
                if let Err(error) = label.at(position).write(&*device.engine) {
                    failed.push((position, error));
                }
            }
        }
        failed
    }

    /// Looks after what grows with writes, now and then: the filter of the key's group, and the mark.
    #[inline]
    pub(crate) fn look_after(&self, hash: u64, sequence: u64) {
        let group = self.group_of(hash);
        if is_next(&group.looked_at, sequence / FILTERS) {
            self.look_after_filter(group);
        }
        self.look_after_mark(sequence);
    }

    /// The same after a batch, of whose sequences only some are seen here.
    pub(crate) fn look_after_all(&self, batch: &Batch, sequence: u64) {
        let mut keys: BTreeMap<u16, u64> = BTreeMap::new();
        for change in batch.changes() {
            *keys.entry(self.group_of(hash_of(change.key())).number).or_default() += 1;
        }
        for (number, keys) in keys {
            let group = &self.groups[usize::from(number)];
            let before = group.batched.fetch_add(keys, Ordering::Relaxed);
            if before / FILTERS != (before + keys) / FILTERS {
                self.look_after_filter(group);
            }
        }
        self.look_after_mark(sequence);
    }

    #[inline]
    fn look_after_mark(&self, sequence: u64) {
        let is_behind = || !self.is_level.load(Ordering::Relaxed) && self.pending.doubt().is_none();
        let is_due = is_next(&self.marked_at, sequence / MARKS) || is_behind();
        if is_due && self.marking.try_lock().is_some() {
            // Without it, more is compared after a crash.
            let _marked = self.raise_mark(true).is_ok();
        }
    }

    /// After an error for want of space: devices let go of their tombstones, if they are many, or
    /// what has failed `is_vital`; true if they have. For whoever has nobody's turn.
    pub(crate) fn make_space(&self, error: &Error, is_vital: bool) -> bool {
        let kept = self.pending.tombstones();
        error.remedy() == Remedy::FreeSpace
            && kept >= if is_vital { 1 } else { FULL }
            && self.raise_mark(false).unwrap_or(false)
    }

    /// Notes durably up to which sequence all members have all, and lets go of older tombstones; false
    /// if a member was dropped meanwhile, or one has not got all after a moment and nobody `is_patient`.
    pub(crate) fn raise_mark(&self, is_patient: bool) -> Result<bool> {
        // One at a time: one that began later would raise it over what another waits for.
        let _marking = self.marking.lock();
        self.drop_old_intents();
        let (newest, kept) = (self.sequence.load(Ordering::Acquire), self.pending.tombstones());
        let epoch = spin::lock(&self.label).epoch;
        // Who is given an older one from here on lowers it first.
        self.mark.fetch_max(newest, Ordering::AcqRel);
        // Whoever had drawn a sequence by then has made its entry when the turns have gone round.
        self.pending.wait_for_turns();
        let members = || self.groups.iter().flat_map(|group| group.of(group.members()));
        if !is_patient && members().any(|device| device.is_behind()) {
            return Ok(false);
        }
        members().for_each(|device| device.drain());
        if self.relaxed.is_behind() {
            // What is not durable on a member may be missing there after a crash.
            self.sync()?;
        }
        let mut label = spin::lock(&self.label);
        if label.epoch != epoch {
            // The others may not have got yet what that one had acknowledged.
            return Ok(false);
        }
        // Below what not everybody may have, which is compared when the matrix is opened.
        let doubts = self.pending.doubts();
        let doubt = doubts.iter().map(|(_, doubt, _)| doubt.sequence).min();
        let unsure = doubt.into_iter().chain(self.intents.least()).min();
        let sure = unsure.map_or(newest, |unsure| newest.min(unsure.saturating_sub(1)));
        label.mark = label.mark.max(sure.min(self.mark.load(Ordering::Acquire)));
        // What only one had that is gone nobody has now: whoever opens the matrix must be told.
        label.is_level |= doubt.is_none();
        if label.is_level {
            label.holders.clear();
        }
        let held = label.held.min(label.mark);
        // All labels first: where a device has let tombstones go, every label that is found says so.
        for group in self.groups.iter() {
            for device in group.of(group.members()) {
                let position = Position { group: group.number, device: device.number };
                label.at(position).write(&*device.engine)?;
            }
        }
        members().try_for_each(|device| device.engine.hold_tombstones(held))?;
        self.pending.let_tombstones_go(kept);
        self.is_level.store(label.is_level, Ordering::Release);
        Ok(true)
    }

    /// A write with a sequence that its caller gives: every write up to the mark is on all members,
    /// and this one is not, so that the mark goes below it, durably, first. The caller has the turn.
    ///
    /// # Errors
    /// If the sequence is none that a device takes, or the label cannot be written.
    pub(crate) fn make_way_for(&self, given: Option<u64>) -> Result<()> {
        let Some(given) = given else { return Ok(()) };
        if given >= SEQUENCE_MAX {
            let operation = "sequences from 2^61 on";
            return Err(Error::Unsupported { engine: crate::NAME, operation });
        }
        if given > self.mark.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut label = spin::lock(&self.label);
        let below = given.saturating_sub(1);
        self.mark.fetch_min(below, Ordering::AcqRel);
        if label.mark > below {
            let before = label.clone();
            label.mark = below;
            self.write_changed(&mut label, &before)?;
        }
        Ok(())
    }

    /// Keeps tombstones for the caller, after a restart too, and those that the matrix needs itself.
    pub(crate) fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        let mut label = spin::lock(&self.label);
        label.held = sequence;
        let held = sequence.min(label.mark);
        for group in self.groups.iter() {
            for device in group.of(group.members()) {
                let position = Position { group: group.number, device: device.number };
                label.at(position).write(&*device.engine)?;
                device.engine.hold_tombstones(held)?;
            }
        }
        Ok(())
    }

    /// Leaves a clean matrix behind. Writes fail from now on.
    pub(crate) fn close(&self) -> Result<()> {
        let failed = || {
            let what =
                "the matrix was not closed in good order: it is brought level when it is opened";
            Error::Unusable(what.to_owned())
        };
        if self.closed.swap(true, Ordering::SeqCst) {
            let is_clean = self.is_clean.load(Ordering::Acquire);
            return if is_clean { Ok(()) } else { Err(failed()) };
        }
        self.pending.wait_for_turns();
        while !self.raise_mark(true)? {}
        let is_clean = self.pending.doubts().is_empty() && self.intents.lost().is_empty();
        {
            let mut label = spin::lock(&self.label);
            if is_clean {
                self.keep_filters(label.epoch);
            }
            label.is_clean = is_clean;
            for group in self.groups.iter() {
                for device in group.of(group.members()) {
                    let position = Position { group: group.number, device: device.number };
                    label.at(position).write(&*device.engine)?;
                }
            }
        }
        self.stop();
        for group in self.groups.iter() {
            for device in group.devices() {
                let closed = device.engine.close();
                // Of one that is no member nothing is expected.
                if group.members() & 1 << device.number != 0 {
                    closed?;
                }
            }
        }
        if !is_clean {
            return Err(failed());
        }
        self.is_clean.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the processors, and the matrix's own thread.
    pub(crate) fn stop(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.grower.stop();
        self.groups.iter().flat_map(|group| group.devices()).for_each(|device| device.stop());
        // Last: who waits for one that hangs is let go by it.
        self.groups.iter().for_each(|group| group.watch.stop());
    }

    /// Which devices are current members, and which are not.
    pub(crate) fn standings(&self) -> Vec<(Position, Standing)> {
        let label = spin::lock(&self.label);
        let standing = |position: Position| {
            let member = label.member(position);
            (position, member.map_or(Standing::Absent, |member| member.standing))
        };
        label.positions().map(standing).collect()
    }
}
