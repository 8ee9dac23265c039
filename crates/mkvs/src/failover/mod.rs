//! Changes of the membership while the matrix is open, and the stable watermark.

pub(crate) mod change;
mod checkpoint;
mod departure;

pub(crate) use change::Joiner;
pub(crate) use checkpoint::is_next;
pub use departure::Departure;

use crate::device::Device;
use crate::group::Superior;
use crate::keyspace::Keyspace;
use crate::keyspace::intent::Intents;
use crate::membership::{Loss, LostRange, Membership, MembershipRecord, just};
use crate::shape::Position;
use checkpoint::CHECKPOINT;
use coreplane_engine::Result;
use coreplane_pmem::mutant;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The membership of an open matrix, and the watermark up to which all members have every write.
pub(crate) struct Failover {
    pub(crate) keyspace: Arc<Keyspace>,
    pub(crate) membership: Membership,
    pub(crate) intents: Intents,
    /// The stable watermark of the record, or the value to which it is just being raised.
    pub(crate) watermark: AtomicU64,
    /// Held while it is raised.
    marking: Mutex<()>,
    /// Held while members are told which tombstones they keep. Its holder waits for no key lock.
    holding: Mutex<()>,
    /// The stretch of sequences in which it was last raised because of the number of writes.
    marked_at: AtomicU64,
    /// Places whose devices could not be opened or have failed, and why.
    pub(crate) damaged: Mutex<Vec<(Position, String)>>,
    /// Devices that left since the matrix was opened.
    pub(crate) departures: Mutex<Vec<Departure>>,
    /// Writes that may have been lost when the matrix was opened.
    pub(crate) losses: Mutex<Vec<Loss>>,
}

impl Failover {
    pub(crate) fn new(keyspace: Arc<Keyspace>, record: MembershipRecord) -> Self {
        let newest = keyspace.sequence.load(Ordering::Relaxed);
        Self {
            keyspace,
            intents: Intents::new(),
            watermark: AtomicU64::new(record.watermark),
            membership: Membership::new(record),
            marking: Mutex::new(()),
            holding: Mutex::new(()),
            marked_at: AtomicU64::new(newest / CHECKPOINT),
            damaged: Mutex::default(),
            departures: Mutex::default(),
            losses: Mutex::default(),
        }
    }

    /// Writes the record in force anew if no device is known to have it.
    ///
    /// # Errors
    /// If nothing may be written.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.keyspace.lacks_record() {
            let mut record = self.membership.lock();
            if self.keyspace.lacks_record() {
                self.commit(&mut record)?;
            }
        }
        self.keyspace.check_writable()
    }

    /// A write of a key was made or found: the key alone is no longer a lost range, durably if that can be. If not it
    /// stays one: the write is read, being newer. The caller has the key lock.
    #[cold]
    pub(crate) fn forget_lost_key(&self, group: u16, key: &[u8]) {
        if self.keyspace.lost_ranges.has_key(group, key) {
            let mut record = self.membership.lock();
            record.lost_ranges.retain(|it| it.key() != Some((group, key)));
            if self.keyspace.relaxed.is_noted() || mutant!("mkvs.forget.unwritten") {
                // The write may not be durable yet: with the next record.
                self.keyspace.lost_ranges.set(&record.lost_ranges);
                self.membership.publish(&record);
            } else {
                let _forgotten = self.commit(&mut record).is_ok();
            }
        }
    }
}

impl Superior for Failover {
    fn demote(&self, device: &Device) -> Result<()> {
        self.end_membership(device, None)
    }

    /// If the current record may not be the last write, the key is a lost range up to the new sequence: durably,
    /// when it returns.
    ///
    /// # Errors
    /// If the record cannot be written, or is full.
    fn renew(&self, (group, key): (u16, &[u8]), known: u64, sequence: u64) -> Result<()> {
        if self.keyspace.lost_ranges.since(group, key).is_none_or(|since| known > since) {
            return Ok(());
        }
        let mut it = LostRange::new(group, just(key));
        it.end(sequence);
        let mut record = self.membership.lock();
        record.lost_ranges.retain(|other| other.key() != it.key());
        if let Err(error) = record.take_lost_ranges(std::slice::from_ref(&it)) {
            record.clone_from(&self.membership.now());
            return Err(error);
        }
        self.commit(&mut record)
    }
}
