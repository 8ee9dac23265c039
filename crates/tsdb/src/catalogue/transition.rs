//! Applies changes, both new ones and those of a replay; also gives the shortest log of a state.
//!
//! A change is checked completely before any part of it is made.

use super::change::{self, Change, Next};
use super::measurement::{Field, Measurement};
use super::name::{check_key, check_name};
use super::policy::{Policy, PolicyState, Shard};
use super::series::{Series, parts, unescaped};
use super::{Catalogue, Database, DatabaseId, MeasurementId, PolicyId, SeriesId, ShardId};
use crate::error::{Error, Result};
use coreplane_pmem::mutant;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::sync::Arc;

/// Bytes of DRAM of a database, a policy and a shard, about.
const DATABASE_COST: usize = 512;
const POLICY_COST: usize = 256;
pub(crate) const SHARD_COST: usize = 128;

fn damage(what: impl std::fmt::Display) -> Error {
    Error::Damage(format!("log of names: {what}"))
}

/// Checks that a number was not given yet.
fn check_new(what: &str, id: u32, next: u32) -> Result<()> {
    if id < next || id == u32::MAX {
        return Err(damage(format_args!("{what} {id} is made, the next is {next}")));
    }
    Ok(())
}

impl Catalogue {
    /// Applies a change.
    ///
    /// # Errors
    /// [`Error::Damage`] if it is impossible; nothing is changed then.
    pub(crate) fn apply(&mut self, change: Change) -> Result<()> {
        let bytes = change.encoded_bytes();
        let grown = match change {
            Change::Next(next) => self.raise(&next).map(|()| 0),
            Change::Database { id, name } => self.make_database(id, name).map(|()| bytes),
            Change::DatabaseDropped { id } => self.drop_database(id).map(|()| 0),
            Change::Policy { database, id, policy } => self.put_policy(database, id, policy, bytes),
            Change::PolicyDropped { id } => self.drop_policy(id).map(|()| 0),
            Change::Measurement { id, database, name } => {
                self.make_measurement(id, database, name).map(|()| bytes)
            }
            Change::MeasurementDropped { id } => self.drop_measurement(id).map(|()| 0),
            Change::Field { id, measurement, name, field_type } => {
                self.make_field(measurement, Field { id, name, field_type }).map(|()| bytes)
            }
            Change::Series { id, measurement, set, key } => {
                self.make_series(id, measurement, set, key).map(|()| bytes)
            }
            Change::SeriesDropped { ids } => {
                let mut dead = BTreeSet::new();
                self.note_dead(&ids, &mut dead).map(|()| self.drop_series(&dead)).map(|()| 0)
            }
            Change::Shard { id, policy, start, end } => {
                self.make_shard(Shard { id, policy, start, end }).map(|()| bytes)
            }
            Change::ShardDropped { id } => self.drop_shard(id).map(|()| 0),
        }?;
        self.log_bytes += bytes;
        self.live_bytes += grown;
        Ok(())
    }

    /// Applies changes, one after the other; `refused` gets an error for each impossible one. Series of consecutive
    /// drops are removed together: a removal scans all lists that have the series, whether they are few or many.
    pub(crate) fn apply_all(
        &mut self,
        changes: impl IntoIterator<Item = Change>,
        refused: &mut dyn FnMut(Error),
    ) {
        let mut dead = BTreeSet::new();
        for change in changes {
            let outcome = match change {
                Change::SeriesDropped { ref ids } => self.note_dead(ids, &mut dead).map(|()| {
                    self.log_bytes += change.encoded_bytes();
                }),
                change => {
                    self.drop_series(&std::mem::take(&mut dead));
                    self.apply(change)
                }
            };
            if let Err(error) = outcome {
                refused(error);
            }
        }
        self.drop_series(&dead);
    }

    /// The changes that bring an empty catalogue to this state.
    pub(crate) fn changes(&self) -> impl Iterator<Item = Change> {
        let databases = self
            .databases
            .iter()
            .map(|(id, it)| Change::Database { id: *id, name: Arc::clone(&it.name) });
        let policies = self.policies.iter().map(|(id, it)| Change::Policy {
            database: it.database,
            id: *id,
            policy: it.policy.clone(),
        });
        let measurements = self.measurements.iter().map(|(id, it)| Change::Measurement {
            id,
            database: it.database,
            name: Arc::clone(&it.name),
        });
        // Field numbers ascend over all measurements.
        let mut fields: Vec<(MeasurementId, &Field)> = self
            .measurements
            .iter()
            .flat_map(|(id, it)| it.fields().iter().map(move |field| (id, field)))
            .collect();
        fields.sort_unstable_by_key(|(_, field)| field.id);
        let fields = fields.into_iter().map(|(measurement, field)| Change::Field {
            id: field.id,
            measurement,
            name: Arc::clone(&field.name),
            field_type: field.field_type,
        });
        let shards = self.shards.keys().filter_map(|id| self.shard(*id)).map(|it| Change::Shard {
            id: it.id,
            policy: it.policy,
            start: it.start,
            end: it.end,
        });
        let series = self.series.iter().map(|(id, it)| Change::Series {
            id,
            measurement: it.measurement,
            set: it.set,
            key: it.key.clone(),
        });
        let next = std::iter::once(Change::Next(self.next));
        let of_databases = databases.chain(policies).chain(shards);
        of_databases.chain(measurements).chain(fields).chain(series).chain(next)
    }

    /// The number of bytes by which a new log would be shorter than the log of all applied changes.
    pub(crate) fn garbage_bytes(&self) -> u64 {
        self.log_bytes.saturating_sub(self.live_bytes)
    }

    /// Notes that the log was written anew.
    pub(crate) fn note_new_log(&mut self) {
        self.log_bytes = self.live_bytes;
    }

    /// The numbers to be given next.
    pub(crate) fn next(&self) -> Next {
        self.next
    }

    fn raise(&mut self, to: &Next) -> Result<()> {
        let Next { database, policy, measurement, field, series, shard } = self.next;
        let is_above = to.database >= database
            && to.policy >= policy
            && to.measurement >= measurement
            && to.field >= field
            && to.series >= series
            && to.shard >= shard;
        if !is_above {
            return Err(damage(format_args!("next numbers {to:?} are below {:?}", self.next)));
        }
        self.next = *to;
        Ok(())
    }

    fn make_database(&mut self, id: DatabaseId, name: Arc<str>) -> Result<()> {
        check_new("database", id, self.next.database)?;
        check_name(&name).map_err(damage)?;
        if self.database_names.contains_key(&name) {
            return Err(damage(format_args!("database {name:?} is made twice")));
        }
        self.next.database = id + 1;
        self.cost += DATABASE_COST + name.len();
        self.database_names.insert(Arc::clone(&name), id);
        let (policies, measurements, series) = (Vec::new(), BTreeMap::new(), HashTable::new());
        self.databases.insert(id, Database { name, policies, measurements, series });
        Ok(())
    }

    fn drop_database(&mut self, id: DatabaseId) -> Result<()> {
        let Some(database) = self.databases.get(&id) else {
            return Err(damage(format_args!("database {id}, which is not there, is dropped")));
        };
        let (policies, measurements) = (&database.policies, &database.measurements);
        let (policies, measurements) = (policies.clone(), measurements.values().copied());
        for measurement in measurements.collect::<Vec<_>>() {
            self.drop_measurement(measurement)?;
        }
        for policy in policies {
            self.drop_policy(policy)?;
        }
        if let Some(database) = self.databases.remove(&id) {
            self.database_names.remove(&database.name);
            self.cost = self.cost.saturating_sub(DATABASE_COST + database.name.len());
            self.live_bytes -= change::DATABASE_BYTES + database.name.len() as u64;
        }
        Ok(())
    }

    /// Returns by how many bytes the live log grows.
    fn put_policy(
        &mut self,
        of: DatabaseId,
        id: PolicyId,
        policy: Policy,
        bytes: u64,
    ) -> Result<u64> {
        check_name(&policy.name).and_then(|()| policy.check()).map_err(damage)?;
        let Some(database) = self.databases.get_mut(&of) else {
            return Err(damage(format_args!("policy {id} of database {of}, which is not there")));
        };
        let is_there = self.policies.get(&id).is_some_and(|old| old.database == of);
        let is_named = |it: &PolicyState| it.policy.name == policy.name;
        let namesake =
            database.policies.iter().find(|id| self.policies.get(id).is_some_and(is_named));
        if namesake.is_some_and(|it| *it != id) || is_there && namesake.is_none() {
            return Err(damage(format_args!("policy {id} of database {of} has a wrong name")));
        }
        if !is_there {
            check_new("policy", id, self.next.policy)?;
            self.next.policy = id + 1;
            database.policies.push(id);
            self.cost += POLICY_COST + policy.name.len();
        }
        if policy.is_default {
            for other in &database.policies {
                if let Some(other) = self.policies.get_mut(other) {
                    other.policy.is_default = false;
                }
            }
        }
        match self.policies.get_mut(&id) {
            Some(old) => {
                old.policy = policy;
                Ok(0)
            }
            None => {
                let state = PolicyState { database: of, policy, shards: BTreeMap::new() };
                self.policies.insert(id, state);
                Ok(bytes)
            }
        }
    }

    fn drop_policy(&mut self, id: PolicyId) -> Result<()> {
        let Some(state) = self.policies.remove(&id) else {
            return Err(damage(format_args!("policy {id}, which is not there, is dropped")));
        };
        if let Some(database) = self.databases.get_mut(&state.database) {
            database.policies.retain(|it| *it != id);
        }
        for shard in state.shards.values() {
            self.shards.remove(&shard.id);
        }
        let (shards, name) = (state.shards.len(), state.policy.name.len());
        self.cost = self.cost.saturating_sub(POLICY_COST + name + SHARD_COST * shards);
        self.live_bytes -= change::POLICY_BYTES + name as u64 + change::SHARD_BYTES * shards as u64;
        Ok(())
    }

    fn make_shard(&mut self, shard: Shard) -> Result<()> {
        let Shard { id, policy, start, end } = shard;
        check_new("shard", id, self.next.shard)?;
        let Some(state) = self.policies.get_mut(&policy) else {
            return Err(damage(format_args!("shard {id} of policy {policy}, which is not there")));
        };
        if start >= end || !state.is_vacant(start, end) {
            return Err(damage(format_args!("shard {id} has the times {start} to {end}")));
        }
        self.next.shard = id + 1;
        self.cost += SHARD_COST;
        state.shards.insert(start, shard);
        self.shards.insert(id, (policy, start));
        Ok(())
    }

    fn drop_shard(&mut self, id: ShardId) -> Result<()> {
        let Some((policy, start)) = self.shards.remove(&id) else {
            return Err(damage(format_args!("shard {id}, which is not there, is dropped")));
        };
        if let Some(state) = self.policies.get_mut(&policy) {
            state.shards.remove(&start);
        }
        self.cost = self.cost.saturating_sub(SHARD_COST);
        self.live_bytes -= change::SHARD_BYTES;
        Ok(())
    }

    fn make_measurement(
        &mut self,
        id: MeasurementId,
        of: DatabaseId,
        name: Arc<str>,
    ) -> Result<()> {
        check_new("measurement", id, self.next.measurement)?;
        check_key(&name).map_err(damage)?;
        let Some(database) = self.databases.get_mut(&of) else {
            return Err(damage(format_args!("measurement {id} of database {of}, not there")));
        };
        if database.measurements.contains_key(&name) {
            return Err(damage(format_args!("measurement {name:?} is made twice")));
        }
        self.next.measurement = id + 1;
        database.measurements.insert(Arc::clone(&name), id);
        let measurement = Measurement::new(of, name, self.hasher.clone());
        self.cost += measurement.cost();
        self.measurements.insert(id, Box::new(measurement));
        Ok(())
    }

    fn drop_measurement(&mut self, id: MeasurementId) -> Result<()> {
        let Some(measurement) = self.measurements.remove(id) else {
            return Err(damage(format_args!("measurement {id}, which is not there, is dropped")));
        };
        for series in measurement.postings.all() {
            self.forget(*series, measurement.database);
        }
        if let Some(database) = self.databases.get_mut(&measurement.database) {
            database.measurements.remove(&measurement.name);
            // Scanning a mostly empty table takes as long as scanning a full one.
            let hasher = &self.hasher;
            if database.series.capacity() / 4 > database.series.len() {
                database.series.shrink_to_fit(|it| hasher.hash_one(&*it.key));
            }
        }
        let fields = measurement.fields().iter();
        let cost = fields.clone().map(|it| Measurement::cost_of_field(&it.name)).sum::<usize>();
        let bytes = fields.map(|it| change::FIELD_BYTES + it.name.len() as u64).sum::<u64>();
        self.cost = self.cost.saturating_sub(measurement.cost() + cost);
        self.live_bytes -= change::MEASUREMENT_BYTES + measurement.name.len() as u64 + bytes;
        Ok(())
    }

    fn make_field(&mut self, of: MeasurementId, field: Field) -> Result<()> {
        check_new("field", field.id, self.next.field)?;
        check_key(&field.name).map_err(damage)?;
        let Some(measurement) = self.measurements.get_mut(of) else {
            return Err(damage(format_args!("field {} of measurement {of}, not there", field.id)));
        };
        if measurement.field(&field.name, usize::MAX).is_some() {
            return Err(damage(format_args!("field {:?} is made twice", field.name)));
        }
        self.next.field = field.id + 1;
        self.cost += Measurement::cost_of_field(&field.name);
        measurement.push(field);
        Ok(())
    }

    fn make_series(
        &mut self,
        id: SeriesId,
        of: MeasurementId,
        set: u32,
        key: Box<str>,
    ) -> Result<()> {
        check_new("series", id, self.next.series)?;
        check_key(&key).map_err(damage)?;
        let Some(measurement) = self.measurements.get_mut(of) else {
            return Err(damage(format_args!("series {id} of measurement {of}, not there")));
        };
        let Some(database) = self.databases.get_mut(&measurement.database) else {
            return Err(damage(format_args!("series {id} without a database")));
        };
        let Some((_, tags)) = parts(&key).filter(|(name, _)| **name == *measurement.name) else {
            return Err(damage(format_args!("series {id} of {:?}: {key:?}", measurement.name)));
        };
        let hasher = &self.hasher;
        let entry = database.series.entry(
            hasher.hash_one(&*key),
            |it| it.key == key,
            |it| hasher.hash_one(&*it.key),
        );
        let Entry::Vacant(vacant) = entry else {
            return Err(damage(format_args!("series {key:?} is made twice")));
        };
        let before = measurement.postings.cost();
        measurement.postings.insert(hasher, id, &tags);
        let unescaped = unescaped(&tags);
        drop(tags);
        let series = Arc::new(Series::new(id, set, of, key, unescaped));
        self.cost += measurement.postings.cost() - before + series.cost();
        self.next.series = id + 1;
        self.series.insert(id, Arc::clone(&series));
        vacant.insert(series);
        Ok(())
    }

    /// Adds series to those that are to be dropped.
    fn note_dead(&self, ids: &[SeriesId], dead: &mut BTreeSet<SeriesId>) -> Result<()> {
        let its: BTreeSet<SeriesId> = ids.iter().copied().collect();
        let is_there = |id: &SeriesId| self.is_series_live(*id) && !dead.contains(id);
        if its.len() != ids.len() || !its.iter().all(is_there) {
            return Err(damage("series that are not there are dropped"));
        }
        dead.extend(its);
        Ok(())
    }

    /// Drops existing series.
    fn drop_series(&mut self, ids: &BTreeSet<SeriesId>) {
        if mutant!("tsdb.series.reused") {
            self.next.series = ids.first().copied().unwrap_or(self.next.series);
        }
        let mut dead: BTreeMap<MeasurementId, Vec<Arc<Series>>> = BTreeMap::new();
        for series in ids.iter().filter_map(|id| self.series.get(*id)) {
            dead.entry(series.measurement).or_default().push(Arc::clone(series));
        }
        for (id, dead) in dead {
            let Some(measurement) = self.measurements.get_mut(id) else { continue };
            let before = measurement.postings.cost();
            measurement.postings.remove(&self.hasher, &dead);
            self.cost = self.cost.saturating_sub(before - measurement.postings.cost());
            let database = measurement.database;
            for series in &dead {
                self.forget(series.id, database);
            }
        }
    }

    /// Removes a series, except from the postings.
    fn forget(&mut self, id: SeriesId, database: DatabaseId) {
        let Some(series) = self.series.remove(id) else { return };
        if let Some(database) = self.databases.get_mut(&database) {
            let hash = self.hasher.hash_one(&*series.key);
            if let Ok(entry) = database.series.find_entry(hash, |it| Arc::ptr_eq(it, &series)) {
                entry.remove();
            }
        }
        self.cost = self.cost.saturating_sub(series.cost());
        self.live_bytes -= change::SERIES_BYTES + series.key.len() as u64;
    }
}
