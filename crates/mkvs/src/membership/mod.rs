//! Membership: the devices of the matrix, the members that have every acknowledged write, and changes of both.
//!
//! Each group has one *primary*. Every acknowledged write is on it; the other members follow. The primary and
//! the members are in the [membership record](record), which all members have in their own pools. It alone
//! states which devices have the newest writes: an open decides by nothing else, and a change while the matrix is
//! open is durable before any write is answered that relies on it.
//!
//! ```text
//!   open     look at all devices ─▶ resolve: which are current? ─▶ reconcile: the same on all members
//!              ─▶ record, next epoch ─▶ record, committed and not clean ─▶ let writers in
//!   failure  members are changing ─▶ those that stay execute the writes on their way ─▶ one of them is primary
//!              ─▶ record without the failed one, committed ─▶ writes are answered again
//!   close    no more writes ─▶ checkpoint ─▶ record, clean ─▶ record, committed
//! ```
//!
//! - [`record`]: the content of a membership record, and its bytes
//! - [`quorum`]: which members together have every acknowledged write
//! - [`lost_ranges`]: keys whose last write is unknown
//! - [`states`]: the states of all devices of a group, in one word for readers and writers
//!
//! `docs/replication.md` has the invariants, and the states that each power cut leaves.

mod loss;
pub(crate) mod lost_ranges;
mod quorum;
mod rack;
mod record;
mod states;

pub use loss::Loss;
pub(crate) use loss::names;
pub(crate) use lost_ranges::{LostRange, LostRanges, just};
pub(crate) use quorum::Quorum;
pub use rack::Rack;
pub(crate) use rack::{Found, drawn};
pub(crate) use record::{Member, MembershipRecord};
pub use record::{MemberState, is_device};
pub(crate) use states::{MemberStates, Moment};

use coreplane_engine::Error;
use coreplane_pmem::spin;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::sync::Arc;

/// The error for a write while no device is known to have the record in force.
pub(crate) fn unproven() -> Error {
    let what =
        "the membership record could not be written to any device: nothing is written until it is";
    Error::Unusable(what.to_owned())
}

/// The membership of an open matrix.
#[derive(Debug)]
pub(crate) struct Membership {
    /// The next record: the one in force, unless a change holds it, also while devices write the record.
    next: Mutex<MembershipRecord>,
    /// The record in force, which a change that fails goes back to. Readers of it wait for no device.
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

    /// The right to change the record. Its holder waits for no key lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, MembershipRecord> {
        spin::lock(&self.next)
    }

    /// Puts this record in force.
    pub(crate) fn publish(&self, record: &MembershipRecord) {
        *self.current.write() = Arc::new(record.clone());
    }
}
