//! Changes to come: a request is checked, and gets its number.
//!
//! A draw changes nothing. The drawn change must be applied before the next one of its kind is drawn, which would
//! otherwise get the same number.

use super::change::Change;
use super::measurement::Field;
use super::name::{check_key, check_name};
use super::policy::Policy;
use super::postings::Postings;
use super::series::{cost_of, parts, unescaped};
use super::{Catalogue, DatabaseId, MeasurementId};
use crate::error::{Error, Result};
use crate::point::FIELDS_MAX;
use crate::value::FieldType;
use std::sync::Arc;

/// The limits of a catalogue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Series in all.
    pub(crate) series_max: u64,
    /// Fields of a measurement.
    pub(crate) fields_max: usize,
    /// Bytes of DRAM for all names, about.
    pub(crate) bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { series_max: 1_000_000, fields_max: FIELDS_MAX, bytes_max: usize::MAX }
    }
}

/// The error for a value of another type than its field.
pub(crate) fn type_conflict(measurement: &str, field: &Field, given: FieldType) -> Error {
    Error::Input(format!(
        "field type conflict: input field \"{}\" on measurement \"{measurement}\" is type {}, \
         already exists as type {}",
        field.name,
        given.name(),
        field.field_type.name(),
    ))
}

pub(super) fn not_found(what: &str, id: u32) -> Error {
    Error::NotFound(format!("{what} not found: number {id}"))
}

pub(super) fn there_already(what: &str, name: &str) -> Error {
    Error::Input(format!("{what} already exists: {name}"))
}

/// A number, if it can be given.
pub(super) fn number(next: u32) -> Result<u32> {
    if next == u32::MAX {
        return Err(Error::Limit("all numbers of 32 bits are used up".to_owned()));
    }
    Ok(next)
}

/// A policy with its shard duration, if it can be made.
fn checked(policy: &Policy) -> Result<Policy> {
    check_name(&policy.name).map_err(Error::Input)?;
    let policy = policy.clone().normal();
    policy.check().map_err(Error::Input)?;
    Ok(policy)
}

impl Catalogue {
    /// The changes that make a database, and its policy `autogen`, which keeps all points.
    ///
    /// # Errors
    /// [`Error::Input`]: the name is invalid, or exists; [`Error::Limit`].
    pub(crate) fn database_changes(&self, name: &str) -> Result<[Change; 2]> {
        self.database_changes_with(name, &Policy::autogen())
    }

    /// The changes that make a database, and its policy, which is the default one.
    ///
    /// # Errors
    /// [`Error::Input`]: a name or the durations are invalid, or the database exists; [`Error::Limit`].
    pub(crate) fn database_changes_with(&self, name: &str, policy: &Policy) -> Result<[Change; 2]> {
        check_name(name).map_err(Error::Input)?;
        if self.database(name).is_some() {
            return Err(there_already("database", name));
        }
        let policy = Policy { is_default: true, ..checked(policy)? };
        self.check_room(name.len() + policy.name.len())?;
        let id = number(self.next.database)?;
        let policy_id = number(self.next.policy)?;
        Ok([
            Change::Database { id, name: name.into() },
            Change::Policy { database: id, id: policy_id, policy },
        ])
    }

    /// The change that makes a policy, or gives an existing one new durations; it stays the default one if it is. A
    /// shard duration of 0 stands for InfluxDB's choice.
    ///
    /// # Errors
    /// [`Error::NotFound`]: the database; [`Error::Input`]: name or durations; [`Error::Limit`].
    pub(crate) fn policy_change(&self, database: DatabaseId, policy: &Policy) -> Result<Change> {
        if !self.databases.contains_key(&database) {
            return Err(not_found("database", database));
        }
        let mut policy = checked(policy)?;
        let id = match self.policy(database, Some(&policy.name)) {
            Some((id, old)) => {
                policy.is_default |= old.is_default;
                id
            }
            None => {
                self.check_room(policy.name.len())?;
                number(self.next.policy)?
            }
        };
        Ok(Change::Policy { database, id, policy })
    }

    /// The change that makes a policy; none if there is the same one. A policy that is not to be the default one is
    /// the same as a default one.
    ///
    /// # Errors
    /// [`Error::NotFound`]: the database; [`Error::Input`]: name or durations, or there is another policy of this
    /// name; [`Error::Limit`].
    pub(crate) fn new_policy_change(
        &self,
        database: DatabaseId,
        policy: &Policy,
    ) -> Result<Option<Change>> {
        let change = self.policy_change(database, policy)?;
        let Some((_, known)) = self.policy(database, Some(&policy.name)) else {
            return Ok(Some(change));
        };
        match change {
            Change::Policy { policy, .. } if policy == *known => Ok(None),
            _ => Err(Error::Input("retention policy already exists".to_owned())),
        }
    }

    /// Checks the name of a measurement.
    ///
    /// # Errors
    /// [`Error::Input`].
    pub(crate) fn check_measurement(&self, name: &str) -> Result<()> {
        check_key(name).map_err(Error::Input)
    }

    /// Checks that a measurement with `count` fields can have another one of this name.
    ///
    /// # Errors
    /// [`Error::Input`]: the name; [`Error::Limit`]: there are too many.
    pub(crate) fn check_field(&self, measurement: &str, count: usize, name: &str) -> Result<()> {
        check_key(name).map_err(Error::Input)?;
        let max = self.limits.fields_max;
        if count >= max {
            let what =
                format!("max-fields-per-measurement limit exceeded on {measurement:?}: ({max})");
            return Err(Error::Limit(what));
        }
        Ok(())
    }

    /// Checks that there can be another series, beside `to_come` others that are not made yet.
    ///
    /// # Errors
    /// [`Error::Input`]: the key; [`Error::Limit`]: there are too many.
    pub(crate) fn check_series(&self, key: &str, to_come: usize) -> Result<()> {
        check_key(key).map_err(Error::Input)?;
        let max = self.limits.series_max;
        if (self.series_count() + to_come) as u64 >= max {
            return Err(Error::Limit(format!("max-series-per-database limit exceeded: ({max})")));
        }
        Ok(())
    }

    /// The approximate bytes of DRAM that another series of a measurement takes, which may not be made yet. `is_new` is
    /// asked about tag keys, and about tags, that the measurement does not have.
    pub(crate) fn cost_of_series(
        &self,
        measurement: MeasurementId,
        key: &str,
        is_new: &mut dyn FnMut(&str, Option<&str>) -> bool,
    ) -> usize {
        let Some((_, tags)) = parts(key) else { return 0 };
        let its = cost_of(key, unescaped(&tags).map(|it| it.len()));
        let none = Postings::default();
        let postings = self.measurement_by_id(measurement).map_or(&none, |it| &it.postings);
        its + postings.cost_of(&self.hasher, &tags, is_new)
    }

    /// All series, in no order.
    pub(crate) fn all_series(&self) -> impl Iterator<Item = &Arc<super::Series>> {
        self.databases.values().flat_map(|database| database.series.iter())
    }

    /// Checks that there is room in DRAM for about `bytes` more.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub(crate) fn check_room(&self, bytes: usize) -> Result<()> {
        let max = self.limits.bytes_max;
        if self.cost.saturating_add(bytes) > max {
            return Err(Error::Limit(format!("max-names-memory limit exceeded: ({max} bytes)")));
        }
        Ok(())
    }
}
