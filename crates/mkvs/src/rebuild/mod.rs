//! Copies brought up to date: a device that is replaced, a group that is added, damage that a scrub heals,
//! and filters that are rebuilt.
//!
//! ```text
//!   copy       all records of a group, one by one, to a device or group that lacks them
//!     ├─ resync      to a device that returns, or a new one in its place
//!     └─ rebalance   to a group that is added
//!   scrub      every record of every member against its checksums, healed from a peer
//! ```

mod compare;
mod copy;
mod filter_resize;
pub(crate) mod filter_snapshot;
mod indeterminate;
mod missing_keys;
mod rebalance;
mod resync;
mod scrub;

pub(crate) use compare::difference;
pub use copy::{Copied, CopyOptions};
pub(crate) use filter_resize::Filters;
pub(crate) use filter_snapshot::side_by_side;
pub use indeterminate::DamageSummary;
pub(crate) use resync::no_such;
pub use scrub::Scrubbed;

use crate::failover::Failover;
use crate::keyspace::Keyspace;
use crate::shape::Position;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Brings the copies of an open matrix up to date.
pub(crate) struct Rebuild {
    keyspace: Arc<Keyspace>,
    failover: Arc<Failover>,
    filters: Arc<Filters>,
    /// Held while a device or a group is filled: one at a time.
    filling: Mutex<()>,
    /// No device or group may be filled any more.
    pub(crate) interrupted: AtomicBool,
    /// The places at which files lie, and the places where their devices belong.
    pub(crate) occupied: Mutex<BTreeMap<Position, Position>>,
}

impl Rebuild {
    pub(crate) fn new(failover: &Arc<Failover>, filters: &Arc<Filters>) -> Self {
        Self {
            keyspace: Arc::clone(&failover.keyspace),
            failover: Arc::clone(failover),
            filters: Arc::clone(filters),
            filling: Mutex::default(),
            interrupted: AtomicBool::new(false),
            occupied: Mutex::default(),
        }
    }
}
