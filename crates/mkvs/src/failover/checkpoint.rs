//! The stable watermark, and the checkpoint that raises it.
//!
//! Up to the watermark every write is on all current members; it is part of the membership record of each. If
//! a matrix was not closed, writes above it are compared when it is opened ([`reconcile`](super::reconcile)),
//! for which tombstones above it are kept. From time to time a checkpoint lets all members execute the writes
//! on their way to them, records the watermark, and then drops the tombstones below. So for a device that has
//! dropped a tombstone, every other device that was present then has a watermark above it, or is known as an
//! older copy of itself.

use crate::device::Guarded;
use crate::failover::Failover;
use crate::keyspace::intent::{Intent, Lost};
use coreplane_engine::{Error, Remedy, Result};
use coreplane_pmem::{mutant, spin};
use std::sync::atomic::{AtomicU64, Ordering};

/// Only given sequences below this are accepted. Engines take those below 2^61: the matrix must still be able to draw
/// sequences above every given one.
const GIVEN_MAX: u64 = 1 << 60;

/// Sequences between checkpoints.
pub(super) const CHECKPOINT: u64 = 1 << 20;

/// True for the first caller with a sequence of a new stretch. A write may draw several sequences, so a
/// stretch may begin with one that has no caller.
#[inline]
pub(crate) fn is_next(last: &AtomicU64, stretch: u64) -> bool {
    stretch > last.load(Ordering::Relaxed) && last.fetch_max(stretch, Ordering::Relaxed) < stretch
}

/// A device without space drops its tombstones if there are at least so many.
const FULL: u64 = 1 << 10;

impl Failover {
    #[inline]
    pub(crate) fn look_after_watermark(&self, sequence: u64) {
        let is_due = is_next(&self.marked_at, sequence / CHECKPOINT);
        if is_due && self.marking.try_lock().is_some() {
            // If this fails, an open after a crash compares more.
            let _raised = self.checkpoint(true).is_ok();
        }
    }

    /// After an error for lack of space: makes the devices drop their tombstones, if they are many, or if the
    /// failed write may `use_reserve`; true if they did. The caller has no key lock.
    pub(crate) fn make_space(&self, error: &Error, use_reserve: bool) -> bool {
        let kept = self.keyspace.in_flight.tombstones();
        error.remedy() == Remedy::FreeSpace
            && kept >= if use_reserve { 1 } else { FULL }
            && self.checkpoint(false).unwrap_or(false)
    }

    /// Records durably the sequence up to which all members have every write, and drops older tombstones.
    /// False if the membership has changed meanwhile, or if a member is still behind after a moment and the
    /// caller is not `is_patient`.
    pub(crate) fn checkpoint(&self, is_patient: bool) -> Result<bool> {
        // One at a time: a second one would raise the watermark over writes that the first waits for.
        let _marking = self.marking.lock();
        self.drop_old_intents();
        let (newest, kept) =
            (self.keyspace.sequence.load(Ordering::Acquire), self.keyspace.in_flight.tombstones());
        let epoch = self.membership.now().epoch;
        // A write with an older given sequence lowers it first from here on.
        self.watermark.fetch_max(newest, Ordering::AcqRel);
        // Every write that had drawn a sequence by then has made its entry when all key locks have been taken once.
        self.keyspace.in_flight.wait_for_key_locks();
        let members = || self.keyspace.groups.iter().flat_map(|group| group.of(group.members()));
        if !is_patient && members().any(|device| device.is_behind()) {
            return Ok(false);
        }
        if !mutant!("mkvs.checkpoint.undrained") {
            members().for_each(|device| device.drain());
        }
        if self.keyspace.relaxed.is_behind() {
            // A write that is not durable on a member may be missing there after a crash.
            self.keyspace.sync()?;
        }
        let mut record = self.membership.lock();
        if record.epoch != epoch {
            // A member that has joined since may not have executed the writes on their way to it.
            return Ok(false);
        }
        // Below the writes that some member may lack, which are compared when the matrix is opened.
        let doubts = self.keyspace.in_flight.indeterminate();
        let doubt = doubts.iter().map(|(_, doubt, _)| doubt.sequence).min();
        let unsure = doubt.into_iter().chain(self.intents.least()).min();
        let sure = unsure.map_or(newest, |unsure| newest.min(unsure.saturating_sub(1)));
        record.watermark = record.watermark.max(sure.min(self.watermark.load(Ordering::Acquire)));
        self.commit(&mut record)?;
        drop(record);
        // All records first: if a device has dropped tombstones, every record that is found has that watermark.
        self.let_tombstones_go()?;
        self.keyspace.in_flight.let_tombstones_go(kept);
        Ok(true)
    }

    /// Drops tombstones that neither the matrix nor the caller needs.
    fn let_tombstones_go(&self) -> Result<()> {
        let _holding = spin::lock(&self.holding);
        // By now the watermark may be lower.
        let record = self.membership.now();
        self.hold_above(if mutant!("mkvs.checkpoint.tombstones") {
            record.held
        } else {
            record.held.min(record.watermark)
        })
    }

    /// Has all members keep the tombstones above a sequence.
    fn hold_above(&self, sequence: u64) -> Result<()> {
        for group in self.keyspace.groups.iter() {
            for device in group.of(group.members()) {
                if let Err(error) = device.engine.call(|it| it.hold_tombstones(sequence)) {
                    group.go_on_without(device, error)?;
                }
            }
        }
        Ok(())
    }

    /// Lowers the watermark, durably, below a sequence that a caller gives: every write up to the watermark
    /// is on all members, and this one is not yet. Members that have not dropped the tombstones above it keep them
    /// from here on. The caller has the key lock.
    ///
    /// # Errors
    /// If no device takes the sequence, or the record cannot be written.
    pub(crate) fn make_way_for(&self, given: Option<u64>) -> Result<()> {
        let Some(given) = given else { return Ok(()) };
        if given >= GIVEN_MAX {
            let operation = "a given sequence of 2^60 or more";
            return Err(Error::Unsupported { engine: crate::shape::NAME, operation });
        }
        if given > self.watermark.load(Ordering::Acquire) {
            return Ok(());
        }
        let below = given.saturating_sub(1);
        let _holding = spin::lock(&self.holding);
        let now = self.membership.now();
        if now.watermark > below && !mutant!("mkvs.given.not_held") {
            self.hold_above(now.held.min(below))?;
        }
        let mut record = self.membership.lock();
        if record.watermark > below {
            record.watermark = below;
            self.commit(&mut record)?;
        }
        // If the record could not be written, the next such write must try again.
        self.watermark.fetch_min(below, Ordering::AcqRel);
        Ok(())
    }

    /// Keeps tombstones for the caller, after a restart too, and those that the matrix needs.
    pub(crate) fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        let _marking = self.marking.lock();
        drop(self.change(|record| record.held = sequence)?);
        self.let_tombstones_go()
    }

    /// Records that writes may become durable on other members before they are on the primary. The record is
    /// durable when it returns; once for each open of the matrix.
    #[cold]
    pub(crate) fn note_relaxed(&self) -> Result<()> {
        let mut record = self.membership.lock();
        if !record.is_relaxed {
            record.is_relaxed = true;
            self.commit(&mut record)?;
        }
        self.keyspace.relaxed.note();
        Ok(())
    }

    /// Deletes those lost intents whose batches are over; all of them, if they have been taken back by now.
    pub(crate) fn drop_lost(&self, lost: &[Lost], are_taken_back: bool) {
        for lost in lost.iter().filter(|lost| lost.is_over || are_taken_back) {
            if self.change_on_all(lost, Intent::drop) {
                self.intents.find(lost.number);
            }
        }
    }

    /// Deletes intents whose batches are over, unless another thread sees to lost intents.
    fn drop_old_intents(&self) {
        if let Some(_alone) = self.intents.seeing_to.try_lock() {
            self.drop_lost(&self.intents.lost(), false);
        }
    }

    /// Changes a lost intent on all devices of its group; true if all that stay have the change.
    pub(crate) fn change_on_all(
        &self,
        Lost { number, group, .. }: &Lost,
        change: impl Fn(&Guarded, u32) -> Result<()>,
    ) -> bool {
        let group = &self.keyspace.groups[usize::from(*group)];
        group.of(group.followers()).all(|device| {
            change(&device.engine, *number).is_ok() || group.drop_member(device).is_ok()
        })
    }
}
