//! Maintenance of a store: functions that an application which reads and writes never needs.
//!
//! - A [`MatrixStore`], from [`Store::matrix`](crate::Store::matrix): the state of each device, and the [`Work`] that
//!   replaces, retires and adds devices or scrubs them, while the store is in use.
//! - [`Repairable`], which every engine is: `verify`, lost ranges of keys, and `scrub`, which has nothing to do in
//!   the maps.
//! - The repair of a damaged pool, by [`StoreConfig::repair`](crate::StoreConfig::repair): each [`Finding`] and its
//!   [`Fate`].
//! - Facts about a pool without an open: [`engine_at`], [`page_size_at`], [`fan_out_at`], [`is_device_at`].
//! - [`check_key`], [`check_batch`], for writes by [`Store::engine`](crate::Store::engine); [`Db`](crate::Db) checks
//!   its keys by itself.

pub use crate::admin_job::{Doing, Done, Failed, MatrixFacts, MatrixStatus, MatrixStore, Work};
pub use crate::geometry::{pool_fan_out as fan_out_at, pool_page_size as page_size_at};
pub use crate::matrix::{check_batch, check_key, is_device_at};
pub use crate::store::pool_engine as engine_at;
pub use coreplane_engine::{
    Backing, Damage, DamagedKey, Fate, Finding, KeyRange, Progress, Repair, Repairable, Replicated,
    ScrubReport, Tell, VerifyReport,
};
pub use coreplane_mkvs::{
    Copied, CopyOptions, DamageSummary, Departure, Loss, MemberState, Position, Scrubbed,
    is_own_key,
};
