//! Names: databases, policies, measurements, fields and series, and the shards of policies.
//!
//! ```text
//!   database ─┬─ policy ── shard [start, end) …
//!             ├─ measurement ─┬─ field …
//!             │               └─ postings: tag key ─▶ value ─▶ series …
//!             └─ key text ─▶ series
//! ```
//!
//! A state machine in DRAM. Its owner keeps the durable log: a [`Change`] is drawn from the state (`draw.rs`),
//! logged, and applied (`transition.rs`), all under one lock; a replay applies the same changes.
//! [`Catalogue::changes`] is a shorter log of the same state.
//!
//! Invariants:
//! - A number is never given twice, neither after a drop nor after a restart. So a point of a dropped series or
//!   shard is known by its number, whatever object now has the name.
//! - A drawn change can be applied. A change that cannot be applied comes from a damaged log, and changes nothing.
//! - Shards of a policy do not overlap. A database has one default policy at most.
//! - Postings and tables name live objects alone.

mod change;
mod draw;
mod filter;
mod measurement;
mod name;
mod page;
mod policy;
mod postings;
mod series;
#[cfg(test)]
mod tests;
mod transition;

pub(crate) use change::{Change, Next};
pub(crate) use draw::{Limits, type_conflict};
pub(crate) use filter::{Matched, select};
pub use filter::{Permission, TagFilter, Work};
pub use measurement::Field;
pub(crate) use measurement::Measurement;
pub use policy::Policy;
pub(crate) use policy::Shard;
pub use series::{Series, SeriesTags};
pub(crate) use transition::SHARD_COST;

use hashbrown::{HashMap, HashTable};
use page::Pages;
use policy::PolicyState;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hash::BuildHasher;
use std::sync::Arc;

/// A number of a series; never given twice.
pub type SeriesId = u32;
/// A number of a field of a measurement; never given twice.
pub type FieldId = u32;
/// A number of a database; never given twice.
pub(crate) type DatabaseId = u32;
/// A number of a policy; never given twice.
pub(crate) type PolicyId = u32;
/// A number of a measurement; never given twice.
pub(crate) type MeasurementId = u32;
/// A number of a shard; never given twice.
pub(crate) type ShardId = u32;

/// Hashes texts, with a seed of its own in each process.
type Hasher = hashbrown::DefaultHashBuilder;

/// All names.
#[derive(Debug)]
pub(crate) struct Catalogue {
    limits: Limits,
    hasher: Hasher,
    next: Next,
    databases: BTreeMap<DatabaseId, Database>,
    database_names: HashMap<Arc<str>, DatabaseId>,
    policies: BTreeMap<PolicyId, PolicyState>,
    /// The place of a shard: its policy, and its start.
    shards: BTreeMap<ShardId, (PolicyId, i64)>,
    measurements: Pages<Box<Measurement>>,
    series: Pages<Arc<Series>>,
    /// Bytes of all applied changes, and of the shortest log of the state.
    log_bytes: u64,
    live_bytes: u64,
    /// The approximate bytes of DRAM of all names.
    cost: usize,
}

/// A database.
#[derive(Debug)]
struct Database {
    name: Arc<str>,
    /// Ascending.
    policies: Vec<PolicyId>,
    measurements: BTreeMap<Arc<str>, MeasurementId>,
    /// By the texts of keys.
    series: HashTable<Arc<Series>>,
}

impl Catalogue {
    /// An empty catalogue.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            hasher: Hasher::default(),
            next: Next::default(),
            databases: BTreeMap::new(),
            database_names: HashMap::new(),
            policies: BTreeMap::new(),
            shards: BTreeMap::new(),
            measurements: Pages::new(),
            series: Pages::new(),
            log_bytes: 0,
            live_bytes: change::NEXT_BYTES,
            cost: 0,
        }
    }

    /// A database by its name.
    pub(crate) fn database(&self, name: &str) -> Option<DatabaseId> {
        self.database_names.get(name).copied()
    }

    /// The databases, in the order in which they were made.
    pub(crate) fn databases(&self) -> impl Iterator<Item = (DatabaseId, &Arc<str>)> {
        self.databases.iter().map(|(id, database)| (*id, &database.name))
    }

    /// The policies of a database, in the order in which they were made.
    pub(crate) fn policies(&self, of: DatabaseId) -> impl Iterator<Item = (PolicyId, &Policy)> {
        let ids = self.databases.get(&of).map_or(&[][..], |database| &database.policies);
        ids.iter().filter_map(|id| Some((*id, &self.policies.get(id)?.policy)))
    }

    /// A policy of a database by its name, or the default one.
    pub(crate) fn policy(&self, of: DatabaseId, name: Option<&str>) -> Option<(PolicyId, &Policy)> {
        self.policies(of).find(|(_, policy)| match name {
            Some(name) => policy.name == name,
            None => policy.is_default,
        })
    }

    /// A policy by its number.
    pub(crate) fn policy_by_id(&self, id: PolicyId) -> Option<&Policy> {
        self.policies.get(&id).map(|state| &state.policy)
    }

    /// The shard of a policy that contains a time.
    pub(crate) fn shard_of(&self, policy: PolicyId, time: i64) -> Option<&Shard> {
        self.policies.get(&policy)?.shard_of(time)
    }

    /// Start and end of the shard of a policy that contains a time, or would contain it.
    pub(crate) fn shard_window(&self, policy: PolicyId, time: i64) -> Option<(i64, i64)> {
        Some(self.policies.get(&policy)?.window(time))
    }

    /// A shard by its number.
    pub(crate) fn shard(&self, id: ShardId) -> Option<&Shard> {
        let (policy, start) = self.shards.get(&id)?;
        self.policies.get(policy)?.shards.get(start)
    }

    /// The shards of a policy, ascending by time.
    pub(crate) fn shards(&self, of: PolicyId) -> impl DoubleEndedIterator<Item = &Shard> {
        self.policies.get(&of).into_iter().flat_map(|state| state.shards.values())
    }

    /// True if a database is there.
    pub(crate) fn is_database_live(&self, id: DatabaseId) -> bool {
        self.databases.contains_key(&id)
    }

    /// True if a shard is there.
    pub(crate) fn is_shard_live(&self, id: ShardId) -> bool {
        self.shards.contains_key(&id)
    }

    /// True if a shard was ever dropped.
    pub(crate) fn has_dropped_shards(&self) -> bool {
        self.shards.len() < self.next.shard as usize
    }

    /// True if a series was ever dropped.
    pub(crate) fn has_dropped_series(&self) -> bool {
        self.series.len() < self.next.series as usize
    }

    /// The shards whose points are all older at a time (nanoseconds since 1970) than their policies allow.
    pub(crate) fn expired_shards(&self, now: i64) -> impl Iterator<Item = ShardId> {
        self.policies.values().flat_map(move |state| state.expired(now))
    }

    /// A measurement by its name.
    pub(crate) fn measurement(&self, of: DatabaseId, name: &str) -> Option<MeasurementId> {
        self.databases.get(&of)?.measurements.get(name).copied()
    }

    /// A measurement by its number.
    pub(crate) fn measurement_by_id(&self, id: MeasurementId) -> Option<&Measurement> {
        self.measurements.get(id).map(|measurement| &**measurement)
    }

    /// The measurements of a database, ascending by name.
    pub(crate) fn measurements(
        &self,
        of: DatabaseId,
    ) -> impl Iterator<Item = (&Arc<str>, MeasurementId)> {
        let database = self.databases.get(&of);
        database.into_iter().flat_map(|it| it.measurements.iter().map(|(name, id)| (name, *id)))
    }

    /// A series by the text of its key.
    pub(crate) fn series_of(&self, database: DatabaseId, key: &str) -> Option<&Arc<Series>> {
        let table = &self.databases.get(&database)?.series;
        table.find(self.hasher.hash_one(key), |series| *series.key == *key)
    }

    /// A series by its number.
    pub(crate) fn series(&self, id: SeriesId) -> Option<&Arc<Series>> {
        self.series.get(id)
    }

    /// True if a series is there.
    pub(crate) fn is_series_live(&self, id: SeriesId) -> bool {
        self.series.get(id).is_some()
    }

    /// The numbers of the series of a measurement that a filter lets through, ascending.
    pub(crate) fn series_ids_that(&self, of: MeasurementId, filter: &TagFilter) -> Vec<SeriesId> {
        let Ok(ids) = select::<_, Infallible>(|| self, (of, filter), &|_| Ok(()));
        ids
    }

    /// The numbers of the series of a measurement, ascending.
    pub(crate) fn series_ids_of(&self, of: MeasurementId) -> &[SeriesId] {
        self.measurements.get(of).map_or(&[], |measurement| measurement.postings.all())
    }

    /// The number of series.
    pub(crate) fn series_count(&self) -> usize {
        self.series.len()
    }

    /// The number of series of a database.
    pub(crate) fn series_count_of(&self, database: DatabaseId) -> usize {
        self.databases.get(&database).map_or(0, |database| database.series.len())
    }

    /// The number of measurements.
    pub(crate) fn measurement_count(&self) -> usize {
        self.measurements.len()
    }

    /// The approximate bytes of DRAM of all names.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.cost
    }
}
