//! Copies brought up to date: a device that is replaced, a group that is added, damage that a scrub heals, and
//! filters that are made anew.
//!
//! ```text
//!   copy       all that a group has, record by record, to whoever lacks it
//!     ├─ resync      to a device that returns, or a new one in its place
//!     └─ rebalance   to a group that is added
//!   scrub      every record of every member against its checksums, healed from a peer
//! ```

pub(crate) mod compare;
pub(crate) mod copy;
pub(crate) mod filter_resize;
pub(crate) mod filter_snapshot;
pub(crate) mod indeterminate;
pub(crate) mod missing_keys;
pub(crate) mod rebalance;
pub(crate) mod resync;
pub(crate) mod scrub;
