//! The stable watermark, and the checkpoint that raises it.
//!
//! Up to the watermark every write is on all current members; it stands in the membership record of each. Above it a
//! matrix that was not closed is compared when it is opened ([`reconcile`](super::reconcile)), for which tombstones
//! above it are kept. A checkpoint, from time to time, lets all members make what is on its way to them, writes the
//! watermark down, and then lets go of the tombstones below: so a device that has let go of one finds every other
//! that was here then with a watermark above it, or knows it for an older copy of itself.

use crate::failover::Failover;
use crate::keyspace::intent::{Intent, Lost};
use crate::membership::record::MembershipRecord;
use coreplane_engine::{Error, Remedy, Result};
use coreplane_pmem::mutant;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sequences below this are taken.
const SEQUENCE_MAX: u64 = 1 << 61;

/// Sequences between checkpoints.
pub(super) const CHECKPOINT: u64 = 1 << 20;

/// True for the first that comes to a stretch of sequences: a write may draw several, so that nobody may
/// see its first.
#[inline]
pub(crate) fn is_next(last: &AtomicU64, stretch: u64) -> bool {
    stretch > last.load(Ordering::Relaxed) && last.fetch_max(stretch, Ordering::Relaxed) < stretch
}

/// Tombstones that devices keep before one without space is relieved of them.
const FULL: u64 = 1 << 10;

impl Failover {
    #[inline]
    pub(crate) fn look_after_watermark(&self, sequence: u64) {
        let is_due = is_next(&self.marked_at, sequence / CHECKPOINT);
        if is_due && self.marking.try_lock().is_some() {
            // Without it, more is compared after a crash.
            let _raised = self.checkpoint(true).is_ok();
        }
    }

    /// After an error for want of space: devices let go of their tombstones, if they are many, or
    /// what has failed `use_reserve`; true if they have. For whoever has no key lock.
    pub(crate) fn make_space(&self, error: &Error, use_reserve: bool) -> bool {
        let kept = self.keyspace.in_flight.tombstones();
        error.remedy() == Remedy::FreeSpace
            && kept >= if use_reserve { 1 } else { FULL }
            && self.checkpoint(false).unwrap_or(false)
    }

    /// Notes durably up to which sequence all members have all, and lets go of older tombstones; false
    /// if the membership has changed meanwhile, or one has not got all after a moment and nobody `is_patient`.
    pub(crate) fn checkpoint(&self, is_patient: bool) -> Result<bool> {
        // One at a time: one that began later would raise it over what another waits for.
        let _marking = self.marking.lock();
        self.drop_old_intents();
        let (newest, kept) =
            (self.keyspace.sequence.load(Ordering::Acquire), self.keyspace.in_flight.tombstones());
        let epoch = self.membership.now().epoch;
        // Who is given an older one from here on lowers it first.
        self.watermark.fetch_max(newest, Ordering::AcqRel);
        // Whoever had drawn a sequence by then has made its entry when the key locks have gone round.
        self.keyspace.in_flight.wait_for_key_locks();
        let members = || self.keyspace.groups.iter().flat_map(|group| group.of(group.members()));
        if !is_patient && members().any(|device| device.is_behind()) {
            return Ok(false);
        }
        if !mutant!("mkvs.checkpoint.undrained") {
            members().for_each(|device| device.drain());
        }
        if self.keyspace.relaxed.is_behind() {
            // What is not durable on a member may be missing there after a crash.
            self.keyspace.sync()?;
        }
        let mut record = self.membership.lock();
        if record.epoch != epoch {
            // One that has come since may not have made what was on its way to it.
            return Ok(false);
        }
        // Below what not everybody may have, which is compared when the matrix is opened.
        let doubts = self.keyspace.in_flight.indeterminate();
        let doubt = doubts.iter().map(|(_, doubt, _)| doubt.sequence).min();
        let unsure = doubt.into_iter().chain(self.intents.least()).min();
        let sure = unsure.map_or(newest, |unsure| newest.min(unsure.saturating_sub(1)));
        let before = record.clone();
        record.watermark = record.watermark.max(sure.min(self.watermark.load(Ordering::Acquire)));
        self.commit(&mut record, &before)?;
        let held = record.clone();
        drop(record);
        // All records first: where a device has let tombstones go, every record that is found says so.
        self.let_tombstones_go(&held)?;
        self.keyspace.in_flight.let_tombstones_go(kept);
        Ok(true)
    }

    /// Tombstones that the matrix needs no more, nor the caller.
    fn let_tombstones_go(&self, record: &MembershipRecord) -> Result<()> {
        let needed =
            if mutant!("mkvs.checkpoint.tombstones") { u64::MAX } else { record.watermark };
        let held = record.held.min(needed);
        for group in self.keyspace.groups.iter() {
            for device in group.of(group.members()) {
                device.engine.hold_tombstones(held)?;
            }
        }
        Ok(())
    }

    /// A write with a sequence that its caller gives: every write up to the watermark is on all members,
    /// and this one is not, so that the watermark goes below it, durably, first. The caller has the key lock.
    ///
    /// # Errors
    /// If the sequence is none that a device takes, or the record cannot be written.
    pub(crate) fn make_way_for(&self, given: Option<u64>) -> Result<()> {
        let Some(given) = given else { return Ok(()) };
        if given >= SEQUENCE_MAX {
            let operation = "sequences from 2^61 on";
            return Err(Error::Unsupported { engine: crate::shape::NAME, operation });
        }
        if given > self.watermark.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut record = self.membership.lock();
        let below = given.saturating_sub(1);
        self.watermark.fetch_min(below, Ordering::AcqRel);
        if record.watermark > below {
            let before = record.clone();
            record.watermark = below;
            self.commit(&mut record, &before)?;
        }
        Ok(())
    }

    /// Keeps tombstones for the caller, after a restart too, and those that the matrix needs itself.
    pub(crate) fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        let _marking = self.marking.lock();
        let held = self.change(|record| record.held = sequence)?.clone();
        self.let_tombstones_go(&held)
    }

    /// Notes that writes may become durable on other members before they do on the primary: durably so, when it
    /// returns, once for each time that the matrix is open.
    #[cold]
    pub(crate) fn note_relaxed(&self) -> Result<()> {
        let mut record = self.membership.lock();
        if !record.is_relaxed {
            let before = record.clone();
            record.is_relaxed = true;
            self.commit(&mut record, &before)?;
        }
        self.keyspace.relaxed.note();
        Ok(())
    }

    /// Deletes those of some lost intents whose batches are over; all, if they are taken back by now.
    pub(crate) fn drop_lost(&self, lost: &[Lost], are_taken_back: bool) {
        for lost in lost.iter().filter(|lost| lost.is_over || are_taken_back) {
            if self.is_dropped(lost) {
                self.intents.find(lost.number);
            }
        }
    }

    /// Deletes intents whose batches are over, if nobody else does.
    fn drop_old_intents(&self) {
        if let Some(_alone) = self.intents.seeing_to.try_lock() {
            self.drop_lost(&self.intents.lost(), false);
        }
    }

    fn is_dropped(&self, Lost { number, group, .. }: &Lost) -> bool {
        let (number, group) = (*number, &self.keyspace.groups[usize::from(*group)]);
        group.of(group.followers()).all(|device| {
            Intent::drop(&*device.engine, number).is_ok() || group.drop_member(device).is_ok()
        })
    }
}
