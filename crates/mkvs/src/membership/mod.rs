//! Membership: who belongs to the matrix, who of each group has all that was acknowledged, and how that changes.
//!
//! Each group has one *primary*. Every acknowledged write is on it; the other members follow. That, and who the members
//! are, stands in the [membership record](record), which all members have in their own pools. It is the one place
//! where it is said who has the newest: whoever opens the matrix decides by it alone ([`resolve`]), and whatever
//! changes it while it is open is durable before a write is answered on the strength of the change ([`change`]).
//!
//! ```text
//!   open     look at all devices ─▶ resolve: who is current? ─▶ reconcile: the same on all members
//!              ─▶ record, next epoch ─▶ record, committed and not clean ─▶ let writers in
//!   failure  members are changing ─▶ those that stay make what is on its way to them ─▶ one of them is primary
//!              ─▶ record without the failed one, committed ─▶ writes are answered again
//!   close    no more writes ─▶ checkpoint ─▶ record, clean ─▶ record, committed
//! ```
//!
//! - [`record`]: what it says, and its bytes
//! - [`quorum`]: which members have together all that was acknowledged
//! - [`resolve`]: which record and which devices count when a matrix is opened
//! - [`reconcile`]: members have the same again after a crash
//! - [`intents`]: batches that were under way are made or taken back
//! - [`lost_ranges`]: keys of which nobody knows what was written last
//! - [`states`]: what each device of a group is to it, in one word for readers and writers
//! - [`change`]: another record is in force
//! - [`checkpoint`]: the stable watermark, up to which all members have all
//!
//! `docs/replication.md` has the invariants, and what each power cut leaves.

pub(crate) mod loss;
pub(crate) mod lost_ranges;
pub(crate) mod quorum;
pub(crate) mod rack;
pub(crate) mod record;
pub(crate) mod states;

use coreplane_pmem::spin;
use parking_lot::{Mutex, MutexGuard, RwLock};
use record::MembershipRecord;
use std::sync::Arc;

/// The membership of an open matrix.
#[derive(Debug)]
pub(crate) struct Membership {
    /// The next record, held by who changes it, while devices write it too.
    next: Mutex<MembershipRecord>,
    /// The one in force: who only looks waits for no device.
    current: RwLock<Arc<MembershipRecord>>,
}

impl Membership {
    pub(crate) fn new(record: MembershipRecord) -> Self {
        Self { current: RwLock::new(Arc::new(record.clone())), next: Mutex::new(record) }
    }

    /// The record in force.
    pub(crate) fn now(&self) -> Arc<MembershipRecord> {
        Arc::clone(&self.current.read())
    }

    /// The right to change it. Who has it waits for no key lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, MembershipRecord> {
        spin::lock(&self.next)
    }

    /// This one is in force from now on.
    pub(crate) fn publish(&self, record: &MembershipRecord) {
        *self.current.write() = Arc::new(record.clone());
    }
}
